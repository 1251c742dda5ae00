"""Pooling against loops over windows and parts in f64."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import each
from tests.support.tensors import DTYPES, Array, agrees, data, wide
from weft import functional as F
from weft.foundation.dtypes import DType

Shape = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]

LAYOUTS = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}


def to_last(x: Array) -> Array:
    return np.moveaxis(x, 1, -1)


def several(value: Any, count: int) -> tuple[Any, ...]:
    return (value,) * count if isinstance(value, int) else tuple(value)


def loop_pool(
    x: Array, window: Shape, stride: Shape, padding: Pads, dilation: Shape, kind: str
) -> Array:
    """`kind`: max, avg, or avg_inside, which leaves the padding out of the count."""
    fill = -np.inf if kind == "max" else 0.0
    around = ((0, 0), (0, 0), *padding)
    padded = np.pad(wide(x), around, constant_values=fill)
    inside = np.pad(np.ones(x.shape), around)
    spans = [(k - 1) * d + 1 for k, d in zip(window, dilation, strict=True)]
    sizes = [
        (n - span) // s + 1 for n, span, s in zip(padded.shape[2:], spans, stride, strict=True)
    ]
    out = np.zeros((*x.shape[:2], *sizes))
    axes = tuple(range(2, x.ndim))
    for place in itertools.product(*map(range, sizes)):
        cut: Any = (
            ...,
            *(
                slice(p * s, p * s + span, d)
                for p, s, span, d in zip(place, stride, spans, dilation, strict=True)
            ),
        )
        at: Any = (..., *place)
        if kind == "max":
            out[at] = padded[cut].max(axes)
        elif kind == "avg":
            out[at] = padded[cut].mean(axes)
        else:
            out[at] = padded[cut].sum(axes) / inside[cut].sum(axes)
    return out


@dataclass(frozen=True)
class Pool:
    x: Shape
    window: Any
    stride: Any = None
    padding: Any = 0
    dilation: Any = 1


POOLS = [
    Pool((2, 3, 9), 2),
    Pool((2, 3, 9), 3, 2, 1),
    Pool((1, 2, 9), 3, 1, ((0, 1),), 2),
    Pool((1, 2, 6, 7), 2),
    Pool((1, 2, 6, 7), (3, 2), (1, 2), (1, 0)),
    Pool((0, 2, 6, 7), 2),
    Pool((1, 2, 4, 5, 6), 2, 2, 1),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("kind", ["max", "avg", "avg_inside"])
@pytest.mark.parametrize("case", POOLS, ids=str)
def test_pooling(case: Pool, kind: str, last: bool, dtype: DType) -> None:
    n = len(case.x) - 2
    if kind != "max" and case.dilation != 1:
        pytest.skip("average pooling has no dilation")
    x = data(case.x, dtype)
    window = several(case.window, n)
    stride = window if case.stride is None else several(case.stride, n)
    pads = tuple((p, p) if isinstance(p, int) else p for p in several(case.padding, n))
    exact = loop_pool(x, window, stride, pads, several(case.dilation, n), kind)
    given = weft.asarray(to_last(x) if last else x)
    layout = LAYOUTS[n][last]
    if kind == "max":
        found = getattr(F, f"max_pool{n}d")(
            given, case.window, case.stride, case.padding, case.dilation, layout=layout
        )
    else:
        found = getattr(F, f"avg_pool{n}d")(
            given,
            case.window,
            case.stride,
            case.padding,
            count_include_pad=kind == "avg",
            layout=layout,
        )
    agrees(found, to_last(exact) if last else exact, dtype)


def parts(x: Array, counts: Shape, function: Callable[..., Any]) -> Array:
    for axis, count in enumerate(counts, 2):
        size = x.shape[axis]
        pieces = [
            function(
                np.take(x, range(i * size // count, -(-(i + 1) * size // count)), axis),
                axis=axis,
                keepdims=True,
            )
            for i in range(count)
        ]
        x = np.concatenate(pieces, axis)
    return x


@each("dtype", DTYPES)
@each("last", [False, True])
@each("kind", ["max", "avg"])
@each(
    ("shape", "counts"),
    [((2, 3, 8), (4,)), ((2, 3, 7), (3,)), ((1, 2, 6, 5), (1, 1)), ((1, 2, 5, 6), (4, 2)),
     ((1, 2, 3, 4, 5), (2, 2, 3))],
)  # fmt: skip
def test_adaptive_pooling(shape: Shape, counts: Shape, kind: str, last: bool, dtype: DType) -> None:
    n = len(shape) - 2
    x = data(shape, dtype)
    exact = parts(wide(x), counts, np.max if kind == "max" else np.mean)
    function = getattr(F, f"adaptive_{kind}_pool{n}d")
    found = function(weft.asarray(to_last(x) if last else x), counts, layout=LAYOUTS[n][last])
    agrees(found, to_last(exact) if last else exact, dtype)


def test_the_mean_of_many_f16_is_in_range_though_their_sum_is_not() -> None:
    x = weft.full((1, 1, 64, 64), 60.0, dtype=weft.float16)
    assert F.adaptive_avg_pool2d(x, 1).item() == 60.0
    assert F.avg_pool2d(x, 64).item() == 60.0


def left_over(x: Array, window: int, stride: int, padding: int, kind: str) -> Array:
    """Windows over the last axis as long as one begins inside of x or before it; what lies behind
    the padding is nothing at all."""
    size, rows = x.shape[-1], []
    start = -padding
    while start < size:
        ahead = start + window
        inside = x[..., max(start, 0) : ahead]
        count = min(ahead, size + padding) - start if kind == "avg" else inside.shape[-1]
        rows.append(inside.max(-1) if kind == "max" else inside.sum(-1) / count)
        if ahead >= size + padding:
            break
        start += stride
    return np.stack(rows, -1)


@each("backend", ["reference", "cpu"])
@each("kind", ["max", "avg", "avg_inside"])
@each(
    ("size", "window", "stride", "padding"),
    [(5, 2, 2, 0), (6, 2, 2, 0), (6, 3, 2, 1), (7, 3, 3, 1), (4, 2, 3, 0), (5, 3, 4, 1)],
)
def test_ceil_mode_takes_what_is_left_over(
    size: int, window: int, stride: int, padding: int, kind: str, backend: str
) -> None:
    x = data((2, 3, size))
    given = weft.asarray(x, device=backend)
    if kind == "max":
        found = F.max_pool1d(given, window, stride, padding, ceil_mode=True)
    else:
        found = F.avg_pool1d(
            given, window, stride, padding, ceil_mode=True, count_include_pad=kind == "avg"
        )
    agrees(found, left_over(wide(x), window, stride, padding, kind))
