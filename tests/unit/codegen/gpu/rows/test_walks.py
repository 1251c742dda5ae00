"""Rows one after the other with the sums of their columns, on the dialect's interpreter: they agree
with playback, and faults that were planted are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support import kernels
from tests.support.cases import one_in
from tests.support.gpu_faults import planted, without
from tests.support.gpu_rows import dialect_kernel, error_of
from weft.codegen.gpu import ir, templates
from weft.codegen.gpu.interp import Hazard, Timing
from weft.foundation.dtypes import BF16
from weft.memory.from_region import assign_buffers
from weft.plan.ir import Header, RowPlan
from weft.region.ir import Module, form_of
from weft.target.sm90 import SM90

HEADER = Header("sm90", "")
WARP = RowPlan(HEADER, 2, 1, 32, 1, walks=True)
WARPS = RowPlan(HEADER, 1, 1, 128, 1, walks=True)
PLANS = {
    "a warp": WARP,
    "four warps": WARPS,
    "two rows of a warp, twice": replace(WARP, rows_per_block=2, rows_per_thread=2),
    "three rows of two warps": replace(WARPS, threads=64, rows_per_block=3, accumulators=1),
}
MODULES: dict[str, Callable[[], Module]] = {
    "even": lambda: kernels.norm_gradient(3, 8, 128),
    "odd": lambda: kernels.norm_gradient(2, 5, 202),
    "narrow": lambda: kernels.norm_gradient(2, 4, 256, BF16),
    "one sum": lambda: kernels.norm_gradient(2, 3, 66, shift=False),
    "one part": lambda: kernels.norm_gradient(1, 2, 64),
}
ROWS = kernels.norm_gradient(2, 6, 128)


def test_the_form_names_the_axis() -> None:
    rows = form_of(ROWS.kernels[0]).rows
    assert (rows.reduced, rows.regular, rows.walked) == (("i", "j"), False, "i")


@pytest.mark.parametrize("plan", one_in(2, PLANS))
@pytest.mark.parametrize("name", MODULES)
def test_rows_and_sums_agree_with_playback(name: str, plan: str) -> None:
    module = MODULES[name]()
    made = dialect_kernel(module, PLANS[plan])
    for seed, timing in enumerate(Timing):
        assert error_of(module, made, timing, seed) < (1e-2 if name == "narrow" else 1e-5)


RINGS = {
    "a row ahead": (kernels.norm_gradient(3, 5, 128), RowPlan(HEADER, 4, 1, 32, 1, ring=2)),
    "two vectors": (kernels.norm_gradient(2, 4, 512), RowPlan(HEADER, 4, 1, 64, 1, ring=6)),
    "narrow": (kernels.norm_gradient(2, 3, 256, BF16), RowPlan(HEADER, 8, 1, 32, 1, ring=2)),
}


@pytest.mark.parametrize("name", RINGS)
def test_rows_through_a_ring_agree_with_playback(name: str) -> None:
    module, plan = RINGS[name]
    made = dialect_kernel(module, replace(plan, walks=True))
    assert any(isinstance(s, ir.BulkLoad) for s in ir.walk(made.body))
    for seed, timing in enumerate(Timing):
        assert error_of(module, made, timing, seed) < (1e-2 if name == "narrow" else 1e-5)


def caught(broken: ir.Kernel) -> bool:
    for seed in range(4):
        try:
            if error_of(ROWS, broken, Timing.LATE, seed) > 1e-3:
                return True
        except Hazard:
            return True
    return False


@pytest.mark.parametrize("meeting", [ir.SyncThreads, ir.NamedBarrier])
def test_a_missing_meeting_is_found(meeting: type[ir.Stmt]) -> None:
    kernel = dialect_kernel(ROWS, PLANS["three rows of two warps"])
    assert not caught(kernel)
    assert caught(planted(kernel, without(meeting)))


REFUSED = {
    "walks=true needs rows that threads of one block keep": replace(WARP, keep_row=False),
    "rows that follow one another have no across=true": replace(WARP, across=True),
    "16 rows of several warps have more than 15 barriers": replace(
        WARP, threads=64, rows_per_block=16
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused(why: str) -> None:
    refs = assign_buffers(ROWS).refs
    found = templates.accepts(ROWS.kernels[0], ROWS.tensors, refs, REFUSED[why], SM90)
    assert why in [finding.why for finding in found]


def test_rows_without_sums_of_columns_are_refused() -> None:
    module = kernels.softmax(5, 300)
    refs = assign_buffers(module).refs
    (found,) = templates.accepts(module.kernels[0], module.tensors, refs, WARP, SM90)
    assert found.why == "walks=true needs rows that are reduced and whose columns are added up"


def test_one_thread_a_row_is_the_way_without_walking() -> None:
    plan = RowPlan(HEADER, 1, 32, 1, 1, keep_row=False)
    assert error_of(ROWS, dialect_kernel(ROWS, plan)) < 1e-5
