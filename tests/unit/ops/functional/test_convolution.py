"""Convolutions and their transposes against loops over windows in f64."""

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
from weft import functional
from weft.foundation.dtypes import DType

F: Any = functional
"""Arrays and wrong arguments are tried too, which the types would not allow."""

Shape = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]

LAYOUTS = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}


def to_last(x: Array) -> Array:
    return np.moveaxis(x, 1, -1)


def loop_conv(
    x: Array, weight: Array, stride: Shape, padding: Pads, dilation: Shape, groups: int
) -> Array:
    """Channels first, one output position at a time."""
    spatial = weight.shape[2:]
    padded = np.pad(wide(x), ((0, 0), (0, 0), *padding))
    spans = [(k - 1) * d + 1 for k, d in zip(spatial, dilation, strict=True)]
    sizes = [
        (n - span) // s + 1 for n, span, s in zip(padded.shape[2:], spans, stride, strict=True)
    ]
    outputs, inputs = weight.shape[:2]
    out = np.zeros((x.shape[0], outputs, *sizes))
    for place in itertools.product(*map(range, sizes)):
        cut = tuple(
            slice(p * s, p * s + span, d)
            for p, s, span, d in zip(place, stride, spans, dilation, strict=True)
        )
        window = padded[(slice(None), slice(None), *cut)]
        for o in range(outputs):
            first = o // (outputs // groups) * inputs
            part = window[:, first : first + inputs]
            at: Any = (slice(None), o, *place)
            out[at] = (part * wide(weight)[o]).sum(tuple(range(1, part.ndim)))
    return out


def loop_transposed(
    x: Array, weight: Array, stride: Shape, padding: Shape, extra: Shape, dilation: Shape,
    groups: int,
) -> Array:  # fmt: skip
    """Every input element times the window, added where it falls; then the padding cut off."""
    inputs, outputs = weight.shape[:2]
    spans = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilation, strict=True)]
    sizes = [(n - 1) * s + span for n, s, span in zip(x.shape[2:], stride, spans, strict=True)]
    room = [n + e for n, e in zip(sizes, extra, strict=True)]
    out = np.zeros((x.shape[0], outputs * groups, *room))
    for c in range(inputs):
        first = c // (inputs // groups) * outputs
        for place in itertools.product(*map(range, x.shape[2:])):
            cut = tuple(
                slice(p * s, p * s + span, d)
                for p, s, span, d in zip(place, stride, spans, dilation, strict=True)
            )
            at: Any = (slice(None), c, *place)
            element = wide(x)[at].reshape(-1, *[1] * (weight.ndim - 1))
            out[(slice(None), slice(first, first + outputs), *cut)] += element * wide(weight)[c]
    kept = tuple(slice(p, n - p) for p, n in zip(padding, room, strict=True))
    return out[(slice(None), slice(None), *kept)]


@dataclass(frozen=True)
class Conv:
    x: Shape
    weight: Shape
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1
    bias: bool = False

    @property
    def spatial(self) -> int:
        return len(self.x) - 2


def several(value: Any, count: int) -> tuple[Any, ...]:
    return (value,) * count if isinstance(value, int) else tuple(value)


CONVS = [
    Conv((2, 3, 7), (4, 3, 3)),
    Conv((2, 4, 9), (6, 2, 3), stride=2, padding=1, groups=2, bias=True),
    Conv((1, 2, 8), (2, 2, 3), padding=((0, 2),), dilation=2),
    Conv((2, 3, 5, 6), (4, 3, 3, 2), bias=True),
    Conv((1, 4, 7, 5), (4, 1, 3, 3), padding=1, groups=4),
    Conv((1, 2, 8, 9), (3, 2, 3, 3), stride=(2, 3), padding=(1, 2), dilation=(2, 1)),
    Conv((1, 2, 6, 6), (2, 2, 2, 2), padding=((1, 0), (0, 2))),
    Conv((0, 3, 5, 5), (4, 3, 3, 3)),
    Conv((1, 3, 4, 4), (2, 3, 1, 1)),
    Conv((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), stride=2, padding=1, bias=True),
]


