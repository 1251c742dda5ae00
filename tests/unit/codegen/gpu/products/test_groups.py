"""Convolutions in groups of few channels on the dialect's interpreter: right for windows of every
form; groups stay apart; faults that were planted are found; what the compiler makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_convolutions import GROUPED, Case
from tests.support.gpu_faults import planted, without
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu import ir, templates
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.interp import Hazard, Timing, run
from weft.codegen.gpu.ir.scalar import Lit
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


@pytest.mark.parametrize("name", one_in(4, GROUPED))
def test_groups_are_one_kernel_and_agree(name: str) -> None:
    program = GROUPED[name].program()
    assert plans_of(program) == ["groups"]
    assert len(through_stages(program, "sm90")["gpu"].launches) == 1
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_groups_agree_on_sm80() -> None:
    program = GROUPED["8 channels"].program()
    assert plans_of(program, "sm80") == ["groups"]
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm80"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("name", one_in(2, ["8 channels", "16 channels, more results, dilated"]))
def test_gradients_of_the_image_are_convolutions_in_groups(name: str) -> None:
    program = GROUPED[name].gradient(0)
    assert plans_of(program) == ["groups", "groups"]
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize(
    "case",
    [
        Case(inputs=128, outputs=128, groups=2),
        Case(inputs=8, outputs=8, groups=8),
        Case(inputs=16, outputs=16),
        Case(inputs=32, outputs=32, groups=4, dtype="f32"),
    ],
    ids=["many channels", "single channels", "no groups", "f32"],
)
def test_other_convolutions_are_left_to_others(case: Case) -> None:
    assert "groups" not in plans_of(case.program())


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("inputs", [16, 12], ids=["whole pieces", "padded"])
@pytest.mark.parametrize("value", one_in(2, [np.nan, np.inf]))
def test_what_is_not_finite_stays_in_its_group(inputs: int, value: float) -> None:
    program = Case(inputs=inputs, outputs=16, groups=4, size=(4, 4), images=1).program()
    assert plans_of(program) == ["groups"]
    image, *rest = inputs_for(program, 3)
    image = np.array(image)
    image[..., 1] = value
    report = compare(program, [image, *rest], InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("name", one_in(8, GROUPED))
def test_kernels_become_machine_code_as_planned(name: str) -> None:
    (kernel,) = through_stages(GROUPED[name].program(), "sm90")["gpu"].kernels.values()
    assert compile_cuda(cuda(kernel), "sm_90a").report.findings == []


@pytest.mark.parametrize(
    "name", one_in(2, ["8 channels", "4 channels, more groups than a block has"])
)
def test_texts_read_back(name: str) -> None:
    stages = through_stages(GROUPED[name].program(), "sm90")
    assert parse_module(print_module(stages["gpu"])) == stages["gpu"]
    plans = stages["plan"]
    assert text.loads(text.dumps(plans)).plans == plans.plans


@pytest.mark.parametrize(("inputs", "size"), [(32, {16}), (16, {8}), (24, {4}), (20, set())])
def test_images_are_copied_in_parts_that_are_whole(inputs: int, size: set[int]) -> None:
    program = Case(inputs=inputs, outputs=16, groups=4).program()
    (kernel,) = through_stages(program, "sm90")["gpu"].kernels.values()
    copies = [s for s in ir.walk(kernel.body) if isinstance(s, ir.CpAsync)]
    assert {copy.bytes for copy in copies if copy.target.tile == "a"} == size


FAULTY = Case(inputs=24, outputs=24, groups=3, size=(9, 7), dtype="f16")


def results_of(kernel: ir.Kernel, timing: Timing = Timing.LATE, seed: int = 0) -> NDArray[Any]:
    rng, dtype = np.random.default_rng(7), np.dtype("float16")
    made = [rng.standard_normal(n).astype(dtype) for n in (2 * 9 * 7 * 24, 9 * 8 * 24)]
    made.append(np.full(2 * 9 * 7 * 24, np.nan, dtype))
    tensors = dict(zip(kernel.buffers, made, strict=True))
    run(kernel, tensors, timing, seed)
    return tensors[kernel.buffers[-1]]


def built(change: Callable[[MmaPlan], MmaPlan] = lambda plan: plan) -> ir.Kernel:
    stages = through_stages(FAULTY.program(), "sm90")
    region, refs = stages["region"], stages["memory"].refs
    (kernel,) = region.kernels
    plan = change(stages["plan"].of(kernel.name))
    return templates.build(kernel, region.tensors, refs, plan, target_named("sm90"), "k0")


def test_any_timing_and_order_gives_the_same_bits() -> None:
    kernel = built()
    first = results_of(kernel)
    assert np.isfinite(first.astype(np.float32)).all()
    assert (results_of(kernel, Timing.EARLY, seed=5) == first).all()


@pytest.mark.parametrize("places", one_in(3, [7, 14, 28, 63]))
def test_any_number_of_places_gives_the_same_bits(places: int) -> None:
    other = built(lambda plan: replace(plan, tile=(places, *plan.tile[1:]), warp_tile=(16, 8)))
    assert (results_of(other) == results_of(built())).all()


def test_other_tiles_are_candidates() -> None:
    stages = through_stages(FAULTY.program(), "sm90")
    (kernel,) = stages["region"].kernels
    first = stages["plan"].of(kernel.name)
    found = candidates(kernel, target_named("sm90"), first)
    assert found[0] == first
    assert {plan.tile[0] for plan in found if isinstance(plan, MmaPlan)} >= {7, 14, 63}


@pytest.mark.parametrize(
    "change",
    [
        {"tile": (12, 24, 16)}, {"tile": (63, 16, 16)}, {"warp_tile": (24, 8)}, {"stages": 3},
        {"order": "hilbert"}, {"roles": "pingpong"}, {"cache": ()}, {"split_k": 2},
        {"precision": "promoted"}, {"algo_choice": {"conv": "winograd_3x3"}},
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
    if isinstance(statement, ir.Gather | ir.CpAsync):
        return replace(statement, guard=Lit(1))
    return statement


def moved_piece(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.LdMatrix) and statement.source.tile == "a":
        address = replace(statement.source, offset=statement.source.offset ^ 16)
        return replace(statement, source=address)
    return statement


def behind_the_end(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.Let) and statement.name == "count":
        return replace(statement, value=Lit(64))
    return statement


FAULTS: dict[str, Callable[[ir.Stmt], ir.Stmt | None]] = {
    "no wait for copies": without(ir.WaitGroup),
    "no meeting": without(ir.SyncThreads),
    "no zeros around the image": unguarded,
    "another group's piece": moved_piece,
    "no end of a block": behind_the_end,
    "half of the sum": lambda statement: (
        None if isinstance(statement, ir.MmaSync) and statement.b.index else statement
    ),
}


@pytest.mark.parametrize("name", one_in(3, FAULTS))
def test_planted_faults_are_found(name: str) -> None:
    kernel = built()
    good = results_of(kernel).astype(np.float32)
    try:
        found = results_of(planted(kernel, FAULTS[name])).astype(np.float32)
    except Hazard:
        return
    assert not np.allclose(found, good, rtol=1e-2, atol=1e-2)
