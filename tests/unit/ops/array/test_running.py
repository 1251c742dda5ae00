"""Running extremes and sums of exponentials, windows, and quotients, against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import weft

w: Any = weft


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cummax_and_cummin(axis: int) -> None:
    x = np.round(np.random.default_rng(0).normal(size=(5, 6)) * 2).astype(np.float32)
    for name, best in (("cummax", np.maximum), ("cummin", np.minimum)):
        values, places = getattr(w, name)(w.asarray(x), axis=axis)
        np.testing.assert_array_equal(values.numpy(), best.accumulate(x, axis))
        taken = np.take_along_axis(x, places.numpy(), axis)
        np.testing.assert_array_equal(taken, values.numpy())
        assert (
            places.numpy()
            >= np.take_along_axis(places.numpy(), np.zeros_like(places.numpy()), axis)
        ).all()


def test_the_last_of_equal_elements_is_named_and_nan_stays() -> None:
    values, places = w.cummax(w.asarray([1.0, 3.0, 3.0, 2.0, math.nan, 9.0]))
    np.testing.assert_array_equal(places.numpy(), [0, 1, 2, 2, 4, 4])
    np.testing.assert_array_equal(values.numpy(), [1, 3, 3, 3, math.nan, math.nan])


def test_cummax_of_integers_and_nothing() -> None:
    values, places = w.cummax(w.asarray([3, -1, 5]))
    assert values.numpy().tolist() == [3, 3, 5]
    assert places.numpy().tolist() == [0, 0, 2]
    assert w.cummin(w.zeros((2, 0)))[0].shape == (2, 0)


def test_logcumsumexp_keeps_what_is_small() -> None:
    x = np.array([0.0, 100.0, -800.0, 800.0, -math.inf])
    expected = np.logaddexp.accumulate(x)
    np.testing.assert_allclose(w.logcumsumexp(w.asarray(x)).numpy(), expected, rtol=1e-15)
    y = np.random.default_rng(0).normal(size=(3, 17)) * 10
    found = w.logcumsumexp(w.asarray(y), axis=1)
    np.testing.assert_allclose(found.numpy(), np.logaddexp.accumulate(y, 1), rtol=1e-14)


def test_the_gradient_of_logcumsumexp() -> None:
    x = np.random.default_rng(0).normal(size=9)
    found = w.grad(lambda x: w.sum(w.logcumsumexp(x)))(w.asarray(x)).numpy()
    total = np.logaddexp.accumulate(x)
    expected = [np.exp(x[i] - total[i:]).sum() for i in range(9)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_sliding_window() -> None:
    x = np.arange(24.0).reshape(4, 6)
    windows = np.lib.stride_tricks.sliding_window_view
    for size, step, axis in ((2, 1, 1), (3, 2, 0), (6, 1, -1), (0, 3, 1)):
        expected = (
            windows(x, size, axis)[:: step if axis == 0 else 1] if size else np.zeros((4, 3, 0))
        )
        found = w.sliding_window(w.asarray(x), size, step, axis=axis).numpy()
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(IndexError, match="no windows of 7"):
        w.sliding_window(w.asarray(x), 7)


def test_quotients_with_rounding() -> None:
    x, y = np.array([5, 6, -7, 7, -5]), np.array([2, -4, 2, -2, -3])
    for kind in (np.int32, np.float32):
        a, b = w.asarray(x.astype(kind)), w.asarray(y.astype(kind))
        trunc = w.divide(a, b, rounding="trunc")
        np.testing.assert_array_equal(trunc.numpy(), np.trunc(x / y).astype(kind))
        np.testing.assert_array_equal(w.divide(a, b, rounding="floor").numpy(), x // y)
        np.testing.assert_array_equal(w.fmod(a, b).numpy(), np.fmod(x, y))
    with pytest.raises(weft.WeftError, match="'trunc', 'floor'"):
        w.divide(w.asarray([1.0]), 2.0, rounding="up")


def test_lerp_meets_both_ends() -> None:
    x, y = w.asarray([1.0, 2.0]), w.asarray([1e8, -3.0])
    for weight, expected in ((0.0, [1.0, 2.0]), (1.0, [1e8, -3.0]), (0.25, [25000000.75, 0.75])):
        np.testing.assert_allclose(w.lerp(x, y, weight).numpy(), expected, rtol=1e-6)
    both = w.lerp(x, y, w.asarray([0.0, 1.0]))
    np.testing.assert_array_equal(both.numpy(), [1.0, -3.0])


def test_exp2_and_bits() -> None:
    x = np.array([0.5, -3.0, 10.0], np.float32)
    np.testing.assert_allclose(w.exp2(w.asarray(x)).numpy(), np.exp2(x), rtol=1e-6)
    np.testing.assert_array_equal(w.bitcast(w.asarray(x), w.int32).numpy(), x.view(np.int32))
    with pytest.raises(weft.WeftError, match="32 bits"):
        w.bitcast(w.asarray(x), w.int64)


def test_tuples_inside_an_index_are_positions() -> None:
    x = np.arange(24).reshape(2, 3, 4)
    np.testing.assert_array_equal(w.asarray(x)[:, (2, 0)].numpy(), x[:, [2, 0]])
    np.testing.assert_array_equal(w.asarray(x)[((1,), (0,)), 1].numpy(), x[[[1], [0]], 1])


def test_what_is_refused_at_once() -> None:
    with pytest.raises(weft.SpecViolation, match="negative power"):
        w.asarray([1, 2]) ** -2
    with pytest.raises(weft.SpecViolation, match="truth values"):
        w.linspace(0, 1, 3, dtype=w.bool)
