"""The SM80 streams, gradients of an attention, on the dialect's interpreter: right for bands,
shared heads, masks and dropped weights; faults that were planted are found; what the compiler makes
of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_attention import GRADIENTS, Case
from tests.support.gpu_dropped import STATE, Dropped
from tests.support.gpu_faults import planted, without
from tests.support.gpu_interpreted import InterpretedGpu
from weft.codegen.gpu import ir, sass
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.interp import Hazard, Timing, run
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.driver.stages.compilation import Compilation
from weft.ptir import Program
from weft.ptir.gradient import vjp
from weft.testing.compare import compare


def compiled(program: Program) -> Compilation:
    found: Compilation = InterpretedGpu("sm80").compile(program).compilation
    return found


def streams(program: Program) -> list[ir.Kernel]:
    code = compiled(program)["gpu"]
    names = [name for name in code.launches if name.startswith("stream")]
    return [code.kernels[code.launches[name].symbol] for name in names]


@pytest.mark.parametrize(
    "name", one_in(4, ["shared heads", "window", "mask in bf16", "log-sum-exp"])
)
def test_gradients_are_two_kernels_and_agree(name: str) -> None:
    program = GRADIENTS[name].gradients()
    assert len(streams(program)) == 2
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm80"))
    assert report.agrees, str(report)


def test_gradients_draw_again_what_was_dropped() -> None:
    program = vjp(Dropped(queries=40, keys=48, heads=2, shared=2, causal=True).program(), (0, 1, 2))
    assert len(streams(program)) == 2
    inputs = inputs_for(program, 3)
    inputs[3] = STATE
    report = compare(program, inputs, InterpretedGpu("sm80"))
    assert report.agrees, str(report)


FAULTY = Case(heads=1, queries=40, keys=200, dtype="f16")


@cache
def faulty() -> ir.Kernel:
    """That of keys and values, with several blocks of queries and numbers of each."""
    (kernel,) = [k for k in streams(replace(FAULTY, queries=200, keys=40).gradients()) if staged(k)]
    return kernel


def staged(kernel: ir.Kernel) -> bool:
    return any(tile.name == "staged" for tile in kernel.tiles)


def results_of(kernel: ir.Kernel, timing: Timing = Timing.LATE, seed: int = 0) -> list[np.ndarray]:
    rng, tensors = np.random.default_rng(3), dict[str, np.ndarray]()
    written = {s.buffer for s in ir.walk(kernel.body) if isinstance(s, ir.StGlobalVec)}
    wide = {s.buffer for s in ir.walk(kernel.body) if isinstance(s, ir.LoadElement)}
    for number, name in enumerate(kernel.buffers):
        dtype = np.float32 if number in wide else np.float16
        tensors[name] = rng.standard_normal(200 * 64).astype(dtype)
    run(kernel, tensors, timing, seed)
    return [tensors[kernel.buffers[number]] for number in sorted(written)]


def test_any_timing_and_order_gives_the_same_bits() -> None:
    first, second = results_of(faulty()), results_of(faulty(), Timing.EARLY, 5)
    assert len(first) == 2
    assert all((x == y).all() for x, y in zip(first, second, strict=True))


def waited_too_little(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.WaitGroup):
        return replace(statement, pending=statement.pending + 1)
    return statement


FAULTS: dict[str, Callable[[ir.Stmt], ir.Stmt | None]] = {
    "copies are not waited for": without(ir.WaitGroup),
    "one group too few is waited for": waited_too_little,
    "warps do not meet": without(ir.SyncThreads),
    "numbers of columns are not stored": without(ir.StShared),
}


def is_caught(kernel: ir.Kernel) -> bool:
    """Whether a kernel ends in a hazard or in other results."""
    try:
        found = results_of(kernel)
    except Hazard:
        return True
    pairs = zip(found, results_of(faulty()), strict=True)
    return any(not np.array_equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("name", one_in(3, FAULTS))
def test_planted_faults_are_caught(name: str) -> None:
    assert is_caught(planted(faulty(), FAULTS[name]))


@pytest.mark.parametrize("arch", one_in(2, ["sm_80", "sm_90"]))
@pytest.mark.parametrize("depth", one_in(2, [64, 128]))
def test_machine_code_multiplies_and_spills_nothing(depth: int, arch: str) -> None:
    case = Case(heads=16, queries=1024, keys=1024, depth=depth, width=depth, causal=True)
    for kernel in streams(case.gradients()):
        assert kernel.resident == 2
        cubin = compile_cuda(cuda(kernel), arch)
        assert cubin.report.findings == []
        if sass.available():
            code = sass.disassemble(cubin.code)
            assert sass.check(code, ("HMMA", "LDSM", "LDGSTS")) == []


def test_the_text_of_a_kernel_reads_back() -> None:
    module = compiled(GRADIENTS["window"].gradients())["gpu"]
    assert parse_module(print_module(module)) == module
