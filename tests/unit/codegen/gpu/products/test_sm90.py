"""The SM90 contraction template on the dialect's interpreter: right for every layout, dtype,
epilogue and schedule; and faults that were planted are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.gemm_kernels import Contraction, load_plan
from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_contractions import (
    AT_ONCE,
    COOPERATIVE,
    DEFERRED,
    PINGPONG,
    SM90_CASES,
    bound,
    error_of,
    random_tensors,
    relative_error,
    sm90_kernel,
    sm90_plan,
)
from tests.support.gpu_faults import Change, planted, without
from tests.support.gpu_interpreted import InterpretedGpu
from weft.codegen.gpu import ir
from weft.codegen.gpu.interp import Hazard, Timing, run
from weft.codegen.gpu.ir.scalar import Lit, Name
from weft.codegen.gpu.ir.swizzle import SWIZZLE_64
from weft.codegen.gpu.spelling.print import cuda
from weft.foundation.dtypes import BF16
from weft.foundation.errors import SpecViolation
from weft.plan.ir import MmaPlan
from weft.ptir import Builder
from weft.testing.compare import compare


@pytest.mark.parametrize("case", one_in(8, SM90_CASES))
def test_contractions_agree(case: str) -> None:
    shape, plan = SM90_CASES[case]
    assert error_of(shape, sm90_kernel(shape, plan), Timing.LATE, seed=3) < bound(shape)


@pytest.mark.parametrize(
    "case", one_in(2, ["nn", "tt", "batched residual", "odd columns", "deferred"])
)
def test_asynchronous_statements_may_take_effect_at_once(case: str) -> None:
    shape, plan = SM90_CASES[case]
    assert error_of(shape, sm90_kernel(shape, plan), Timing.EARLY, seed=4) < bound(shape)


@pytest.mark.parametrize("seed", one_in(2, range(2)))
def test_any_order_of_warps(seed: int) -> None:
    shape = Contraction(136, 72, 136, epilogue=("bias",))
    for plan in (COOPERATIVE, PINGPONG):
        assert error_of(shape, sm90_kernel(shape, plan), Timing.LATE, seed) < bound(shape)


@pytest.mark.parametrize(
    "name", one_in(2, ["coop_128x256_deferred_hilbert", "pingpong_128x160_hilbert"])
)
def test_benchmark_plans_agree(name: str) -> None:
    shape = Contraction(200, 264, 72, epilogue=("bias", "gelu"))
    assert error_of(shape, sm90_kernel(shape, load_plan(name)), Timing.LATE, 1) < bound(shape)


def test_the_result_is_the_same_for_every_schedule() -> None:
    shape = Contraction(136, 72, 136, epilogue=("bias",))
    results = []
    for plan in (COOPERATIVE, PINGPONG, DEFERRED, AT_ONCE):
        tensors = random_tensors(shape)
        flat = {name: value.reshape(-1) for name, value in tensors.items()}
        run(sm90_kernel(shape, plan), flat)
        results.append(tensors["y"].view(np.uint16))
    assert all((result == results[0]).all() for result in results)


def test_a_result_with_more_axes_than_a_tensor_map() -> None:
    """Queries, keys and values by heads: rows and columns of the product are apart in the result,
    which is stored by threads then."""
    batch, rows, heads, width = 2, 64, 2, 64
    b = Builder()
    x = b.param("bf16", [batch, rows, width])
    w = b.param("bf16", [width, 3 * heads * width])
    y = b.dot_general(x, w, contract=([2], [0]), batch=([], []))
    y = b.transpose(b.reshape(y, [batch, rows, 3, heads, width]), [2, 0, 3, 1, 4])
    executable = InterpretedGpu("sm90").compile(b.build(y))
    (kernel,) = executable.compilation["gpu"].kernels.values()
    assert [len(found.sizes) for found in kernel.maps] == [3, 4]
    rng = np.random.default_rng(5)
    sizes = ((batch, rows, width), (width, 3 * heads * width))
    given = [rng.standard_normal(size).astype(BF16.numpy) for size in sizes]
    wide = np.einsum("bsk,kn->bsn", *(value.astype(np.float64) for value in given))
    wanted = wide.reshape(batch, rows, 3, heads, width).transpose(2, 0, 3, 1, 4)
    assert relative_error(executable.execute(given)[0], wanted) < bound(SM90_CASES["nn"][0])


def test_distant_columns_are_counted_in_64_bits() -> None:
    """A swapped product of 32 rows: a thread's last column begins beyond 2^31 bytes."""
    shape = Contraction(32, 44_000_000, 64)
    plan = sm90_plan(tile=(64, 32, 64), warp_tile=(64, 32), consumers=1, swap_ab=True)
    source = cuda(sm90_kernel(shape, replace(plan, registers=(0, 0))))
    assert source.count("+ (i64)(g_ * 8 + 1) * 88000000)") == 2
    assert "+ (g_ * 8" not in source


