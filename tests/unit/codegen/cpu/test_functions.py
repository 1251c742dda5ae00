"""Elementary functions as generated code: accuracy over the whole range, and the special values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import scipy.special

from tests.agree.test_cpu_kernels import Array, run_native
from tests.support.kernels import Rows, body_over, identity, module_of
from tests.support.one_op import assert_ulp, bits, random_array
from weft.codegen.cpu.elements import FUNCTIONS as WRITTEN
from weft.foundation import functions
from weft.foundation.dtypes import ALL, F32, F64, I1, DType
from weft.foundation.scalar import Fn
from weft.plan.ir import Header, MapPlan
from weft.region.ir import Kernel, KernelAxis, Output, Pattern, Tensor
from weft.target import cpu

LANES = cpu.host().limits.vector_bits // 32
REAL = [dtype for dtype in ALL if not dtype.is_complex]
SPECIAL = [
    0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.0, -2.0, 3.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40,
    1e-310, 5e-324, 3e38, -3e38, 1.7e308, 2.0**24, 2.0**52 + 1, -(2.0**53), np.pi / 2, np.pi,
]  # fmt: skip
UNARY: dict[str, tuple[Any, float, float]] = {
    "exp": (np.exp, 2, 3),
    "exp2": (np.exp2, 2, 3),
    "expm1": (np.expm1, 2, 3),
    "log": (np.log, 2, 3),
    "log2": (np.log2, 2, 3),
    "log10": (np.log10, 2, 3),
    "log1p": (np.log1p, 2, 3),
    "sin": (np.sin, 2, 3),
    "cos": (np.cos, 2, 3),
    "tan": (np.tan, 2, 3),
    "asin": (np.arcsin, 2, 3),
    "acos": (np.arccos, 2, 3),
    "atan": (np.arctan, 2, 3),
    "sinh": (np.sinh, 2, 3),
    "cosh": (np.cosh, 2, 3),
    "tanh": (np.tanh, 2, 3),
    "asinh": (np.arcsinh, 2, 3),
    "acosh": (np.arccosh, 2, 3),
    "atanh": (np.arctanh, 2, 3),
    "erf": (scipy.special.erf, 2, 3),
    "sqrt": (np.sqrt, 0.51, 0.51),
    "recip": (lambda x: 1 / x, 0.51, 0.51),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5, 1.5),
    "floor": (np.floor, 0, 0),
    "ceil": (np.ceil, 0, 0),
    "trunc": (np.trunc, 0, 0),
    "round": (np.rint, 0, 0),
    "neg": (np.negative, 0, 0),
    "abs": (np.abs, 0, 0),
    "relu": (lambda x: np.maximum(x, 0), 0, 0),
}
"""The function in more than 53 bits where there is one, and the bounds in ulp for f32 and f64."""
PAIRS: dict[str, tuple[Any, float, float]] = {
    "pow": (np.power, 2, 3),
    "atan2": (np.arctan2, 2, 3),
    "hypot": (np.hypot, 2, 3),
    "fmod": (np.fmod, 0, 0),
    "copysign": (np.copysign, 0, 0),
}
IN_DOUBLE = ("erf",)
"""Functions that SciPy has in f64 alone."""


def test_every_function_of_tiny_is_written() -> None:
    assert {str(fn) for fn in Fn} <= WRITTEN


def compute(
    dtype: DType, arrays: Sequence[Array], build: Callable[[Rows, list[str]], list[str]]
) -> list[Array]:
    """What `build` makes of reads of arrays, through one map kernel with vectors and a tail."""
    axes = (KernelAxis("i", arrays[0].size),)
    body = body_over(axes)
    values = build(body, [body.plain(f"x{n}", dtype, "i") for n in range(len(arrays))])
    outputs = tuple(Output(f"y{n}", value, identity("i")) for n, value in enumerate(values))
    kernel = Kernel("k", Pattern.MAP, axes, tuple(body.lets), outputs)
    tensors = [Tensor(f"x{n}", dtype, x.shape, "input") for n, x in enumerate(arrays)]
    given = {f"x{n}": x for n, x in enumerate(arrays)}
    for n, value in enumerate(values):
        made = Tensor(f"y{n}", body.dtype(value), arrays[0].shape, "output")
        tensors.append(made)
        given[made.name] = np.full(made.shape, 1).astype(made.dtype.numpy)
    module = module_of(kernel, tensors=tensors)
    run_native(module.kernels[0], module, MapPlan(Header("cpu", ""), LANES), given)
    return [given[f"y{n}"] for n in range(len(values))]


def apply(fn: str, dtype: DType, *arrays: Array) -> Array:
    """One function."""

    def build(body: Rows, reads: list[str]) -> list[str]:
        return [body.unary(fn, *reads) if len(reads) == 1 else body.binary(fn, *reads)]

    return compute(dtype, arrays, build)[0]


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
    rng = np.random.default_rng(0)
    part = np.concatenate([rng.uniform(0, 1, 60_000), 2.0 ** -rng.uniform(0, 90, 20_000), [0, 1]])
    part = part.astype(dtype.numpy)
    whole = np.exp(rng.uniform(0, 16, part.size)).astype(dtype.numpy)
    np.testing.assert_array_equal(apply("share", dtype, part, whole), part / whole)


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


def points(dtype: DType, count: int = 10_000) -> Array:
    """Dense near 0 and 1, over all exponents, at multiples of pi/2, and the special values."""
    rng = np.random.default_rng(0)
    far = 80 if dtype is F32 else 700
    parts = [
        rng.standard_normal(count) * np.exp(rng.uniform(-far, far, count)),
        np.linspace(-20, 20, count + 1),
        rng.uniform(-1.1, 1.1, count),
        rng.uniform(0.5, 2, count),
        rng.uniform(-120, 120, count),
        rng.uniform(-760, 760, count),
        np.arange(1, count) * (np.pi / 2),
        rng.integers(1, 1 << 60, count) * (np.pi / 2),
        np.array([87.3, 88.72, 88.73, -87.4, -103.97, -104.1, 709.7, 709.8, -745.2, -708.5]),
        np.array(SPECIAL),
    ]
    with np.errstate(all="ignore"):
        return np.concatenate(parts).astype(dtype.numpy)


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


@pytest.mark.parametrize("fn", UNARY)
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_functions_are_accurate(fn: str, dtype: DType) -> None:
    function, single, double = UNARY[fn]
    x = points(dtype)
    found = apply(fn, dtype, x)
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


@pytest.mark.parametrize("fn", PAIRS)
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_functions_of_pairs_are_accurate(fn: str, dtype: DType) -> None:
    function, single, double = PAIRS[fn]
    x, y = pairs(dtype)
    want = exact(fn, function, dtype, x, y)
    assert_close(apply(fn, dtype, x, y), want, single if dtype is F32 else double, dtype)


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


@pytest.mark.parametrize("dtype", [d for d in REAL if d not in (F32, F64)], ids=str)
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


@pytest.mark.parametrize("dtype", [d for d in REAL if d is not I1], ids=str)
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
