"""Window ops against loops over every window."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.support.cases import each
from tests.support.one_op import Array, apply, assert_ulp, bits, by_name, infer, random_array
from weft.foundation.dtypes import (
    BF16,
    BOOL,
    CF32,
    CF64,
    COMPLEX,
    F16,
    F32,
    F64,
    FLOATS,
    FP8_E4M3,
    FP8_E5M2,
    INTEGERS,
    SI4,
    SI8,
    SI32,
    UI4,
    UI8,
    UI32,
    DType,
    as_dtype,
)
from weft.ptir.literal import scalar_literal
from weft.ptir.ops.reduce_kind import ReduceKind
from weft.ptir.ops.window import ExtractPatches, ReduceWindow
from weft.ptir.schema import USIZE_MAX
from weft.ptir.types import UNKNOWN, tensor

Shape = tuple[int, ...]
FEW = [F32, SI4]
"""One dtype of NumPy's own and one of a few bits: every dtype is in the table of conformance."""


@dataclass(frozen=True)
class Axis:
    """One axis of a random window: sizes that fit, though some places hold no element."""

    extent: int
    window: int
    stride: int
    dilation: int
    low: int
    high: int
    base: int = 1

    @property
    def places(self) -> int:
        spread = (self.extent - 1) * self.base + 1 if self.extent else 0
        return self.low + spread + self.high

    @property
    def fits(self) -> bool:
        return (self.window - 1) * self.dilation + 1 <= self.places

    @property
    def count(self) -> int:
        """Windows, counted one by one."""
        starts = range(0, self.places, self.stride)
        return sum(s + (self.window - 1) * self.dilation < self.places for s in starts)

    def element(self, out: int, inside: int) -> int | None:
        """The index in x that a window covers, if there is an element at that place."""
        place = out * self.stride + inside * self.dilation - self.low
        index, hole = divmod(place, self.base)
        return index if hole == 0 and 0 <= index < self.extent else None


def random_axis(rng: np.random.Generator, *, base: bool, empty: bool = True) -> Axis:
    while True:
        extent = int(rng.integers(0 if empty else 1, 6))
        window, stride, dilation = (int(n) for n in rng.integers(1, 4, 3))
        low, high = (int(n) for n in rng.integers(0, 4, 2) * rng.integers(2))
        step = int(rng.integers(1, 4)) if base else 1
        axis = Axis(extent, window, stride, dilation, low, high, step)
        if axis.fits:
            return axis


PLAIN = Axis(2, 1, 1, 1, 0, 0)


def covered(axes: list[Axis], out: Shape, inside: Shape) -> Shape | None:
    """The element of x at one place of one window."""
    index = [axis.element(o, i) for axis, o, i in zip(axes, out, inside, strict=True)]
    return None if None in index else tuple(i for i in index if i is not None)


def strided(x: Array) -> Array:
    """The same elements, read-only and not contiguous."""
    if not x.ndim:
        return x
    gaps = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    gaps[..., ::2] = x
    gaps.flags.writeable = False
    return gaps[..., ::2]


FILLS: dict[DType, Any] = {
    **dict.fromkeys(BOOL, True),
    **dict.fromkeys(INTEGERS, 5),
    **dict.fromkeys(FLOATS, -1.5),
    **dict.fromkeys(COMPLEX, 1.5 - 2j),
}


def patches_op(axes: list[Axis], fill: Any, dtype: DType) -> ExtractPatches:
    return ExtractPatches(
        tuple(a.window for a in axes),
        tuple(a.stride for a in axes),
        tuple(a.dilation for a in axes),
        tuple((a.low, a.high) for a in axes),
        scalar_literal(fill, dtype),
    )


def patches(x: Array, axes: list[Axis], fill: Any) -> Array:
    batch, channels = x.shape[0], x.shape[-1]
    windows = list(itertools.product(*(range(a.window) for a in axes)))
    counts = tuple(a.count for a in axes)
    result = np.zeros((batch, *counts, len(windows) * channels), x.dtype)
    for n, *out in np.ndindex(batch, *counts):
        for position, inside in enumerate(windows):
            source = covered(axes, tuple(out), inside)
            for c in range(channels):
                value = fill if source is None else x[(n, *source, c)]
                result[(n, *out, position * channels + c)] = value
    return result


