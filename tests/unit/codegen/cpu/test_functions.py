"""Elementary functions as generated code: accuracy over the whole range, and the special values."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from tests.support.native_functions import (
    HOST,
    LANES,
    PAIRS,
    REAL,
    SPECIAL,
    UNARY,
    apply,
    compute,
    points,
)
from tests.support.native_kernels import Array
from tests.support.one_op import assert_ulp, bits, random_array
from weft.codegen.cpu.elements import FUNCTIONS as WRITTEN
from weft.codegen.cpu.math import LIFT
from weft.foundation import functions
from weft.foundation.dtypes import F32, F64, I1, DType
from weft.foundation.scalar import Fn

IN_DOUBLE = ("erf",)
"""Functions that SciPy has in f64 alone."""


def test_every_function_of_tiny_is_written() -> None:
    assert {str(fn) for fn in Fn} <= WRITTEN


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_the_exponential_of_what_is_not_positive(dtype: DType) -> None:
    """Subnormal results included; -inf gives 0 and NaN stays NaN, whatever its payload."""
    far = 110 if dtype is F32 else 760
    rng = np.random.default_rng(0)
    edges = np.array([-0.0, 0.0, -np.inf])
    parts = [-rng.uniform(0, far, 50_000), -rng.uniform(0, 1, 10_000), edges]
    x = np.concatenate(parts).astype(dtype.numpy)
    assert_close(apply("exp_nonpositive", dtype, x), np.exp(x.astype(np.longdouble)), 3, dtype)
    words = np.array([0x7FC00000, 0x7FC00001, 0x7F8001FF, 0xFFFFFFFF], np.uint32)
    with np.errstate(invalid="ignore"):
        nan = words.view(np.float32).astype(dtype.numpy)
    assert np.isnan(apply("exp_nonpositive", dtype, nan)).all()


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_a_share_is_rounded_as_a_quotient(dtype: DType) -> None:
    """Of a part that is lifted; a quotient that is subnormal may be off by one in the last place,
    and one that rounds to nothing is 0."""
    rng = np.random.default_rng(0)
    lift = 2.0 ** LIFT["float" if dtype is F32 else "double"]
    lowest = 150 if dtype is F32 else 1075
    sizes = [2.0 ** -rng.uniform(0, 90, 20_000), 2.0 ** -rng.uniform(0, lowest - 1, 20_000)]
    part = np.concatenate([rng.uniform(0, 1, 60_000), *sizes, [0, 1]])
    whole = np.exp(rng.uniform(0, 16, part.size)).astype(dtype.numpy)
    raised = (part.astype(np.longdouble) * lift).astype(dtype.numpy)
    found = apply("share", dtype, raised, whole)
    want = ((raised / whole).astype(np.longdouble) / lift).astype(dtype.numpy)
    normal = want >= np.finfo(dtype.numpy).smallest_normal
    np.testing.assert_array_equal(found[normal], want[normal])
    assert np.abs(found - want).max() <= np.finfo(dtype.numpy).smallest_subnormal
    assert ((want > 0) & ~normal).any()
    assert np.isnan(apply("share", dtype, np.full(40, np.nan, dtype.numpy), whole[:40])).all()


def test_powers_of_floats_are_near_and_lanes_that_are_listed_leave_the_others() -> None:
    """Positive numbers take the short way, and a vector with one that is not has both."""
    rng = np.random.default_rng(0)
    near, far = np.exp(rng.uniform(-0.1, 0.1, 30_000)), np.exp(rng.uniform(-80, 80, 30_000))
    x = np.concatenate([near, far]).astype(np.float32)
    y = np.concatenate([rng.uniform(-800, 800, 30_000), rng.uniform(-1, 1, 30_000)])
    y = y.astype(np.float32)
    plain = np.arange(x.size) % 500 > 0
    x[~plain], y[~plain] = -2.0, 3.0
    found = apply("pow", F32, x, y)
    assert (found[~plain] == -8.0).all()
    exact = x[plain].astype(np.float64) ** y[plain]
    assert_ulp(found[plain], exact, 0.502)


def exact(fn: str, function: Any, dtype: DType, *arrays: Array) -> Array:
    # What IEEE arithmetic rounds correctly must not be rounded twice by the oracle.
    rounded = fn in ("sqrt", "recip") and dtype is F64
    wide = np.float64 if rounded or fn in IN_DOUBLE else np.longdouble
    with np.errstate(all="ignore"):
        return np.asarray(function(*(x.astype(wide) for x in arrays)))


def assert_close(found: Array, want: Array, ulps: float, dtype: DType) -> None:
    """Within so many ulp, with the signs of zeros; f64 is compared in the oracle's precision."""
    zero = want == 0
    assert (np.signbit(found[zero]) == np.signbit(want[zero])).all()
    if dtype is F32 or want.dtype == np.float64:
        with np.errstate(all="ignore"):
            wide = want.astype(np.float64)
        assert_ulp(found, wide, ulps)
        return
    with np.errstate(all="ignore"):
        near = want.astype(np.float64)
        finite = np.isfinite(near) & np.isfinite(found)
        same = (found == near) | (np.isnan(found) & np.isnan(near))
        exponent = np.frexp(np.where(finite & ~zero, want, 1))[1]
        spacing = np.ldexp(np.longdouble(1), np.maximum(exponent - 53, -1074))
        off = np.where(finite, np.abs(found.astype(np.longdouble) - want) / spacing, 0)
    assert same[~finite].all()
    worst = int(np.argmax(off))
    assert off[worst] <= ulps, f"{off[worst]} ulp: {found[worst]!r} for {want[worst]!r}"


