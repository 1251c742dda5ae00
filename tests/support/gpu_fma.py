"""Products and convolutions by single multiplications and additions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import weft
from weft import functional as F
from weft.codegen.gpu.interp import Hazard
from weft.foundation.dtypes import BY_NAME
from weft.ptir import Builder, Program

Array = NDArray[Any]

Case = tuple[Program, list[Array], Array]
"""A program, its inputs, and what NumPy says it gives."""


def numbers(dtype: str, shape: tuple[int, ...], seed: int) -> Array:
    """Small whole numbers: every dtype holds them, and their products' sums, exactly."""
    low = 0 if dtype.startswith("u") else -2
    drawn = np.random.default_rng(seed).integers(low, 3, shape)
    return drawn.astype(np.float32).astype(BY_NAME[dtype].numpy)


def product(
    dtype: str = "f32", m: int = 20, n: int = 24, k: int = 18, layouts: str = "NN", batch: int = 0
) -> Case:
    """One product of matrices, or of each of a batch."""
    lead = [batch] if batch else []
    shapes = [lead + ([m, k][:: -1 if layouts[0] == "T" else 1])]
    shapes += [lead + ([k, n][:: -1 if layouts[1] == "T" else 1])]
    b, turned = Builder(), [*range(len(lead)), len(lead) + 1, len(lead)]
    sides = [b.param(dtype, shape) for shape in shapes]
    sides = [
        b.transpose(side, turned) if layout == "T" else side
        for side, layout in zip(sides, layouts, strict=True)
    ]
    inputs = [numbers(dtype, tuple(shape), seed) for seed, shape in enumerate(shapes)]
    wide = [given.astype(np.float64) for given in inputs]
    left, right = (
        np.swapaxes(side, -1, -2) if layout == "T" else side
        for side, layout in zip(wide, layouts, strict=True)
    )
    return b.build(b.matmul(*sides)), inputs, left @ right


def convolution() -> Case:
    x, w = numbers("f32", (2, 8, 6, 5), 0), numbers("f32", (9, 8, 3, 3), 1)
    made = weft.jit(lambda x, w: F.conv2d(x, w, padding=1)).program(x, w)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return made, [x, w], np.einsum("bcyxij,ocij->boyx", windows, w)


def error_of(executable: Any, inputs: list[Array], want: Array) -> float:
    with np.errstate(all="ignore"):
        got = executable.execute(inputs)[0].astype(np.float64)
        return float(np.abs(got - want).max(initial=0.0))


def is_wrong(executable: Any, inputs: list[Array], want: Array) -> bool:
    try:
        return not error_of(executable, inputs, want) < 1e-3
    except Hazard:
        return True
