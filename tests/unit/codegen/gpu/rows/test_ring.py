"""Rows through a ring in shared memory, on the dialect's interpreter: they agree with playback, and
faults that were planted are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support import kernels
from tests.support.cases import one_in
from tests.support.gpu_faults import Change, planted, without
from tests.support.gpu_programs import through_stages
from tests.support.gpu_rows import dialect_kernel, error_of
from weft.codegen.gpu import ir
from weft.codegen.gpu.interp import Hazard, Timing
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.module import GpuModule
from weft.codegen.gpu.ir.scalar import Lit, Name
from weft.codegen.gpu.rows import ring as row_ring
from weft.codegen.gpu.rows.row import Rows
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.foundation.dtypes import BF16
from weft.memory.from_region import assign_buffers
from weft.plan.ir import Header, RowPlan
from weft.ptir import Builder
from weft.region.ir import Module
from weft.target.sm80 import SM80
from weft.target.sm90 import SM90

HEADER = Header("sm90", "")
ONE = RowPlan(HEADER, 4, 1, 32, 1, ring=5)
WARPS = RowPlan(HEADER, 4, 1, 64, 1, ring=2)
DEEP = RowPlan(HEADER, 4, 1, 64, 2, ring=5)
CLUSTER = RowPlan(HEADER, 4, 1, 64, 1, blocks_per_row=2, ring=2)
NARROW = RowPlan(HEADER, 8, 1, 32, 1, ring=2)
PLANS = {"a warp": ONE, "two warps": WARPS, "deep": DEEP, "two blocks": CLUSTER}
MODULES: dict[str, Callable[[], Module]] = {
    "softmax": lambda: kernels.softmax(5, 512),
    "softmax fold": lambda: kernels.softmax_fold(5, 512),
    "layer norm": lambda: kernels.layer_norm(3, 512),
    "two rows": lambda: kernels.softmax(2, 512),
}


def few_teams(monkeypatch: pytest.MonkeyPatch, count: int = 2) -> None:
    """So few teams that each takes several rows."""
    monkeypatch.setattr(row_ring, "teams", lambda *_: count)


@pytest.mark.parametrize("plan", one_in(3, PLANS))
@pytest.mark.parametrize("name", MODULES)
def test_rows_agree_with_playback(name: str, plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few_teams(monkeypatch)
    module = MODULES[name]()
    made = dialect_kernel(module, PLANS[plan])
    for seed, timing in enumerate(Timing):
        assert error_of(module, made, timing, seed) < 1e-5


def test_sixteen_blocks_share_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    few_teams(monkeypatch, 1)
    module = kernels.layer_norm(3, 2048)
    made = dialect_kernel(module, RowPlan(HEADER, 4, 1, 32, 1, blocks_per_row=16, ring=2))
    assert made.cluster == 16
    assert error_of(module, made) < 1e-5


def test_narrow_rows_lie_packed_in_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    few_teams(monkeypatch)
    module = kernels.layer_norm(3, 512, BF16)
    assert error_of(module, dialect_kernel(module, NARROW)) < 1e-2


def test_what_all_rows_share_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of a norm are loaded before the first row, where registers hold them."""
    few_teams(monkeypatch)
    made = dialect_kernel(kernels.layer_norm(3, 512), ONE)
    (loop,) = (s for s in made.body if isinstance(s, ir.For))
    before, inside = str(made.body[: made.body.index(loop)]), str(loop.body)
    assert before.count("LoadVector(") == 2 * 4
    assert "LoadVector(" not in inside


def argmax(rows: int, length: int) -> Module:
    b = Builder()
    program = b.build(b.arg_max(b.param("f32", [rows, length]), axis=1))
    found = through_stages(program, "sm90")["region"]
    assert isinstance(found, Module)
    return found


