"""Sorting, scatter and sums of segments through every stage down to the GPU dialect, interpreted,
against NumPy and plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.cases import one_in
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu.interp.values import Reported
from weft.foundation.dtypes import BY_NAME
from weft.foundation.radix_sort import Starts
from weft.foundation.whole_ops import Binned
from weft.ptir import Builder, Program
from weft.region.fitting import whole_ops

Array = NDArray[Any]
GPU = InterpretedGpu("sm90")
NARROW = ("bf16", "f16", "fp8_e4m3", "fp8_e5m2")


@pytest.fixture(autouse=True)
def _everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and updates go the way of a million of them."""
    monkeypatch.setattr(whole_ops, "LONGEST_SORTED", 16)
    monkeypatch.setattr(whole_ops, "_MANY_UPDATES", 1)
    monkeypatch.setattr(whole_ops, "_LONG_RUN", 8)
    monkeypatch.setattr(whole_ops, "_SMALLER_TILES", ((1 << 17, 256),))


def numbers(dtype: str, shape: tuple[int, ...], seed: int) -> Array:
    """Whole numbers, which are added up exactly whatever the order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(BY_NAME[dtype].numpy)


def on_gpu(program: Program, *inputs: Array) -> list[Array]:
    return weft.run(program, list(inputs), backend=GPU)


# -- sorting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"), one_in(2, [((1, 17), 1), ((3, 40), 1), ((40, 2), 0)], unpack=True)
)
def test_argsort_and_sort(shape: tuple[int, ...], axis: int, descending: bool) -> None:
    b = Builder()
    x = b.param("f32", list(shape))
    order = b.argsort(x, axis=axis, descending=descending)
    program = b.build(order, b.sort(x, axis=axis, descending=descending))
    given = numbers("f32", shape, 1)
    given.reshape(-1)[::5] = np.nan
    places, values = on_gpu(program, given)
    keys = np.where(np.isnan(given), np.inf, given)
    want = np.argsort(-keys if descending else keys, axis=axis, kind="stable")
    assert (places == want).all()
    np.testing.assert_array_equal(values, np.take_along_axis(given, want, axis))


def test_the_largest() -> None:
    b = Builder()
    values, places = b.top_k(b.param("si16", [2, 50]), k=3)
    given = np.random.default_rng(2).integers(-5, 5, (2, 50)).astype(np.int16)
    found, at = on_gpu(b.build(values, places), given)
    want = np.argsort(-given.astype(int), axis=1, kind="stable")[:, :3]
    assert (at == want).all()
    assert (found == np.take_along_axis(given, want, 1)).all()


# -- scatter ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "si8", *NARROW])
def test_rows_added_to_rows(dtype: str) -> None:
    """The gradient of an embedding: many updates at a few rows."""
    b = Builder()
    x, at, new = b.param(dtype, [7, 16]), b.param("si32", [40, 1]), b.param(dtype, [40, 16])
    program = b.build(
        b.scatter_add(
            x, at, new, update_window_dims=[1], inserted_window_dims=[0],
            scatter_dims_to_operand_dims=[0], index_vector_dim=1,
        )
    )  # fmt: skip
    given, updates = numbers(dtype, (7, 16), 3), numbers(dtype, (40, 16), 4)
    places = np.minimum(np.random.default_rng(5).integers(0, 20, (40, 1)), 6).astype(np.int32)
    (got,) = on_gpu(program, given, places, updates)
    want = given.astype(np.float64)
    np.add.at(want, places[:, 0], updates.astype(np.float64))
    exact = want.astype(np.float32 if dtype in NARROW else np.int64)
    assert (got.astype(np.float64) == exact.astype(given.dtype).astype(np.float64)).all()


@pytest.mark.parametrize(("rows", "kind"), one_in(2, [(7, "si32"), (600, "si64")], unpack=True))
def test_scatters_that_are_sorted_together(rows: int, kind: str) -> None:
    """Three tables, two of which are looked up at the same places, onto zeros and onto others."""
    b = Builder()
    at = [b.param(kind, [2, 300]) for _ in range(2)]
    new = [b.param("bf16", [300, 8]) for _ in range(4)]
    start = b.param("bf16", [rows, 8])
    made = []
    for number, (index, part) in enumerate(((0, 0), (0, 1), (1, 0), (0, 0))):
        x = start if number == 2 else b.full([rows, 8], 0.0, "bf16")
        spots = b.reshape(b.slice(at[index], [part, 0], [1, 300]), [300, 1])
        made.append(
            b.scatter_add(
                x, spots, new[number], update_window_dims=[1], inserted_window_dims=[0],
                scatter_dims_to_operand_dims=[0], index_vector_dim=1,
            )
        )  # fmt: skip
    program = b.build(*made)
    counted = [
        kernel.opaque.op
        for kernel in through_stages(program, "sm90")["region"].kernels
        if kernel.opaque is not None and isinstance(kernel.opaque.op, Starts)
    ]
    assert [op.outer for op in counted] == [4]
    rng = np.random.default_rng(9)
    places = [rng.integers(0, rows, (2, 300)).astype(BY_NAME[kind].numpy) for _ in range(2)]
    updates = [numbers("bf16", (300, 8), seed) for seed in range(4)]
    given = [*places, *updates, numbers("bf16", (rows, 8), 10)]
    for got, want in zip(on_gpu(program, *given), weft.run(program, given), strict=True):
        np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_windows_at_places_of_two_axes(dtype: str) -> None:
    b = Builder()
    x, at, new = b.param(dtype, [6, 5, 4]), b.param("si64", [9, 2]), b.param(dtype, [9, 2, 4])
    program = b.build(
        b.scatter_add(
            x, at, new, update_window_dims=[1, 2], inserted_window_dims=[0],
            scatter_dims_to_operand_dims=[0, 1], index_vector_dim=1,
        )
    )  # fmt: skip
    rng = np.random.default_rng(6)
    places = np.stack([rng.integers(0, 6, 9), rng.integers(0, 4, 9)], 1)
    given, updates = numbers(dtype, (6, 5, 4), 7), numbers(dtype, (9, 2, 4), 8)
    (got,) = on_gpu(program, given, places, updates)
    want = given.astype(np.float64)
    for (row, column), window in zip(places, updates.astype(np.float64), strict=True):
        want[row, column : column + 2] += window
    assert (got.astype(np.float64) == want).all()


REDUCE: dict[str, Any] = {
    "add": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "replace": None,
}


@pytest.mark.parametrize(
    ("axis", "reduce", "dtype"),
    [
        *((0, reduce, "f32") for reduce in REDUCE),
        *one_in(len(REDUCE), ((2, reduce, "f32") for reduce in REDUCE), unpack=True),
        *((1, "add", dtype) for dtype in ("bf16", "si64")),
        *((1, reduce, "bf16") for reduce in ("max", "replace")),
    ],
)
def test_elements_at_places_of_their_own(axis: int, reduce: str, dtype: str) -> None:
    shape, many = (3, 4, 5), [3, 4, 5]
    many[axis] = 12
    b = Builder()
    x, at = b.param(dtype, list(shape)), b.param("si32", many)
    new = b.param(dtype, many)
    program = b.build(b.scatter_reduce(x, at, new, axis=axis, reduce=reduce))
    given, updates = numbers(dtype, shape, 9), numbers(dtype, tuple(many), 10)
    places = np.random.default_rng(11).integers(0, shape[axis], many).astype(np.int32)
    (got,) = on_gpu(program, given, places, updates)
    want = given.astype(np.float64)
    for where in np.ndindex(*many):
        target = list(where)
        target[axis] = places[where]
        old, update = want[tuple(target)], float(updates[where])
        want[tuple(target)] = update if reduce == "replace" else REDUCE[reduce](old, update)
    assert (got.astype(np.float64) == want).all()


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("kind", ["si32", "si64"])
def test_sums_in_bins(kind: str, dtype: str) -> None:
    """Places spread over all rows, and half of them in one bin."""
    rows, count = 1300, 700
    b = Builder()
    x, at, new = b.param(dtype, [rows]), b.param(kind, [count]), b.param(dtype, [count])
    program = b.build(b.scatter_reduce(x, at, new, axis=0, reduce="add"))
    ops = [kernel.opaque for kernel in through_stages(program, "sm90")["region"].kernels]
    assert any(call is not None and isinstance(call.op, Binned) for call in ops)
    given, updates = numbers(dtype, (rows,), 20), numbers(dtype, (count,), 21)
    places = np.random.default_rng(22).integers(0, rows, count).astype(BY_NAME[kind].numpy)
    places[::2] = 17
    (got,) = on_gpu(program, given, places, updates)
    want = given.astype(np.float64)
    np.add.at(want, places, updates.astype(np.float64))
    assert (got.astype(np.float64) == want).all()


@pytest.mark.parametrize("seed", one_in(13, range(39)))
def test_sums_in_bins_of_any_size(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places that are spread, alike, few, or in order; sizes that are multiples of nothing."""
    monkeypatch.setattr(whole_ops, "_MANY_ROWS", 1)
    rng = np.random.default_rng(seed)
    dtype = ("f32", "bf16", "f16", "f64")[seed % 4]
    kind = ("si64", "si32")[seed // 4 % 2]
    outer, rows, count = (int(rng.integers(*found)) for found in ((1, 3), (9, 200), (2, 400)))
    b = Builder()
    x, at = b.param(dtype, [outer, rows]), b.param(kind, [outer, count])
    new = b.param(dtype, [outer, count])
    program = b.build(b.scatter_reduce(x, at, new, axis=1, reduce="add"))
    ops = [kernel.opaque for kernel in through_stages(program, "sm90")["region"].kernels]
    assert any(call is not None and isinstance(call.op, Binned) for call in ops) == (dtype != "f64")
    places = rng.integers(0, rows, (outer, count))
    match seed % 5:
        case 1:
            places[...] = rng.integers(0, rows)
        case 2:
            places //= 7
        case 3:
            places.sort(axis=1)
        case 4:
            places[:, ::2] = rows - 1
    given, updates = numbers(dtype, (outer, rows), seed), numbers(dtype, (outer, count), seed + 1)
    (got,) = on_gpu(program, given, places.astype(BY_NAME[kind].numpy), updates)
    want = given.astype(np.float64)
    np.add.at(want, (np.arange(outer)[:, None], places), updates.astype(np.float64))
    assert (got == want.astype(np.float32).astype(BY_NAME[dtype].numpy)).all()


@pytest.mark.parametrize(
    ("kind", "number"),
    [("si32", -1), ("si32", 1300), ("si64", -1), ("si64", (1 << 32) + 3), ("si64", -(1 << 32))],
)
def test_an_index_out_of_range_is_reported_in_front_of_bins(kind: str, number: int) -> None:
    """Those, too, whose lower 32 bits are a place."""
    b = Builder()
    x, at, new = b.param("f32", [1300]), b.param(kind, [700]), b.param("f32", [700])
    program = b.build(b.scatter_reduce(x, at, new, axis=0, reduce="add"))
    places = np.zeros(700, BY_NAME[kind].numpy)
    places[613] = number
    with pytest.raises(Reported, match="at element 613 "):
        on_gpu(program, np.zeros(1300, np.float32), places, np.ones(700, np.float32))


def test_columns_and_segments_in_bins() -> None:
    """Places of columns of their own, and sums onto zeros."""
    b = Builder()
    x, at, new = b.param("f32", [300, 5]), b.param("si32", [400, 5]), b.param("f32", [400, 5])
    parts, ids = b.param("f32", [900]), b.param("si64", [900])
    added = b.scatter_reduce(x, at, new, axis=0, reduce="add")
    program = b.build(added, b.segment_sum(parts, ids, num_segments=1100))
    given, updates, flat = (
        numbers("f32", shape, seed) for seed, shape in enumerate(((300, 5), (400, 5), (900,)))
    )
    rng = np.random.default_rng(23)
    places, segments = rng.integers(0, 300, (400, 5)).astype(np.int32), rng.integers(0, 1100, 900)
    want, sums = given.copy(), np.zeros(1100, np.float32)
    for column in range(5):
        np.add.at(want[:, column], places[:, column], updates[:, column])
    np.add.at(sums, segments, flat)
    got, found = on_gpu(program, given, places, updates, flat, segments)
    assert (got == want).all()
    assert (found == sums).all()


def test_an_index_out_of_range_is_reported_and_nothing_is_touched() -> None:
    b = Builder()
    x, at, new = b.param("f32", [4]), b.param("si32", [20]), b.param("f32", [20])
    program = b.build(b.scatter_reduce(x, at, new, axis=0, reduce="add"))
    places = np.zeros(20, np.int32)
    places[13] = 4
    with pytest.raises(Reported, match="at element 13 "):
        on_gpu(program, np.zeros(4, np.float32), places, np.ones(20, np.float32))


@pytest.mark.parametrize("count", [0, 1])
def test_no_updates_and_one(count: int) -> None:
    b = Builder()
    x, at, new = b.param("bf16", [4]), b.param("si32", [count]), b.param("bf16", [count])
    program = b.build(b.scatter_reduce(x, at, new, axis=0, reduce="add"))
    given = numbers("bf16", (4,), 12)
    (got,) = on_gpu(program, given, np.full(count, 3, np.int32), np.ones(count, given.dtype))
    want = given.astype(np.float32) + np.array([0, 0, 0, count], np.float32)
    assert (got.astype(np.float32) == want).all()


# -- segments --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "si32", *NARROW])
def test_sums_of_segments(dtype: str) -> None:
    b = Builder()
    x, ids = b.param(dtype, [60, 3]), b.param("si64", [60])
    program = b.build(b.segment_sum(x, ids, num_segments=5))
    given = numbers(dtype, (60, 3), 13)
    segments = np.random.default_rng(14).integers(0, 4, 60)
    (got,) = on_gpu(program, given, segments)
    want = np.zeros((5, 3))
    np.add.at(want, segments, given.astype(np.float64))
    rounded = want.astype(np.float32).astype(BY_NAME[dtype].numpy)
    assert (got.astype(np.float64) == rounded.astype(np.float64)).all()
