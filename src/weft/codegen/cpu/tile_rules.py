"""Verifier rules for statements on AMX tiles: whole tiles, scratch that is large enough, and
operand types that the instruction multiplies.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.codegen.cpu import ir
from weft.codegen.cpu.tile_code import EDGE, STEP
from weft.foundation.dtypes import BF16, F32, SI8, SI32, UI8, UI32, DType


def tile_faults(
    stmt: ir.Tiles | ir.Turn, routine: ir.Routine, in_tile: bool
) -> Iterator[tuple[str, str]]:
    """Codes and reasons; where a panel is put is for the caller to see."""
    match stmt:
        case ir.Turn():
            numbers: tuple[int, ...] = (stmt.target, stmt.source)
            edges = (EDGE, EDGE)
        case ir.Tiles():
            numbers, edges = (stmt.sums, stmt.a, stmt.b), (stmt.rows, stmt.columns)
    first = len(routine.buffers)
    known = range(first, first + len(routine.scratch))
    if any(number not in known for number in numbers) or len({*numbers}) < len(numbers):
        yield "RoutineMemory", "tiles are in scratch, each in its own"
        return
    kinds, sizes = zip(*(routine.scratch[number - first] for number in numbers), strict=True)
    if in_tile:
        yield "RoutineLoop", "tiles stand inside no unrolled loop and no lanes"
    parts = stmt.parts if isinstance(stmt, ir.Tiles) else 1
    rows = edges[0] * stmt.words * _per_word(kinds[1]) * parts
    if isinstance(stmt, ir.Turn):
        wanted: tuple[int, ...] = (EDGE * stmt.words, rows)
        right = multiplied(kinds[1], kinds[0], F32 if kinds[1] is BF16 else SI32)
    else:
        wanted = (edges[0] * edges[1], rows, edges[1] * stmt.words * parts)
        right = multiplied(kinds[1], kinds[2], kinds[0])
    if parts != 1 and (parts != 2 or kinds[1] is not BF16):
        yield "RoutineType", "tiles are of whole numbers, or of numbers of bf16 in two parts"
    elif not right:
        yield "RoutineType", f"there are no tiles of {', '.join(map(str, kinds))}"
    elif any(edge % EDGE or edge < 1 for edge in edges) or stmt.words % STEP or stmt.words < 1:
        yield "RoutineLoop", f"tiles are whole {EDGE} x {EDGE}, {STEP} words long"
    for size, least in zip(sizes, wanted, strict=True):
        if size < least:
            yield "RoutineMemory", f"{least} elements are more than all {size}"


def _per_word(dtype: DType) -> int:
    return 4 // dtype.storage_bytes if dtype.storage_bytes in (1, 2) else 1


def multiplied(a: DType, b: DType, sums: DType) -> bool:
    """Whether there are products of rows of `a` with words `b` that are added up as `sums`."""
    if a is BF16:
        return (b, sums) == (UI32, F32)
    return a in (SI8, UI8) and {b, sums} <= {SI32, UI32}
