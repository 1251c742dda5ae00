"""Sorting by digits on the dialect's interpreter, against plain Python; its machine code; and that
planted faults are found."""

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
from weft.codegen.gpu.interp import Hazard, run
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.module import GpuModule
from weft.codegen.gpu.ir.scalar import THREAD, Lit, Name, wide
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.codegen.gpu.whole import templates as whole
from weft.foundation import dtypes
from weft.foundation.dtypes import BF16, F32, I1, SI8, SI32, SI64, UI32, DType, as_dtype
from weft.foundation.radix_sort import Digits, Moved, Starts, UpdatesMoved
from weft.foundation.whole_ops import Running, WholeOp
from weft.region.ir import Kernel, OpaqueCall, Output, Pattern, Tensor

Array = NDArray[Any]
TILE = 256
RESIDENT = [(1 << 20, 2048, 4), (1 << 21, 2048, 1), (50_001, 2048, 1), (1 << 21, 4096, 1)]
"""Updates, those of a tile, and tiles that a unit is to have at once."""
SORTED = [dtype for dtype in dtypes.ALL if not dtype.is_complex]


def made_by(op: WholeOp, operands: list[Array], shape: tuple[int, ...], kind: str) -> Array:
    """What an op's kernel makes, in memory that holds something else before."""
    result = np.full(shape, 99).astype(kind)
    return carried_out(kernel_of(op, operands, result), operands, result).reshape(shape)


def in_passes(
    x: Array, key_bits: int, bits: int, descending: bool = False, count: int = 0, tile: int = TILE
) -> Array:
    """Positions, or with no `count` pairs, after kernel upon kernel."""
    outer, length = x.shape
    elements = [x]
    for low in range(0, key_bits, bits):
        digit = (outer, length, tile, key_bits, low, min(bits, key_bits - low), descending)
        counted = Digits(*digit)
        elements = [x, *elements] if counted.reads_again else elements
        shape = (outer, counted.digits, counted.tiles)
        counts = made_by(counted, elements, shape, "i4")
        adding = Running("sum", outer * counted.digits, counted.tiles, 1)
        sums = made_by(adding, [counts], shape, "i4")
        kept = count if low + bits >= key_bits else 0
        result = ((outer, kept), "i8") if kept else ((outer, length, 2), "u4")
        moved = made_by(Moved(*digit, count=kept), [*elements, sums], *result)
        elements = [moved]
    return moved


def numbers(dtype: DType, shape: tuple[int, int], seed: int) -> Array:
    """Few different ones, with what is special about the dtype."""
    rng = np.random.default_rng(seed)
    low = 0 if not (dtype.is_float or dtype.is_signed) else -7
    x = rng.integers(low, 2 if dtype is I1 else 8, shape).astype(dtype.numpy)
    if dtype.is_float:
        x[:, ::7] = np.nan
        x[:, 1::7] = -x[:, 1::7] * np.zeros((), dtype.numpy)
    if dtype is not I1:
        x[:, 2::31], x[:, 3::31] = dtype.numpy.type(dtype.lowest), dtype.numpy.type(dtype.highest)
    return x


def expected(x: Array, descending: bool) -> list[list[int]]:
    """NaN after everything else, or before it; equal elements in their order."""
    found = []
    for row in x:
        exact = [float(e) if x.dtype.kind not in "iub" else int(e) for e in row]
        sign = -1 if descending else 1
        keys = [(sign, 0) if e != e else (0, sign * e) for e in exact]  # noqa: PLR0124 - NaN
        found.append(sorted(range(len(row)), key=keys.__getitem__))
    return found


KINDS = [
    *((dtype, number % 2 == 0) for number, dtype in enumerate(SORTED)),
    *((dtype, True) for dtype in (F32, BF16, SI32)),
]


@pytest.mark.parametrize(("dtype", "descending"), one_in(5, KINDS, unpack=True), ids=str)
def test_elements_of_every_dtype_are_sorted(dtype: DType, descending: bool) -> None:
    x = numbers(dtype, (1, 70), dtype.index)
    got = in_passes(x, dtype.bits, min(8, dtype.bits), descending, 70)
    assert got.tolist() == expected(x, descending)


