"""Products of small integers."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

import weft
from weft.ptir import Builder, Program

Array = NDArray[Any]

BYTES = list(product(("si8", "ui8"), repeat=2))


def widened(a: str, b: str, m: int, n: int, k: int) -> Program:
    """Operands cast to si32, multiplied and added up."""
    builder = Builder()
    x, w = builder.param(a, [m, k]), builder.param(b, [n, k])
    wide = (builder.cast(value, "si32") for value in (x, w))
    return builder.build(builder.dot_general(*wide, contract=([1], [1]), out_dtype="si32"))


def numbers(a: str, b: str, m: int, n: int, k: int) -> list[Array]:
    """Of all values that the dtypes have; those of four bits in bytes."""
    rng = np.random.default_rng(m + n + k)
    found = []
    for dtype, size in ((a, m), (b, n)):
        bits, signed = int(dtype[2:]), dtype.startswith("s")
        low = -(1 << (bits - 1)) if signed else 0
        drawn = rng.integers(low, low + (1 << bits), (size, k))
        found.append(drawn.astype(weft.ptir.tensor(dtype, []).dtype.numpy))
    return found


def total(x: Array, w: Array) -> Array:
    """Exact sums of exact products, as 32 bits hold them."""
    exact = x.astype(np.int64) @ w.astype(np.int64).T
    return exact.astype(np.int32)
