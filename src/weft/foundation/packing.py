"""Interval packing: byte ranges in one arena for blocks that live at different times.

Two blocks may take the same bytes only if they do not live at the same moment. Finding the smallest
arena is NP-hard; large blocks first, each into the smallest gap that fits, stays within a few per
cent of the most that ever lives at once on the graphs of real models.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

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
    order = sorted(blocks, key=lambda block: (-block.size, block.first, str(block.name)))
    placed = _Timeline(blocks)
    offsets: dict[Hashable, int] = {}
    end = 0
    for block in order:
        taken = sorted(placed.meeting(block))
        offset = _best_gap(taken, block.size, alignment)
        offsets[block.name] = offset
        if block.size:
            placed.add(offset, block)
            end = max(end, offset + block.size)
    return Packing(offsets, round_up(end, alignment))


class _Timeline:
    """Placed blocks by when they live, so that those which meet another one are found without
    looking at all: most lives are short."""

    PERIODS: Final = 256

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.start = min((block.first for block in blocks), default=0)
        end = max((block.last for block in blocks), default=0)
        self.length = max(1, -(-(end + 1 - self.start) // self.PERIODS))
        self.placed: list[tuple[int, Block]] = []
        self.periods: dict[int, list[int]] = {}

    def _periods(self, block: Block) -> range:
        first, last = (moment - self.start for moment in (block.first, block.last))
        return range(first // self.length, last // self.length + 1)

    def add(self, offset: int, block: Block) -> None:
        for period in self._periods(block):
            self.periods.setdefault(period, []).append(len(self.placed))
        self.placed.append((offset, block))

    def meeting(self, block: Block) -> list[tuple[int, int]]:
        """The bytes, from and to, of the blocks that live while this one does."""
        near = set[int]().union(*(self.periods.get(period, ()) for period in self._periods(block)))
        held = (self.placed[number] for number in near)
        return [(offset, offset + other.size) for offset, other in held if block.meets(other)]


def peak(blocks: Iterable[Block]) -> int:
    """The most bytes that live at one moment: no arena can be smaller."""
    changes: dict[int, int] = {}
    for block in blocks:
        changes[block.first] = changes.get(block.first, 0) + block.size
        changes[block.last + 1] = changes.get(block.last + 1, 0) - block.size
    most = now = 0
    for moment in sorted(changes):
        now += changes[moment]
        most = max(most, now)
    return most


def _best_gap(taken: list[tuple[int, int]], size: int, alignment: int) -> int:
    """The start of the smallest gap that fits, or the end of everything."""
    best: tuple[int, int] | None = None
    start = 0
    for first, end in taken:
        room = first - start
        if room >= size and (best is None or room < best[0]):
            best = (room, start)
        start = max(start, round_up(end, alignment))
    return start if best is None else best[1]
