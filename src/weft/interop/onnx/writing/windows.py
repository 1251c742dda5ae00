"""Windows, and the coarse ops that ONNX has an operator for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from weft.coarse.activations import ByteirGelu
from weft.coarse.convolution import Conv
from weft.coarse.norms import ByteirLayerNorm
from weft.coarse.softmax import ByteirLogSoftmax, ByteirSoftmax
from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import BF16, F16, F32, I1, SI64
from weft.foundation.errors import Unimplemented
from weft.interop.onnx.writing.elementwise import Rule, cast
from weft.interop.onnx.writing.page import Edge, Page
from weft.interop.onnx.writing.structure import padded, reduced, spread
from weft.ptir.op import Op
from weft.ptir.ops.normalisation import LayerNorm
from weft.ptir.ops.quantisation import Dequantize, Quantize, Requantize
from weft.ptir.ops.window import ExtractPatches, ReduceWindow
from weft.ptir.types import Dim, TensorType

_MOST_POOLED: Final = 3
"""How many axes ONNX's pools have windows on."""


def _write_windows(
    page: Page, x: Edge, axes: Sequence[int], window: Sequence[int], strides: Sequence[int],
    dilation: Sequence[int], counts: Sequence[Dim],
) -> Edge:  # fmt: skip
    """The windows along axes: each becomes one axis of places and, after all, one of the window."""
    found = x
    for number, axis in enumerate(axes):
        count = counts[number]
        if not isinstance(count, int):
            raise Unimplemented("a window", "ONNX needs windows on axes whose sizes are known")
        places = np.arange(count)[:, None] * strides[number]
        places = places + np.arange(window[number])[None] * dilation[number]
        shape = list(found.shape)
        shape[axis : axis + 1] = [count, window[number]]
        taken = page.op(
            "Gather", found, page.constant(places, SI64), like=found.type.with_shape(tuple(shape)),
            axis=axis,
        )  # fmt: skip
        order = [each for each in range(taken.rank) if each != axis + 1]
        found = page.transpose(taken, [*order, axis + 1])
    return found


def _extract_patches(page: Page, op: ExtractPatches, x: list[Edge], out: TensorType) -> Edge:
    rank = len(op.window)
    value = page.full(op.pad_value.value, out.dtype)
    low = [0, *(a for a, _ in op.padding), 0]
    high = [0, *(b for _, b in op.padding), 0]
    given = padded(page, x[0], low, high, value, _grow_dims(x[0], low, high))
    spatial = range(1, rank + 1)
    found = _write_windows(
        page, given, spatial, op.window, op.strides, op.dilation, out.shape[1 : rank + 1]
    )
    # [N, places..., C, window...]: a row has the window first
    order = [*range(rank + 1), *range(rank + 2, 2 * rank + 2), rank + 1]
    return page.reshape(page.transpose(found, order), out.shape)


def _grow_dims(x: Edge, low: Sequence[int], high: Sequence[int]) -> list[Dim]:
    found: list[Dim] = []
    for dim, a, b in zip(x.shape, low, high, strict=True):
        if not isinstance(dim, int) and (a or b):
            raise Unimplemented("a window", "ONNX needs padding on axes whose sizes are known")
        found.append(dim + a + b if isinstance(dim, int) else dim)
    return found


