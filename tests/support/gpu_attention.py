"""Programs with an attention in them, the usual spellings and masks, for tests with and without a
GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.codegen.gpu import ir
from weft.ptir import Builder, Program, Value
from weft.ptir.gradient import vjp


@dataclass(frozen=True)
class Case:
    """An attention: batch, heads of queries and of keys, lengths, elements of keys and values."""

    heads: int = 2
    shared: int = 1
    """Query heads that share keys and values."""
    queries: int = 96
    keys: int = 96
    depth: int = 64
    width: int = 64
    dtype: str = "bf16"
    causal: bool = False
    window: int = 0
    mask: str = ""
    """The dtype of a mask that is added; of i1, what it hides is -inf."""
    lse: bool = False
    """Whether the log-sum-exp of the scores is a result too."""

    def program(self) -> Program:
        b = Builder("attention")
        q = b.param(self.dtype, [1, self.heads, self.queries, self.depth])
        own = self.heads // self.shared
        k = b.param(self.dtype, [1, own, self.keys, self.depth])
        v = b.param(self.dtype, [1, own, self.keys, self.width])
        masks = self._masks(b)
        causal = self.causal or self.window > 0
        found = b.emit("weft.attention", q, k, v, *masks, causal=causal)
        return b.build(found[0], found[1]) if self.lse else b.build(found[0])

    def gradients(self) -> Program:
        """The results, and the gradients of queries, keys and values, from cotangents."""
        return vjp(self.program(), (0, 1, 2))

    def _masks(self, b: Builder) -> list[Value]:
        shape = [1, 1, self.queries, self.keys]
        if self.window:
            ahead = b.iota("si32", shape, 3) - b.iota("si32", shape, 2)
            return [_hiding(b, ahead > -self.window, shape)]
        if self.mask == "i1":
            return [_hiding(b, b.param("i1", shape), shape)]
        return [b.param(self.mask, shape)] if self.mask else []


def _hiding(b: Builder, seen: Value, shape: list[int]) -> Value:
    made = b.emit("select", seen, b.full(shape, 0.0, "f32"), b.full(shape, -math.inf, "f32"))
    assert isinstance(made, Value)
    return made


CASES: Final[dict[str, Case]] = {
    "plain": Case(),
    "causal": Case(queries=200, keys=200, causal=True, heads=1),
    "causal, rows of 128": Case(queries=150, keys=150, causal=True, heads=1, depth=128, width=128),
    "more keys than queries": Case(queries=40, keys=300, causal=True, heads=1),
    "shared heads": Case(heads=4, shared=2, causal=True),
    "window": Case(queries=330, keys=330, window=20, heads=1),
    "mask in bf16": Case(mask="bf16", queries=72, keys=136),
    "mask in f32": Case(mask="f32", queries=72, keys=136, heads=1),
    "mask of truth values": Case(mask="i1", queries=80, keys=144),
    "odd mask": Case(mask="f32", queries=33, keys=77, heads=1),
    "odd lengths": Case(queries=67, keys=131, heads=1),
    "values of their own width": Case(depth=32, width=96),
    "f16": Case(dtype="f16", causal=True),
    "log-sum-exp": Case(queries=70, keys=70, causal=True, lse=True),
    "mask beside rows of 256": Case(
        mask="f32", queries=33, keys=100, heads=1, depth=256, width=256
    ),
}
"""By what is special about each."""


FEW: Final[dict[str, Case]] = {
    "one query": Case(queries=1, keys=300),
    "one query, shared heads": Case(heads=4, shared=4, queries=1, keys=512, depth=128, width=128),
    "one query, causal": Case(heads=2, shared=2, queries=1, keys=333, causal=True),
    "eight queries, shared heads": Case(heads=4, shared=2, queries=8, keys=200),
    "causal, shared heads": Case(heads=2, shared=2, queries=5, keys=333, causal=True),
    "48 rows, log-sum-exp": Case(heads=4, shared=4, queries=12, keys=130, lse=True),
    "64 rows": Case(heads=8, shared=8, queries=8, keys=150, depth=128, width=72),
    "window": Case(queries=3, keys=300, window=20),
    "mask in f32": Case(queries=1, keys=300, mask="f32"),
    "mask of truth values": Case(shared=2, queries=3, keys=300, mask="i1"),
    "f16, log-sum-exp": Case(heads=1, queries=2, keys=1000, dtype="f16", lse=True),
    "values of their own width": Case(queries=1, keys=150, depth=32, width=96),
    "rows of 8": Case(heads=1, queries=1, keys=200, depth=8, width=8),
    "rows of 256": Case(heads=2, shared=2, queries=1, keys=300, depth=256, width=256),
    "64 rows of 192 and 256": Case(
        heads=8, shared=8, queries=8, keys=150, depth=192, width=256, lse=True
    ),
}
"""Few queries over many keys."""


GRADIENTS: Final[dict[str, Case]] = {
    "plain": Case(heads=2, queries=72, keys=80),
    "causal": Case(heads=1, queries=136, keys=136, causal=True),
    "causal, rows of 128": Case(heads=1, queries=96, keys=96, causal=True, depth=128, width=128),
    "more keys than queries": Case(heads=1, queries=40, keys=200, causal=True),
    "shared heads": Case(heads=4, shared=2, queries=48, keys=48, causal=True),
    "window": Case(heads=1, queries=200, keys=200, window=20),
    "mask in bf16": Case(heads=1, mask="bf16", queries=72, keys=64),
    "mask of truth values": Case(heads=2, mask="i1", queries=32, keys=48),
    "odd lengths": Case(heads=1, queries=67, keys=131),
    "values of their own width": Case(heads=1, queries=48, keys=96, depth=32, width=96),
    "f16": Case(heads=1, queries=64, keys=64, dtype="f16", causal=True),
    "log-sum-exp": Case(heads=1, queries=70, keys=70, lse=True),
}
"""Those whose gradients are taken, small: an interpreter makes them."""


def flat_tensors(case: Case, kernel: ir.Kernel) -> dict[str, NDArray[Any]]:
    """What a kernel without masks works on: normally distributed, results poisoned."""
    rng = np.random.default_rng(7)
    dtype = np.dtype("float16")
    sizes = (case.queries * case.depth, case.keys * case.depth, case.keys * case.width)
    heads = (case.heads, case.heads // case.shared, case.heads // case.shared)
    made = [rng.standard_normal(n * h).astype(dtype) for n, h in zip(sizes, heads, strict=True)]
    made.append(np.full(case.heads * case.queries * case.width, np.nan, dtype))
    return dict(zip(kernel.buffers, made, strict=True))


def by_hand(dtype: str, write: Callable[[Builder, Value, Value], Value]) -> Program:
    """softmax(q kᵀ) v as a person writes it: `write` makes the result from scores and values."""
    b = Builder("attention")
    q, k, v = (b.param(dtype, [2, 3, 64, 32]) for _ in range(3))
    sides: dict[str, Any] = {"contract": ([3], [3]), "batch": ([0, 1], [0, 1])}
    scores = b.dot_general(q, k, **sides, accum_dtype="f32", out_dtype="f32")
    return b.build(write(b, scores, v))


def _powers(b: Builder, scores: Value, axes: tuple[int, ...] = (3,)) -> tuple[Value, Value]:
    """Powers of what scores are above the least they could be, and the sums of rows of them."""
    shape = [2, 3, 64, 64]
    top = b.broadcast_to(b.reduce_max(scores, axes=[3], keepdims=True), shape)
    powers = b.exp(scores - top)
    return powers, b.reduce_sum(powers, axes=list(axes), keepdims=True)


def _mixed(b: Builder, weights: Value, v: Value, out: str = "f32") -> Value:
    sides: dict[str, Any] = {"contract": ([3], [2]), "batch": ([0, 1], [0, 1])}
    return b.dot_general(b.cast(weights, v.dtype), v, **sides, accum_dtype="f32", out_dtype=out)


def _divided(b: Builder, scores: Value, v: Value) -> Value:
    powers, total = _powers(b, scores * 0.125)
    return b.cast(_mixed(b, powers, v) / b.broadcast_to(total, [2, 3, 64, 32]), v.dtype)


def _times_inverse(b: Builder, scores: Value, v: Value) -> Value:
    powers, total = _powers(b, scores)
    return b.cast(_mixed(b, powers, v) * b.broadcast_to(1.0 / total, [2, 3, 64, 32]), v.dtype)


def _inverse_times(b: Builder, scores: Value, v: Value) -> Value:
    powers, total = _powers(b, scores)
    return b.cast(b.broadcast_to(1.0 / total, [2, 3, 64, 32]) * _mixed(b, powers, v), v.dtype)


def _scaled(b: Builder, scores: Value, v: Value) -> Value:
    powers, total = _powers(b, scores)
    mixed = _mixed(b, powers * 0.5, v) * 3.0
    return b.cast(mixed / b.broadcast_to(total, [2, 3, 64, 32]) + 1.0, v.dtype)


def _rounded(b: Builder, scores: Value, v: Value) -> Value:
    powers, total = _powers(b, scores)
    mixed = b.cast(_mixed(b, powers, v, "bf16"), "f32")
    return mixed / b.broadcast_to(total, [2, 3, 64, 32])


def _masked(b: Builder, scores: Value, v: Value) -> Value:
    shape = [2, 3, 64, 64]
    seen = b.iota("si32", shape, 3) <= b.iota("si32", shape, 2)
    hidden = b.emit("select", seen, scores, b.full(shape, -math.inf, "f32"))
    assert isinstance(hidden, Value)
    return _divided(b, hidden, v)


DIVIDED_AFTER: Final[dict[str, Callable[[Builder, Value, Value], Value]]] = {
    "divided": _divided,
    "times one over the sum": _times_inverse,
    "one over the sum, times": _inverse_times,
    "scaled on the way": _scaled,
    "rounded before": _rounded,
    "masked": _masked,
}
"""Softmax as powers that are mixed first and divided by their sums after."""


def _in_f16(b: Builder, scores: Value, v: Value) -> Value:
    powers, total = _powers(b, scores)
    mixed = b.cast(_mixed(b, powers, v, "f16"), "f32")
    return mixed / b.broadcast_to(total, [2, 3, 64, 32])


def _other_sums(b: Builder, scores: Value, v: Value) -> Value:
    powers, total = _powers(b, scores, (2,))
    return _mixed(b, powers, v) / b.broadcast_to(b.reshape(total, [2, 3, 64, 1]), [2, 3, 64, 32])


def _divided_by(b: Builder, scores: Value, v: Value) -> Value:
    powers, total = _powers(b, scores)
    return b.broadcast_to(total, [2, 3, 64, 32]) / _mixed(b, powers, v)


def _also_undivided(b: Builder, scores: Value, v: Value) -> Value:
    powers, total = _powers(b, scores)
    mixed = _mixed(b, powers, v)
    return mixed / b.broadcast_to(total, [2, 3, 64, 32]) + b.exp(mixed)


NOT_DIVIDED: Final[dict[str, Callable[[Builder, Value, Value], Value]]] = {
    "rounded to less range": _in_f16,
    "sums of other rows": _other_sums,
    "the sum divided": _divided_by,
    "also read undivided": _also_undivided,
}
"""What is no softmax of it, or no number where it is one."""
