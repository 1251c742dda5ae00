"""NumPy's functions on tensors: Weft's own where it has one, and NumPy's on the elements else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft.foundation.errors import UserError

DATA = np.linspace(-2.0, 3.0, 12).astype(np.float32).reshape(3, 4)
ROW = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
SQUARE = np.array([[2.0, 1.0], [1.0, 3.0]], np.float32)

STAYS: dict[str, Callable[[Any], Any]] = {
    "sum": np.sum,
    "sum of an axis": lambda x: np.sum(x, axis=0),
    "mean": lambda x: np.mean(x, 1, keepdims=True),
    "exp": np.exp,
    "arctan": np.arctan,
    "add": lambda x: np.add(x, ROW),
    "array + x": lambda x: ROW + x,
    "array - x": lambda x: ROW - x,
    "array @ x": lambda x: ROW @ x.T,
    "array < x": lambda x: ROW < x,  # noqa: SIM300
    "number * x": lambda x: np.float32(2) * x,
    "power": lambda x: np.power(x, 2),
    "maximum": lambda x: np.maximum(x, 0),
    "concatenate": lambda x: np.concatenate([x, x], axis=1),
    "where": lambda x: np.where(x > 0, x, 0),
    "transpose": np.transpose,
    "reshape": lambda x: np.reshape(x, (4, 3)),
    "cumsum": lambda x: np.cumsum(x, axis=1),
    "flat cumsum": np.cumsum,
    "einsum": lambda x: np.einsum("ij->i", x),
    "isfinite": np.isfinite,
    "sort": lambda x: np.sort(x, axis=0),
    "linalg.inv": lambda x: np.linalg.inv(SQUARE + 0 * x[:2, :2]),
    "median": lambda x: np.median(x, axis=0),
    "tril": lambda x: np.tril(x, 1),
}
BY_NUMPY: dict[str, Callable[[Any], Any]] = {
    "ddof": lambda x: np.std(x, ddof=1),
    "flat take": lambda x: np.take(x, [7, 2]),
    "reduce": np.add.reduce,
    "norm": np.linalg.norm,
    "histogram": lambda x: np.histogram(x, bins=3)[0],
    "out": lambda x: np.add(x, 1, out=np.zeros((3, 4), np.float32)),
    "trace": np.trace,
}


@pytest.mark.parametrize("name", STAYS)
def test_a_function_that_weft_has_gives_a_lazy_tensor(name: str) -> None:
    found = STAYS[name](weft.asarray(DATA))
    assert isinstance(found, weft.Tensor)
    assert found.is_lazy
    np.testing.assert_allclose(np.asarray(found), STAYS[name](DATA), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", BY_NUMPY)
def test_any_other_is_numpys_own(name: str) -> None:
    found = BY_NUMPY[name](weft.asarray(DATA))
    assert isinstance(found, np.ndarray | np.generic)
    np.testing.assert_allclose(np.asarray(found), BY_NUMPY[name](DATA), rtol=1e-5)


def test_what_is_known_without_reading_is_not_read() -> None:
    x = weft.asarray(DATA) * 2
    assert (np.shape(x), np.ndim(x), np.size(x)) == ((3, 4), 2, 12)
    assert x.is_lazy


def test_an_array_that_a_tensor_is_added_to_stays_an_array() -> None:
    total = np.zeros(4, np.float32)
    total += weft.asarray(ROW)
    assert isinstance(total, np.ndarray)
    np.testing.assert_array_equal(total, ROW)


def test_a_traced_function_may_use_them() -> None:
    traced = weft.jit(lambda x: np.sum(np.exp(x) * ROW))
    np.testing.assert_allclose(traced(weft.asarray(DATA)).item(), (np.exp(DATA) * ROW).sum(), 1e-5)
    with pytest.raises(UserError, match="known only when the function runs"):
        weft.jit(lambda x: np.histogram(x)[0])(weft.asarray(DATA))


def test_a_tensor_is_no_place_for_a_result() -> None:
    x = weft.asarray(ROW)
    with pytest.raises(UserError, match="cannot be the `out`"):
        np.add(ROW, 1, out=x)
