"""Runs through shared memory: right on the dialect's interpreter for every dtype and shape, in
whole lines on both sides and without bank conflicts; what has no whole lines goes another way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_convolutions import Case
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu import ir
from weft.codegen.gpu.coalescing import traffic
from weft.codegen.gpu.interp.scalars import evaluate
from weft.codegen.gpu.ir.values import StoreVector
from weft.codegen.gpu.templates import accepts
from weft.plan.ir import MapPlan
from weft.ptir import Builder, Program, Value
from weft.target.known import target_named
from weft.testing.compare import compare

Make = Callable[..., Value]
LAST = [0, 2, 3, 1]
CASES: dict[str, tuple[tuple[tuple[int, ...], ...], Make]] = {
    "filters": (((24, 40, 3, 3),), lambda b, x: b.transpose(x, LAST)),
    "even rows": (((24, 40, 2, 4),), lambda b, x: b.transpose(x, LAST)),
    "many rows": (((3, 48, 7, 7),), lambda b, x: b.transpose(x, LAST)),
    "a part": (
        ((24, 48, 3, 3),),
        lambda b, x: b.transpose(b.slice(x, [8, 8, 0, 0], [16, 40, 3, 3]), LAST),
    ),
    "outer axes the other way": (
        ((6, 5, 40, 3, 3),),
        lambda b, x: b.transpose(x, [1, 0, 3, 4, 2]),
    ),
    "two, and a third": (
        ((8, 72, 3, 3), (8, 72, 3, 3), (8, 3, 3, 72)),
        lambda b, x, y, z: b.transpose(x, LAST) * b.transpose(y, LAST) + z,
    ),
    "wider": (((24, 40, 3, 3),), lambda b, x: b.cast(b.transpose(x, LAST), "f64")),
    "narrower": (((24, 48, 3, 3),), lambda b, x: b.cast(b.transpose(x, LAST), "f16")),
}


def program(name: str, dtype: str) -> Program:
    shapes, make = CASES[name]
    b = Builder()
    return b.build(make(b, *(b.param(dtype, list(shape)) for shape in shapes)))


def in_runs(found: Program, target: str = "sm90") -> ir.Kernel:
    """The one kernel of a program, which takes runs through shared memory."""
    kernel: ir.Kernel
    (kernel,) = through_stages(found, target)["gpu"].kernels.values()
    assert any(isinstance(step, ir.CpAsync) for step in ir.walk(kernel.body))
    return kernel


@pytest.mark.parametrize("dtype", one_in(2, ["f32", "bf16"]))
@pytest.mark.parametrize("name", one_in(3, CASES))
def test_runs_agree(name: str, dtype: str) -> None:
    found = program(name, dtype)
    in_runs(found)
    report = compare(found, inputs_for(found, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("dtype", one_in(2, ["i1", "si8", "si64", "f64", "f16"]))
def test_other_dtypes_agree(dtype: str) -> None:
    b = Builder()
    found = b.build(b.transpose(b.param(dtype, [24, 32, 3, 3]), LAST))
    in_runs(found, "sm80")
    report = compare(found, inputs_for(found, 4), InterpretedGpu("sm80"))
    assert report.agrees, str(report)


def test_filters_of_a_convolution_are_copied_in_runs() -> None:
    case = Case(size=(8, 8), inputs=64, outputs=64, layout="first")
    compilation = through_stages(case.program(), "sm90")
    plan = compilation["plan"].of("conv0_rhs_copy")
    assert isinstance(plan, MapPlan)
    assert plan.block > 1
    report = compare(case.program(), inputs_for(case.program(), 5), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("rows", one_in(2, [[3, 3], [2, 2], [4, 4], [5, 5]]))
def test_memory_is_touched_in_whole_lines(rows: list[int]) -> None:
    b = Builder()
    kernel = in_runs(b.build(b.transpose(b.param("bf16", [64, 320, *rows]), LAST)))
    stores = [step for step in ir.walk(kernel.body) if isinstance(step, StoreVector)]
    assert stores
    assert all(len(store.sources) == 8 for store in stores)
    assert traffic(kernel).ratio < 1.01


def shared_places(kernel: ir.Kernel, turn: int) -> Iterator[np.ndarray[Any, Any]]:
    """The bytes of shared memory that the lanes of the first warp of block 0 read together."""
    names: dict[str, Any] = {}
    place = SimpleNamespace(kernel=kernel, number=0)
    for found in ir.walk(kernel.body):
        if isinstance(found, ir.For):
            names[found.var] = turn
        elif isinstance(found, ir.Let):
            names[found.name] = evaluate(found.value, names, 0, place)
        elif isinstance(found, ir.LoadStaged):
            yield np.asarray(evaluate(found.source.offset, names, 0, place))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "si8"])
@pytest.mark.parametrize("rows", one_in(2, [[3, 3], [2, 2], [4, 4], [1, 3], [5, 5]]))
def test_lanes_find_their_words_in_different_banks(dtype: str, rows: list[int]) -> None:
    """Lanes that read other words than one another read from other banks; but for the few that go
    on to the first row of the next columns, and vectors of eight bytes, half of a line."""
    b = Builder()
    kernel = in_runs(b.build(b.transpose(b.param(dtype, [64, 512, *rows]), LAST)))
    reads = list(shared_places(kernel, 0))
    assert reads
    whole = np.prod(rows) >= 4 and dtype != "si8"
    for places in reads:
        words = {int(byte) // 4 for byte in places}
        most = max(np.bincount([word % 32 for word in words]))
        assert most == 1 if whole else most <= 2


@pytest.mark.parametrize(
    "shape",
    [(24, 41, 3, 3), (40, 4, 3, 3), (512, 3, 64, 64)],
    ids=["odd columns", "columns within a sector", "long rows"],
)
def test_others_take_another_way(shape: tuple[int, ...]) -> None:
    b = Builder()
    found = b.build(b.transpose(b.param("bf16", list(shape)), LAST))
    (kernel,) = through_stages(found, "sm90")["gpu"].kernels.values()
    assert not any(isinstance(step, ir.CpAsync) for step in ir.walk(kernel.body))


def test_lines_that_begin_inside_others_are_not_copied() -> None:
    """A part that begins at an odd channel, in rows of nine elements of two bytes."""
    b = Builder()
    x = b.slice(b.param("bf16", [24, 41, 3, 3]), [0, 1, 0, 0], [24, 40, 3, 3])
    found = b.build(b.transpose(x, LAST))
    (kernel,) = through_stages(found, "sm90")["gpu"].kernels.values()
    assert not any(isinstance(step, ir.CpAsync) for step in ir.walk(kernel.body))
    report = compare(found, inputs_for(found, 6), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


REFUSED = {
    "vector": (
        {"vector": 16, "block": 128, "grain": 16384},
        "a vector of 16 does not divide an axis of 40",
    ),
    "block": ({"block": 72, "grain": 5184}, "72 columns are not made of 8 threads"),
    "grain": ({"grain": 512}, "a piece of work is a block: 1024 points"),
    "unroll": ({"unroll": 2}, "a piece of work is a block: 1024 points"),
    "shared memory": ({"block": 8192, "grain": 1 << 26}, "the runs of all operands take 294912"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    fields, why = REFUSED[name]
    compilation = through_stages(program("filters", "f32"), "sm90")
    (kernel,) = compilation["region"].kernels
    plan = replace(compilation["plan"].of(kernel.name), **fields)
    given = compilation["region"].tensors, compilation["memory"].refs
    found = accepts(kernel, *given, plan, target_named("sm90"))
    assert [finding.why.startswith(why) for finding in found][:1] == [True], found
