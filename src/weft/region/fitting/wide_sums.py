"""Sums of narrow floats in a wider dtype, for machines whose scatters have one dtype throughout.

    scatter adds bf16   -->   x and updates in f32, a scatter of these, its result rounded

The sums are added up in f32 and rounded once, as the op says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.foundation.dtypes import F32
from weft.foundation.index_expr import axis
from weft.foundation.whole_ops import Scatter
from weft.region.fitting.whole_ops import Parts, adds_up_wide
from weft.region.ir import Cast, Kernel, KernelAxis, Let, Output, Pattern, Read, Tensor


def with_wide_sums(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Parts:
    """The kernels that take a kernel's place, and the tensors between them."""
    call = kernel.opaque
    if call is None or not isinstance(call.op, Scatter):
        return (kernel,), ()
    x, index, update = call.inputs
    if not adds_up_wide(call.op, tensors[x].dtype):
        return (kernel,), ()
    (output,) = kernel.outputs
    names = [f"{kernel.name}_{part}" for part in ("x", "updates", "sums")]
    shapes = [tensors[name].shape for name in (x, update, x)]
    made = [Tensor(name, F32, shape) for name, shape in zip(names, shapes, strict=True)]
    wide_x, wide_update, sums = made
    whole = replace(
        kernel,
        opaque=replace(call, inputs=(wide_x.name, index, wide_update.name)),
        outputs=(replace(output, tensor=sums.name, base=wide_x.name),),
    )
    rounded = _cast(
        f"{kernel.name}_rounded", sums, replace(tensors[output.tensor], shape=sums.shape)
    )
    widened = (
        _cast(f"{wide.name}_wide", tensors[name], wide)
        for name, wide in ((x, wide_x), (update, wide_update))
    )
    return (*widened, whole, rounded), tuple(made)


def _cast(name: str, source: Tensor, target: Tensor) -> Kernel:
    """A kernel that makes a tensor of another dtype of a tensor."""
    names = tuple(f"i{n}" for n in range(len(source.shape)))
    index = tuple(axis(found) for found in names)
    body = (
        Let("v0", source.dtype, names, Read(source.name, index)),
        Let("v1", target.dtype, names, Cast("v0")),
    )
    axes = tuple(KernelAxis(found, size) for found, size in zip(names, source.shape, strict=True))
    return Kernel(name, Pattern.MAP, axes, body, (Output(target.name, "v1", index),))
