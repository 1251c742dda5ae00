"""Convolution and resampling, one element of the result at a time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def convolution(
    x: Array,
    weight: Array,
    *,
    stride: Sequence[int],
    low: Sequence[int],
    high: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    """x is [N, spatial..., C], weight [window..., C / groups, O]; nothing is flipped."""
    window, share, outputs = weight.shape[:-2], weight.shape[-2], weight.shape[-1]
    around = [(0, 0), *zip(low, high, strict=True), (0, 0)]
    board = np.pad(x, around)
    spans = [(n - 1) * d + 1 for n, d in zip(window, dilation, strict=True)]
    places = [
        max((n - span) // step + 1, 0)
        for n, span, step in zip(board.shape[1:-1], spans, stride, strict=True)
    ]
    result = np.zeros((x.shape[0], *places, outputs), x.dtype)
    each = outputs // groups
    for place in itertools.product(*map(range, places)):
        for offset in itertools.product(*map(range, window)):
            at = [p * s + o * d for p, s, o, d in zip(place, stride, offset, dilation, strict=True)]
            for image, group in itertools.product(range(x.shape[0]), range(groups)):
                inputs = board[(image, *at)][group * share : (group + 1) * share]
                columns = slice(group * each, (group + 1) * each)
                result[(image, *place)][columns] += inputs @ weight[offset][:, columns]
    return result


def source_position(mode: str, x: int, old: int, new: int) -> Fraction:
    """The table of coordinate modes, with scale = new / old."""
    scale = Fraction(new, old)
    if mode == "asymmetric":
        return x / scale
    if mode == "align_corners":
        return Fraction(0) if new == 1 else Fraction(x * (old - 1), new - 1)
    if mode == "pytorch_half_pixel" and new == 1:
        return Fraction(0)
    return (x + Fraction(1, 2)) / scale - Fraction(1, 2)


def nearest_of(x: Array, shape: Sequence[int], mode: str) -> Array:
    """The element at or before each position."""
    result = np.empty(tuple(shape), x.dtype)
    for place in np.ndindex(*shape):
        at = []
        for axis, p in enumerate(place):
            old, new = x.shape[axis], shape[axis]
            at.append(min(max(math.floor(source_position(mode, p, old, new)), 0), old - 1))
        result[place] = x[tuple(at)]
    return result


def resize_linear(x: Array, shape: Sequence[int], mode: str) -> Array:
    """The mean of all corners around each position, weighted by how near they are."""
    result = np.zeros(tuple(shape), x.dtype)
    for place in np.ndindex(*shape):
        corners: list[list[tuple[int, Fraction]]] = []
        for axis, p in enumerate(place):
            old = x.shape[axis]
            where = min(
                max(source_position(mode, p, old, shape[axis]), Fraction(0)), Fraction(old - 1)
            )
            low = math.floor(where)
            pair = [(low, 1 - (where - low)), (min(low + 1, old - 1), where - low)]
            corners.append([(at, share) for at, share in pair if share])
        for chosen in itertools.product(*corners):
            share = math.prod((s for _, s in chosen), start=Fraction(1))
            value = x[tuple(at for at, _ in chosen)]
            result[place] += value * (value.dtype.type(share.numerator) / share.denominator)
    return result
