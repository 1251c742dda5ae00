"""The SM90 attention of few queries on the dialect's interpreter: right for shared heads, masks,
bands, odd sizes, parts of any length and every timing; faults that were planted are found; what the
compiler makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_attention import FEW
from tests.support.gpu_faults import planted, without
from tests.support.gpu_few import FAULTY, cached, results_of
from tests.support.gpu_interpreted import InterpretedGpu
from weft.codegen.gpu import ir
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.interp import Hazard, Timing
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.driver.compile import compile_program
from weft.foundation.errors import SpecViolation
from weft.plan.ir import AttentionPlan
from weft.ptir import Builder, Program
from weft.testing.compare import compare


def compiled(program: Program) -> Any:
    return InterpretedGpu("sm90").compile(program)


def only_kernel(program: Program) -> ir.Kernel:
    """The kernel of the attention; beside it one may look for rows from which a mask hides all."""
    code = compiled(program).compilation["gpu"]
    names = [name for name in code.launches if name.startswith("attention")]
    assert len(names) == 1
    assert all(name.startswith(("attention", "row", "map")) for name in code.launches)
    kernel: ir.Kernel = code.kernels[code.launches[names[0]].symbol]
    return kernel


def plan_of(program: Program) -> AttentionPlan:
    plans = compiled(program).compilation["plan"].plans.values()
    (plan,) = [plan for plan in plans if isinstance(plan, AttentionPlan)]
    return plan


@pytest.mark.parametrize("name", one_in(9, FEW))
def test_few_queries_are_one_kernel_and_agree(name: str) -> None:
    program = FEW[name].program()
    assert plan_of(program).parts > 0
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def by_hand(heads: int, keys: int) -> Program:
    """softmax(q kᵀ) v of one query for each head."""
    b = Builder("attention")
    q = b.param("bf16", [heads, 64])
    k, v = (b.param("bf16", [heads, keys, 64]) for _ in range(2))
    scores = b.dot_general(
        q, k, contract=([1], [2]), batch=([0], [0]), accum_dtype="f32", out_dtype="f32"
    )
    weights = b.cast(b.softmax(scores * 0.125, axis=1), "bf16")
    sides: dict[str, Any] = {"contract": ([1], [1]), "batch": ([0], [0])}
    return b.build(b.dot_general(weights, v, **sides, accum_dtype="f32", out_dtype="bf16"))


def test_softmax_of_products_by_hand_is_one_kernel_too() -> None:
    program = by_hand(3, 200)
    assert only_kernel(program).maps
    report = compare(program, inputs_for(program, 5), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("place", one_in(3, [-1, 0, 70, 299, 2**31 - 1]))
def test_a_step_of_generation_agrees(place: int) -> None:
    program = cached(300)
    assert only_kernel(program).maps
    inputs = [*inputs_for(program, 4)]
    inputs[-1] = np.array(place, np.int32)
    report = compare(program, inputs, InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("place", one_in(5, [0, 5, 130, 299, 4000]))
def test_keys_behind_the_place_of_a_step_are_not_read(place: int) -> None:
    """They are NaN; beside zeros in their place nothing differs."""
    program = cached(300)
    given = [*inputs_for(program, 4)]
    given[-1] = np.array(place, np.int32)
    dirty, clean = [*given], [*given]
    for number in (3, 4):
        for caches, filler in ((dirty, np.nan), (clean, 0.0)):
            caches[number] = given[number].copy()
            caches[number][:, :, place // 64 * 64 + 64 :] = filler
    run = compiled(program)
    first, second = run.execute(dirty)[0], run.execute(clean)[0]
    assert np.isfinite(first.astype(np.float32)).all()
    assert (first == second).all()


# -- timing and faults -----------------------------------------------------------------------------


def test_any_timing_and_order_gives_the_same_bits() -> None:
    kernel = only_kernel(FAULTY.program())
    assert kernel.grid == 4  # parts of two and three tiles
    first = results_of(kernel)
    assert np.isfinite(first.astype(np.float32)).all()
    for seed in (1, 5):
        assert (results_of(kernel, Timing.EARLY, seed) == first).all()


def wrong_phase(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.MbarrierWait) and statement.barrier.barriers == "v_full":
        return replace(statement, parity=statement.parity ^ 1)
    return statement


def no_slots_back(statement: ir.Stmt) -> ir.Stmt | None:
    gives = isinstance(statement, ir.MbarrierArrive) and statement.barrier.barriers == "empty"
    return None if gives else statement


FAULTS: dict[str, Callable[[ir.Stmt], ir.Stmt | None]] = {
    "values are not waited for": wrong_phase,
    "slots are not handed back": no_slots_back,
    "warps do not meet before they join": without(ir.NamedBarrier),
}


@pytest.mark.parametrize("name", one_in(3, FAULTS))
def test_planted_faults_are_found(name: str) -> None:
    program = FAULTY.program()
    text = compile_program(program, "sm90").stages["plan"]
    # One part has more tiles than there are slots.
    plan = text.replace('"parts": 4', '"parts": 1').replace('"stages": 6', '"stages": 3')
    code = parse_module(compile_program(program, "sm90", overrides={"plan": plan}).stages["gpu"])
    (kernel,) = code.kernels.values()
    assert np.isfinite(results_of(kernel).astype(np.float32)).all()
    with pytest.raises(Hazard):
        results_of(planted(kernel, FAULTS[name]))


def test_the_text_of_a_kernel_reads_back() -> None:
    module = compiled(FAULTY.program()).compilation["gpu"]
    assert parse_module(print_module(module)) == module


# -- plans -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "heads", "shared", "keys", "parts"),
    [(1, 32, 4, 8192, 16), (16, 32, 4, 4096, 2), (64, 32, 4, 2048, 1), (1, 12, 1, 1024, 8)],
)
def test_parts_fill_the_machine(batch: int, heads: int, shared: int, keys: int, parts: int) -> None:
    b = Builder("attention")
    q = b.param("bf16", [batch, heads, 1, 128])
    k, v = (b.param("bf16", [batch, heads // shared, keys, 128]) for _ in range(2))
    program = b.build(b.emit("weft.attention", q, k, v, causal=False)[0])
    kernel = only_kernel(program)
    assert plan_of(program).parts == parts
    assert kernel.grid == batch * heads // shared * parts
    assert kernel.resident == 2


@pytest.mark.parametrize(
    "name",
    one_in(
        4,
        [
            "one query, shared heads",
            "64 rows",
            "mask of truth values",
            "rows of 256",
            "64 rows of 192 and 256",
        ],
    ),
)
def test_machine_code_keeps_everything_in_registers(name: str) -> None:
    cubin = compile_cuda(cuda(only_kernel(FEW[name].program())), "sm_90a")
    assert cubin.report.findings == []


@pytest.mark.parametrize(
    ("old", "new"),
    one_in(
        3,
        [
            ('"tile_kv": 64', '"tile_kv": 128'),
            ('"tile_q": 16', '"tile_q": 32'),
            ('"stages": 6', '"stages": 3'),
            ('"parts": 4', '"parts": 3'),
            ('"parts": 4', '"parts": 1'),
        ],
        unpack=True,
    ),
)
def test_fields_of_a_plan_change_the_kernel(old: str, new: str) -> None:
    program = FAULTY.program()
    first = compile_program(program, "sm90").stages
    assert old in first["plan"]
    changed = {"plan": first["plan"].replace(old, new)}
    kernel = compile_program(program, "sm90", overrides=changed).stages["gpu"]
    assert kernel != first["gpu"]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"tile_kv": 64', '"tile_kv": 96', "tile_kv=96 is not a multiple of 64 up to 256"),
        ('"tile_q": 16', '"tile_q": 80', "tile_q=80 is not a multiple of 16 up to 64"),
        ('"parts": 4', '"parts": 12', "parts=12, but there are 11 tiles"),
        ('"consumers": 1', '"consumers": 2', "has one consumer"),
        ('"stages": 6', '"stages": 1', "stages"),
        ('"stages": 6', '"stages": 20', "bytes of shared memory"),
        ('"vector": 4', '"vector": 2', "vector has no effect"),
        ('"algo": "online_softmax"', '"algo": "streaming_softmax_2pass"', "several kernels"),
    ],
)
def test_plans_that_cannot_be_carried_out_are_refused(old: str, new: str, why: str) -> None:
    program = FAULTY.program()
    text = compile_program(program, "sm90").stages["plan"]
    assert old in text
    with pytest.raises(SpecViolation, match=why):
        compile_program(program, "sm90", overrides={"plan": text.replace(old, new)})
