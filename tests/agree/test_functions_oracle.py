"""The elementwise extension functions against independent oracles: wider arithmetic, Python's own
numbers, the bit fields of each format, and values computed with 90 digits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.support import Array, apply, assert_ulp, bits, by_name, random_array
from weft.foundation.dtypes import (
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
    INTEGERS,
    SI4,
    UI4,
    DType,
    as_dtype,
)
from weft.ptir.op import Op
from weft.ptir.ops import functions as f

NARROW = [FP8_E4M3, FP8_E5M2, BF16, F16]
Oracle = Callable[..., Any]

ANALYTIC: dict[type[Op], Oracle] = {
    f.Sqrt: np.sqrt,
    f.Sin: np.sin,
    f.Cos: np.cos,
    f.Tan: lambda x: np.sin(x) / np.cos(x),
    f.Asin: np.arcsin,
    f.Acos: np.arccos,
    f.Atan: np.arctan,
    f.Sinh: np.sinh,
    f.Cosh: np.cosh,
    f.Asinh: np.arcsinh,
    f.Acosh: np.arccosh,
    f.Atanh: np.arctanh,
    f.Expm1: np.expm1,
    f.Log1p: np.log1p,
    f.Exp2: np.exp2,
    f.Log2: np.log2,
    f.Log10: np.log10,
}
WIDE_ENOUGH = np.finfo(np.longdouble).nmant > 60
needs_wide = pytest.mark.skipif(not WIDE_ENOUGH, reason="long double is no wider than f64 here")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Overflow and NaN are what these tests are about."""
    with np.errstate(all="ignore"):
        yield


def patterns(dtype: DType) -> Array:
    """Every value of a narrow float; for f32 and f64 random bit patterns and the special ones."""
    width = dtype.bits
    if width <= 16:
        stored = np.arange(1 << width, dtype=f"u{width // 8}")
        return stored.view(dtype.numpy)
    rng = np.random.default_rng(width)
    stored = rng.integers(0, 1 << width, 20_000, dtype=f"u{width // 8}", endpoint=False)
    return np.concatenate([stored.view(dtype.numpy), specials(dtype)])


def specials(dtype: DType) -> Array:
    values = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 3.0, 1e-30]
    return np.asarray(values, np.float32).astype(dtype.numpy)


def spread(dtype: DType) -> Array:
    """Values over the whole range, around 1, within [-1, 1], and the special ones."""
    rng = np.random.default_rng(dtype.bits)
    reach = 37 if dtype is F32 else 300
    n = 4000
    parts = [
        10.0 ** rng.uniform(-reach, reach, n) * rng.choice([-1, 1], n),
        rng.standard_normal(n) * 8,
        rng.uniform(-1, 1, n),
        1 + rng.standard_normal(n) * 1e-4,
    ]
    return np.concatenate([np.concatenate(parts).astype(dtype.numpy), specials(dtype)])


def same_values(out: Array, want: Array) -> None:
    """Equal bit for bit, except that every NaN is like every other."""
    assert out.dtype == want.dtype
    nan = np.isnan(want.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(out.astype(np.float64)), nan)
    assert bits(out[~nan]) == bits(want[~nan])


def assert_close_complex(out: Array, exact: Array, ulps: float | Array) -> None:
    """|out - exact| is within `ulps` units in the last place of |exact|."""
    eps = np.finfo(out.dtype).eps
    error = np.abs(out.astype(exact.dtype) - exact)
    bad = ~(error <= ulps * eps * np.abs(exact))
    assert not bad.any(), (
        f"{int(bad.sum())} of {bad.size} off; first: got {out[bad][0]!r}, exact {exact[bad][0]!r}"
    )


# -- real functions ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("op", ANALYTIC, ids=lambda op: op.name)
def test_every_narrow_value_rounds_correctly(op: type[Op], dtype: DType) -> None:
    x = patterns(dtype)
    exact = ANALYTIC[op](x.astype(np.float64))
    assert_ulp(apply(op(), x), exact, 0.501)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("op", ANALYTIC, ids=lambda op: op.name)
