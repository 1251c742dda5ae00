"""Convolutions of planes with the pool behind them, on the dialect's interpreter: right for a line
of one tile and of several, with few channels and with several steps; faults that were planted are
found; what is no such convolution stays two kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_faults import planted, without
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_planes import CASES, Case
from tests.support.gpu_programs import through_stages
from weft import functional
from weft.codegen.gpu import ir, templates
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.interp import Hazard, Timing, run
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.foundation.errors import SpecViolation
from weft.ptir import Program
from weft.region.fitting import join_pools
from weft.target.known import target_named
from weft.testing.compare import compare


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_pools, "_WORTH", 1)


def of_planes(program: Program) -> list[ir.Kernel]:
    kernels = through_stages(program, "sm90")["gpu"].kernels.values()
    return [
        kernel
        for kernel in kernels
        if any(isinstance(found, ir.PoolPairs) for found in ir.walk(kernel.body))
    ]


@pytest.mark.parametrize("name", one_in(3, CASES))
def test_a_pool_behind_a_convolution_is_one_kernel_and_agrees(name: str) -> None:
    program = CASES[name].program()
    assert len(of_planes(program)) == 1
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


OTHERS = {
    "windows that overlap": Case(pool=3),
    "lines that begin anywhere": Case((2, 16, 6, 12)),
    "columns without a border": Case((2, 16, 6, 18), padding=(1, 0)),
    "a stride": Case((2, 16, 12, 32), stride=2),
    "many filters": Case(filters=(72, 16, 3, 3)),
    "single numbers": Case(dtype="f32"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_convolutions_are_not_of_planes(name: str) -> None:
    assert of_planes(OTHERS[name].program()) == []


def test_a_result_that_others_read_is_stored() -> None:
    def both(x: Any, w: Any) -> Any:
        y = functional.relu(functional.conv2d(x, w, padding=1))
        return functional.max_pool2d(y, 2), y

    given = [weft.zeros(shape, dtype="f16") for shape in (Case.image, Case.filters)]
    assert of_planes(weft.jit(both).program(*given)) == []


FAULTY = Case((2, 64, 6, 72), (24, 64, 3, 3))


def results_of(kernel: ir.Kernel, timing: Timing = Timing.LATE, seed: int = 0) -> NDArray[Any]:
    rng = np.random.default_rng(7)
    sizes = (2 * 64 * 6 * 72, 24 * 9 * 64)
    made = [rng.standard_normal(size).astype(np.float16) for size in sizes]
    made.append(np.full(2 * 24 * 3 * 36, np.nan, np.float16))
    tensors = dict(zip(kernel.buffers, made, strict=True))
    run(kernel, tensors, timing, seed)
    return tensors[kernel.buffers[-1]]


def shifted_the_other_way(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.AddShifted):
        return replace(statement, by=-statement.by)
    return statement


def unready(statement: ir.Stmt) -> ir.Stmt | None:
    """Nobody waits for the filters."""
    waits = isinstance(statement, ir.MbarrierWait) and statement.barrier.barriers == "ready"
    return None if waits else statement


def test_any_timing_and_order_gives_the_same_bits_and_faults_are_found() -> None:
    (kernel,) = of_planes(FAULTY.program())
    first = results_of(kernel)
    assert np.isfinite(first.astype(np.float32)).all()
    assert (results_of(kernel, Timing.EARLY, seed=5) == first).all()
    for change in (without(ir.AddShifted), shifted_the_other_way):
        assert not (results_of(planted(kernel, change)) == first).all()
    with pytest.raises(Hazard):
        results_of(planted(kernel, unready))


def test_the_text_reads_back_and_becomes_machine_code() -> None:
    program = replace(FAULTY, bias=True).program()
    module = through_stages(program, "sm90")["gpu"]
    text = print_module(module)
    assert "add_shifted(" in text
    assert parse_module(text) == module
    (kernel,) = of_planes(program)
    assert compile_cuda(cuda(kernel), "sm_90a").report.findings == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tile": (64, 64, 16)}, "a tile is 64x128x16, one consumer's"),
        ({"stages": 1}, "a ring of 1 slots, not of 2 to 12"),
        ({"swap_ab": True}, "swap_ab=true has no effect in the template of planes"),
    ],
)
def test_plans_that_cannot_be_carried_out_are_refused(change: dict[str, Any], why: str) -> None:
    stages = through_stages(Case().program(), "sm90")
    region, refs = stages["region"], stages["memory"].refs
    kernel = region.kernels[-1]
    plan = replace(stages["plan"].of(kernel.name), **change)
    with pytest.raises(SpecViolation, match=why):
        templates.build(kernel, region.tensors, refs, plan, target_named("sm90"), "k0")
