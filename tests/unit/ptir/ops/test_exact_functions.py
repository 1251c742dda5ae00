"""Predicates, signs and neighbours of floats, bit for bit: from the bit fields of each format."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.support.cases import each
from tests.support.function_values import patterns, same_values
from tests.support.one_op import Array, apply, by_name, random_array
from weft.foundation.dtypes import (
    BF16,
    COMPLEX,
    F16,
    F32,
    F64,
    FLOATS,
    FP8_E4M3,
    FP8_E5M2,
    INTEGERS,
    DType,
    as_dtype,
)
from weft.ptir.ops import functions as f

pytestmark = pytest.mark.usefixtures("quiet_arithmetic")

EXPONENT_BITS = {FP8_E4M3: 4, FP8_E5M2: 5, BF16: 8, F16: 5, F32: 8, F64: 11}


def classify(x: Array) -> tuple[Array, Array, Array]:
    """(sign, infinite, nan) read off the fields of the format."""
    dtype = as_dtype(x.dtype)
    stored = x.view(f"u{x.dtype.itemsize}").astype(np.uint64)
    fraction_bits = dtype.bits - 1 - EXPONENT_BITS[dtype]
    sign = (stored >> np.uint64(dtype.bits - 1)) != 0
    fraction = stored & np.uint64((1 << fraction_bits) - 1)
    top = ((stored >> np.uint64(fraction_bits)) & np.uint64((1 << EXPONENT_BITS[dtype]) - 1)) == (
        1 << EXPONENT_BITS[dtype]
    ) - 1
    if dtype is FP8_E4M3:
        return sign, np.zeros(x.shape, np.bool_), top & (fraction == 7)
    return sign, top & (fraction == 0), top & (fraction != 0)


@each("dtype", by_name(FLOATS))
def test_predicates_read_the_bit_fields(dtype: DType) -> None:
    x = patterns(dtype)
    sign, infinite, nan = classify(x)
    assert infinite.any() or dtype is FP8_E4M3
    np.testing.assert_array_equal(apply(f.Signbit(), x), sign)
    np.testing.assert_array_equal(apply(f.IsInf(), x), infinite)
    np.testing.assert_array_equal(apply(f.IsNan(), x), nan)
    np.testing.assert_array_equal(apply(f.IsFinite(), x), ~(infinite | nan))


@each("dtype", by_name(COMPLEX))
def test_predicates_of_complex_values_ask_either_part(dtype: DType) -> None:
    x = np.array([1, complex(0, np.inf), complex(np.nan, 1), complex(np.inf, np.nan)], dtype.numpy)
    assert apply(f.IsInf(), x).tolist() == [False, True, False, True]
    assert apply(f.IsNan(), x).tolist() == [False, False, True, True]
    assert apply(f.IsFinite(), x).tolist() == [True, False, False, False]


# -- sign ------------------------------------------------------------------------------------------


@each("dtype", by_name(FLOATS))
def test_sign_of_floats_returns_zeros_as_they_are(dtype: DType) -> None:
    x = patterns(dtype)
    wide = x.astype(np.float64).tolist()
    want = [v if v == 0 or math.isnan(v) else math.copysign(1, v) for v in wide]
    same_values(apply(f.Sign(), x), np.array(want).astype(dtype.numpy))


@each("dtype", by_name(INTEGERS))
def test_sign_of_integers(dtype: DType) -> None:
    x = np.concatenate([random_array(dtype, (50,)), np.array([0, 1]).astype(dtype.numpy)])
    want = [(v > 0) - (v < 0) for v in x.astype(object).tolist()]
    assert apply(f.Sign(), x).astype(np.int64).tolist() == want


@each("dtype", by_name(COMPLEX))
def test_sign_of_complex_values_is_their_direction(dtype: DType) -> None:
    info = np.finfo(dtype.numpy)
    big, tiny, half = float(info.max), float(info.smallest_subnormal), math.sqrt(0.5)
    inf = np.inf
    cases = {
        complex(3, -4): complex(0.6, -0.8),
        complex(big, big): complex(half, half),
        complex(-tiny, tiny): complex(-half, half),
        complex(-inf, 7): complex(-1, 0),
        complex(2, inf): complex(0, 1),
        complex(inf, -inf): complex(half, -half),
        complex(0, 0): complex(0, 0),
    }
    out = apply(f.Sign(), np.array(list(cases), dtype.numpy))
    np.testing.assert_allclose(out, list(cases.values()), rtol=2 * float(info.eps))
    zero = apply(f.Sign(), np.array([complex(-0.0, 0.0)], dtype.numpy))
    assert np.signbit(zero.real[0])
    assert not np.signbit(zero.imag[0])
    lost = [complex(np.nan, 1), complex(1, np.nan), complex(inf, np.nan)]
    assert np.isnan(apply(f.Sign(), np.array(lost, dtype.numpy))).all()


# -- neighbours and signs, bit for bit -------------------------------------------------------------


def neighbours(x: Array, goal: Array) -> Array:
    """nextafter by looking both values up in the sorted list of all values of the format."""
    dtype = as_dtype(x.dtype)
    values = patterns(dtype).astype(np.float64)
    start, end = x.astype(np.float64), goal.astype(np.float64)
    ladder = np.unique(values[~np.isnan(values)])
    nan = np.isnan(start) | np.isnan(end)
    place = np.searchsorted(ladder, np.where(nan, 0, start))
    equal = start == end
    step = np.where(end > start, 1, -1)
    moved = ladder[np.clip(place + step, 0, ladder.size - 1)]
    moved = np.where(moved == 0, np.copysign(0.0, start), moved)
    return np.where(nan, np.nan, np.where(equal, end, moved)).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", [FP8_E4M3, FP8_E5M2], ids=str)
def test_nextafter_of_every_fp8_pair(dtype: DType) -> None:
    x, goal = (a.reshape(-1) for a in np.meshgrid(patterns(dtype), patterns(dtype), indexing="ij"))
    same_values(apply(f.Nextafter(), x, goal), neighbours(x, goal))


@each("dtype", [BF16, F16])
@each("target", [np.inf, -np.inf, 0.0, -1.0, np.nan])
def test_nextafter_of_every_half_value(dtype: DType, target: float) -> None:
    x = patterns(dtype)
    goal = np.full(x.shape, target, dtype.numpy)
    same_values(apply(f.Nextafter(), x, goal), neighbours(x, goal))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_nextafter_of_wide_floats(dtype: DType) -> None:
    x = patterns(dtype)
    goal = np.random.default_rng(1).permutation(x)
    goal[::3] = x[::3]
    goal[1::3] = np.where(np.arange(goal[1::3].size) % 2, np.inf, 0).astype(dtype.numpy)
    same_values(apply(f.Nextafter(), x, goal), np.nextafter(x, goal))


@pytest.mark.parametrize("dtype", [FP8_E4M3, FP8_E5M2], ids=str)
def test_copysign_of_every_fp8_pair(dtype: DType) -> None:
    size, sign = (a.reshape(-1) for a in np.meshgrid(patterns(dtype), patterns(dtype)))
    out = apply(f.Copysign(), size, sign).view(np.uint8).astype(int)
    want = size.view(np.uint8).astype(int) % 128 + 128 * (sign.view(np.uint8).astype(int) // 128)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("dtype", [BF16, F16, F32, F64], ids=str)
def test_copysign_keeps_the_rest_of_the_bits(dtype: DType) -> None:
    size = patterns(dtype)
    sign = np.random.default_rng(2).permutation(size)
    out = apply(f.Copysign(), size, sign)
    stored, original = (a.view(f"u{a.dtype.itemsize}").astype(object) for a in (out, size))
    half = 1 << (dtype.bits - 1)
    np.testing.assert_array_equal(stored % half, original % half)
    np.testing.assert_array_equal(classify(out)[0], classify(sign)[0])
