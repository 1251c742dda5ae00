"""Scatter, cumulative ops and sorting on a GPU at the sizes of models, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from weft.driver.cuda import CudaBackend
from weft.ptir import Builder, Program
from weft.runtime.cuda import compute_capability

Array = NDArray[Any]
pytestmark = pytest.mark.skipif(compute_capability() is None, reason="there is no GPU")
BACKEND = CudaBackend()
RNG = np.random.default_rng(3)


def run(program: Program, *inputs: Array) -> list[Array]:
    first, again = (weft.run(program, list(inputs), backend=BACKEND) for _ in range(2))
    assert all((a == b).all() for a, b in zip(first, again, strict=True)), "not the same bits"
    return first


def test_the_gradient_of_an_embedding() -> None:
    rows, width, count = 50257, 768, 8192
    b = Builder()
    x = b.param("f32", [rows, width])
    ids, updates = b.param("si32", [count]), b.param("f32", [count, width])
    index = b.broadcast_to(b.reshape(ids, [count, 1]), [count, width])
    program = b.build(b.scatter_reduce(x, index, updates, axis=0, reduce="add"))
    places = (RNG.zipf(1.3, count) % rows).astype(np.int32)
    added = RNG.standard_normal((count, width)).astype(np.float32)
    start = np.zeros((rows, width), np.float32)
    (got,) = run(program, start, places, added)
    want = start.astype(np.float64)
    np.add.at(want, places, added)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("shape", [(1, 1 << 20), (4096, 300), (3, 5000)])
def test_cumulative_sums(shape: tuple[int, int]) -> None:
    b = Builder()
    program = b.build(b.cumulative_sum(b.param("f32", list(shape)), axis=1))
    x = RNG.integers(-3, 4, shape).astype(np.float32)
    (got,) = run(program, x)
    assert (got == np.cumsum(x, axis=1)).all()


@pytest.mark.parametrize("shape", [(64, 8000), (4096, 1000), (8, 50257), (100_000, 16)])
def test_sorting(shape: tuple[int, int]) -> None:
    b = Builder()
    program = b.build(b.argsort(b.param("f32", list(shape)), axis=1))
    x = RNG.integers(-500, 500, shape).astype(np.float32)
    (got,) = run(program, x)
    assert (got == np.argsort(x, axis=1, kind="stable")).all()
