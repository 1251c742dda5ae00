"""Scatters of sorted updates on the dialect's interpreter: the bits of one update after the other,
or for long runs of what the members of a team have; their machine code; and that planted faults are
found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.cases import one_in
from tests.support.gpu_faults import Change, planted, without
from tests.support.gpu_whole import carried_out, kernel_of
from weft.codegen.gpu import ir
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.interp import Hazard
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.module import GpuModule
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.codegen.gpu.whole.gathering import teams_of
from weft.foundation.dtypes import BF16, F32, F64, SI8, SI32, DType
from weft.foundation.whole_ops import Collected, Gathered

Array = NDArray[Any]
COMBINE: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "max": np.maximum,
    "min": np.minimum,
    "replace": lambda a, b: b,
}


def operands(op: Gathered, places: Array, dtype: DType) -> list[Array]:
    """x, updates, pairs and starts of updates that go to these places."""
    rng = np.random.default_rng(op.count)
    x = (10 * rng.standard_normal((op.outer, op.rows, op.width))).astype(dtype.numpy)
    update = (10 * rng.standard_normal((op.outer, op.count, op.width))).astype(dtype.numpy)
    order = np.argsort(places, axis=1, kind="stable")
    pairs = np.stack([np.take_along_axis(places, order, 1), order], -1).astype(np.uint32)
    starts = np.array([[(row < r).sum() for r in range(op.rows + 1)] for row in places], "i4")
    return [x, update, pairs, starts]


def combined(op: Gathered, places: Array, x: Array, update: Array, dtype: DType) -> Array:
    """Updates in the order they came, those of a long run by the members of a team in turns, and
    then the first member's first; narrow floats in f32, rounded once."""
    wide = np.dtype(np.float32) if x.dtype.itemsize < 4 and x.dtype.kind not in "iu" else x.dtype
    out = x.astype(wide)
    for a, row in np.ndindex(op.outer, op.rows):
        run = update[a, places[a] == row].astype(wide)
        teams = [team for team in teams_of(op, dtype) if len(run) >= team.least]
        if teams and op.fn == "add":
            run = [sum(run[n :: teams[-1].members], wide.type(0)) for n in range(teams[-1].members)]
        for part in run:
            out[a, row] = COMBINE[op.fn](out[a, row], part)
    return out.astype(x.dtype)


def agrees(op: Gathered, places: Array, dtype: DType) -> None:
    given = operands(op, places, dtype)
    kernel = kernel_of(op, given, given[0])
    got = carried_out(kernel, given, given[0]).reshape(given[0].shape)
    want = combined(op, places, given[0], given[1], dtype)
    assert (got.view(np.uint8) == want.view(np.uint8)).all()


@pytest.mark.parametrize("fn", ["add", "max", "replace"])
@pytest.mark.parametrize("dtype", one_in(2, [F32, BF16, SI32]), ids=str)
def test_onto_zeros_every_row_is_written(dtype: DType, fn: str) -> None:
    op = Collected(fn, 2, 20, 8, 40, long=8)
    places = piled(op) // 2
    _, *given = operands(op, places, dtype)
    poison = np.full((2, 20, 8), 99).astype(dtype.numpy)
    got = carried_out(kernel_of(op, given, poison), given, poison).reshape(poison.shape)
    want = combined(op, places, np.zeros_like(poison), given[0], dtype)
    assert (got.view(np.uint8) == want.view(np.uint8)).all()


def spread(op: Gathered) -> Array:
    return np.random.default_rng(op.rows).integers(0, op.rows, (op.outer, op.count))


def piled(op: Gathered) -> Array:
    """Half of all updates at one place, which is neither the first nor the last."""
    places = spread(op)
    places[:, ::2] = op.rows // 2
    return places


SHAPES = {
    "rows of vectors": (1, 20, 16, 60),
    "odd rows": (2, 9, 5, 40),
    "columns of two blocks": (1, 5, 36, 50),
    "single elements": (1, 70, 1, 130),
    "one row": (1, 1, 3, 90),
    "one update": (2, 3, 4, 1),
}


@pytest.mark.parametrize(
    ("fn", "dtype"), one_in(2, [("add", F32), ("add", BF16), ("max", SI32)], unpack=True)
)
@pytest.mark.parametrize("name", SHAPES)
def test_short_and_long_runs_have_the_bits_of_their_order(name: str, fn: str, dtype: DType) -> None:
    op = Gathered(fn, *SHAPES[name], long=8)
    agrees(op, piled(op), dtype)


@pytest.mark.parametrize("dtype", one_in(2, [SI8, F64, SI32]))
@pytest.mark.parametrize("fn", ["replace", "min"])
def test_the_last_wins_or_the_least(fn: str, dtype: DType) -> None:
    op = Gathered(fn, 1, 10, 4, 50, long=4)
    agrees(op, piled(op), dtype)


