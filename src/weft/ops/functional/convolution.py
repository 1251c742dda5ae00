"""Convolutions over one, two or three spatial axes, and their transposes.

Weights are as in torch: [out, in / groups, window...], transposed [in, out / groups, window...].
The canonical capture is `extract_patches` and one `dot_general`, which the compiler recognises: no
tensor of patches exists in a kernel. `whole` captures the coarse op `weft.conv.v1` instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.foundation.dtypes import FLOATS
from weft.foundation.errors import SpecViolation
from weft.ops.arithmetic import listed
from weft.ops.array import movement
from weft.ops.functional.capture import capture, with_batch
from weft.ops.functional.checks import (
    Checked,
    ensure_choice,
    ensure_dtype,
    ensure_known,
    ensure_positive,
    ensure_rank,
    ensure_same_backend,
    ensure_same_dtype,
    ensure_shape,
    ensure_tensor,
    wrong_value,
)
from weft.ops.functional.registry import functional, implements
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor

LAYOUTS = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}
"""Channels first and channels last, by the number of spatial axes."""
Sizes = int | Sequence[int]
Padding = int | str | Sequence[int] | Sequence[tuple[int, int]]


@dataclass(frozen=True)
class ConvChecked(Checked):
    """Everything per spatial axis; padding as (low, high)."""

    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    layout: str
    output_padding: tuple[int, ...] = ()

    @property
    def spatial(self) -> int:
        return len(self.stride)

    @property
    def channels_last(self) -> bool:
        return self.layout.endswith("C")


def per_axis(name: str, value: Any, count: int, least: int = 1) -> tuple[int, ...]:
    """One whole number for every spatial axis, from one or several."""
    given = list(value) if isinstance(value, Sequence) else [value] * count
    if len(given) != count or not all(is_whole(v) and v >= least for v in given):
        raise SpecViolation(
            "InvalidAttributeValue",
            f"{name} is {value!r}, but {count} whole numbers of at least {least} are wanted",
            "give one number for all axes, or one for each",
        )
    return tuple(map(int, given))


def is_whole(value: Any) -> bool:
    """Whether a value counts as a whole number: Python's and NumPy's do, truth values do not."""
    return hasattr(value, "__index__") and not isinstance(value, bool | Tensor)


def pairs(
    value: Padding,
    window: Sequence[int],
    stride: Sequence[int],
    sizes: Sequence[int],
    least: float = 0,
) -> tuple[tuple[int, int], ...]:
    """Padding as (low, high) for every axis; `window` counts its dilation."""
    count = len(window)
    if isinstance(value, str):
        if ensure_choice("padding", value, ("valid", "same")) == "valid":
            return ((0, 0),) * count
        found = []
        for size, span, step in zip(sizes, window, stride, strict=True):
            total = max((math.ceil(size / step) - 1) * step + span - size, 0)
            found.append((total // 2, total - total // 2))
        return tuple(found)
    given: list[Any] = list(value) if isinstance(value, Sequence) else [value] * count
    both = [tuple(v) if isinstance(v, Sequence) else (v, v) for v in given]
    right = [len(p) == 2 and all(is_whole(v) and v >= least for v in p) for p in both]
    if len(both) != count or not all(right):
        raise SpecViolation(
            "InvalidAttributeValue",
            f"padding is {value!r} for {count} spatial axes",
            "give a number, one for each axis, pairs (low, high), 'same' or 'valid'",
        )
    return tuple((int(low), int(high)) for low, high in both)


def check_conv(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
    layout: Any,
    spatial: int,
) -> ConvChecked:
    data, window = _check_operands(x, weight, layout, spatial)
    count = ensure_positive("groups", groups)
    channels = ensure_known("channels", data.shape[-1 if layout.endswith("C") else 1])
    outputs, inputs = (ensure_known("weight", dim) for dim in window.shape[:2])
    if channels != inputs * count or outputs % count:
        raise SpecViolation(
            "ShapeMismatch",
            f"x {listed(data.shape)} ({layout}) has {channels} channels, and weight "
            f"{listed(window.shape)} takes {inputs} in each of {count} groups, {outputs} out",
            "weight is (out, in / groups, window...), and groups divides both",
        )
    _check_bias(bias, data, outputs)
    steps = per_axis("stride", stride, spatial)
    spread = per_axis("dilation", dilation, spatial)
    sizes = [
        ensure_known("x", d) for d in (data.shape[1:-1] if layout.endswith("C") else data.shape[2:])
    ]
    spans = [
        (ensure_known("weight", k) - 1) * d + 1
        for k, d in zip(window.shape[2:], spread, strict=True)
    ]
    around = pairs(padding, spans, steps, sizes, least=-math.inf)
    for size, span, (low, high) in zip(sizes, spans, around, strict=True):
        if size and size + low + high < span:
            raise SpecViolation(
                "ShapeMismatch",
                f"the window of weight {listed(window.shape)} spans {span}, but x "
                f"{listed(data.shape)} with its padding has {size + low + high} there",
                "pad more, or use a smaller window",
            )
    return ConvChecked(steps, around, spread, count, layout)


def _check_operands(x: Any, weight: Any, layout: Any, spatial: int) -> tuple[Tensor, Tensor]:
    data, window = ensure_tensor("x", x), ensure_tensor("weight", weight)
    ensure_choice("layout", layout, LAYOUTS[spatial])
    ensure_rank("x", data, spatial + 2, f"({layout})")
    ensure_rank("weight", window, spatial + 2, "(out, in / groups, window...)")
    ensure_dtype("x", data, FLOATS, "floats")
    ensure_same_dtype("x", data, "weight", window)
    ensure_same_backend("x", data, "weight", window)
    return data, window


def _check_bias(bias: Any, data: Tensor, outputs: int) -> None:
    if bias is not None:
        ensure_same_dtype("x", data, "bias", ensure_tensor("bias", bias))
        ensure_shape("bias", bias, (outputs,), "one number for each output channel")


# -- capture -------------------------------------------------------------------------------------


def channels_to_last(x: Handle, checked: ConvChecked) -> Handle:
    if checked.channels_last:
        return x
    return x.transpose([0, *range(2, x.rank), 1])


def channels_back(x: Handle, checked: ConvChecked) -> Handle:
    if checked.channels_last:
        return x
    return x.transpose([0, x.rank - 1, *range(1, x.rank - 1)])


def _with_bias(x: Handle, bias: Handle | None) -> Handle:
    """A bias along the last axis."""
    if bias is None:
        return x
    return x + bias.reshape((*([1] * (x.rank - 1)), bias.shape[0])).broadcast_to(x.shape)


def _patches_product(s: Session, checked: ConvChecked, x: Handle, window: Handle) -> Handle:
    """x with channels last times a weight [window..., in / groups, out]."""
    spatial = checked.spatial
    sizes = window.shape[:spatial]
    patches = s.emit(
        "extract_patches", x, window=sizes, strides=checked.stride, dilation=checked.dilation,
        padding=checked.padding, pad_value=0.0,
    )  # fmt: skip
    inputs, outputs = window.tensor.static_shape[-2:]
    elements = math.prod(window.tensor.static_shape[:spatial])
    groups = checked.groups
    if groups == 1:
        matrix = window.reshape((elements * inputs, outputs))
        return patches.dot_general(matrix, contract=([-1], [0]))
    places = patches.shape[:-1]
    parted = patches.reshape((*places, elements, groups, inputs))
    matrix = window.reshape((elements, inputs, groups, outputs // groups))
    rank = len(places)
    product = parted.dot_general(
        matrix, contract=([rank, rank + 2], [0, 1]), batch=([rank + 1], [2])
    )
    return product.transpose([*range(1, rank + 1), 0, rank + 1]).reshape((*places, outputs))


def _crop_negative_padding(x: Handle, checked: ConvChecked) -> tuple[Handle, ConvChecked]:
    """x without what padding under 0 cuts off, and the padding that is left."""
    if all(low >= 0 and high >= 0 for low, high in checked.padding):
        return x, checked
    around = tuple((max(low, 0), max(high, 0)) for low, high in checked.padding)
    first = 1 if checked.channels_last else 2
    return _crop_padding(x, checked.padding, first), replace(checked, padding=around)


def capture_conv(
    s: Session, checked: ConvChecked, x: Handle, weight: Handle, bias: Handle | None
) -> Handle:
    x, checked = _crop_negative_padding(x, checked)
    last = channels_to_last(x, checked)
    window = weight.transpose([*range(2, weight.rank), 1, 0])
    product = _patches_product(s, checked, last, window)
    return channels_back(_with_bias(product, bias), checked)


def capture_whole_conv(
    s: Session, checked: ConvChecked, x: Handle, weight: Handle, bias: Handle | None
) -> Handle:
    x, checked = _crop_negative_padding(x, checked)
    window = weight.transpose([*range(2, weight.rank), 1, 0]) if checked.channels_last else weight
    lows, highs = zip(*checked.padding, strict=True)
    given = (x, window) if bias is None else (x, window, bias)
    return s.emit(
        "weft.conv", *given, stride=checked.stride, pad=(*lows, *highs), dilation=checked.dilation,
        groups=checked.groups, layout=checked.layout,
    )  # fmt: skip


def _conv(
    emit: Any,
    spatial: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Padding,
    dilation: Sizes,
    groups: int,
    layout: str,
) -> Tensor:
    def run(x: Tensor) -> Tensor:
        checked = check_conv(x, weight, bias, stride, padding, dilation, groups, layout, spatial)
        return capture(emit, checked, x, weight, bias)

    found: Tensor = with_batch(spatial + 2, x, run)
    return found


@functional
def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    layout: str = "NCW",
) -> Tensor:
    """Convolution over one axis; layout NCW or NWC."""
    return _conv(capture_conv, 1, x, weight, bias, stride, padding, dilation, groups, layout)


@functional
def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    layout: str = "NCHW",
) -> Tensor:
    """Convolution over two axes; layout NCHW or NHWC, or either without its N. Padding is a number,
    one number for each axis, pairs (low, high), 'same' or 'valid'; negative padding removes
    elements."""
    return _conv(capture_conv, 2, x, weight, bias, stride, padding, dilation, groups, layout)


@functional
def conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    layout: str = "NCDHW",
) -> Tensor:
    """Convolution over three axes; layout NCDHW or NDHWC."""
    return _conv(capture_conv, 3, x, weight, bias, stride, padding, dilation, groups, layout)


def _register_whole(spatial: int) -> None:
    """The coarse op as a second implementation."""

    @implements(f"conv{spatial}d", "whole")
    def whole(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sizes = 1,
        padding: Padding = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        *,
        layout: str = LAYOUTS[spatial][0],
    ) -> Tensor:
        return _conv(
            capture_whole_conv, spatial, x, weight, bias, stride, padding, dilation, groups, layout
        )


for _spatial in LAYOUTS:
    _register_whole(_spatial)


# -- transposed ----------------------------------------------------------------------------------


def check_transposed(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: Any,
    dilation: Any,
    layout: Any,
    spatial: int,
) -> ConvChecked:
    data, window = _check_operands(x, weight, layout, spatial)
    count = ensure_positive("groups", groups)
    channels = ensure_known("channels", data.shape[-1 if layout.endswith("C") else 1])
    inputs, outputs = (ensure_known("weight", dim) for dim in window.shape[:2])
    if channels != inputs or inputs % count:
        raise SpecViolation(
            "ShapeMismatch",
            f"x {listed(data.shape)} ({layout}) has {channels} channels, and weight "
            f"{listed(window.shape)} takes {inputs} in {count} groups",
            "a transposed weight is (in, out / groups, window...)",
        )
    _check_bias(bias, data, outputs * count)
    steps, spread = per_axis("stride", stride, spatial), per_axis("dilation", dilation, spatial)
    if isinstance(padding, str):
        raise wrong_value("padding", padding, "a transposed convolution takes numbers")
    around = pairs(padding, [1] * spatial, steps, [1] * spatial)
    extra = per_axis("output_padding", output_padding, spatial, least=0)
    return ConvChecked(steps, around, spread, count, layout, extra)


def capture_transposed(
    s: Session, checked: ConvChecked, x: Handle, weight: Handle, bias: Handle | None
) -> Handle:
    """A convolution of the input spread out by the stride with the window turned around."""
    spatial, groups = checked.spatial, checked.groups
    last = channels_to_last(x, checked)
    spread = s.emit(
        "pad", last, low=(0,) * last.rank, high=(0,) * last.rank,
        interior=(0, *(step - 1 for step in checked.stride), 0), pad_value=0.0,
    )  # fmt: skip
    window_sizes = weight.tensor.static_shape[2:]
    spans = [(k - 1) * d for k, d in zip(window_sizes, checked.dilation, strict=True)]
    wide = [
        (span - low, span - high + more)
        for span, (low, high), more in zip(
            spans, checked.padding, checked.output_padding, strict=True
        )
    ]
    cropped = _crop_padding(spread, wide)
    around = tuple((max(low, 0), max(high, 0)) for low, high in wide)
    inputs, outputs = weight.tensor.static_shape[:2]
    turned = weight
    for axis in range(2, weight.rank):
        turned = movement.flipped(turned, axis)
    parted = turned.reshape((groups, inputs // groups, outputs, *weight.shape[2:]))
    order = [*range(3, parted.rank), 1, 0, 2]
    window = parted.transpose(order).reshape(
        (*weight.shape[2:], inputs // groups, groups * outputs)
    )
    plain = ConvChecked((1,) * spatial, around, checked.dilation, groups, checked.layout)
    return channels_back(_with_bias(_patches_product(s, plain, cropped, window), bias), checked)


def _crop_padding(x: Handle, wide: Sequence[tuple[int, int]], first: int = 1) -> Handle:
    """Padding under 0 cuts elements off, of the axes from `first` on."""
    for axis, (low, high) in enumerate(wide, first):
        start = max(-low, 0)
        size = ensure_known("x", x.shape[axis]) - start - max(-high, 0)
        x = movement.window(x, axis, start, size)
    return x


def _convolve_transposed(
    spatial: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Padding,
    output_padding: Sizes,
    groups: int,
    dilation: Sizes,
    layout: str,
) -> Tensor:
    def run(x: Tensor) -> Tensor:
        checked = check_transposed(
            x, weight, bias, stride, padding, output_padding, groups, dilation, layout, spatial
        )
        return capture(capture_transposed, checked, x, weight, bias)

    found: Tensor = with_batch(spatial + 2, x, run)
    return found


@functional
def conv_transpose1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    layout: str = "NCW",
) -> Tensor:
    """The transpose of `conv1d` with the same arguments, as in torch."""
    return _convolve_transposed(
        1, x, weight, bias, stride, padding, output_padding, groups, dilation, layout
    )


@functional
def conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    layout: str = "NCHW",
) -> Tensor:
    """The transpose of `conv2d` with the same arguments, as in torch."""
    return _convolve_transposed(
        2, x, weight, bias, stride, padding, output_padding, groups, dilation, layout
    )


@functional
def conv_transpose3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    layout: str = "NCDHW",
) -> Tensor:
    """The transpose of `conv3d` with the same arguments, as in torch."""
    return _convolve_transposed(
        3, x, weight, bias, stride, padding, output_padding, groups, dilation, layout
    )
