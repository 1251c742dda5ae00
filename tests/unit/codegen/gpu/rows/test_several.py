"""Several rows to a thread, on the dialect's interpreter: they agree with playback, what all rows
share is read once, and faults that were planted are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support import kernels
from tests.support.cases import one_in
from tests.support.gpu_faults import planted, with_bound, without
from tests.support.gpu_rows import dialect_kernel, error_of
from tests.support.lowered import lowered
from weft.codegen.gpu import ir, templates
from weft.codegen.gpu.interp import Hazard, Timing
from weft.codegen.gpu.ir import values
from weft.foundation.dtypes import BF16
from weft.memory.from_region import assign_buffers
from weft.plan.ir import Header, RowPlan
from weft.ptir import Builder
from weft.region.ir import Module
from weft.target.sm90 import SM90
from weft.tiny.from_ptir import lower_program

HEADER = Header("sm90", "")
HALF = RowPlan(HEADER, 1, 2, 16, 1, rows_per_thread=2)
WARP = RowPlan(HEADER, 2, 2, 32, 2, rows_per_thread=2)
WARPS = RowPlan(HEADER, 1, 1, 128, 1, rows_per_thread=4)
WARPS_TWICE = RowPlan(HEADER, 2, 2, 64, 2, rows_per_thread=2)
PLANS = {
    "half a warp": HALF,
    "a warp": WARP,
    "four warps": WARPS,
    "two rows of two warps": WARPS_TWICE,
}


def with_its_greatest() -> Module:
    """Rows less their greatest, and the greatest of each."""
    b = Builder("rows")
    x = b.param("f32", [5, 202])
    top = b.reduce_max(x, axes=[1], keepdims=True)
    module = lowered(lower_program(b.build(x - b.broadcast_to(top, [5, 202]), top))).module
    assert len(module.kernels) == 1
    return module


MODULES: dict[str, Callable[[], Module]] = {
    "softmax": lambda: kernels.softmax(5, 300),
    "short rows": lambda: kernels.softmax(7, 6),
    "softmax fold": lambda: kernels.softmax_fold(5, 300),
    "layer norm": lambda: kernels.layer_norm(3, 202),
    "narrow layer norm": lambda: kernels.layer_norm(8, 202, BF16),
    "rows and their greatest": with_its_greatest,
    "one row": lambda: kernels.softmax(1, 64),
}
ROWS = kernels.softmax(5, 300)


@pytest.mark.parametrize("plan", one_in(3, PLANS))
@pytest.mark.parametrize("name", MODULES)
def test_rows_agree_with_playback(name: str, plan: str) -> None:
    module = MODULES[name]()
    made = dialect_kernel(module, PLANS[plan])
    for seed, timing in enumerate(Timing):
        assert error_of(module, made, timing, seed) < (1e-2 if name.startswith("narrow") else 1e-5)


def loaded(kernel: ir.Kernel) -> list[int]:
    """The buffers of a kernel's vectors, in the order in which they are read."""
    found = [s for s in ir.walk(kernel.body) if isinstance(s, values.LoadVector)]
    return [load.buffer for load in found]


def test_rows_are_read_first_and_what_they_share_once() -> None:
    module = kernels.layer_norm(8, 128)
    plan = RowPlan(HEADER, 4, 2, 32, 1)
    single = loaded(dialect_kernel(module, plan))
    rows, *weights = single
    assert len(set(single)) == 3
    for count in (2, 4):
        several = loaded(dialect_kernel(module, replace(plan, rows_per_thread=count)))
        assert several == [*[rows] * count, *weights]


def test_a_block_takes_rows_that_follow_one_another() -> None:
    assert dialect_kernel(ROWS, HALF).grid == 2
    assert dialect_kernel(ROWS, WARPS).grid == 2
    assert dialect_kernel(kernels.softmax(8, 300), WARPS).grid == 2


def caught(broken: ir.Kernel) -> bool:
    for seed in range(4):
        try:
            if error_of(ROWS, broken, Timing.LATE, seed) > 1e-3:
                return True
        except Hazard:
            return True
    return False


def test_a_missing_meeting_is_found() -> None:
    kernel = dialect_kernel(ROWS, WARPS)
    assert sum(isinstance(s, ir.SyncThreads) for s in kernel.body) == 2 * 4
    assert caught(planted(kernel, without(ir.SyncThreads)))


@pytest.mark.parametrize("by", [-1, 1])
def test_a_row_too_many_or_too_few_is_found(by: int) -> None:
    kernel = dialect_kernel(ROWS, WARPS)
    numbers = [s.name for s in kernel.body if isinstance(s, ir.Let) and s.name.startswith("number")]
    # Of the last block's four rows only the first exists.
    assert caught(with_bound(kernel, numbers[0 if by < 0 else 1], 5, 5 + by))


REFUSED = {
    "one thread": RowPlan(HEADER, 1, 32, 1, 1, keep_row=False, rows_per_thread=2),
    "read again": replace(WARP, keep_row=False),
    "a cluster": RowPlan(HEADER, 1, 1, 32, 1, blocks_per_row=4, rows_per_thread=2),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    refs = assign_buffers(ROWS).refs
    found = templates.accepts(ROWS.kernels[0], ROWS.tensors, refs, REFUSED[name], SM90)
    why = "rows_per_thread=2 needs rows that threads of one block keep"
    assert why in [finding.why for finding in found]


def test_more_rows_than_a_thread_has_registers_are_refused() -> None:
    """Before anybody writes them out."""
    refs, plan = assign_buffers(ROWS).refs, replace(WARPS, rows_per_thread=1 << 62)
    found = templates.accepts(ROWS.kernels[0], ROWS.tensors, refs, plan, SM90)
    assert any("takes a register for each row at least" in finding.why for finding in found)


OTHERS = {
    "ring=5 needs one row a block, whole warps and keep_row": RowPlan(
        HEADER, 4, 1, 32, 1, ring=5, rows_per_thread=2
    ),
    "no 2 rows side by side overlap": RowPlan(
        HEADER, 4, 1, 32, 1, keep_row=False, across=True, rows_per_thread=2
    ),
}


@pytest.mark.parametrize("why", OTHERS)
def test_other_templates_take_one_row_at_a_time(why: str) -> None:
    refs = assign_buffers(ROWS).refs
    found = templates.accepts(ROWS.kernels[0], ROWS.tensors, refs, OTHERS[why], SM90)
    assert why in [finding.why for finding in found]
