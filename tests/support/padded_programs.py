"""Programs that gather from padded and joined tensors, or pad random numbers: reads whose guards
name the place that data gives, and values that are computed under a guard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import BY_NAME
from weft.ptir import Builder, Program, Value

ROWS, WIDTH, COUNT = 12, 16, 24
Make = Callable[[Builder, Value, Value], Value]


def pad(b: Builder, x: Value, low: list[int], high: list[int], interior: int = 0) -> Value:
    """`x` between ones."""
    return b.emit("pad", x, low=low, high=high, interior=[interior] * len(low), pad_value=1)


GATHERS: dict[str, Make] = {
    "of padded rows": lambda b, t, i: b.take(pad(b, t, [2, 0], [2, 0]), i),
    "of spread rows": lambda b, t, i: b.take(pad(b, t, [1, 1], [0, 2], 1), i),
    "of joined rows": lambda b, t, i: b.take(b.concat([t, t * t], 0), i),
    "of joined columns": lambda b, t, i: b.take(b.transpose(b.concat([t, t], 1), [1, 0]), i),
    "twice at one place": lambda b, t, i: (
        b.take(pad(b, t, [3, 0], [0, 0]), i) + b.take(b.concat([t, t], 0), i)
    ),
}


def gather(name: str, dtype: str) -> Program:
    """One of `GATHERS` of a table of a dtype."""
    b = Builder()
    return b.build(GATHERS[name](b, b.param(dtype, [ROWS, WIDTH]), b.param("si32", [COUNT])))


def gather_inputs(dtype: str) -> list[NDArray[Any]]:
    """A table, and every place in it twice."""
    rng = np.random.default_rng(3)
    table = (4 * rng.standard_normal((ROWS, WIDTH))).astype(BY_NAME[dtype].numpy)
    return [table, rng.permutation(np.arange(COUNT) % ROWS).astype(np.int32)]


def padded_noise(name: str, dtype: str) -> Program:
    """Random numbers of a state, `si64[2]`, among numbers that are not random."""
    b = Builder()
    state = b.param("si64", [2])

    def noise(op: str, *shape: int) -> Value:
        return b.emit(op, state, shape=list(shape), dtype=dtype)

    match name:
        case "rows":
            made = pad(b, noise("philox_normal", 7, 5), [2, 0], [0, 0])
        case "columns":
            made = pad(b, noise("philox_uniform", 8, 8), [0, 4], [0, 4])
        case "a slice":
            part = b.slice(noise("philox_uniform", 8, 16), [0, 2], [8, 14])
            made = pad(b, part, [0, 2], [0, 0])
        case _:
            made = b.concat([noise("philox_normal", 7, 5), noise("philox_uniform", 3, 5)], 0)
    return b.build(made)


STATE = np.array([1, 1])
NOISE = ("rows", "columns", "a slice", "joined")
