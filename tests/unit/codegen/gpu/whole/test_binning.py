"""Sums in bins on the dialect's interpreter: the bits of the order that their template describes;
their machine code; and that planted faults are found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.cases import one_in
from tests.support.gpu_faults import Change, planted, without
from tests.support.gpu_whole import carried_out, kernel_of
from weft.codegen.gpu import ir, sass
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.interp import Hazard
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.module import GpuModule
from weft.codegen.gpu.ir.scalar import Lit
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.codegen.gpu.whole.binning import LARGEST_PIECE
from weft.codegen.gpu.whole.kernel import THREADS
from weft.codegen.gpu.whole.templates import accepts
from weft.foundation.dtypes import BF16, F16, F32, F64, UI32, DType
from weft.foundation.whole_ops import Binned
from weft.region.ir import Kernel, OpaqueCall, Output, Pattern, Tensor

Array = NDArray[Any]
LONG, LANES, GROUP_BITS = 64, 32, 8


def operands(op: Binned, places: Array, dtype: DType) -> list[Array]:
    """x, and pairs of updates that go to these places."""
    rng = np.random.default_rng(op.count)
    x = (10 * rng.standard_normal((op.outer, op.rows))).astype(dtype.numpy)
    x[:, ::7] = -0.0
    update = (10 * rng.standard_normal((op.outer, op.count))).astype(np.float32)
    order = np.argsort(places >> op.low, axis=1, kind="stable")
    found = (places.astype(np.uint32), update.view(np.uint32))
    return [x, np.stack([np.take_along_axis(part, order, 1) for part in found], -1)]


def by_lanes(updates: Array) -> np.float32:
    """What the lanes of a warp make of updates of which each has every 32nd."""
    lanes = [np.float32(-0.0)] * LANES
    for number, update in enumerate(updates):
        lanes[number % LANES] += update
    for bit in range(5):
        lanes = [lanes[n] + lanes[n ^ 1 << bit] for n in range(LANES)]
    return lanes[0]


def add_piece(op: Binned, total: Array, places: Array, updates: Array) -> None:
    groups = places >> max(0, op.low - GROUP_BITS)
    for group in np.unique(groups):
        chosen = groups == group
        rows, added = places[chosen], updates[chosen]
        if len(rows) < LONG:
            for row, update in zip(rows, added, strict=True):
                total[row] += update
            continue
        for row in range(total.size):
            if row >> max(0, op.low - GROUP_BITS) == group:
                total[row] += by_lanes(np.where(rows == row, added, np.float32(-0.0)))


def summed(op: Binned, x: Array, pairs: Array) -> Array:
    out = np.zeros((op.outer, op.rows), np.float32) if op.zeros else x.astype(np.float32)
    for a, number in np.ndindex(op.outer, op.bins):
        found = pairs[a][pairs[a, :, 0] >> op.low == number]
        places, updates = (found[:, 0] & (1 << op.low) - 1).astype(int), found[:, 1].view("f4")
        rows = out[a, number << op.low : (number + 1) << op.low]
        whole = rows.copy()
        for first in range(0, len(found), op.tile):
            here = slice(first, first + op.tile)
            if first == 0:
                add_piece(op, whole, places[here], updates[here])
                continue
            total = np.full(1 << op.low, -0.0, np.float32)
            add_piece(op, total, places[here], updates[here])
            whole = whole + total[: rows.size]
        rows[...] = whole
    return out.astype(x.dtype)


def agrees(op: Binned, places: Array, dtype: DType = F32, seed: int = 0) -> ir.Kernel:
    given = operands(op, places, dtype)
    poison = np.full((op.outer, op.rows), 99).astype(dtype.numpy)
    kernel = kernel_of(op, given, poison)
    got = carried_out(kernel, given, poison, seed).reshape(poison.shape)
    want = summed(op, *given)
    assert (got.view(np.uint8) == want.view(np.uint8)).all()
    return kernel


def spread(op: Binned) -> Array:
    return np.random.default_rng(op.rows).integers(0, op.rows, (op.outer, op.count))


OPS = {
    "several rows": Binned(3, 40, 100, 3, 256),
    "the last bin is short": Binned(1, 1001, 700, 9, 512),
    "vectors of rows": Binned(1, 2048, 900, 10, 768),
    "one update": Binned(2, 9, 1, 2, 256),
    "far more rows than updates": Binned(1, 9000, 30, 12, 256),
    "bins of several pieces": Binned(1, 30, 1200, 4, 256),
    "onto zeros": Binned(2, 300, 500, 6, 256, zeros=True),
}


@pytest.mark.parametrize(
    ("name", "dtype"), one_in(3, [(n, d) for n in OPS for d in (F32, BF16)], unpack=True)
)
def test_sums_have_the_bits_of_their_order(name: str, dtype: DType) -> None:
    agrees(OPS[name], spread(OPS[name]), dtype)


@pytest.mark.parametrize("number", [0, 5, 19])
def test_all_in_one(number: int) -> None:
    """Long groups, and pieces of one bin only; the others have no updates."""
    op = Binned(1, 20, 1100, 3, 256)
    agrees(op, np.full((1, op.count), number))


@pytest.mark.parametrize("before", one_in(2, [0, 1, 63, 255, 256, 257]))
@pytest.mark.parametrize("count", one_in(2, [255, 256, 257, 511, 512, 513]))
def test_pieces_begin_where_bins_do(before: int, count: int) -> None:
    """Bins of just so many updates, begun anywhere: no piece is left out, none is taken twice."""
    places = np.repeat([1, 5, 9], [before, count, 300])[None]
    agrees(Binned(1, 12, places.size, 2, 256), places)


@pytest.mark.parametrize("count", one_in(2, [63, 64, 65, 95, 96, 97]))
def test_groups_are_long_from_64_updates_on(count: int) -> None:
    """Groups of several rows, of which neighbours are short."""
    places = np.random.default_rng(count).permutation(np.repeat([0, 1, 16, 17, 18], count // 2 + 1))
    agrees(Binned(1, 4096, places.size, 12, 1024), places[None])


@pytest.mark.parametrize("seed", range(3))
def test_whoever_is_the_last_adds_up(seed: int) -> None:
    op = Binned(2, 24, 900, 3, 256)
    agrees(op, spread(op) // 3, seed=seed)


def test_elements_without_updates_keep_their_sign() -> None:
    op = Binned(1, 8, 600, 2, 256)
    given = operands(op, np.full((1, 600), 1), F32)
    got = carried_out(kernel_of(op, given, given[0]), given, np.zeros_like(given[0]))
    assert np.signbit(got[0])
    assert got[0] == 0


def test_whoever_has_nothing_to_do_ends() -> None:
    """No bin is long: there is a block for each bin, and one for each stretch of all updates."""
    op = Binned(1, 4000, 3000, 8, 512)
    kernel = agrees(op, spread(op))
    assert kernel.grid == op.bins + op.stretches == 16 + 6


def test_places_out_of_range_touch_one_bin() -> None:
    """What runs behind a check that failed stays inside its memory."""
    op = Binned(2, 300, 500, 4, 256)
    places = spread(op)
    places[:, ::50], places[:, 1::50] = 4096, (1 << 32) - 1
    given = operands(op, places, F32)
    start = np.full(given[0].shape, 99, np.float32)
    got = carried_out(kernel_of(op, given, start), given, start).reshape(start.shape)
    last = op.bins - 1 << op.low
    assert (got[:, :last] == summed(op, *given)[:, :last]).all()


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (Binned(1, 100, 50, 3, 256), F64),
        (Binned(1, 100, 50, 0, 256), F32),
        (Binned(1, 100000, 50, 13, 256), F32),
        (Binned(1, 100, 50, 3, 300), F32),
        (Binned(1, 100, 50, 3, 8192), F32),
    ],
)
def test_what_a_block_has_no_room_for_is_refused(op: Binned, dtype: DType) -> None:
    call = OpaqueCall(op, ("x", "pairs"), (0,))
    kernel = Kernel("op", Pattern.OPAQUE, (), (), (Output("out", "", ()),), opaque=call)
    tensors = {name: Tensor(name, dtype, (1, op.rows)) for name in ("x", "out")}
    tensors["pairs"] = Tensor("pairs", UI32, (1, op.count, 2))
    assert len(accepts(op, kernel, tensors)) == 1


# -- text, machine code, planted faults ------------------------------------------------------------

EXAMPLES = {
    "a million": (Binned(1, 1 << 20, 1 << 20, 12, 4352), F32),
    "segments": (Binned(1, 4096, 1 << 20, 4, 4352, zeros=True), F32),
    "halves": (Binned(3, 1001, 1 << 14, 9, 1024), F16),
}


def made(name: str) -> ir.Kernel:
    op, dtype = (EXAMPLES | CROWDED)[name]
    x = np.zeros((op.outer, op.rows), dtype.numpy)
    return kernel_of(op, [x, np.zeros((op.outer, op.count, 2), np.uint32)], x)


@pytest.mark.parametrize("name", one_in(3, EXAMPLES))
def test_the_text_reads_back_and_the_code_is_sound(name: str) -> None:
    kernel = made(name)
    module = GpuModule({kernel.name: kernel})
    assert parse_module(print_module(module)).kernels == module.kernels
    for arch in ("sm_80", "sm_90a"):
        assert compile_cuda(cuda(kernel), arch).report.findings == []


CROWDED = {
    "an odd number of rows": (Binned(1, (1 << 20) + 1, 1 << 20, 12, LARGEST_PIECE), F32),
    "rows of bins": (Binned(3, 1001, 1 << 18, 4, LARGEST_PIECE), BF16),
    "few rows": (Binned(1, 1024, 1 << 20, 2, LARGEST_PIECE), F32),
    "far more rows than updates": (Binned(1, 1 << 22, 5000, 12, 1024), F32),
}
"""Bins that need most registers."""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", one_in(2, CROWDED))
def test_registers_hold_what_a_thread_has(name: str, arch: str) -> None:
    assert compile_cuda(cuda(made(name)), arch).report.findings == []


@pytest.mark.skipif(not sass.available(), reason="nvdisasm is not installed")
@pytest.mark.parametrize("name", one_in(2, [*EXAMPLES, *CROWDED]))
def test_a_thread_asks_for_all_updates_before_it_ranks_one(name: str) -> None:
    code = sass.disassemble(compile_cuda(cuda(made(name)), "sm_90a").code)
    opcodes = [found.name for found in code]
    # Blocks meet once when they know where their bin begins and ends, and then before ranks.
    first, second = [n for n, name in enumerate(opcodes) if name.startswith("BAR.SYNC")][:2]
    op, _ = (EXAMPLES | CROWDED)[name]
    loads = [name for name in opcodes[first:second] if name.startswith("LDG.E.64")]
    assert len(loads) == op.tile // THREADS


def test_pairs_and_rows_are_moved_in_vectors() -> None:
    kernel = made("a million")
    body = [*ir.walk(kernel.body)]
    loads = [found for found in body if isinstance(found, values.LoadVector)]
    assert sorted({len(load.names) for load in loads}) == [2, 4]
    assert not any(isinstance(found, values.StoreElement) for found in body)


def counted_too_early(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.CountOff):
        return replace(statement, last=statement.last - 1)
    return statement


def other_words(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.AddSums):
        return replace(statement, start=statement.start - 1024)
    return statement


def other_ends(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.Let) and statement.name.startswith("wanted"):
        return replace(statement, value=statement.value + 1)
    return statement


FAULTS: dict[str, Change] = {
    "no updates": without(values.LoadVector),
    "no meeting": without(ir.SyncThreads),
    "lanes do not meet": without(ir.SyncWarp),
    "nobody counts off": lambda s: replace(s, cond=Lit(1)) if isinstance(s, ir.If) else s,
    "counted too early": counted_too_early,
    "other words": other_words,
    "sums are not kept": without(ir.KeepSums),
    "other updates": other_ends,
    "nothing stored": without(values.StoreVector),
    "lanes keep what they have": without(values.Shuffle),
    "ranks of fewer bits": lambda s: replace(s, bits=1) if isinstance(s, values.Alike) else s,
}


@pytest.mark.parametrize("fault", one_in(3, FAULTS))
def test_planted_faults_are_caught(fault: str) -> None:
    op = Binned(1, 40, 1000, 4, 256)
    places = spread(op)
    places[:, ::2] = 17
    given = operands(op, places, F32)
    start = np.full(given[0].shape, 99, np.float32)
    kernel = kernel_of(op, given, start)
    broken = planted(kernel, FAULTS[fault])
    assert broken != kernel
    right = carried_out(kernel, given, start)

    def is_caught(seed: int) -> bool:
        try:
            return not np.array_equal(carried_out(broken, given, start, seed), right)
        except (Hazard, IndexError, KeyError):
            return True

    assert any(map(is_caught, range(3)))
