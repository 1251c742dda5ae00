"""Reductions, against NumPy: dtypes, axes, keepdims, empty tensors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft
from tests.support.cases import each
from tests.unit.ops.array.arrays import (
    ALL,
    COMPLEX,
    FLOATS,
    INTEGERS,
    NUMBERS,
    agrees,
    data,
    dtype_of,
)
from weft.foundation.errors import SpecViolation

AXES: list[Any] = [None, 0, 1, -1, (0, 2), (), (0, 1, 2)]
SHAPES = [(2, 3, 4), (3, 0, 2), (1, 1, 1)]


def total(dtype: str) -> str:
    """The standard's dtype of a sum: 64 bits for integers, its own for floats."""
    kind = np.dtype(dtype).kind
    return {"b": "int64", "i": "int64", "u": "uint64"}.get(kind, dtype)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", ["sum", "prod"])
def test_sums_and_products(name: str, dtype: str) -> None:
    for shape in SHAPES:
        x = data(dtype, shape)
        for axis in AXES:
            for keepdims in (False, True):
                expected = getattr(np, name)(x.astype(total(dtype)), axis=axis, keepdims=keepdims)
                found = getattr(weft, name)(weft.asarray(x), axis=axis, keepdims=keepdims)
                if np.dtype(dtype).kind in "fc":
                    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)
                    assert found.dtype is dtype_of(dtype)
                else:
                    agrees(found, expected, total(dtype))


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [("int8", "int16"), ("int8", "float32"), ("float32", "float64"), ("bool", "int32"),
     ("float64", "float32"), ("int32", "int8"), ("float32", "complex64"), ("uint8", "int64")],
)  # fmt: skip
def test_a_dtype_may_be_asked_for(dtype: str, wanted: str) -> None:
    x = np.abs(data(dtype, (3, 2)))
    agrees(weft.sum(weft.asarray(x), dtype=dtype_of(wanted)), x.astype(wanted).sum(), wanted)
    agrees(weft.prod(weft.asarray(x), axis=0, dtype=dtype_of(wanted)), x.astype(wanted).prod(0),
           wanted)  # fmt: skip


def test_narrow_floats_accumulate_in_f32() -> None:
    x = weft.ones(5000, dtype=weft.bfloat16)
    assert weft.sum(x).item() == ml_dtypes.bfloat16(5000)
    assert weft.mean(weft.full(70_000, 2.0, dtype=weft.float16)).item() == 2.0
    assert weft.var(weft.full(70_000, 2.0, dtype=weft.float16)).item() == 0.0
    assert weft.mean(x).dtype is weft.bfloat16


@each("dtype", ["bool", *INTEGERS, *FLOATS])
@each("name", ["max", "min"])
def test_extremes(name: str, dtype: str) -> None:
    x = data(dtype, (2, 3, 4))
    for axis in AXES:
        for keepdims in (False, True):
            expected = getattr(np, name)(x, axis=axis, keepdims=keepdims)
            agrees(getattr(weft, name)(weft.asarray(x), axis=axis, keepdims=keepdims), expected)


def test_extremes_of_nan_and_of_nothing() -> None:
    assert np.isnan(weft.max(weft.asarray([1.0, float("nan")])).item())
    with pytest.raises(SpecViolation, match=r"\[max\] x \(3, 0, 2\) has no elements along"):
        weft.max(weft.zeros((3, 0, 2)))
    agrees(weft.max(weft.zeros((3, 0, 2)), axis=0), np.zeros((0, 2)), "float32")


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
def test_mean(dtype: str) -> None:
    x = data(dtype, (2, 3, 4))
    for axis in AXES:
        for keepdims in (False, True):
            expected = np.mean(x, axis=axis, keepdims=keepdims)
            agrees(weft.mean(weft.asarray(x), axis=axis, keepdims=keepdims), expected, dtype)


def test_means_of_equal_numbers_are_exact_and_integers_have_means() -> None:
    for count in (3, 7, 49, 1000):
        assert weft.mean(weft.full(count, 0.3)).item() == pytest.approx(0.3, rel=1e-6)
        assert weft.mean(weft.ones(count)).item() == 1.0
    agrees(weft.mean(weft.arange(4)), 1.5, "float32")
    assert np.isnan(weft.mean(weft.zeros(0)).item())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("correction", [0, 1, 0.5, 2])
def test_deviations(dtype: str, correction: float) -> None:
    x = data(dtype, (3, 4, 5))
    for axis in [None, 0, -1, (0, 2)]:
        for keepdims in (False, True):
            options: Any = {"axis": axis, "keepdims": keepdims}
            for name in ("var", "std"):
                expected = getattr(np, name)(x, ddof=correction, **options)
                found = getattr(weft, name)(weft.asarray(x), correction=correction, **options)
                agrees(found, expected, dtype)


def test_deviations_with_nothing_left_to_divide_by() -> None:
    assert np.isnan(weft.var(weft.ones(1), correction=1).item())
    assert np.isinf(weft.var(weft.asarray([1.0, 2.0]), correction=3).item())
    with pytest.raises(SpecViolation, match="complex numbers"):
        weft.var(weft.asarray([1j]))


def test_deviations_do_not_cancel() -> None:
    x = np.asarray([1e8, 1e8 + 1, 1e8 + 2])
    agrees(weft.var(weft.asarray(x)), np.var(x))


@each("dtype", NUMBERS)
@each("initial", [False, True])
def test_running_sums_and_products(dtype: str, initial: bool) -> None:
    x = data(dtype, (3, 4))
    for axis in (0, 1, -1):
        sums = np.cumsum(x.astype(total(dtype)), axis=axis)
        products = np.cumprod(x.astype(total(dtype)), axis=axis)
        if initial:
            shape = [1 if a == axis % 2 else n for a, n in enumerate(x.shape)]
            sums = np.concatenate([np.zeros(shape, sums.dtype), sums], axis)
            products = np.concatenate([np.ones(shape, products.dtype), products], axis)
        t = weft.asarray(x)
        agrees(weft.cumulative_sum(t, axis=axis, include_initial=initial), sums)
        agrees(weft.cumulative_prod(t, axis=axis, include_initial=initial), products)


def test_running_sums_need_an_axis() -> None:
    agrees(weft.cumulative_sum(weft.arange(4)), [0, 1, 3, 6], "int64")
    agrees(weft.cumulative_sum(weft.arange(4), dtype=weft.float64), [0, 1, 3, 6], "float64")
    with pytest.raises(SpecViolation, match="the axis must be named"):
        weft.cumulative_sum(weft.zeros((2, 2)))


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "var", "std", "all", "any"])
def test_axes_out_of_range_or_named_twice(name: str) -> None:
    x = weft.zeros((2, 3))
    with pytest.raises(IndexError, match=rf"\[{name}\] axis 2 is out of range"):
        getattr(weft, name)(x, axis=2)
    with pytest.raises(SpecViolation, match="names an axis twice"):
        getattr(weft, name)(x, axis=(0, -2))
