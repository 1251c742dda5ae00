"""Fused stages on a GPU with all rows in registers: how its warps slide over them.

A warp walks down a strip of rows. Every lane has some neighbouring columns of each part, as many as
a vector has, and of each stage the rows that somebody still reads; what lies further along a row
comes from the lanes behind. The lanes of one part stand where those of its readers do, or before
them, so that nothing is read from the lanes before. The last lanes know too little of their
neighbours to make results: they are the *halo*, which the next warp computes again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final

from weft.region.forms.sliding import Limits, Sliding, find_sliding
from weft.region.ir import Kernel, Read, Tensor

LANES: Final = 32
VECTORS: Final = (4, 2, 1)
"""Columns that a lane may have."""
LIMITS: Final = Limits(rows=16, taps=32)
"""What registers hold."""
MOST_HELD: Final = 144
"""Registers of rows of a thread, at most; others hold places, and what is on its way."""
_BESIDE: Final = 24
_REGISTER: Final = 4
"""Registers beside rows of a thread, about, and bytes of a register."""


class Slide(Sliding):
    """A kernel with stages as warps carry it out."""

    def shifts(self, vector: int) -> tuple[int, ...]:
        """How far the first column of every part lies from that of the results. Those that read
        memory begin at whole vectors."""
        found = [0] * len(self.columns)
        for number in range(len(self.columns) - 2, -1, -1):
            first = min(found[e.reader] + e.low for e in self.edges if e.stage == number)
            found[number] = first // vector * vector if self.loading[number] else first
        return tuple(found)

    @cached_property
    def _last(self) -> tuple[int, ...]:
        """How far the last column that is needed of every part lies from that of the results."""
        found = [0] * len(self.columns)
        for number in range(len(self.columns) - 2, -1, -1):
            own = (edge for edge in self.edges if edge.stage == number)
            found[number] = max(found[edge.reader] + edge.high for edge in own)
        return tuple(found)

    def width(self, vector: int) -> int:
        """Columns of the results that a warp makes, in whole vectors; none where it reads too far
        along a row."""
        ends = zip(self._last, self.shifts(vector), strict=True)
        # The lanes at the end lack what lies behind the warp: the part that reaches furthest beyond
        # its own first column says how many.
        left = LANES * vector - max(last - shift for last, shift in ends)
        return max(0, left // vector * vector)

    def exchanges(self, vector: int) -> int:
        """Values that a lane takes from others in every step."""
        shifts, found = self.shifts(vector), set()
        for edge in self.edges:
            first = shifts[edge.reader] - shifts[edge.stage]
            # For its `vector` columns a lane needs these, counted from its own first: those below
            # `vector` it has itself, whoever else asks for the others gets them with it.
            for column in range(first + edge.low, first + edge.high + vector):
                if column >= vector:
                    found.add((edge.reader, edge.stage, edge.row, column))
        return len(found)

    def registers(self, vector: int) -> int:
        """About how many a thread has."""
        rings = zip(self.kernel.stages, self.rings, strict=True)
        held = sum(ring.depth * -(-s.local.dtype.storage_bytes // _REGISTER) for s, ring in rings)
        return _BESIDE + vector * held

    def vectors(self) -> tuple[int, ...]:
        """The columns of a lane for which registers hold all rows, and at most half of the lanes
        are halo."""
        widest = max(
            let.dtype.storage_bytes for let in self.kernel.every_let() if isinstance(let.expr, Read)
        )
        return tuple(
            count
            for count in VECTORS
            if self.registers(count) <= MOST_HELD + _BESIDE
            and 2 * self.width(count) >= LANES * count
            and count * widest <= 4 * _REGISTER
        )


def find_slide(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Slide | str:
    """How warps carry out a kernel with stages, or why they cannot."""
    sliding = find_sliding(kernel, tensors, LIMITS)
    if isinstance(sliding, str):
        return sliding
    found = Slide(sliding.kernel, sliding.copies, sliding.form, sliding.columns, sliding.edges)
    if not found.vectors():
        return "registers do not hold its rows, or rows reach too far to the side"
    return found
