"""Elementwise ops against oracles: Python integers, f64 functions, and rounding by search."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.special

from tests.support.cases import each
from tests.support.one_op import Array, apply, assert_ulp, bits, by_name, random_array
from weft.foundation.dtypes import (
    ALL,
    ANY,
    BF16,
    CF32,
    CF64,
    COMPLEX,
    F16,
    F32,
    F64,
    FLOATS,
    FP8_E4M3,
    FP8_E5M2,
    I1,
    INTEGERS,
    ORDERED,
    SI4,
    SI8,
    SI32,
    SI64,
    UI64,
    DType,
)
from weft.foundation.errors import SpecViolation
from weft.ptir.ops.elementwise import (
    BinaryFn,
    Cast,
    Clamp,
    Compare,
    CompareFn,
    ElementwiseBinary,
    ElementwiseUnary,
    Select,
    StopGradient,
    UnaryFn,
)

SHAPES: list[tuple[int, ...]] = [(), (0,), (7,), (3, 1, 5), (2, 0, 3), (64, 33)]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.5, math.inf, -math.inf, math.nan, 1e-3, 100.0, 1e-8]


def floats(dtype: DType, shape: tuple[int, ...]) -> Array:
    """Random values with the special ones among them."""
    values = random_array(dtype, shape).copy()
    flat = values.reshape(-1)
    count = min(flat.size, len(SPECIAL))
    with np.errstate(all="ignore"):
        flat[:count] = np.array(SPECIAL[:count]).astype(dtype.numpy)
    return values


def wrap(value: int, dtype: DType) -> int:
    """A Python integer in two's complement."""
    low = int(dtype.lowest)
    return (value - low) % (1 << dtype.bits) + low


def as_ints(array: Array) -> list[int]:
    return [int(v) for v in array.reshape(-1)]


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


@each("fn", UnaryFn)
@each("dtype", by_name(FLOATS))
@each("shape", SHAPES)
def test_unary_float(fn: UnaryFn, dtype: DType, shape: tuple[int, ...]) -> None:
    x = floats(dtype, shape)
    with np.errstate(all="ignore"):
        exact = REAL_FUNCTIONS[fn](x.astype(np.float64))
    # NumPy's own exp and log of f32 err by up to 3.83 ulp where processors have AVX2.
    analytic = fn in (UnaryFn.EXP, UnaryFn.LOG, UnaryFn.TANH)
    bound = {F64: 3, F32: 4 if analytic else 2}.get(dtype, 2)
    assert_ulp(apply(ElementwiseUnary(fn), x), exact, bound)


@each("dtype", [FP8_E4M3, FP8_E5M2, F16, BF16])
@each("fn", UnaryFn)
def test_unary_every_narrow_value(fn: UnaryFn, dtype: DType) -> None:
    unsigned = np.uint8 if dtype.bits == 8 else np.uint16
    x = np.arange(1 << dtype.bits, dtype=unsigned).view(dtype.numpy)
    with np.errstate(all="ignore"):
        exact = REAL_FUNCTIONS[fn](x.astype(np.float64))
    assert_ulp(apply(ElementwiseUnary(fn), x), exact, 1)


@each("dtype", by_name(COMPLEX))
def test_unary_complex(dtype: DType) -> None:
    x = random_array(dtype, (200,), scale=1.0)
    wide = x.astype(np.complex128)
    exact = {
        UnaryFn.NEG: -wide,
        UnaryFn.ABS: np.hypot(wide.real, wide.imag) + 0j,
        UnaryFn.EXP: np.exp(wide.real) * (np.cos(wide.imag) + 1j * np.sin(wide.imag)),
        UnaryFn.LOG: np.log(np.abs(wide)) + 1j * np.arctan2(wide.imag, wide.real),
        UnaryFn.TANH: np.sinh(wide) / np.cosh(wide),
        UnaryFn.RSQRT: 1 / np.sqrt(wide),
        UnaryFn.RECIPROCAL: np.conj(wide) / (wide.real**2 + wide.imag**2),
    }
    eps = float(np.finfo(dtype.numpy).eps)
    for fn, want in exact.items():
        got = apply(ElementwiseUnary(fn), x).astype(np.complex128)
        assert np.max(np.abs(got - want) / np.abs(want)) < 16 * eps, fn


@each("dtype", by_name(INTEGERS))
@each("fn", [UnaryFn.NEG, UnaryFn.ABS])
def test_unary_integer_wraps(fn: UnaryFn, dtype: DType) -> None:
    x = random_array(dtype, (100,)).copy()
    x[:2] = [int(dtype.lowest), int(dtype.highest)]
    python = {UnaryFn.NEG: lambda v: -v, UnaryFn.ABS: abs}[fn]
    got = apply(ElementwiseUnary(fn), x)
    assert as_ints(got) == [wrap(python(v), dtype) for v in as_ints(x)]


def truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


