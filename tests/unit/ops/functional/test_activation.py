"""Activations against SciPy and plain formulas in f64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

import weft
from tests.support.cases import each
from tests.support.tensors import DTYPES, Array, agrees, data, wide
from weft import functional as F
from weft.foundation.dtypes import BF16, F16, DType


def softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    return np.asarray(np.where(x * beta > threshold, x, np.logaddexp(0.0, x * beta) / beta))


def halves(x: Array, axis: int) -> tuple[Array, Array]:
    first, second = np.split(x, 2, axis)
    return np.asarray(first), np.asarray(second)


def tanh_gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


SELU = (1.0507009873554804934193349852946, 1.6732632423543772848170429916717)
POINTWISE: dict[str, tuple[Callable[..., Any], Callable[[Array], Array]]] = {
    "relu": (F.relu, lambda x: np.maximum(x, 0)),
    "relu6": (F.relu6, lambda x: np.clip(x, 0, 6)),
    "gelu": (F.gelu, lambda x: 0.5 * x * (1 + special.erf(x / np.sqrt(2)))),
    "gelu tanh": (lambda x: F.gelu(x, "tanh"), tanh_gelu),
    "silu": (F.silu, lambda x: x * special.expit(x)),
    "sigmoid": (F.sigmoid, special.expit),
    "tanh": (F.tanh, np.tanh),
    "softplus": (F.softplus, softplus),
    "softplus 2, 1": (lambda x: F.softplus(x, 2.0, 1.0), lambda x: softplus(x, 2.0, 1.0)),
    "log_sigmoid": (F.log_sigmoid, special.log_expit),
    "leaky_relu": (F.leaky_relu, lambda x: np.where(x > 0, x, 0.01 * x)),
    "leaky_relu 0.3": (lambda x: F.leaky_relu(x, 0.3), lambda x: np.where(x > 0, x, 0.3 * x)),
    "elu": (F.elu, lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
    "elu 0.5": (lambda x: F.elu(x, 0.5), lambda x: np.where(x > 0, x, 0.5 * np.expm1(x))),
    "selu": (F.selu, lambda x: SELU[0] * np.where(x > 0, x, SELU[1] * np.expm1(x))),
    "hardsigmoid": (F.hardsigmoid, lambda x: np.clip(x + 3, 0, 6) / 6),
    "hardswish": (F.hardswish, lambda x: x * np.clip(x + 3, 0, 6) / 6),
    "mish": (F.mish, lambda x: x * np.tanh(np.logaddexp(0, x))),
}
SHAPES: list[tuple[int, ...]] = [(), (7,), (3, 5), (2, 0, 3)]


@each("dtype", DTYPES)
@each("name", POINTWISE)
def test_one_element_at_a_time(name: str, dtype: DType) -> None:
    function, oracle = POINTWISE[name]
    for shape in SHAPES:
        x = data(shape, dtype, scale=3.0)
        agrees(function(weft.asarray(x)), oracle(wide(x)), dtype)


LARGE = {"relu", "gelu", "silu", "sigmoid", "softplus", "log_sigmoid", "leaky_relu", "elu", "selu",
         "hardswish", "mish", "gelu tanh"}  # fmt: skip


@each("dtype", DTYPES)
@each("name", sorted(LARGE))
def test_far_from_zero_nothing_overflows(name: str, dtype: DType) -> None:
    function, oracle = POINTWISE[name]
    x = np.asarray([-30000.0, -200.0, -20.0, 20.0, 200.0, 30000.0]).astype(dtype.numpy)
    with np.errstate(over="ignore"):
        exact = oracle(wide(x))
    agrees(function(weft.asarray(x)), exact, dtype)


NARROW = ("gelu", "gelu tanh", "silu", "sigmoid", "softplus", "softplus 2, 1", "log_sigmoid", "elu",
          "elu 0.5", "selu", "mish")  # fmt: skip


@each("dtype", [F16, BF16])
@each("name", NARROW)
def test_narrow_floats_are_rounded_once(name: str, dtype: DType) -> None:
    """Every element is one of the neighbours of the exact value, small ones too."""
    function, oracle = POINTWISE[name]
    x = np.linspace(-15.0, 15.0, 301).astype(dtype.numpy)
    exact = oracle(wide(x))
    step = np.spacing(np.abs(exact).astype(dtype.numpy)).astype(np.float64)
    # 1 + erf and 1 + tanh, and what is left of them, are known to half a unit of f32 at 1.
    lost = 2.0**-24 * np.abs(wide(x)) if name.startswith("gelu") else 0.0
    found = wide(function(weft.asarray(x)).numpy())
    assert (np.abs(found - exact) <= 0.51 * step + lost).all()


def test_the_small_values_of_f16() -> None:
    x = np.asarray([-15.0, -12.0, -9.0], np.float16)
    np.testing.assert_array_equal(
        F.sigmoid(weft.asarray(x)).numpy(), special.expit(wide(x)).astype(np.float16)
    )
    np.testing.assert_array_equal(
        F.silu(weft.asarray(x)).numpy(), (wide(x) * special.expit(wide(x))).astype(np.float16)
    )


@pytest.mark.parametrize("name", POINTWISE)
def test_nan_stays_nan(name: str) -> None:
    found = POINTWISE[name][0](weft.asarray(np.asarray([np.nan], np.float32))).numpy()
    assert np.isnan(found).all()


ALONG: dict[str, tuple[Callable[..., Any], Callable[[Array, int], Array]]] = {
    "softmax": (F.softmax, lambda x, axis: special.softmax(x, axis)),
    "log_softmax": (F.log_softmax, lambda x, axis: special.log_softmax(x, axis)),
    "glu": (F.glu, lambda x, axis: halves(x, axis)[0] * special.expit(halves(x, axis)[1])),
    "swiglu": (
        F.swiglu,
        lambda x, axis: halves(x, axis)[0] * special.expit(halves(x, axis)[0]) * halves(x, axis)[1],
    ),
}


@each("dtype", DTYPES)
@each("name", ALONG)
@each(("shape", "axis"), [((6,), -1), ((4, 6), 0), ((2, 8, 3), 1), ((0, 4), 1)])
def test_along_an_axis(name: str, dtype: DType, shape: tuple[int, ...], axis: int) -> None:
    function, oracle = ALONG[name]
    x = data(shape, dtype, scale=4.0)
    agrees(function(weft.asarray(x), axis), oracle(wide(x), axis), dtype)


def test_the_softmax_of_large_scores_is_finite() -> None:
    x = np.asarray([[1e4, 1e4 - 1.0], [-np.inf, 0.0]], np.float32)
    agrees(F.softmax(weft.asarray(x)), special.softmax(wide(x), -1))


def test_the_softmax_of_nothing_is_nothing() -> None:
    assert F.softmax(weft.zeros((3, 0))).numpy().shape == (3, 0)


def test_methods_are_the_functions() -> None:
    x = weft.asarray(data((4,)))
    for name in ("softmax", "log_softmax", "relu", "gelu", "silu", "sigmoid"):
        np.testing.assert_array_equal(getattr(x, name)().numpy(), getattr(F, name)(x).numpy())


@each("dtype", DTYPES)
@each("axis", [None, 0, -1, (0, 2)])
@each("keepdims", [False, True])
def test_logsumexp(axis: Any, keepdims: bool, dtype: DType) -> None:
    for shape in [(2, 3, 5), (2, 0, 3), (1, 1, 1)]:
        x = data(shape, dtype, scale=3.0)
        with np.errstate(divide="ignore"):
            exact = np.log(np.exp(wide(x)).sum(axis=axis, keepdims=keepdims))
        agrees(F.logsumexp(weft.asarray(x), axis, keepdims), np.asarray(exact), dtype)


def test_logsumexp_of_infinities() -> None:
    x = np.array([[1e3, 1e3, -np.inf], [-np.inf] * 3, [np.inf, 1, 2], [np.nan, 0, 1]], np.float32)
    np.testing.assert_allclose(
        weft.asarray(x).logsumexp(-1).numpy(), special.logsumexp(wide(x), axis=-1), rtol=1e-6
    )


@pytest.mark.parametrize("name", ["hardsigmoid", "hardswish"])
def test_pieces_of_lines_are_rounded_once(name: str) -> None:
    x = np.linspace(-4, 4, 1001).astype(np.float16)
    wide = x.astype(np.float64)
    share = np.clip(wide + 3, 0, 6) / 6
    want = (share if name == "hardsigmoid" else wide * share).astype(np.float16)
    found = getattr(F, name)(weft.asarray(x))
    assert found.dtype is weft.float16
    np.testing.assert_array_equal(found.numpy(), want)