def test_wide_floats_are_within_their_bound(op: type[Op], dtype: DType) -> None:
    x = spread(dtype)
    exact = ANALYTIC[op](x.astype(np.longdouble))
    assert_ulp(apply(op(), x), exact, 0.501 if dtype is F32 else 4)


def whole(function: Callable[[float], int]) -> Callable[[float], float]:
    def wrapped(x: float) -> float:
        return math.copysign(function(x), x) if math.isfinite(x) else x

    return wrapped


ROUNDING: dict[type[Op], Callable[[float], float]] = {
    f.Floor: whole(math.floor),
    f.Ceil: whole(math.ceil),
    f.Trunc: whole(math.trunc),
    f.Round: whole(round),
}


@pytest.mark.parametrize("dtype", by_name(FLOATS), ids=str)
@pytest.mark.parametrize("op", ROUNDING, ids=lambda op: op.name)
def test_rounding_is_exact_and_keeps_zero_signs(op: type[Op], dtype: DType) -> None:
    x = patterns(dtype)
    wide = x.astype(np.float64)
    want = np.array([ROUNDING[op](v) for v in wide.tolist()]).astype(dtype.numpy)
    same_values(apply(op(), x), want)


# -- predicates, from the bit fields -------------------------------------------------------------

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


@pytest.mark.parametrize("dtype", by_name(FLOATS), ids=str)
def test_predicates_read_the_bit_fields(dtype: DType) -> None:
    x = patterns(dtype)
    sign, infinite, nan = classify(x)
    assert infinite.any() or dtype is FP8_E4M3
    np.testing.assert_array_equal(apply(f.Signbit(), x), sign)
    np.testing.assert_array_equal(apply(f.IsInf(), x), infinite)
    np.testing.assert_array_equal(apply(f.IsNan(), x), nan)
    np.testing.assert_array_equal(apply(f.IsFinite(), x), ~(infinite | nan))


@pytest.mark.parametrize("dtype", by_name(COMPLEX), ids=str)
def test_predicates_of_complex_values_ask_either_part(dtype: DType) -> None:
    x = np.array([1, complex(0, np.inf), complex(np.nan, 1), complex(np.inf, np.nan)], dtype.numpy)
    assert apply(f.IsInf(), x).tolist() == [False, True, False, True]
    assert apply(f.IsNan(), x).tolist() == [False, False, True, True]
    assert apply(f.IsFinite(), x).tolist() == [True, False, False, False]


# -- sign ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", by_name(FLOATS), ids=str)
def test_sign_of_floats_returns_zeros_as_they_are(dtype: DType) -> None:
    x = patterns(dtype)
    wide = x.astype(np.float64).tolist()
    want = [v if v == 0 or math.isnan(v) else math.copysign(1, v) for v in wide]
    same_values(apply(f.Sign(), x), np.array(want).astype(dtype.numpy))


@pytest.mark.parametrize("dtype", by_name(INTEGERS), ids=str)
def test_sign_of_integers(dtype: DType) -> None:
    x = np.concatenate([random_array(dtype, (50,)), np.array([0, 1]).astype(dtype.numpy)])
    want = [(v > 0) - (v < 0) for v in x.astype(object).tolist()]
    assert apply(f.Sign(), x).astype(np.int64).tolist() == want


@pytest.mark.parametrize("dtype", by_name(COMPLEX), ids=str)
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


# -- neighbours and signs, bit for bit -----------------------------------------------------------


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


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("target", [np.inf, -np.inf, 0.0, -1.0, np.nan])
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


# -- fmod and pow --------------------------------------------------------------------------------


def c_fmod(x: float, y: float) -> float:
    if math.isnan(x) or math.isnan(y) or math.isinf(x) or y == 0:
        return math.nan
    return math.fmod(x, y)


