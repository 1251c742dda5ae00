"""Functions beyond the standard against NumPy's of the same names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

import weft
from tests.support.cases import each
from tests.unit.ops.array.arrays import agrees, data
from weft.foundation.errors import OutOfRange, UserError

X = data("float32", (3, 4))
Y = data("float32", (4, 3), seed=1)
CUBE = data("float32", (2, 3, 4), seed=2)
ODD = np.array([[3.0, np.nan, 1.0], [2.0, -1.0, np.inf]], np.float32)

CASES: dict[str, Callable[[Any], Any]] = {
    "transpose": lambda m: m.transpose(own(m, CUBE)),
    "transpose by axes": lambda m: m.transpose(own(m, CUBE), (2, 0, 1)),
    "swapaxes": lambda m: m.swapaxes(own(m, CUBE), 0, -1),
    "ravel": lambda m: m.ravel(own(m, CUBE)),
    "ravel of nothing": lambda m: m.ravel(own(m, np.zeros((0, 3), np.float32))),
    "split": lambda m: m.split(own(m, X), 2, axis=1)[1],
    "split at positions": lambda m: m.split(own(m, X), [1, 1, 7])[2],
    "hstack": lambda m: m.hstack([own(m, X), own(m, X)]),
    "hstack of vectors": lambda m: m.hstack([own(m, X[0]), own(m, X[1])]),
    "vstack": lambda m: m.vstack([own(m, X[0]), own(m, X)]),
    "dot of matrices": lambda m: m.dot(own(m, X), own(m, Y)),
    "dot of cubes": lambda m: m.dot(own(m, CUBE), own(m, Y)),
    "dot with a number": lambda m: m.dot(own(m, X), 2.0),
    "diag of a vector": lambda m: m.diag(own(m, X[0]), 1),
    "diag of a matrix": lambda m: m.diag(own(m, X), -1),
    "isclose": lambda m: m.isclose(own(m, ODD), own(m, ODD + 1e-7)),
    "isclose with NaN": lambda m: m.isclose(own(m, ODD), own(m, ODD), equal_nan=True),
    "isclose of integers": lambda m: m.isclose(own(m, np.arange(3)), 1),
    "allclose": lambda m: m.allclose(own(m, X), own(m, X)),
    "array_equal": lambda m: m.array_equal(own(m, X), own(m, X)),
    "array_equal of shapes": lambda m: m.array_equal(own(m, X), own(m, Y)),
    "nan_to_num": lambda m: m.nan_to_num(own(m, ODD), nan=7.0),
    "median": lambda m: m.median(own(m, X), axis=1),
    "median of all": lambda m: m.median(own(m, X)),
    "median with NaN": lambda m: m.median(own(m, ODD), axis=1),
    "quantile": lambda m: m.quantile(own(m, CUBE), 0.3, axis=(0, 2), keepdims=True),
    "quantiles": lambda m: m.quantile(own(m, X), [0.0, 0.25, 1.0], axis=0),
    "isin": lambda m: m.isin(own(m, np.arange(6).reshape(2, 3)), own(m, np.array([1, 5]))),
    "isin, inverted": lambda m: m.isin(own(m, np.arange(3)), own(m, np.array([1])), invert=True),
    "argwhere": lambda m: m.argwhere(own(m, X > 0)),
    "cumsum": lambda m: m.cumsum(own(m, X), 1),
    "cumsum of all": lambda m: m.cumsum(own(m, X)),
    "cumprod": lambda m: m.cumprod(own(m, X), axis=0),
    "cumprod of all": lambda m: m.cumprod(own(m, X)),
    "NumPy's cumsum": lambda m: np.cumsum(own(m, X)),
    "concatenate": lambda m: m.concatenate([own(m, X), own(m, X)], 1),
    "power": lambda m: m.power(own(m, X), 3),
    "mod": lambda m: m.mod(own(m, X), 2),
    "absolute": lambda m: m.absolute(own(m, X)),
    "unique": lambda m: m.unique(own(m, np.array([3, 1, 3]))),
}
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "erf": scipy.special.erf,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
}
METHODS: dict[str, Callable[[Any], Any]] = {
    "transpose": lambda x: x.transpose(),
    "transpose by axes": lambda x: x.transpose(1, 0),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "flatten": lambda x: x.flatten(),
    "ravel": lambda x: x.ravel(),
    "copy": lambda x: x.copy(),
    "cumsum": lambda x: x.cumsum(0),
    "cumsum of all": lambda x: x.cumsum(),
    "cumprod": lambda x: x.cumprod(axis=1),
    "dot": lambda x: x.dot(x.T),
    "diagonal": lambda x: x.diagonal(),
    "trace": lambda x: x.trace(),
    "conjugate": lambda x: x.conjugate(),
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "squeeze": lambda x: x[:1].squeeze(),
    "sum": lambda x: x.sum(0),
    "max": lambda x: x.max(-1),
    "argmax": lambda x: x.argmax(0),
    "std": lambda x: x.std(1),
    "sort": lambda x: x.sort(-1) if isinstance(x, weft.Tensor) else np.sort(x, -1),
    "repeat": lambda x: x.repeat(2, 1),
    "all": lambda x: x.all(0),
    "divmod": lambda x: divmod(x, 2)[1],
}


def own(module: Any, x: Any) -> Any:
    """An array as the module's own."""
    return weft.asarray(x) if module is weft else x