TWO_RESULTS = [
    ("bf16", [136, 72], 64),
    ("bf16", [200, 136], 72),
    ("f32", [64, 136], 64),
]


@pytest.mark.parametrize(("dtype", "shape", "depth"), one_in(3, TWO_RESULTS, unpack=True))
@pytest.mark.parametrize("target", ["sm90", "sm80"])
def test_several_results_are_stored_by_one_kernel(
    target: str, dtype: str, shape: list[int], depth: int
) -> None:
    """y and gelu(y), as a layer in training keeps them."""
    b = Builder()
    x, w = b.param("bf16", [shape[0], depth]), b.param("bf16", [depth, shape[1]])
    bias = b.param(dtype, [shape[1]])
    y = b.dot_general(x, w, contract=([1], [0]), out_dtype=dtype, accum_dtype="f32")
    y = y + b.broadcast_to(bias, shape)
    program = b.build(y, b.gelu(y))
    backend = InterpretedGpu(target)
    plans = backend.compile(program).compilation["plan"]
    assert [getattr(plan, "arch", "") for plan in plans.plans.values()] == [target]
    report = compare(program, inputs_for(program, 2), backend)
    assert report.agrees, str(report)


# Planted faults


def wrong_phase(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.MbarrierWait) and statement.barrier.barriers == "full":
        return replace(statement, parity=statement.parity ^ 1)
    return statement


def stuck_phase(statement: ir.Stmt) -> ir.Stmt | None:
    """The ring's phase never turns."""
    return None if isinstance(statement, ir.Set) and statement.name == "phase" else statement


def early_release(statement: ir.Stmt) -> ir.Stmt:
    """The slot in use is handed back instead of the one before it."""
    if isinstance(statement, ir.MbarrierArrive) and statement.barrier.barriers == "empty":
        return ir.MbarrierArrive(ir.BarrierAt("empty", Name("slot")))
    return statement


def unswizzled(statement: ir.Stmt) -> ir.Stmt:
    """Results are staged without the permutation that the copy engine undoes."""
    if isinstance(statement, ir.StMatrix):
        offset = statement.target.offset
        plain = offset ^ ((offset >> 7 & 7) << 4)
        return replace(statement, target=replace(statement.target, offset=plain))
    return statement


def weak_read_wait(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.TmaWaitRead) and statement.pending:
        return ir.TmaWaitRead(statement.pending + 1)
    return statement


def unordered(statement: ir.Stmt) -> ir.Stmt | None:
    """Ping-pong consumers do not wait for their turn."""
    waits = isinstance(statement, ir.MbarrierWait) and statement.barrier.barriers == "turn"
    return None if waits else statement


