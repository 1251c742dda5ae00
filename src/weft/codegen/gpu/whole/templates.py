"""Which template implements which op that no stage decomposes.

| op | template |
|---|---|
| scatter, as updates come | `scattering.py` |
| scatter of sorted updates | `gathering.py` |
| sums of updates that are sorted by upper bits | `binning.py` |
| running reductions, in parts too | `running_reductions.py` |
| sorting of rows that a block holds | `sorting.py` |
| the steps of sorting by digits | `radix_sort.py` |
| the tiles of products of groups | `grouping.py`; these are `products/grouped.py` and `outer.py` |
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.accept import MAX_POINTS, refuse
from weft.codegen.gpu.body.reductions import FUNCTIONS
from weft.codegen.gpu.ir.element_ops import supports
from weft.codegen.gpu.ir.formats import HELD, NARROW
from weft.codegen.gpu.whole import radix_sort, sorting
from weft.codegen.gpu.whole.binning import BinKernel, accepts_bins
from weft.codegen.gpu.whole.gathering import GatherKernel
from weft.codegen.gpu.whole.grouping import GroupingKernel
from weft.codegen.gpu.whole.kernel import THREADS, combined
from weft.codegen.gpu.whole.running_reductions import RunningKernel
from weft.codegen.gpu.whole.scattering import ScatterKernel
from weft.foundation.errors import Finding, InternalError
from weft.foundation.grouped_rows import GroupSpans, GroupTiles
from weft.foundation.radix_sort import CARRIED, Digits, Moved, Pass, Starts
from weft.foundation.whole_ops import (
    Binned,
    Columns,
    Gathered,
    Order,
    Scatter,
    WholeOp,
)
from weft.region.ir import Kernel, Tensor
from weft.region.structure import buffers
from weft.target.target import Target


def accepts(op: WholeOp, kernel: Kernel, tensors: Mapping[str, Tensor]) -> list[Finding]:
    """Why there is no kernel for an op; empty where there is."""
    if kernel.opaque is None:
        raise InternalError(f"kernel {kernel.name} carries no op")
    dtypes = [tensors[name].dtype for name in kernel.opaque.inputs]
    sizes = [prod(tensors[name].shape) for name in buffers(kernel)]
    found = [dtype for dtype in dtypes if dtype not in HELD]
    if found:
        return [refuse("DTypeNotSupported", f"GPU kernels have no arithmetic in {found[0]}")]
    if max(sizes) >= MAX_POINTS:
        return [refuse("Points", "a tensor has more elements than 32 bits count")]
    match op:
        case Scatter(fn="add", count=count) if dtypes[0] in NARROW and count > 1:
            return [refuse("FunctionNotSupported", f"updates of {dtypes[0]} are added in f32")]
        case Scatter(fn=fn) if fn != "replace" and not supports(fn, dtypes[0]):
            return [refuse("FunctionNotSupported", f"there is no GPU code for {fn} of {dtypes[0]}")]
        case Columns(fn=fn) if not supports(FUNCTIONS.get(fn, fn), dtypes[0]):
            return [refuse("FunctionNotSupported", f"there is no GPU code for {fn} of {dtypes[0]}")]
        case Gathered(fn=fn) if fn != "replace" and not supports(fn, combined(dtypes[0])):
            return [refuse("FunctionNotSupported", f"there is no GPU code for {fn} of {dtypes[0]}")]
        case Binned() if why := accepts_bins(op, dtypes[0]):
            return [refuse("Points", why)]
        case Order(length=longest) if longest > sorting.LONGEST:
            return [refuse("Points", f"{longest} elements are too many for one block to sort")]
        case Digits() | Moved():
            return _pass_refusals(op)
    return []


def _pass_refusals(op: Pass) -> list[Finding]:
    """Tiles and digits that a block has no threads, registers or shared memory for."""
    if op.tile % THREADS or not 0 < op.tile <= radix_sort.LARGEST_TILE:
        return [refuse("Points", f"a block does not sort tiles of {op.tile} elements")]
    if op.low % CARRIED + op.bits > CARRIED:
        return [refuse("Points", "a digit is cut by the end of 32 bits")]
    if not 0 < op.bits <= radix_sort.MOST_BITS:
        return [refuse("Points", f"a block does not sort by digits of {op.bits} bits")]
    return []


def build(
    op: WholeOp, kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, name: str
) -> ir.Kernel:
    """The dialect kernel of an op that `accepts` has nothing against."""
    match op:
        case Scatter():
            scatter = ScatterKernel(kernel, tensors, target)
            return scatter.kernel_called(name, scatter.scatter(op))
        case Gathered():
            gather = GatherKernel(kernel, tensors, target)
            return gather.kernel_called(name, gather.gathered(op))
        case Binned():
            bins = BinKernel(kernel, tensors, target)
            return bins.kernel_called(name, bins.binned(op))
        case Columns():
            running = RunningKernel(kernel, tensors, target)
            return running.kernel_called(name, running.work(op))
        case Order():
            return sorting.build(op, kernel, tensors, name)
        case GroupTiles():
            grouping = GroupingKernel(kernel, tensors, target)
            return grouping.kernel_called(name, grouping.table(op))
        case GroupSpans():
            grouping = GroupingKernel(kernel, tensors, target)
            return grouping.kernel_called(name, grouping.spans(op))
        case Digits() | Moved() | Starts():
            step = radix_sort.DigitKernel(kernel, tensors, target)
            return step.kernel_called(name, step.work(op))
    raise InternalError(f"{op!r} is not an op that has a kernel")
