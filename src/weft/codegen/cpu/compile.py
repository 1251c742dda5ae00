"""From kernels with plans to routines and LLVM IR: what the CPU can do, and doing it."""

from __future__ import annotations

from weft.codegen.cpu import ir
from weft.codegen.cpu.elements import FUNCTIONS
from weft.codegen.cpu.formats import supported
from weft.codegen.cpu.from_region import lower_kernel
from weft.codegen.cpu.tiling import tiling_of
from weft.foundation.errors import Finding
from weft.memory.ir import MemRef
from weft.plan.ir import MapPlan, MmaPlan, Plan, RowPlan
from weft.region.ir import Binary, Kernel, Pattern, Tensor, Unary, walk

MAX_LANES = 64
MAX_UNROLL = 64


def accepts(kernel: Kernel, tensors: dict[str, Tensor], plan: Plan) -> list[Finding]:
    """Why this kernel cannot be generated with this plan; nothing if it can."""
    findings = [*_kernel_findings(kernel, tensors), *_plan_findings(plan)]
    return [Finding(f.code, f"kernel {kernel.name}", f.why, f.hint) for f in findings]


def _kernel_findings(kernel: Kernel, tensors: dict[str, Tensor]) -> list[Finding]:
    found = []
    if kernel.pattern is Pattern.OPAQUE:
        found.append(Finding("OpaqueKernel", "", "an opaque op is carried out by the host"))
    for let in walk(kernel.body):
        if not supported(let.dtype):
            found.append(Finding("DTypeNotSupported", "", f"{let.dtype} has no registers here"))
        if isinstance(let.expr, Unary | Binary) and let.expr.fn not in FUNCTIONS:
            found.append(Finding("FunctionNotSupported", "", f"there is no code for {let.expr.fn}"))
    for output in kernel.outputs:
        if not supported(tensors[output.tensor].dtype):
            dtype = tensors[output.tensor].dtype
            found.append(Finding("DTypeNotSupported", "", f"{dtype} cannot be stored here"))
    return list(dict.fromkeys(found))


def _plan_findings(plan: Plan) -> list[Finding]:
    if isinstance(plan, MmaPlan):
        lanes = plan.vectorize.width if plan.vectorize else 1
        numbers = {"warp_tile rows": plan.warp_tile[0], "warp_tile columns": plan.warp_tile[1]}
        refused = _mma_refusals(plan)
    elif isinstance(plan, MapPlan):
        lanes, numbers, refused = plan.vector, {"unroll": plan.unroll}, []
    elif isinstance(plan, RowPlan):
        lanes, numbers, refused = plan.vector, {"accumulators": plan.accumulators}, []
    else:
        kind = type(plan).__name__
        return [Finding("PlanNotSupported", "", f"the CPU has no template for {kind}")]
    if not 1 <= lanes <= MAX_LANES or lanes & (lanes - 1):
        refused.append(f"{lanes} lanes; a power of two up to {MAX_LANES} is needed")
    refused += [
        f"{name} is {value}; it must be from 1 to {MAX_UNROLL}"
        for name, value in numbers.items()
        if not 1 <= value <= MAX_UNROLL
    ]
    return [Finding("PlanRefused", "", why) for why in refused]


def _mma_refusals(plan: MmaPlan) -> list[str]:
    """GPU decisions in a plan that is to run on the CPU."""
    refused = []
    if plan.cluster != (1, 1):
        refused.append("cluster is a GPU notion")
    if plan.split_k != 1:
        refused.append("split_k is not done on the CPU")
    if plan.swap_ab:
        refused.append("swap_ab is not done on the CPU")
    return refused


def lower(
    kernel: Kernel, tensors: dict[str, Tensor], refs: dict[str, MemRef], plan: Plan, name: str
) -> ir.Routine:
    """The loop nest of a kernel under a plan that `accepts` has nothing against."""
    return lower_kernel(kernel, tensors, refs, tiling_of(kernel, refs, plan), name)
