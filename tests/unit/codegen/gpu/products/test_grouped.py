"""Products of groups of rows on the dialect's interpreter, against one group after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.cases import each, one_in
from tests.support.draws import generator
from tests.support.gpu_faults import Change, is_caught, planted, without
from tests.support.gpu_whole import carried_out, kernel_of
from weft.codegen.gpu import ir
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.interp import run
from weft.codegen.gpu.ir.module import GpuModule
from weft.codegen.gpu.products import grouped
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.codegen.gpu.verify import verify
from weft.foundation.dtypes import BF16, F16, SI32, DType
from weft.foundation.grouped_rows import ENTRY, GroupedRows, GroupedTiles, GroupTiles
from weft.region.ir import Kernel, OpaqueCall, Output, Pattern, Tensor
from weft.target.sm90 import SM90

Array = NDArray[Any]
RNG = generator()
OFFSETS: dict[str, list[int]] = {
    "groups": [30, 200, 233],
    "an empty group": [0, 100, 100, 233],
    "rows after the last group": [70, 71],
    "no rows in groups": [0, 0],
    "one group": [233],
    "out of order": [100, 60, -5, 240],
    "whole tiles": [128, 192],
}
ROWS = 233


def table_of(op: GroupTiles, offsets: Array) -> Array:
    """The table as its kernel writes it."""
    result = np.full((op.count + 1) * ENTRY, 99, np.int32)
    return carried_out(kernel_of(op, [offsets], result), [offsets], result)


@each("name", OFFSETS)
@each("tile", [64, 128])
@each("kind", [np.int32, np.int64])
def test_the_table_says_which_rows_each_tile_has(name: str, tile: int, kind: type) -> None:
    offsets: Array = np.array(OFFSETS[name], kind)
    op = GroupTiles(ROWS, len(offsets), tile)
    found = table_of(op, offsets)
    np.testing.assert_array_equal(found, op.evaluate(offsets))
    count = int(found[0])
    assert count <= op.count
    entries = found.reshape(-1, ENTRY)[1 : 1 + count]
    covered = [r for _, _, a, b in entries.tolist() for r in range(a, min(a + tile, b))]
    assert covered == list(range(ROWS))


def test_there_are_never_more_tiles_than_there_is_room_for() -> None:
    for _ in range(200):
        rows, groups, tile = (int(RNG.integers(1, n)) for n in (300, 12, 130))
        op = GroupTiles(rows, groups, tile)
        offsets = RNG.integers(-5, rows + 5, groups)
        assert op.evaluate(offsets).reshape(-1, ENTRY)[0, 0] <= op.count


def product_kernel(op: GroupedTiles, dtype: DType) -> ir.Kernel:
    tensors = {
        "x": Tensor("x", dtype, (op.rows, op.depth)),
        "w": Tensor("w", dtype, (op.groups, op.depth, op.columns)),
        "tiles": Tensor("tiles", SI32, (op.tiles.count + 1, ENTRY)),
        "out": Tensor("out", dtype, (op.rows, op.columns)),
    }
    call = OpaqueCall(op, ("x", "w", "tiles"), (0,))
    kernel = Kernel("opaque0", Pattern.OPAQUE, (), (), (Output("out", "", ()),), opaque=call)
    assert grouped.PRODUCT.accepts(op, kernel, tensors, SM90) == []
    made = grouped.PRODUCT.build(op, kernel, tensors, SM90, "k_grouped")
    verify(made, SM90)
    return made


def agrees(
    offsets: list[int], tile: int, width: int, transposed: bool, columns: int, dtype: DType
) -> None:
    depth, given = 136, np.array(offsets, np.int32)
    x = RNG.integers(-4, 5, (ROWS, depth)).astype(dtype.numpy)
    sides = (columns, depth) if transposed else (depth, columns)
    w = RNG.integers(-4, 5, (len(offsets), *sides)).astype(dtype.numpy)
    whole = GroupedRows(ROWS, len(offsets), depth, columns, transposed)
    op = GroupedTiles(**vars(whole), tile=tile, width=width)
    table = table_of(op.tiles, given)
    wanted = whole.evaluate(x, w, given)
    np.testing.assert_array_equal(op.evaluate(x, w, table), wanted)
    out = np.full(ROWS * columns, 77).astype(dtype.numpy)
    given_to = {"x": x.reshape(-1), "w": w.reshape(-1), "tiles": table, "out": out}
    kernel = product_kernel(op, dtype)
    run(kernel, {name: given_to[name] for name in kernel.buffers})
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("name", one_in(3, OFFSETS))
def test_each_group_meets_its_own_matrix(name: str) -> None:
    agrees(OFFSETS[name], 128, 128, False, 72, BF16)


@pytest.mark.parametrize("transposed", one_in(2, [False, True]))
@pytest.mark.parametrize(
    ("tile", "width"),
    one_in(5, [(64, 128), (64, 256), (128, 256), (192, 256), (256, 128)], unpack=True),
)
def test_tiles_of_every_size(tile: int, width: int, transposed: bool) -> None:
    agrees([30, 200, 232], tile, width, transposed, 328, F16)


@pytest.mark.parametrize("tile", one_in(2, [64, 128]))
def test_more_tiles_than_a_band_has(tile: int) -> None:
    agrees(list(range(20, 221, 20)), tile, 128, False, 136, BF16)


def test_infinite_weights_do_not_reach_rows_without_a_group() -> None:
    op = GroupedTiles(70, 2, 64, 64, False, 64, 128)
    x, w = np.ones((70, 64), BF16.numpy), np.full((2, 64, 64), np.inf, BF16.numpy)
    table, out = table_of(op.tiles, np.array([3, 5])), np.ones(70 * 64, BF16.numpy)
    given = {"x": x.reshape(-1), "w": w.reshape(-1), "tiles": table, "out": out}
    kernel = product_kernel(op, BF16)
    run(kernel, {name: given[name] for name in kernel.buffers})
    assert np.isinf(out[: 5 * 64].astype(np.float32)).all()
    assert not out[5 * 64 :].astype(np.float32).any()


def without_wait(statement: ir.Stmt) -> ir.Stmt | None:
    waits = isinstance(statement, ir.MbarrierWait) and statement.barrier.barriers == "full"
    return None if waits else statement


def never_free(statement: ir.Stmt) -> ir.Stmt | None:
    gives = isinstance(statement, ir.MbarrierArrive) and statement.barrier.barriers == "empty"
    return None if gives else statement


def another_entry(name: str) -> Change:
    """A number of each tile is read from the entry of the next."""

    def change(statement: ir.Stmt) -> ir.Stmt:
        if isinstance(statement, ir.LoadElement) and statement.name == f"{name}_read":
            return replace(statement, offset=statement.offset + ENTRY)
        return statement

    return change


FAULTS: dict[str, Change] = {
    "copies are not waited for": without_wait,
    "slots are never free": never_free,
    "products are not waited for": without(ir.WgmmaWait),
    "warps do not meet before they store": without(ir.NamedBarrier),
    "the matrix of another group": another_entry("matrix"),
    "rows behind the end of a group": another_entry("end"),
    "rows of another tile": another_entry("source"),
}


@pytest.mark.parametrize("name", one_in(5, FAULTS))
def test_planted_faults_are_caught(name: str) -> None:
    """There are more steps than slots."""
    op, offsets = GroupedTiles(233, 3, 456, 72, False, 128, 128), np.array([30, 200, 233])
    x, w = (RNG.integers(-4, 5, s).astype(F16.numpy) for s in ((233, 456), (3, 456, 72)))
    table = table_of(op.tiles, offsets)
    given = {"x": x.reshape(-1), "w": w.reshape(-1), "tiles": table}
    given["out"] = np.full(233 * 72, 77).astype(F16.numpy)
    kernel, wanted = product_kernel(op, F16), op.evaluate(x, w, table)
    assert not is_caught(kernel, given, wanted, 0)
    broken = planted(kernel, FAULTS[name])
    assert any(is_caught(broken, given, wanted, seed) for seed in range(4))


@pytest.mark.parametrize("transposed", one_in(2, [False, True]))
@pytest.mark.parametrize(
    ("tile", "width"),
    one_in(
        4,
        [(64, 128), (64, 256), (128, 128), (128, 256), (192, 128), (192, 256), (256, 128)],
        unpack=True,
    ),
)
def test_machine_code_spills_nothing(tile: int, width: int, transposed: bool) -> None:
    kernel = product_kernel(GroupedTiles(500, 4, 128, 264, transposed, tile, width), BF16)
    module = GpuModule({"k_grouped": kernel})
    assert parse_module(print_module(module)) == module
    report = compile_cuda(cuda(kernel), "sm_90a").report
    assert (report.spilled_bytes, report.stack_bytes) == (0, 0)
