"""Guarded loads: neighbours that share their guards are read together, others one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from weft.ptir import Builder, Program

pytestmark = pytest.mark.usefixtures("small_machine")
Array = NDArray[Any]


def test_what_shares_its_guards_is_read_in_vectors() -> None:
    """Rows that are joined: each vector lies in one of the two operands, or in none."""
    b = Builder("joined")
    x, y = b.param("f32", [3, 7, 16]), b.param("f32", [3, 2, 16])
    executable = weft.compile(b.build(b.concat([x, y], axis=1) * 2.0), "cpu")
    assert "load <4 x float>" in executable.stages["llvm"]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((3, 7, 16), (3, 2, 16))]
    (found,) = executable.run(arrays)
    np.testing.assert_array_equal(found, np.concatenate(arrays, 1) * np.float32(2))


def convolution(height: int, width: int, channels: int, filters: int) -> Program:
    b = Builder("conv")
    x, w = b.param("f32", [1, height, width, channels]), b.param("f32", [9 * channels, filters])
    patches = b.emit(
        "extract_patches", x, window=[3, 3], strides=[1, 1], dilation=[1, 1],
        padding=[(1, 1), (1, 1)], pad_value=0.0,
    )  # fmt: skip
    flat = b.reshape(patches, [1, height, width, 9 * channels])
    return b.build(b.dot_general(flat, w, contract=([3], [0])))


def by_hand(x: Array, w: Array) -> Array:
    _, height, width, channels = x.shape
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    kernel = w.astype(np.float64).reshape(3, 3, channels, -1)
    parts = [
        padded[:, i : i + height, j : j + width] @ kernel[i, j] for i in range(3) for j in range(3)
    ]
    return np.asarray(sum(parts))


@pytest.mark.parametrize(
    ("height", "width", "channels", "filters"),
    [(9, 10, 8, 24), (16, 16, 16, 64), (11, 7, 6, 20), (13, 12, 5, 33), (1, 70, 12, 40)],
)
def test_windows_reach_over_every_edge(
    height: int, width: int, channels: int, filters: int
) -> None:
    rng = np.random.default_rng(1)
    shapes = ((1, height, width, channels), (9 * channels, filters))
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    executable = weft.compile(convolution(height, width, channels, filters), "cpu")
    (one,), (two,) = (executable.run(arrays, threads=threads) for threads in (1, 2))
    assert one.tobytes() == two.tobytes()
    np.testing.assert_allclose(one, by_hand(*arrays), atol=1e-4)
