"""What a contraction multiplies, and the matrix instruction that does just that."""

from __future__ import annotations

from typing import Final

from weft.foundation.dtypes import DType
from weft.region.ir import Binary, Cast, Kernel, Let, Reduce, Roles, Unary, operands
from weft.target.matrix_atoms import FULL, PROMOTED, Atom, atom_for
from weft.target.target import Target

_NARROW_BYTES: Final = 2
"""Bytes of numbers that do not show what promoted sums lose."""


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
    return atom if atom.precision == PROMOTED and _hides_promotion(kernel) else None


def multiplies_numbers(kernel: Kernel, target: Target) -> bool:
    """Whether a contraction is made of multiply-adds of single numbers, by no matrix unit of a
    GPU."""
    arch = "sm90" if target.has("wgmma") else "sm80"
    return kernel.roles is not None and usual_atom(kernel, arch) is None


def _hides_promotion(kernel: Kernel) -> bool:
    """Whether the sums are rounded to few digits before anything shows what they lack: on the way
    they may be scaled, but a sum with others might cancel their leading digits."""
    assert kernel.roles is not None
    wide = {kernel.roles.contraction}
    for let in kernel.body:
        if not wide & {*operands(let)} or let.dtype.storage_bytes <= _NARROW_BYTES:
            continue
        if not isinstance(let.expr, Cast | Unary | Binary) or not _scales(let.expr):
            return False
        wide.add(let.name)
    return not wide & {output.value for output in kernel.outputs}


def _scales(expr: Cast | Unary | Binary) -> bool:
    return isinstance(expr, Cast) or expr.fn in ("mul", "neg", "relu", "abs")