@each("dtype", DTYPES)
@each("last", [False, True])
@each("implementation", ["default", "whole"])
@each("case", CONVS)
def test_convolution(case: Conv, implementation: str, last: bool, dtype: DType) -> None:
    n = case.spatial
    x, weight = data(case.x, dtype), data(case.weight, dtype, 1)
    shift = data(case.weight[:1], dtype, 2) if case.bias else None
    pads = tuple((p, p) if isinstance(p, int) else p for p in several(case.padding, n))
    exact = loop_conv(
        x, weight, several(case.stride, n), pads, several(case.dilation, n), case.groups
    )
    if shift is not None:
        exact += wide(shift).reshape(1, -1, *[1] * n)
    function: Callable[..., Any] = getattr(F, f"conv{n}d")
    with F.overrides({f"conv{n}d": f"force={implementation}"}):
        found = function(
            weft.asarray(to_last(x) if last else x),
            weft.asarray(weight),
            None if shift is None else weft.asarray(shift),
            case.stride,
            case.padding,
            case.dilation,
            case.groups,
            layout=LAYOUTS[n][last],
        )
    agrees(found, to_last(exact) if last else exact, dtype, ulps=12)


@pytest.mark.parametrize(("size", "window", "stride"), [(7, 3, 1), (7, 4, 2), (8, 3, 2), (5, 2, 3)])
def test_same_padding_keeps_the_size_by_the_stride(size: int, window: int, stride: int) -> None:
    x, weight = data((1, 2, size)), data((3, 2, window), seed=1)
    total = max((-(-size // stride) - 1) * stride + window - size, 0)
    pads = ((total // 2, total - total // 2),)
    found = F.conv1d(x, weight, stride=stride, padding="same")
    assert found.shape[2] == -(-size // stride)
    agrees(found, loop_conv(x, weight, (stride,), pads, (1,), 1))


@dataclass(frozen=True)
class Transposed:
    x: Shape
    weight: Shape
    stride: Any = 1
    padding: Any = 0
    output_padding: Any = 0
    groups: int = 1
    dilation: Any = 1
    bias: bool = False


TRANSPOSED = [
    Transposed((2, 3, 5), (3, 4, 3)),
    Transposed((2, 4, 5), (4, 2, 3), stride=2, padding=1, output_padding=1, groups=2, bias=True),
    Transposed((1, 2, 5), (2, 3, 2), padding=3, dilation=2, stride=3),
    Transposed((1, 3, 4, 5), (3, 2, 3, 2), stride=(2, 1), padding=(1, 0), bias=True),
    Transposed((1, 4, 3, 3), (4, 1, 2, 2), stride=2, groups=4, output_padding=(1, 0)),
    Transposed((1, 2, 2, 3, 2), (2, 3, 2, 2, 2), stride=2, padding=1),
]


@each("dtype", DTYPES)
@each("last", [False, True])
@each("case", TRANSPOSED)
def test_transposed_convolution(case: Transposed, last: bool, dtype: DType) -> None:
    n = len(case.x) - 2
    x, weight = data(case.x, dtype), data(case.weight, dtype, 1)
    shift = data((case.weight[1] * case.groups,), dtype, 2) if case.bias else None
    exact = loop_transposed(
        x, weight, several(case.stride, n), several(case.padding, n),
        several(case.output_padding, n), several(case.dilation, n), case.groups,
    )  # fmt: skip
    if shift is not None:
        exact += wide(shift).reshape(1, -1, *[1] * n)
    function: Callable[..., Any] = getattr(F, f"conv_transpose{n}d")
    found = function(
        weft.asarray(to_last(x) if last else x),
        weft.asarray(weight),
        None if shift is None else weft.asarray(shift),
        case.stride,
        case.padding,
        case.output_padding,
        case.groups,
        case.dilation,
        layout=LAYOUTS[n][last],
    )
    agrees(found, to_last(exact) if last else exact, dtype, ulps=12)
