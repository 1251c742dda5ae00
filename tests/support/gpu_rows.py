"""Kernels written by hand through the map and row templates, on the dialect's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support import kernels
from weft.codegen.gpu import ir, templates
from weft.codegen.gpu.interp import Timing, run
from weft.memory.from_region import assign_buffers
from weft.plan.ir import Plan
from weft.region.interp import run_kernel
from weft.region.ir import Kernel, Module
from weft.region.structure import buffers
from weft.target.sm90 import SM90

Array = NDArray[Any]


def dialect_kernel(module: Module, plan: Plan, number: int = 0) -> ir.Kernel:
    """A kernel of a module as the plan says."""
    refs = assign_buffers(module).refs
    kernel = module.kernels[number]
    assert templates.accepts(kernel, module.tensors, refs, plan, SM90) == []
    return templates.build(kernel, module.tensors, refs, plan, SM90, "k0")


def launched(
    kernel: Kernel,
    made: ir.Kernel,
    module: Module,
    arrays: dict[str, Array],
    timing: Timing = Timing.LATE,
    seed: int = 0,
) -> dict[str, Array]:
    """What a dialect kernel writes; results start full of NaN, or as what they update."""
    written: dict[str, Array] = {}
    for output in kernel.outputs:
        tensor = module.tensors[output.tensor]
        fresh = np.empty(tensor.shape, tensor.dtype.numpy)
        fresh.reshape(-1).view(np.uint8)[...] = 0xFF
        if output.base is not None:
            fresh[...] = arrays[output.base]
        written[output.tensor] = fresh
    flat = {name: {**arrays, **written}[name].reshape(-1) for name in buffers(kernel)}
    run(made, flat, timing, seed)
    return written


def error_of(module: Module, made: ir.Kernel, timing: Timing = Timing.LATE, seed: int = 0) -> float:
    """The largest distance from playback, over the size of what playback says."""
    (kernel,) = module.kernels
    arrays = kernels.arrays_for(module, seed)
    want = run_kernel(kernel, module.tensors, arrays)
    got = launched(kernel, made, module, arrays, timing, seed)
    return max(_distance(got[name], want[name]) for name in got)


def _distance(got: Array, want: Array) -> float:
    if not want.size:
        return 0.0
    wide = [array.astype(np.float64) for array in (got, want)]
    distance = np.abs(wide[0] - wide[1]).max() / max(np.abs(wide[1]).max(), 1e-30)
    return float("inf") if np.isnan(distance) else float(distance)
