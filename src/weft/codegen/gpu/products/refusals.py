"""The refusals that matrix templates share: no such instruction, plan fields without effect, too
much shared memory.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import Final

from weft.codegen.gpu.body.accept import refuse, too_many
from weft.codegen.gpu.ir.swizzle import Major
from weft.codegen.gpu.products.operand import Operand
from weft.codegen.gpu.products.problem import Problem, Strides
from weft.codegen.gpu.products.tiles import SIDE_LIMIT, TABLE_LIMIT, TileOrder, known
from weft.foundation.dtypes import DType
from weft.foundation.errors import Finding
from weft.foundation.tally import counted
from weft.plan.completion import HINTS, algorithm_kind, false_claims
from weft.plan.ir import STREAMING, Header, MmaPlan
from weft.plan.slabs import has_slabs
from weft.plan.sum_parts import SPLITTING
from weft.plan.text import told
from weft.region.ir import Kernel
from weft.target.matrix_atoms import Atom
from weft.target.target import Target

_SPLITTING: Final = ("sm80", "sm90")
"""Templates that make sums in parts."""


def field_refusals(kernel: Kernel, plan: MmaPlan) -> Iterator[Finding]:
    """Fields of a plan that no template carries out, and what they say that is not so."""
    for why in (
        *false_claims(kernel, plan),
        *algorithm_refusals(kernel, plan),
        *_refuse_caches(plan),
    ):
        yield refuse("PlanField", why)
    for hint, value in plan.layout_hints.items():
        if HINTS.get(hint) != value:
            yield refuse("PlanField", f"layout_hints.{hint}={json.dumps(value)} is not built")


def algorithm_refusals(kernel: Kernel, plan: MmaPlan) -> Iterator[str]:
    """Algorithms that a plan names and no template has."""
    built = {algorithm_kind(kernel, plan.arch): "implicit_gemm", "attention": STREAMING}
    for key, value in plan.algo_choice.items():
        # Matrix instructions make sums in parts as well (`split.py`).
        if key == "matmul" and plan.arch in _SPLITTING and SPLITTING.fullmatch(value):
            continue
        if built.get(key) != value:
            yield f"algo_choice.{key}={value} is not built for this kernel"


def _refuse_caches(plan: MmaPlan) -> Iterator[str]:
    """Tiles of both operands wait in shared memory: a plan that says so says it of both."""
    if has_slabs(plan):
        return
    for cached in plan.cache:
        if cached.tensor not in ("A", "B"):
            yield f"cache: {cached.tensor} is not an operand; A and B are cached"
        elif cached.where != "smem" or not cached.pingpong:
            yield f"cache: {cached.tensor} must be cached in smem, double-buffered"
        elif cached.at != "k.i":
            yield f"cache: {cached.tensor} is cached at k.i, not at {cached.at}"
    names = [cached.tensor for cached in plan.cache]
    for name in ("A", "B"):
        if names and names.count(name) != 1:
            yield f"cache names {name} {counted(names.count(name), 'time')}, not once"


def problem_refusals(
    problem: Problem, plan: MmaPlan, atom: Atom | None, results: Collection[DType], instruction: str
) -> Iterator[Finding]:
    """What a template whose instruction is called so cannot multiply, or not as precisely, or not
    store."""
    if atom is None:
        yield refuse("OperandDType", f"no {instruction} takes {problem.operands_and_sums}")
        return
    if plan.precision != atom.precision:
        what = f"products of {problem.a.dtype} by {instruction} are {atom.precision}"
        yield refuse("PlanField", f"precision={plan.precision}: {what}")
    for stored in problem.stored:
        if stored.dtype not in results:
            yield refuse("ResultDType", f"a result of {stored.dtype} cannot be stored")
    if min(problem.m, problem.n, problem.k, *problem.batch, 1) < 1:
        yield refuse("Empty", "the contraction has an empty axis")
    indices = (s.strides for s in problem.sources if s.tensor is None)
    reached = (_largest_index(problem, strides) for strides in indices)
    yield from too_many(problem.m, problem.n, problem.k, problem.batches, *reached)


def _largest_index(problem: Problem, strides: Strides) -> int:
    """The largest number, by its size, that an index of the epilogue comes near."""
    parts = [(problem.m, strides.row), (problem.n, strides.column)]
    parts += zip(problem.batch, strides.batch, strict=True)
    return abs(strides.offset) + sum(size * abs(stride) for size, stride in parts)


def stored_refusals(plan: MmaPlan, a: Operand, b: Operand) -> Iterator[Finding]:
    """Operands that do not lie as the plan says."""
    stored = ("row" if a.major is Major.K else "col", "col" if b.major is Major.K else "row")
    if plan.operand_layouts not in ((), stored):
        said = told(plan, "operand_layouts")
        yield refuse("Layouts", f"{said}, but they are stored as {json.dumps(stored)}")


def order_refusals(order: TileOrder) -> Iterator[Finding]:
    """Orders without a meaning, and curves that no table has room for."""
    if not known(order.order):
        yield refuse("PlanField", f"there is no tile order {order.order}")
    elif order.is_curve and not order.has_room:
        most = f"{TABLE_LIMIT} tiles, {SIDE_LIMIT} of them side by side"
        yield refuse("PlanField", f"a Hilbert order goes up to {most}")


def memory_refusals(needed: int, target: Target) -> Iterator[Finding]:
    """Bytes of shared memory that a block does not have."""
    limit = target.limits.shared_bytes_per_block
    if needed > limit:
        yield refuse(
            "SharedMemory",
            f"the plan needs {needed} bytes of shared memory, over {limit}",
            "use fewer stages or a smaller tile",
        )


def unused_field_refusals(
    plan: MmaPlan, used: Collection[str], fixed: Mapping[str, object], where: str
) -> Iterator[Finding]:
    """Fields that a template neither uses nor has fixed, and that say more than they usually do."""
    usual = MmaPlan(Header("", ""), plan.tile)
    for field in fields(plan):
        wanted = fixed.get(field.name, getattr(usual, field.name))
        if field.name not in used and getattr(plan, field.name) != wanted:
            yield refuse("PlanField", f"{told(plan, field.name)} has no effect in {where}")
