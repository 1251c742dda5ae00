"""The SM90 attention template on the dialect's interpreter: right for masks, bands, shared heads,
odd sizes and every timing; faults that were planted are found; what the compiler makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_attention import (
    CASES,
    DIVIDED_AFTER,
    NOT_DIVIDED,
    Case,
    by_hand,
    flat_tensors,
)
from tests.support.gpu_faults import planted, without
from tests.support.gpu_interpreted import InterpretedGpu
from weft.codegen.gpu import ir, sass
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.interp import Hazard, Timing, run
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.driver.compile import compile_program
from weft.foundation.errors import SpecViolation
from weft.testing.compare import compare


def compiled(case: Case) -> Any:
    return InterpretedGpu("sm90").compile(case.program())


def only_kernel(case: Case) -> ir.Kernel:
    """The kernel of the attention; beside it one may look for rows from which a mask hides all."""
    code = compiled(case).compilation["gpu"]
    names = [name for name in code.launches if not name.startswith("row")]
    assert len(names) == 1
    kernel: ir.Kernel = code.kernels[code.launches[names[0]].symbol]
    return kernel


@pytest.mark.parametrize("name", one_in(9, CASES))
def test_attentions_are_one_kernel_and_agree(name: str) -> None:
    program = CASES[name].program()
    assert only_kernel(CASES[name]).maps
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("name", one_in(3, DIVIDED_AFTER))
def test_powers_that_are_divided_after_are_one_kernel_and_agree(name: str) -> None:
    program = by_hand("bf16", DIVIDED_AFTER[name])
    launches = InterpretedGpu("sm90").compile(program).compilation["gpu"].launches
    assert [found.startswith("attention") for found in launches] == [True]
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("name", one_in(2, NOT_DIVIDED))
def test_what_is_not_divided_by_its_sum_stays_as_it_is(name: str) -> None:
    program = by_hand("bf16", NOT_DIVIDED[name])
    launches = InterpretedGpu("sm90").compile(program).compilation["gpu"].launches
    assert not any(found.startswith("attention") for found in launches)


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


def early_packing(statement: ir.Stmt) -> ir.Stmt:
    """Weights are overwritten while products read them."""
    if isinstance(statement, ir.WgmmaWait) and "weights" in statement.acc:
        return replace(statement, pending=1)
    return statement


def wrong_phase(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.MbarrierWait) and statement.barrier.barriers == "v_full":
        return replace(statement, parity=statement.parity ^ 1)
    return statement


def no_queries_back(statement: ir.Stmt) -> ir.Stmt | None:
    gives = isinstance(statement, ir.MbarrierArrive) and statement.barrier.barriers == "k_empty"
    return None if gives else statement


FAULTS: dict[str, Callable[[ir.Stmt], ir.Stmt | None]] = {
    "products are not waited for": early_packing,
    "values are not waited for": wrong_phase,
    "keys are not handed back": no_queries_back,
    "results are not fenced": without(ir.ProxyFence),
    "warps do not meet before results take the place of queries": without(ir.NamedBarrier),
}


@pytest.mark.parametrize("name", one_in(2, FAULTS))
def test_planted_faults_are_found(name: str) -> None:
    kernel = planted(only_kernel(FAULTY), FAULTS[name])
    with pytest.raises(Hazard):
        results_of(kernel)


def test_the_text_of_a_kernel_reads_back() -> None:
    module = compiled(CASES["window"]).compilation["gpu"]
    assert parse_module(print_module(module)) == module


def test_work_is_dealt_out_evenly() -> None:
    """Of a causal attention every block gets about as many blocks of keys: dealt out in turn, they
    would differ by a quarter."""
    heads, tiles = 256, 8
    kernel = only_kernel(Case(heads=heads, queries=128 * tiles, keys=128 * tiles, causal=True))
    order, starts = (table.values for table in kernel.tables)
    assert sorted(order) == list(range(heads * tiles))
    together = heads // 2  # half of the cache has room for the keys and values of so many
    lengths = [tiles - item % (tiles * together) // together for item in order]
    loads = [sum(lengths[start:end]) for start, end in pairwise(starts)]
    assert len(loads) == 132
    assert max(loads) < 1.05 * sum(loads) / len(loads)


@pytest.mark.parametrize(
    "name", one_in(3, ["causal", "causal, rows of 128", "mask of truth values"])
)
def test_machine_code_keeps_its_asynchrony(name: str) -> None:
    cubin = compile_cuda(cuda(only_kernel(CASES[name])), "sm_90a")
    assert cubin.report.findings == []
    if not sass.available():
        pytest.skip("needs nvdisasm to read machine code")
    code = sass.disassemble(cubin.code)
    assert sass.check(code, ("HGMMA", "UTMALDG")) == []


@pytest.mark.parametrize(
    ("old", "new"),
    one_in(
        3,
        [
            ('"tile_kv": 96', '"tile_kv": 64'),
            ('"stages": 2', '"stages": 3'),
            ('"registers": [24, 240]', '"registers": [40, 232]'),
        ],
        unpack=True,
    ),
)
def test_fields_of_a_plan_change_the_kernel(old: str, new: str) -> None:
    program = Case().program()
    first = compile_program(program, "sm90").stages
    assert old in first["plan"]
    changed = {"plan": first["plan"].replace(old, new)}
    assert compile_program(program, "sm90", overrides=changed).stages["gpu"] != first["gpu"]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"tile_kv": 96', '"tile_kv": 100', "tile_kv=100 is not a multiple of 16 up to 256"),
        ('"tile_q": 128', '"tile_q": 192', "192 queries are not 64 for each of 2 consumers"),
        ('"tile_kv": 96', '"tile_kv": 256', "needs about"),
        ('"algo": "online_softmax"', '"algo": "streaming_softmax_2pass"', "several kernels"),
    ],
)
def test_plans_that_cannot_be_carried_out_are_refused(old: str, new: str, why: str) -> None:
    program = Case().program()
    text = compile_program(program, "sm90").stages["plan"]
    assert old in text
    with pytest.raises(SpecViolation, match=why):
        compile_program(program, "sm90", overrides={"plan": text.replace(old, new)})
