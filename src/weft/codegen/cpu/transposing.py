"""Vectors turned: of some rows, a vector for every lane of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from weft.codegen.cpu.code import Code, Val

_LANES_OF_16_BYTES: Final = {"float": 4, "double": 2, "i64": 2, "i32": 4, "i16": 8, "i8": 16}


def transposed(code: Code, rows: list[Val]) -> list[Val]:
    """A vector for every lane of some rows, whose number is a power of two. Halves are
    interleaved inside of 16 bytes until every lane is where it belongs, and then those are
    dealt out: steps that machines have instructions for, and that LLVM finds at once. Rows that
    are several times as long as there are rows are turned in stretches, all of them by the same
    instructions."""
    count, lanes = len(rows), rows[0].lanes
    inner = min(count, _LANES_OF_16_BYTES.get(rows[0].scalar, count))
    groups = [_zip_rows(code, rows[at : at + inner]) for at in range(0, count, inner)]
    dealt = [_deal_chunks(code, list(chunks), inner, count) for chunks in zip(*groups, strict=True)]
    rows = [dealt[n % inner][n // inner] for n in range(count)]
    if lanes == count:
        return rows
    return [_part(code, rows[n % count], n // count * count, count) for n in range(lanes)]


def _zip_rows(code: Code, rows: list[Val]) -> list[Val]:
    """Rows turned in stretches of as many lanes as there are rows."""
    count = len(rows)
    for _ in range(count.bit_length() - 1):
        pairs = zip(rows[: count // 2], rows[count // 2 :], strict=True)
        rows = [half for a, b in pairs for half in _interleave(code, a, b, count)]
    return rows


def _deal_chunks(code: Code, rows: list[Val], chunk: int, stretch: int) -> list[Val]:
    """Rows turned in stretches, chunks of lanes at a time."""
    if len(rows) == 1:
        return rows
    every = range(0, stretch, chunk)
    sides = []
    for first in (0, 1):
        taken = [lane for start in every[first::2] for lane in range(start, start + chunk)]
        pairs = zip(rows[::2], rows[1::2], strict=True)
        some = [_of_stretches(code, a, b, (taken, taken), stretch) for a, b in pairs]
        sides.append(_deal_chunks(code, some, chunk, stretch))
    return [row for pair in zip(*sides, strict=True) for row in pair]


def _of_stretches(
    code: Code, a: Val, b: Val, taken: tuple[Sequence[int], Sequence[int]], stretch: int
) -> Val:
    """Of every stretch of two vectors some lanes of the first, and then of the second."""
    lanes = [
        start + lane
        for at in range(0, a.lanes, stretch)
        for start, side in zip((at, a.lanes + at), taken, strict=True)
        for lane in side
    ]
    mask = ", ".join(f"i32 {lane}" for lane in lanes)
    text = f"shufflevector {a}, {b}, <{a.lanes} x i32> <{mask}>"
    return code.assign(text, a.scalar, a.lanes)


def _part(code: Code, value: Val, first: int, lanes: int) -> Val:
    """Some neighbouring lanes of a vector."""
    mask = ", ".join(f"i32 {lane}" for lane in range(first, first + lanes))
    text = f"shufflevector {value}, {value.type} poison, <{lanes} x i32> <{mask}>"
    return code.assign(text, value.scalar, lanes)


def _interleave(code: Code, a: Val, b: Val, stretch: int) -> list[Val]:
    halves = []
    for start in (0, stretch // 2):
        parts = (range(n + start, n + start + stretch // 2) for n in range(0, a.lanes, stretch))
        lanes = [lane for part in parts for lane in part]
        mask = ", ".join(f"i32 {lane}, i32 {a.lanes + lane}" for lane in lanes)
        text = f"shufflevector {a}, {b}, <{a.lanes} x i32> <{mask}>"
        halves.append(code.assign(text, a.scalar, a.lanes))
    return halves