def float_pairs(dtype: DType) -> tuple[Array, Array]:
    if dtype.bits == 8:
        x, y = np.meshgrid(patterns(dtype), patterns(dtype))
        return x.reshape(-1), y.reshape(-1)
    x, y = np.meshgrid(specials(dtype), specials(dtype))
    more = patterns(dtype)[::7]
    other = np.random.default_rng(3).permutation(more)
    return np.concatenate([x.reshape(-1), more]), np.concatenate([y.reshape(-1), other])


@pytest.mark.parametrize("dtype", by_name(FLOATS), ids=str)
def test_fmod_of_floats_is_exact(dtype: DType) -> None:
    x, y = float_pairs(dtype)
    pairs = zip(x.astype(np.float64).tolist(), y.astype(np.float64).tolist(), strict=True)
    want = np.array([c_fmod(a, b) for a, b in pairs]).astype(dtype.numpy)
    same_values(apply(f.Fmod(), x, y), want)


def wrap(value: int, dtype: DType) -> int:
    value %= 1 << dtype.bits
    return value - (1 << dtype.bits) if dtype.is_signed and value >> (dtype.bits - 1) else value


def integer_pairs(dtype: DType) -> tuple[Array, Array]:
    """All pairs for 4-bit integers, otherwise random and extreme ones."""
    if dtype in (SI4, UI4):
        every = np.arange(16, dtype=np.uint8).view(dtype.numpy)
        x, y = np.meshgrid(every, every)
        return x.reshape(-1), y.reshape(-1)
    extreme = [int(dtype.lowest), int(dtype.highest), 0, 1, int(dtype.highest) // 2, 3]
    edges = np.array([wrap(v, dtype) for v in [*extreme, -1, -2]], dtype.numpy)
    x, y = np.meshgrid(edges, edges)
    x, y = x.reshape(-1), y.reshape(-1)
    small = random_array(dtype, (300,), 1) % np.array(12, dtype.numpy)
    return (
        np.concatenate([x, random_array(dtype, (600,), 2)]),
        np.concatenate([y, random_array(dtype, (300,), 3), small]),
    )


@pytest.mark.parametrize("dtype", by_name(INTEGERS), ids=str)
def test_fmod_of_integers_truncates(dtype: DType) -> None:
    x, y = integer_pairs(dtype)
    keep = y != np.zeros((), y.dtype)
    x, y = x[keep], y[keep]
    want = [
        (abs(a) % abs(b)) * (1 if a >= 0 else -1)
        for a, b in zip(x.astype(object).tolist(), y.astype(object).tolist(), strict=True)
    ]
    assert [int(v) for v in apply(f.Fmod(), x, y)] == want


@pytest.mark.parametrize("dtype", by_name(INTEGERS), ids=str)
def test_pow_of_integers_wraps_exactly(dtype: DType) -> None:
    x, y = integer_pairs(dtype)
    keep = y >= np.zeros((), y.dtype)
    x, y = x[keep], y[keep]
    want = [wrap(pow(int(a), int(b), 1 << dtype.bits), dtype) for a, b in zip(x, y, strict=True)]
    assert [int(v) for v in apply(f.Pow(), x, y)] == want


@pytest.mark.parametrize("dtype", by_name(FLOATS), ids=str)
def test_pow_of_floats_is_within_its_bound(dtype: DType) -> None:
    base = np.abs(patterns(dtype)[::3].astype(np.float64 if dtype is F64 else np.float32))
    rng = np.random.default_rng(4)
    x = base.astype(dtype.numpy)
    y = (rng.standard_normal(x.shape) * 6).astype(dtype.numpy)
    wide = np.longdouble if dtype in (F32, F64) else np.float64
    exact = np.power(x.astype(wide), y.astype(wide))
    assert_ulp(apply(f.Pow(), x, y), exact, 4 if dtype is F64 else 0.501)


@pytest.mark.parametrize("dtype", [BF16, F16, F32, F64], ids=str)
def test_pow_of_floats_follows_ieee(dtype: DType) -> None:
    inf, nan = np.inf, np.nan
    cases = [
        (nan, 0.0, 1.0), (1.0, nan, 1.0), (-1.0, inf, 1.0), (0.0, -1.0, inf), (-0.0, -1.0, -inf),
        (-0.0, -2.0, inf), (-8.0, 3.0, -512.0), (-8.0, 0.5, nan), (0.0, 0.0, 1.0), (2.0, -1.0, 0.5),
        (0.5, inf, 0.0), (0.5, -inf, inf), (-inf, 3.0, -inf), (-inf, -3.0, -0.0), (nan, 1.0, nan),
    ]  # fmt: skip
    x, y, want = (np.array(column, dtype.numpy) for column in zip(*cases, strict=True))
    same_values(apply(f.Pow(), x, y), want)


# -- two-operand functions -----------------------------------------------------------------------

BINARY: dict[type[Op], Oracle] = {f.Atan2: np.arctan2, f.Hypot: np.hypot}


@pytest.mark.parametrize("dtype", by_name(FLOATS), ids=str)
@pytest.mark.parametrize("op", BINARY, ids=lambda op: op.name)
def test_binary_functions_are_within_their_bound(op: type[Op], dtype: DType) -> None:
    x, y = float_pairs(dtype)
    wide = np.longdouble if dtype in (F32, F64) else np.float64
    exact = BINARY[op](x.astype(wide), y.astype(wide))
    assert_ulp(apply(op(), x, y), exact, 4 if dtype is F64 else 0.501)


@pytest.mark.parametrize("dtype", [BF16, F16, F32, F64], ids=str)
def test_atan2_and_hypot_at_the_corners(dtype: DType) -> None:
    inf, nan, pi = np.inf, np.nan, math.pi
    corners = [
        (0.0, 0.0, 0.0), (-0.0, 0.0, -0.0), (0.0, -0.0, pi), (-0.0, -0.0, -pi),
        (1.0, 0.0, pi / 2), (inf, inf, pi / 4), (-inf, -inf, -3 * pi / 4), (1.0, nan, nan),
        (-1.0, -inf, -pi), (1.0, inf, 0.0),
    ]  # fmt: skip
    y, x, want = (np.array(column).astype(dtype.numpy) for column in zip(*corners, strict=True))
    assert_ulp(apply(f.Atan2(), y, x), np.array([c[2] for c in corners]), 1)
    assert bits(np.signbit(apply(f.Atan2(), y, x)[:-3])) == bits(np.signbit(want[:-3]))
    sides = np.array([[inf, nan, 3], [nan, -inf, -4]], dtype.numpy)
    assert apply(f.Hypot(), sides[0], sides[1]).tolist() == [inf, inf, 5]
    assert np.isnan(apply(f.Hypot(), np.array(nan, dtype.numpy), np.array(1, dtype.numpy)))


@pytest.mark.parametrize("dtype", by_name(FLOATS), ids=str)
def test_logaddexp_is_within_its_bound(dtype: DType) -> None:
    x = random_array(dtype, (3000,), 5)
    y = random_array(dtype, (3000,), 6)
    big = np.maximum(x.astype(np.longdouble), y.astype(np.longdouble))
    small = np.minimum(x.astype(np.longdouble), y.astype(np.longdouble))
    exact = big + np.log1p(np.exp(small - big))
    out = apply(f.Logaddexp(), x, y)
    if dtype is F64:
        scale = np.maximum(1, np.maximum(np.abs(x), np.abs(y)))
        assert (np.abs(out - exact) <= 4 * np.finfo(np.float64).eps * scale).all()
    else:
        assert_ulp(out, exact, 0.501)


def test_logaddexp_at_infinities() -> None:
    inf = np.inf
    x = np.array([-inf, inf, inf, -inf, 0, np.nan, 1000], np.float32)
    y = np.array([-inf, inf, -inf, 3, 0, 1, 1000], np.float32)
    want = np.array([-inf, inf, inf, 3, math.log(2), np.nan, 1000 + math.log(2)], np.float32)
    np.testing.assert_array_equal(apply(f.Logaddexp(), x, y), want)


# -- complex functions ---------------------------------------------------------------------------

COMPLEX_ORACLES: dict[type[Op], Oracle] = {
    op: oracle for op, oracle in ANALYTIC.items() if op not in (f.Expm1, f.Log1p, f.Exp2, f.Tan)
}
COMPLEX_ORACLES[f.Tan] = np.tan
COMPLEX_ORACLES[f.Expm1] = lambda z: 2 * np.exp(z / 2) * np.sinh(z / 2)
COMPLEX_ORACLES[f.Log1p] = lambda z: np.where(
    np.abs(1 + z) < 0.5, np.log(1 + z), 2 * np.arctanh(z / (2 + z))
)
COMPLEX_ORACLES[f.Exp2] = lambda z: np.exp(z * np.log(np.longdouble(2)))


def complex_points(dtype: DType) -> Array:
    rng = np.random.default_rng(dtype.bits)

    def circle(n: int) -> Array:
        return np.asarray(np.exp(1j * rng.uniform(-np.pi, np.pi, n)))

    small = 10.0 ** rng.uniform(-25, 0, 400)
    parts = [
        small * circle(400),
        10.0 ** rng.uniform(0, 1.5, 400) * circle(400),
        1 + 1e-6 * circle(50),
        -1 + 1e-6 * circle(50),
        1j + 1e-6 * circle(50),
        small * rng.choice([-1, 1], 400) + 1j * rng.permutation(small),
    ]
    return np.concatenate(parts).astype(dtype.numpy)


@needs_wide
@pytest.mark.parametrize("dtype", by_name(COMPLEX), ids=str)
@pytest.mark.parametrize("op", COMPLEX_ORACLES, ids=lambda op: op.name)
def test_complex_functions_are_within_their_bound(op: type[Op], dtype: DType) -> None:
    z = complex_points(dtype)
    exact = COMPLEX_ORACLES[op](z.astype(np.clongdouble))
    ulps = 4 + (np.abs(z.imag) if op is f.Exp2 and dtype is CF64 else 0)
    assert_close_complex(apply(op(), z), exact, ulps if dtype is CF64 else 0.8)


# Computed with 90 digits; the inputs are exactly the f64 values written.
GOLDEN: list[tuple[type[Op], complex, complex]] = [
    (f.Expm1, 1e-20 + 1e-22j, complex(1e-20, 1e-22)),
    (f.Expm1, -1e-09 + 1e-05j, complex(-1.0499999994495834e-09, 9.999999989833334e-06)),
    (f.Expm1, 0.5 + 3j, complex(-2.6322216869786788, 0.23266755900967662)),
    (f.Expm1, 1e-17 + 6.283185307179586j, complex(9.999999999999971e-18, -2.4492935982947064e-16)),
    (f.Expm1, 2 + 1e-300j, complex(6.38905609893065, 7.38905609893065e-300)),
    (f.Log1p, 1e-20 + 1e-22j, complex(1e-20, 1e-22)),
    (f.Log1p, -1e-09 + 1e-05j, complex(-9.500000004025001e-10, 1.0000000009666668e-05)),
    (f.Log1p, -2e-26 + 1e-28j, complex(-2e-26, 1e-28)),
    (f.Log1p, -0.3 + 0.4j, complex(-0.2153914580462271, 0.519146114246523)),
    (f.Log1p, -2 + 1e-09j, complex(5e-19, 3.141592652589793)),
    (f.Log1p, -1 + 1e-09j, complex(-20.72326583694641, 1.5707963267948966)),
    (f.Log1p, 1e200 - 3j, complex(460.51701859880916, -3e-200)),
    (f.Exp2, 10 + 0j, complex(1024.0, 0.0)),
    (f.Exp2, 0.5 + 0.25j, complex(1.3930334183655624, 0.24383989689293287)),
    (f.Exp2, -1000.25 + 1j, complex(6.036817906010751e-302, 5.014427724934469e-302)),
    (f.Exp2, 1000.5 - 2j, complex(2.7800005984377794e300, -1.4896232266165042e301)),
    (f.Log2, 1 + 1e-12j, complex(7.213475204444817e-25, 1.4426950408889635e-12)),
    (f.Log2, -4 + 0j, complex(2.0, 4.532360141827194)),
    (f.Log2, 1e-300 + 1e-300j, complex(-996.0784284662087, 1.1330900354567985)),
    (f.Log10, -0.1 - 3j, complex(0.47736239548953147, -0.6966593015623644)),
    (f.Sqrt, 1e-300 + 1e-300j, complex(1.09868411346781e-150, 4.5508986056222734e-151)),
    (f.Sqrt, -1 + 1e-20j, complex(5e-21, 1.0)),
    (f.Asinh, 1e-09 + 2j, complex(1.3169578969248168, 1.5707963262175464)),
    (f.Asinh, 1e8 + 1e-08j, complex(19.11382792451231, 1e-16)),
    (f.Acosh, 1 + 1e-12j, complex(1.0000000000000834e-06, 9.999999999999167e-07)),
    (f.Acosh, -3 + 1e-05j, complex(1.7627471740457152, 3.1415891180558875)),
    (f.Atanh, 1 + 1e-10j, complex(11.8594990552502, 0.7853981634224483)),
    (f.Atanh, -0.5 + 2j, complex(-0.09641562020299617, 1.1265564408348223)),
    (f.Asin, -3 + 1e-05j, complex(-1.5707927912609907, 1.7627471740457152)),
    (f.Acos, 1 + 1e-10j, complex(9.999999999916666e-06, -1.0000000000083334e-05)),
    (f.Atan, 1e-10 + 1j, complex(0.7853981634224483, 11.8594990552502)),
    (f.Tan, 1.5707963267948966 + 1e-09j, complex(61.23233995736742, 999999999.9999962)),
    (f.Tan, 1 + 300j, complex(4.819997531428952e-261, 1.0)),
]


@pytest.mark.parametrize(("op", "z", "want"), GOLDEN, ids=lambda v: getattr(v, "name", repr(v)))
def test_complex_functions_at_hard_points(op: type[Op], z: complex, want: complex) -> None:
    assert_close_complex(apply(op(), np.array([z])), np.array([want]), 4)


BRANCHES: list[tuple[type[Op], complex, complex]] = [
    (f.Sqrt, complex(-4, 0.0), 2j),
    (f.Sqrt, complex(-4, -0.0), -2j),
    (f.Log1p, complex(-2, 0.0), complex(0, math.pi)),
    (f.Log1p, complex(-2, -0.0), complex(0, -math.pi)),
    (f.Log2, complex(-2, -0.0), complex(1, -math.pi / math.log(2))),
    (f.Log10, complex(-10, -0.0), complex(1, -math.pi / math.log(10))),
    (f.Asin, complex(2, -0.0), complex(math.pi / 2, -math.acosh(2))),
    (f.Acos, complex(2, -0.0), complex(0, math.acosh(2))),
    (f.Atanh, complex(2, 0.0), complex(math.atanh(0.5), math.pi / 2)),
    (f.Acosh, complex(0.5, -0.0), complex(0, -math.acos(0.5))),
    (f.Expm1, complex(-np.inf, 5.0), complex(-1, 0)),
    (f.Expm1, complex(np.inf, 0.0), complex(np.inf, 0)),
    (f.Exp2, complex(-np.inf, 1.0), complex(0, 0)),
    (f.Exp2, complex(np.inf, 0.0), complex(np.inf, 0)),
    (f.Exp2, complex(1e9, 0.0), complex(np.inf, 0)),
    (f.Log1p, complex(-1, 0.0), complex(-np.inf, 0)),
    (f.Log1p, complex(-np.inf, 1.0), complex(np.inf, math.pi)),
    (f.Log1p, complex(0.0, -0.0), complex(0.0, -0.0)),
]


@pytest.mark.parametrize("dtype", by_name(COMPLEX), ids=str)
@pytest.mark.parametrize(("op", "z", "want"), BRANCHES, ids=lambda v: getattr(v, "name", repr(v)))
def test_complex_branch_cuts_and_infinities(
    op: type[Op], z: complex, want: complex, dtype: DType
) -> None:
    out = apply(op(), np.array(z, dtype.numpy))
    eps = float(np.finfo(dtype.numpy).eps)
    np.testing.assert_allclose([out.real, out.imag], [want.real, want.imag], rtol=4 * eps, atol=eps)


@pytest.mark.parametrize("op", [*COMPLEX_ORACLES, f.Sign], ids=lambda op: op.name)
def test_complex_nan_stays_nan(op: type[Op]) -> None:
    assert np.isnan(apply(op(), np.array([complex(np.nan, np.nan)])))[0]


@needs_wide
@pytest.mark.parametrize("dtype", by_name(COMPLEX), ids=str)
def test_pow_of_complex_values(dtype: DType) -> None:
    x, y = random_array(dtype, (500,), 7), random_array(dtype, (500,), 8, scale=3.0)
    y[:20] = np.arange(20) - 10
    exponent = y.astype(np.clongdouble) * np.log(x.astype(np.clongdouble))
    ulps = 4 + 2 * np.abs(exponent) if dtype is CF64 else np.full(500, 0.8)
    assert_close_complex(apply(f.Pow(), x, y), np.exp(exponent), ulps.astype(np.float64))


def test_pow_of_complex_zero() -> None:
    base = np.zeros(4, np.complex64)
    out = apply(f.Pow(), base, np.array([0, 2, 1 + 1j, -1], np.complex64))
    assert out[:3].tolist() == [1, 0, 0]
    assert np.isnan(out[3])


# -- shapes and views ----------------------------------------------------------------------------

UNARY_OPS = [*ANALYTIC, *ROUNDING, f.Sign, f.Signbit, f.IsNan, f.IsInf, f.IsFinite]
BINARY_OPS = [f.Atan2, f.Pow, f.Fmod, f.Copysign, f.Nextafter, f.Hypot, f.Logaddexp]


def views(dtype: DType, seed: int) -> list[Array]:
    base = np.abs(random_array(dtype, (3, 4), seed).astype(np.float64)).astype(dtype.numpy)
    shaped = [
        np.asarray(base[0, 0]),
        base[:0],
        np.zeros((2, 0, 3), dtype.numpy),
        base.T[::2],
        np.broadcast_to(base[0], (2, 4)),
    ]
    for view in shaped:
        view.flags.writeable = False
    return shaped


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("op", [*UNARY_OPS, *BINARY_OPS], ids=lambda op: op.name)
def test_views_scalars_and_empty_tensors(op: type[Op], dtype: DType) -> None:
    count = len(op.operands)
    for args in zip(*(views(dtype, seed) for seed in range(count)), strict=True):
        before = [bits(a) for a in args]
        out = apply(op(), *args)
        flat = apply(op(), *(a.reshape(-1).copy() for a in args))
        assert bits(out) == bits(flat)
        assert [bits(a) for a in args] == before


@pytest.mark.parametrize("dtype", [CF32, CF64], ids=str)
@pytest.mark.parametrize("op", [*COMPLEX_ORACLES, f.Sign, f.IsNan], ids=lambda op: op.name)
def test_complex_scalars_and_empty_tensors(op: type[Op], dtype: DType) -> None:
    z = random_array(dtype, (3, 2), 9)
    assert bits(apply(op(), z[1, 0].reshape(()))) == bits(apply(op(), z)[1, 0])
    assert apply(op(), z[:, :0]).shape == (3, 0)
    assert bits(apply(op(), z.T)) == bits(apply(op(), z).T)


def test_integer_scalars_and_empty_tensors() -> None:
    for op in (f.Pow(), f.Fmod()):
        assert apply(op, np.array(7, np.int64), np.array(2, np.int64)) == (
            49 if op == f.Pow() else 1
        )
        assert apply(op, np.zeros((0, 2), np.int8), np.zeros((0, 2), np.int8)).shape == (0, 2)
