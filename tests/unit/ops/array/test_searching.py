"""Searching, sorting, sets and the utility functions, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import each
from tests.unit.ops.array.arrays import ALL, FLOATS, INTEGERS, agrees, data
from weft.foundation.errors import SpecViolation, UserError
from weft.ops.jit import jit

REALS = INTEGERS + FLOATS
NAN = float("nan")

# -- searching -----------------------------------------------------------------------------------


@each("dtype", ["bool", *REALS])
@each("name", ["argmax", "argmin"])
def test_positions_of_extremes(name: str, dtype: str) -> None:
    x = data(dtype, (3, 4, 2))
    for axis in (None, 0, 1, -1):
        for keepdims in (False, True):
            options: Any = {"axis": axis, "keepdims": keepdims}
            expected = getattr(np, name)(x, **options)
            agrees(getattr(weft, name)(weft.asarray(x), **options), expected, "int64")


def test_extremes_of_nan_ties_and_nothing() -> None:
    agrees(weft.argmax(weft.asarray([1.0, NAN, 3.0])), 1, "int64")
    agrees(weft.argmin(weft.asarray([1.0, NAN, 0.0])), 1, "int64")
    agrees(weft.argmax(weft.asarray([1, 3, 3])), 1, "int64")
    agrees(weft.argmax(weft.asarray(5.0)), 0, "int64")
    with pytest.raises(SpecViolation, match=r"\[argmax\] x \(0,\) has no elements along axis 0"):
        weft.argmax(weft.zeros((0,)))


@pytest.mark.parametrize("dtype", ALL)
def test_what_is_not_zero(dtype: str) -> None:
    x = data(dtype, (3, 4)) * np.asarray(data("bool", (3, 4)), dtype)
    t = weft.asarray(x)
    for found, expected in zip(weft.nonzero(t), np.nonzero(x), strict=True):
        agrees(found, expected)
    for axis in (None, 0, (0, 1)):
        agrees(weft.count_nonzero(t, axis=axis), np.count_nonzero(x, axis=axis), "int64")
    agrees(weft.count_nonzero(t, axis=1, keepdims=True), np.count_nonzero(x, 1, keepdims=True))


def test_nonzero_needs_a_rank_and_data() -> None:
    with pytest.raises(SpecViolation, match="has rank 0 and so no positions"):
        weft.nonzero(weft.asarray(1))
    with pytest.raises(SpecViolation, match="known only when the traced function runs") as error:
        jit(lambda x: weft.nonzero(x)[0])(weft.ones(3))
    assert "[nonzero]" in str(error.value)
    assert "test_searching.py" in str(error.value)


@each("dtype", REALS)
@each("side", ["left", "right"])
def test_searchsorted(dtype: str, side: Any) -> None:
    x, values = data(dtype, (8,)), data(dtype, (3, 2), 1)
    order = np.argsort(x)
    values[0, 0] = x[3]
    for shape in ((3, 2), (6,)):
        wanted = np.searchsorted(x[order], values.reshape(shape), side)
        given = weft.asarray(values.reshape(shape))
        agrees(weft.searchsorted(weft.asarray(x[order]), given, side=side), wanted)
        sorter = weft.asarray(order)
        agrees(weft.searchsorted(weft.asarray(x), given, side=side, sorter=sorter), wanted)


@pytest.mark.parametrize("dtype", ALL)
def test_where(dtype: str) -> None:
    for shapes in [((2, 3),) * 3, ((3,), (2, 1), ()), ((), (2,), (1, 1)), ((0,), (1,), ())]:
        c, x, y = data("bool", shapes[0]), data(dtype, shapes[1]), data(dtype, shapes[2], 1)
        agrees(weft.where(*map(weft.asarray, (c, x, y))), np.where(c, x, y))


def test_where_with_numbers() -> None:
    c = np.asarray([True, False])
    t = weft.asarray(c)
    agrees(weft.where(t, weft.asarray([1.5, 2.5]), 0), [1.5, 0.0], "float32")
    agrees(weft.where(t, 1, weft.asarray([1.5, 2.5])), [1.0, 2.5], "float32")
    agrees(weft.where(t, 1, 2.5), [1.0, 2.5], "float32")
    agrees(weft.where(weft.asarray([0, 3]), 1, 2), [2, 1], "int64")
    agrees(weft.where(t, weft.zeros(2, dtype=weft.int8), weft.ones(2, dtype=weft.int16)), [0, 1],
           "int16")  # fmt: skip


# -- sorting -------------------------------------------------------------------------------------


@each("dtype", ["bool", *REALS])
@each("descending", [False, True])
def test_sorting(dtype: str, descending: bool) -> None:
    x = data(dtype, (4, 5))
    for axis in (0, 1, -1):
        expected = np.sort(x, axis=axis)
        expected = np.flip(expected, axis) if descending else expected
        found = weft.sort(weft.asarray(x), axis=axis, descending=descending)
        agrees(found, expected)
        order = weft.argsort(weft.asarray(x), axis=axis, descending=descending)
        agrees(order, order.numpy(), "int64")
        np.testing.assert_array_equal(np.take_along_axis(x, order.numpy(), axis), expected)


def test_equal_elements_keep_their_order_both_ways() -> None:
    x = weft.asarray([2, 1, 2, 1, 2])
    agrees(weft.argsort(x), [1, 3, 0, 2, 4], "int64")
    agrees(weft.argsort(x, descending=True), [0, 2, 4, 1, 3], "int64")
    agrees(weft.sort(weft.asarray([1.0, NAN, 0.0])), [0.0, 1.0, NAN], "float32")


# -- sets ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL)
def test_unique(dtype: str) -> None:
    for shape in [(), (7,), (3, 4), (0,)]:
        x = data(dtype, shape)
        if x.size > 3:
            x.reshape(-1)[2] = x.reshape(-1)[0]
        values, first, inverse, counts = np.unique(
            x, return_index=True, return_inverse=True, return_counts=True
        )
        t = weft.asarray(x)
        agrees(weft.unique_values(t), values)
        everything = weft.unique_all(t)
        agrees(everything.values, values)
        agrees(everything.indices, first)
        agrees(everything.inverse_indices, inverse.reshape(shape))
        agrees(everything.counts, counts)
        agrees(weft.unique_counts(t).counts, counts)
        agrees(weft.unique_inverse(t).inverse_indices, inverse.reshape(shape))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
def test_integers_that_lie_near_one_another_or_far_apart(dtype: str) -> None:
    ends, rng = np.iinfo(dtype), np.random.default_rng(0)
    near = rng.integers(max(ends.min, -100), 100, (20, 30)).astype(dtype)
    far = np.where(near > 50, near.dtype.type(ends.max), near)
    for given in (near, far, np.array([ends.min, ends.max, ends.min], dtype)):
        found = weft.unique_all(weft.asarray(given))
        wanted = np.unique(given, return_index=True, return_inverse=True, return_counts=True)
        for one, other in zip(found, wanted, strict=True):
            assert one.numpy().reshape(-1).tolist() == other.reshape(-1).tolist()


def test_every_nan_is_distinct() -> None:
    found = weft.unique_counts(weft.asarray([NAN, 1.0, NAN, 1.0]))
    agrees(found.values, [1.0, NAN, NAN], "float32")
    agrees(found.counts, [2, 1, 1], "int64")


# -- all, any, diff ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL)
def test_all_and_any(dtype: str) -> None:
    x = data(dtype, (2, 3, 4)) * np.asarray(data("bool", (2, 3, 4)), dtype)
    for axis in (None, 0, -1, (0, 2), ()):
        for keepdims in (False, True):
            options: Any = {"axis": axis, "keepdims": keepdims}
            agrees(weft.all(weft.asarray(x), **options), np.all(x, **options))
            agrees(weft.any(weft.asarray(x), **options), np.any(x, **options))
    empty = weft.zeros((0, 2))
    assert weft.all(empty).item() is True
    assert weft.any(empty).item() is False


@pytest.mark.parametrize("dtype", ALL)
def test_diff(dtype: str) -> None:
    x = data(dtype, (4, 5))
    for axis in (0, -1):
        for n in (0, 1, 2, 4, 6):
            agrees(weft.diff(weft.asarray(x), axis=axis, n=n), np.diff(x, n=n, axis=axis))
    edge = data(dtype, (4, 1), 1)
    agrees(
        weft.diff(weft.asarray(x), prepend=weft.asarray(edge), append=weft.asarray(edge)),
        np.diff(x, prepend=edge, append=edge),
    )


def test_wrong_words() -> None:
    with pytest.raises(UserError, match="side is 'middle'; it can be 'left' or 'right'"):
        weft.searchsorted(weft.arange(3), weft.arange(2), side="middle")
    with pytest.raises(SpecViolation, match="n is -1"):
        weft.diff(weft.arange(3), n=-1)
