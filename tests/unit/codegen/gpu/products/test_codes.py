"""Products of few rows with weights of few bits, on the dialect's interpreter: right in every
spelling; faults that were planted are found; what the compiler makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.gpu_products import products_lines
from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_codes import CASES, Case, gated
from tests.support.gpu_faults import planted, without
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu import ir, templates
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.interp import Hazard, Timing, run
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.scalar import Lit
from weft.codegen.gpu.sass import disassemble
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.plan import text
from weft.plan.candidates import candidates
from weft.plan.ir import MmaPlan
from weft.ptir import Program
from weft.target.known import target_named
from weft.testing.compare import compare


def plans_of(program: Program, target: str = "sm90") -> list[str]:
    plans = through_stages(program, target)["plan"].plans.values()
    return [plan.arch for plan in plans if isinstance(plan, MmaPlan)]


@pytest.mark.parametrize("name", one_in(9, CASES))
def test_weights_are_made_in_the_one_kernel_and_agree(name: str) -> None:
    program = CASES[name].program()
    assert plans_of(program) == ["codes"]
    assert len(through_stages(program, "sm90")["gpu"].launches) == 1
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("name", ["results scaled", "results scaled, one row", "signed words"])
def test_every_way_to_have_codes_gets_the_kernel(name: str) -> None:
    assert [plans_of(CASES[name].program(), target) for target in ("sm90", "sm80")] == [
        ["codes"]
    ] * 2


MEASURED = {
    "w4a16 1x4096x4096": (8, 16, 1024),
    "w4a16 1x28672x8192": (8, 32, 512),
    "w4a16 16x28672x8192": (16, 32, 512),
    "w8a16 1x14336x4096": (8, 16, 256),
    "w8a16 16x14336x4096": (16, 32, 256),
    "w8a16 64x14336x4096": (64, 32, 128),
}
"""The tiles that were fastest on an H200, of up to 22 each."""


def test_the_fastest_tiles_are_chosen() -> None:
    lines = {line.name: line for line in products_lines()}
    for name, tile in MEASURED.items():
        plans = through_stages(lines[name].program(), "sm90")["plan"].plans.values()
        assert [plan.tile for plan in plans if isinstance(plan, MmaPlan)] == [tile], name


def test_they_agree_on_sm80() -> None:
    program = CASES["halves of bytes"].program()
    assert plans_of(program, "sm80") == ["codes"]
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm80"))
    assert report.agrees, str(report)


@pytest.mark.parametrize(
    "case",
    one_in(
        5,
        [
            Case(rows=65),
            Case(weights="across"),
            Case(columns=64, depth=128),
            Case(depth=264),
            Case(dtype="f32"),
        ],
    ),
    ids=["many rows", "codes along columns", "small", "odd sums", "f32"],
)
def test_other_weights_are_left_to_others(case: Case) -> None:
    program = case.program()
    assert "codes" not in plans_of(program)
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("rows", one_in(2, [1, 3]))
def test_long_sums_of_few_columns_are_made_in_parts(rows: int) -> None:
    program = Case(rows=rows, columns=128, depth=4096).program()
    assert plans_of(program) == ["codes"]
    parts, _ = through_stages(program, "sm90")["region"].kernels
    assert parts.sizes["part"] > 1
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_codes_are_read_once_whichever_halves_are_asked_for() -> None:
    (kernel,) = through_stages(CASES["halves of bytes"].program(), "sm90")["gpu"].kernels.values()
    reads = [s for s in ir.walk(kernel.body) if isinstance(s, ir.LoadStaged)]
    assert [len(read.names) for read in reads] == [16] * 4  # two runs of each of two columns
    copies = [s for s in ir.walk(kernel.body) if isinstance(s, ir.CpAsync)]
    assert {copy.bytes for copy in copies} == {16}


def test_scales_of_groups_are_read_from_shared_memory() -> None:
    """A block copies them before the first step, as whole rows of its columns."""
    (kernel,) = through_stages(CASES["long sums"].program(), "sm90")["gpu"].kernels.values()
    statements = list(ir.walk(kernel.body))
    assert not any(isinstance(found, ir.LoadElement) for found in statements)
    staged = [found for found in statements if isinstance(found, ir.LoadStaged)]
    assert {len(found.names) for found in staged} == {1, 16}


def test_cache_lines_are_copied_as_a_whole() -> None:
    """Eight lanes copy the 128 bytes of a column, where four would read half a line."""
    (kernel,) = through_stages(CASES["bytes"].program(), "sm90")["gpu"].kernels.values()
    assert any(isinstance(found, ir.SyncWarp) for found in ir.walk(kernel.body))
    shorter = Case(depth=320)  # twenty runs: two lines and a half
    (kernel,) = through_stages(shorter.program(), "sm90")["gpu"].kernels.values()
    assert not any(isinstance(found, ir.SyncWarp) for found in ir.walk(kernel.body))
    report = compare(shorter.program(), inputs_for(shorter.program(), 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("rows", one_in(2, [1, 4]))
def test_weights_that_share_a_row_are_all_made_where_they_are_multiplied(rows: int) -> None:
    program = gated(rows)
    plans = through_stages(program, "sm90")["plan"]
    kinds = [plan.arch for plan in map(plans.of, plans.kernels) if isinstance(plan, MmaPlan)]
    assert kinds == ["codes", "codes"]
    assert len(plans.kernels) == 2
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize(
    ("name", "small"),
    [
        ("halves of bytes", True),
        ("pairs", True),
        ("words", True),
        ("bytes", False),
        ("lows", False),
    ],
)
def test_small_integers_are_scaled_in_pairs(name: str, small: bool) -> None:
    (kernel,) = through_stages(CASES[name].program(), "sm90")["gpu"].kernels.values()
    found = [s for s in ir.walk(kernel.body) if isinstance(s, ir.PackSmall)]
    assert bool(found) is small
    assert {(pack.least, pack.offset) for pack in found} <= {(0, -8)}


@pytest.mark.parametrize("name", one_in(20, CASES))
def test_kernels_become_machine_code_as_planned(name: str) -> None:
    (kernel,) = through_stages(CASES[name].program(), "sm90")["gpu"].kernels.values()
    made = compile_cuda(cuda(kernel), "sm_90a")
    assert made.report.findings == []
    assert "HMMA" in {found.root for found in disassemble(made.code)}


@pytest.mark.parametrize("name", ["bytes", "halves of bytes"])
def test_texts_read_back(name: str) -> None:
    stages = through_stages(CASES[name].program(), "sm90")
    assert parse_module(print_module(stages["gpu"])) == stages["gpu"]
    plans = stages["plan"]
    assert text.loads(text.dumps(plans)).plans == plans.plans


FAULTY = Case(rows=11, columns=260, depth=1024, dtype="f16", weights="halves of bytes")


def results_of(kernel: ir.Kernel, timing: Timing = Timing.LATE, seed: int = 0) -> NDArray[Any]:
    rng = np.random.default_rng(7)
    x = rng.standard_normal(11 * 1024).astype(np.float16)
    codes = rng.integers(0, 256, 260 * 512, dtype=np.uint8)
    scales = rng.uniform(0.5, 1.0, 260 * 16).astype(np.float16)
    made: list[NDArray[Any]] = [x, codes, scales, np.full(11 * 260, np.nan, np.float16)]
    tensors = dict(zip(kernel.buffers, made, strict=True))
    run(kernel, tensors, timing, seed)
    return tensors[kernel.buffers[-1]]


def built(change: Callable[[MmaPlan], MmaPlan] = lambda plan: plan) -> ir.Kernel:
    stages = through_stages(FAULTY.program(), "sm90")
    region, refs = stages["region"], stages["memory"].refs
    (kernel,) = region.kernels
    plan = change(stages["plan"].of(kernel.name))
    return templates.build(kernel, region.tensors, refs, plan, target_named("sm90"), "k0")


def test_any_order_gives_the_same_bits() -> None:
    kernel = built()
    first = results_of(kernel)
    assert np.isfinite(first.astype(np.float32)).all()
    assert (results_of(kernel, Timing.EARLY, seed=5) == first).all()


def test_other_tiles_are_candidates_and_agree() -> None:
    stages = through_stages(FAULTY.program(), "sm90")
    (kernel,) = stages["region"].kernels
    first = stages["plan"].of(kernel.name)
    found = candidates(kernel, target_named("sm90"), first)
    assert found[0] == first
    rows, _, depth = first.tile
    assert {plan.tile for plan in found if isinstance(plan, MmaPlan)} >= {(rows, 32, 2 * depth)}
    good = results_of(built()).astype(np.float32)
    other = built(lambda plan: replace(plan, tile=(rows, 32, 2 * depth), warp_tile=(rows, 32)))
    assert np.allclose(results_of(other).astype(np.float32), good, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("wide", "own", "shares"), one_in(3, [(32, 16, 2), (64, 16, 1), (64, 32, 2)], unpack=True)
)
def test_warps_side_by_side_agree(wide: int, own: int, shares: int) -> None:
    """They share what they read of x, and those behind one another what is summed over."""
    first = through_stages(FAULTY.program(), "sm90")
    (plan,) = first["plan"].plans.values()
    (kernel,) = first["gpu"].kernels.values()
    rows, _, depth = plan.tile
    step = depth * 32 // kernel.threads
    tile, warp_tile = (rows, wide, shares * step), (rows, own)
    other = built(lambda plan: replace(plan, tile=tile, warp_tile=warp_tile))
    assert other.threads == 32 * shares * (wide // own)
    found, good = results_of(other), results_of(built()).astype(np.float32)
    assert np.allclose(found.astype(np.float32), good, rtol=1e-2, atol=1e-2)
    assert (results_of(other, Timing.EARLY, seed=5) == found).all()


@pytest.mark.parametrize(
    "change",
    [
        {"tile": (8, 16, 256)}, {"tile": (16, 24, 256)}, {"tile": (16, 16, 100)},
        {"warp_tile": (16, 8)}, {"consumers": 3}, {"order": "hilbert"}, {"roles": "pingpong"},
        {"split_k": 2}, {"stages": 1}, {"algo_choice": {"matmul": "splitk_serial_2"}},
    ],
    ids=str,
)  # fmt: skip
def test_plans_that_the_template_cannot_carry_out_are_refused(change: dict[str, Any]) -> None:
    stages = through_stages(FAULTY.program(), "sm90")
    region, refs = stages["region"], stages["memory"].refs
    (kernel,) = region.kernels
    plan = replace(stages["plan"].of(kernel.name), **change)
    assert templates.accepts(kernel, region.tensors, refs, plan, target_named("sm90"))


def unguarded(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, values.LoadVector | ir.CpAsync):
        return replace(statement, guard=Lit(1))
    return statement


def turned(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.PackSmall):
        return replace(statement, low=statement.high, high=statement.low)
    return statement


def behind_the_end(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.If):
        return replace(statement, cond=Lit(1))
    return statement


def too_late(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.WaitGroup):
        return replace(statement, pending=statement.pending + 1)
    return statement


FAULTS: dict[str, Callable[[ir.Stmt], ir.Stmt | None]] = {
    "no wait for copies": without(ir.WaitGroup),
    "a wait for older copies": too_late,
    "no meeting": without(ir.SyncThreads),
    "no meeting of lanes": without(ir.SyncWarp),
    "rows behind the last": unguarded,
    "numbers in another order": turned,
    "results behind the last": behind_the_end,
    "no scales": without(ir.ScalePair),
    "another offset": lambda statement: (
        replace(statement, offset=-7) if isinstance(statement, ir.PackSmall) else statement
    ),
    "fewer integers": lambda statement: (
        replace(statement, least=8) if isinstance(statement, ir.PackSmall) else statement
    ),
    "half of the sum": lambda statement: (
        None if isinstance(statement, ir.MmaSync) and statement.b.index % 4 else statement
    ),
}


@pytest.mark.parametrize("name", one_in(5, FAULTS))
def test_planted_faults_are_found(name: str) -> None:
    kernel = built()
    good = results_of(kernel).astype(np.float32)
    try:
        found = results_of(planted(kernel, FAULTS[name])).astype(np.float32)
    except Hazard:
        return
    assert not np.allclose(found, good, rtol=1e-2, atol=1e-2)
