"""The SM80 attention of few queries on the dialect's interpreter: right for shared heads, masks,
bands, ends of the run and every timing; faults that were planted are found; what the compiler makes
of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_attention import FEW, Case
from tests.support.gpu_faults import planted, without
from tests.support.gpu_few import FAULTY, cached, results_of
from tests.support.gpu_interpreted import InterpretedGpu
from weft.codegen.gpu import ir, sass
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.interp import Hazard, Timing
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module
from weft.driver.compile import compile_program
from weft.plan.ir import AttentionPlan
from weft.ptir import Program
from weft.testing.compare import compare


def compiled(program: Program) -> Any:
    return InterpretedGpu("sm80").compile(program).compilation


def only_kernel(program: Program) -> ir.Kernel:
    code = compiled(program)["gpu"]
    (name,) = [name for name in code.launches if name.startswith("attention")]
    kernel: ir.Kernel = code.kernels[code.launches[name].symbol]
    return kernel


def plan_of(program: Program) -> AttentionPlan:
    plans = compiled(program)["plan"].plans.values()
    (plan,) = [plan for plan in plans if isinstance(plan, AttentionPlan)]
    return plan


AGREE = [
    "one query, shared heads",
    "causal, shared heads",
    "48 rows, log-sum-exp",
    "window",
    "mask of truth values",
    "values of their own width",
    "64 rows of 192 and 256",
]


@pytest.mark.parametrize("name", one_in(8, AGREE))
def test_few_queries_are_one_kernel_and_agree(name: str) -> None:
    program = FEW[name].program()
    assert plan_of(program).parts > 0
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm80"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("place", one_in(3, [-1, 70, 299]))
def test_a_step_of_generation_agrees(place: int) -> None:
    program = cached(300)
    assert only_kernel(program).workspace
    inputs = [*inputs_for(program, 4)]
    inputs[-1] = np.array(place, np.int32)
    report = compare(program, inputs, InterpretedGpu("sm80"))
    assert report.agrees, str(report)


def test_any_timing_and_order_gives_the_same_bits() -> None:
    kernel = only_kernel(FAULTY.program())
    assert kernel.grid > 1
    first = results_of(kernel)
    assert np.isfinite(first.astype(np.float32)).all()
    assert (results_of(kernel, Timing.EARLY, 5) == first).all()


def waited_too_little(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.WaitGroup):
        return replace(statement, pending=statement.pending + 1)
    return statement


FAULTS: dict[str, Callable[[ir.Stmt], ir.Stmt | None]] = {
    "copies are not waited for": without(ir.WaitGroup),
    "one group too few is waited for": waited_too_little,
    "warps do not meet before a slot is filled again": without(ir.SyncThreads),
    "warps do not meet before they join": without(ir.NamedBarrier),
}


@pytest.mark.parametrize("name", one_in(3, FAULTS))
def test_planted_faults_are_found(name: str) -> None:
    program = FAULTY.program()
    plan = plan_of(program)
    text = compile_program(program, "sm80").stages["plan"]
    # One part has more tiles than there are slots.
    text = text.replace(f'"parts": {plan.parts}', '"parts": 1')
    text = text.replace(f'"stages": {plan.stages}', '"stages": 3')
    code = parse_module(compile_program(program, "sm80", overrides={"plan": text}).stages["gpu"])
    (kernel,) = code.kernels.values()
    assert np.isfinite(results_of(kernel).astype(np.float32)).all()
    with pytest.raises(Hazard):
        results_of(planted(kernel, FAULTS[name]))


WIDE = Case(heads=8, shared=8, queries=8, keys=600, depth=256, width=256)
"""So wide that two tiles of 64 keys do not fit."""


@pytest.mark.parametrize("arch", one_in(2, ["sm_80", "sm_90"]))
@pytest.mark.parametrize("name", one_in(3, ["one query, shared heads", "rows of 256", "wide"]))
def test_machine_code_multiplies_and_spills_nothing(name: str, arch: str) -> None:
    case = WIDE if name == "wide" else FEW[name]
    cubin = compile_cuda(cuda(only_kernel(case.program())), arch)
    assert cubin.report.findings == []
    if not sass.available():
        pytest.skip("needs nvdisasm to read machine code")
    assert sass.check(sass.disassemble(cubin.code), ("HMMA", "LDSM", "LDGSTS")) == []