INTEGER_FUNCTIONS: dict[BinaryFn, Any] = {
    BinaryFn.ADD: lambda a, b: a + b,
    BinaryFn.SUB: lambda a, b: a - b,
    BinaryFn.MUL: lambda a, b: a * b,
    BinaryFn.DIV: truncated,
    BinaryFn.MAXIMUM: max,
    BinaryFn.MINIMUM: min,
}


@each("dtype", by_name(INTEGERS))
@each("fn", BinaryFn)
def test_binary_integer_wraps(fn: BinaryFn, dtype: DType) -> None:
    x, y = random_array(dtype, (400,), seed=1).copy(), random_array(dtype, (400,), seed=2).copy()
    x[:3] = [int(dtype.lowest), int(dtype.highest), int(dtype.lowest)]
    y[:3] = [wrap(-1, dtype), int(dtype.highest), int(dtype.lowest) or 1]
    if fn is BinaryFn.DIV:
        y[y == np.zeros((), y.dtype)] = 1
    got = apply(ElementwiseBinary(fn), x, y)
    pairs = zip(as_ints(x), as_ints(y), strict=True)
    assert as_ints(got) == [wrap(INTEGER_FUNCTIONS[fn](a, b), dtype) for a, b in pairs]


@each("dtype", by_name(INTEGERS))
def test_integer_division_by_zero_is_a_violation(dtype: DType) -> None:
    x = np.ones((2, 3), dtype.numpy)
    y = np.array([[1, 1, 1], [1, 0, 1]]).astype(dtype.numpy)
    with pytest.raises(SpecViolation) as caught:
        apply(ElementwiseBinary(BinaryFn.DIV), x, y)
    assert caught.value.code == "IntegerDivideByZero"
    assert caught.value.why == "the divisor is zero at element 4"


REAL_BINARY: dict[BinaryFn, Any] = {
    BinaryFn.ADD: np.add,
    BinaryFn.SUB: np.subtract,
    BinaryFn.MUL: np.multiply,
    BinaryFn.DIV: np.divide,
}


@each("dtype", by_name(FLOATS))
@each("fn", REAL_BINARY)
@each("shape", SHAPES)
def test_binary_float_is_correctly_rounded(
    fn: BinaryFn, dtype: DType, shape: tuple[int, ...]
) -> None:
    x, y = floats(dtype, shape), floats(dtype, shape)[..., ::-1] if shape else floats(dtype, shape)
    with np.errstate(all="ignore"):
        exact = REAL_BINARY[fn](x.astype(np.float64), y.astype(np.float64))
    assert_ulp(apply(ElementwiseBinary(fn), x, y), exact, 0.5)


@each("dtype", by_name(FLOATS))
def test_maximum_and_minimum_propagate_nan(dtype: DType) -> None:
    x, y = (a.reshape(-1) for a in np.meshgrid(SPECIAL, SPECIAL))
    with np.errstate(all="ignore"):
        x, y = x.astype(dtype.numpy), y.astype(dtype.numpy)
    pairs = list(zip(x.astype(np.float64), y.astype(np.float64), strict=True))
    for fn, pick in ((BinaryFn.MAXIMUM, max), (BinaryFn.MINIMUM, min)):
        got = apply(ElementwiseBinary(fn), x, y).astype(np.float64)
        want = [math.nan if math.isnan(a) or math.isnan(b) else pick(a, b) for a, b in pairs]
        np.testing.assert_array_equal(got, np.array(want))


def test_maximum_on_i1_is_or_and_minimum_is_and() -> None:
    x, y = np.array([0, 0, 1, 1], np.bool_), np.array([0, 1, 0, 1], np.bool_)
    assert apply(ElementwiseBinary(BinaryFn.MAXIMUM), x, y).tolist() == [False, True, True, True]
    assert apply(ElementwiseBinary(BinaryFn.MINIMUM), x, y).tolist() == [False, False, False, True]


@each("dtype", by_name(COMPLEX))
def test_binary_complex(dtype: DType) -> None:
    x, y = random_array(dtype, (100,), seed=1), random_array(dtype, (100,), seed=2)
    a, b, c, d = (np.longdouble(v) for v in (x.real, x.imag, y.real, y.imag))
    size = c * c + d * d
    wanted = {
        BinaryFn.ADD: (a + c, b + d),
        BinaryFn.SUB: (a - c, b - d),
        BinaryFn.MUL: (a * c - b * d, a * d + b * c),
        BinaryFn.DIV: ((a * c + b * d) / size, (b * c - a * d) / size),
    }
    eps = float(np.finfo(dtype.numpy).eps)
    for fn, (real, imag) in wanted.items():
        got = apply(ElementwiseBinary(fn), x, y)
        error = np.hypot(got.real - real, got.imag - imag) / np.hypot(real, imag)
        assert float(error.max()) < 8 * eps, fn


PYTHON_COMPARE: dict[CompareFn, Any] = {
    CompareFn.LESS: lambda a, b: a < b,
    CompareFn.LESS_EQUAL: lambda a, b: a <= b,
    CompareFn.EQUAL: lambda a, b: a == b,
    CompareFn.GREATER_EQUAL: lambda a, b: a >= b,
    CompareFn.GREATER: lambda a, b: a > b,
    CompareFn.NOT_EQUAL: lambda a, b: a != b,
}