FEATURES = {"plain": frozenset[str](), "host": HOST}
"""Of these code generation knows: none, and what the processor has."""


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("fn", UNARY)
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_functions_are_accurate(fn: str, dtype: DType, features: str) -> None:
    function, single, double = UNARY[fn]
    x = points(dtype)
    found = apply(fn, dtype, x, features=FEATURES[features])
    want = exact(fn, function, dtype, x)
    if fn == "relu":
        want = np.where(want == 0, 0.0, want)
        found = np.where(found == 0, np.zeros((), found.dtype), found)
    assert_close(found, want, single if dtype is F32 else double, dtype)


def pairs(dtype: DType, count: int = 20_000) -> tuple[Array, Array]:
    rng = np.random.default_rng(1)
    far = 80 if dtype is F32 else 700
    wide = [rng.standard_normal(count) * np.exp(rng.uniform(-far, far, count)) for _ in range(2)]
    both = np.array(list(itertools.product(SPECIAL, SPECIAL)))
    positive = np.exp(rng.uniform(-far, far, count))
    limit = (88 if dtype is F32 else 709) / np.abs(np.log(positive))
    x = [wide[0], rng.uniform(-5, 5, count), both[:, 0], 1 + rng.standard_normal(count) * 1e-3,
         positive, rng.integers(-20, 20, count).astype(float), wide[0]]  # fmt: skip
    y = [wide[1], rng.uniform(-5, 5, count), both[:, 1], rng.uniform(-1e5, 1e5, count),
         rng.uniform(-1, 1, count) * limit, rng.integers(-20, 20, count).astype(float),
         wide[0] * np.exp(rng.uniform(-3, 3, count))]  # fmt: skip
    with np.errstate(all="ignore"):
        return np.concatenate(x).astype(dtype.numpy), np.concatenate(y).astype(dtype.numpy)


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("fn", PAIRS)
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_functions_of_pairs_are_accurate(fn: str, dtype: DType, features: str) -> None:
    function, single, double = PAIRS[fn]
    x, y = pairs(dtype)
    want = exact(fn, function, dtype, x, y)
    found = apply(fn, dtype, x, y, features=FEATURES[features])
    assert_close(found, want, single if dtype is F32 else double, dtype)