@each("name", CASES)
def test_functions_agree_with_numpy(name: str) -> None:
    exact = np.asarray(CASES[name](np))
    found = CASES[name](weft)
    assert found.shape == exact.shape
    np.testing.assert_allclose(np.asarray(found), exact, rtol=1e-5, atol=1e-6)


@each("name", METHODS)
def test_methods_agree_with_numpy(name: str) -> None:
    found, exact = METHODS[name](weft.asarray(X)), np.asarray(METHODS[name](X))
    assert found.shape == exact.shape
    np.testing.assert_allclose(np.asarray(found), exact, rtol=1e-5, atol=1e-6)


def test_shapes_broadcast_together() -> None:
    assert weft.broadcast_shapes((3, 1), (4,), ()) == np.broadcast_shapes((3, 1), (4,), ())
    with pytest.raises(OutOfRange, match=r"\[broadcast_shapes\] lhs \(3,\) and rhs \(2,\)"):
        weft.broadcast_shapes((3,), (2,))


def test_a_method_where_keeps_the_tensor() -> None:
    agrees(weft.asarray(X).where(weft.asarray(X > 0), 0.0), np.where(X > 0, X, 0), "float32")


def test_numbers_are_searched_for() -> None:
    assert weft.searchsorted(weft.asarray([1, 2, 4]), 2.5).item() == 2


@pytest.mark.parametrize("left", ["int8", "uint16", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("right", ["int8", "int32", "float32"])
def test_many_elements_are_found_among_many(left: str, right: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(0, 120, (30, 41)).astype(left)
    y = rng.integers(5, 127, (1, 1201)).astype(right) * 2 % 120
    if x.dtype.kind == "f":
        x[0, :6] = [np.nan, np.inf, -np.inf, -0.0, 0.0, 0.5]
    if y.dtype.kind == "f":
        y[0, :4] = [np.nan, np.inf, -0.0, 0.5]
    common = np.result_type(x, y) if "f" in (x.dtype.kind, y.dtype.kind) else np.int64
    expected = (x.astype(common)[..., None] == y.astype(common)[0]).any(-1)
    assert expected.any()
    assert not expected.all()
    operands = weft.asarray(x), weft.asarray(y)
    agrees(weft.isin(*operands), expected, "bool")
    agrees(weft.isin(*operands, invert=True), ~expected, "bool")


@pytest.mark.parametrize("sizes", [(1500, 1500), (1500, 3), (0, 1500), (1500, 0)])
@pytest.mark.parametrize("dtype", ["bool", "complex64", "int64"])
def test_elements_are_found_whatever_their_kind_and_number(
    dtype: str, sizes: tuple[int, int]
) -> None:
    x, y = (
        (np.arange(size) * step % 1700).astype(dtype)
        for size, step in zip(sizes, (3, 5), strict=True)
    )
    agrees(weft.isin(weft.asarray(x), weft.asarray(y)), np.isin(x, y), "bool")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.transpose(0, 1), "in NumPy and exchanges its axes in PyTorch; write x.T"),
        (lambda x: weft.ones((2, 3, 4)).transpose(1, 2), "x.swapaxes exchanges two"),
        (lambda x: weft.split(x, 3, axis=1), "cannot be cut into 3 equal parts"),
        (lambda x: weft.quantile(x, 2.0), "q is 2.0 .give numbers from 0 to 1"),
        (lambda x: weft.median(weft.zeros((0,))), "has no elements along axes"),
        (lambda x: weft.diag(weft.ones((2, 2, 2))), "a vector or a matrix is wanted"),
    ],
)
def test_mistakes_are_told_in_a_sentence(call: Any, message: str) -> None:
    with pytest.raises((UserError, OutOfRange), match=message):
        call(weft.asarray(X))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_that_numpy_lacks(name: str) -> None:
    for x in (np.abs(X) + 0.1, np.abs(X.astype(np.float64)) + 0.1, np.arange(1, 5)):
        expected = FUNCTIONS[name](x.astype(np.float64))
        for found in (getattr(weft, name)(weft.asarray(x)), getattr(weft.asarray(x), name)()):
            rounding = 1e-12 if found.dtype is weft.float64 else 1e-6
            np.testing.assert_allclose(found.numpy(), expected, rtol=rounding)


def test_the_gelu_of_the_books_is_found_before_its_gradient() -> None:
    def by_hand(x: Any) -> Any:
        return weft.sum(0.5 * x * (1.0 + weft.erf(x / math.sqrt(2.0))))

    wide = X.astype(np.float64)
    density = np.exp(-(wide**2) / 2.0) / math.sqrt(2.0 * math.pi)
    expected = 0.5 * (1.0 + scipy.special.erf(wide / math.sqrt(2.0))) + wide * density
    np.testing.assert_allclose(weft.grad(by_hand)(X).numpy(), expected, rtol=1e-5, atol=1e-6)
    value = weft.jit(weft.value_and_grad(by_hand)).program(X)
    assert "byteir.gelu" in [i.op.mnemonic for i in value.main.body]