def python_values(array: Array) -> list[Any]:
    kind = array.dtype.kind
    flat = array.reshape(-1)
    if kind == "b":
        return [bool(v) for v in flat]
    if kind in "iu" or array.dtype in (SI4.numpy, ALL[2].numpy):
        return [int(v) for v in flat]
    return [complex(v) for v in flat] if kind == "c" else [float(v) for v in flat]


@each("dtype", by_name(ORDERED))
@each("fn", CompareFn)
def test_compare(fn: CompareFn, dtype: DType) -> None:
    make = floats if dtype.is_float else random_array
    x, y = make(dtype, (64,)), make(dtype, (64,))[::-1].copy()
    y[:20] = x[:20]
    got = apply(Compare(op=fn), x, y)
    pairs = zip(python_values(x), python_values(y), strict=True)
    assert got.tolist() == [PYTHON_COMPARE[fn](a, b) for a, b in pairs]


@pytest.mark.parametrize("dtype", [CF32, CF64], ids=str)
def test_complex_values_compare_for_equality_only(dtype: DType) -> None:
    x = np.array([1 + 2j, 1 - 2j, complex(math.nan, 0)], dtype.numpy)
    y = np.array([1 + 2j, 1 + 2j, complex(math.nan, 0)], dtype.numpy)
    assert apply(Compare(op=CompareFn.EQUAL), x, y).tolist() == [True, False, False]
    assert apply(Compare(op=CompareFn.NOT_EQUAL), x, y).tolist() == [False, True, True]
    with pytest.raises(SpecViolation, match="compare is not defined for lhs of dtype"):
        apply(Compare(op=CompareFn.LESS), x, y)


@each("dtype", by_name(ANY))
def test_select_keeps_bits(dtype: DType) -> None:
    x, y = random_array(dtype, (5, 3), seed=1), random_array(dtype, (5, 3), seed=2)
    pred = random_array(I1, (5, 3))
    got = apply(Select(), pred, x, y)
    for index in np.ndindex(5, 3):
        assert bits(got[index]) == bits((x if pred[index] else y)[index])


@each("dtype", by_name(ANY))
def test_stop_gradient_is_the_value(dtype: DType) -> None:
    x = random_array(dtype, (4,))
    assert bits(apply(StopGradient(), x)) == bits(x)


@each("dtype", by_name(ORDERED))
def test_clamp(dtype: DType) -> None:
    x, lo, hi = (random_array(dtype, (50,), seed=s) for s in (1, 2, 3))
    got = apply(Clamp(), x, lo, hi)
    triples = zip(*(python_values(a) for a in (x, lo, hi)), strict=True)
    assert python_values(got) == [min(max(a, b), c) for a, b, c in triples]


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


@each("source", by_name(FLOATS))
@each("target", by_name(INTEGERS))
def test_cast_float_to_integer_truncates_and_saturates(source: DType, target: DType) -> None:
    edges = [float(target.lowest), float(target.highest), 1e30, -1e30, 3.99, -3.99, 0.5, -0.5]
    values = np.array([*SPECIAL, *edges, *(e * 0.999 for e in edges), *(e * 1.001 for e in edges)])
    with np.errstate(all="ignore"):
        x = values.astype(np.float32 if source is not F64 else np.float64).astype(source.numpy)
    low, high = int(target.lowest), int(target.highest)

    def convert(value: float) -> int:
        if math.isnan(value):
            return 0
        if math.isinf(value):
            return high if value > 0 else low
        return min(max(int(value), low), high)

    got = apply(Cast(target), x)
    assert as_ints(got) == [convert(float(v)) for v in x]


@each("source", by_name(INTEGERS))
@each("target", by_name(INTEGERS))
def test_cast_integer_to_integer_saturates(source: DType, target: DType) -> None:
    x = random_array(source, (100,)).copy()
    x[:2] = [int(source.lowest), int(source.highest)]
    low, high = int(target.lowest), int(target.highest)
    assert as_ints(apply(Cast(target), x)) == [min(max(v, low), high) for v in as_ints(x)]


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


@each("source", by_name(ANY))
@each("target", [CF32, CF64])
def test_cast_to_complex_has_zero_imaginary_part(source: DType, target: DType) -> None:
    x = random_array(source, (20,))
    got = apply(Cast(target), x)
    if source.is_complex:
        np.testing.assert_array_equal(got, x.astype(target.numpy))
    else:
        part = F32 if target is CF32 else F64
        np.testing.assert_array_equal(got.real, apply(Cast(part), x))
        assert not got.imag.any()


@each("source", [CF32, CF64])
@each("target", [F16, F32, F64, SI8, SI32])
def test_cast_from_complex_takes_the_real_part(source: DType, target: DType) -> None:
    x = random_array(source, (20,), scale=30)
    part = F32 if source is CF32 else F64
    real = np.ascontiguousarray(x.real).astype(part.numpy)
    np.testing.assert_array_equal(apply(Cast(target), x), apply(Cast(target), real))
