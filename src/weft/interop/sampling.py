"""Values between the elements of a grid, at computed places, as torch and ONNX take them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

from weft.foundation.dtypes import BF16, F16, F32, FP8_E4M3, FP8_E5M2, SI64
from weft.ops import namespace
from weft.ops.tensor import Tensor

_w: Any = namespace
Taps = list[tuple[Tensor, Tensor | None]]
"""Places along an axis, each with its weight; None is 1."""


def grid_sampled(
    x: Tensor, grid: Tensor, mode: str, padding: str, corners: bool, *, moved: bool = False
) -> Any:
    """x [N, C, sizes...] at the places of a grid [N, outs..., axes]: [N, C, outs...].

    A place is from -1 to 1, which are the middles of the outermost elements (`corners`) or their
    outer edges, and comes with the last axis first. What is outside is 0, the nearest element, or
    mirrored (`padding`: "zeros", "border", "reflection"). The mode is "nearest", "linear" or
    "cubic"; with "cubic" it is the neighbours of a place that are brought inside, or, if `moved`,
    the place first.
    """
    if 0 in (x.size, grid.size):
        return _w.zeros((*x.shape[:2], *grid.shape[1:-1]), dtype=x.dtype)
    rank = x.ndim - 2
    wide: Any = x.astype(F32) if x.dtype in (F16, BF16, FP8_E4M3, FP8_E5M2) else x
    rows = grid.reshape((grid.shape[0], -1, rank)).astype(wide.dtype)
    places = []
    for axis, size in enumerate(map(int, x.shape[2:])):
        near = rows[..., rank - 1 - axis]
        at = (near + 1) / 2 * (size - 1) if corners else ((near + 1) * size - 1) / 2
        if mode != "cubic":
            at = _bring_inside(at, size, padding, corners)
        elif moved:
            at = _move_inside(at, size, padding, corners)
        places.append(_w.round(at) if mode == "nearest" else at)
    outside = padding if mode == "cubic" else "zeros"
    made = sampled(wide, places, mode, outside, corners)
    return made.reshape((*x.shape[:2], *grid.shape[1:-1])).astype(x.dtype)


def sampled(
    x: Tensor, places: Sequence[Tensor], mode: str, padding: str, corners: bool = False
) -> Any:
    """x [N, C, sizes...] at places, one tensor [N, Q] for each axis of sizes: [N, C, Q]. Neighbours
    of a place that are outside count as `padding` says."""
    sizes = [int(size) for size in x.shape[2:]]
    flat = x.reshape((*x.shape[:2], math.prod(sizes)))
    axes = [_taps(at, mode) for at in places]
    total: Any = None
    for combination in product(*axes):
        index, weight, there = _combine_axes(combination, sizes, padding, corners)
        where = _w.broadcast_to(_w.expand_dims(index, 1), (*x.shape[:2], index.shape[-1]))
        value = _w.take_along_axis(flat, where, axis=2)
        if there is not None:
            # What is outside counts for nothing, also where it stands for an infinity.
            value = _w.where(_w.expand_dims(there, 1), value, _w.zeros((), dtype=value.dtype))
        if weight is not None:
            value = value * _w.expand_dims(weight, 1).astype(x.dtype)
        total = value if total is None else total + value
    return total


def _combine_axes(combination: Any, sizes: list[int], padding: str, corners: bool) -> Any:
    """A neighbour in all axes: its index in row-major order, its weight, whether it is there."""
    index = weight = there = None
    for (at, part), size in zip(combination, sizes, strict=True):
        kept, inside = _keep_neighbour(at, size, padding, corners)
        index = kept if index is None else index * size + kept
        if part is not None:
            weight = part if weight is None else weight * part
        if inside is not None:
            there = inside if there is None else _w.logical_and(there, inside)
    return index, weight, there


def _taps(at: Tensor, mode: str) -> Taps:
    """The neighbours that count."""
    if mode == "nearest":
        return [(at, None)]
    first = _w.floor(at)
    t = at - first
    if mode == "linear":
        return [(first, 1 - t), (first + 1, t)]
    a = -0.75
    weights = [
        ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a,
        ((a + 2) * t - (a + 3)) * t * t + 1,
        ((a + 2) * (1 - t) - (a + 3)) * (1 - t) * (1 - t) + 1,
        ((a * (2 - t) - 5 * a) * (2 - t) + 8 * a) * (2 - t) - 4 * a,
    ]
    return [(first + (index - 1), weight) for index, weight in enumerate(weights)]


def _borders(size: int, corners: bool) -> tuple[float, float]:
    """Where what is outside begins."""
    return (0.0, size - 1.0) if corners else (-0.5, size - 0.5)


def _reflect_places(at: Tensor, size: int, corners: bool) -> Any:
    """Places mirrored at the borders until they are between them."""
    low, high = _borders(size, corners)
    span = high - low
    if span <= 0:
        return _w.full_like(at, low)
    apart = _w.remainder(_w.abs(at - low), _w.full((), 2 * span, dtype=at.dtype))
    return _w.where(apart > span, 2 * span - apart, apart) + low


def _bring_inside(at: Tensor, size: int, padding: str, corners: bool) -> Any:
    """Places brought to where elements are; with "zeros" they stay where they are."""
    if padding == "zeros":
        return at
    found = _reflect_places(at, size, corners) if padding == "reflection" else at
    return _w.clip(found, 0, size - 1)


def _move_inside(at: Tensor, size: int, padding: str, corners: bool) -> Any:
    """Places brought between the borders."""
    if padding == "reflection":
        return _reflect_places(at, size, corners)
    if padding == "zeros":
        return at
    low, high = _borders(size, corners)
    return _w.where(_w.logical_or(at < low, at > high), _w.clip(at, 0, size - 1), at)


def _keep_neighbour(
    at: Tensor, size: int, padding: str, corners: bool
) -> tuple[Tensor, Tensor | None]:
    """A neighbour that is there, and whether it is meant where nothing is around."""
    if padding == "reflection":
        at = _w.trunc(_reflect_places(at, size, corners))
    kept = _w.clip(at, 0, size - 1).astype(SI64)
    if padding != "zeros":
        return kept, None
    return kept, _w.logical_and(at >= 0, at <= size - 1)
