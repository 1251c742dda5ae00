"""The SM80 attention template on the dialect's interpreter: right for masks, bands, shared heads,
odd sizes and every timing; faults that were planted are found; what the compiler makes of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_attention import CASES, DIVIDED_AFTER, Case, by_hand, flat_tensors
from tests.support.gpu_faults import planted, without
from tests.support.gpu_interpreted import InterpretedExecutable, InterpretedGpu
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu import ir, sass
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.interp import Hazard, Timing, run
from weft.codegen.gpu.ir import walk
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.driver.compile import compile_program
from weft.foundation.errors import SpecViolation
from weft.ptir import Program
from weft.testing.compare import compare


@cache
def only_kernel(case: Case) -> ir.Kernel:
    """The kernel of the attention; beside it one may look for rows from which a mask hides all."""
    code = InterpretedGpu("sm80").compile(case.program()).compilation["gpu"]
    names = [name for name in code.launches if not name.startswith("row")]
    assert len(names) == 1
    kernel: ir.Kernel = code.kernels[code.launches[names[0]].symbol]
    return kernel


@pytest.mark.parametrize("name", one_in(8, CASES))
def test_attentions_are_one_kernel_and_agree(name: str) -> None:
    program, kernel = CASES[name].program(), only_kernel(CASES[name])
    assert any(isinstance(statement, ir.MmaSync) for statement in walk(kernel.body))
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm80"))
    assert report.agrees, str(report)


def test_powers_that_are_divided_after_are_one_kernel_and_agree() -> None:
    program = by_hand("bf16", DIVIDED_AFTER["scaled on the way"])
    launches = InterpretedGpu("sm80").compile(program).compilation["gpu"].launches
    assert [found.startswith("attention") for found in launches] == [True]
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm80"))
    assert report.agrees, str(report)


def with_fields(program: Program, **fields: Any) -> str:
    """The plan of a program with other values in some fields."""
    text = compile_program(program, "sm80").stages["plan"]
    for name, value in fields.items():
        text, count = re.subn(rf'"{name}": (\[[^\]]*\]|[^,}}\n]+)', f'"{name}": {value}', text)
        assert count == 1
    return text


class Planned(InterpretedGpu):
    """Compiles by another plan than its own."""

    def __init__(self, plan: str) -> None:
        super().__init__("sm80")
        self.plan = plan

    def compile(self, program: Program) -> Any:
        return InterpretedExecutable(through_stages(program, "sm80", plan=self.plan))


PLANS: dict[str, dict[str, Any]] = {
    "two bands": {"tile_q": 64, "consumers": 2, "tile_kv": 32},
    "a ring": {"tile_q": 32, "consumers": 2, "tile_kv": 48, "stages": 6},
    "two bands, a ring": {"tile_q": 128, "consumers": 4, "tile_kv": 16, "stages": 4},
    "eight warps": {"tile_q": 128, "consumers": 8, "tile_kv": 80},
}
VARIED = Case(heads=2, shared=2, queries=100, keys=130, depth=40, width=72, causal=True, lse=True)


@pytest.mark.parametrize("name", one_in(6, PLANS))
def test_every_form_of_a_plan_agrees(name: str) -> None:
    program = VARIED.program()
    plan = with_fields(program, **PLANS[name])
    report = compare(program, inputs_for(program, 3), Planned(plan))
    assert report.agrees, str(report)


FAULTY = Case(dtype="f16", heads=1, queries=72, keys=300, causal=True)


def results_of(kernel: ir.Kernel, timing: Timing = Timing.LATE, seed: int = 0) -> NDArray[Any]:
    tensors = flat_tensors(FAULTY, kernel)
    run(kernel, tensors, timing, seed)
    return tensors[kernel.buffers[-1]]


def test_any_timing_and_order_gives_the_same_bits() -> None:
    kernel = only_kernel(FAULTY)
    first = results_of(kernel)
    assert np.isfinite(first.astype(np.float32)).all()
    assert (results_of(kernel, Timing.EARLY, seed=5) == first).all()


def waited_too_little(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.WaitGroup):
        return replace(statement, pending=statement.pending + 1)
    return statement


def values_over_keys(statement: ir.Stmt) -> ir.Stmt:
    """A copy of values takes the place of keys that are still multiplied."""
    if isinstance(statement, ir.CpAsync) and statement.target.tile == "v":
        return replace(statement, target=replace(statement.target, tile="k"))
    return statement


FAULTS: dict[str, Callable[[ir.Stmt], ir.Stmt | None]] = {
    "copies are not waited for": without(ir.WaitGroup),
    "one group too few is waited for": waited_too_little,
    "warps do not meet": without(ir.SyncThreads),
    "values take the place of keys": values_over_keys,
}


@pytest.mark.parametrize("name", one_in(3, FAULTS))
def test_planted_faults_are_found(name: str) -> None:
    kernel = planted(only_kernel(FAULTY), FAULTS[name])
    with pytest.raises(Hazard):
        results_of(kernel)


def test_the_text_of_a_kernel_reads_back() -> None:
    module = InterpretedGpu("sm80").compile(CASES["window"].program()).compilation["gpu"]
    assert parse_module(print_module(module)) == module


LONG = {
    "rows of 64": Case(heads=128, queries=1024, keys=1024, causal=True),
    "rows of 96, a mask": Case(heads=128, queries=512, keys=512, depth=96, width=96, mask="f32"),
    "rows of 128": Case(heads=128, queries=1024, keys=1024, depth=128, width=128, causal=True),
    "rows of 256": Case(heads=128, queries=256, keys=256, depth=256, width=256, lse=True),
    "few tiles": Case(heads=2, queries=200, keys=200, depth=128, width=128, causal=True),
}
"""As large as those for which plans are made: nothing of them is interpreted."""


@pytest.mark.parametrize("arch", one_in(2, ["sm_80", "sm_90"]))
@pytest.mark.parametrize("name", one_in(5, LONG))
def test_machine_code_multiplies_and_spills_nothing(name: str, arch: str) -> None:
    cubin = compile_cuda(cuda(only_kernel(LONG[name])), arch)
    assert cubin.report.findings == []
    if not sass.available():
        pytest.skip("needs nvdisasm to read machine code")
    code = sass.disassemble(cubin.code)
    assert sass.check(code, ("HMMA", "LDSM", "LDGSTS")) == []


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"tile_kv": 100}, "tile_kv=100 is not a multiple of 16 up to 256"),
        ({"tile_q": 192}, "192 queries are not 16 or 32 for each of 4 warps"),
        ({"consumers": 16}, "16 warps are not 1 to 8"),
        ({"tile_kv": 256, "tile_q": 128}, "needs about"),
        ({"stages": 3}, "stages=3 are not as many of keys as of values"),
        ({"registers": [24, 240]}, "share no registers"),
        ({"algo": '"streaming_softmax_2pass"'}, "several kernels"),
    ],
)
def test_plans_that_cannot_be_carried_out_are_refused(fields: dict[str, Any], why: str) -> None:
    program = Case().program()
    with pytest.raises(SpecViolation, match=why):
        through_stages(program, "sm80", plan=with_fields(program, **fields))