@pytest.mark.parametrize("fn", [*UNARY, *PAIRS])
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_vectors_of_all_lengths_have_the_same_bits(fn: str, dtype: DType) -> None:
    """With what the processor has, also where a vector has lanes that are rare."""
    arrays = [x[::7] for x in (pairs(dtype) if fn in PAIRS else (points(dtype),))]
    one = apply(fn, dtype, *arrays, features=HOST, lanes=1)
    for lanes in (4, LANES):
        found = apply(fn, dtype, *arrays, features=HOST, lanes=lanes)
        nan = (one != one) & (found != found)  # noqa: PLR0124
        assert bits(np.where(nan, 0, found)) == bits(np.where(nan, 0, one))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_logaddexp_errs_by_little_of_its_largest_argument(dtype: DType) -> None:
    x, y = pairs(dtype)
    with np.errstate(all="ignore"):
        want = np.logaddexp(x.astype(np.longdouble), y.astype(np.longdouble))
        size = np.maximum(np.maximum(np.abs(x), np.abs(y)), 1).astype(np.longdouble)
        found = apply("logaddexp", dtype, x, y)
        near = want.astype(dtype.numpy)
        finite = np.isfinite(near) & np.isfinite(size)
        off = np.where(finite, np.abs(found - want) / np.spacing(np.where(finite, size, 1).astype(
            dtype.numpy)), 0)  # fmt: skip
    assert off.max() <= 2
    same = (found == near) | (np.isnan(found) & np.isnan(near))
    assert same[~finite].all()


COMPOSED = {"gelu", "silu"}
FLOATS_ONLY = {"atan2", "hypot", "logaddexp", "copysign", "nextafter"}
INTEGERS_ONLY = {"shift_left", "shift_right", "and", "or", "xor"}


@pytest.mark.parametrize("dtype", one_in(3, [d for d in REAL if d not in (F32, F64)]), ids=str)
def test_functions_are_those_of_every_dtype(dtype: DType) -> None:
    """On every dtype that has the function: what the interpreters say, to the rounding."""
    of_integers = {"neg", "abs", "relu", "not"} if dtype is not I1 else {"not"}
    of_floats = set(functions.UNARY) - COMPOSED - {"not"}
    names = sorted(of_floats if dtype.is_float else of_integers)
    x = random_array(dtype, (500,), scale=3.0)
    found = compute(dtype, [x], lambda body, reads: [body.unary(fn, *reads) for fn in names])
    for fn, array in zip(names, found, strict=True):
        with np.errstate(all="ignore"):
            assert_same(array, functions.unary(fn, dtype, x), dtype, fn)


@pytest.mark.parametrize("dtype", one_in(3, [d for d in REAL if d is not I1]), ids=str)
def test_functions_of_pairs_are_those_of_every_dtype(dtype: DType) -> None:
    every = {*functions.BINARY, *functions.COMPARISONS}
    names = sorted(every - (INTEGERS_ONLY if dtype.is_float else FLOATS_ONLY))
    x, y = random_array(dtype, (500,), 1), random_array(dtype, (500,), 2)
    if dtype.is_integer:
        # Divisors are not zero; exponents and amounts are not negative.
        top = min(70, int(dtype.highest))
        y = np.asarray(np.abs(y.astype(np.float64)) % top + 1).astype(y.dtype)
    else:
        special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan]).astype(dtype.numpy)
        x = np.concatenate([x, np.repeat(special, 7)])
        y = np.concatenate([y, np.tile(special, 7)])
    found = compute(dtype, [x, y], lambda body, reads: [body.binary(fn, *reads) for fn in names])
    for fn, made in zip(names, found, strict=True):
        with np.errstate(all="ignore"):
            array, want = made, functions.binary(fn, dtype, x, y)
        # Which zero a maximum returns is not specified.
        if fn in ("max", "min"):
            array, want = (np.where(a == 0, np.zeros((), a.dtype), a) for a in (array, want))
        assert_same(array, want, dtype, fn)


def assert_same(found: Array, want: Array, dtype: DType, fn: str) -> None:
    """Equal bits, but for NaN; a narrow float may be rounded the other way near a tie, and f32 and
    f64 may be off by what their own tests allow."""
    if not dtype.is_float or found.dtype == np.bool_:
        assert bits(found) == bits(want), fn
        return
    nan = (found != found) & (want != want)  # noqa: PLR0124
    plain = [np.where(nan, np.zeros((), a.dtype), a) for a in (found, want)]
    room = 3.5 if dtype.bits >= 32 else 1
    room = 40 if fn in ("logaddexp", "pow") and dtype.bits >= 32 else room
    assert_ulp(plain[0], plain[1].astype(np.float64), room)


