"""Operand types of a product, and the matrix instruction that multiplies them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from weft.foundation.dtypes import DType
from weft.region.ir import Binary, Cast, Kernel, Let, Output, Reduce, Roles, Unary, operands
from weft.target.matrix_atoms import FULL, PROMOTED, Atom, atom_for
from weft.target.target import Target

_NARROW_BYTES: Final = 2
"""Bytes of numbers that do not show what promoted sums, or sums of rounded weights, lose."""


def multiplies_reads(kernel: Kernel) -> bool:
    """Whether a contraction multiplies what it reads, as it is or widened to the dtype of the sums:
    a cast to another dtype in between would change the numbers."""
    roles = kernel.roles
    assert roles is not None
    total = kernel.let(roles.contraction)
    product = kernel.let(total.expr.value) if isinstance(total.expr, Reduce) else total
    if not isinstance(product.expr, Binary):
        return False
    return all(
        name in (roles.lhs, roles.rhs) or _widens(kernel.let(name), total.dtype, roles)
        for name in (product.expr.lhs, product.expr.rhs)
    )


def _widens(let: Let, dtype: DType, roles: Roles) -> bool:
    direct = isinstance(let.expr, Cast) and let.expr.x in (roles.lhs, roles.rhs)
    return direct and let.dtype is dtype


def operand_bytes(kernel: Kernel) -> int:
    """Bytes of an element that a contraction multiplies, as it is read."""
    assert kernel.roles is not None
    return kernel.let(kernel.roles.lhs).dtype.storage_bytes


def usual_atom(kernel: Kernel, arch: str) -> Atom | None:
    """The matrix instruction of a template that makes what the kernel says, within what its results
    show; None where there is none. Others are for plans that name them."""
    roles = kernel.roles
    if roles is None or not multiplies_reads(kernel):
        return None
    dtypes = (kernel.let(name).dtype for name in (roles.lhs, roles.rhs, roles.contraction))
    atom = atom_for(arch, *dtypes)
    if atom is None or atom.precision == FULL:
        return atom
    if atom.precision != PROMOTED:
        return None
    return atom if hides_digits(kernel, roles.contraction, kernel.outputs) else None


def multiplies_numbers(kernel: Kernel, target: Target) -> bool:
    """Whether a contraction is made of multiply-adds of single numbers, by no matrix unit of a
    GPU."""
    arch = "sm90" if target.has("wgmma") else "sm80"
    return kernel.roles is not None and usual_atom(kernel, arch) is None


def hides_digits(kernel: Kernel, sums: str, outputs: Iterable[Output]) -> bool:
    """Whether the sums are rounded to few digits before any of the outputs shows what they lack: on
    the way they may be scaled, but a sum with others might cancel their leading digits."""
    wide, shows = {sums}, set[str]()
    for let in kernel.body:
        used = {*operands(let)}
        if used & shows:
            shows.add(let.name)
        elif used & wide and let.dtype.storage_bytes > _NARROW_BYTES:
            scaled = isinstance(let.expr, Cast | Unary | Binary) and _scales(let.expr)
            (wide if scaled else shows).add(let.name)
    return not (wide | shows) & {output.value for output in outputs}


def _scales(expr: Cast | Unary | Binary) -> bool:
    return isinstance(expr, Cast) or expr.fn in ("mul", "neg", "relu", "abs")
