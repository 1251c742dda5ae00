"""Gradients through products of shares: right against differences, in every layout and with all
that shares may be multiplied by; nothing of rows and columns is kept for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import weft
import weft.functional as F

ROWS, COLUMNS, DEPTH = 3, 5, 4


def _shares(scores: Any) -> Any:
    return F.softmax(scores, -1)


def _plain(q: Any, k: Any, v: Any, c: Any) -> Any:
    return _shares(q @ weft.swapaxes(k, -1, -2)) @ v


def _masked(q: Any, k: Any, v: Any, c: Any) -> Any:
    seen = weft.arange(COLUMNS)[None, :] != weft.arange(ROWS)[:, None]
    scores = weft.where(seen, q @ weft.swapaxes(k, -1, -2), -1e300)
    weights = weft.where(seen[:, ::-1], _shares(scores) / 0.75, 0.0)
    return (2.0 * weights) @ v


def _turned(q: Any, k: Any, v: Any, c: Any) -> Any:
    weights = _shares(weft.einsum("brd,bcd->rbc", q, k))
    return weft.einsum("bcd,rbc->brd", v, weights)


def _joined(q: Any, k: Any, v: Any, c: Any) -> Any:
    weights = _shares(q @ weft.swapaxes(k, -1, -2))
    mixed = weft.reshape(weights, (1, 2, ROWS, COLUMNS)) @ weft.reshape(v, (1, 2, COLUMNS, DEPTH))
    return weft.reshape(mixed, (2, ROWS, DEPTH))


def _beside(q: Any, k: Any, v: Any, c: Any) -> Any:
    scores = q @ weft.swapaxes(k, -1, -2)
    top = weft.maximum(weft.max(scores, axis=-1, keepdims=True), c)
    powers = weft.exp(scores - top)
    return (powers / (weft.sum(powers, axis=-1, keepdims=True) + weft.exp(c - top))) @ v


def _quiet(q: Any, k: Any, v: Any, c: Any) -> Any:
    return _beside(q, k, v, weft.zeros_like(c))


WAYS: Final[list[Callable[..., Any]]] = [_plain, _masked, _turned, _joined, _beside, _quiet]


def _operands() -> list[Any]:
    rng = np.random.default_rng(2)
    shapes = [(2, ROWS, DEPTH), (2, COLUMNS, DEPTH), (2, COLUMNS, DEPTH), (2, ROWS, 1)]
    return [rng.standard_normal(shape) for shape in shapes]


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_of_differences(way: Callable[..., Any]) -> None:
    operands, rng = _operands(), np.random.default_rng(3)
    weight = rng.standard_normal((2, ROWS, DEPTH))

    def loss(*given: Any) -> Any:
        return weft.sum(way(*given) * weft.tensor(weight))

    tensors = [weft.tensor(x) for x in operands]
    _, found = weft.value_and_grad(loss, argnums=(0, 1, 2, 3))(*tensors)
    for place, gradient in enumerate(found):
        step = rng.standard_normal(operands[place].shape)
        ends = []
        for sign in (1e-6, -1e-6):
            moved = [x + sign * step if n == place else x for n, x in enumerate(operands)]
            ends.append(float(loss(*map(weft.tensor, moved)).numpy()))
        wanted = (ends[0] - ends[1]) / 2e-6
        assert float((gradient.numpy() * step).sum()) == pytest.approx(wanted, abs=1e-7, rel=1e-6)


def test_rows_that_see_nothing_by_a_lowest_number_have_equal_shares() -> None:
    """exp(x - lse) would be 1 there: beside the lowest number a logarithm is lost."""

    def loss(x: Any, v: Any) -> Any:
        scores = x @ weft.swapaxes(v, -1, -2) + weft.full((1, 4), -3e38, dtype=x.dtype)
        return weft.sum(_shares(scores) @ v)

    v = weft.tensor(np.eye(4, dtype=np.float32) * 3).astype(weft.bfloat16)
    x = weft.tensor(np.ones((1, 4), np.float32)).astype(weft.bfloat16)
    found = weft.grad(loss, argnums=1)(x, v).astype(weft.float32).numpy()
    np.testing.assert_allclose(found, np.full((4, 4), 0.25), rtol=1e-6)
