"""The kernels of a program that are right but slower than a GPU could be, for `weft compile -v`.

What is listed has no faster template yet, so nobody need search for the reason elsewhere:
convolutions and other products without matrix instructions where their dtype has some, attention
whose scores go through memory or that its template refuses, long rows by single threads, and
kernels with so few blocks that most units wait. Ops that the host carries out are listed by the
executable itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final

from weft.codegen.gpu.ir.module import GpuModule
from weft.foundation.dtypes import BF16, F16
from weft.foundation.tally import counted
from weft.plan.ir import AttentionPlan, MmaPlan, Plan, PlanSet, RowPlan
from weft.plan.rows import row_length
from weft.region.forms.thin_products import FEW
from weft.region.forms.warpgroups import WIDEST
from weft.region.ir import Kernel, Module, Pattern
from weft.region.structure import buffers
from weft.target.matrix_atoms import ATOMS, SPLIT, atom_for
from weft.target.target import Target

_LONG: Final = 512
"""Elements of a row that are much for one thread."""
_OF_ATTENTION: Final = {
    Pattern.ATTENTION: "an attention",
    Pattern.STREAM: "a gradient of an attention",
}
_PIECE: Final = 8
"""Elements of 16 bits of which rows are made that the copy engine reads."""
_MUCH: Final = 4 << 20
"""Bytes that are much for a few units."""


def slow_paths(module: Module, plans: PlanSet, code: GpuModule, target: Target) -> list[str]:
    """A sentence for every slow path that a program takes."""
    found = [
        why
        for k in module.kernels
        if k.name in code.launches
        for why in _reasons_for_kernel(k, plans, target)
    ]
    found += _attentions(module, code)
    found += [why for kernel in module.kernels for why in _idle(kernel, module, code, target)]
    return [f"slow but correct: {why}" for why in found]


def _reasons_for_kernel(kernel: Kernel, plans: PlanSet, target: Target) -> Iterator[str]:
    if kernel.name not in plans.kernels:
        return
    plan = plans.of(kernel.name)
    if kernel.roles is not None and _lacks_matrix_units(kernel, plan, target):
        what = "a convolution" if kernel.pattern is Pattern.CONV else "a product"
        dtype = kernel.let(kernel.roles.lhs).dtype
        how = "by scalar multiply-adds" if isinstance(plan, MmaPlan) else "as rows"
        yield f"{kernel.name} is {what} of {dtype} {how}, not by matrix instructions"
    mixture = _OF_ATTENTION.get(kernel.pattern)
    if mixture is not None and not isinstance(plan, AttentionPlan):
        why = "whose template refuses it, with an element for each thread"
        yield f"{kernel.name} is {mixture} {why}"
    alone = isinstance(plan, RowPlan) and plan.threads == 1 and not plan.across
    if alone and row_length(kernel) >= _LONG:
        yield f"{kernel.name} has one thread for each row of {row_length(kernel)} elements"


def _lacks_matrix_units(kernel: Kernel, plan: Plan, target: Target) -> bool:
    """Whether a contraction does without instructions that there are for its dtypes, and has enough
    rows and columns for them; convolutions always could be faster."""
    if isinstance(plan, MmaPlan) and plan.arch in (*ATOMS, "codes", "groups", "planes"):
        return False
    if kernel.pattern is Pattern.CONV:
        return True
    assert kernel.roles is not None
    roles, sizes = kernel.roles, kernel.sizes
    dtypes = [kernel.let(name).dtype for name in (roles.lhs, roles.rhs, roles.contraction)]
    atoms = (atom_for(arch, *dtypes) for arch in ("sm80", *["sm90"] * target.has("wgmma")))
    sides = [prod(sizes[name] for name in axes) for axes in (roles.m, roles.n)]
    exact = any(atom is not None and atom.precision != SPLIT for atom in atoms)
    return exact and min(sides) > FEW[-1]


def _attentions(module: Module, code: GpuModule) -> Iterator[str]:
    by_name = {kernel.name: kernel for kernel in module.kernels}
    trained = any(chain.kind == "stream" for chain in module.chains)
    for chain in module.chains:
        names = [name for name in chain.kernels if name in code.launches]
        if chain.kind == "attention" and len(names) > 1:
            products = [by_name[name] for name in names if by_name[name].roles is not None]
            why = "".join(f": {reason}" for reason in _unfit_heads(products, trained))
            yield f"{', '.join(names)} are an attention whose scores go through global memory{why}"


def _unfit_heads(products: Sequence[Kernel], trained: bool) -> list[str]:
    """Why no kernel takes the heads of an attention, where their dtype or their size says it."""
    if len(products) < 2:
        return []
    first, last = products[0], products[-1]
    assert first.roles is not None
    assert last.roles is not None
    dtype = first.let(first.roles.lhs).dtype
    if dtype not in (BF16, F16):
        return [f"it multiplies {dtype}, and its kernels bf16 and f16"]
    size = prod(first.sizes[name] for name in first.roles.k)
    if trained and WIDEST // 2 < size <= WIDEST:
        return [f"its heads have {size} elements, and its gradients' kernels up to {WIDEST // 2}"]
    if size > WIDEST:
        return [f"its heads have {size} elements, over {WIDEST}"]
    if size % _PIECE:
        return [f"its heads have {size} elements, which is no multiple of {_PIECE}"]
    return []


def _idle(kernel: Kernel, module: Module, code: GpuModule, target: Target) -> Iterator[str]:
    """Kernels that leave most of the machine idle while they move much."""
    launch = code.launches.get(kernel.name)
    if launch is None:
        return
    grid, units = code.kernels[launch.symbol].grid, target.limits.units
    size = sum(module.tensors[name].bytes for name in buffers(kernel))
    if 2 * grid <= units and size >= _MUCH:
        yield (
            f"{kernel.name} has {counted(grid, 'block')} for {size / 1e6:.0f} MB, where {units} "
            "SMs could work"
        )
