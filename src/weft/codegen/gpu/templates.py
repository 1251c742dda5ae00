"""Which template carries out which plan, and whether it can."""

from __future__ import annotations

from collections.abc import Mapping

from weft.codegen.gpu import columns, ir, mma_fma, mma_sm80, mma_sm90, row, transposed
from weft.codegen.gpu import map as elementwise
from weft.codegen.gpu.accept import kernel_refusals, refuse
from weft.codegen.gpu.matmul import Refs
from weft.codegen.gpu.peephole import recognise
from weft.foundation.errors import Finding, SpecViolation
from weft.plan.ir import MapPlan, MmaPlan, Plan, RowPlan
from weft.region.ir import Kernel, Tensor
from weft.target.target import Target


def accepts(
    kernel: Kernel, tensors: Mapping[str, Tensor], refs: Refs, plan: Plan, target: Target
) -> list[Finding]:
    """Why the plan cannot be carried out; empty if it can."""
    short = recognise(kernel)
    match plan:
        case MapPlan(block=block) if block > 1:
            found = transposed.accepts(short, tensors, plan, target)
        case MapPlan():
            found = elementwise.accepts(short, tensors, plan, target)
        case RowPlan(across=True):
            found = columns.accepts(short, tensors, plan, target)
        case RowPlan():
            found = row.accepts(short, tensors, plan, target)
        case MmaPlan(arch="fma"):
            found = mma_fma.accepts(short, tensors, plan, target)
        case MmaPlan(arch="sm90"):
            found = kernel_refusals(short, tensors)
            found += mma_sm90.accepts(kernel, refs, plan, target)
        case MmaPlan(arch="sm80"):
            found = kernel_refusals(short, tensors)
            found += mma_sm80.accepts(kernel, refs, plan, target)
        case _:
            found = [refuse("PlanNotSupported", f"no GPU template carries out this {_kind(plan)}")]
    return [Finding(f.code, f"kernel {kernel.name}", f.why, f.hint) for f in found]


def build(
    kernel: Kernel,
    tensors: Mapping[str, Tensor],
    refs: Refs,
    plan: Plan,
    target: Target,
    name: str,
) -> ir.Kernel:
    """The dialect kernel of a plan that `accepts` has nothing against."""
    short = recognise(kernel)
    match plan:
        case MapPlan(block=block) if block > 1:
            return transposed.build(short, tensors, refs, plan, target, name)
        case MapPlan():
            return elementwise.build(short, tensors, refs, plan, target, name)
        case RowPlan(across=True):
            return columns.build(short, tensors, refs, plan, target, name)
        case RowPlan():
            return row.build(short, tensors, refs, plan, target, name)
        case MmaPlan(arch="fma"):
            return mma_fma.build(short, tensors, refs, plan, target, name)
        case MmaPlan(arch="sm90"):
            return mma_sm90.build(kernel, refs, plan, target, name)
        case MmaPlan(arch="sm80"):
            return mma_sm80.build(kernel, refs, plan, target, name)
        case _:
            raise SpecViolation.of(accepts(kernel, tensors, refs, plan, target))


def _kind(plan: Plan) -> str:
    return f"{plan.arch} MmaPlan" if isinstance(plan, MmaPlan) else type(plan).__name__