@pytest.mark.parametrize("plan", one_in(2, PLANS))
def test_places_are_made_anew_in_every_row(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of an argmax: kept, they would take as many registers as the row."""
    few_teams(monkeypatch)
    module = argmax(5, 512)
    made = dialect_kernel(module, PLANS[plan])
    (loop,) = (s for s in made.body if isinstance(s, ir.For))
    assert ir.Let("here", Name("member"), pinned=True) in loop.body
    outside = made.body[: made.body.index(loop)]
    assert not any(isinstance(s, values.IndexValue) for s in outside)
    assert error_of(module, made) == 0
    printed = GpuModule({made.name: made})
    assert parse_module(print_module(printed)).kernels == printed.kernels
    assert " pin(here);" in cuda(made)


# -- planted faults --------------------------------------------------------------------------------

ROWS = kernels.softmax(7, 512)


def caught(broken: ir.Kernel, module: Module = ROWS) -> bool:
    for seed in range(4):
        for timing in Timing:
            try:
                if error_of(module, broken, timing, seed) > 1e-3:
                    return True
            except Hazard:
                return True
    return False


def other_phase(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.MbarrierWait):
        return replace(statement, parity=statement.parity ^ 1)
    return statement


def first_slot(statement: ir.Stmt) -> ir.Stmt:
    """Every piece is taken from the first slot of the ring."""
    if isinstance(statement, ir.LoadStaged):
        return replace(statement, source=ir.Address("ring", Lit(0)))
    return statement


def half_a_piece(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.BulkLoad):
        return replace(statement, count=statement.count // 2)
    return statement


def one_slot_on(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.BulkLoad):
        size = statement.count * statement.dtype.storage_bytes
        return replace(statement, target=ir.Address("ring", statement.target.offset + size))
    return statement


FAULTS: dict[str, Change] = {
    "no meeting before pieces are asked for": without(ir.SyncThreads),
    "loads not ordered before copies": without(ir.ProxyFence),
    "no waiting": without(ir.MbarrierWait),
    "nothing announced": without(ir.MbarrierExpectTx),
    "the other phase": other_phase,
    "the first slot": first_slot,
    "half a piece": half_a_piece,
    "one slot on": one_slot_on,
}


@pytest.mark.parametrize("fault", one_in(2, FAULTS))
@pytest.mark.parametrize("plan", one_in(2, ["two warps", "deep", "two blocks"]))
def test_faults_are_found(fault: str, plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few_teams(monkeypatch)
    kernel = dialect_kernel(ROWS, PLANS[plan])
    broken = planted(kernel, FAULTS[fault])
    assert broken != kernel
    assert caught(broken)


def test_two_rows_in_one_slot_for_partial_results_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a single reduction, a block of a cluster writes into what another one still reads."""
    few_teams(monkeypatch)
    module = kernels.softmax_fold(7, 512)
    made = dialect_kernel(module, CLUSTER)
    assert error_of(module, made) < 1e-5
    monkeypatch.setattr(row_ring.RingRows, "new_slots", Rows.new_slots)
    broken = dialect_kernel(module, CLUSTER)
    assert caught(broken, module)


# -- what is refused -------------------------------------------------------------------------------

REFUSED: dict[str, tuple[RowPlan, str]] = {
    "rows of other lengths": (replace(ONE, threads=256), "is not made of pieces of 1024"),
    "short vectors": (replace(ONE, vector=2, threads=64), "no operand lies in runs"),
    "several rows": (replace(ONE, rows_per_block=2), "needs one row a block"),
    "read again": (replace(ONE, keep_row=False), "needs one row a block"),
    "too much": (replace(ONE, ring=500), "takes 256000 bytes"),
    "less than a row": (replace(ONE, ring=1), "does not hold the 4 pieces of a row"),
    "more than threads": (replace(ONE, ring=33), "more than threads ask for"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    plan, why = REFUSED[name]
    refs = assign_buffers(ROWS).refs
    found = row_ring.accepts(ROWS.kernels[0], ROWS.tensors, refs, plan, SM90)
    assert any(why in str(finding) for finding in found), found


def test_older_machines_have_no_copy_engine() -> None:
    refs = assign_buffers(ROWS).refs
    found = row_ring.accepts(ROWS.kernels[0], ROWS.tensors, refs, ONE, SM80)
    assert any("has no copy engine" in str(finding) for finding in found)