@each("dtype", FEW)
def test_extract_patches(dtype: DType) -> None:
    rng = np.random.default_rng(dtype.index)
    for turn in range(25):
        axes = [random_axis(rng, base=False) for _ in range(turn % 4)]
        batch, channels = (int(n) for n in rng.integers(0 if turn > 20 else 1, 3, 2))
        x = random_array(dtype, (batch, *(a.extent for a in axes), channels), turn)
        op = patches_op(axes, FILLS[dtype], dtype)
        expected = patches(x, axes, FILLS[dtype])
        for view in (x, strided(x)):
            out = apply(op, view)
            assert out.shape == expected.shape
            assert bits(out) == bits(expected)


def test_extract_patches_is_convolution() -> None:
    """3x3 patches times a flattened kernel are the textbook convolution."""
    x, kernel = random_array(F64, (2, 6, 5, 3)), random_array(F64, (3, 3, 3, 4), 1)
    axis = Axis(0, 3, 2, 1, 1, 1)
    rows = apply(patches_op([axis, axis], 0.0, F64), x)
    out = rows @ kernel.reshape(-1, 4)
    around = np.zeros((2, 8, 7, 3))
    around[:, 1:7, 1:6] = x
    for n, i, j, c in np.ndindex(2, 3, 3, 4):
        exact = np.sum(around[n, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3] * kernel[..., c])
        assert out[n, i, j, c] == pytest.approx(exact, rel=1e-12)


def test_extract_patches_of_an_empty_axis_is_empty() -> None:
    axis = Axis(0, 3, 1, 1, 0, 0)
    out = apply(patches_op([axis], 0.0, F32), np.zeros((2, 0, 4), np.float32))
    assert out.shape == (2, 0, 12)


def test_extract_patches_of_many_trivial_axes() -> None:
    """More axes than NumPy could show at once."""
    axes = [Axis(1, 1, USIZE_MAX, USIZE_MAX, 0, 0)] * 40 + [Axis(4, 2, 2, 1, 0, 0)]
    x = np.arange(4, dtype=np.float32).reshape(1, *([1] * 40), 4, 1)
    assert apply(patches_op(axes, 0.0, F32), x).reshape(2, 2).tolist() == [[0, 1], [2, 3]]


def window_op(axes: list[Axis], kind: ReduceKind, accum: DType | None = None) -> ReduceWindow:
    return ReduceWindow(
        tuple(a.window for a in axes),
        tuple(a.stride for a in axes),
        tuple((a.low, a.high) for a in axes),
        tuple(a.base for a in axes),
        tuple(a.dilation for a in axes),
        kind,
        accum,
    )


def combined(kind: ReduceKind, values: list[Any], dtype: DType) -> Any:
    """The reduction of one window in exact arithmetic; sums of floats in f64."""
    if kind is ReduceKind.SUM:
        total = sum(values)
        if not dtype.is_integer:
            return total
        low = total % (1 << dtype.bits)
        return low - (1 << dtype.bits) if dtype.is_signed and low > dtype.highest else low
    if any(isinstance(v, float) and math.isnan(v) for v in values):
        return math.nan
    if kind is ReduceKind.MAX:
        return max(values, default=dtype.lowest)
    return min(values, default=dtype.highest)


def reduced(x: Array, axes: list[Axis], kind: ReduceKind) -> dict[Shape, Any]:
    dtype = as_dtype(x.dtype)
    result = {}
    for out in np.ndindex(*(a.count for a in axes)):
        values = []
        for inside in itertools.product(*(range(a.window) for a in axes)):
            source = covered(axes, out, inside)
            if source is not None:
                values.append(x[source].item())
        result[out] = combined(kind, values, dtype)
    return result


def wide_array(values: dict[Shape, Any], shape: Shape, dtype: DType) -> Array:
    """Exact values: Python integers, or floats rounded to a dtype that need not hold every sum."""
    result = np.zeros(shape, object if dtype.is_integer else np.complex128)
    for index, value in values.items():
        result[index] = value
    if dtype.is_float:
        return result.real.astype(np.float32).astype(dtype.numpy).astype(np.complex128)
    return result


