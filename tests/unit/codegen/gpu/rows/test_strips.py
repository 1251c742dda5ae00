"""Strips of rows that overlap, through every stage and on the dialect's interpreter: depthwise
convolutions and their gradients agree with the reference, elements that rows share are read once,
faults that were planted are found, and large ones keep all in registers."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu_convolutions import Shape
from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_convolutions import DEPTHWISE, depthwise
from tests.support.gpu_faults import OF_COLUMNS, planted
from tests.support.gpu_instances import template_of
from tests.support.gpu_interpreted import InterpretedExecutable
from tests.support.gpu_machine_code import check
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu import ir, sass
from weft.codegen.gpu.interp import Hazard, run
from weft.codegen.gpu.interp.scalars import evaluate
from weft.codegen.gpu.ir import values, walk
from weft.driver.reference import ReferenceBackend
from weft.driver.stages.compilation import Compilation
from weft.plan import text
from weft.plan.candidates import closer
from weft.plan.ir import Header, RowPlan


def compiled(name: str, target: str = "sm90", **changes: int) -> Compilation:
    """A program of the list, with so many rows to a thread in its last kernel of strips."""
    program, rows = depthwise(name), DEPTHWISE[name][2]
    plans = json.loads(text.dumps(through_stages(program, target)["plan"]))
    strips = [plan for plan in plans["plans"] if plan.get("rows_per_thread", 1) > 1]
    assert strips, "no kernel takes rows that overlap together"
    strips[-1].update({"rows_per_thread": rows, **changes})
    return through_stages(program, target, plan=json.dumps(plans))


@pytest.mark.parametrize("name", one_in(6, DEPTHWISE))
def test_strips_agree_with_the_reference(name: str) -> None:
    program = depthwise(name)
    inputs = inputs_for(program, 3)
    got = InterpretedExecutable(compiled(name)).execute(inputs)
    want = ReferenceBackend().compile(program).execute(inputs)
    for mine, theirs in zip(got, want, strict=True):
        first, second = (np.asarray(array).astype(np.float64) for array in (mine, theirs))
        assert np.abs(first - second).max() <= 1e-2 * max(1.0, np.abs(second).max())


def _kernel(compilation: Compilation) -> ir.Kernel:
    (kernel,) = compilation["gpu"].kernels.values()
    assert isinstance(kernel, ir.Kernel)
    return kernel


def test_what_neighbours_share_is_read_once() -> None:
    """A strip of seven places and three taps reads nine columns of its image, and the filters once,
    from shared memory."""
    statements = list(walk(_kernel(compiled("3x3")).body))
    assert sum(isinstance(s, values.LoadVector) for s in statements) == 9
    assert sum(isinstance(s, ir.LoadSharedVector) for s in statements) == 3


def test_filters_are_asked_for_before_one_is_put_down() -> None:
    """Elements that were stored as they come would each wait for memory."""
    kernel = _kernel(compiled("7x7", rows_per_block=32))
    moves = [s for s in walk(kernel.body) if isinstance(s, ir.LoadElement | ir.StShared)]
    kinds = [len(list(run)) for _, run in itertools.groupby(moves, type)]
    assert kinds[:2] == [12, 12], kinds


@pytest.mark.parametrize("channels", [96, 384, 144])
def test_lanes_put_filters_into_different_banks(channels: int) -> None:
    """Filters of which the taps of a channel lie side by side in memory: no bank has more than two
    words of a warp, and two where it goes on to the next vector of channels."""
    shape = Shape(64, (14, 14), channels, channels, 7, groups=channels)
    kernel = _kernel(through_stages(shape.line().program(), "sm90"))
    names: dict[str, Any] = {}
    place, stores = SimpleNamespace(kernel=kernel, number=0), 0
    for found in walk(kernel.body):
        if isinstance(found, ir.For):
            names[found.var] = 0
        elif isinstance(found, ir.Let):
            names[found.name] = evaluate(found.value, names, 0, place)
        elif isinstance(found, ir.StShared):
            stores += 1
            places = np.asarray(evaluate(found.target.offset, names, 0, place))
            assert max(np.bincount(places // 4 % 32)) <= 2
    assert stores > 0


@pytest.mark.parametrize("fault", one_in(2, OF_COLUMNS))
def test_planted_faults_are_caught(fault: str) -> None:
    kernel = _kernel(compiled("f32, bias"))
    program = depthwise("f32, bias")
    inputs = inputs_for(program, 1)
    (want,) = ReferenceBackend().compile(program).execute(inputs)
    found = []
    for made in (kernel, planted(kernel, OF_COLUMNS[fault])):
        result = np.zeros(want.size, np.float32)
        given = [*(np.asarray(x).reshape(-1) for x in inputs), result]
        try:
            run(made, dict(zip(made.buffers, given, strict=True)))
        except Hazard:
            result[:] = np.nan
        found.append(np.allclose(result, want.reshape(-1), 1e-4, 1e-4))
    assert found == [True, False]


LAYERS = {
    "7x7": (Shape(64, (14, 14), 384, 384, 7, groups=384), 14),
    "3x3": (Shape(32, (112, 112), 64, 64, 3, groups=64), 8),
    "stride 2": (Shape(32, (56, 56), 144, 144, 3, 2, groups=144), 7),
    "channels first": (Shape(32, (56, 56), 144, 144, 3, groups=144, first=True), 28),
}


@pytest.mark.parametrize("target", one_in(2, ["sm80", "sm90"]))
@pytest.mark.parametrize("name", one_in(3, LAYERS))
@pytest.mark.skipif(not sass.available(), reason="nvdisasm is not installed")
def test_layers_of_networks_do_not_spill(name: str, target: str) -> None:
    shape, rows = LAYERS[name]
    arch = {"sm80": "sm_80", "sm90": "sm_90a"}[target]
    for line in (shape.line(), shape.back(1)):
        compilation = through_stages(line.program(), target)
        first = compilation["plan"].of(next(iter(compilation["gpu"].launches)))
        assert isinstance(first, RowPlan)
        assert template_of(first) == "strips"
        assert line.name.startswith("wgrad") or first.rows_per_thread == rows
        assert check(compilation, arch) == []


def test_plans_whose_rows_lie_along_threads_have_no_strips() -> None:
    plan = RowPlan(Header("sm90", ""), 4, 128, 1, 1, False, rows_per_thread=7, across=True)
    assert {found.rows_per_thread for found in closer(plan) if isinstance(found, RowPlan)} == {1}
