"""The cost model of fused stages on a GPU, with their rows in shared memory.

A unit has some blocks at once, as many as its shared memory has room for. A step of all of them
takes as long as the words that they take from rings, beside which they compute; a step of one waits
for what it is made of and for its threads to meet, which the others hide in part. The numbers were
fitted to 58 plans of five programs on an H200: these took between 0.76 and 1.43 times as long as
this says, half of them between 0.93 and 1.06.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, hypot, prod
from typing import Final

from weft.foundation.dtypes import F32
from weft.foundation.records import dataclass
from weft.region.forms.shared_slides import Cut, SharedSlide
from weft.region.forms.slides import LANES
from weft.region.slide_price import ACCESS, STEP, branches_of, strips_of
from weft.target.target import Target

_WORD: Final = 3.0
"""Instructions that a word of each lane takes the time of, from shared memory or to it. A unit that
moves 128 bytes in a cycle, in which it issues four, would take the time of four: the processor's
clock is above that of its rates."""
_FUSED: Final = 0.4
"""Instructions of an operation: most are sums of products, two in one."""
_MEETING: Final = 140e-9
"""Seconds for which a block that meets computes nothing; rows that are read come meanwhile."""
_WAIT: Final = 0.85e-9
"""Seconds that a warp waits for each of its instructions."""
_BRANCH: Final = 40
"""Instructions of a function with code for odd numbers beside."""
_HELD: Final = 128
"""Registers of a thread, about: they hold the points of a step, and what these are made of."""
_RESERVED: Final = 1024
"""Bytes of shared memory that a block takes besides."""
_MOST_WRITTEN: Final = 6000
"""Operations of a step that are written out, at most, about: more is long to compile."""


@dataclass(frozen=True)
class SharedShape:
    """How a kernel is cut: its blocks, and rows of a strip."""

    cut: Cut
    rows: int


def shared_shape(slide: SharedSlide, operations: Sequence[float], target: Target) -> SharedShape:
    """The shape that takes the least time."""
    cuts = list(slide.cuts(target.limits.shared_bytes_per_block))
    written = sum(operations)
    short = [cut for cut in cuts if cut.vector * cut.rows * written <= _MOST_WRITTEN]
    few = min(cuts, key=lambda cut: cut.vector * cut.rows)
    blocks = [_Block.of(slide, operations, target, cut) for cut in short or [few]]
    found = ((block, rows) for block in blocks for rows in strips_of(slide))
    best, rows = min(found, key=lambda shape: shape[0].seconds(shape[1]))
    return SharedShape(best.cut, rows)


def shared_seconds(
    slide: SharedSlide, operations: Sequence[float], target: Target, shape: SharedShape
) -> float:
    """The time that blocks take to compute, given the operations of a point of every part."""
    return _Block.of(slide, operations, target, shape.cut).seconds(shape.rows)


@dataclass(frozen=True)
class _Part:
    """What a part takes in a step."""

    instructions: float
    """Seconds of a unit for a step of one block."""
    waiting: float
    """Seconds of a block for a step."""
    again: int
    """Rows of a strip that the one above it has too."""


@dataclass(frozen=True)
class _Block:
    """What blocks take that are cut so, whatever the strips."""

    cut: Cut
    height: int
    beside: int
    units: int
    room: int
    parts: tuple[_Part, ...]
    always: float
    """Seconds of a block for a step, whatever it computes."""
    warm_up: int

    @classmethod
    def of(
        cls,
        slide: SharedSlide,
        operations: Sequence[float],
        target: Target,
        cut: Cut,
    ) -> _Block:
        vector, step, columns = cut.vector, cut.rows, cut.columns
        limits, sizes, form = target.limits, slide.kernel.sizes, slide.form
        threads = slide.threads(vector, columns)
        depths = slide.depths(step)
        held = slide.bytes(vector, columns, depths) + _RESERVED
        room = min(
            limits.shared_bytes_per_unit // held,
            limits.warps_per_unit * LANES // threads,
            limits.registers_per_unit // (_HELD * threads),
        )
        rate = target.vector_rate(F32) / (2 * LANES * limits.units)
        parts = []
        spans = slide.spans(vector, columns)
        again = [ring.high - ring.low for ring in slide.rings] + [0]
        for number, part in enumerate(slide.kernel.parts):
            work = _FUSED * vector * step * operations[number] + STEP
            accesses, words = slide.lines(number, vector, step)
            work += accesses
            work += _BRANCH * vector * step * branches_of(part)
            ends = number == len(slide.rings)
            whole = part.sizes[slide.columns[number]] % vector == 0
            moves = (slide.loading[number] + ends) * step
            work += ACCESS * moves * (1 if whole else vector * vector)
            if not ends:
                words += step * vector
            warps = -(-spans[number].count // (vector * LANES))
            taken = warps * hypot(work, _WORD * words) / rate
            parts.append(_Part(taken, _WAIT * work, again[number]))
        tiles = -(-sizes[slide.columns[-1]] // columns)
        meetings = slide.meetings(step, depths)
        return cls(
            cut,
            sizes[form.slide],
            prod(sizes[name] for name in form.batch) * tiles,
            limits.units,
            max(1, room),
            tuple(parts),
            _MEETING * (len(meetings.before) + meetings.at_the_end),
            form.warm_up,
        )

    def seconds(self, rows: int) -> float:
        """The time of strips of so many rows."""
        blocks = self.beside * -(-self.height // rows) / self.units
        full, left = divmod(blocks, self.room)
        if not full:
            # The time is that of a unit with the most blocks.
            left = ceil(left)
        whole = full * self._turn(rows, self.room)
        return whole + (self._turn(rows, left) if left else 0.0)

    def _turn(self, rows: int, together: float) -> float:
        """The time of a strip of each of the blocks that a unit has at once."""
        together = max(1.0, together)
        steps = -(-(rows + self.warm_up) // self.cut.rows)
        computing, waiting = 0.0, steps * self.always
        for part in self.parts:
            own = -(-(rows + part.again) // self.cut.rows)
            computing += own * part.instructions
            waiting += own * part.waiting
        return hypot(together * computing, waiting)
