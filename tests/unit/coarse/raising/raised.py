"""Programs before and after raising: what was found in them, and whether they mean the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import weft
from tests.support.one_op import random_array
from weft.coarse.raising import raise_program
from weft.foundation.dtypes import F16
from weft.ptir import Builder, Program, Value, dumps, verify
from weft.ptir.decompose import decompose

Shape = tuple[int, ...]
HEADS = (2, 3, 4, 8)


def built(function: Callable[..., Any], *shapes: Shape, dtype: str = "f32") -> Program:
    b = Builder()
    results = function(b, *(b.param(dtype, shape) for shape in shapes))
    return b.build(*([results] if isinstance(results, Value) else results))


def coarse(program: Program) -> list[str]:
    """The coarse ops of a program, in order."""
    names = [i.op.mnemonic for body in program.bodies for i in body.body]
    return [name for name in names if "." in name]


def agree(before: Program, after: Program, *, seed: int = 0) -> None:
    kinds: Any = before.main.parameters
    inputs = [random_array(kind.dtype, kind.static_shape, seed + i) for i, kind in enumerate(kinds)]
    rounding = 4e-3 if any(kind.dtype is F16 for kind in kinds) else 3e-5
    pairs = zip(weft.run(before, inputs), weft.run(after, inputs), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(
            a.astype(np.float64), b.astype(np.float64), rtol=rounding, atol=rounding
        )


def check(program: Program, *wanted: str) -> Program:
    """Raise, verify, and compare: as it is, and decomposed again."""
    raised = raise_program(program)
    verify(raised)
    assert coarse(raised) == list(wanted), dumps(raised)
    agree(program, raised)
    again = decompose(raised)
    assert not coarse(again)
    agree(program, again)
    return raised


def attention(
    b: Any, q: Any, k: Any, v: Any, mask: Any = None, *, scale: str = "div",
    turned: bool = False, hides: bool = False,
) -> Any:  # fmt: skip
    """Attention in plain ops, with its scale where `scale` says."""
    rank, batch = q.rank, tuple(range(q.rank - 2))
    if scale == "on q":
        q = q * 0.3
    elif scale == "on both":
        q, k = q * 0.5, 0.6 * k
    if turned:
        k = b.transpose(k, [*batch, rank - 1, rank - 2])
    scores = b.dot_general(
        q, k, contract=([rank - 1], [rank - 2 if turned else rank - 1]), batch=(batch, batch)
    )
    if scale == "div":
        scores = scores / math.sqrt(8.0)
    elif scale == "root of a constant":
        scores = scores / b.broadcast_to(b.sqrt(b.literal(8.0, "f32")), scores.shape)
    elif scale == "mul":
        scores = 0.35 * scores
    if mask is not None:
        scores = scores + b.broadcast_to(mask, scores.shape)
    if scale == "after the mask":
        scores = scores * 0.3
    if hides:
        rows, columns = (b.iota("si32", scores.shape, d) for d in (rank - 2, rank - 1))
        seen = b.compare(columns, rows, "less_equal")
        scores = b.select(seen, scores, b.full(scores.shape, -math.inf, "f32"))
    weights = b.softmax(scores)
    return b.dot_general(weights, v, contract=([rank - 1], [rank - 2]), batch=(batch, batch))