@pytest.mark.parametrize("length", one_in(3, [1, 31, TILE - 1, TILE, TILE + 1, 3 * TILE]))
def test_rows_of_any_length_are_sorted(length: int) -> None:
    x = np.random.default_rng(length).integers(-3, 3, (2, length)).astype(np.int8)
    assert in_passes(x, 8, 8, count=length).tolist() == expected(x, False)


@pytest.mark.parametrize("count", [1, 199])
def test_the_first_are_kept(count: int) -> None:
    x = numbers(BF16, (2, 200), count)
    got = in_passes(x, 16, 8, True, count)
    assert got.tolist() == [row[:count] for row in expected(x, True)]


@pytest.mark.parametrize("tile", one_in(2, [512, 768, 4096]))
def test_threads_have_several_elements(tile: int) -> None:
    x = np.random.default_rng(tile).integers(0, 50, (1, tile + 700)).astype(np.uint8)
    assert in_passes(x, 8, 8, count=tile + 700, tile=tile).tolist() == expected(x, False)


@pytest.mark.parametrize(
    ("rows", "bits", "dtype"),
    one_in(
        4,
        [(1, 1, SI32), (2, 1, SI64), (33, 3, SI64), (33, 6, SI8), (100, 7, UI32), (120, 4, SI32)],
        unpack=True,
    ),
)
def test_places_are_sorted_by_the_bits_they_have(rows: int, bits: int, dtype: DType) -> None:
    """Pairs: the place, and the position."""
    places = np.random.default_rng(rows).integers(0, rows, (2, 270)).astype(dtype.numpy)
    pairs = in_passes(places, max(1, (rows - 1).bit_length()), bits)
    order = np.argsort(places, axis=1, kind="stable")
    assert (pairs[..., 1] == order).all()
    assert (pairs[..., 0] == np.take_along_axis(places, order, 1)).all()
    starts = made_by(Starts(2, rows, 270), [pairs], (2, rows + 1), "i4")
    want = [[int((row < place).sum()) for place in range(rows + 1)] for row in places]
    assert starts.tolist() == want


@pytest.mark.parametrize(
    ("rows", "count"), one_in(2, [(33_000, 50), (40, 1), (9, 31), (9, 33), (3, 5000)], unpack=True)
)
def test_starts_of_many_keys_and_few(rows: int, count: int) -> None:
    """By threads and by warps, where ranges of places are divided with and without a rest."""
    keys = np.sort(np.random.default_rng(count).integers(0, rows, (1, count)), axis=1)
    pairs = np.stack([keys, keys * 0], -1).astype("u4")
    starts = made_by(Starts(1, rows, count), [pairs], (1, rows + 1), "i4")
    assert starts[0].tolist() == np.searchsorted(keys[0], np.arange(rows + 1)).tolist()


def test_columns_have_places_of_their_own() -> None:
    """A key is a place and a column; a place beyond the last one still has a key."""
    places = np.random.default_rng(1).integers(0, 20, (2, 30, 9)).astype(np.int32)
    digit = (2, 270, TILE, 8, 0, 8, False, 9)
    counts = made_by(Digits(*digit), [places], (2, 256, 2), "i4")
    sums = np.cumsum(counts, axis=2).astype("i4")
    pairs = made_by(Moved(*digit), [places, sums], (2, 270, 2), "u4")
    flat = (places * 9 + np.arange(9)).reshape(2, 270)
    order = np.argsort(flat, axis=1, kind="stable")
    assert (pairs[..., 1] == order).all()
    assert (pairs[..., 0] == np.take_along_axis(flat, order, 1)).all()
    beyond = made_by(Digits(*digit), [places + 1000], (2, 256, 2), "i4")
    assert beyond.sum() == places.size


def test_a_tile_of_one_digit_keeps_its_order() -> None:
    """Ranks go through every warp."""
    x = np.zeros((1, 5000), np.uint8)
    assert in_passes(x, 8, 8, count=5000, tile=4096).tolist() == [list(range(5000))]


