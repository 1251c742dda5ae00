"""Attention with dropped weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from weft.ptir import Builder, Program, Value

STATE: Final = np.array([12345678901, 77], np.int64)


@dataclass(frozen=True)
class Dropped:
    """An attention whose weights are dropped, by the op or in single ops."""

    queries: int = 80
    keys: int = 144
    heads: int = 2
    shared: int = 1
    causal: bool = False
    by_hand: bool = False

    def program(self) -> Program:
        b = Builder("dropped")
        q = b.param("bf16", [1, self.heads, self.queries, 64])
        own = self.heads // self.shared
        k, v = (b.param("bf16", [1, own, self.keys, 64]) for _ in range(2))
        state = b.param("si64", [2])
        if self.by_hand:
            return b.build(self._by_hand(b, q, k, v, state))
        found = b.emit("weft.attention", q, k, v, state, causal=self.causal, dropout=0.3)
        return b.build(found[0])

    def _by_hand(self, b: Builder, q: Value, k: Value, v: Value, state: Value) -> Any:
        """Dropped after they were rounded, as a person who computes in bf16 has it."""
        sides: dict[str, Any] = {"contract": ([3], [3]), "batch": ([0, 1], [0, 1])}
        scores = b.dot_general(q, k, **sides, accum_dtype="f32", out_dtype="f32")
        weights = b.cast(b.softmax(scores), "bf16")
        unit = b.emit("philox_uniform", state, shape=weights.shape, dtype="f32")
        keeps = b.emit("compare", unit, b.full(weights.shape, 0.25, "f32"), op="greater_equal")
        larger = weights / b.full(weights.shape, 0.75, "bf16")
        kept: Any = b.emit("select", keeps, larger, b.full(weights.shape, 0.0, "bf16"))
        across: dict[str, Any] = {"contract": ([3], [2]), "batch": ([0, 1], [0, 1])}
        return b.dot_general(kept, v, **across, accum_dtype="f32", out_dtype="bf16")


CASES: Final = {
    "plain": Dropped(),
    "odd lengths, words of no pair": Dropped(queries=67, keys=131, heads=1),
    "causal": Dropped(queries=200, keys=200, heads=1, causal=True),
    "shared heads": Dropped(queries=96, keys=96, heads=4, shared=2),
    "by hand": Dropped(by_hand=True),
}
