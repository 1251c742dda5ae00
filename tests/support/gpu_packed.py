"""Attention over sequences that are packed into one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tests.support.example_inputs import inputs_for
from weft.ptir import Builder, Program, Value

Array = NDArray[Any]

LENGTHS: Final = (5, 120, 64, 1, 90, 50)
"""Of the sequences that lie side by side, 330 positions in all."""


def numbered(lengths: tuple[int, ...] = LENGTHS) -> Array:
    """The number of the sequence of each position."""
    return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)


def shuffled() -> Array:
    found = numbered()
    np.random.default_rng(1).shuffle(found)
    return found


@dataclass(frozen=True)
class Packed:
    """An attention whose mask compares two vectors."""

    queries: Array
    keys: Array
    ends: bool = False
    causal: bool = False
    heads: int = 1
    shared: int = 1
    batch: int = 1

    def program(self) -> Program:
        b = Builder("packed")
        rows, columns = self.queries.shape[-1], self.keys.shape[-1]
        own = self.heads // self.shared
        q = b.param("bf16", [self.batch, self.heads, rows, 64])
        k, v = (b.param("bf16", [self.batch, own, columns, 64]) for _ in range(2))
        given = [
            b.param("si64" if x.dtype == np.int64 else "si32", x.shape)
            for x in (self.queries, self.keys)
        ]
        shape = [self.batch if self.queries.ndim > 1 else 1, 1, rows, columns]
        sides = [
            b.broadcast_to(b.reshape(given[0], [*shape[:3], 1]), shape),
            b.broadcast_to(b.reshape(given[1], [shape[0], 1, 1, columns]), shape),
        ]
        seen = self._seen(b, sides, shape)
        zero, hidden = (b.full(shape, n, "f32") for n in (0.0, -math.inf))
        mask = b.emit("select", seen, zero, hidden)
        return b.build(b.emit("weft.attention", q, k, v, mask, causal=self.causal)[0])

    def _seen(self, b: Builder, sides: list[Value], shape: list[int]) -> Any:
        if not self.ends:
            return b.emit("compare", *sides, op="equal")
        # Between two numbers of each query: `keys` are ignored but for how many there are.
        key = b.iota("si32", shape, 3)
        after = b.emit("compare", key, sides[0], op="greater_equal")
        before = b.emit("compare", key, b.iota("si32", shape, 2) + 40, op="less")
        return b.emit("minimum", after, before)

    def inputs(self, program: Program) -> list[Array]:
        found = inputs_for(program, 4)
        found[3:5] = [self.queries, self.keys]
        return found


CASES: Final[dict[str, Packed]] = {
    "side by side": Packed(numbered(), numbered(), heads=2),
    "causal": Packed(numbered(), numbered(), causal=True),
    "of two kinds": Packed(numbered((70, 30)), numbered((10, 200))),
    "in any order": Packed(shuffled(), shuffled(), causal=True),
    "numbers of 64 bits": Packed(numbered().astype(np.int64), numbered().astype(np.int64)),
    "shared heads": Packed(numbered(), numbered(), heads=4, shared=2, causal=True),
    "one sequence": Packed(numbered((330,)), numbered((330,))),
    "nothing in common": Packed(numbered(), numbered() + 10),
    "from a number of each query on": Packed(
        np.maximum(np.arange(330, dtype=np.int32) - 60, 0), numbered(), ends=True
    ),
    "its own numbers in each batch": Packed(
        np.stack([numbered(), numbered((200, 130))]),
        np.stack([numbered(), numbered((200, 130))]),
        batch=2,
        heads=2,
    ),
}
