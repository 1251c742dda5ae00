"""Special functions against SciPy's: errors in f32 and f64, special values, gradients, backends."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special as sp

import weft
from weft import special

S: Any = special
LINE = np.concatenate([np.linspace(-29.9, 30.1, 601) + 1e-3, [1.0, 2.0, 0.5, 1e-30, 1e10]])
SHARES = np.concatenate([np.linspace(0.001, 0.999, 401), 10.0 ** -np.arange(3.0, 37.0)])

CASES: dict[str, tuple[Any, Any]] = {
    "digamma": (sp.psi, LINE),
    "entr": (sp.entr, LINE),
    "erfc": (sp.erfc, LINE),
    "erfcx": (sp.erfcx, LINE[LINE > -9]),
    "erfinv": (sp.erfinv, 2 * SHARES - 1),
    "i0": (sp.i0, LINE[LINE < 50]),
    "i0e": (sp.i0e, LINE),
    "i1": (sp.i1, LINE[LINE < 50]),
    "i1e": (sp.i1e, LINE),
    "lgamma": (sp.gammaln, LINE),
    "log_ndtr": (sp.log_ndtr, LINE),
    "logit": (sp.logit, SHARES),
    "ndtr": (sp.ndtr, LINE),
    "ndtri": (sp.ndtri, SHARES),
    "sinc": (np.sinc, LINE),
}
ENDS = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan]
AT_ENDS: dict[str, list[float]] = {
    "digamma": [-math.inf, math.inf, -0.5772156649015329, math.nan, math.inf, math.nan, math.nan],
    "erfc": [1.0, 1.0, 0.15729920705028513, 1.8427007929497148, 0.0, 2.0, math.nan],
    "erfinv": [0.0, 0.0, math.inf, -math.inf, math.nan, math.nan, math.nan],
    "i0e": [1.0, 1.0, 0.46575960759364043, 0.46575960759364043, 0.0, 0.0, math.nan],
    "lgamma": [math.inf, math.inf, 0.0, math.inf, math.inf, math.inf, math.nan],
    "ndtri": [-math.inf, -math.inf, math.inf, math.nan, math.nan, math.nan, math.nan],
}


@pytest.mark.parametrize("name", CASES)
def test_f64_agrees_to_thirteen_digits(name: str) -> None:
    oracle, x = CASES[name]
    found = getattr(S, name)(weft.asarray(x)).numpy()
    np.testing.assert_allclose(found, oracle(x), rtol=3e-12, atol=1e-14)


@pytest.mark.parametrize("name", CASES)
def test_f32_is_rounded_once(name: str) -> None:
    oracle, x = CASES[name]
    narrow = x.astype(np.float32)
    found = getattr(S, name)(weft.asarray(narrow))
    assert found.dtype is weft.float32
    with np.errstate(all="ignore"):
        expected = oracle(narrow.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(found.numpy(), expected, rtol=2.5e-7, atol=1e-14)


@pytest.mark.parametrize("name", AT_ENDS)
def test_special_values(name: str) -> None:
    found = getattr(S, name)(weft.asarray(np.array(ENDS))).numpy()
    np.testing.assert_allclose(found, AT_ENDS[name], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("n", range(5))
def test_polygamma(n: int) -> None:
    x = LINE[np.abs(LINE) < 1e9]
    found = S.polygamma(n, weft.asarray(x)).numpy()
    np.testing.assert_allclose(found, sp.polygamma(n, x), rtol=1e-10)


def test_zeta() -> None:
    rng = np.random.default_rng(0)
    s, q = rng.uniform(1.01, 40, 500), 10 ** rng.uniform(-2, 3, 500)
    found = S.zeta(weft.asarray(s), weft.asarray(q)).numpy()
    np.testing.assert_allclose(found, sp.zeta(s, q), rtol=1e-13)
    ends = S.zeta(weft.asarray([1.0, 0.5, 2.0, 2.0]), weft.asarray([2.0, 1.0, 0.0, -1.0])).numpy()
    np.testing.assert_array_equal(ends, [math.inf, math.nan, math.inf, math.inf])


@pytest.mark.parametrize("top", [5.0, 150.0, 1000.0])
def test_incomplete_functions(top: float) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.uniform(0.01, top, (2, 200))
    x = np.abs(a + np.sqrt(a) * rng.uniform(-4, 4, 200))
    p = weft.asarray(a)
    np.testing.assert_allclose(S.igamma(p, weft.asarray(x)).numpy(), sp.gammainc(a, x), rtol=1e-11)
    np.testing.assert_allclose(
        S.igammac(p, weft.asarray(x)).numpy(), sp.gammaincc(a, x), rtol=1e-11
    )
    y = rng.uniform(0, 1, 200)
    found = S.betainc(p, weft.asarray(b), weft.asarray(y)).numpy()
    np.testing.assert_allclose(found, sp.betainc(a, b, y), rtol=1e-10, atol=1e-100)


def test_the_ends_of_incomplete_functions() -> None:
    a = weft.asarray([0.0, 1.0, 1.0, -1.0, 2.0, 0.0])
    x = weft.asarray([1.0, 0.0, math.inf, 1.0, -1.0, 0.0])
    np.testing.assert_array_equal(S.igamma(a, x).numpy(), [1, 0, 1, math.nan, math.nan, math.nan])
    found = S.betainc(weft.asarray(1.0), 2.0, weft.asarray([0.0, 0.5, 1.0, 2.0])).numpy()
    np.testing.assert_allclose(found, [0.0, 0.75, 1.0, math.nan])


GRADIENTS: dict[str, tuple[Callable[[Any], Any], list[float]]] = {
    "digamma": (lambda x: sp.polygamma(1, x), [-3.3, -0.7, 0.2, 1.0, 5.0, 30.0]),
    "erfc": (lambda x: -2 / math.sqrt(math.pi) * np.exp(-x * x), [-50.0, -2.0, 0.0, 0.5, 5.0]),
    "erfinv": (
        lambda y: math.sqrt(math.pi) / 2 * np.exp(sp.erfinv(y) ** 2), [0.0, 0.3, -0.9, 0.99999],
    ),
    "i0": (sp.i1, [0.0, 0.3, -9.0, 20.0]),
    "lgamma": (sp.psi, [-3.3, -0.7, 0.2, 1.0, 2.0, 5.0, 30.0]),
    "ndtr": (lambda x: np.exp(-x * x / 2) / math.sqrt(2 * math.pi), [-50.0, -2.0, 0.0, 0.5, 5.0]),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    slope, points = GRADIENTS[name]
    x = np.array(points)
    found = weft.grad(lambda x: weft.sum(getattr(S, name)(x)))(weft.asarray(x)).numpy()
    np.testing.assert_allclose(found, slope(x), rtol=1e-11, atol=1e-14)


def test_gradients_of_incomplete_functions() -> None:
    a, x = np.array([2.0, 300.0, 5.0]), np.array([1.0, 310.0, 9.0])
    slope = weft.grad(lambda a, x: weft.sum(S.igamma(a, x)), 1)
    expected = np.exp(-x + (a - 1) * np.log(x) - sp.gammaln(a))
    np.testing.assert_allclose(slope(weft.asarray(a), weft.asarray(x)).numpy(), expected, rtol=1e-9)
    share = weft.grad(lambda x: weft.sum(S.betainc(weft.asarray([2.0, 3.0]), 1.0, x)))
    y = np.array([0.2, 0.7], np.float32)
    np.testing.assert_allclose(share(weft.asarray(y)).numpy(), [2 * 0.2, 3 * 0.49], rtol=1e-5)


@pytest.mark.parametrize("name", ["lgamma", "erfinv", "i1e"])
def test_every_backend_has_them(name: str) -> None:
    oracle, x = CASES[name]
    part = x[:40].astype(np.float32)
    compiled = weft.jit(getattr(S, name))(weft.asarray(part, device="cpu")).numpy()
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(compiled, oracle(part), rtol=3e-6, atol=1e-6)


def test_mistakes() -> None:
    with pytest.raises(weft.WeftError, match="real numbers"):
        S.lgamma(weft.asarray([1j]))
    with pytest.raises(weft.WeftError, match="whole number"):
        S.polygamma(-1, weft.asarray([1.0]))
    with pytest.raises(weft.SpecViolation, match="it is at most 170"):
        S.polygamma(2**36, weft.asarray([1.0]))


@pytest.mark.parametrize("name", ["erfc", "i0", "lgamma", "ndtri"])
def test_few_kernels_compute_one(name: str) -> None:
    """Intermediate results of f64 in memory take longer than the formula."""
    function = weft.jit(getattr(S, name))
    program = function.program(weft.asarray(np.ones(4096, np.float32)))
    assert str(weft.compile(program, "cpu").stages["cpu"]).count("\nroutine ") <= 1


def test_one_exponential_is_enough_for_a_complement() -> None:
    program = weft.jit(S.erfc).program(weft.asarray(np.ones(4096, np.float32)))
    text = str(weft.compile(program, "cpu").stages["cpu"])
    assert text.count("= exp(") == 1
    assert "erf(" not in text


def test_logit_is_exact_beside_a_half() -> None:
    x = 0.5 + np.ldexp(np.arange(-20.0, 21.0), -50)
    np.testing.assert_allclose(S.logit(weft.asarray(x)).numpy(), 4 * (x - 0.5), rtol=1e-15)
