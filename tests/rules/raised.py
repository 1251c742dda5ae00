"""Programs before and after raising: what was found in them, and whether they mean the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import weft
from tests.support import random_array
from weft.coarse.raising import raise_program
from weft.foundation.dtypes import F16
from weft.ptir import Builder, Program, Value, dumps, verify
from weft.ptir.decompose import decompose

Shape = tuple[int, ...]


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
