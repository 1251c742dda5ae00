"""Strips of overlapping rows on a GPU (depthwise convolutions, their gradients, pooling): a thread
takes several neighbours and reads common elements once.

    strip   `rows_per_thread` rows: along the innermost axis on which rows overlap first, then,
            where it takes all of them, along the next
    chunk   taps that are written out one after the other; the other reduced axes are loops
    lanes   vectors of columns side by side that a block has; `rows_per_block` are some strips of
            each
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from typing import Final

from weft.foundation.index_expr import Expr, axis, substitute
from weft.foundation.records import dataclass
from weft.plan.ir import Header, RowPlan
from weft.region.forms.overlap import Overlap, OverlappingRows, overlapping_rows
from weft.region.ir import Kernel, Let, Read
from weft.target.target import Target

_CHUNK: Final = 8
"""Taps that are written out, at most."""
# Windows of 7×7 over 56² images of 96 channels took 68.0 µs so, 65.7 with vectors of two and 28
# places a thread, 78.9 with vectors of four and seven (H200, gpu-steps.md).
_VECTOR: Final = 4
"""Elements of a vector: threads of twice as many wait longer for fewer of them."""
_FEW_TAPS: Final = 4
"""Taps of a chunk that are few."""
_HELD: Final = (32, 56)
"""Sums that a thread has, at most, of few taps and of many."""
_HELD_WHOLE: Final = 40
"""Sums up to which it takes all rows of a second axis."""
_THREADS: Final = 512
"""That a unit should have, at least."""
_MEMBERS: Final = 8
"""Threads that share the sums of a strip, at most."""
# A gradient of depthwise filters took 51.1 µs, 51.3 with 128 threads and 60.6 with 512 (H200,
# gpu-steps.md).
_TEAM: Final = 256
"""The same where neighbours in memory are points of its sums."""
_TURNS: Final = 4
"""Of each of them, at least."""
_BLOCK: Final = 128
_LARGEST_BLOCK: Final = 512
"""Threads of a block: about so many, and at most, where whole warps need more."""
_WARP: Final = 32
_FEWEST: Final = 8
"""Vectors of columns that a block has side by side, at least, if there are as many."""
_STAGED_BYTES: Final = 40 << 10
"""Of what all strips read alike, in shared memory."""
_BESIDE: Final = 48
"""Registers for places, and for elements on their way."""


@dataclass(frozen=True)
class Strip:
    """What a thread takes together: so many rows along each kept axis, outermost first, and the
    taps of a chunk."""

    of: OverlappingRows
    rows: Mapping[str, int]
    chunk: int

    @property
    def pair(self) -> Overlap:
        """The axes of neighbouring rows, and of the taps that are written out."""
        return self.of.pairs[0]

    def moved(self, rows: Mapping[str, int], tap: int) -> dict[str, Expr]:
        """Kept axes and the tap of one of its points, from the numbers of strip and chunk."""
        found = {name: axis(first(name)) * self.rows[name] + at for name, at in rows.items()}
        return found | {self.pair.reduced: axis(first(self.pair.reduced)) * self.chunk + tap}

    @property
    def points(self) -> list[dict[str, int]]:
        """Its rows, by how far they are from the first."""
        every = product(*(range(count) for count in self.rows.values()))
        return [dict(zip(self.rows, place, strict=True)) for place in every]

    def turns(self, kernel: Kernel) -> int:
        """Chunks of its sums."""
        return math.prod(kernel.sizes[name] for name in self.of.reduced) // self.chunk

    def vectors(self, kernel: Kernel, vector: int) -> int:
        """How many there are, for each vector of columns."""
        sizes = {name: kernel.sizes[name] for name in self.of.kept}
        for name, count in self.rows.items():
            sizes[name] = -(-sizes[name] // count)
        return math.prod(sizes.values()) // vector


def first(name: str) -> str:
    """The number of a strip, or of a chunk, as an axis."""
    return f"{name}.strip"


def strip_of(kernel: Kernel, rows_per_thread: int) -> Strip | None:
    """So many rows of a kernel together; None where no rows overlap, or not so many."""
    found = overlapping_rows(kernel)
    return None if found is None else _strip(kernel, found, rows_per_thread)


def _strip(kernel: Kernel, of: OverlappingRows, rows_per_thread: int) -> Strip | None:
    left, rows = rows_per_thread, dict[str, int]()
    for pair in of.pairs:
        rows[pair.kept] = min(left, kernel.sizes[pair.kept])
        left, rest = divmod(left, rows[pair.kept])
        if rest:
            return None
        if left == 1:
            ordered = {name: rows[name] for name in of.kept if name in rows}
            return Strip(of, ordered, _chunk(kernel.sizes[of.pairs[0].reduced]))
    return None


def _chunk(taps: int) -> int:
    """The most taps that go into all of them."""
    return next(count for count in range(min(taps, _CHUNK), 0, -1) if taps % count == 0)


def staged(kernel: Kernel, of: OverlappingRows, columns: int) -> list[Let]:
    """What of the filters waits in shared memory, of so many columns."""
    found, left = [], _STAGED_BYTES
    for let in of.shared:
        size = columns * math.prod(kernel.sizes[name] for name in of.reduced if name in let.axes)
        size *= max(4, let.dtype.storage_bytes)
        if size <= left:
            found.append(let)
            left -= size
    return found


def lanes_of(kernel: Kernel, of: OverlappingRows, plan: RowPlan) -> int:
    """Vectors of columns that a block has: a divisor of all, if one is of `rows_per_block` too."""
    vectors = kernel.sizes[of.columns] // plan.vector
    common = math.gcd(vectors, plan.rows_per_block)
    wide = math.gcd(_WARP, plan.rows_per_block)
    return common if common >= min(_FEWEST, vectors) else wide


def resident_strips(strip: Strip, plan: RowPlan, target: Target) -> int:
    """Blocks that the compiler is told to leave registers for: the sums, a chunk of filters, and
    what is beside them."""
    needed = (plan.rows_per_thread + strip.chunk) * plan.vector + _BESIDE
    threads = plan.threads * plan.rows_per_block
    return max(1, target.limits.registers_per_unit // (-(-needed // 8) * 8 * threads))


# -- choosing ------------------------------------------------------------------------------------


def strip_plan(kernel: Kernel, target: Target, header: Header) -> RowPlan | None:
    """The strips that are done first; None where rows do not overlap."""
    of = overlapping_rows(kernel)
    if of is None:
        return None
    vector = _access_columns(kernel, of)
    every = [_strip(kernel, of, count) for count in range(2, _HELD[1] // vector + 1)]
    strips = [strip for strip in every if strip is not None and _suits(kernel, strip, vector)]
    if not strips:
        return None
    wanted = target.limits.units * _THREADS

    def members(strip: Strip) -> int:
        if of.summed:
            turns = strip.turns(kernel) // _TURNS
            return min(_TEAM, max(_WARP, 1 << (max(1, turns).bit_length() - 1)))
        count, threads = 1, strip.vectors(kernel, vector)
        while threads * count < wanted and count < min(_MEMBERS, strip.turns(kernel) // 4):
            count *= 2
        return count

    def time(strip: Strip) -> float:
        threads = strip.vectors(kernel, vector) * members(strip)
        return _cycles(kernel, strip, vector) * max(1.0, wanted / max(1, threads))

    best = min(strips, key=time)
    vectors, team = kernel.sizes[of.columns] // vector, members(best)
    rows = 1 if of.summed else _rows_of_a_block(vectors, vector, team)
    return RowPlan(
        header,
        vector,
        rows,
        members(best),
        accumulators=1,
        keep_row=False,
        rows_per_thread=len(best.points),
        across=True,
    )


def _suits(kernel: Kernel, strip: Strip, vector: int) -> bool:
    """Whether a thread has registers for its sums."""
    held = len(strip.points) * vector
    if len(strip.rows) == 1:
        return held <= _HELD[strip.chunk > _FEW_TAPS]
    whole = all(rows == kernel.sizes[name] for name, rows in strip.rows.items())
    return whole and held <= _HELD_WHOLE


def _access_columns(kernel: Kernel, of: OverlappingRows) -> int:
    """Columns of one access; single ones where windows move along them."""
    if of.summed or of.moves_along_columns():
        return 1
    widest = max(let.dtype.storage_bytes for let in of.streams)
    vector = min(_VECTOR, max(1, 16 // widest))
    while vector > 1 and kernel.sizes[of.columns] % vector:
        vector //= 2
    return vector


def _cycles(kernel: Kernel, strip: Strip, vector: int) -> float:
    """Of a unit, for all strips: four schedulers multiply; each line of memory, and of what is
    shared, in words, takes a turn of those who load."""
    loads = 0.0
    for let in strip.of.streams:
        assert isinstance(let.expr, Read)
        moved = [strip.moved(p, tap) for p in strip.points for tap in range(strip.chunk)]
        places = {tuple(substitute(e, m) for e in let.expr.index) for m in moved}
        loads += len(places) * max(1.0, vector * let.dtype.storage_bytes / 4)
    shared = strip.chunk * vector * len(strip.of.shared)
    products = len(strip.points) * strip.chunk * vector / 4
    return strip.vectors(kernel, vector) * (products + loads + shared)


def _rows_of_a_block(vectors: int, vector: int, members: int) -> int:
    """Vectors of rows: some strips of as many columns as lie side by side, in whole warps. As many
    as a power of two leave no threads over; fewer than `_FEWEST` of the widest are too short."""
    lanes = math.gcd(vectors, _WARP)
    if lanes * vector < min(_FEWEST, vectors) * _VECTOR:
        divisors = [n for n in range(min(vectors, 2 * _WARP), 0, -1) if vectors % n == 0]
        least = min(vectors, _WARP) // 2
        lanes = next((n for n in divisors if max(1, least) <= n <= _WARP), divisors[0])
        lanes = lanes if lanes >= least else _WARP
    step = lanes * _WARP // math.gcd(lanes * members, _WARP)
    rows = step * max(1, _BLOCK // (step * members))
    return rows if rows * members <= _LARGEST_BLOCK else max(1, _BLOCK // members)