def whole(dtype: DType, shape: Shape, seed: int) -> Array:
    """Small whole numbers for floats (sums are exact), the whole range for integers."""
    if not (dtype.is_float or dtype.is_complex):
        return random_array(dtype, shape, seed)
    rng = np.random.default_rng([seed, *shape])
    values = rng.integers(-2, 3, shape) + 1j * rng.integers(-2, 3, shape)
    return np.asarray(values if dtype.is_complex else values.real).astype(dtype.numpy)


@each("kind", ReduceKind)
@each("dtype", FEW)
def test_reduce_window(kind: ReduceKind, dtype: DType) -> None:
    rng = np.random.default_rng(dtype.index)
    for turn in range(12):
        axes = [random_axis(rng, base=True) for _ in range(turn % 4)]
        x = whole(dtype, tuple(a.extent for a in axes), turn)
        shape = tuple(a.count for a in axes)
        expected = wide_array(reduced(x, axes, kind), shape, dtype)
        for view in (x, strided(x)):
            out = apply(window_op(axes, kind), view)
            found = out.astype(object if dtype.is_integer else np.complex128)
            np.testing.assert_array_equal(found, expected)


@each("dtype", by_name(FLOATS))
def test_sums_of_floats_are_rounded_once(dtype: DType) -> None:
    x = np.abs(random_array(dtype, (6, 7), scale=1.0))
    axes = [Axis(6, 3, 1, 1, 1, 1), Axis(7, 2, 2, 2, 0, 1)]
    exact = np.zeros((6, 3))
    for index, value in reduced(x, axes, ReduceKind.SUM).items():
        exact[index] = value
    out = apply(window_op(axes, ReduceKind.SUM), x)
    # Half an ulp for the one rounding, and what six f32 additions may add where that is coarser.
    assert_ulp(out, exact, 0.501 if dtype.bits < 32 else 6)


@each("dtype", by_name(FLOATS))
@each("kind", [ReduceKind.MAX, ReduceKind.MIN])
def test_extremes_propagate_nan(dtype: DType, kind: ReduceKind) -> None:
    x = np.array([1.0, np.nan, 2.0, 3.0, -1.0]).astype(dtype.numpy)
    axes = [Axis(5, 2, 1, 1, 0, 1)]
    expected = [reduced(x, axes, kind)[(i,)] for i in range(5)]
    assert [math.isnan(v) for v in expected] == [True, True, False, False, False]
    np.testing.assert_array_equal(apply(window_op(axes, kind), x).astype(float), expected)


IDENTITIES: list[tuple[ReduceKind, DType, Any]] = [
    (ReduceKind.SUM, F32, 0.0),
    (ReduceKind.MAX, F32, -math.inf),
    (ReduceKind.MIN, F32, math.inf),
    (ReduceKind.MAX, BF16, -math.inf),
    (ReduceKind.MAX, FP8_E5M2, -math.inf),
    (ReduceKind.MAX, FP8_E4M3, -448.0),
    (ReduceKind.MIN, FP8_E4M3, 448.0),
    (ReduceKind.MAX, SI4, -8),
    (ReduceKind.MIN, UI4, 15),
    (ReduceKind.MAX, SI8, -128),
    (ReduceKind.MIN, UI8, 255),
]


@each(("kind", "dtype", "value"), IDENTITIES)
def test_windows_of_padding_give_the_identity(kind: ReduceKind, dtype: DType, value: Any) -> None:
    wider = {True: F32, False: SI32 if dtype.is_signed else UI32}[dtype.is_float]
    for accum in (None, dtype, wider):
        op = window_op([Axis(1, 1, 1, 1, 1, 1)], kind, accum)
        out = apply(op, random_array(dtype, (1,)))
        assert [out[0], out[2]] == [value, value]


def test_max_and_min_of_i1_are_or_and_and() -> None:
    x = np.array([False, False, True, True, False])
    axes = [Axis(5, 2, 1, 1, 0, 0)]
    assert apply(window_op(axes, ReduceKind.MAX), x).tolist() == [False, True, True, True]
    assert apply(window_op(axes, ReduceKind.MIN), x).tolist() == [False, False, True, False]


