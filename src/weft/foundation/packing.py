"""Interval packing: offsets in one arena for blocks with different live ranges.

Two blocks may take the same bytes only if they do not live at the same moment. Finding the smallest
arena is NP-hard; large blocks first, each into the smallest gap that fits, stays within a few per
cent of the most that ever lives at once on the graphs of real models.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from weft.foundation.records import dataclass
from weft.foundation.whole_numbers import round_up


@dataclass(frozen=True)
class Block:
    """`size` bytes that live from moment `first` to moment `last`, both counted."""

    name: Hashable
    size: int
    first: int
    last: int

    def meets(self, other: Block) -> bool:
        """Whether both live at some moment."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Packing:
    """The offset of every block, and the size of the arena."""

    offsets: dict[Hashable, int]
    size: int


def pack(blocks: Sequence[Block], alignment: int = 1) -> Packing:
    """Offsets at multiples of `alignment`, so that blocks that meet do not overlap."""
    # Nothing is left to chance: equal programs have equal arenas, on disk too.
    order = sorted(blocks, key=lambda block: (-block.size, block.first, str(block.name)))
    placed = _Timeline(blocks)
    offsets: dict[Hashable, int] = {}
    end = 0
    for block in order:
        offset = _best_gap(sorted(placed.meeting(block)), block.size)
        offsets[block.name] = offset
        if block.size:
            behind = round_up(offset + block.size, alignment)
            placed.add(block, offset, behind)
            end = max(end, behind)
    return Packing(offsets, end)


class _Timeline:
    """Placed blocks by when they live, so that those which meet another one are found without
    looking at all: most lives are short."""

    PERIODS: Final = 256
    MANY: Final = 16
    """Periods of a long life: who has it meets most blocks, and all are looked at."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.start = min((block.first for block in blocks), default=0)
        end = max((block.last for block in blocks), default=0)
        self.length = max(1, -(-(end + 1 - self.start) // self.PERIODS))
        self.placed: list[tuple[int, int, int, int]] = []
        """When blocks live, first and last, and their bytes, from and to."""
        self.periods: dict[int, list[int]] = {}

    def _periods(self, block: Block) -> range:
        first, last = (moment - self.start for moment in (block.first, block.last))
        return range(first // self.length, last // self.length + 1)

    def add(self, block: Block, offset: int, behind: int) -> None:
        """Place a block; `behind` is where the next one can lie."""
        for period in self._periods(block):
            self.periods.setdefault(period, []).append(len(self.placed))
        self.placed.append((block.first, block.last, offset, behind))

    def meeting(self, block: Block) -> list[tuple[int, int]]:
        """The bytes, from and to, of the blocks that live while this one does."""
        periods, placed = self._periods(block), self.placed
        if len(periods) < self.MANY:
            near = set[int]().union(*(self.periods.get(period, ()) for period in periods))
            placed = [self.placed[number] for number in near]
        born, gone = block.first, block.last
        return [
            (at, behind) for first, last, at, behind in placed if first <= gone and born <= last
        ]


def peak(blocks: Iterable[Block]) -> int:
    """The most bytes that live at one moment: no arena can be smaller."""
    changes: dict[int, int] = {}
    for block in blocks:
        changes[block.first] = changes.get(block.first, 0) + block.size
        # `last` counts: the bytes are free from the moment after it.
        changes[block.last + 1] = changes.get(block.last + 1, 0) - block.size
    most = now = 0
    for moment in sorted(changes):
        now += changes[moment]
        most = max(most, now)
    return most


def _best_gap(taken: list[tuple[int, int]], size: int) -> int:
    """The start of the smallest gap that fits, or the end of everything."""
    best: tuple[int, int] | None = None
    start = 0
    for first, behind in taken:
        room = first - start
        if room >= size and (best is None or room < best[0]):
            best = (room, start)
        start = max(start, behind)
    return start if best is None else best[1]
