"""Sums in parts: the same bits whichever block comes when and in either form, faults that were
planted are found, and plans that ask for what is not there are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gemm_kernels import Contraction, references, region_kernel
from tests.support.cases import one_in
from tests.support.gpu_contractions import (
    COOPERATIVE,
    DEFERRED,
    PINGPONG,
    TWO_UNITS,
    Array,
    bound,
    expected,
    random_tensors,
    relative_error,
    sm80_kernel,
    sm80_plan,
    sm90_kernel,
    sm90_plan,
    split,
)
from tests.support.gpu_faults import Change, planted, without
from weft.codegen.gpu import ir
from weft.codegen.gpu.dependent_launch import chain_faults, chained
from weft.codegen.gpu.interp import Hazard, Timing, run
from weft.codegen.gpu.ir.module import GpuModule
from weft.codegen.gpu.ir.scalar import Lit, Name
from weft.codegen.gpu.products import sm80, sm90
from weft.codegen.gpu.products.split import Split
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.codegen.gpu.verify import verify
from weft.foundation.dtypes import F32
from weft.foundation.errors import SpecViolation
from weft.plan.ir import MmaPlan
from weft.plan.sum_parts import SumParts
from weft.target.sm80 import SM80
from weft.target.sm90 import SM90

SHAPE = Contraction(264, 56, 456, out_dtype=F32, epilogue=("bias", "gelu"))
"""An odd number of tiles: two blocks share the parts of each."""


def result(kernel: ir.Kernel, shape: Contraction, timing: Timing, seed: int) -> Array:
    """What a kernel makes of the same tensors in some order of its warps."""
    tensors = random_tensors(shape)
    run(kernel, {name: value.reshape(-1) for name, value in tensors.items()}, timing, seed)
    assert relative_error(tensors["y"], expected(shape, tensors)) < bound(shape)
    return tensors["y"].view(np.uint8)


@pytest.mark.parametrize(
    "plan", one_in(3, [COOPERATIVE, PINGPONG, DEFERRED]), ids=lambda p: p.roles
)
def test_every_order_and_form_has_the_same_bits(plan: MmaPlan) -> None:
    serial, parallel = (sm90_kernel(SHAPE, split(plan, 3, form)) for form in ("serial", "parallel"))
    first = result(serial, SHAPE, Timing.LATE, 0)
    for seed in range(1, 3):
        assert (result(serial, SHAPE, Timing.EARLY, seed) == first).all()
        assert (result(parallel, SHAPE, Timing.LATE, seed) == first).all()
    whole = result(sm90_kernel(SHAPE, plan), SHAPE, Timing.LATE, 0)
    assert (whole != first).any()


def test_the_order_of_parts_is_part_of_the_bits() -> None:
    kernel = sm90_kernel(SHAPE, split(COOPERATIVE, 3, "parallel"))
    first, other = (
        result(found, SHAPE, Timing.LATE, 0) for found in (kernel, planted(kernel, last_sum_first))
    )
    assert (first != other).any()


def test_the_older_template_has_the_same_bits_in_either_form() -> None:
    shape = Contraction(40, 40, 200, epilogue=("bias",))
    kernels = [sm80_kernel(shape, split(sm80_plan(), 4, form)) for form in ("serial", "parallel")]
    first, *rest = (result(k, shape, Timing.LATE, seed) for k in kernels for seed in range(2))
    assert all((other == first).all() for other in rest)


def test_split_k_is_the_serial_form() -> None:
    plan = replace(COOPERATIVE, split_k=3)
    assert sm90_kernel(SHAPE, plan) == sm90_kernel(SHAPE, split(COOPERATIVE, 3))
    assert sm90_kernel(SHAPE, split(COOPERATIVE, 1)) == sm90_kernel(SHAPE, COOPERATIVE)


def test_parts_cover_every_step_once() -> None:
    for steps, count in ((8, 4), (7, 3), (5, 5), (100, 16)):
        parts = Split(SumParts(count), steps, tiles=6)
        spans = [parts.steps_of(Lit(6 * number)) for number in range(count)]
        lengths = [found.value for found in spans if isinstance(found, Lit)]
        assert sum(lengths) == steps
        assert min(lengths) == parts.fewest
        assert max(lengths) - min(lengths) <= 1


def test_the_workspace_has_room_for_every_tile() -> None:
    serial, parallel = (sm90_kernel(SHAPE, split(PINGPONG, 3, f)) for f in ("serial", "parallel"))
    # Five tiles of 64 x 64 sums.
    assert serial.workspace == ir.Workspace(5, 5 * 64 * 64)
    assert parallel.workspace == ir.Workspace(5, 3 * 5 * 64 * 64)
    assert serial.together
    assert not parallel.together
    assert serial.workspace.bytes == 4 * (32 + 5 * 64 * 64)


# Planted faults


def wrong_turn(statement: ir.Stmt) -> ir.Stmt:
    """A part waits for the part before the one before it."""
    if isinstance(statement, ir.AwaitTurn):
        return replace(statement, value=statement.value - 1)
    return statement


def never_reset(statement: ir.Stmt) -> ir.Stmt | None:
    reset = isinstance(statement, ir.PassTurn) and statement.value == Lit(0)
    return None if reset else statement


def never_passed(statement: ir.Stmt) -> ir.Stmt | None:
    passed = isinstance(statement, ir.PassTurn) and statement.value != Lit(0)
    return None if passed else statement


def last_part_first(statement: ir.Stmt) -> ir.Stmt:
    """Blocks take the parts of a tile from the last to the first."""
    if isinstance(statement, ir.Let) and statement.name == "sum_part":
        return ir.Let("sum_part", 2 - statement.value)
    return statement


def one_place_for_all(statement: ir.Stmt) -> ir.Stmt:
    """The sums of every tile lie where those of the first one do."""
    if isinstance(statement, ir.KeepSums | ir.AddSums | ir.GatherSums):
        return replace(statement, start=Lit(0))
    return statement


def handed_on_before(statement: ir.Stmt) -> ir.Stmt:
    """A part is handed on, and then stored."""
    if isinstance(statement, ir.If) and any(
        isinstance(s, ir.KeepSums) for s in statement.otherwise
    ):
        return replace(statement, otherwise=statement.otherwise[::-1])
    return statement


def last_sum_first(statement: ir.Stmt) -> ir.Stmt:
    """Parts are added up from the last to the first."""
    if isinstance(statement, ir.GatherSums):
        start = statement.start + (statement.count - 1) * statement.stride
        return replace(statement, start=start, stride=-statement.stride)
    return statement


def counted_too_early(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.CountOff):
        return replace(statement, last=statement.last - 1)
    return statement


FAULTS: dict[str, tuple[Change, str]] = {
    "no wait": (without(ir.AwaitTurn), "serial"),
    "wrong turn": (wrong_turn, "serial"),
    "no reset": (never_reset, "serial"),
    "never passed": (never_passed, "serial"),
    "last part first": (last_part_first, "serial"),
    "no sum": (without(ir.AddSums), "serial"),
    "handed on before it is kept": (handed_on_before, "serial"),
    "one place for all, serial": (one_place_for_all, "serial"),
    "one place for all, parallel": (one_place_for_all, "parallel"),
    "counted too early": (counted_too_early, "parallel"),
    "not kept": (without(ir.KeepSums), "parallel"),
}


@pytest.mark.parametrize("fault", one_in(3, FAULTS))
def test_planted_faults_are_caught(fault: str) -> None:
    change, form = FAULTS[fault]
    kernel = sm90_kernel(SHAPE, split(COOPERATIVE, 3, form))
    broken = planted(kernel, change)
    assert broken != kernel
    assert any(_caught(broken, seed) for seed in range(3))


def _caught(kernel: ir.Kernel, seed: int) -> bool:
    try:
        result(kernel, SHAPE, Timing.LATE, seed)
    except (Hazard, AssertionError):
        return True
    return False


def test_the_interpreter_says_what_is_wrong() -> None:
    kernel = sm90_kernel(SHAPE, split(COOPERATIVE, 3))
    for change, why in (
        (never_reset, "a counter of the workspace is not zero when the kernel ends"),
        (never_passed, "every warp waits for ever: .*turn 1 of a sum"),
        (last_part_first, "every warp waits for ever: .*turn 2 of a sum"),
    ):
        with pytest.raises(Hazard, match=why):
            result(planted(kernel, change), SHAPE, Timing.LATE, 0)


# Refusals, text, code


def why_not(plan: MmaPlan, shape: Contraction = SHAPE) -> list[str]:
    plan = replace(plan, operand_layouts=shape.layouts)
    return [f.why for f in sm90.accepts(region_kernel(shape), references(shape), plan, TWO_UNITS)]


def test_more_parts_than_steps_are_refused() -> None:
    assert why_not(split(COOPERATIVE, 8)) == []
    assert why_not(split(COOPERATIVE, 9)) == ["split_k=9, but a sum has 8 k steps to divide"]
    assert why_not(replace(COOPERATIVE, split_k=0)) == [
        "split_k=0, but a sum has 8 k steps to divide"
    ]
    shape = Contraction(40, 40, 64)
    plan = replace(split(sm80_plan(), 3), operand_layouts=shape.layouts)
    plan = replace(plan, predicate_tail=("m.i.i", "n.i.i"))
    found = sm80.accepts(region_kernel(shape), references(shape), plan, SM80)
    assert [f.why for f in found] == ["split_k=3, but a sum has 2 k steps to divide"]


def test_text_and_back() -> None:
    for form in ("serial", "parallel"):
        kernel = sm90_kernel(SHAPE, split(PINGPONG, 3, form))
        text = print_module(GpuModule({"gemm": kernel}))
        assert parse_module(text).kernels == {"gemm": kernel}
        assert "workspace(counters=5" in text
        with pytest.raises(SpecViolation, match="the workspace appears here for the second time"):
            parse_module(
                text.replace("  workspace(", "  workspace(counters=1, words=0)\n  workspace(")
            )


def test_kernels_are_verified() -> None:
    kernel = sm90_kernel(SHAPE, split(COOPERATIVE, 3))
    verify(kernel, TWO_UNITS)
    many = replace(TWO_UNITS, limits=replace(TWO_UNITS.limits, units=1))
    for broken, target, why in (
        (replace(kernel, workspace=None), TWO_UNITS, "the kernel has no workspace"),
        (replace(kernel, workspace=ir.Workspace(0, 8)), TWO_UNITS, "a workspace of 0 counters"),
        (kernel, many, "2 blocks wait for one another, and sm90 runs 1 at once"),
        (planted(kernel, _strangers), TWO_UNITS, "100 threads cannot meet"),
    ):
        with pytest.raises(SpecViolation, match=why):
            verify(broken, target)


def _strangers(statement: ir.Stmt) -> ir.Stmt:
    return replace(statement, threads=100) if isinstance(statement, ir.AwaitTurn) else statement


def test_a_kernel_waits_before_it_uses_its_workspace() -> None:
    """Another launch of the same kernel may run before it."""
    kernel = chained(sm90_kernel(SHAPE, split(COOPERATIVE, 3)), SM90)
    assert kernel.waits
    assert not list(chain_faults(kernel))
    bare = replace(
        kernel,
        body=(
            ir.PassTurn(Lit(0), Lit(0), Name("thread"), Lit(0), kernel.threads),
            ir.AwaitPrevious(),
        ),
    )
    assert list(chain_faults(bare)) == [
        "memory is touched before the kernels ahead of this one have ended"
    ]


def test_the_address_of_the_workspace_is_the_last_parameter() -> None:
    source = cuda(sm90_kernel(SHAPE, split(sm90_plan(), 2)))
    assert "char* b3, u32* workspace) {" in source
    assert "ld.acquire.gpu.global.u32" in source
    assert "u32* workspace" not in cuda(sm90_kernel(SHAPE, sm90_plan()))