def _pool_windows(page: Page, op: ReduceWindow, x: Edge, out: TensorType) -> Edge | None:
    """The windows of f32 by ONNX's pools, where they lie along one to three axes of at least three:
    those come last. A sum is a mean times the number of its elements."""
    moved = [k for k, size in enumerate(op.window_dims) if size > 1 or op.strides[k] > 1]
    still = [k for k in range(out.rank) if k not in moved]
    name = {"max": "MaxPool", "sum": "AveragePool"}.get(str(op.reduce))
    inside = all(max(op.padding[k]) < op.window_dims[k] for k in moved)
    plain = not any(max(op.padding[k]) for k in still) and set(op.base_dilation) == {1}
    if name is None or x.dtype is not F32 or not 1 <= len(moved) <= _MOST_POOLED:
        return None
    if not (inside and plain) or not 1 <= len(still) <= 2:
        return None
    window, dilation = ([each[k] for k in moved] for each in (op.window_dims, op.window_dilation))
    pads = [op.padding[k][end] for end in (0, 1) for k in moved]
    more = {"count_include_pad": 1} if name == "AveragePool" else {}
    order = [*still, *moved]
    lead: tuple[Dim, ...] = (1,) * (2 - len(still))
    given = page.transpose(x, order)
    found = page.op(
        name, page.reshape(given, (*lead, *given.shape)),
        like=out.with_shape((*lead, *(out.shape[k] for k in order))), kernel_shape=window,
        strides=[op.strides[k] for k in moved], pads=pads, dilations=dilation, **more,
    )  # fmt: skip
    if more:
        found = page.op("Mul", found, page.full(math.prod(window), F32), like=found.type)
    found = page.reshape(found, found.shape[len(lead) :])
    return page.transpose(found, [order.index(k) for k in range(out.rank)])


def _reduce_window(page: Page, op: ReduceWindow, x: list[Edge], out: TensorType) -> Edge:
    kind, given = str(op.reduce), x[0]
    pooled = _pool_windows(page, op, given, out)
    if pooled is not None:
        return pooled
    if kind == "sum" and given.dtype.is_integer and given.dtype.bits < 32:
        raise Unimplemented("reduce_window", f"ONNX has no sum of {given.dtype} that wraps")
    if kind == "sum" and given.dtype.is_float and given.dtype.bits < 32:
        given = page.cast(given, op.accum_dtype or F32)
    value = page.full(_identity(kind, x[0]), given.dtype)
    for axis, apart in enumerate(op.base_dilation):
        given = spread(page, given, axis, apart - 1, value) if apart > 1 else given
    low, high = [a for a, _ in op.padding], [b for _, b in op.padding]
    given = padded(page, given, low, high, value, _grow_dims(given, low, high))
    moved = [k for k, size in enumerate(op.window_dims) if size > 1 or op.strides[k] > 1]
    window, strides, dilation = (
        [each[k] for k in moved] for each in (op.window_dims, op.strides, op.window_dilation)
    )
    counts = [out.shape[k] for k in moved]
    found = _write_windows(page, given, moved, window, strides, dilation, counts)
    axes = list(range(out.rank, out.rank + len(moved)))
    name = {"sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin"}[kind]
    return cast(page, reduced(page, name, found, axes, False, out), out.dtype)


def _identity(kind: str, x: Edge) -> float | int | bool:
    if kind == "sum":
        return 0
    if x.dtype is I1:
        return kind == "min"
    return x.dtype.lowest if kind == "max" else x.dtype.highest


# -- coarse ops ------------------------------------------------------------------------------------


def _softmax(
    page: Page, op: ByteirSoftmax | ByteirLogSoftmax, x: list[Edge], out: TensorType
) -> Edge:
    name = "Softmax" if isinstance(op, ByteirSoftmax) else "LogSoftmax"
    return page.op(name, x[0], like=out, axis=normalise_axis(op.axis, out.rank))


def _gelu(page: Page, op: ByteirGelu, x: list[Edge], out: TensorType) -> Edge:
    kind = "tanh" if str(op.approximate) == "tanh" else "none"
    return page.op("Gelu", x[0], like=out, approximate=kind)


def _layer_norm(page: Page, op: LayerNorm, x: list[Edge], out: TensorType) -> Edge:
    axis = normalise_axis(op.feature_axis, out.rank)
    order = [each for each in range(out.rank) if each != axis] + [axis]
    turned = page.transpose(x[0], order)
    found = page.op(
        "LayerNormalization", turned, x[1], x[2], like=turned.type, axis=-1, epsilon=op.epsilon
    )
    return page.transpose(found, [order.index(each) for each in range(out.rank)])


def _coarse_layer_norm(page: Page, op: ByteirLayerNorm, x: list[Edge], out: TensorType) -> Edge:
    return page.op(
        "LayerNormalization", *x, like=out, axis=-len(op.axis), epsilon=float(op.epsilon)
    )


