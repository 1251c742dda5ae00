"""The elementwise extension functions against independent oracles: wider arithmetic, and Python's
own numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.support.cases import each
from tests.support.function_values import ANALYTIC, Oracle, patterns, same_values, specials, spread
from tests.support.one_op import Array, apply, assert_ulp, bits, by_name, random_array
from weft.foundation.dtypes import (
    BF16,
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
)
from weft.ptir.op import Op
from weft.ptir.ops import functions as f

pytestmark = pytest.mark.usefixtures("quiet_arithmetic")
NARROW = [FP8_E4M3, FP8_E5M2, BF16, F16]


@each("dtype", NARROW)
@each("op", ANALYTIC)
def test_every_narrow_value_rounds_correctly(op: type[Op], dtype: DType) -> None:
    x = patterns(dtype)
    exact = ANALYTIC[op](x.astype(np.float64))
    assert_ulp(apply(op(), x), exact, 0.501)


@each("dtype", [F32, F64])
@each("op", ANALYTIC)
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


@each("dtype", by_name(FLOATS))
@each("op", ROUNDING)
def test_rounding_is_exact_and_keeps_zero_signs(op: type[Op], dtype: DType) -> None:
    x = patterns(dtype)
    wide = x.astype(np.float64)
    want = np.array([ROUNDING[op](v) for v in wide.tolist()]).astype(dtype.numpy)
    same_values(apply(op(), x), want)


# -- fmod and pow ----------------------------------------------------------------------------------


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


@each("dtype", by_name(FLOATS))
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


@each("dtype", by_name(INTEGERS))
def test_pow_of_integers_wraps_exactly(dtype: DType) -> None:
    x, y = integer_pairs(dtype)
    keep = y >= np.zeros((), y.dtype)
    x, y = x[keep], y[keep]
    want = [wrap(pow(int(a), int(b), 1 << dtype.bits), dtype) for a, b in zip(x, y, strict=True)]
    assert [int(v) for v in apply(f.Pow(), x, y)] == want


@each("dtype", by_name(FLOATS))
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


# -- two-operand functions -------------------------------------------------------------------------

BINARY: dict[type[Op], Oracle] = {f.Atan2: np.arctan2, f.Hypot: np.hypot}


@each("dtype", by_name(FLOATS))
@each("op", BINARY)
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


@each("dtype", by_name(FLOATS))
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


# -- shapes and views ------------------------------------------------------------------------------

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


@each("dtype", [BF16, F32])
@each("op", [*UNARY_OPS, *BINARY_OPS])
def test_views_scalars_and_empty_tensors(op: type[Op], dtype: DType) -> None:
    count = len(op.operands)
    for args in zip(*(views(dtype, seed) for seed in range(count)), strict=True):
        before = [bits(a) for a in args]
        out = apply(op(), *args)
        flat = apply(op(), *(a.reshape(-1).copy() for a in args))
        assert bits(out) == bits(flat)
        assert [bits(a) for a in args] == before


def test_integer_scalars_and_empty_tensors() -> None:
    for op in (f.Pow(), f.Fmod()):
        assert apply(op, np.array(7, np.int64), np.array(2, np.int64)) == (
            49 if op == f.Pow() else 1
        )
        assert apply(op, np.zeros((0, 2), np.int8), np.zeros((0, 2), np.int8)).shape == (0, 2)