def refused(op: Digits) -> str:
    out = Output("out", "", ())
    kernel = Kernel("o", Pattern.OPAQUE, (), (), (out,), opaque=OpaqueCall(op, ("in0",), (0,)))
    tensors = {"in0": Tensor("in0", F32, (1, 100)), "out": Tensor("out", SI32, (1, 256, 1))}
    (finding,) = whole.accepts(op, kernel, tensors)
    return finding.why


def test_what_no_block_can_do_is_refused() -> None:
    assert refused(Digits(1, 100, 8192, 32, 0, 8)) == (
        "a block does not sort tiles of 8192 elements"
    )
    assert refused(Digits(1, 100, 100, 32, 0, 8)) == "a block does not sort tiles of 100 elements"
    assert refused(Digits(1, 100, 256, 64, 30, 6)) == "a digit is cut by the end of 32 bits"
    assert refused(Digits(1, 100, 256, 32, 0, 9)) == "a block does not sort by digits of 9 bits"


# -- text, machine code, planted faults ------------------------------------------------------------


def examples(length: int, tile: int) -> dict[str, tuple[WholeOp, list[Array], Array]]:
    """Ops with operands and room for results."""
    rng = np.random.default_rng(3)
    x = rng.integers(0, 9, (1, length)).astype(np.float32)
    wide = rng.integers(0, 1 << 60, (1, length))
    tiles = -(-length // tile)
    pairs = np.stack([np.sort(rng.integers(0, 9, length)), np.arange(length)], -1).astype("u4")
    counts = Digits(1, length, tile, 32, 24, 8).evaluate(x.view("u4").repeat(2))
    sums = np.cumsum(counts.reshape(256, tiles), axis=1).astype("i4")
    return {
        "count": (Digits(1, length, tile, 32, 24, 8), [pairs], np.zeros((256, tiles), "i4")),
        "first": (Moved(1, length, tile, 32, 0, 8), [x, sums], np.zeros((length, 2), "u4")),
        "next": (Moved(1, length, tile, 32, 8, 8), [pairs, sums], np.zeros((length, 2), "u4")),
        "again": (
            Moved(1, length, tile, 64, 32, 8, True),
            [wide, pairs, sums],
            np.zeros((length, 2), "u4"),
        ),
        "last": (
            Moved(1, length, tile, 64, 56, 8, True, count=length),
            [pairs, sums],
            np.zeros(length, np.int64),
        ),
        "starts": (Starts(1, 9, length), [pairs], np.zeros(10, "i4")),
    }


@pytest.mark.parametrize("name", one_in(6, ["count", "first", "next", "again", "last", "starts"]))
def test_the_text_reads_back_and_the_code_is_sound(name: str) -> None:
    kernel = kernel_of(*examples(20_000, 4096)[name])
    module = GpuModule({kernel.name: kernel})
    assert parse_module(print_module(module)).kernels == module.kernels
    for arch in ("sm_80", "sm_90a"):
        assert compile_cuda(cuda(kernel), arch).report.findings == []


def reversed_keys(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, values.SortKey):
        return replace(statement, descending=not statement.descending)
    return statement


def fewer_bits(statement: ir.Stmt) -> ir.Stmt:
    """Lanes are taken for alike that are not."""
    return replace(statement, bits=3) if isinstance(statement, values.Alike) else statement


@pytest.mark.parametrize(("count", "tile", "resident"), one_in(2, RESIDENT, unpack=True))
def test_tiles_of_updates_that_fit_are_at_work_at_once(
    count: int, tile: int, resident: int
) -> None:
    op = UpdatesMoved(1, count, tile, 20, 12, 8)
    places, sums = np.zeros((1, count), "i4"), np.zeros((1, 256, op.tiles), "i4")
    result = np.zeros((1, count, 2), np.uint32)
    kernel = kernel_of(op, [places, places.astype("f4"), sums], result)
    assert kernel.resident == resident
    assert compile_cuda(cuda(kernel), "sm_90a").report.findings == []


FAULTS: dict[str, Change] = {
    "lanes do not meet": without(ir.SyncWarp),
    "warps do not meet": without(ir.SyncThreads),
    "the wrong order": reversed_keys,
    "too few bits": fewer_bits,
    "no exchange": lambda s: replace(s, mask=1) if isinstance(s, values.Shuffle) else s,
    "nothing added up": without(ir.Set),
    "numbers of other digits": lambda s: (
        replace(s, offset=s.offset + 1) if isinstance(s, ir.LoadElement) and s.buffer else s
    ),
}


@pytest.mark.parametrize("fault", one_in(2, FAULTS))
def test_planted_faults_are_caught(fault: str) -> None:
    x = np.random.default_rng(7).integers(0, 200, (1, 700)).astype(np.uint8)
    op = Digits(1, 700, 512, 8, 0, 8)
    sums = np.cumsum(op.evaluate(x).reshape(256, 2), axis=1).astype("i4")
    operands: list[Array] = [x, sums]
    result = np.zeros(700, np.int64)
    kernel = kernel_of(Moved(1, 700, 512, 8, 0, 8, count=700), operands, result)
    broken = planted(kernel, FAULTS[fault])
    assert broken != kernel
    right = carried_out(kernel, operands, result)

    def is_caught(seed: int) -> bool:
        try:
            return not np.array_equal(carried_out(broken, operands, result, seed), right)
        except (Hazard, IndexError):
            return True

    assert any(map(is_caught, range(3)))


COUNTING_FAULTS: dict[str, Change] = {
    "warps do not meet": without(ir.SyncThreads),
    "nothing counted": without(ir.CountShared),
    "nothing cleared": without(ir.StShared),
    "counted elsewhere": lambda s: (
        replace(s, target=replace(s.target, offset=s.target.offset + 4))
        if isinstance(s, ir.CountShared)
        else s
    ),
}


@pytest.mark.parametrize("fault", COUNTING_FAULTS)
def test_planted_faults_of_counting_are_caught(fault: str) -> None:
    x = np.random.default_rng(7).integers(0, 200, (1, 700)).astype(np.uint8)
    op, result = Digits(1, 700, 512, 8, 0, 8), np.zeros((256, 2), "i4")
    kernel = kernel_of(op, [x], result)
    broken = planted(kernel, COUNTING_FAULTS[fault])
    assert broken != kernel
    want = [[(x[0, :512] == n).sum(), (x[0, 512:] == n).sum()] for n in range(256)]
    assert carried_out(kernel, [x], result).reshape(256, 2).tolist() == want
    with pytest.raises((Hazard, AssertionError)):
        assert carried_out(broken, [x], result).reshape(256, 2).tolist() == want


PLACES = {
    "u4": "min((u32)4, (u32)v1)",
    "u8": "min((u64)4, (u64)v1)",
    "i4": "min((int)4, max((int)0, (int)v1))",
    "i1": "min((int)4, max((int)0, (int)v1))",
    "i8": "min((i64)4, max((i64)0, (i64)v1))",
}


@pytest.mark.parametrize("kind", PLACES)
def test_places_are_held_to_their_range_in_the_bits_they_have(kind: str) -> None:
    """A number that has more bits than it is compared in might come back as one inside."""
    dtype = as_dtype(np.dtype(kind))
    body = (
        ir.LoadElement("v1", 0, dtype, wide(THREAD), Lit(1)),
        values.PlaceOf("at", "v1", 5),
        values.IndexValue("v2", SI32, Name("at")),
        values.StoreElement(1, SI32, wide(THREAD), Lit(1), "v2"),
    )
    kernel = ir.Kernel("k", 1, 32, ("x", "y"), (), (), (), (), body)
    assert f"const int at = (int){PLACES[kind]};" in cuda(kernel)
    info = np.iinfo(kind)
    x, y = np.full(32, info.max, kind), np.zeros(32, "i4")
    x[:3] = info.min, 3, 5
    run(kernel, {"x": x, "y": y})
    assert y.tolist() == [0, 3, 4] + 29 * [4]
