"""Sorting and searching against Python's stable sorted() with the key (is NaN, value)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.support.cases import each
from tests.support.one_op import Array, apply, bits, by_name, random_array
from weft.foundation.dtypes import F32, FLOATS, SI4, SI32, SI64, DType
from weft.ptir.ops.ordering import Argsort, Searchsorted, Side, Sort, TopK

LINES: list[tuple[tuple[int, ...], int]] = [
    ((1,), 0),
    ((17,), 0),
    ((17,), -1),
    ((3, 8), 1),
    ((8, 3), 0),
    ((2, 9, 3), -2),
    ((0,), 0),
    ((0, 4), 1),
    ((4, 0), 1),
]


def values_with_ties(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Few distinct values; floats also hold NaN, infinities and zeros of both signs."""
    if not dtype.is_float:
        x = random_array(dtype, shape, seed)
        if dtype.bits >= 8:
            x = x % dtype.numpy.type(5)
        return np.asarray(x).astype(dtype.numpy)
    rng = np.random.default_rng([seed, *shape])
    top = 448.0 if dtype.name == "fp8_e4m3" else np.inf
    return np.asarray(
        rng.choice([0.0, -0.0, 1.0, -1.0, 2.0, np.nan, top, -top], shape), np.float32
    ).astype(dtype.numpy)


def key(value: Any) -> tuple[bool, float]:
    number = int(value) if "int" in str(type(value)) else float(value)
    missing = math.isnan(number)
    return missing, 0 if missing else number


def order_of(line: Array, descending: bool) -> list[int]:
    return sorted(range(len(line)), key=lambda i: key(line[i]), reverse=descending)


def loop_order(x: Array, axis: int, descending: bool) -> Array:
    moved = np.moveaxis(x, axis, -1)
    result = np.zeros(moved.shape, np.int64)
    for index in np.ndindex(moved.shape[:-1]):
        result[index] = order_of(moved[index], descending)
    return np.moveaxis(result, -1, axis)


def picked(x: Array, order: Array, axis: int) -> Array:
    moved, chosen = np.moveaxis(x, axis, -1), np.moveaxis(order, axis, -1)
    result = np.zeros(chosen.shape, x.dtype)
    for index in np.ndindex(chosen.shape):
        result[index] = moved[(*index[:-1], chosen[index])]
    return np.moveaxis(result, -1, axis)


def same(out: Array, want: Array) -> None:
    assert out.dtype == want.dtype
    assert out.shape == want.shape
    assert bits(out) == bits(want)


@each("dtype", [F32, SI4])
@each(("shape", "axis"), LINES)
@each("largest", [False, True])
def test_top_k(dtype: DType, shape: tuple[int, ...], axis: int, largest: bool) -> None:
    x = values_with_ties(dtype, shape, seed=1)
    extent = shape[axis]
    for k in {0, 1, extent // 2, extent} & set(range(extent + 1)):
        order = np.take(loop_order(x, axis, largest), range(k), axis=axis)
        for index in (SI32, SI64):
            values, positions = apply(TopK(k, axis, largest, index), x)
            same(values, picked(x, order, axis))
            same(positions, np.asarray(order.astype(index.numpy)))


@each("dtype", by_name(FLOATS))
def test_nan_is_largest_and_ties_go_to_the_lower_index(dtype: DType) -> None:
    x = np.asarray([2.0, np.nan, 3.0, -1.0, np.nan, 3.0]).astype(dtype.numpy)
    assert apply(TopK(4, 0, True, SI32), x)[1].tolist() == [1, 4, 2, 5]
    assert apply(TopK(4, 0, False, SI32), x)[1].tolist() == [3, 0, 2, 5]
    assert apply(Argsort(0, False, SI32), x).tolist() == [3, 0, 2, 5, 1, 4]
    assert apply(Argsort(0, True, SI32), x).tolist() == [1, 4, 2, 5, 0, 3]


def test_zeros_of_both_signs_are_ties_in_place() -> None:
    x = np.asarray([0.0, -0.0, 0.0, -0.0, -1.0], np.float32)
    ascending = np.asarray([-1.0, 0.0, -0.0, 0.0, -0.0], np.float32)
    same(apply(Sort(0), x), ascending)
    descending = np.asarray([0.0, -0.0, 0.0, -0.0, -1.0], np.float32)
    same(apply(Sort(0, True), x), descending)


def test_long_lines_stay_stable() -> None:
    x = np.random.default_rng(2).integers(0, 9, 3000).astype(np.float32)
    for descending in (False, True):
        order = order_of(x, descending)
        assert apply(Argsort(0, descending, SI64), x).tolist() == order


def test_views_are_sorted_as_they_lie() -> None:
    base = values_with_ties(F32, (6, 8))
    for x in (base.T, base[::2, ::-1], np.broadcast_to(base[0], (3, 8))):
        want = loop_order(x, 1, True)
        same(apply(Argsort(1, True, SI64), x), want)
        same(apply(Sort(1, True), x), picked(x, want, 1))


def test_searchsorted_of_something_unsorted_stays_in_range() -> None:
    line = np.asarray([5.0, 1.0, np.nan, 3.0], np.float32)
    out = apply(Searchsorted(Side.LEFT, SI32), line, np.asarray([0.0, 4.0, np.nan], np.float32))
    assert ((out >= 0) & (out <= 4)).all()
