"""Attention as people write it: scores, softmax and weights rounded where their programs round
them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import weft
import weft.functional as F
from weft.ptir import Program

WIDE: Final = weft.float32
HEADS, LENGTH, DEPTH = 2, 40, 32
LOWEST: Final = -3.3e38


def _turned(k: Any) -> Any:
    return weft.swapaxes(k, -1, -2)


def _seen() -> Any:
    place = weft.arange(LENGTH)
    return place[None, :] <= place[:, None]


def _mixed(scores: Any, v: Any) -> Any:
    return F.softmax(scores.astype(WIDE), -1).astype(v.dtype) @ v


def _narrow(q: Any, k: Any, v: Any) -> Any:
    return F.softmax(q @ _turned(k) / 8.0, -1) @ v


def _added_mask(q: Any, k: Any, v: Any) -> Any:
    scores = q @ _turned(k) * 0.125
    return _mixed(scores + weft.where(_seen(), 0.0, LOWEST).astype(q.dtype), v)


def _selected(q: Any, k: Any, v: Any) -> Any:
    return _mixed(weft.where(_seen(), q @ _turned(k) * 0.125, LOWEST), v)


def _wide_operands(q: Any, k: Any, v: Any) -> Any:
    scores = q.astype(WIDE) @ _turned(k).astype(WIDE) * 0.125
    return F.softmax(scores, -1).astype(v.dtype) @ v


def _wide_throughout(q: Any, k: Any, v: Any) -> Any:
    scores = q.astype(WIDE) @ _turned(k).astype(WIDE) * 0.125
    return (F.softmax(scores, -1) @ v.astype(WIDE)).astype(q.dtype)


def _scaled_queries(q: Any, k: Any, v: Any) -> Any:
    return _mixed((q * 0.125) @ _turned(k), v)


def _steps(q: Any, k: Any, v: Any) -> Any:
    scores = (q @ _turned(k) * 0.125).astype(WIDE)
    powers = weft.exp(scores - weft.max(scores, axis=-1, keepdims=True))
    return (powers / weft.sum(powers, axis=-1, keepdims=True)).astype(q.dtype) @ v


def _shared_heads(q: Any, k: Any, v: Any) -> Any:
    return _added_mask(q, *(weft.repeat(x[:, :1], HEADS, axis=1) for x in (k, v)))


def _einsum(q: Any, k: Any, v: Any) -> Any:
    scores = weft.einsum("bhqd,bhkd->bhqk", q, k) * 0.125
    return weft.einsum("bhqk,bhkd->bhqd", F.softmax(scores.astype(WIDE), -1).astype(q.dtype), v)


def _sloped(q: Any, k: Any, v: Any) -> Any:
    place = weft.arange(LENGTH)
    slope = weft.exp2(-(weft.arange(HEADS) + 1).astype(WIDE))[:, None, None]
    bias = (slope * (place[None, :] - place[:, None]).astype(WIDE)).astype(q.dtype)
    return _mixed(weft.where(_seen(), q @ _turned(k) * 0.125 + bias[None], LOWEST), v)


def _dropped(q: Any, k: Any, v: Any) -> Any:
    weights = F.softmax((q @ _turned(k) * 0.125).astype(WIDE), -1).astype(q.dtype)
    return F.dropout(weights, 0.1, seed=7) @ v


def _quiet(q: Any, k: Any, v: Any) -> Any:
    """Softmax with 1 + the sum of powers."""
    scores = (q @ _turned(k) * 0.125).astype(WIDE)
    top = weft.maximum(weft.max(scores, axis=-1, keepdims=True), 0.0)
    powers = weft.exp(scores - top)
    total = weft.sum(powers, axis=-1, keepdims=True) + weft.exp(-top)
    return (powers / total).astype(q.dtype) @ v


Spelling = Callable[[Any, Any, Any], Any]
SPELLED: Final[dict[str, Spelling]] = {
    "narrow throughout": _narrow,
    "a mask added": _added_mask,
    "scores selected": _selected,
    "queries and keys widened": _wide_operands,
    "wide throughout": _wide_throughout,
    "queries scaled": _scaled_queries,
    "softmax in steps": _steps,
    "shared heads": _shared_heads,
    "einsums": _einsum,
    "slopes": _sloped,
    "dropout": _dropped,
    "one more in the sum": _quiet,
}
"""What becomes the kernel of an attention, and its gradients the two of streams."""


def _wide_weights(q: Any, k: Any) -> Any:
    return F.softmax(q.astype(WIDE) @ _turned(k).astype(WIDE), -1)


WIDE_RESULTS: Final[dict[str, tuple[Spelling, bool]]] = {
    "wide weights": (lambda q, k, v: _wide_weights(q, k) @ v.astype(WIDE), False),
    "and a sum": (
        lambda q, k, v: (_wide_weights(q, k) @ v.astype(WIDE) + q).astype(q.dtype),
        False,
    ),
    "and a row of them": (
        lambda q, k, v: weft.sum(_wide_weights(q, k) @ v.astype(WIDE), -1),
        False,
    ),
    "rounded weights": (
        lambda q, k, v: _wide_weights(q, k).astype(q.dtype).astype(WIDE) @ v.astype(WIDE),
        True,
    ),
    "a rounded result": (
        lambda q, k, v: (_wide_weights(q, k) @ v.astype(WIDE) * 3).astype(q.dtype).astype(WIDE),
        True,
    ),
}
"""What has a wide result, and whether the kernel of an attention, which rounds its weights, may
make it."""


def program_of(write: Spelling, dtype: str = "bfloat16") -> Program:
    """The result and the gradients of queries, keys and values, from a cotangent."""

    def both(q: Any, k: Any, v: Any, g: Any) -> Any:
        result, pull = weft.vjp(write, q, k, v)
        return (result, *pull(g))

    given = [weft.tensor(x).astype(getattr(weft, dtype)) for x in numbers()]
    made: Program = weft.jit(both).program(*given)
    return made


def numbers() -> list[NDArray[Any]]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal((1, HEADS, LENGTH, DEPTH)).astype(np.float32) for _ in range(4)]
