"""The gradients of an attention on the dialect's interpreter: right for masks, bands, shared heads
and odd sizes; faults that were planted are found; what the compiler makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_attention import GRADIENTS, Case
from tests.support.gpu_faults import planted, without
from tests.support.gpu_interpreted import InterpretedGpu
from weft import functional as F
from weft.codegen.gpu import ir, sass
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.interp import Hazard, Timing, run
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.driver.compile import compile_program
from weft.foundation.errors import SpecViolation
from weft.ptir import Builder
from weft.ptir.gradient import vjp
from weft.testing.compare import compare


def streams(case: Case) -> list[ir.Kernel]:
    """The kernels of the gradients: of queries, and of keys and values."""
    code = InterpretedGpu("sm90").compile(case.gradients()).compilation["gpu"]
    names = [name for name in code.launches if name.startswith("stream")]
    return [code.kernels[code.launches[name].symbol] for name in names]


@pytest.mark.parametrize("name", one_in(9, GRADIENTS))
def test_gradients_are_two_kernels_and_agree(name: str) -> None:
    program = GRADIENTS[name].gradients()
    assert len(streams(GRADIENTS[name])) == 2
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_gradients_of_rows_that_see_the_lowest_number_alone_agree() -> None:
    case = Case(heads=1, mask="f32", queries=40, keys=48)
    assert len(streams(case)) == 2
    program = case.gradients()
    inputs = inputs_for(program, 3)
    inputs[3][..., 1::2, :] = np.finfo(np.float32).min
    report = compare(program, inputs, InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_gradients_whose_cotangent_is_an_operand_agree() -> None:
    """What both products of a stream read are then rows of one tensor: each has a place of its
    own for its result."""

    def pulled(q: Any, k: Any, v: Any) -> Any:
        return weft.vjp(F.attention, q, k, v)[1](q)

    given = [weft.zeros((2, 2, 40, 32), dtype="bf16")] * 3
    program = weft.jit(pulled).program(*given)
    code = InterpretedGpu("sm90").compile(program).compilation["gpu"]
    assert sum(name.startswith("stream") for name in code.launches) == 2
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_gradients_of_one_tensor_in_three_places_agree() -> None:
    """Their sum is made where the last of them is: a kernel that reads what another stores cannot
    be one with it."""
    b = Builder("itself")
    x = b.param("bf16", [1, 2, 96, 64])
    program = vjp(b.build(b.emit("weft.attention", x, x, x)[0]), (0,))
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_every_lane_arrives_for_the_numbers_that_it_stored() -> None:
    """compute-sanitizer sees no order between what a lane stores and what another arrives for."""
    kernel = streams(GRADIENTS["causal"])[1]
    arrivals = {barriers.name: barriers.arrivals for barriers in kernel.barriers}
    assert arrivals["staged_full"] == 64


FAULTY = Case(dtype="f16", heads=1, queries=300, keys=72)


def tensors_of(kernel: ir.Kernel) -> dict[str, NDArray[Any]]:
    """What a kernel of `FAULTY` works on; results are poisoned."""
    rng = np.random.default_rng(7)
    sizes = {"in0": 300, "in1": 72, "in2": 72, "in3": 300, "out1": 300, "out2": 72, "out3": 72}
    made: dict[str, NDArray[Any]] = {}
    for name in kernel.buffers:
        if name not in sizes:
            made[name] = rng.standard_normal(300).astype(np.float32) + 4
        elif name.startswith("out"):
            made[name] = np.full(sizes[name] * 64, np.nan, np.float16)
        else:
            made[name] = rng.standard_normal(sizes[name] * 64).astype(np.float16)
    return made


def results_of(
    kernel: ir.Kernel, timing: Timing = Timing.LATE, seed: int = 0
) -> list[NDArray[Any]]:
    tensors = tensors_of(kernel)
    run(kernel, tensors, timing, seed)
    return [tensors[name] for name in kernel.buffers if name.startswith("out")]


@pytest.mark.parametrize("number", one_in(2, [0, 1]))
def test_any_timing_and_order_gives_the_same_bits(number: int) -> None:
    kernel = streams(FAULTY)[number]
    first = results_of(kernel)
    again = results_of(kernel, Timing.EARLY, seed=5)
    for one, other in zip(first, again, strict=True):
        assert np.isfinite(one.astype(np.float32)).all()
        assert (one == other).all()


def early(statement: ir.Stmt) -> ir.Stmt:
    """A block is handed back while products still read it."""
    if isinstance(statement, ir.WgmmaWait) and any(
        name.startswith("sum") for name in statement.acc
    ):
        return replace(statement, pending=1)
    return statement


def unready(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.MbarrierWait) and statement.barrier.barriers == "full":
        return replace(statement, parity=statement.parity ^ 1)
    return statement


def never_back(statement: ir.Stmt) -> ir.Stmt | None:
    gives = isinstance(statement, ir.MbarrierArrive) and statement.barrier.barriers == "empty"
    return None if gives else statement


def unstaged(statement: ir.Stmt) -> ir.Stmt | None:
    waits = isinstance(statement, ir.MbarrierWait) and statement.barrier.barriers == "staged_full"
    return None if waits else statement


def other_product(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.WgmmaWait) and statement.acc == ("other",):
        return replace(statement, pending=2)
    return statement


FAULTS: dict[str, Callable[[ir.Stmt], ir.Stmt | None]] = {
    "products are not waited for": early,
    "columns are not waited for": unready,
    "columns are not handed back": never_back,
    "numbers of columns are not waited for": unstaged,
    "the other product is not waited for": other_product,
    "results are not fenced": without(ir.ProxyFence),
    "warps do not meet before results take the place of rows": without(ir.NamedBarrier),
}


@pytest.mark.parametrize("name", one_in(3, FAULTS))
def test_planted_faults_are_found(name: str) -> None:
    kernel = planted(streams(FAULTY)[1], FAULTS[name])
    with pytest.raises(Hazard):
        results_of(kernel)


def test_the_text_of_a_kernel_reads_back() -> None:
    module = InterpretedGpu("sm90").compile(GRADIENTS["window"].gradients()).compilation["gpu"]
    assert parse_module(print_module(module)) == module


def test_blocks_that_nobody_sees_are_not_loaded() -> None:
    """Keys of a window are seen by queries after them, of which the last block has the fewest."""
    for kernel in streams(Case(heads=1, queries=1024, keys=1024, window=64)):
        order, starts = (table.values for table in kernel.tables)
        assert sorted(order) == list(range(8))
        assert starts[-1] == 8


@pytest.mark.parametrize("depth", one_in(2, [64, 128]))
@pytest.mark.parametrize("causal", one_in(2, [False, True]))
def test_machine_code_keeps_its_asynchrony(depth: int, *, causal: bool) -> None:
    case = Case(heads=4, queries=512, keys=512, depth=depth, width=depth, causal=causal)
    for kernel in streams(case):
        cubin = compile_cuda(cuda(kernel), "sm_90a")
        assert cubin.report.findings == []
        if sass.available():
            code = sass.disassemble(cubin.code)
            assert sass.check(code, ("HGMMA", "UTMALDG")) == []


@pytest.mark.parametrize(
    ("old", "new"),
    one_in(
        2,
        [('"tile_kv": 80', '"tile_kv": 48'), ('"registers": [24, 240]', '"registers": [40, 232]')],
        unpack=True,
    ),
)
def test_fields_of_a_plan_change_the_kernel(old: str, new: str) -> None:
    program = GRADIENTS["plain"].gradients()
    first = compile_program(program, "sm90").stages
    assert old in first["plan"]
    edited = {"plan": first["plan"].replace(old, new)}
    assert compile_program(program, "sm90", overrides=edited).stages["gpu"] != first["gpu"]


def test_a_plan_that_needs_more_registers_than_there_are_is_refused() -> None:
    program = GRADIENTS["causal, rows of 128"].gradients()
    plans = compile_program(program, "sm90").stages["plan"]
    edited = {"plan": plans.replace('"tile_kv": 64', '"tile_kv": 128')}
    with pytest.raises(SpecViolation, match="a consumer needs about 320 registers and has 240"):
        compile_program(program, "sm90", overrides=edited)
