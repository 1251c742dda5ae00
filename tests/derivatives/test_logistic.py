"""Gradients of sigmoid, silu and gates far from zero, against formulas in f64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

import weft
from tests.support.tensors import DTYPES, Array, wide
from weft import functional as F
from weft.foundation.dtypes import F16, F32, F64, DType
from weft.ptir import Builder, Program, Value, jvp
from weft.ptir.gradient import gradient

POINTS = [-1000.0, -750.0, -710.0, -104.0, -100.0, -89.0, -88.0, -60.0, -20.0, -17.0, -12.0, -11.0,
          -5.0, -1.0, -0.25, 0.0, 0.25, 1.0, 5.0, 11.0, 12.0, 17.0, 60.0, 88.0, 89.0, 100.0, 710.0,
          1000.0]  # fmt: skip
Oracle = Callable[[Array], Array]


def sigmoid_slope(x: Array) -> Array:
    return np.asarray(expit(x) * expit(-x))


def silu_slope(x: Array) -> Array:
    return np.asarray(expit(x) + x * sigmoid_slope(x))


def gate(function: Any, gate_first: bool) -> Callable[[Any], Any]:
    """A gated function of its gate, with the other half 1."""

    def gated(x: Any) -> Any:
        halves = [x, weft.ones_like(x)] if gate_first else [weft.ones_like(x), x]
        return function(weft.stack(halves, axis=-1))[..., 0]

    return gated


NAMED: dict[str, tuple[Callable[[Any], Any], Oracle]] = {
    "sigmoid": (F.sigmoid, sigmoid_slope),
    "silu": (F.silu, silu_slope),
    "glu": (gate(F.glu, False), sigmoid_slope),
    "swiglu": (gate(F.swiglu, True), silu_slope),
}
BY_HAND: dict[str, tuple[Callable[[Any], Any], Oracle]] = {
    "1 / (1 + e)": (lambda x: 1 / (1 + weft.exp(-x)), sigmoid_slope),
    "2 / (e + 1)": (lambda x: 2 / (weft.exp(-x) + 1), lambda x: 2 * sigmoid_slope(x)),
    "x / (1 + e)": (lambda x: x / (1 + weft.exp(-x)), silu_slope),
    "falling": (lambda x: 1 / (1 + weft.exp(x)), lambda x: -sigmoid_slope(x)),
}


def points(dtype: DType) -> Array:
    return np.asarray(POINTS).astype(dtype.numpy)


def near(found: Any, exact: Array, dtype: DType, ulps: float = 8) -> None:
    """Within a few units in the last place of each element, down to where 1 / (1 + exp(-x)) leaves
    the normal numbers."""
    smallest = {F16: 2.0**-24, F64: 2.0**-1022}.get(dtype, 2.0**-126)
    small = smallest if dtype is F16 else 256 * smallest
    array = found.numpy() if isinstance(found, weft.Tensor) else np.asarray(found)
    assert array.dtype == dtype.numpy
    np.testing.assert_allclose(
        wide(array), exact, rtol=ulps * 2.0 ** (1 - dtype.precision), atol=small
    )


def slope(function: Callable[[Any], Any]) -> Any:
    return weft.grad(lambda x: weft.sum(function(x)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMED)
def test_small_values_are_kept_and_nothing_is_nan(name: str, dtype: DType) -> None:
    function, oracle = NAMED[name]
    x = points(dtype)
    near(slope(function)(weft.asarray(x)), oracle(wide(x)), dtype)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", [*NAMED, *BY_HAND])
def test_every_backend_and_formulas_by_hand(name: str, backend: str) -> None:
    function, oracle = {**NAMED, **BY_HAND}[name]
    x = points(F32)
    with weft.graph(backend=backend):
        found = slope(function)(weft.asarray(x)).numpy()
    near(found, oracle(wide(x)), F32)


def test_a_value_that_f32_can_hold() -> None:
    found = slope(F.sigmoid)(np.asarray([-60.0, 60.0], np.float32)).numpy()
    np.testing.assert_allclose(found, np.exp(-60.0), rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_infinities_and_nan(dtype: DType) -> None:
    x = np.asarray([-np.inf, np.inf, np.nan]).astype(dtype.numpy)
    found = wide(slope(F.sigmoid)(weft.asarray(x)).numpy())
    np.testing.assert_array_equal(found, [0.0, 0.0, np.nan])


@pytest.mark.parametrize("name", ["sigmoid", "silu"])
def test_the_second_derivative(name: str) -> None:
    function, _ = NAMED[name]
    x = points(F32)
    z = wide(x)
    bend = sigmoid_slope(z) * (expit(-z) - expit(z))
    exact = bend if name == "sigmoid" else 2 * sigmoid_slope(z) + z * bend
    found = slope(slope(function))(weft.asarray(x)).numpy()
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, exact, rtol=2e-5, atol=1e-35)


def test_under_vmap_and_jit() -> None:
    x = points(F32)
    each = weft.vmap(weft.grad(lambda x: F.silu(x)))
    outside = weft.grad(lambda x: weft.sum(weft.vmap(F.silu)(x)))
    for function in (each, outside, weft.jit(each), weft.jit(outside)):
        near(function(weft.asarray(x)), silu_slope(wide(x)), F32)


def test_inside_a_scan() -> None:
    x = points(F32)

    def total(xs: Any) -> Any:
        return weft.scan(lambda c, x: (c + F.sigmoid(x), c), weft.asarray(np.float32(0)), xs)[0]

    near(weft.grad(total)(weft.asarray(x)), sigmoid_slope(wide(x)), F32)


# -- programs ------------------------------------------------------------------------------------


def summed(form: Callable[[Builder, Value], Value], dims: list[Any]) -> Program:
    b = Builder()
    return b.build(b.reduce_sum(form(b, b.param("f32", dims)), [0]))


@pytest.mark.parametrize("dims", [[len(POINTS)], ["?N"]], ids=["static", "dynamic"])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_the_library_form(dims: list[Any], backend: str) -> None:
    x = points(F32)
    program = gradient(summed(lambda b, x: b.silu(x), dims))
    near(weft.run(program, [x], backend=backend)[1], silu_slope(wide(x)), F32)


def test_forward_mode() -> None:
    x = points(F32)
    b = Builder()
    forward = jvp(b.build(b.silu(b.param("f32", [len(POINTS)]))), 0)
    near(weft.run(forward, [x, np.ones_like(x)])[1], silu_slope(wide(x)), F32)


def test_both_the_exponential_and_the_quotient_are_results() -> None:
    """The cotangent that passes by the exponential is added to the one that goes through it."""
    b = Builder()
    x = b.param("f64", [3])
    e = b.exp(x)
    program = gradient(b.build(b.reduce_sum(e * 3.0 + x / (e + 1.0), [0])))
    at = np.asarray([-1.0, 0.5, 2.0])
    exact = 3 * np.exp(at) + expit(-at) - at * sigmoid_slope(at)
    np.testing.assert_allclose(weft.run(program, [at])[1], exact, rtol=1e-13)


@pytest.mark.parametrize("addend", [1.0, 2.0])
def test_other_addends_have_their_own_derivative(addend: float) -> None:
    at = np.asarray([-1.0, 0.0, 2.0])
    found = slope(lambda x: 1 / (addend + weft.exp(x)))(weft.asarray(at)).numpy()
    np.testing.assert_allclose(found, -np.exp(at) / (addend + np.exp(at)) ** 2, rtol=1e-13)


def test_a_gate_in_f16_under_autocast_has_finite_gradients() -> None:
    x, w = np.ones((4, 8), np.float32), np.full((8, 16), -1.6, np.float32)

    def loss(w: Any) -> Any:
        with weft.autocast("f16"):
            return weft.mean(F.swiglu(x @ w))

    found = weft.grad(loss)(weft.asarray(w)).numpy()
    u = np.asarray(-12.8)
    np.testing.assert_allclose(found[:, :8], silu_slope(u) * u / 8, rtol=0.05)
    np.testing.assert_allclose(found[:, 8:], u * expit(u) / 8, rtol=0.05)
