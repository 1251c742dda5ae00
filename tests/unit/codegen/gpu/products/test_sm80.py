"""The SM80 contraction template on the dialect's interpreter: right for every layout, size, dtype
and schedule; and faults that were planted are found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.gemm_kernels import Contraction, references, region_kernel
from tests.support.cases import each, one_in
from tests.support.gpu_contractions import (
    SM80_CASES,
    TWO_BY_TWO,
    TWO_STAGES,
    bound,
    error_of,
    random_tensors,
    sm80_kernel,
    sm80_plan,
)
from tests.support.gpu_faults import Change, planted, without
from weft.codegen.gpu import ir
from weft.codegen.gpu.interp import Hazard, Timing, run
from weft.codegen.gpu.ir.scalar import Lit, Name
from weft.codegen.gpu.products import sm80
from weft.foundation.dtypes import F32
from weft.plan.ir import CacheRead, LocalEdge, MmaPlan, Vectorize
from weft.region.interp import run_kernel
from weft.region.ir import Tensor
from weft.target.sm80 import SM80


@pytest.mark.parametrize("case", one_in(5, SM80_CASES))
def test_contractions_agree(case: str) -> None:
    shape, plan = SM80_CASES[case]
    assert error_of(shape, sm80_kernel(shape, plan), Timing.LATE, seed=3) < bound(shape)


@pytest.mark.parametrize("case", one_in(2, ["nn", "tt", "batched residual", "odd", "many stages"]))
def test_copies_may_arrive_at_once(case: str) -> None:
    shape, plan = SM80_CASES[case]
    assert error_of(shape, sm80_kernel(shape, plan), Timing.EARLY, seed=4) < bound(shape)


@pytest.mark.parametrize("seed", one_in(3, range(3)))
def test_any_order_of_warps(seed: int) -> None:
    shape = Contraction(40, 40, 136, epilogue=("bias",))
    for plan in (TWO_STAGES, TWO_BY_TWO):
        assert error_of(shape, sm80_kernel(shape, plan), Timing.LATE, seed) < bound(shape)


@pytest.mark.parametrize(
    "case", one_in(2, ["nn", "the document's tile", "odd, f32", "batched residual"])
)
def test_playback_agrees(case: str) -> None:
    """The kernel of the region stage, played back, gives the same numbers up to their rounding."""
    shape, plan = SM80_CASES[case]
    tensors = random_tensors(shape)
    kinds = {
        name: Tensor(name, F32 if name == "rows" else _dtype(name, shape), array.shape, "input")
        for name, array in tensors.items()
    }
    played = run_kernel(region_kernel(shape), kinds, tensors)["y"].astype(np.float64)
    run(sm80_kernel(shape, plan), {name: array.reshape(-1) for name, array in tensors.items()})
    scale = np.abs(played).max()
    assert np.abs(tensors["y"].astype(np.float64) - played).max() < 2 * bound(shape) * scale


def _dtype(name: str, shape: Contraction) -> Any:
    return shape.out_dtype if name in ("y", "residual") else shape.dtype


def test_the_result_is_the_same_for_every_schedule() -> None:
    shape = Contraction(40, 40, 136, epilogue=("bias",))
    results = []
    for plan in (sm80_plan(), TWO_STAGES, TWO_BY_TWO, sm80_plan(stages=5, order="hilbert")):
        tensors = random_tensors(shape)
        flat = {name: value.reshape(-1) for name, value in tensors.items()}
        run(sm80_kernel(shape, plan), flat)
        results.append(tensors["y"].view(np.uint16))
    assert all((result == results[0]).all() for result in results)


# -- planted faults --------------------------------------------------------------------------------


def weak_wait(statement: ir.Stmt) -> ir.Stmt:
    """One group of copies too many may be on its way."""
    if isinstance(statement, ir.WaitGroup):
        return ir.WaitGroup(statement.pending + 1)
    return statement


def meets_once(statement: ir.Stmt) -> ir.Stmt:
    """Warps meet in the first step of k only."""
    if isinstance(statement, ir.SyncThreads):
        return ir.If(Name("k").equals(0), (statement,))
    return statement


def unswizzled_copies(statement: ir.Stmt) -> ir.Stmt:
    """Copies go where pieces would lie without the permutation."""
    if isinstance(statement, ir.CpAsync | ir.Gather):
        offset = statement.target.offset
        plain = offset ^ ((offset >> 7 & 3) << 4)
        return replace(statement, target=replace(statement.target, offset=plain))
    return statement


def unswizzled_loads(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.LdMatrix):
        offset = statement.source.offset
        plain = offset ^ ((offset >> 7 & 3) << 4)
        return replace(statement, source=replace(statement.source, offset=plain))
    return statement


def slot_in_use(statement: ir.Stmt) -> ir.Stmt:
    """The next copy goes into the slot that is being multiplied."""
    if isinstance(statement, ir.Let) and statement.name == "free":
        return ir.Let("free", Lit(0))
    return statement


def stuck_slot(statement: ir.Stmt) -> ir.Stmt | None:
    return None if isinstance(statement, ir.Set) and statement.name == "slot" else statement


def turned(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.LdMatrix):
        return replace(statement, transposed=not statement.transposed)
    return statement


def unguarded(statement: ir.Stmt) -> ir.Stmt:
    """Tails are copied as if the tensor went on."""
    if isinstance(statement, ir.CpAsync):
        return replace(statement, guard=Lit(1))
    return statement


def last_slice_again(statement: ir.Stmt) -> ir.Stmt:
    """Products go to the accumulators of the first columns."""
    if isinstance(statement, ir.MmaSync) and statement.acc.index:
        return replace(statement, acc=ir.RegAt("acc", 0))
    return statement


FAULTS: dict[str, tuple[Change, MmaPlan]] = {
    "no wait": (without(ir.WaitGroup), sm80_plan()),
    "weak wait": (weak_wait, sm80_plan()),
    "weak wait, two stages": (weak_wait, TWO_STAGES),
    "no commit": (without(ir.CommitGroup), sm80_plan()),
    "no meeting": (without(ir.SyncThreads), sm80_plan()),
    "one meeting": (meets_once, sm80_plan()),
    "one meeting, four warps": (meets_once, TWO_BY_TWO),
    "unswizzled copies": (unswizzled_copies, sm80_plan()),
    "unswizzled loads": (unswizzled_loads, sm80_plan()),
    "slot in use": (slot_in_use, TWO_STAGES),
    "stuck slot": (stuck_slot, sm80_plan()),
    "turned fragments": (turned, sm80_plan()),
    "no tail predicates": (unguarded, sm80_plan()),
    "wrong accumulator": (last_slice_again, sm80_plan()),
    "stale columns": (without(ir.StShared), sm80_plan()),
}


@pytest.mark.parametrize("fault", one_in(2, FAULTS))
def test_planted_faults_are_caught(fault: str) -> None:
    """Some order or timing ends in a hazard or in a wrong result."""
    change, plan = FAULTS[fault]
    shape = Contraction(40, 72, 136, epilogue=("bias",))
    kernel = sm80_kernel(shape, plan)
    broken = planted(kernel, change)
    assert broken != kernel
    assert any(
        _caught(shape, broken, timing, seed)
        for timing in (Timing.LATE, Timing.EARLY)
        for seed in range(3)
    )


def _caught(shape: Contraction, kernel: ir.Kernel, timing: Timing, seed: int) -> bool:
    try:
        return error_of(shape, kernel, timing, seed) > bound(shape)
    except Hazard:
        return True


def test_a_hazard_says_what_it_saw() -> None:
    shape = Contraction(40, 40, 136)
    broken = planted(sm80_kernel(shape, sm80_plan()), without(ir.WaitGroup))
    with pytest.raises(Hazard, match="ldmatrix reads shared memory that a copy has not written"):
        error_of(shape, broken, Timing.LATE, 0)


# -- refusals --------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "cluster": ({"cluster": (2, 1)}, "cluster=[2, 1] has no effect in the SM80 template"),
    "split_k": ({"split_k": 4}, "split_k=4, but a sum has 3 k steps to divide"),
    "swap_ab": ({"swap_ab": True}, "swap_ab=true has no effect in the SM80 template"),
    "batch": ({"batch": 2}, "batch=2 has no effect in the SM80 template"),
    "deferred_epilogue": (
        {"deferred_epilogue": True},
        "deferred_epilogue=true has no effect in the SM80 template",
    ),
    "consumers": ({"consumers": 3}, "consumers=3 has no effect in the SM80 template"),
    "in_flight": ({"in_flight": 0}, "in_flight=0 has no effect in the SM80 template"),
    "store_buffers": ({"store_buffers": 1}, "store_buffers=1 has no effect in the SM80 template"),
    "registers": (
        {"registers": (24, 240)},
        "registers=[24, 240] has no effect in the SM80 template",
    ),
    "bind": (
        {"bind": {"m.o": "block.x"}},
        'bind={"m.o": "block.x"} is not how the SM80 template binds',
    ),
    "vectorize": (
        {"vectorize": Vectorize("n.i.i", 4)},
        'vectorize={"axis": "n.i.i", "width": 4} is not 16 bytes along n.i.i',
    ),
    "roles": ({"roles": "pingpong"}, "arch=sm80 with roles=pingpong is not this template"),
    "algo_choice": (
        {"algo_choice": {"conv": "winograd_3x3"}},
        "algo_choice.conv=winograd_3x3 is not built for this kernel",
    ),
    "layout_hints": (
        {"layout_hints": {"B_swizzle": False}},
        "layout_hints.B_swizzle=false is not built",
    ),
    "cache": (
        {"cache": (CacheRead("A", "smem", "k.i", pingpong=False),)},
        "cache: A must be cached in smem, double-buffered",
    ),
    "local_edges": (
        {"local_edges": (LocalEdge("c", "y", "gmem"),)},
        "local_edges: the kernel has no edge c to y; its edges: v5 to v9, kept in reg",
    ),
    "order": ({"order": "spiral"}, "there is no tile order spiral"),
    "predicate_tail": (
        {"predicate_tail": ("m.i.i",)},
        'predicate_tail=["m.i.i"], but the tails are k.i.i, m.i.i, n.i.i',
    ),
    "operand_layouts": (
        {"operand_layouts": ("col", "col")},
        'operand_layouts=["col", "col"], but they are stored as ["row", "col"]',
    ),
    "epilogue": (
        {"epilogue": ("gelu",)},
        'epilogue=["gelu"], but the kernel\'s is ["bias"]',
    ),
    "tile": ({"tile": (32, 32, 20)}, "a tile of 32x32x20 is not made of 16-byte pieces"),
    "warp_tile": (
        {"warp_tile": (8, 32)},
        "a warp tile of 8x32 in 32x32 is not made of 16x16 blocks",
    ),
    "stages": ({"stages": 1}, "there must be two stages at least"),
    "shared memory": (
        {"stages": 50},
        "the plan needs 204928 bytes of shared memory, over 166912",
    ),
    "threads": (
        {"tile": (512, 128, 32), "warp_tile": (16, 32), "stages": 2},
        "the plan needs 4096 threads",
    ),
    "too many accumulators": (
        {"tile": (128, 128, 32), "warp_tile": (128, 128)},
        "a thread needs about 616 registers and has 255",
    ),
}


@each("field", REFUSED)
def test_plans_that_are_refused(field: str) -> None:
    fields, message = REFUSED[field]
    shape = Contraction(40, 40, 72, epilogue=("bias",))
    plan = replace(
        sm80_plan(operand_layouts=shape.layouts, predicate_tail=("m.i.i", "n.i.i", "k.i.i")),
        **fields,
    )
    found = sm80.accepts(region_kernel(shape), references(shape), plan, SM80)
    assert message in [finding.why for finding in found]
