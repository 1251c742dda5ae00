"""The row template on the dialect's interpreter: it agrees with playback for every split of a row;
and faults that were planted are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support import kernels
from tests.support.cases import one_in
from tests.support.gpu_faults import Change, planted, with_bound, without
from tests.support.gpu_rows import dialect_kernel, error_of
from weft.codegen.gpu import ir
from weft.codegen.gpu.interp import Hazard, Timing
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.scalar import LANE, Lit, Name
from weft.codegen.gpu.rows import row
from weft.foundation.dtypes import BF16
from weft.plan.ir import Header, RowPlan
from weft.region.ir import Module
from weft.target.known import target_named
from weft.target.sm90 import SM90
from weft.target.target import Target

HEADER = Header("sm90", "")
SINGLE = RowPlan(HEADER, 1, 32, 1, 1, keep_row=False)
"""One thread a row."""
HALF = RowPlan(HEADER, 1, 2, 16, 1)
WARP = RowPlan(HEADER, 2, 2, 32, 2)
WARPS = RowPlan(HEADER, 1, 1, 128, 1)
WARPS_TWICE = RowPlan(HEADER, 2, 2, 64, 2)
CHUNKS = RowPlan(HEADER, 2, 1, 64, 1, keep_row=False)
CLUSTER = RowPlan(HEADER, 1, 1, 32, 1, blocks_per_row=4)
CLUSTER_OF_WARPS = RowPlan(HEADER, 2, 1, 64, 2, blocks_per_row=2)
PLANS = {
    "one thread": SINGLE,
    "half a warp": HALF,
    "a warp": WARP,
    "four warps": WARPS,
    "two rows of two warps": WARPS_TWICE,
    "chunks": CHUNKS,
    "four blocks": CLUSTER,
    "two blocks of two warps": CLUSTER_OF_WARPS,
}
MODULES: dict[str, Callable[[], Module]] = {
    "softmax": lambda: kernels.softmax(5, 300),
    "short rows": lambda: kernels.softmax(7, 6),
    "softmax fold": lambda: kernels.softmax_fold(5, 300),
    "layer norm": lambda: kernels.layer_norm(3, 202),
    "narrow layer norm": lambda: kernels.layer_norm(3, 202, BF16),
    "one row": lambda: kernels.softmax(1, 64),
}


@pytest.mark.parametrize("plan", one_in(3, PLANS))
@pytest.mark.parametrize("name", MODULES)
def test_rows_agree_with_playback(name: str, plan: str) -> None:
    module = MODULES[name]()
    bound = 1e-2 if name.startswith("narrow") else 1e-5
    made = dialect_kernel(module, PLANS[plan])
    for seed, timing in enumerate(Timing):
        assert error_of(module, made, timing, seed) < bound


def test_contractions_of_one_thread_a_row() -> None:
    module = kernels.linear(5, 6, 12)
    assert error_of(module, dialect_kernel(module, SINGLE)) < 1e-5


# -- planted faults --------------------------------------------------------------------------------


def caught(module: Module, broken: ir.Kernel) -> bool:
    for seed in range(4):
        try:
            if error_of(module, broken, Timing.LATE, seed) > 1e-3:
                return True
        except Hazard:
            return True
    return False


ROWS = kernels.softmax(5, 300)


def test_a_missing_meeting_is_found() -> None:
    """Partial results are read before all warps of the row have written them."""
    kernel = dialect_kernel(ROWS, WARPS)
    assert sum(isinstance(s, ir.SyncThreads) for s in kernel.body) == 2
    assert caught(ROWS, planted(kernel, without(ir.SyncThreads)))


@pytest.mark.parametrize("kept", [0, 1])
def test_one_meeting_of_two_is_not_enough(kept: int) -> None:
    kernel = dialect_kernel(ROWS, WARPS)
    meetings = [n for n, s in enumerate(kernel.body) if isinstance(s, ir.SyncThreads)]
    body = tuple(s for n, s in enumerate(kernel.body) if n not in meetings or n == meetings[kept])
    assert caught(ROWS, replace(kernel, body=body))


@pytest.mark.parametrize("by", one_in(2, [-1, 1]))
@pytest.mark.parametrize("plan", ["one thread", "two rows of two warps"])
def test_a_row_too_many_or_too_few_is_found(plan: str, by: int) -> None:
    kernel = dialect_kernel(ROWS, PLANS[plan])
    assert caught(ROWS, with_bound(kernel, "number", 5, 5 + by))


@pytest.mark.parametrize("by", [-1, 1])
def test_a_vector_too_many_or_too_few_is_found(by: int) -> None:
    kernel = dialect_kernel(ROWS, WARPS)
    (last,) = {
        s.name for s in kernel.body if isinstance(s, ir.Let) and s.value == _last_chunk(kernel)
    }
    assert caught(ROWS, with_bound(kernel, last, 300, 300 + by))


def _last_chunk(kernel: ir.Kernel) -> object:
    chunks = [s.value for s in kernel.body if isinstance(s, ir.Let) and s.name.startswith("q")]
    return chunks[-1]


def unshifted(statement: ir.Stmt) -> ir.Stmt:
    """Every warp writes its partial result to the first slot."""
    if isinstance(statement, ir.StShared):
        return replace(statement, target=ir.Address(statement.target.tile, Lit(0)))
    return statement


def wrong_partner(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, values.Shuffle) and statement.mask == 16:
        return replace(statement, mask=8)
    return statement


def every_lane_stores(statement: ir.Stmt) -> ir.Stmt:
    """The other lanes' stores go beyond the slots of the row."""
    if isinstance(statement, ir.StShared):
        offset = statement.target.offset + LANE * 8
        return replace(statement, target=replace(statement.target, offset=offset))
    return statement