def says_all(op: Op, kinds: Sequence[TensorType]) -> bool:
    """Whether ONNX's operator says all of a coarse op that gives these types."""
    if isinstance(op, ByteirLayerNorm):
        rank = kinds[0].rank
        last = list(op.axis) == list(range(rank - len(op.axis), rank))
        return last and len(kinds) == 1 and not op.eps_outside_sqrt
    return all(kind.dtype.is_float for kind in kinds)


def _conv(page: Page, op: Conv, x: list[Edge], out: TensorType) -> Edge:
    """ONNX has the channels first; other layouts are turned to that and back."""
    rank = out.rank
    last = not str(op.layout).startswith("NC")
    ahead = [0, rank - 1, *range(1, rank - 1)] if last else list(range(rank))
    given = page.transpose(x[0], ahead)
    weight = page.transpose(x[1], [rank - 1, rank - 2, *range(rank - 2)] if last else ahead)
    bias = x[2:3]
    spatial = rank - 2
    shape = tuple(out.shape[axis] for axis in ahead)
    found = page.op(
        "Conv", given, weight, *bias, like=out.with_shape(shape),
        group=op.groups or 1, strides=list(op.stride or [1] * spatial),
        pads=list(op.pad or [0] * (2 * spatial)), dilations=list(op.dilation or [1] * spatial),
    )  # fmt: skip
    return page.transpose(found, [ahead.index(axis) for axis in range(rank)])


# -- quantised -------------------------------------------------------------------------------------


def _quantize(page: Page, op: Quantize, x: list[Edge], out: TensorType) -> Edge:
    """PTIR divides in f32, whatever the dtype of the scale."""
    if any(each.dtype not in (F16, BF16, F32) for each in x[:2]) or out.dtype.is_float:
        raise Unimplemented("quantize", f"ONNX does not quantise {x[0].dtype} to {out.dtype} so")
    zero = x[2] if len(x) > 2 else page.expand(page.full(0, out.dtype), x[1].shape)
    given = page.cast(x[0], F32), page.cast(x[1], F32), zero
    axis = 0 if op.axis is None else op.axis
    return page.op("QuantizeLinear", *given, like=out, axis=axis)


def _dequantize(page: Page, op: Dequantize, x: list[Edge], out: TensorType) -> Edge:
    if x[1].dtype not in (F16, BF16, F32) or x[0].dtype.is_float:
        raise Unimplemented("dequantize", f"ONNX has no scale {x[1].dtype} for {x[0].dtype}")
    axis = 0 if op.axis is None else op.axis
    given = x[0], page.cast(x[1], F32), *x[2:]
    found = page.op("DequantizeLinear", *given, like=out.with_dtype(F32), axis=axis)
    return page.cast(found, out.dtype)


def _requantize(page: Page, op: Requantize, x: list[Edge], out: TensorType) -> Edge:
    q, in_scale, in_zero, out_scale, out_zero = x
    first = Dequantize(op.axis if in_scale.rank else None, None)
    wide = _dequantize(page, first, [q, in_scale, in_zero], out.with_dtype(F32))
    again = Quantize(op.output_dtype, op.axis if out_scale.rank else None)
    return _quantize(page, again, [wide, out_scale, out_zero], out)


WINDOWS: Final[dict[str, Rule]] = {
    "extract_patches": _extract_patches,
    "reduce_window": _reduce_window,
    "byteir.softmax": _softmax,
    "byteir.log_softmax": _softmax,
    "byteir.gelu": _gelu,
    "layer_norm": _layer_norm,
    "byteir.layer_norm": _coarse_layer_norm,
    "weft.conv": _conv,
    "quantize": _quantize,
    "dequantize": _dequantize,
    "requantize": _requantize,
}
KEPT: Final = (ByteirSoftmax, ByteirLogSoftmax, ByteirGelu, ByteirLayerNorm, LayerNorm, Conv)
"""Coarse ops that are one operator of ONNX, where `says_all`."""
