"""Scatter, cumulative ops and sorting on a GPU at the sizes of models, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.draws import generator
from weft.driver.cuda import CudaBackend
from weft.foundation.dtypes import BY_NAME
from weft.ptir import Builder, Program
from weft.runtime.cuda.driver import compute_capability

Array = NDArray[Any]
pytestmark = pytest.mark.skipif(compute_capability() is None, reason="there is no GPU")
BACKEND = CudaBackend()
RNG = generator()


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


SHAPES_OF_SUMS = [
    *((1, 1 << 20), (4096, 300), (3, 5000), (64, 16384), (1024, 1024), (7, 40_001), (1, 9_000_000)),
]


@pytest.mark.parametrize("shape", SHAPES_OF_SUMS)
def test_cumulative_sums(shape: tuple[int, int]) -> None:
    b = Builder()
    program = b.build(b.cumulative_sum(b.param("f32", list(shape)), axis=1))
    x = RNG.integers(-3, 4, shape).astype(np.float32)
    (got,) = run(program, x)
    assert (got == np.cumsum(x, axis=1)).all()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "f64", "si8", "si64"])
@pytest.mark.parametrize("shape", [(5, 20_000, 1), (2, 70_001, 3), (40, 700, 1)])
def test_cumulative_maxima(shape: tuple[int, int, int], dtype: str, reverse: bool) -> None:
    b = Builder()
    program = b.build(b.cumulative_max(b.param(dtype, list(shape)), axis=1, reverse=reverse))
    x = np.abs(RNG.integers(-99, 100, shape)).astype(BY_NAME[dtype].numpy)
    x[:, ::2] = -x[:, ::2]
    (got,) = run(program, x)
    source = x.astype(np.float64)[:, :: -1 if reverse else 1]
    want = np.maximum.accumulate(source, axis=1)[:, :: -1 if reverse else 1]
    assert (got.astype(np.float64) == want).all()


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64", "si8", "ui32", "si64"])
@pytest.mark.parametrize("length", [65, 128, 129, 500, 1024, 3000, 8192])
def test_rows_that_a_block_holds_are_sorted(length: int, dtype: str) -> None:
    kind = BY_NAME[dtype]
    b = Builder()
    program = b.build(b.argsort(b.param(dtype, [37, length]), axis=1))
    x = RNG.integers(0 if dtype == "ui32" else -100, 100, (37, length)).astype(kind.numpy)
    (got,) = run(program, x)
    assert (got == np.argsort(x.astype(np.float64), axis=1, kind="stable")).all()


@pytest.mark.parametrize("shape", [(64, 8000), (4096, 1000), (8, 50257), (100_000, 16)])
def test_sorting(shape: tuple[int, int]) -> None:
    b = Builder()
    program = b.build(b.argsort(b.param("f32", list(shape)), axis=1))
    x = RNG.integers(-500, 500, shape).astype(np.float32)
    (got,) = run(program, x)
    assert (got == np.argsort(x, axis=1, kind="stable")).all()


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    "dtype",
    [
        *("f32", "bf16", "f16", "f64", "fp8_e4m3", "fp8_e5m2"),
        *("i1", "si4", "si8", "si32", "ui32", "si64"),
    ],
)
def test_a_million_elements_of_every_kind_are_sorted(dtype: str, descending: bool) -> None:
    """By digits: 8 to 64 bits of key, NaN, both zeros, ties in their order."""
    kind = BY_NAME[dtype]
    b = Builder()
    length = (1 << 20) + 17
    program = b.build(b.argsort(b.param(dtype, [length]), axis=0, descending=descending))
    x = RNG.integers(0 if dtype == "ui32" else -100, 100, length).astype(kind.numpy)
    if kind.is_float:
        x[::1000], x[1::1000] = np.nan, -x[1::1000] * np.zeros((), kind.numpy)
    (got,) = run(program, x)
    keys = x.astype(np.float64)
    keys = np.where(np.isnan(keys), np.inf, keys)
    assert (got == np.argsort(-keys if descending else keys, kind="stable")).all()


@pytest.mark.parametrize("count", [8193, 12287, 12288, 131072, 131073])
def test_rows_of_any_length_are_sorted(count: int) -> None:
    b = Builder()
    program = b.build(b.argsort(b.param("si32", [3, count]), axis=1))
    x = RNG.integers(-(1 << 31), 1 << 31, (3, count)).astype(np.int32)
    (got,) = run(program, x)
    assert (got == np.argsort(x, axis=1, kind="stable")).all()


def assert_near(got: Array, reference: Array, exact: Array) -> None:
    """As near to the exact sums as the contract asks for: twice the reference's error, and four
    units in the last place of the largest."""
    allowed = 2 * np.abs(reference - exact).max() + 4 * np.spacing(np.float32(np.abs(exact).max()))
    assert np.abs(got - exact).max() <= allowed


SPREADS: dict[str, Callable[[int], Array]] = {
    "even": lambda rows: RNG.integers(0, rows, 1 << 18),
    "a few often": lambda rows: RNG.zipf(1.2, 1 << 18) % rows,
    "all in one": lambda rows: np.full(1 << 18, rows // 2),
}


@pytest.mark.parametrize("width", [1, 5, 96])
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "si32"])
@pytest.mark.parametrize("rows", [1000, 1024, 300_001])
def test_updates_are_added_in_an_order_of_their_own(
    rows: int, dtype: str, spread: str, width: int
) -> None:
    """The same in every run; sums of whole numbers have the bits of the reference."""
    count = 1 << 18
    b = Builder()
    x, at = b.param(dtype, [rows, width]), b.param("si32", [count, 1])
    new = b.param(dtype, [count, width])
    program = b.build(
        b.scatter_add(
            x, at, new, update_window_dims=[1], inserted_window_dims=[0],
            scatter_dims_to_operand_dims=[0], index_vector_dim=1,
        )
    )  # fmt: skip
    start, updates = (
        RNG.integers(-9, 9, (n, width)).astype(BY_NAME[dtype].numpy) for n in (rows, count)
    )
    if dtype == "f32":
        updates += RNG.standard_normal(updates.shape).astype(np.float32)
    places = SPREADS[spread](rows).astype(np.int32)[:, None]
    (got,) = run(program, start, places, updates)
    (again,) = run(program, start, places, updates)
    assert (got.view(np.uint8) == again.view(np.uint8)).all()
    (want,) = weft.run(program, [start, places, updates], backend="reference")
    if dtype == "f32":
        exact = start.astype(np.float64)
        np.add.at(exact, places[:, 0], updates.astype(np.float64))
        assert_near(got, want, exact)
    else:
        assert (got.view(np.uint8) == want.view(np.uint8)).all()


@pytest.mark.parametrize("count", [1, 2, 65])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_few_updates_of_many_rows_have_the_bits_of_the_reference(dtype: str, count: int) -> None:
    """As of a choice among experts, or of one of many classes."""
    b = Builder()
    x, at = b.param(dtype, [5000, 100]), b.param("si64", [5000, count])
    new = b.param(dtype, [5000, count])
    program = b.build(b.scatter_reduce(x, at, new, axis=1, reduce="add"))
    start, updates = (
        RNG.standard_normal((5000, n)).astype(BY_NAME[dtype].numpy) for n in (100, count)
    )
    places = RNG.integers(0, 100, (5000, count)) // 40 * 40
    (got,) = run(program, start, places, updates)
    (want,) = weft.run(program, [start, places, updates], backend="reference")
    assert (got.view(np.uint8) == want.view(np.uint8)).all()


@pytest.mark.parametrize("fn", ["add", "max", "min"])
@pytest.mark.parametrize("dtype", ["si32", "ui32", "si64", "ui64"])
def test_integers_are_combined_as_they_come(dtype: str, fn: str) -> None:
    """The highest bits too: sums wrap."""
    kind = BY_NAME[dtype].numpy
    b = Builder()
    x, at = b.param(dtype, [300, 5]), b.param("si64", [1 << 17, 5])
    program = b.build(b.scatter_reduce(x, at, b.param(dtype, [1 << 17, 5]), axis=0, reduce=fn))
    info = np.iinfo(kind)
    start, updates = (
        RNG.integers(info.min, info.max, (n, 5), kind, endpoint=True) for n in (300, 1 << 17)
    )
    places = RNG.zipf(1.2, (1 << 17, 5)) % 300
    (got,) = run(program, start, places, updates)
    (want,) = weft.run(program, [start, places, updates], backend="reference")
    assert (got == want).all()


def test_sums_of_segments() -> None:
    b = Builder()
    x, ids = b.param("f32", [1 << 20]), b.param("si64", [1 << 20])
    program = b.build(b.segment_sum(x, ids, num_segments=4096))
    given, segments = RNG.standard_normal(1 << 20).astype("f4"), RNG.integers(0, 4000, 1 << 20)
    (got,) = run(program, given, segments)
    want, exact = np.zeros(4096, np.float32), np.zeros(4096)
    np.add.at(want, segments, given)
    np.add.at(exact, segments, given.astype(np.float64))
    assert_near(got, want, exact)
