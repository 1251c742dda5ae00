"""What both matrix templates refuse: problems without an instruction, fields of a plan that say
anything but what they do anyway, more shared memory than there is."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from weft.codegen.gpu.accept import refuse
from weft.codegen.gpu.mma.problem import Operand, Problem
from weft.codegen.gpu.swizzle import Major
from weft.foundation.dtypes import DType
from weft.foundation.errors import Finding
from weft.plan.epilogue import epilogue_refusals
from weft.plan.ir import STREAMING, MmaPlan
from weft.region.ir import Kernel
from weft.target.matrix_atoms import Atom
from weft.target.target import Target

_ALGORITHMS: Final = {"matmul": "implicit_gemm", "attention": STREAMING}
_HINTS: Final[Mapping[str, bool | str]] = {"A_swizzle": True, "B_swizzle": True, "C_stride": "row"}


def field_refusals(kernel: Kernel, plan: MmaPlan) -> Iterator[Finding]:
    """Fields of a plan that neither template carries out."""
    for why in (*epilogue_refusals(kernel, plan), *_refusals(plan)):
        yield refuse("PlanField", why)


def _refusals(plan: MmaPlan) -> Iterator[str]:
    for key, value in plan.algo_choice.items():
        if _ALGORITHMS.get(key) != value:
            yield f"algo_choice.{key}={value} is not built"
    for hint, wanted in plan.layout_hints.items():
        if _HINTS.get(hint) != wanted:
            yield f"layout_hints.{hint}={wanted} is not built"
    for cached in plan.cache:
        if cached.tensor not in ("A", "B"):
            yield f"{cached.tensor} is no operand: A and B are cached"
        elif cached.where != "smem" or not cached.pingpong:
            yield f"{cached.tensor} must be cached in smem, double-buffered"
        elif cached.at != "k.i":
            yield f"{cached.tensor} is cached at k.i, not at {cached.at}"


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
    if problem.out_dtype not in results:
        yield refuse("ResultDType", f"a result of {problem.out_dtype} cannot be stored")
    if min(problem.m, problem.n, problem.k, *problem.batch, 1) < 1:
        yield refuse("Empty", "the contraction has an empty axis")


def stored_refusals(plan: MmaPlan, a: Operand, b: Operand) -> Iterator[Finding]:
    """Operands that do not lie as the plan says."""
    stored = ("row" if a.major is Major.K else "col", "col" if b.major is Major.K else "row")
    if plan.operand_layouts != stored:
        yield refuse("Layouts", f"operand_layouts={plan.operand_layouts}, stored as {stored}")


def memory_refusals(needed: int, target: Target) -> Iterator[Finding]:
    """Bytes of shared memory that a block does not have."""
    limit = target.limits.shared_bytes_per_block
    if needed > limit:
        yield refuse(
            "SharedMemory",
            f"the plan needs {needed} bytes of shared memory, over {limit}",
            "use fewer stages or a smaller tile",
        )