def test_integers_wrap_by_themselves_and_saturate_from_an_accumulator() -> None:
    x = np.array([100, 100, -100, -100], np.int8)
    axes = [Axis(4, 2, 2, 1, 0, 0)]
    assert apply(window_op(axes, ReduceKind.SUM), x).tolist() == [-56, 56]
    assert apply(window_op(axes, ReduceKind.SUM, SI8), x).tolist() == [-56, 56]
    assert apply(window_op(axes, ReduceKind.SUM, SI32), x).tolist() == [127, -128]


@pytest.mark.parametrize("dtype", [F16, BF16, FP8_E4M3, FP8_E5M2], ids=str)
def test_a_narrow_accumulator_rounds_each_step(dtype: DType) -> None:
    """Where neighbours are 2 apart, adding 1 to an even number changes nothing."""
    base = float(2**dtype.precision)
    x = np.array([base, 1.0, 1.0, base, 9.0, 1.0, 1.0]).astype(dtype.numpy).reshape(1, 7)
    axes = [PLAIN, Axis(7, 3, 3, 1, 0, 0)]
    for accum in (None, F32):
        out = apply(window_op(axes, ReduceKind.SUM, accum), x)
        assert float(out[0, 0]) == base + 2
    out = apply(window_op(axes, ReduceKind.SUM, dtype), x)
    total = np.zeros((), dtype.numpy)
    for element in x[0, 3:6]:
        total = (total.astype(np.float32) + element.astype(np.float32)).astype(dtype.numpy)
    assert out[0].astype(float).tolist() == [base, float(total)]


def test_a_wider_accumulator_of_complex_and_double() -> None:
    x = np.array([1e8, 1.0, -1e8], np.float32)
    axes = [Axis(3, 3, 1, 1, 0, 0)]
    assert apply(window_op(axes, ReduceKind.SUM, F64), x).tolist() == [1.0]
    z = x + 1j * x
    assert apply(window_op(axes, ReduceKind.SUM, CF64), z.astype(CF32.numpy)).tolist() == [1 + 1j]


def test_large_windows_cost_one_pass_an_axis() -> None:
    """300^4 additions if windows were not separable."""
    x = np.ones((599, 599), np.int32)
    axes = [Axis(599, 300, 1, 1, 0, 0)] * 2
    out = apply(window_op(axes, ReduceKind.SUM), x)
    assert out.shape == (300, 300)
    assert (out == 90000).all()


def test_dynamic_dims() -> None:
    pool = window_op([PLAIN, Axis(0, 3, 1, 1, 1, 1), Axis(0, 2, 2, 1, 0, 0)], ReduceKind.MAX)
    assert infer(pool, tensor("f32", ["?B", "?S", "?T"])) == tensor("f32", ["?B", "?S", UNKNOWN])
    holes = window_op([Axis(0, 1, 1, 1, 0, 0, base=2)], ReduceKind.MAX)
    assert infer(holes, tensor("f32", ["?B"])) == tensor("f32", [UNKNOWN])
    same = patches_op([Axis(0, 3, 1, 2, 2, 2), Axis(0, 3, 2, 1, 1, 1)], 0.0, F32)
    kind = infer(same, tensor("f32", ["?B", "?H", "?W", 4]))
    assert kind == tensor("f32", ["?B", "?H", UNKNOWN, 36])
    rows = tensor("f32", ["?B", "?C"])
    assert infer(patches_op([], 0.0, F32), rows) == rows
    kind = infer(patches_op([Axis(0, 2, 1, 1, 0, 0)], 0.0, F32), tensor("f32", [1, 5, "?C"]))
    assert kind == tensor("f32", [1, 4, UNKNOWN])


def test_huge_attributes_cost_nothing() -> None:
    big = USIZE_MAX
    x = np.ones((1, 1, 1), np.float32)
    far = Axis(1, 1, big, big, 0, 0)
    assert apply(patches_op([far], 0.0, F32), x).tolist() == [[[1.0]]]
    assert apply(window_op([far, far, far], ReduceKind.MAX), x).tolist() == [[[1.0]]]
    wide = window_op([Axis(1, big, big, 1, big, big)], ReduceKind.SUM)
    assert infer(wide, tensor("f32", [1])) == tensor("f32", [2])