def test_nan_is_never_lost() -> None:
    op = Gathered("max", 1, 3, 2, 30, long=8)
    given = operands(op, piled(op), F32)
    given[1][0, 7] = np.nan
    got = carried_out(kernel_of(op, given, given[0]), given, given[0])
    want = combined(op, piled(op), given[0], given[1], F32)
    np.testing.assert_array_equal(got.reshape(want.shape), want)
    assert np.isnan(want).any()


@pytest.mark.parametrize("long", [4, 5, 16])
@pytest.mark.parametrize("shift", one_in(2, range(5)))
def test_every_long_run_is_one_blocks(shift: int, long: int) -> None:
    """Runs of just so many updates, begun anywhere: none is left out, none is taken twice."""
    places = np.concatenate([np.zeros(shift, int), np.repeat(np.arange(1, 14), long)])
    op = Gathered("add", 1, 15, 1, len(places), long)
    agrees(op, places[None], F32)


@pytest.mark.parametrize("count", one_in(2, [511, 512, 513, 4095, 4096, 6145]))
def test_turns_end_where_runs_do(count: int) -> None:
    """Runs of a warp, and of a block."""
    op = Gathered("add", 1, 2, 1, count, 64)
    agrees(op, np.ones((1, count), np.int64), F32)


@pytest.mark.parametrize("width", [1, 8])
def test_the_bits_of_a_long_run_do_not_depend_on_where_it_stands(width: int) -> None:
    found = []
    for before in (0, 1, 5, 37):
        op = Gathered("add", 1, 3, width, 300 + before, 64)
        places = np.repeat([0, 2], [before, 300])[None]
        x, update, pairs, starts = operands(op, places, F32)
        update[:, before:] = operands(Gathered("add", 1, 3, width, 300, 64), places, F32)[1]
        given = [np.zeros_like(x), update, pairs, starts]
        got = carried_out(kernel_of(op, given, x), given, given[0])
        found.append(got.reshape(x.shape)[0, 2].tobytes())
    assert len(set(found)) == 1


@pytest.mark.parametrize(("count", "blocks"), [(7, 1), (8, 6)])
def test_where_no_run_is_long_no_block_looks_for_one(count: int, blocks: int) -> None:
    op = Gathered("add", 5, 4, 1, count, 8)
    given = operands(op, np.zeros((5, count), np.int64), F32)
    assert kernel_of(op, given, given[0]).grid == blocks
    agrees(op, np.zeros((5, count), np.int64), F32)


def test_without_updates_rows_stay() -> None:
    op = Gathered("add", 1, 300, 8, 2, 64)
    agrees(op, np.array([[299, 299]]), F32)


# -- text, machine code, planted faults ------------------------------------------------------------

EXAMPLES = {
    "an embedding": (Gathered("add", 1, 50, 768, 20, 8), BF16),
    "single elements": (Gathered("add", 1, 50, 1, 200, 8), F32),
    "doubles": (Gathered("max", 2, 5, 5, 40, 8), F64),
    "the last": (Gathered("replace", 1, 50, 8, 20, 8), SI8),
}


@pytest.mark.parametrize("name", one_in(4, EXAMPLES))
def test_the_text_reads_back_and_the_code_is_sound(name: str) -> None:
    op, dtype = EXAMPLES[name]
    given = operands(op, spread(op), dtype)
    kernel = kernel_of(op, given, given[0])
    module = GpuModule({kernel.name: kernel})
    assert parse_module(print_module(module)).kernels == module.kernels
    for arch in ("sm_80", "sm_90a"):
        assert compile_cuda(cuda(kernel), arch).report.findings == []


def test_rows_are_read_in_vectors() -> None:
    op, dtype = EXAMPLES["an embedding"]
    given = operands(op, spread(op), dtype)
    kernel = kernel_of(op, given, given[0])
    updates = [
        statement
        for statement in ir.walk(kernel.body)
        if isinstance(statement, values.LoadVector) and statement.buffer == 0
    ]
    assert {len(statement.names) for statement in updates} == {8}
    assert not any(isinstance(s, values.StoreElement) for s in kernel.body)


def other_update(statement: ir.Stmt) -> ir.Stmt:
    """Updates are asked for by their key instead of their number."""
    if isinstance(statement, ir.LoadElement) and statement.dtype.name == "ui32":
        return replace(statement, offset=statement.offset - 1)
    return statement


FAULTS: dict[str, Change] = {
    "no updates": without(values.Assign),
    "no meeting": without(ir.SyncThreads),
    "other updates": other_update,
    "nothing stored": without(values.StoreElement),
    "nobody looks": without(ir.StShared),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_caught(fault: str) -> None:
    op = Gathered("add", 1, 7, 5, 300, 32)
    given = operands(op, piled(op), F32)
    kernel = kernel_of(op, given, given[0])
    broken = planted(kernel, FAULTS[fault])
    assert broken != kernel
    right = carried_out(kernel, given, given[0])

    def is_caught(seed: int) -> bool:
        try:
            return not np.array_equal(carried_out(broken, given, given[0], seed), right)
        except (Hazard, IndexError):
            return True

    assert any(map(is_caught, range(3)))