def half_of_the_bytes(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.MbarrierExpectTx):
        return replace(statement, bytes=statement.bytes // 2)
    return statement


def misplaced_slice(statement: ir.Stmt) -> ir.Stmt:
    """The second slice of k begins where the first one does."""
    if isinstance(statement, ir.Wgmma) and isinstance(statement.a, ir.WgmmaOperand):
        start = 0 if statement.a.offset == 32 else statement.a.offset
        return replace(statement, a=replace(statement.a, offset=start))
    return statement


def stale_columns(statement: ir.Stmt) -> ir.Stmt | None:
    return None if isinstance(statement, ir.StShared) else statement


def unaligned_copy(statement: ir.Stmt) -> ir.Stmt:
    """The copy engine is asked for a box that begins between lines: an illegal instruction."""
    if isinstance(statement, ir.TmaLoad) and statement.map == "a":
        return replace(statement, coords=(statement.coords[0] + 1, *statement.coords[1:]))
    return statement


FAULTS: dict[str, tuple[Change, MmaPlan]] = {
    "no full wait": (
        lambda s: None if isinstance(s, ir.MbarrierWait) and s.barrier.barriers == "full" else s,
        COOPERATIVE,
    ),
    "no empty wait": (
        lambda s: None if isinstance(s, ir.MbarrierWait) and s.barrier.barriers == "empty" else s,
        COOPERATIVE,
    ),
    "wrong phase": (wrong_phase, COOPERATIVE),
    "stuck phase": (stuck_phase, COOPERATIVE),
    "early release": (early_release, COOPERATIVE),
    "no wait for matrix instructions": (without(ir.WgmmaWait), COOPERATIVE),
    "no commit": (without(ir.WgmmaCommit), COOPERATIVE),
    "no proxy fence": (without(ir.ProxyFence), COOPERATIVE),
    "no named barrier": (without(ir.NamedBarrier), COOPERATIVE),
    "no read wait": (without(ir.TmaWaitRead), COOPERATIVE),
    "weak read wait": (weak_read_wait, COOPERATIVE),
    "no swizzle": (unswizzled, COOPERATIVE),
    "no turn": (unordered, sm90_plan(tile=(64, 64, 64), roles="pingpong", stages=2)),
    "half of the bytes": (half_of_the_bytes, COOPERATIVE),
    "misplaced slice": (misplaced_slice, COOPERATIVE),
    "stale columns": (stale_columns, COOPERATIVE),
    "unaligned copy": (unaligned_copy, COOPERATIVE),
    "barriers never made": (without(ir.MbarrierInit), COOPERATIVE),
}


@pytest.mark.parametrize("fault", one_in(3, FAULTS))
def test_planted_faults_are_caught(fault: str) -> None:
    """Some order or timing ends in a hazard or in a wrong result."""
    change, plan = FAULTS[fault]
    shape = Contraction(136, 136, 200, epilogue=("bias",))
    broken = planted(sm90_kernel(shape, plan), change)
    assert any(_caught(shape, broken, timing, seed) for timing in Timing for seed in range(3))


def without_wait(barriers: str) -> Change:
    def change(s: ir.Stmt) -> ir.Stmt | None:
        waits = isinstance(s, ir.MbarrierWait) and s.barrier.barriers == barriers
        return None if waits else s

    return change


def unpermuted_source(statement: ir.Stmt) -> ir.Stmt:
    """What the copy engine brought is read as if pieces lay in order."""
    if not isinstance(statement, ir.Epilogue):
        return statement
    sources = tuple(
        replace(s, swizzle=SWIZZLE_64) if isinstance(s, ir.StagedElements) else s
        for s in statement.sources
    )
    return replace(statement, sources=sources)


def never_free(statement: ir.Stmt) -> ir.Stmt | None:
    arrives = isinstance(statement, ir.MbarrierArrive) and statement.barrier.barriers == "free"
    return None if arrives else statement


RESIDUAL_FAULTS: dict[str, Change] = {
    "read before it is there": without_wait("filled"),
    "fetched before there is room": without_wait("free"),
    "never free": never_free,
    "free while it is stored": without(ir.TmaWaitRead),
    "pieces in order": unpermuted_source,
    "no meeting": without(ir.NamedBarrier),
    "no proxy fence": without(ir.ProxyFence),
}


@pytest.mark.parametrize("fault", one_in(2, RESIDUAL_FAULTS))
def test_planted_faults_of_residuals_are_caught(fault: str) -> None:
    shape, plan = SM90_CASES["residual, several tiles"]
    kernel = sm90_kernel(shape, plan)
    broken = planted(kernel, RESIDUAL_FAULTS[fault])
    assert broken != kernel
    assert any(_caught(shape, broken, timing, seed) for timing in Timing for seed in range(3))


def alone(statement: ir.Stmt) -> ir.Stmt:
    """A slot is handed back to this block only."""
    if isinstance(statement, ir.MbarrierArrive):
        return replace(statement, everywhere=False)
    return statement


def for_itself(statement: ir.Stmt) -> ir.Stmt:
    """What a block loads of the shared operand goes to itself only."""
    return replace(statement, everywhere=False) if isinstance(statement, ir.TmaLoad) else statement


def same_half(statement: ir.Stmt) -> ir.Stmt:
    """Both blocks load the first half of the shared operand, each to its own place."""
    if isinstance(statement, ir.TmaLoad) and statement.everywhere:
        return replace(statement, coords=(statement.coords[0], Lit(0), *statement.coords[2:]))
    return statement


def no_parting(kernel: ir.Kernel) -> ir.Kernel:
    """Blocks end without waiting for one another."""
    *start, roles = kernel.body
    return replace(kernel, body=(*start, *planted(replace(kernel, body=(roles,)), _apart).body))


def no_greeting(kernel: ir.Kernel) -> ir.Kernel:
    """Blocks reach into one another before they know that the others have begun."""
    *start, roles = kernel.body
    begun = planted(replace(kernel, body=tuple(start)), _apart).body
    return replace(kernel, body=(*begun, ir.SyncThreads(), roles))


def _apart(statement: ir.Stmt) -> ir.Stmt | None:
    return None if isinstance(statement, ir.ClusterArrive | ir.ClusterWait) else statement


PAIR_FAULTS: dict[str, Callable[[ir.Kernel], ir.Kernel]] = {
    "handed back to one": lambda kernel: planted(kernel, alone),
    "loaded for one": lambda kernel: planted(kernel, for_itself),
    "the same half twice": lambda kernel: planted(kernel, same_half),
    "no empty wait": lambda kernel: planted(kernel, without_wait("empty")),
    "no meeting at the end": no_parting,
    "no meeting at the start": no_greeting,
}


@pytest.mark.parametrize("fault", one_in(2, PAIR_FAULTS))
def test_planted_faults_of_pairs_of_blocks_are_caught(fault: str) -> None:
    shape, plan = SM90_CASES["pairs of rows"]
    kernel = sm90_kernel(shape, plan)
    broken = PAIR_FAULTS[fault](kernel)
    assert broken != kernel
    assert any(_caught(shape, broken, timing, seed) for timing in Timing for seed in range(3))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"cluster": (2, 2)}, "a cluster of 2x2 blocks is not 2x1 or 1x2"),
        ({"cluster": (1, 2), "tile": (128, 64, 64)}, "shares A, which must be contiguous along k"),
    ],
)
def test_clusters_that_cannot_share_are_refused(fields: dict[str, Any], why: str) -> None:
    shape = Contraction(256, 256, 256, layouts=("col", "col"))
    with pytest.raises(SpecViolation, match=why):
        sm90_kernel(shape, sm90_plan(**fields))


