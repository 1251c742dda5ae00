"""Elementwise functions of complex numbers against wider arithmetic, and values computed with 90
digits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.support.cases import each
from tests.support.function_values import ANALYTIC, Oracle
from tests.support.one_op import Array, apply, bits, by_name, random_array
from weft.foundation.dtypes import CF32, CF64, COMPLEX, DType
from weft.ptir.op import Op
from weft.ptir.ops import functions as f

pytestmark = pytest.mark.usefixtures("quiet_arithmetic")
WIDE_ENOUGH = np.finfo(np.longdouble).nmant > 60
needs_wide = pytest.mark.skipif(not WIDE_ENOUGH, reason="long double is no wider than f64 here")


def assert_close_complex(out: Array, exact: Array, ulps: float | Array) -> None:
    """|out - exact| is within `ulps` units in the last place of |exact|."""
    eps = np.finfo(out.dtype).eps
    error = np.abs(out.astype(exact.dtype) - exact)
    bad = ~(error <= ulps * eps * np.abs(exact))
    assert not bad.any(), (
        f"{int(bad.sum())} of {bad.size} off; first: got {out[bad][0]!r}, exact {exact[bad][0]!r}"
    )


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
@each("dtype", by_name(COMPLEX))
@each("op", COMPLEX_ORACLES)
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


@each(("op", "z", "want"), GOLDEN)
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


@each("dtype", by_name(COMPLEX))
@each(("op", "z", "want"), BRANCHES)
def test_complex_branch_cuts_and_infinities(
    op: type[Op], z: complex, want: complex, dtype: DType
) -> None:
    out = apply(op(), np.array(z, dtype.numpy))
    eps = float(np.finfo(dtype.numpy).eps)
    np.testing.assert_allclose([out.real, out.imag], [want.real, want.imag], rtol=4 * eps, atol=eps)


@each("op", [*COMPLEX_ORACLES, f.Sign])
def test_complex_nan_stays_nan(op: type[Op]) -> None:
    assert np.isnan(apply(op(), np.array([complex(np.nan, np.nan)])))[0]


@needs_wide
@each("dtype", by_name(COMPLEX))
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


@each("dtype", [CF32, CF64])
@each("op", [*COMPLEX_ORACLES, f.Sign, f.IsNan])
def test_complex_scalars_and_empty_tensors(op: type[Op], dtype: DType) -> None:
    z = random_array(dtype, (3, 2), 9)
    assert bits(apply(op(), z[1, 0].reshape(()))) == bits(apply(op(), z)[1, 0])
    assert apply(op(), z[:, :0]).shape == (3, 0)
    assert bits(apply(op(), z.T)) == bits(apply(op(), z).T)
