"""Random programs for the GPU, and numbers for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import DType
from weft.ptir import Builder, Program

Array = NDArray[Any]

KINDS = ("i1", "si8", "si32", "ui64", "f16", "f64")


def with_epilogue(dtype: str, *, whole: bool) -> Program:
    """A matrix product chosen by, or added to, a tensor of another dtype."""
    b = Builder()
    x, w = b.param("bf16", [24, 32]), b.param("bf16", [32, 40])
    other = b.param(dtype, [24, 40] if whole else [40])
    y = b.matmul(x, w)
    spread = other if whole else b.broadcast_to(other, y.shape)
    if dtype == "i1":
        return b.build(b.select(spread, y, b.full([24, 40], 0.5, "bf16")))
    return b.build(b.cast(spread, "f32") + b.cast(y, "f32"))


def numbers(dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    """Numbers that f32 does not hold exactly, where the dtype has such."""
    rng = np.random.default_rng(seed)
    if dtype.is_integer and dtype.bits >= 32:
        return (rng.integers(1, 100, shape) * (1 << 24) + 1).astype(dtype.numpy)
    if dtype.is_integer:
        return rng.integers(0, 100, shape).astype(dtype.numpy)
    if dtype.name == "i1":
        return rng.integers(0, 2, shape).astype(bool)
    return rng.standard_normal(shape).astype(dtype.numpy)