def shifted_row(statement: ir.Stmt) -> ir.Stmt:
    """Words of a row go one element too far."""
    if isinstance(statement, ir.StGlobalRow):
        return replace(statement, offset=statement.offset + 1)
    return statement


def next_word(statement: ir.Stmt) -> ir.Stmt:
    """Each lane takes its word to be the one behind it."""
    if isinstance(statement, ir.StGlobalRow):
        return replace(statement, place=statement.place + 1)
    return statement


def counted(change: int) -> Change:
    """A row ends sooner or later than it does."""
    return lambda s: replace(s, count=s.count + change) if isinstance(s, ir.StGlobalRow) else s


ROW_FAULTS: dict[str, Change] = {
    "shifted row": shifted_row,
    "next word": next_word,
    "a word less": counted(-2),
    "an element less": counted(-1),
    "a word more": counted(2),
    "no rows": without(ir.StGlobalRow),
    "no meeting": without(ir.NamedBarrier),
}


@pytest.mark.parametrize("fault", one_in(2, ROW_FAULTS))
@pytest.mark.parametrize("case", one_in(2, ["odd columns", "odd f32"]))
def test_planted_faults_of_stored_rows_are_caught(case: str, fault: str) -> None:
    shape, plan = SM90_CASES[case]
    kernel = sm90_kernel(shape, plan)
    broken = planted(kernel, ROW_FAULTS[fault])
    assert broken != kernel
    assert any(_caught(shape, broken, timing, seed) for timing in Timing for seed in range(3))


def _caught(shape: Contraction, kernel: ir.Kernel, timing: Timing, seed: int) -> bool:
    try:
        return error_of(shape, kernel, timing, seed) > bound(shape)
    except Hazard:
        return True


def test_a_hazard_says_what_it_saw() -> None:
    shape = Contraction(64, 64, 64)
    broken = planted(sm90_kernel(shape, COOPERATIVE), without(ir.ProxyFence))
    with pytest.raises(Hazard, match="plain stores that no proxy fence has ordered"):
        error_of(shape, broken, Timing.LATE, 0)
    loops = planted(
        sm90_kernel(shape, COOPERATIVE),
        lambda s: ir.MbarrierWait(s.barrier, Lit(0)) if isinstance(s, ir.MbarrierWait) else s,
    )
    with pytest.raises(Hazard, match="every warp waits for ever: empty parity 0, full parity 0"):
        error_of(shape, loops, Timing.LATE, 0)
