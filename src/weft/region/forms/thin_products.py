"""Tiles for products with few rows or columns, of 32 and 64 bits.

Such a contraction does little but read its larger operand: a tile has many columns, or rows, of a
slice that is deep enough to be read in whole lines, and long sums are cut in parts until enough of
the operand is on its way.
"""

from __future__ import annotations

from typing import Final

FEW: Final = (4, 8, 16)
"""Rows of tiles for few rows, or columns."""
LONG_SIDE: Final = 128
"""Of the others."""
# With registers for four, the 512 tiles of a product in 16 parts run at once, where 396 did and the
# rest came in a second wave: f32 of 2 and 4 rows 31 -> 25.3 µs (H200,
# docs/performance/gpu-types.md).
RESIDENT: Final = 4
"""Tiles that a unit has registers for at a time."""
_RINGS: Final = 2
"""Of wide numbers, that a unit has shared memory for."""
_LINE: Final = 128
_ON_THE_WAY: Final = 1 << 16
"""Bytes of an operand that each unit asks for ahead of time, so that memory is never idle: with
latencies of a microsecond, 4.3e12 bytes a second take half as many at least."""


def is_thin(m: int, n: int) -> bool:
    """Whether one side is so short that the other is all that counts."""
    return min(m, n) <= FEW[-1] and max(m, n) >= LONG_SIDE


def thin_tile(m: int, n: int, word: int) -> tuple[int, int, int]:
    """Rows, columns and depth of a tile of numbers of `word` bytes."""
    # Eight lanes of a warp share its columns, four its rows.
    few = next(size for size in FEW if size >= min(m, n) and (m <= n or size >= 8))
    # A slice of either side has an element for each of 128 threads, at least.
    depth = max(_LINE // word, _LINE // few)
    return (few, LONG_SIDE, depth) if m <= n else (LONG_SIDE, few, depth)


def tiles_per_unit(m: int, n: int, word: int) -> int:
    """Tiles that a unit should have at a time: with registers for them, or rings of wide numbers,
    and slices enough."""
    if word > 4:
        return _RINGS
    slice_bytes = LONG_SIDE * thin_tile(m, n, word)[2] * word
    return max(1, min(RESIDENT, _ON_THE_WAY // slice_bytes))
