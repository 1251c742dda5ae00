"""Elementwise ops against oracles: Python integers, f64 functions, and rounding by search."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.special

from tests.support.cases import each
from tests.support.one_op import Array, apply, assert_ulp, by_name, random_array
from weft.foundation.dtypes import (
    ANY,
    BF16,
    CF32,
    CF64,
    F16,
    F32,
    F64,
    FLOATS,
    FP8_E4M3,
    FP8_E5M2,
    I1,
    INTEGERS,
    SI32,
    SI64,
    UI64,
    DType,
)
from weft.foundation.errors import SpecViolation
from weft.ptir.ops.elementwise import (
    BinaryFn,
    Cast,
    Compare,
    CompareFn,
    ElementwiseBinary,
    ElementwiseUnary,
    UnaryFn,
)

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.5, math.inf, -math.inf, math.nan, 1e-3, 100.0, 1e-8]


REAL_FUNCTIONS: dict[UnaryFn, Any] = {
    UnaryFn.NEG: np.negative,
    UnaryFn.ABS: np.abs,
    UnaryFn.EXP: np.exp,
    UnaryFn.LOG: np.log,
    UnaryFn.TANH: np.tanh,
    UnaryFn.ERF: scipy.special.erf,
    UnaryFn.RSQRT: lambda x: 1.0 / np.sqrt(x),
    UnaryFn.RECIPROCAL: lambda x: 1.0 / x,
}


@each("dtype", [FP8_E4M3, FP8_E5M2, F16, BF16])
@each("fn", UnaryFn)
def test_unary_every_narrow_value(fn: UnaryFn, dtype: DType) -> None:
    unsigned = np.uint8 if dtype.bits == 8 else np.uint16
    x = np.arange(1 << dtype.bits, dtype=unsigned).view(dtype.numpy)
    with np.errstate(all="ignore"):
        exact = REAL_FUNCTIONS[fn](x.astype(np.float64))
    assert_ulp(apply(ElementwiseUnary(fn), x), exact, 1)


@each("dtype", by_name(INTEGERS))
def test_integer_division_by_zero_is_a_violation(dtype: DType) -> None:
    x = np.ones((2, 3), dtype.numpy)
    y = np.array([[1, 1, 1], [1, 0, 1]]).astype(dtype.numpy)
    with pytest.raises(SpecViolation) as caught:
        apply(ElementwiseBinary(BinaryFn.DIV), x, y)
    assert caught.value.code == "IntegerDivideByZero"
    assert caught.value.why == "the divisor is zero at element 4"


@pytest.mark.parametrize("dtype", [CF32, CF64], ids=str)
def test_complex_values_compare_for_equality_only(dtype: DType) -> None:
    x = np.array([1 + 2j, 1 - 2j, complex(math.nan, 0)], dtype.numpy)
    y = np.array([1 + 2j, 1 + 2j, complex(math.nan, 0)], dtype.numpy)
    assert apply(Compare(op=CompareFn.EQUAL), x, y).tolist() == [True, False, False]
    assert apply(Compare(op=CompareFn.NOT_EQUAL), x, y).tolist() == [False, True, True]
    with pytest.raises(SpecViolation, match="compare is not defined for lhs of dtype"):
        apply(Compare(op=CompareFn.LESS), x, y)


# -- cast ----------------------------------------------------------------------------------------

NARROW = [FP8_E4M3, FP8_E5M2, BF16, F16]


def nearest_even(values: Array, dtype: DType) -> Array:
    """Rounding by search among all finite values of a narrow format, ties to the even pattern."""
    table = finite_values(dtype)
    patterns = np.arange(len(table))
    size = np.abs(values)
    upper = np.clip(np.searchsorted(table, size), 1, len(table) - 1)
    lower = upper - 1
    below, above = size - table[lower], table[upper] - size
    even_low = patterns[lower] % 2 == 0
    choose_low = (below < above) | ((below == above) & even_low)
    result = np.where(choose_low, table[lower], table[upper])
    step = table[-1] - table[-2]
    overflow = size >= table[-1] + step / 2
    exactly_half = size == table[-1] + step / 2
    if patterns[-1] % 2 == 0:
        overflow &= ~exactly_half
    result = np.where(overflow, math.nan if dtype is FP8_E4M3 else math.inf, result)
    result = np.where(np.isinf(size), math.nan if dtype is FP8_E4M3 else math.inf, result)
    return np.copysign(np.where(np.isnan(size), math.nan, result), values)


def finite_values(dtype: DType) -> Array:
    """Every finite value that is not negative, in order; its position is its bit pattern."""
    unsigned: Any = np.uint8 if dtype.bits == 8 else np.uint16
    with np.errstate(all="ignore"):
        patterns = np.arange(1 << (dtype.bits - 1), dtype=unsigned)
        values = patterns.view(dtype.numpy).astype(np.float64)
    return values[np.isfinite(values)]


def halfway_cases(dtype: DType) -> Array:
    """Values of the format, the midpoints of neighbours, and a hair to either side of those."""
    table = finite_values(dtype)
    middle = (table[1:] + table[:-1]) / 2
    top = table[-1] + (table[-1] - table[-2]) / 2
    cases = np.concatenate(
        [table, middle, np.nextafter(middle, np.inf), np.nextafter(middle, 0), SPECIAL, [top]]
    )
    return np.concatenate([cases, -cases])


@each("source", [F64, F32])
@each("target", NARROW)
def test_cast_rounds_to_nearest_even_once(source: DType, target: DType) -> None:
    with np.errstate(all="ignore"):
        x = halfway_cases(target).astype(source.numpy)
    with np.errstate(all="ignore"):
        got = apply(Cast(target), x).astype(np.float64)
        want = nearest_even(x.astype(np.float64), target)
    np.testing.assert_array_equal(got, want)


@each("source", [SI64, UI64, SI32])
@each("target", by_name(FLOATS))
def test_cast_of_large_integers_rounds_once(source: DType, target: DType) -> None:
    numbers: list[int] = [0, 1, int(source.highest), int(source.lowest)]
    for exponent in range(2, source.bits - 1):
        for offset in (-1, 0, 1):
            numbers += [(1 << exponent) + offset]
            for part in (3, 4, 7, 8, 11, 23, 24, 52):
                if exponent > part:
                    numbers += [(1 << exponent) + (1 << (exponent - part)) + offset]
    numbers += [-n for n in numbers if source.is_signed and -n >= int(source.lowest)]
    numbers = [n for n in numbers if int(source.lowest) <= n <= int(source.highest)]
    x = np.array(numbers, source.numpy)
    got = apply(Cast(target), x).astype(np.float64)
    want = [round_integer(n, target) for n in numbers]
    np.testing.assert_array_equal(got, np.array(want))


def round_integer(number: int, dtype: DType) -> float:
    """An integer rounded to `precision` bits, ties to even, with Python integers only."""
    size, precision = abs(number), dtype.precision
    shift = max(0, size.bit_length() - precision)
    quotient, remainder = size >> shift, size & ((1 << shift) - 1)
    half = 1 << (shift - 1) if shift else 1
    if remainder > half or (remainder == half and shift and quotient % 2):
        quotient += 1
    rounded = quotient << shift
    largest = {FP8_E4M3: 448, FP8_E5M2: 57344, F16: 65504}.get(dtype)
    if largest is not None and rounded > largest:
        return math.nan if dtype is FP8_E4M3 else math.copysign(math.inf, number)
    return float(-rounded if number < 0 else rounded)


@each("source", by_name(ANY))
def test_cast_to_i1_is_not_equal_zero(source: DType) -> None:
    x = random_array(source, (30,)).copy()
    x[::3] = np.zeros((), x.dtype)
    got = apply(Cast(I1), x)
    assert got.tolist() == [complex(v) != 0 for v in x.astype(np.complex128)]
    if source.is_float:
        special = np.array([math.nan, -0.0]).astype(source.numpy)
        assert apply(Cast(I1), special).tolist() == [True, False]
    if source.is_complex:
        parts = np.array([1j, -0.0j, complex(0, math.nan), 0, 1], source.numpy)
        assert apply(Cast(I1), parts).tolist() == [True, False, True, False, True]
