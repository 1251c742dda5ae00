"""Kernels for the ops that stay whole: which template carries out which.

| op | template |
|---|---|
| scatter, of sorted updates too | `scattering.py` |
| running reductions, in parts too | `running.py` |
| sorting, in runs too | `sorting.py` |
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from weft.codegen.gpu import ir, sorting
from weft.codegen.gpu.accept import MAX_POINTS, refuse
from weft.codegen.gpu.element import supports
from weft.codegen.gpu.formats import HELD, NARROW
from weft.codegen.gpu.reductions import FUNCTIONS
from weft.codegen.gpu.running import RunningKernel
from weft.codegen.gpu.scattering import ScatterKernel
from weft.codegen.gpu.whole_kernel import combined
from weft.foundation.errors import Finding, InternalError
from weft.foundation.whole_ops import (
    Continued,
    Ends,
    Gathered,
    Merge,
    Order,
    Running,
    Runs,
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
        case Scatter(fn="add") if dtypes[0] in NARROW:
            return [refuse("FunctionNotSupported", f"updates of {dtypes[0]} are added in f32")]
        case Scatter(fn=fn) if fn != "replace" and not supports(fn, dtypes[0]):
            return [refuse("FunctionNotSupported", f"there is no GPU code for {fn} of {dtypes[0]}")]
        case Running(fn=fn) | Continued(fn=fn) if not supports(FUNCTIONS.get(fn, fn), dtypes[0]):
            return [refuse("FunctionNotSupported", f"there is no GPU code for {fn} of {dtypes[0]}")]
        case Gathered(fn=fn) if fn != "replace" and not supports(fn, combined(dtypes[0])):
            return [refuse("FunctionNotSupported", f"there is no GPU code for {fn} of {dtypes[0]}")]
        case Order(length=longest) | Runs(run=longest) if longest > sorting.LONGEST:
            return [refuse("Points", f"{longest} elements are too many for one block to sort")]
        case Runs(run=run) if run < sorting.SHORTEST or run & (run - 1):
            return [refuse("Points", f"a network does not sort runs of {run} elements")]
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
            scatter = ScatterKernel(kernel, tensors, target)
            return scatter.kernel_called(name, scatter.gathered(op))
        case Running() | Ends() | Continued():
            running = RunningKernel(kernel, tensors, target)
            return running.kernel_called(name, running.work(op))
        case Order() | Runs() | Merge():
            return sorting.build(op, kernel, tensors, name)
    raise InternalError(f"{op!r} is not an op that has a kernel")
