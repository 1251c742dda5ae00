"""Ops that stay whole, in steps: played back one after the other they do what the op does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.draws import generator
from tests.support.grouped_steps import in_steps
from weft.driver.stages.opaque import run_opaque
from weft.foundation.dtypes import BF16, F32, F64, I1, SI4, SI32, SI64, UI8, DType
from weft.foundation.radix_sort import Digits, Moved, Starts, UpdatesMoved, UpperDigits
from weft.foundation.whole_ops import (
    Binned,
    Gathered,
    Order,
    Running,
    Scatter,
)
from weft.region.fitting import whole_ops
from weft.region.fitting.whole_ops import whole_in_parts
from weft.region.interp import run_kernel
from weft.region.ir import Kernel, OpaqueCall, Output, Pattern, Tensor

Array = NDArray[Any]
RNG = generator()


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("count", [20_000, 5])
def test_long_rows_are_sorted_by_digits(count: int, descending: bool) -> None:
    x = RNG.integers(-50, 50, (2, 20_000)).astype(np.float32)
    x[:, ::9] = np.nan
    op = Order(2, 20_000, count, descending)
    ops, got = in_steps(op, [x], SI64)
    assert [type(step) for step in ops] == 4 * [Digits, Running, Moved]
    keys = np.where(np.isnan(x), np.inf, x)
    want = np.argsort(-keys if descending else keys, axis=1, kind="stable")[:, :count]
    assert (got.reshape(2, count) == want).all()


PASSES: dict[DType, list[tuple[int, int]]] = {
    I1: [(0, 1)],
    SI4: [(0, 4)],
    UI8: [(0, 8)],
    BF16: [(0, 8), (8, 8)],
    SI64: [(low, 8) for low in range(0, 64, 8)],
}


@pytest.mark.parametrize("dtype", PASSES, ids=str)
def test_there_are_as_many_passes_as_the_keys_have_digits(dtype: DType) -> None:
    x = RNG.integers(0, 2, (1, 9000)).astype(dtype.numpy)
    ops, got = in_steps(Order(1, 9000, 9000), [x], SI64)
    moved = [op for op in ops if isinstance(op, Moved)]
    assert [(op.low, op.bits) for op in moved] == PASSES[dtype]
    assert (got == np.argsort(x.astype(np.int64).reshape(-1), kind="stable")).all()


@pytest.mark.parametrize(
    ("rows", "passes"),
    [
        (1, [(0, 1)]),
        (50304, [(0, 8), (8, 8)]),
        (4096, [(0, 6), (6, 6)]),
        (1 << 20, [(0, 7), (7, 7), (14, 6)]),
    ],
)
def test_updates_are_sorted_by_the_bits_that_places_have(
    rows: int, passes: list[tuple[int, int]]
) -> None:
    op = Scatter("replace", 1, rows, 1, 2000)
    index = RNG.integers(0, rows, (1, 2000))
    x, update = np.zeros((1, rows, 1), np.int32), np.arange(2000, dtype=np.int32)
    ops, got = in_steps(op, [x, index, update], SI32)
    moved = [step for step in ops if isinstance(step, Moved)]
    assert [(step.low, step.bits) for step in moved] == passes
    want = np.zeros(rows, np.int32)
    want[index.reshape(-1)] = np.arange(2000)
    assert (got.reshape(-1) == want).all()


BINS = {
    "a million of a million": ((1 << 20, 1 << 20), [(12, 8)], 12, 4352),
    "few segments": ((4096, 1 << 20), [(4, 8)], 4, 4352),
    "an odd number of rows": ((50257, 20_000), [(8, 8)], 8, 256),
    "more rows than bins of one pass have": ((1 << 22, 5000), [(12, 5), (17, 5)], 12, 1024),
}


@pytest.mark.parametrize("name", BINS)
def test_sums_of_single_elements_are_sorted_by_upper_bits(name: str) -> None:
    (rows, count), passes, low, tile = BINS[name]
    index = RNG.integers(0, rows, (1, count))
    x, update = (RNG.integers(-9, 9, (1, n, 1)).astype(np.float32) for n in (rows, count))
    ops, got = in_steps(Scatter("add", 1, rows, 1, count), [x, index, update], F32)
    assert [(op.low, op.bits) for op in ops if isinstance(op, Moved)] == passes
    assert [type(op) for op in ops[:3]] == [UpperDigits, Running, UpdatesMoved]
    assert ops[-1] == Binned(1, rows, count, low, tile)
    want = x.reshape(-1).copy()
    np.add.at(want, index.reshape(-1), update.reshape(-1))
    assert (got.reshape(-1) == want).all()


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (Scatter("add", 1, 5000, 1, 1000), F32),
        (Scatter("add", 1, 1000, 1, 5000), F32),
        (Scatter("add", 1, 5000, 2, 5000), F32),
        (Scatter("max", 1, 5000, 1, 5000), F32),
        (Scatter("add", 1, 5000, 1, 5000), F64),
    ],
)
def test_other_scatters_have_no_bins(op: Scatter, dtype: DType) -> None:
    index = np.zeros((1, op.count), np.int32)
    x, update = (np.zeros((1, n, op.width), dtype.numpy) for n in (op.rows, op.count))
    ops, _ = in_steps(op, [x, index, update], dtype)
    assert not any(isinstance(step, Binned) for step in ops)


@pytest.mark.parametrize(("outer", "low"), [(1, 3), (2, 4), (40, 8), (300, 10)])
def test_many_rows_of_bins_have_few_each(outer: int, low: int) -> None:
    index = np.zeros((outer, 1100), np.int32)
    x = np.zeros((outer, 2000, 1), np.float32)
    ops, _ = in_steps(Scatter("add", outer, 2000, 1, 1100), [x, index, index.astype("f4")], F32)
    assert isinstance(ops[-1], Binned)
    assert ops[-1].low == low


def test_what_pieces_might_keep_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    op = Scatter("add", 1, 5000, 1, 5000)
    index = np.zeros((1, 5000), np.int32)
    x, update = (np.zeros((1, 5000, 1), np.float32) for _ in range(2))
    assert isinstance(in_steps(op, [x, index, update], F32)[0][-1], Binned)
    # A piece of each of 20 stretches of 256 updates, and the first piece of as many bins.
    monkeypatch.setattr(whole_ops, "_MOST_KEPT", 2 * 20 * 1024 - 1)
    assert isinstance(in_steps(op, [x, index, update], F32)[0][-1], Gathered)


@pytest.mark.parametrize(("outer", "tile"), [(1, 1024), (2, 2048)])
def test_few_elements_have_small_tiles(outer: int, tile: int) -> None:
    index = np.zeros((outer, 1 << 17), np.int32)
    x = np.zeros((outer, 2, 1), np.float32)
    ops, _ = in_steps(Scatter("max", outer, 2, 1, 1 << 17), [x, index, index.astype("f4")], F32)
    assert isinstance(ops[0], Digits)
    assert ops[0].tile == tile


def test_many_elements_have_large_tiles() -> None:
    call = OpaqueCall(Order(1, 1 << 23, 5), ("x",), (0,))
    kernel = Kernel("op", Pattern.OPAQUE, (), (), (Output("out", "", ()),), opaque=call)
    tensors = {"x": Tensor("x", F32, (1, 1 << 23)), "out": Tensor("out", SI64, (1, 5))}
    ops = [step.opaque.op for step in whole_in_parts(kernel, tensors)[0] if step.opaque]
    assert {op.tile for op in ops if isinstance(op, Digits | Moved)} == {4096}


@pytest.mark.parametrize("fn", ["add", "max", "min"])
@pytest.mark.parametrize("dtype", [SI32, SI64])
def test_integers_are_combined_as_they_come(dtype: DType, fn: str) -> None:
    op = Scatter(fn, 1, 50, 4, 3000)
    x, update = (RNG.integers(-9, 9, (1, n, 4)).astype(dtype.numpy) for n in (50, 3000))
    index = RNG.integers(0, 50, (1, 3000)).astype(np.int32)
    assert in_steps(op, [x, index, update], dtype)[0] == [op]


@pytest.mark.parametrize(("count", "tile"), [(2, 256), (257, 512), (1025, 1280), (5000, 2048)])
def test_tiles_are_not_much_longer_than_rows(count: int, tile: int) -> None:
    """Many rows with a few updates each, as of a choice of experts."""
    outer = (1 << 17) // count + 1
    op = Scatter("add", outer, 3, 1, count)
    index = np.zeros((outer, count), np.int32)
    x, update = np.zeros((outer, 3, 1), BF16.numpy), np.zeros((outer, count, 1), BF16.numpy)
    ops, _ = in_steps(op, [x, index, update], BF16)
    assert isinstance(ops[0], Digits)
    assert ops[0].tile == tile


def test_one_tile_needs_no_sums() -> None:
    x, update = np.zeros((1, 2, 1), BF16.numpy), np.ones(9, BF16.numpy)
    ops, _ = in_steps(Scatter("add", 1, 2, 1, 9), [x, np.zeros((1, 9), np.int32), update], BF16)
    assert [type(op) for op in ops] == [Digits, Moved, Starts, Gathered]


@pytest.mark.parametrize(("width", "long"), [(1, 64), (33, 128), (768, 512), (5000, 512)])
def test_a_run_is_long_where_a_block_is_worth_while(width: int, long: int) -> None:
    op = Scatter("max", 1, 3, width, 1024)
    zeros: list[Array] = [np.zeros((1, 3, width), np.float32), np.zeros((1, 1024), np.int32)]
    ops, _ = in_steps(op, [*zeros, np.ones((1024, width), np.float32)], F32)
    assert isinstance(ops[-1], Gathered)
    assert ops[-1].long == long


@pytest.mark.parametrize(
    "op",
    [
        Order(1, 1 << 30, 5),
        Order(1 << 16, 1 << 14, 5),
        Scatter("max", 1, 50, 1, 1 << 30),
        Scatter("max", 1, 50, 1 << 10, 1 << 20, each=True),
    ],
    ids=str,
)
def test_what_32_bits_do_not_count_stays_whole(op: Order | Scatter) -> None:
    tensors = {name: Tensor(name, F32, (op.outer, 50)) for name in ("x", "at", "new", "out")}
    inputs = ("x",) if isinstance(op, Order) else ("x", "at", "new")
    out = Output("out", "", ())
    call = OpaqueCall(op, inputs, (0,))
    kernel = Kernel("op", Pattern.OPAQUE, (), (), (out,), opaque=call)
    assert whole_in_parts(kernel, tensors) == ((kernel,), ())


@pytest.mark.parametrize("rows", [(1 << 31) - (1 << 20), (1 << 31) + 1, (1 << 32) + 1])
@pytest.mark.parametrize("outer", [1, 2])
def test_places_that_32_bits_do_not_count_stay_whole(rows: int, outer: int) -> None:
    """Keys of more bits are read again from what is sorted: pairs would hold digits, no places."""
    op = Scatter("max", outer, rows // outer, 1, 2000)
    shapes = {"x": (outer, rows // outer, 1), "at": (outer, 2000), "new": (outer, 2000, 1)}
    shapes["out"] = shapes["x"]
    tensors = {name: Tensor(name, UI8, shape) for name, shape in shapes.items()}
    tensors["at"] = Tensor("at", SI32, shapes["at"])
    call = OpaqueCall(op, ("x", "at", "new"), (0,))
    kernel = Kernel("op", Pattern.OPAQUE, (), (), (Output("out", "", (), "x"),), opaque=call)
    assert whole_in_parts(kernel, tensors) == ((kernel,), ())


def test_short_rows_stay_whole() -> None:
    ops, _ = in_steps(Order(2, 8192, 8192), [RNG.standard_normal((2, 8192))], SI64)
    assert ops == [Order(2, 8192, 8192)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("fn", "shape"), [("sum", (1, 32768, 1)), ("max", (3, 49152, 2))])
def test_long_columns_are_gone_along_in_parts(
    fn: str, shape: tuple[int, int, int], reverse: bool
) -> None:
    x = RNG.integers(-3, 4, shape).astype(np.float32)
    ops, got = in_steps(Running(fn, *shape, reverse), [x], F32)
    assert [step.name for step in ops] == ["totals", "continued"]
    source = x[:, ::-1] if reverse else x
    want = np.cumsum(source, axis=1) if fn == "sum" else np.maximum.accumulate(source, axis=1)
    assert (got.reshape(shape) == (want[:, ::-1] if reverse else want)).all()


@pytest.mark.parametrize(("length", "steps"), [(16384, 1), (16385, 2), (32771, 2)])
def test_columns_of_any_length_are_cut(length: int, steps: int) -> None:
    x = np.ones((1, length, 1), np.float32)
    ops, got = in_steps(Running("sum", 1, length, 1), [x], F32)
    assert len(ops) == steps
    assert (got.reshape(-1) == np.arange(1, length + 1)).all()


def test_the_totals_of_narrow_floats_are_not_rounded() -> None:
    x = np.full((1, 32768, 1), 1 + 1 / 128, BF16.numpy)
    op = Running("sum", 1, 32768, 1)
    kernel = Kernel(
        "op", Pattern.OPAQUE, (), (), (Output("out", "", ()),), opaque=OpaqueCall(op, ("x",), (0,))
    )
    tensors = {name: Tensor(name, BF16, x.shape) for name in ("x", "out")}
    (first, _), (totals,) = whole_in_parts(kernel, tensors)
    assert totals.dtype is F32
    made = run_kernel(first, tensors | {totals.name: totals}, {"x": x}, opaque=run_opaque)
    assert (made[totals.name] == 4096 * (1 + 1 / 128)).all()


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("count", [20, 3000, 10_000])
def test_many_updates_are_sorted_first(count: int, dtype: DType) -> None:
    op = Scatter("add", 1, 50, 4, count)
    x = RNG.standard_normal((1, 50, 4)).astype(dtype.numpy)
    index = RNG.integers(0, 50, (1, count)).astype(np.int32)
    update = RNG.integers(-2, 3, (1, count, 4)).astype(dtype.numpy)
    ops, got = in_steps(op, [x, index, update], dtype)
    assert isinstance(ops[-1], Gathered) == (count > 1000 or dtype is BF16)
    want = x.astype(np.float64).reshape(50, 4)
    np.add.at(want, index.reshape(-1), update.astype(np.float64).reshape(count, 4))
    bound = 1e-2 if dtype is BF16 else 1e-5
    wide = got.astype(np.float64).reshape(50, 4)
    np.testing.assert_allclose(wide, want, rtol=bound, atol=bound)


@pytest.mark.parametrize(("width", "count"), [(4, 3000), (1, 3000), (4, 900), (3000, 1024)])
def test_indices_of_columns_are_sorted_one_by_one(width: int, count: int) -> None:
    op = Scatter("add", 2, 50, width, count, each=True)
    index = RNG.integers(0, 50, (2, count, width))
    update = RNG.integers(-2, 3, (2, count, width)).astype(np.float32)
    ops, got = in_steps(op, [np.zeros((2, 50, width), np.float32), index, update], F32)
    is_sorted = width <= 2048 and count >= 1024
    assert isinstance(ops[-1], Gathered) == is_sorted
    if is_sorted:
        assert ops[-1] == Gathered("add", 2, 50 * width, 1, count * width, 64)
    want = np.zeros((2, 50, width))
    rows, columns = np.arange(2)[:, None, None], np.arange(width)
    np.add.at(want, (rows, index, columns), update)
    assert (got.reshape(want.shape) == want).all()


@pytest.mark.parametrize("each", [False, True])
def test_one_update_is_rounded_once_as_it_comes(each: bool) -> None:
    """The gradient of a loss that picks one of many: nobody asks where each of these begins."""
    op = Scatter("add", 4, 1000, 2, 1, each=each)
    x = np.full((4, 1000, 2), 0.1, BF16.numpy)
    index = np.full((4, 1, 2) if each else (4, 1), 7, np.int32)
    ops, _ = in_steps(op, [x, index, np.ones((4, 1, 2), BF16.numpy)], BF16)
    assert ops == [op]


def test_narrow_floats_with_indices_of_their_own_are_always_sorted() -> None:
    op = Scatter("add", 1, 5, 3, 4, each=True)
    x, update = np.zeros((1, 5, 3), BF16.numpy), np.ones((1, 4, 3), BF16.numpy)
    ops, got = in_steps(op, [x, np.zeros((1, 4, 3), np.int64), update], BF16)
    assert isinstance(ops[-1], Gathered)
    assert got.astype(np.float32).reshape(5, 3)[0].tolist() == [4, 4, 4]
