"""Outer products of groups of rows on the dialect's interpreter, against one group after the
other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.cases import one_in
from tests.support.draws import generator
from tests.support.gpu_faults import Change, is_caught, planted, without
from tests.support.gpu_whole import carried_out, kernel_of
from weft.codegen.gpu import ir
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.interp import run
from weft.codegen.gpu.ir.module import GpuModule
from weft.codegen.gpu.ir.scalar import scalar
from weft.codegen.gpu.products import outer
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.codegen.gpu.verify import verify
from weft.foundation.dtypes import BF16, F16, SI32, DType
from weft.foundation.grouped_rows import GroupSpans, OuterRows, OuterTiles
from weft.region.ir import Kernel, OpaqueCall, Output, Pattern, Tensor
from weft.target.sm90 import SM90

Array = NDArray[Any]
RNG = generator()
ROWS = 233
OFFSETS: dict[str, list[int]] = {
    "groups": [30, 200, 233],
    "empty groups": [0, 100, 100, 233],
    "rows after the last group": [64, 71],
    "no rows in groups": [0, 0],
    "out of order": [100, 60, -5, 240],
    "whole steps": [128, 192],
}


def spans_of(rows: int, offsets: Array) -> Array:
    op, result = GroupSpans(rows, len(offsets)), np.full(2 * len(offsets), 99, np.int32)
    found = carried_out(kernel_of(op, [offsets], result), [offsets], result)
    np.testing.assert_array_equal(found, op.evaluate(offsets))
    return found


def product_kernel(op: OuterTiles, dtype: DType) -> ir.Kernel:
    tensors = {
        "x": Tensor("x", dtype, (op.rows, op.height)),
        "y": Tensor("y", dtype, (op.rows, op.width)),
        "spans": Tensor("spans", SI32, (op.groups, 2)),
        "out": Tensor("out", dtype, (op.groups, op.height, op.width)),
    }
    call = OpaqueCall(op, ("x", "y", "spans"), (0,))
    kernel = Kernel("opaque0", Pattern.OPAQUE, (), (), (Output("out", "", ()),), opaque=call)
    assert outer.PRODUCT.accepts(op, kernel, tensors, SM90) == []
    made = outer.PRODUCT.build(op, kernel, tensors, SM90, "k_outer")
    verify(made, SM90)
    return made


def made_by(op: OuterTiles, x: Array, y: Array, offsets: Array, dtype: DType) -> Array:
    out = np.full(op.groups * op.height * op.width, 77).astype(dtype.numpy)
    spans = spans_of(op.rows, offsets)
    given = {"x": x.reshape(-1), "y": y.reshape(-1), "spans": spans, "out": out}
    kernel = product_kernel(op, dtype)
    run(kernel, {name: given[name] for name in kernel.buffers})
    return out


@pytest.mark.parametrize("name", one_in(3, OFFSETS))
def test_each_group_has_the_product_of_its_rows(name: str) -> None:
    offsets: Array = np.array(OFFSETS[name])
    x = RNG.integers(-4, 5, (ROWS, 72)).astype(BF16.numpy)
    y = RNG.integers(-4, 5, (ROWS, 136)).astype(BF16.numpy)
    whole = OuterRows(ROWS, len(offsets), 72, 136)
    wanted = whole.evaluate(x, y, offsets)
    tile = OuterTiles(**vars(whole), tile=128)
    np.testing.assert_array_equal(tile.evaluate(x, y, spans_of(ROWS, offsets)), wanted)
    np.testing.assert_array_equal(made_by(tile, x, y, offsets, BF16), wanted)


def test_wide_tiles() -> None:
    offsets: Array = np.array([100, 233], np.int32)
    x = RNG.integers(-4, 5, (ROWS, 136)).astype(F16.numpy)
    y = RNG.integers(-4, 5, (ROWS, 264)).astype(F16.numpy)
    whole = OuterRows(ROWS, 2, 136, 264)
    found = made_by(OuterTiles(**vars(whole), tile=256), x, y, offsets, F16)
    np.testing.assert_array_equal(found, whole.evaluate(x, y, offsets))


@pytest.mark.parametrize("side", one_in(2, ["x", "y"]))
def test_what_is_not_a_number_stays_in_its_group(side: str) -> None:
    offsets: Array = np.array([10, 70])
    x, y = np.ones((70, 128), BF16.numpy), np.ones((70, 128), BF16.numpy)
    (x if side == "x" else y)[10:] = np.inf
    found = made_by(OuterTiles(70, 2, 128, 128, 128), x, y, offsets, BF16).reshape(2, -1)
    assert (found[0].astype(np.float32) == 10).all()
    assert np.isinf(found[1].astype(np.float32)).all()


def too_few_cleared(statement: ir.Stmt) -> ir.Stmt:
    """Rows of the next group are cleared from the second on."""
    if isinstance(statement, ir.For) and statement.var == "cleared":
        return replace(statement, start=scalar(statement.start) + 4)
    return statement


def without_wait(statement: ir.Stmt) -> ir.Stmt | None:
    waits = isinstance(statement, ir.MbarrierWait) and statement.barrier.barriers == "full"
    return None if waits else statement


FAULTS: dict[str, Change] = {
    "copies are not waited for": without_wait,
    "products are not waited for": without(ir.WgmmaWait),
    "rows of the next group are not cleared": without(ir.StShared),
    "some rows of the next group are not cleared": too_few_cleared,
    "what is cleared is not fenced": without(ir.ProxyFence),
    "consumers do not meet": without(ir.NamedBarrier),
}


@pytest.mark.parametrize("name", one_in(6, FAULTS))
def test_planted_faults_are_caught(name: str) -> None:
    op, offsets = OuterTiles(233, 3, 72, 136, 128), np.array([30, 200, 233])
    x, y = (RNG.integers(1, 5, (233, n)).astype(F16.numpy) for n in (72, 136))
    spans = spans_of(233, offsets)
    given = {"x": x.reshape(-1), "y": y.reshape(-1), "spans": spans}
    given["out"] = np.full(3 * 72 * 136, 77).astype(F16.numpy)
    kernel, wanted = product_kernel(op, F16), op.evaluate(x, y, spans)
    assert not is_caught(kernel, given, wanted, 0)
    broken = planted(kernel, FAULTS[name])
    assert any(is_caught(broken, given, wanted, seed) for seed in range(4))


@pytest.mark.parametrize("tile", one_in(2, [128, 256]))
def test_machine_code_spills_nothing(tile: int) -> None:
    kernel = product_kernel(OuterTiles(500, 4, 136, 264, tile), BF16)
    module = GpuModule({"k_outer": kernel})
    assert parse_module(print_module(module)) == module
    report = compile_cuda(cuda(kernel), "sm_90a").report
    assert (report.spilled_bytes, report.stack_bytes) == (0, 0)
