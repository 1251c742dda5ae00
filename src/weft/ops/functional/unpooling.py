"""Inverses of pooling: `max_unpool`, and windows as columns and back (`unfold`, `fold`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.foundation.dtypes import INDICES, SI64
from weft.foundation.errors import SpecViolation
from weft.ops.arithmetic import as_tensor, listed
from weft.ops.array import movement
from weft.ops.array.creation import zeros
from weft.ops.array.manipulation import reshape
from weft.ops.capture_recipes import recorded
from weft.ops.functional.capture import with_batch
from weft.ops.functional.checks import (
    ensure_dtype,
    ensure_known,
    ensure_rank,
    ensure_shape_matches,
    ensure_tensor,
)
from weft.ops.functional.convolution import Sizes, pairs, per_axis
from weft.ops.functional.indexing import scatter
from weft.ops.functional.rearrange import pad
from weft.ops.functional.registry import functional
from weft.ops.session import Handle
from weft.ops.tensor import Tensor

Rows = tuple[tuple[int, ...], ...]


def _unpool_max(
    spatial: int, x: Any, indices: Any, window: Any, stride: Any, padding: Any, output_size: Any
) -> Tensor:
    values, places = ensure_tensor("x", x), ensure_tensor("indices", indices)
    ensure_dtype("indices", places, INDICES, "integers (si32 or si64)")
    ensure_shape_matches("x", values, "indices", places)
    if values.ndim == spatial + 1:
        values, places = values[None], places[None]
        found = _unpool_max(spatial, values, places, window, stride, padding, output_size)
        return reshape(found, found.shape[1:])
    ensure_rank("x", values, spatial + 2, "(N, C, ...)")
    sizes = [ensure_known("x", dim) for dim in values.shape[2:]]
    wide = per_axis("window", window, spatial)
    steps = per_axis("stride", wide if stride is None else stride, spatial)
    around = per_axis("padding", padding, spatial, least=0)
    if output_size is None:
        parts = zip(sizes, steps, wide, around, strict=True)
        whole = tuple((n - 1) * step + size - 2 * low for n, step, size, low in parts)
    else:
        whole = per_axis("output_size", output_size, spatial)
    front = values.shape[:2]
    empty = zeros((*front, math.prod(whole)), dtype=values.dtype, device=values.backend)
    flat = (*front, math.prod(sizes))
    found = scatter(empty, reshape(places, flat), reshape(values, flat))
    return reshape(found, (*front, *whole))


@functional
def max_unpool1d(
    x: Tensor,
    indices: Tensor,
    window: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    *,
    output_size: Sizes | None = None,
) -> Tensor:
    """The elements of `max_pool1d` at their original positions, and zeros elsewhere."""
    return _unpool_max(1, x, indices, window, stride, padding, output_size)


@functional
def max_unpool2d(
    x: Tensor,
    indices: Tensor,
    window: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    *,
    output_size: Sizes | None = None,
) -> Tensor:
    """The elements of `max_pool2d` at their original positions, and zeros elsewhere. `output_size`
    gives the original size if the windows did not cover its end."""
    return _unpool_max(2, x, indices, window, stride, padding, output_size)


@functional
def max_unpool3d(
    x: Tensor,
    indices: Tensor,
    window: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    *,
    output_size: Sizes | None = None,
) -> Tensor:
    """The elements of `max_pool3d` at their original positions, and zeros elsewhere."""
    return _unpool_max(3, x, indices, window, stride, padding, output_size)


# -- windows as columns --------------------------------------------------------------------------


def _window_places(size: int, window: int, stride: int, dilation: int, padding: int) -> Any:
    """Where the elements of every window lie on a padded axis: [elements, windows]."""
    span = (window - 1) * dilation + 1
    if size + 2 * padding < span:
        raise SpecViolation(
            "ShapeMismatch",
            f"the window spans {span}, but the axis with its padding has {size + 2 * padding}",
            "pad more, or use a smaller window",
        )
    starts = np.arange(0, size + 2 * padding - span + 1, stride)
    return np.arange(window)[:, None] * dilation + starts[None, :]


def _geometry(window: Any, dilation: Any, padding: Any, stride: Any) -> list[tuple[int, ...]]:
    wide = per_axis("window", window, 2)
    spread, steps = per_axis("dilation", dilation, 2), per_axis("stride", stride, 2)
    around = [low for low, _ in pairs(padding, wide, steps, wide)]
    return list(zip(wide, steps, spread, around, strict=True))


@functional
def unfold(
    x: Tensor, window: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> Tensor:
    """The windows of [N, C, H, W] as columns: [N, C times the elements of a window, windows]."""
    forms = _geometry(window, dilation, padding, stride)

    def run(x: Tensor) -> Tensor:
        ensure_rank("x", x, 4, "(N, C, H, W)")
        sizes = [ensure_known("x", dim) for dim in x.shape[2:]]
        places = [_window_places(size, *form) for size, form in zip(sizes, forms, strict=True)]
        widths = [(0, 0), (0, 0), *((form[3],) * 2 for form in forms)]
        rows, columns = (tuple(map(tuple, each.tolist())) for each in places)
        return _columns(pad(x, widths), rows, columns)

    found: Tensor = with_batch(4, x, run)
    return found


@recorded
def _columns(x: Handle, rows: Rows, columns: Rows) -> Handle:
    session = x.session
    for axis, places in ((2, rows), (4, columns)):
        x = movement.rows_at(x, session.literal(np.array(places), SI64), axis)
    batch, channels, high, down, wide, across = x.shape
    lined = x.transpose([0, 1, 2, 4, 3, 5])
    elements = ensure_known("x", channels) * int(high) * int(wide)
    return lined.reshape((batch, elements, int(down) * int(across)))


@functional
def fold(
    x: Tensor,
    output_size: Sizes,
    window: Sizes,
    dilation: Sizes = 1,
    padding: Sizes = 0,
    stride: Sizes = 1,
) -> Tensor:
    """Columns added up as the windows of [N, C, H, W]. `fold` of `unfold` gives each element times
    the number of windows that contain it."""
    forms = _geometry(window, dilation, padding, stride)
    sizes = per_axis("output_size", output_size, 2)

    def run(x: Tensor) -> Tensor:
        ensure_rank("x", x, 3, "(N, C times the elements of a window, windows)")
        places = [_window_places(size, *form) for size, form in zip(sizes, forms, strict=True)]
        elements = places[0].shape[0] * places[1].shape[0]
        windows = places[0].shape[1] * places[1].shape[1]
        channels = ensure_known("x", x.shape[1])
        if channels % elements or x.shape[2] != windows:
            raise SpecViolation(
                "ShapeMismatch",
                f"x {listed(x.shape)} has not the columns of {windows} windows of {elements} "
                "elements",
                "give the sizes that the columns were made with",
            )
        return _fold_windows(x, places, sizes, [form[3] for form in forms])

    found: Tensor = with_batch(3, x, run)
    return found


def _fold_windows(
    x: Tensor, places: list[Any], sizes: Sequence[int], around: Sequence[int]
) -> Tensor:
    """Every element added at its place in the padded image, of which the padding is cut off."""
    high, wide = (size + 2 * low for size, low in zip(sizes, around, strict=True))
    rows, columns = places
    # In the order of the columns: the row and the column within a window, then those of the window.
    numbers = rows[:, None, :, None] * wide + columns[None, :, None, :]
    elements = rows.shape[0] * columns.shape[0]
    batch, channels = x.shape[0], int(x.shape[1]) // elements
    flat = reshape(x, (batch, channels, numbers.size))
    empty = zeros((batch, channels, high * wide), dtype=x.dtype, device=x.backend)
    at = as_tensor(np.broadcast_to(numbers.reshape(1, 1, -1), (int(batch), channels, numbers.size)))
    whole = reshape(scatter(empty, at, flat, reduce="add"), (batch, channels, high, wide))
    (top, left), (height, width) = around, sizes
    return whole[:, :, top : top + height, left : left + width]
