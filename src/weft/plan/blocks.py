"""Cache blocking of matrix products on a CPU: the register tile, and the blocks of packed rows and
columns.

A block packs its rows of A and its columns of B by itself, so large blocks pack less; blocks that
are as large as the caches hold may be too few for all threads, or leave the last round of them half
empty, or have all wait for a thread whose core does something else as well. The sizes of blocks
never change a result: every sum is added up in the same order.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Final

from weft.foundation.records import dataclass
from weft.target.roofline import waves
from weft.target.target import Target

SCRATCH_BYTES: Final = 3 << 19
"""The most that packed operands and sums may take: they live on a thread's stack."""
STACK_BYTES: Final = 1 << 21
"""The same for a product of packed blocks, whose sums pass through the second cache."""
PANELS: Final = "panels"
"""Where a plan finds an operand that lies in panels (`CacheRead.where`): it is read as it is."""
TILES: Final = "tiles"
"""Where operands are that are packed as words for matrix tiles."""
TILE_EDGE: Final = 32
"""Rows and columns of the sums of the tiles that are held at a time."""
# In f32 rows take 256 KB and columns and sums 512 KB each: 1.25 MB, of which the second cache holds
# the operands.
BLOCK: Final = (256, 512, 256)
"""The most rows, columns and summed elements of a block: the packed rows and columns, in f32, stay
in the second cache, and the sums pass through it once for each step along k."""
# A panel of rows takes a few KB then, columns 512 KB and sums 1 MB, which `STACK_BYTES` has room
# for.
TALL_BLOCK: Final = 512
"""The most rows of a block of wide vectors, which packs and finishes a panel of rows at a time:
columns alone stay in the second cache, and the more rows share them, the less is packed."""
# Sums, a vector for each of the columns, and a number of A spread over one: 6 × 2 + 2 + 1 = 15 and
# 4 × 3 + 3 + 1 = 16 of 16 registers; 28, 27 and 29 of 32, all of 24 sums, which is more than the
# two units times the four or five cycles of a multiply-add.
REGISTER_BLOCKS: Final = {False: ((6, 2), (4, 3)), True: ((8, 3), (12, 2), (6, 4))}
"""Rows by vectors of register tiles for 16 vector registers, and for 32; the best one first."""
_NEXT_BEST: Final = 0.02
"""How much longer the second takes, and the third four times as much: they load more, or pack less
well."""
PACKING: Final = 2
"""Products, for each lane of a vector, that take as long as packing one element: memory does not
become faster with vectors."""
_ONE_SLOW_OF: Final = 4
"""Of so many units one may be half as fast: of 16 processors of a virtual machine, three to eight
shared a core with another."""
_MORE_CUTS: Final = 16
"""Cuts beyond the fewest that are priced: finer blocks spend more on packing than they even out."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a contraction, its axes flattened."""

    batch: int
    m: int
    n: int


def register_block(target: Target, lanes: int, m: int = 0, n: int = 0) -> tuple[int, int]:
    """Rows and columns of the largest product of packed panels that registers hold; of several, the
    one whose panels cover the sizes, if any are given, with the least to spare."""

    def covered(shape: tuple[int, int]) -> float:
        rows, columns = shape
        points = -(-m // rows) * rows * -(-n // columns) * columns
        return points * slower(target, lanes, shape)

    shapes = register_blocks(target, lanes)
    whole = [(rows, columns) for rows, columns in shapes if rows <= m and columns <= n]
    return min(whole or shapes, key=covered)


def register_blocks(target: Target, lanes: int) -> list[tuple[int, int]]:
    """Rows and columns of the register tiles for packed panels, the best one first."""
    shapes = REGISTER_BLOCKS[(target.limits.vector_registers or 16) >= 32]
    return [(rows, vectors * lanes) for rows, vectors in shapes]


def slower(target: Target, lanes: int, registers: tuple[int, int]) -> float:
    """How many times as long as the best register tile one takes for a product."""
    return 1 + _NEXT_BEST * register_blocks(target, lanes).index(registers) ** 2


def block_sizes(
    sizes: Sizes, most: tuple[int, int], registers: tuple[int, int], units: int, lanes: int
) -> tuple[int, int]:
    """Rows and columns of blocks: of all equal cuts, the one whose rounds of blocks, one for each
    unit, take the least time."""
    rows = _equal_cuts(sizes.m, most[0], registers[0], units)
    columns = _equal_cuts(sizes.n, most[1], registers[1], units)
    return min(product(rows, columns), key=lambda block: time_of(sizes, block, units, lanes))


def time_of(sizes: Sizes, block: tuple[int, int], units: int, lanes: int) -> float:
    """What the rounds of blocks take, in products."""
    rows, columns = block
    pieces = sizes.batch * -(-sizes.m // rows) * -(-sizes.n // columns)
    return rounds(pieces, units) * (rows * columns + PACKING * lanes * (rows + columns))


def rounds(pieces: int, units: int) -> float:
    """How many pieces the busiest units take one after the other: the mean of what it is where all
    are as fast, and where some do something else besides, such as the other thread of a core, and
    others take pieces of theirs."""
    # While the fast ones take `taken` pieces, a slow one takes half as many: the least number with
    # which all pieces are taken.
    slow, taken = units // _ONE_SLOW_OF, pieces // units
    while (units - slow) * taken + slow * (taken // 2) < pieces:
        taken += 1
    if slow and 2 * pieces > units:
        # Slow ones do not wait until the fast ones have something: one piece takes them two turns.
        # Twelve pieces of 768x768x768 (bf16) on 16 processors took 271 us, 48 of them 210; over 22
        # products in bf16, f32 and 8 bits those that follow this took 0.91 of the time.
        taken = max(taken, 2)
    return (waves(pieces, units) + taken) / 2


def _equal_cuts(size: int, most: int, step: int, units: int) -> list[int]:
    """Sizes of equal blocks: the largest, and those of a few cuts more where there are units."""
    least = math.ceil(size / most)
    counts = range(least, least + min(units, _MORE_CUTS))
    return list(dict.fromkeys(even_blocks(size, math.ceil(size / count), step) for count in counts))


def even_blocks(size: int, most: int, step: int) -> int:
    """The size of equal blocks, whole steps each but for the last."""
    count = math.ceil(size / most)
    return math.ceil(math.ceil(size / count) / step) * step


def without_rest(size: int, block: int, step: int) -> int:
    """The block, or one that is not much smaller and leaves no rest: what is left over has code of
    its own, which takes a compiler as long as all other blocks."""
    least = max(step, -(-block * 3 // 4))
    whole = (n for n in range(block - block % step, least - 1, -step) if size % n == 0)
    return next(whole, block)
