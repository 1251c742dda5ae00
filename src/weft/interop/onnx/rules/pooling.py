"""Pools: the largest or the mean element of every window."""

from __future__ import annotations

import math

import numpy as np

from weft.foundation.dtypes import SI64
from weft.foundation.errors import SpecViolation, Unimplemented
from weft.interop.onnx.rules.convolution import paddings, per_axis
from weft.interop.onnx.rules.elementwise import widened
from weft.interop.onnx.rules.reduction import length
from weft.interop.onnx.table import Call, rule
from weft.interop.onnx.values import Array, Value, value_as_tensor, wf
from weft.ops import functional
from weft.ops.functional.capture import capture, capture_several
from weft.ops.functional.convolution import LAYOUTS
from weft.ops.functional.pooling import (
    PoolChecked,
    capture_avg_pool,
    capture_max_places,
    capture_max_pool,
    check_pool,
    window_reduction,
)
from weft.ops.tensor import Tensor


def _check_pool(call: Call, x: Tensor, ordered: bool = False, count: bool = True) -> PoolChecked:
    spatial = x.ndim - 2
    if spatial not in LAYOUTS:
        raise Unimplemented(call.node.op, f"there are no windows over {spatial} axes")
    window = list(call.need("kernel_shape"))
    strides = per_axis(call, "strides", spatial, 1)
    dilations = per_axis(call, "dilations", spatial, 1)
    if len(window) != spatial or min(window) < 1 or min(strides) < 1 or min(dilations) < 1:
        raise SpecViolation("MalformedModel", f"kernel_shape is {window} for {spatial} axes")
    spans = [(k - 1) * d + 1 for k, d in zip(window, dilations, strict=True)]
    around = paddings(call, [int(size) for size in x.shape[2:]], spans, strides)
    ceil = bool(call.attr("ceil_mode", 0)) and call.attr("auto_pad", "NOTSET") == "NOTSET"
    layout = LAYOUTS[spatial][0]
    return check_pool(
        x, window, strides, around, dilations, layout, spatial, ceil, count, ordered=ordered
    )


@rule("MaxPool")
def max_pool(call: Call, x: Tensor) -> Value:
    checked = _check_pool(call, x, ordered=True)
    if call.results < 2:
        return capture(capture_max_pool, checked, x)
    values, found = capture_several(capture_max_places, checked, x)
    sizes = [int(size) for size in x.shape]
    elements = math.prod(sizes[2:])
    if call.attr("storage_order", 0):
        # The index along each axis, taken out of a number whose last axis runs fastest, put into
        # one whose first does.
        left, moved, stride = found, wf.zeros_like(found), 1
        for place, size in enumerate(sizes[2:]):
            below = math.prod(sizes[3 + place :])
            at = wf.divide(left, wf.full((), below, dtype=SI64), rounding="trunc")
            left, moved = left - at * below, moved + at * stride
            stride *= size
        found = moved
    start = np.arange(sizes[0] * sizes[1], dtype=np.int64) * elements
    return values, found + value_as_tensor(start.reshape(sizes[0], sizes[1], *[1] * (x.ndim - 2)))


@rule("AveragePool")
def average_pool(call: Call, x: Tensor) -> Value:
    count = bool(call.attr("count_include_pad", 0))
    return capture(capture_avg_pool, _check_pool(call, x, count=count), x)


@rule("LpPool")
def lp_pool(call: Call, x: Tensor) -> Value:
    p, wide = call.attr("p", 2), widened(x)
    powered = wf.pow(wf.abs(wide), wf.full((), p, dtype=wide.dtype))
    total = capture(
        lambda s, checked, each: window_reduction(s, checked, each, "sum"),
        _check_pool(call, x),
        powered,
    )
    return length(total, p).astype(x.dtype)


def _spatial_axes(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@rule("GlobalAveragePool")
def global_average_pool(call: Call, x: Tensor) -> Value:
    return wf.mean(x, axis=_spatial_axes(x), keepdims=True)


@rule("GlobalMaxPool")
def global_max_pool(call: Call, x: Tensor) -> Value:
    return wf.max(x, axis=_spatial_axes(x), keepdims=True)


@rule("GlobalLpPool")
def global_lp_pool(call: Call, x: Tensor) -> Value:
    p, wide = call.attr("p", 2), widened(x)
    powered = wf.pow(wf.abs(wide), wf.full((), p, dtype=wide.dtype))
    total = wf.sum(powered, axis=_spatial_axes(x), keepdims=True)
    return length(total, p).astype(x.dtype)


@rule("MaxUnpool", values=(2,))
def max_unpool(call: Call, x: Tensor, indices: Tensor, shape: Array | None = None) -> Value:
    """Elements back where they were: indices count in the shape that was pooled, which is then
    filled up to the wanted one."""
    spatial = x.ndim - 2
    window = call.need("kernel_shape")
    strides, pads = per_axis(call, "strides", spatial, 1), call.attr("pads") or [0] * 2 * spatial
    inner = [
        (int(x.shape[2 + i]) - 1) * strides[i] - pads[i] - pads[i + spatial] + window[i]
        for i in range(spatial)
    ]
    whole = [int(x.shape[0]), int(x.shape[1]), *inner]
    flat = wf.zeros((math.prod(whole),), dtype=x.dtype)
    made = functional.scatter(flat, indices.reshape((-1,)), x.reshape((-1,)), 0).reshape(whole)
    if shape is None:
        return made
    wanted = [int(size) for size in shape]
    return functional.pad(made, [(0, to - have) for to, have in zip(wanted, whole, strict=True)])
