"""Which template carries out which plan, and whether it can."""

from __future__ import annotations

from collections.abc import Mapping

from weft.codegen.gpu import columns, ir, row, row_ring, row_several, transposed
from weft.codegen.gpu import map as elementwise
from weft.codegen.gpu.accept import kernel_refusals, refuse
from weft.codegen.gpu.attention import sm90 as attention
from weft.codegen.gpu.mma import fma, sm80, sm90
from weft.codegen.gpu.mma.problem import Refs
from weft.codegen.gpu.peephole import recognise
from weft.codegen.gpu.thread import Emitter
from weft.foundation.errors import Finding, InternalError, SpecViolation
from weft.plan.ir import AttentionPlan, MapPlan, MmaPlan, Plan, RowPlan
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
        case RowPlan(ring=ring) if ring:
            found = row_ring.accepts(short, tensors, refs, plan, target)
        case RowPlan(rows_per_thread=rows) if rows > 1:
            found = row_several.accepts(short, tensors, plan, target)
        case RowPlan():
            found = row.accepts(short, tensors, plan, target)
        case MmaPlan(arch="fma"):
            found = fma.accepts(kernel, tensors, plan, target)
        case MmaPlan(arch="sm90"):
            found = kernel_refusals(short, tensors)
            found += sm90.accepts(kernel, refs, plan, target)
        case MmaPlan(arch="sm80"):
            found = kernel_refusals(short, tensors)
            found += sm80.accepts(kernel, refs, plan, target)
        case AttentionPlan():
            found = kernel_refusals(kernel, tensors)
            found += attention.accepts(kernel, refs, plan, target)
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
    """The dialect kernel of a plan, called `name` in the generated source."""
    findings = accepts(kernel, tensors, refs, plan, target)
    if findings:
        raise SpecViolation.of(findings)
    short = recognise(kernel)
    emitter: Emitter
    match plan:
        case MmaPlan(arch="sm90"):
            return sm90.build(kernel, refs, plan, target, name)
        case MmaPlan(arch="sm80"):
            return sm80.build(kernel, refs, plan, target, name)
        case AttentionPlan():
            return attention.build(kernel, refs, plan, target, name)
        case MmaPlan():
            emitter = fma.Tiles(short, refs, plan, target)
        case MapPlan(block=block) if block > 1:
            emitter = transposed.Blocks(short, refs, plan, tensors, target)
        case MapPlan():
            emitter = elementwise.Map(short, refs, plan, target)
        case RowPlan(across=True):
            emitter = columns.Columns(short, refs, plan)
        case RowPlan(ring=ring) if ring:
            emitter = row_ring.RingRows(short, refs, plan, target)
        case RowPlan(rows_per_thread=rows) if rows > 1:
            emitter = row_several.SeveralRows(short, refs, plan, target)
        case RowPlan():
            emitter = row.Rows(short, refs, plan, target)
        case _:
            raise InternalError(f"no GPU template carries out a {_kind(plan)}")
    return emitter.kernel_called(name, tensors)


def _kind(plan: Plan) -> str:
    return f"{plan.arch} MmaPlan" if isinstance(plan, MmaPlan) else type(plan).__name__
