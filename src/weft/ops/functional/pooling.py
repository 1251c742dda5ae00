"""Pooling: the largest or the mean element of every window, or of a given number of parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from weft.foundation.dims import Dim, add_dims
from weft.foundation.dtypes import FLOATS, ORDERED, SI64
from weft.foundation.errors import SpecViolation
from weft.ops.arithmetic import listed
from weft.ops.array import movement
from weft.ops.functional.capture import capture, capture_several, widened, with_batch
from weft.ops.functional.checks import (
    Checked,
    ensure_choice,
    ensure_dtype,
    ensure_known,
    ensure_rank,
    ensure_tensor,
)
from weft.ops.functional.convolution import LAYOUTS, Padding, Sizes, pairs, per_axis
from weft.ops.functional.registry import functional
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor


@dataclass(frozen=True)
class PoolChecked(Checked):
    """Windows over the spatial axes, everything per axis of x."""

    window: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    overhang: tuple[int, ...]
    """By how much the last window of each axis reaches over the padding; nothing is there."""
    count_padding: bool = True
    spatial: tuple[int, ...] = ()
    """The axes that windows lie on."""

    @property
    def size(self) -> int:
        """Elements of a window."""
        return math.prod(self.window)


def _spatial_axes(layout: str) -> range:
    return range(1, len(layout) - 1) if layout.endswith("C") else range(2, len(layout))


def _check_input(x: Any, layout: Any, spatial: int, ordered: bool = False) -> Tensor:
    tensor = ensure_tensor("x", x)
    ensure_choice("layout", layout, LAYOUTS[spatial])
    ensure_rank("x", tensor, spatial + 2, f"({layout})")
    if ordered:
        ensure_dtype("x", tensor, ORDERED, "numbers that have an order")
    else:
        ensure_dtype("x", tensor, FLOATS, "floats")
    return tensor


def check_pool(
    x: Any,
    window: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    layout: Any,
    spatial: int,
    ceil_mode: Any,
    count_padding: bool = True,
    ordered: bool = False,
) -> PoolChecked:
    tensor = _check_input(x, layout, spatial, ordered)
    size = per_axis("window", window, spatial)
    step = per_axis("stride", size if stride is None else stride, spatial)
    spread = per_axis("dilation", dilation, spatial)
    axes = _spatial_axes(layout)
    spans = [(k - 1) * d + 1 for k, d in zip(size, spread, strict=True)]
    extents = [ensure_known("x", tensor.shape[axis]) for axis in axes]
    around = pairs(padding, spans, step, extents)
    for extent, span, (low, high) in zip(extents, spans, around, strict=True):
        if extent and extent + low + high < span:
            raise SpecViolation(
                "ShapeMismatch",
                f"the window spans {span}, but x {listed(tensor.shape)} with its padding has "
                f"{extent + low + high} there",
                "pad more, or use a smaller window",
            )
    ends = [
        _overhang(*each) if ceil_mode else 0
        for each in zip(extents, spans, step, around, strict=True)
    ]
    return PoolChecked(
        _values_by_axis(size, axes, tensor.ndim, 1),
        _values_by_axis(step, axes, tensor.ndim, 1),
        _values_by_axis(around, axes, tensor.ndim, (0, 0)),
        _values_by_axis(spread, axes, tensor.ndim, 1),
        _values_by_axis(ends, axes, tensor.ndim, 0),
        count_padding,
        tuple(axes),
    )


def _overhang(extent: int, span: int, step: int, padding: tuple[int, int]) -> int:
    """How far one more window, which begins inside of x or before it, reaches over the end."""
    low, high = padding
    count = -(-(extent + low + high - span) // step) + 1
    if (count - 1) * step >= extent + low:
        count -= 1
    return max(0, (count - 1) * step + span - (extent + low + high))


def _values_by_axis(values: Sequence[Any], axes: range, rank: int, other: Any) -> tuple[Any, ...]:
    """Values for the spatial axes, and `other` for the rest."""
    found = dict(zip(axes, values, strict=True))
    return tuple(found.get(axis, other) for axis in range(rank))


def window_reduction(
    s: Session, checked: PoolChecked, x: Handle, reduce: str, padded: bool = False
) -> Handle:
    """A reduction of every window; an x that is `padded` has its padding already."""
    pairs = [(0, 0)] * x.rank if padded else checked.padding
    around = [(low, high + end) for (low, high), end in zip(pairs, checked.overhang, strict=True)]
    return s.emit(
        "reduce_window", x, window_dims=checked.window, strides=checked.stride,
        padding=tuple(around), base_dilation=(1,) * x.rank, window_dilation=checked.dilation,
        reduce=reduce,
    )  # fmt: skip


def capture_max_pool(s: Session, checked: PoolChecked, x: Handle) -> Handle:
    return window_reduction(s, checked, x, "max")


def capture_avg_pool(s: Session, checked: PoolChecked, x: Handle) -> Handle:
    # The sum of a window of f16 may be out of range where the mean is not.
    wide = widened(x)
    total = window_reduction(s, checked, wide, "sum")
    if checked.count_padding and not any(checked.overhang):
        return s.cast(total / float(checked.size), x.dtype)
    counted: list[Dim] = list(x.shape)
    if checked.count_padding:
        counted = [add_dims(d, *pair) for d, pair in zip(x.shape, checked.padding, strict=True)]
    ones = s.full(1.0, wide.dtype, counted)
    counts = window_reduction(s, checked, ones, "sum", padded=checked.count_padding)
    return s.cast(total / counts, x.dtype)


def _window_places(checked: PoolChecked, shape: tuple[int, ...], axis: int) -> Any:
    """The positions on an axis that each window covers. One that is outside stands for the first
    of its window that is not: it is no larger, and comes no earlier."""
    size, step, spread = checked.window[axis], checked.stride[axis], checked.dilation[axis]
    (low, high), end = checked.padding[axis], checked.overhang[axis]
    span, extent = (size - 1) * spread + 1, shape[axis]
    starts = np.arange(0, extent + low + high + end - span + 1, step) - low
    places = starts[:, None] + np.arange(size)[None, :] * spread
    inside = (places >= 0) & (places < extent)
    first = np.argmax(inside, axis=1)[:, None]
    return np.where(inside, places, np.take_along_axis(places, first, 1).clip(0, extent - 1))


def capture_max_places(s: Session, checked: PoolChecked, x: Handle) -> tuple[Handle, Handle]:
    """The largest elements, and where they are: their number, row by row, among the elements of
    the spatial axes. The elements of every window are laid along the last axis to find them."""
    shape = tuple(ensure_known("x", dim) for dim in x.shape)
    axes = [axis for axis in range(x.rank) if axis in checked.spatial]
    windows, numbers = x, np.zeros((1,) * x.rank, np.int64)
    for axis in axes:
        places = _window_places(checked, shape, axis)
        lined = movement.rows_at(windows, s.literal(places, SI64), axis)
        windows = lined.transpose([*range(axis + 1), *range(axis + 2, lined.rank), axis + 1])
        numbers = (numbers * shape[axis])[..., None] + _lay_windows(places, axis, numbers.ndim)
    whole = (*windows.shape[: x.rank], checked.size)
    best = windows.reshape(whole).arg_max(axis=x.rank, keepdims=True)
    table = s.literal(numbers.reshape(*numbers.shape[: x.rank], -1), SI64)
    found = table.broadcast_to(whole).gather(best, axis=x.rank)
    return capture_max_pool(s, checked, x), found.reshape(whole[:-1])


def _lay_windows(places: Any, axis: int, rank: int) -> Any:
    """Positions [windows, elements] with the windows along an axis and the elements last."""
    shape = [1] * (rank + 1)
    shape[axis], shape[-1] = places.shape
    return places.reshape(shape)


def _max_pool(
    spatial: int, x: Tensor, window: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: Any,
    layout: str, places: bool,
) -> Any:  # fmt: skip
    def run(x: Tensor) -> Any:
        checked = check_pool(
            x, window, stride, padding, dilation, layout, spatial, ceil_mode, ordered=True
        )
        if places:
            return capture_several(capture_max_places, checked, x)
        return capture(capture_max_pool, checked, x)

    return with_batch(spatial + 2, x, run)


def _avg_pool(
    spatial: int, x: Tensor, window: Any, stride: Any, padding: Any, ceil_mode: Any, count: bool,
    layout: str,
) -> Tensor:  # fmt: skip
    def run(x: Tensor) -> Tensor:
        checked = check_pool(x, window, stride, padding, 1, layout, spatial, ceil_mode, count)
        return capture(capture_avg_pool, checked, x)

    found: Tensor = with_batch(spatial + 2, x, run)
    return found


@functional
def max_pool1d(
    x: Tensor,
    window: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    *,
    ceil_mode: bool = False,
    return_indices: bool = False,
    layout: str = "NCW",
) -> Any:
    """The largest element of every window over one axis; the stride is the window unless given.
    `ceil_mode` adds a last window that extends beyond the end if elements remain; `return_indices`
    also returns the positions of the elements along the axis."""
    given = (window, stride, padding, dilation, ceil_mode, layout, return_indices)
    return _max_pool(1, x, *given)


@functional
def max_pool2d(
    x: Tensor,
    window: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    *,
    ceil_mode: bool = False,
    return_indices: bool = False,
    layout: str = "NCHW",
) -> Any:
    """The largest element of every window over two axes; padding counts as -Inf. `return_indices`
    also returns the position of each element, counted over both axes in row-major order, for
    `max_unpool2d`."""
    given = (window, stride, padding, dilation, ceil_mode, layout, return_indices)
    return _max_pool(2, x, *given)


@functional
def max_pool3d(
    x: Tensor,
    window: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    *,
    ceil_mode: bool = False,
    return_indices: bool = False,
    layout: str = "NCDHW",
) -> Any:
    """The largest element of every window over three axes."""
    given = (window, stride, padding, dilation, ceil_mode, layout, return_indices)
    return _max_pool(3, x, *given)


@functional
def avg_pool1d(
    x: Tensor,
    window: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    *,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    layout: str = "NCW",
) -> Tensor:
    """The mean of every window over one axis."""
    return _avg_pool(1, x, window, stride, padding, ceil_mode, count_include_pad, layout)


@functional
def avg_pool2d(
    x: Tensor,
    window: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    *,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    layout: str = "NCHW",
) -> Tensor:
    """The mean of every window over two axes; without `count_include_pad` only real elements
    count."""
    return _avg_pool(2, x, window, stride, padding, ceil_mode, count_include_pad, layout)


@functional
def avg_pool3d(
    x: Tensor,
    window: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    *,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    layout: str = "NCDHW",
) -> Tensor:
    """The mean of every window over three axes."""
    return _avg_pool(3, x, window, stride, padding, ceil_mode, count_include_pad, layout)


# -- a given number of parts ---------------------------------------------------------------------


@dataclass(frozen=True)
class AdaptiveChecked(Checked):
    """For every spatial axis: the axis, its size, and how many parts it is cut into."""

    cuts: tuple[tuple[int, int, int], ...]


MOST_PARTS: Final = 4_096
"""Into how many parts an axis is cut at most."""


def check_adaptive(x: Any, output: Any, layout: Any, spatial: int) -> AdaptiveChecked:
    tensor = _check_input(x, layout, spatial)
    axes = _spatial_axes(layout)
    extents = [ensure_known("x", tensor.shape[axis]) for axis in axes]
    if isinstance(output, tuple | list) and len(output) == spatial:
        output = [e if size is None else size for size, e in zip(output, extents, strict=True)]
    sizes = per_axis("output_size", output, spatial)
    if any(extent == 0 for extent in extents):
        raise SpecViolation(
            "ShapeMismatch", f"x {listed(tensor.shape)} has no element to pool", "pool another axis"
        )
    if max(sizes) > MOST_PARTS:
        raise SpecViolation(
            "InvalidAttributeValue",
            f"output_size is {max(sizes)}; {MOST_PARTS} is the most, since each part is "
            "instructions of its own",
            "pool to fewer parts, or use interpolate",
        )
    return AdaptiveChecked(tuple(zip(axes, extents, sizes, strict=True)))


def _pool_parts(
    s: Session, checked: AdaptiveChecked, x: Handle, reduce: Callable[[Handle, int], Handle]
) -> Handle:
    """Axis by axis: part i of n goes from floor(i size / n) to ceil((i + 1) size / n)."""
    for axis, size, count in checked.cuts:
        if size % count == 0:
            parted = (*x.shape[:axis], count, size // count, *x.shape[axis + 1 :])
            x = reduce(x.reshape(parted), axis + 1)
            continue
        pieces = []
        for part in range(count):
            start, stop = part * size // count, -(-(part + 1) * size // count)
            kept = reduce(movement.window(x, axis, start, stop - start), axis)
            pieces.append(kept.reshape((*kept.shape[:axis], 1, *kept.shape[axis:])))
        x = s.concat(pieces, axis) if len(pieces) > 1 else pieces[0]
    return x


def capture_adaptive_max(s: Session, checked: AdaptiveChecked, x: Handle) -> Handle:
    return _pool_parts(s, checked, x, lambda part, axis: part.reduce_max([axis]))


def capture_adaptive_avg(s: Session, checked: AdaptiveChecked, x: Handle) -> Handle:
    return _pool_parts(s, checked, x, lambda part, axis: part.reduce_mean([axis]))


def _adaptive(emit: Any, spatial: int, x: Tensor, output: Any, layout: str) -> Tensor:
    def run(x: Tensor) -> Tensor:
        return capture(emit, check_adaptive(x, output, layout, spatial), x)

    found: Tensor = with_batch(spatial + 2, x, run)
    return found


@functional
def adaptive_max_pool1d(x: Tensor, output_size: Sizes, *, layout: str = "NCW") -> Tensor:
    """The largest element of each of `output_size` parts of one axis."""
    return _adaptive(capture_adaptive_max, 1, x, output_size, layout)


@functional
def adaptive_max_pool2d(x: Tensor, output_size: Sizes, *, layout: str = "NCHW") -> Tensor:
    """The largest element of each part of two axes."""
    return _adaptive(capture_adaptive_max, 2, x, output_size, layout)


@functional
def adaptive_max_pool3d(x: Tensor, output_size: Sizes, *, layout: str = "NCDHW") -> Tensor:
    """The largest element of each part of three axes."""
    return _adaptive(capture_adaptive_max, 3, x, output_size, layout)


@functional
def adaptive_avg_pool1d(x: Tensor, output_size: Sizes, *, layout: str = "NCW") -> Tensor:
    """The mean of each of `output_size` parts of one axis."""
    return _adaptive(capture_adaptive_avg, 1, x, output_size, layout)


@functional
def adaptive_avg_pool2d(x: Tensor, output_size: Sizes, *, layout: str = "NCHW") -> Tensor:
    """The mean of each part of two axes; a size of None keeps the axis as it is."""
    return _adaptive(capture_adaptive_avg, 2, x, output_size, layout)


@functional
def adaptive_avg_pool3d(x: Tensor, output_size: Sizes, *, layout: str = "NCDHW") -> Tensor:
    """The mean of each part of three axes."""
    return _adaptive(capture_adaptive_avg, 3, x, output_size, layout)