@pytest.mark.parametrize("change", [unshifted, wrong_partner, every_lane_stores])
def test_wrong_exchanges_are_found(change: Callable[[ir.Stmt], ir.Stmt]) -> None:
    kernel = dialect_kernel(ROWS, WARPS)
    if change is every_lane_stores:
        kernel = planted(kernel, lambda s: s.then[0] if isinstance(s, ir.If) else s)
    assert caught(ROWS, planted(kernel, change))


def to_the_first_slot(statement: ir.Stmt) -> ir.Stmt:
    """Every block sends its partial result to the same place."""
    if isinstance(statement, ir.StCluster):
        return replace(statement, target=ir.Address(statement.target.tile, Lit(0)))
    return statement


def to_the_first_block(statement: ir.Stmt) -> ir.Stmt:
    return replace(statement, block=Lit(0)) if isinstance(statement, ir.StCluster) else statement


def to_itself(statement: ir.Stmt) -> ir.Stmt:
    """Three of four parts never come."""
    return (
        replace(statement, block=Name("rank")) if isinstance(statement, ir.StCluster) else statement
    )


@pytest.mark.parametrize(
    "change",
    [
        without(ir.ClusterWait),
        without(ir.ClusterArrive),
        without(ir.StCluster),
        to_the_first_slot,
        to_the_first_block,
        to_itself,
    ],
)
def test_wrong_exchanges_in_a_cluster_are_found(change: Change) -> None:
    kernel = dialect_kernel(ROWS, CLUSTER)
    assert caught(ROWS, planted(kernel, change))


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (replace(WARP, vector=8), "a vector of 8 does not divide an axis of 300"),
        (
            replace(WARP, accumulators=50),
            "50 partial results cannot be kept by 10 elements at a time",
        ),
        (
            RowPlan(HEADER, 4, 8, 32, 1),
            "keeping a row takes about 2544 registers of each thread, which has 255",
        ),
        (
            replace(CLUSTER, keep_row=False),
            "blocks_per_row=4 needs one row a block, whole warps and keep_row",
        ),
    ],
)
def test_plans_that_are_refused(plan: RowPlan, message: str) -> None:
    module = kernels.softmax(8, 80_000 if "registers" in message else 300)
    found = row.accepts(module.kernels[0], module.tensors, plan, SM90)
    assert message in [finding.why for finding in found]


@pytest.mark.parametrize(
    ("plan", "target", "hint"),
    [
        (RowPlan(HEADER, 4, 8, 32, 1), SM90, "use more threads, or keep_row=false"),
        (
            RowPlan(HEADER, 4, 4, 256, 1),
            SM90,
            "use fewer rows_per_block with more threads each, or keep_row=false",
        ),
        (RowPlan(HEADER, 4, 1, 1024, 1), SM90, "use more blocks_per_row, or keep_row=false"),
        (RowPlan(HEADER, 4, 1, 1024, 1), target_named("sm80"), "use keep_row=false"),
    ],
)
def test_what_gives_a_row_more_registers(plan: RowPlan, target: Target, hint: str) -> None:
    module = kernels.softmax(8, 200_000)
    found = row.accepts(module.kernels[0], module.tensors, plan, target)
    assert [finding.hint for finding in found if "registers" in finding.why] == [hint]
