"""From kernels with plans to routines and LLVM IR, and which kernels the CPU generator supports."""

from __future__ import annotations

from weft.codegen.cpu import ir
from weft.codegen.cpu.accept import plan_refusals
from weft.codegen.cpu.attention_algorithms import ALGORITHMS
from weft.codegen.cpu.blocked import BlockedContraction
from weft.codegen.cpu.columns import ColumnSums
from weft.codegen.cpu.elements import FUNCTIONS
from weft.codegen.cpu.formats import supported
from weft.codegen.cpu.from_region import lower_kernel
from weft.codegen.cpu.images import ImageContraction
from weft.codegen.cpu.int8_products import WordContraction
from weft.codegen.cpu.jammed import rows_at_once
from weft.codegen.cpu.line_windows import LineWindowSums
from weft.codegen.cpu.narrow_argmax import narrow_places
from weft.codegen.cpu.prefetch import prefetched, rows_ahead
from weft.codegen.cpu.staged import lower_staged
from weft.codegen.cpu.strips import in_strips
from weft.codegen.cpu.tiles import TileContraction
from weft.codegen.cpu.tiling import tiling_of
from weft.codegen.cpu.winograd import WinogradConvolution
from weft.foundation.errors import Finding
from weft.memory.ir import MemRef
from weft.plan.images import IMAGE
from weft.plan.ir import REFUSED, AttentionPlan, MmaPlan, Plan, RowPlan, StagedPlan
from weft.plan.winograd import ALGORITHM as WINOGRAD
from weft.region.ir import Binary, Kernel, Pattern, Tensor, Unary


def accepts(kernel: Kernel, tensors: dict[str, Tensor], plan: Plan) -> list[Finding]:
    """Why this kernel cannot be generated with this plan; nothing if it can."""
    findings = _kernel_findings(kernel, tensors)
    findings += [Finding(REFUSED, "", why) for why in plan_refusals(kernel, tensors, plan)]
    return [Finding(f.code, f"kernel {kernel.name}", f.why, f.hint) for f in findings]


def _kernel_findings(kernel: Kernel, tensors: dict[str, Tensor]) -> list[Finding]:
    found = []
    if kernel.pattern is Pattern.OPAQUE:
        found.append(Finding("OpaqueKernel", "", "an opaque op is carried out by the host"))
    for let in kernel.every_let():
        if not supported(let.dtype):
            found.append(Finding("DTypeNotSupported", "", f"{let.dtype} has no registers here"))
        if isinstance(let.expr, Unary | Binary) and let.expr.fn not in FUNCTIONS:
            found.append(Finding("FunctionNotSupported", "", f"there is no code for {let.expr.fn}"))
    for output in kernel.outputs:
        if not supported(tensors[output.tensor].dtype):
            dtype = tensors[output.tensor].dtype
            found.append(Finding("DTypeNotSupported", "", f"{dtype} cannot be stored here"))
    return list(dict.fromkeys(found))


def lower(
    kernel: Kernel, tensors: dict[str, Tensor], refs: dict[str, MemRef], plan: Plan, name: str
) -> ir.Routine:
    """The loop nest of a kernel under a plan that `accepts` has nothing against."""
    if isinstance(plan, AttentionPlan):
        return prefetched(ALGORITHMS[plan.algo](kernel, tensors, refs, plan).routine(name))
    if isinstance(plan, MmaPlan) and any(cached.where == IMAGE for cached in plan.cache):
        return prefetched(ImageContraction(kernel, tensors, refs, plan).routine(name))
    if isinstance(plan, StagedPlan):
        return lower_staged(kernel, tensors, refs, plan, name)
    if isinstance(plan, RowPlan) and plan.lines:
        return in_strips(LineWindowSums(kernel, tensors, refs, plan).routine(name))
    tiling = tiling_of(kernel, refs, plan)
    if isinstance(plan, MmaPlan) and plan.algo_choice.get("conv") == WINOGRAD:
        return prefetched(WinogradConvolution(kernel, tensors, refs, tiling).routine(name))
    if tiling.blocking is not None:
        blocked = WordContraction if tiling.blocking.words else BlockedContraction
        blocked = TileContraction if tiling.blocking.tiles else blocked
        return prefetched(blocked(kernel, tensors, refs, tiling).routine(name))
    if tiling.columns is not None:
        return ColumnSums(kernel, tensors, refs, tiling).routine(name)
    made = rows_ahead(lower_kernel(kernel, tensors, refs, tiling, name))
    return prefetched(rows_at_once(in_strips(narrow_places(made))))