def test_a_power_is_copied_without_what_is_rare() -> None:
    """So that its constants are made once, before a loop."""
    function = weft.jit(lambda x, y: x**y)
    program = function.program(*(weft.asarray(np.ones(4096, np.float32)) for _ in range(2)))
    text = str(weft.compile(program, target="aarch64").stages["llvm"])
    heads = [line for line in text.splitlines() if line.startswith("define internal")]
    assert len(heads) == 2
    assert "noinline cold" in heads[0]
    assert "short_pow" in heads[1]
    assert "alwaysinline" in heads[1]


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_remainders_are_exact_on_both_sides_of_multiples(dtype: DType) -> None:
    """Also where the quotient has as many digits as the short way holds, and more."""
    rng = np.random.default_rng(0)
    y = rng.uniform(0.5, 2, 8_000).astype(dtype.numpy)
    sizes = np.array([1, 2**13, 2**27, 2.0**29, 2.0**48, 2.0**51, 2.0**60], dtype.numpy)
    multiples = (rng.integers(1, 99, y.size) * sizes[np.arange(y.size) % sizes.size]).astype(
        y.dtype
    )
    x = multiples * y
    for end in (-np.inf, np.inf):
        beside = np.nextafter(x, np.array(end, x.dtype))
        for each in (x, beside, -beside):
            assert bits(apply("fmod", dtype, each, y)) == bits(np.fmod(each, y))


def test_remainders_take_steps_only_where_quotients_are_large() -> None:
    b = weft.ptir.Builder()
    x, y = b.param("f32", [64]), b.param("f32", [64])
    text = weft.compile(b.build(b.emit("fmod", x, y)), "cpu").stages["llvm"]
    calls = [line for line in text.splitlines() if "@remainders_" in line]
    assert any("noinline cold" in line for line in calls if line.startswith("define"))
    assert "fdiv" in text


@pytest.mark.parametrize("fn", ["sin", "cos", "tan", "asin", "acos", "atan"])
def test_angles_of_floats_need_doubles_only_where_they_are_large(fn: str) -> None:
    function = weft.jit(lambda x: getattr(weft, fn)(x))
    program = function.program(weft.asarray(np.ones(4096, np.float32)))
    text = str(weft.compile(program, target="aarch64").stages["llvm"])
    parts = text.split("\ndefine ")
    (usual,) = [part for part in parts if f"@fused_{fn}_float_4(" in part.splitlines()[0]]
    assert "double" not in usual
    rare = [part for part in parts if f"@large_{fn}_float_4(" in part.splitlines()[0]]
    assert all("cold" in part.splitlines()[0] for part in rare)
    assert len(rare) == (fn in ("sin", "cos", "tan"))


@pytest.mark.parametrize("fn", ["log", "log2", "log10"])
def test_logarithms_of_floats_divide_nothing(fn: str) -> None:
    """And look at what is no positive normal number in a branch alone."""
    function = weft.jit(lambda x: getattr(weft, fn)(x))
    program = function.program(weft.asarray(np.ones(4096, np.float32)))
    text = str(weft.compile(program, "cpu").stages["llvm"])
    assert "fdiv" not in text
    heads = [line for line in text.splitlines() if f"@listed_{fn}_float" in line]
    assert any("cold" in line for line in heads if line.startswith("define"))


@pytest.mark.parametrize("fn", ["sinh", "cosh", "asinh", "acosh", "hypot", "logaddexp"])
def test_functions_of_floats_need_no_doubles(fn: str) -> None:
    count = 2 if fn in ("hypot", "logaddexp") else 1
    function = weft.jit(lambda *args: getattr(weft, fn)(*args))
    program = function.program(*[weft.asarray(np.ones(4096, np.float32))] * count)
    assert "double" not in str(weft.compile(program, target="aarch64").stages["llvm"])


def test_erf_of_floats_is_one_way_where_there_are_fused_multiply_adds() -> None:
    """No part near zero beside one for the rest, and no branch."""
    program = weft.jit(weft.erf).program(weft.asarray(np.ones(4096, np.float32)))
    text = str(weft.compile(program, target="aarch64").stages["llvm"])
    (found,) = [part for part in text.split("\ndefine ") if "@fused_erf_float_4(" in part[:200]]
    assert "br " not in found
