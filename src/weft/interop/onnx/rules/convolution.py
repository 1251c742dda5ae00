"""Convolutions."""

from __future__ import annotations

import math
from typing import Any, Final

from weft.foundation.dtypes import F64, SI32
from weft.foundation.errors import SpecViolation, Unimplemented
from weft.interop.onnx.table import Call, rule
from weft.interop.onnx.values import Array, Value, wf
from weft.ops import functional
from weft.ops.tensor import Tensor

_CONV: Final = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED: Final = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
AUTO: Final = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


def per_axis(call: Call, name: str, count: int, default: int) -> list[int]:
    """One number for each spatial axis."""
    found = list(call.attr(name) or [default] * count)
    if len(found) != count:
        raise SpecViolation("MalformedModel", f"{name} is {found} for {count} spatial axes")
    return found


def paddings(
    call: Call, sizes: list[int], spans: list[int], strides: list[int]
) -> list[tuple[int, int]]:
    """How far each axis is padded at its ends."""
    count = len(sizes)
    auto = call.choice("auto_pad", "NOTSET", AUTO)
    if auto == "NOTSET":
        given = call.attr("pads") or [0] * 2 * count
        if len(given) != 2 * count:
            raise SpecViolation("MalformedModel", f"pads is {given} for {count} spatial axes")
        return [(given[i], given[i + count]) for i in range(count)]
    if auto == "VALID":
        return [(0, 0)] * count
    found = []
    for size, span, stride in zip(sizes, spans, strides, strict=True):
        # As many windows as there are steps in the axis: the last begins at (n - 1) * stride and
        # must end in the padding.
        total = max((-(-size // stride) - 1) * stride + span - size, 0)
        small, large = total // 2, total - total // 2
        found.append((small, large) if auto == "SAME_UPPER" else (large, small))
    return found


def convolve(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Value:
    """The convolution that the attributes describe."""
    count = x.ndim - 2
    if count not in _CONV:
        raise Unimplemented("Conv", f"there are no convolutions over {count} axes")
    strides, dilations = per_axis(call, "strides", count, 1), per_axis(call, "dilations", count, 1)
    spans = [(int(k) - 1) * d + 1 for k, d in zip(weight.shape[2:], dilations, strict=True)]
    around = paddings(call, [int(size) for size in x.shape[2:]], spans, strides)
    groups = call.attr("group", 1)
    return _CONV[count](x, weight, bias, strides, around, dilations, groups)


@rule("Conv")
def conv(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Value:
    return convolve(call, x, weight, bias)


def less_zero_point(x: Tensor, zero: Tensor | None, axis: int = 0) -> Value:
    """Integers without their zero point, exact in f64; one for each place along an axis."""
    if zero is None:
        return x.astype(F64)
    if zero.ndim == 1 and int(zero.shape[0]) != 1:
        zero = zero.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    elif zero.size == 1:
        zero = zero.reshape(())
    # Of numbers of 8 bits, differences have products below 2^16, and sums of 2^37 of these are
    # exact.
    return x.astype(F64) - zero.astype(F64)


@rule("ConvInteger")
def conv_integer(
    call: Call,
    x: Tensor,
    weight: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
) -> Value:
    made = convolve(call, less_zero_point(x, x_zero), less_zero_point(weight, w_zero))
    return made.astype(SI32)


@rule("ConvTranspose")
def conv_transpose(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Value:
    count = x.ndim - 2
    if count not in _TRANSPOSED:
        raise Unimplemented("ConvTranspose", f"there are no convolutions over {count} axes")
    strides, dilations = per_axis(call, "strides", count, 1), per_axis(call, "dilations", count, 1)
    kernel = [int(size) for size in weight.shape[2:]]
    sizes = [int(size) for size in x.shape[2:]]
    extra = per_axis(call, "output_padding", count, 0)
    whole = [
        s * (n - 1) + (k - 1) * d + 1
        for s, n, k, d in zip(strides, sizes, kernel, dilations, strict=True)
    ]
    low, wanted = _starts_and_sizes(call, whole, extra, sizes, strides)
    groups = call.attr("group", 1)
    cut = [(a, have - a - n) for a, n, have in zip(low, wanted, whole, strict=True)]
    if all(n > 0 for n in wanted) and all(side >= 0 for pair in cut for side in pair):
        return _TRANSPOSED[count](x, weight, bias, strides, cut, 0, groups, dilations)
    # What is wanted goes beyond the windows: all of them are made, and a padding below zero cuts
    # off.
    made = _TRANSPOSED[count](x, weight, None, strides, 0, 0, groups, dilations)
    made = functional.pad(made, [(0, 0), (0, 0), *((-first, -last) for first, last in cut)])
    return made if bias is None else made + bias.reshape((1, -1, *[1] * count))


def _starts_and_sizes(
    call: Call, whole: list[int], extra: list[int], sizes: list[int], strides: list[int]
) -> tuple[list[int], list[int]]:
    """What is cut off before the result begins, and how large it is."""
    auto = call.choice("auto_pad", "NOTSET", AUTO)
    shape = call.attr("output_shape")
    count = len(whole)
    if not shape and auto in ("NOTSET", "VALID"):
        pads = (call.attr("pads") if auto == "NOTSET" else None) or [0] * 2 * count
        out = [
            w + e - pads[i] - pads[i + count]
            for i, (w, e) in enumerate(zip(whole, extra, strict=True))
        ]
        return pads[:count], out
    wanted = list(shape)[-count:] if shape else [n * s for n, s in zip(sizes, strides, strict=True)]
    low = []
    for have, more, size in zip(whole, extra, wanted, strict=True):
        total = max(have + more - size, 0)
        low.append(total // 2 if auto == "SAME_UPPER" else total - total // 2)
    return low, wanted


@rule("Col2Im", values=(1, 2))
def col2im(call: Call, x: Tensor, image: Array, block: Array) -> Value:
    """Columns put together as an image; where they overlap they add up."""
    sizes, window = [int(n) for n in image], [int(n) for n in block]
    count = len(sizes)
    strides, dilations = per_axis(call, "strides", count, 1), per_axis(call, "dilations", count, 1)
    spans = [(k - 1) * d + 1 for k, d in zip(window, dilations, strict=True)]
    around = paddings(call, sizes, spans, strides)
    padded = [n + low + high for n, (low, high) in zip(sizes, around, strict=True)]
    steps = [(n - span) // s + 1 for n, span, s in zip(padded, spans, strides, strict=True)]
    n, channels = int(x.shape[0]), int(x.shape[1]) // math.prod(window)
    parts = x.reshape((n, channels, *window, *steps))
    for axis in range(count):  # one axis of the window with its axis of steps
        parts = _add_overlaps(
            parts, 2 + axis, 2 + count, padded[axis], strides[axis], dilations[axis]
        )
    at: list[Any] = [slice(None), slice(None)]
    at += [slice(low, low + size) for (low, _), size in zip(around, sizes, strict=True)]
    return parts[tuple(at)]


def _add_overlaps(
    x: Tensor, window: int, steps: int, size: int, stride: int, dilation: int
) -> Value:
    """The axis `window` with the steps of one axis added into places; the axis of steps goes."""
    k, count = int(x.shape[window]), int(x.shape[steps])
    moved = wf.moveaxis(x, (window, steps), (-2, -1))
    total = None
    for index in range(k):
        row = moved[..., index, :]
        spread = wf.stack([row, *[wf.zeros_like(row)] * (stride - 1)], axis=-1)
        spread = spread.reshape((*row.shape[:-1], count * stride))
        low = index * dilation
        placed = functional.pad(
            spread, [*[(0, 0)] * (row.ndim - 1), (low, size - low - count * stride)]
        )
        total = placed if total is None else total + placed
    assert total is not None
    return wf.moveaxis(total, -1, window)
