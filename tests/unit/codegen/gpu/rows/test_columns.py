"""Reductions across rows, through every stage and on the dialect's interpreter, against the
reference; and what the template refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support import kernels
from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu import ir
from weft.codegen.gpu.ir import walk
from weft.codegen.gpu.ir.scalar import Lit
from weft.codegen.gpu.rows import columns
from weft.plan.from_region import plan_kernel
from weft.plan.ir import RowPlan
from weft.ptir import Builder, Program, Value
from weft.target.known import target_named
from weft.testing.compare import compare

Make = Callable[[Builder, Value], Value]


def _softmax(b: Builder, x: Value) -> Value:
    return b.softmax(x, 0)


def _variance(b: Builder, x: Value) -> Value:
    """A sum of what another sum over the same rows is needed for."""
    mean = b.reduce_sum(x, [0], keepdims=True) * (1.0 / x.type.static_shape[0])  # type: ignore[union-attr]
    moved = x - b.broadcast_to(mean, x.shape)
    return b.reduce_sum(moved * moved, [0])


def _spread(b: Builder, x: Value) -> Value:
    """The sum and the variance of narrow floats, which come from one pass over long rows."""
    wide = b.cast(x, "f32")
    mean = b.reduce_sum(wide, [0], keepdims=True) * (1.0 / x.type.static_shape[0])  # type: ignore[union-attr]
    moved = wide - b.broadcast_to(mean, wide.shape)
    return b.reduce_sum(moved * moved, [0]) + b.reshape(mean, [x.type.static_shape[1]])  # type: ignore[union-attr]


CASES: dict[str, tuple[tuple[int, ...], Make]] = {
    "sum": ((70, 24), lambda b, x: b.reduce_sum(x, [0])),
    "sum of few": ((5, 40), lambda b, x: b.reduce_sum(x * x, [0])),
    "largest": ((100, 37), lambda b, x: b.reduce_max(x, [0])),
    "two sums": ((64, 16), lambda b, x: b.reduce_sum(x * x, [0]) - b.reduce_sum(x, [0])),
    "softmax": ((33, 8), _softmax),
    "position": ((50, 12), lambda b, x: b.arg_max(x, axis=0)),
    "three axes": ((2, 5, 6, 16), lambda b, x: b.reduce_sum(x, [0, 1, 2])),
    "middle": ((3, 40, 8), lambda b, x: b.reduce_sum(x, [1])),
    "in parts": ((4096, 8), lambda b, x: b.reduce_sum(x, [0])),
    "many members": ((256, 8), lambda b, x: b.reduce_sum(x * x, [0])),
    "variance": ((300, 8), lambda b, x: _variance(b, x)),
    "spread": ((4096, 32), _spread),
    "checked": ((64, 16), lambda b, x: b.take(x, b.arg_max(x, axis=0))),
    "strips": ((2, 520, 64), lambda b, x: b.reduce_max(x, [1])),
}


def program(name: str, dtype: str) -> Program:
    shape, make = CASES[name]
    b = Builder()
    return b.build(make(b, b.param(dtype, list(shape))))


@pytest.mark.parametrize("dtype", one_in(2, ["f32", "bf16"]))
@pytest.mark.parametrize("name", one_in(3, CASES))
def test_columns_agree(name: str, dtype: str) -> None:
    found = program(name, dtype)
    plans = through_stages(found, "sm90")["plan"].plans.values()
    assert any(isinstance(plan, RowPlan) and plan.across for plan in plans)
    report = compare(found, inputs_for(found, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


COLUMNS = {
    "64 columns, bf16": ((1 << 20, 64), (0,), "bf16"),
    "64 columns, f32": ((1 << 20, 64), (0,), "f32"),
    "images, bf16": ((64, 56, 56, 256), (0, 1, 2), "bf16"),
    "images, f32": ((64, 56, 56, 256), (0, 1, 2), "f32"),
    "square, bf16": ((16384, 16384), (0,), "bf16"),
    "square, f32": ((16384, 16384), (0,), "f32"),
    "all, bf16": ((1 << 28,), (0,), "bf16"),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_large_sums_run_in_one_wave_and_then_add_up_quickly(name: str) -> None:
    """Two kernels, the rounding of the result in the second; the first one's blocks fill the units
    and all run at once (those of long rows have twice the columns), the second one's threads read
    at most eight vectors each."""
    shape, axes, dtype = COLUMNS[name]
    b = Builder()
    found = b.build(b.reduce_sum(b.param(dtype, list(shape)), list(axes)))
    compilation = through_stages(found, "sm90")
    first, second = (
        compilation["gpu"].kernels[made.symbol] for made in compilation["gpu"].launches.values()
    )
    units = target_named("sm90").limits.units
    assert 3 * units < first.grid * (2 if name.startswith("square") else 1) <= 4 * units
    assert any(isinstance(statement, ir.AdmitNext) for statement in walk(first.body))
    assert max(map(_turns, walk(second.body))) <= 8


def _turns(statement: ir.Stmt) -> int:
    """How often a loop goes round; 0 for what is no loop."""
    stop = statement.stop if isinstance(statement, ir.For) else Lit(0)
    assert isinstance(stop, Lit)
    return stop.value


def test_vectors_on_their_way_are_shared_among_operands() -> None:
    """Eight of one operand, four of each of two; a divisor of the turns, where there is one."""
    for operands, rows, times in ((1, 2048, 8), (2, 2048, 4), (1, 49 * 32, 7), (1, 37 * 32, 8)):
        b = Builder()
        given = [b.param("bf16", [600, rows, 64]) for _ in range(operands)]
        product = given[0] if operands == 1 else given[0] * given[1]
        compilation = through_stages(b.build(b.reduce_sum(product, [1])), "sm90")
        kernels = compilation["gpu"].kernels.values()
        loops = [s for k in kernels for s in walk(k.body) if isinstance(s, ir.For)]
        assert [loop.times for loop in loops] == [times]


def test_members_share_the_merging_of_a_vector_of_rows() -> None:
    """Of 32 members with 8 rows each, all merge: one row and eight partial results in a step."""
    found = program("many members", "bf16")
    (kernel,) = through_stages(found, "sm90")["gpu"].kernels.values()
    guarded = [s.then for s in walk(kernel.body) if isinstance(s, ir.If)]
    loads = [sum(isinstance(s, ir.LoadShared) for s in body) for body in guarded]
    assert loads
    assert max(loads) <= 8


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "keep_row": ({"keep_row": True}, "rows side by side are not kept"),
    "accumulators": ({"accumulators": 2}, "each of the rows side by side has one partial result"),
    "vector": ({"vector": 16}, "a vector of 16 does not divide an axis of 24"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    fields, why = REFUSED[name]
    compilation = through_stages(program("sum", "f32"), "sm90")
    (kernel,) = compilation["region"].kernels
    plan = replace(compilation["plan"].of(kernel.name), **fields)
    found = columns.accepts(kernel, compilation["region"].tensors, plan, target_named("sm90"))
    assert [finding.why for finding in found] == [why]


def test_rows_that_lie_one_after_the_other_may_be_taken_so_too() -> None:
    module = kernels.softmax(8, 16)
    sm90 = target_named("sm90")
    plan = plan_kernel(module.kernels[0], module.tensors, sm90)
    assert isinstance(plan, RowPlan)
    across = replace(plan, across=True, keep_row=False, vector=1)
    assert columns.accepts(module.kernels[0], module.tensors, across, sm90) == []
