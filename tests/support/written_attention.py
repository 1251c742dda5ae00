"""Attention written out in ways that one kernel does not read as they stand: with other weights
than powers over their sum, with operands or biases that lie elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import weft
from weft import functional as F
from weft.ptir import Program

WIDE: Final = "f32"


def _scores(q: Any, k: Any) -> Any:
    return (q @ weft.swapaxes(k, -1, -2) * 0.125).astype(WIDE)


def with_sinks(q: Any, k: Any, v: Any, sink: Any) -> Any:
    """Each head has one more weight, of nothing; the first query sees that alone."""
    rows, columns = weft.arange(q.shape[-2]), weft.arange(k.shape[-2])
    scores = _scores(q, k)
    if q.shape[-2] > 1:
        scores = weft.where(columns[None, :] < rows[:, None], scores, -weft.inf)
    sunk = sink.astype(WIDE)[:, None, None]
    top = weft.maximum(weft.max(scores, axis=-1, keepdims=True), sunk)
    powers = weft.exp(scores - top)
    total = weft.sum(powers, axis=-1, keepdims=True) + weft.exp(sunk - top)
    return (powers / total).astype(q.dtype) @ v


def with_sinks_and_sums(q: Any, k: Any, v: Any, sink: Any) -> Any:
    """And the logarithm of the sums."""
    scores, sunk = _scores(q, k), sink.astype(WIDE)[:, None, None]
    top = weft.maximum(weft.max(scores, axis=-1, keepdims=True), sunk)
    powers = weft.exp(scores - top)
    total = weft.sum(powers, axis=-1, keepdims=True) + weft.exp(sunk - top)
    return (powers / total).astype(q.dtype) @ v, (top + weft.log(total))[..., 0]


def by_inverses(q: Any, k: Any, v: Any, _: Any) -> Any:
    scores = _scores(q, k)
    powers = weft.exp(scores - weft.max(scores, axis=-1, keepdims=True))
    return (powers * (1.0 / weft.sum(powers, axis=-1, keepdims=True))).astype(q.dtype) @ v


def by_a_little_more(q: Any, k: Any, v: Any, _: Any) -> Any:
    scores = _scores(q, k)
    powers = weft.exp(scores - weft.max(scores, axis=-1, keepdims=True))
    return (powers / (weft.sum(powers, axis=-1, keepdims=True) + 1e-3)).astype(q.dtype) @ v


def with_factors(write: Any, queries: int = 40, keys: int = 40) -> Program:
    shapes = [(2, 2, queries, 32), *[(2, 2, keys, 32)] * 2, (2,)]
    found: Program = weft.jit(write).program(*(weft.zeros(s, dtype="bf16") for s in shapes))
    return found


def sinks_trained() -> Program:
    """The result and all gradients, of sinks too."""

    def both(q: Any, k: Any, v: Any, sink: Any) -> Any:
        result, pull = weft.vjp(with_sinks, q, k, v, sink)
        return (result, *pull(q))

    return with_factors(both)


FACTORS: Final = {
    "sinks": with_sinks,
    "sinks, and their sums": with_sinks_and_sums,
    "inverses": by_inverses,
    "a little more": by_a_little_more,
}
"""Weights that are a factor of each row away from a softmax."""


def turned_values(q: Any, k: Any, v: Any) -> Any:
    return _mixed(q @ weft.swapaxes(k, -1, -2) * 0.125, weft.swapaxes(v, -1, -2))


def picked(q: Any, k: Any, v: Any, table: Any) -> Any:
    """A bias of each head, by how far keys are."""
    rows, columns = weft.arange(q.shape[-2]), weft.arange(k.shape[-2])
    apart = weft.minimum(weft.abs(columns[None, :] - rows[:, None]), 7)
    bias = weft.reshape(weft.take(table, weft.reshape(apart, (-1,)), axis=0), (*apart.shape, -1))
    scores = q @ weft.swapaxes(k, -1, -2) * 0.125 + weft.permute_dims(bias, (2, 0, 1))
    return _mixed(scores, v)


def windows(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """A mask of each of the windows that an image has."""
    scores = q @ weft.swapaxes(k, -1, -2) * 0.125
    apart = weft.reshape(scores, (-1, mask.shape[0], *scores.shape[1:])) + mask[None, :, None]
    return _mixed(weft.reshape(apart, scores.shape), v)


def _mixed(scores: Any, v: Any) -> Any:
    return F.softmax(scores.astype("f32"), -1).astype(v.dtype) @ v


STORED: Final[dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], int]]] = {
    "keys transposed": (
        lambda q, k, v: _mixed(q @ k * 0.125, v),
        ((1, 2, 40, 32), (1, 2, 32, 48), (1, 2, 48, 32)), 1,
    ),
    "values transposed": (
        turned_values, ((1, 2, 40, 32), (1, 2, 48, 32), (1, 2, 32, 48)), 1,
    ),
    "a bias from a table": (
        picked, ((2, 2, 40, 32), (2, 2, 48, 32), (2, 2, 48, 32), (8, 2)), 1,
    ),
    "masks of windows": (windows, ((4, 2, 49, 32),) * 3 + ((2, 49, 49),), 0),
}  # fmt: skip
"""Functions, the shapes of what they read, and how many maps store what the kernel reads."""


def stored(name: str) -> Program:
    function, shapes, _ = STORED[name]
    found: Program = weft.jit(function).program(*(weft.zeros(s, dtype="bf16") for s in shapes))
    return found
