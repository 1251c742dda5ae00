"""Fused stages on a GPU with all rows in shared memory: how its blocks slide over them.

A block walks down a strip of rows, some of them in a step. Each thread has a vector of neighbouring
columns of every part; a part has as many threads as it has columns that somebody reads, and each
stage a ring of rows in shared memory: those that are alive, and those that a step makes. Threads
meet after every stage, so that its readers find the rows of the step.

This takes what registers refuse: rows that live long, and readers that reach far to the side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Final

from weft.foundation.dtypes import DType
from weft.foundation.index_expr import axis, bounds
from weft.foundation.records import dataclass
from weft.foundation.whole_numbers import round_up
from weft.region.forms.slides import Slide, find_slide
from weft.region.forms.sliding import Limits, Sliding, find_sliding
from weft.region.ir import Kernel, Tensor
from weft.target.target import Target

VECTORS: Final = (4, 2, 1)
"""Columns that a thread may have."""
STEPS: Final = (4, 2, 1)
"""Rows that a step may make, where nobody says more."""
THREADS: Final = (64, 128, 256, 512)
"""Threads that a block may have, likewise."""
LIMITS: Final = Limits(rows=128, taps=64)
"""What is written out, and rows that any block has room for."""
MOST_THREADS: Final = 1024
"""Of a block."""
_ACCESS: Final = 16
_WORD: Final = 4
"""Bytes of the widest access, and of a word."""
_WARP: Final = 32


@dataclass(frozen=True)
class Span:
    """The columns of a part that a block makes: how far the first lies from that of the results,
    and how many there are, in whole vectors."""

    first: int
    count: int


@dataclass(frozen=True)
class Meetings:
    """The parts, by number, before which the threads of a block meet, and whether they do at the
    end of a step."""

    before: frozenset[int]
    at_the_end: bool


@dataclass(frozen=True)
class Cut:
    """How blocks are cut: columns of a thread, rows of a step, and columns of a block."""

    vector: int
    rows: int
    columns: int


class SharedSlide(Sliding):
    """A kernel with stages as blocks carry it out."""

    @property
    def vectors(self) -> tuple[int, ...]:
        """The columns that a thread may have: one access moves them."""
        widest = max(map(word_bytes, (stage.local.dtype for stage in self.kernel.stages)))
        return tuple(count for count in VECTORS if count * widest <= _ACCESS)

    def spans(self, vector: int, columns: int) -> tuple[Span, ...]:
        """The columns of every part in a block that makes so many of the results. All begin at
        whole vectors."""
        found = [Span(0, round_up(columns, vector))] * len(self.columns)
        for number in range(len(self.columns) - 2, -1, -1):
            own = [edge for edge in self.edges if edge.stage == number]
            first = min(found[edge.reader].first + edge.low for edge in own) // vector * vector
            ends = (found[e.reader].first + found[e.reader].count + e.high for e in own)
            found[number] = Span(first, round_up(max(ends) - first, vector))
        return tuple(found)

    def threads(self, vector: int, columns: int) -> int:
        """Threads of such a block, in whole warps."""
        widest = max(span.count for span in self.spans(vector, columns))
        return round_up(widest // vector, _WARP)

    def columns_for(self, vector: int, threads: int) -> int:
        """The columns of the results that a block of so many threads makes; none where they reach
        too far."""
        widest = max(span.count for span in self.spans(vector, 0))
        return max(0, threads * vector - widest)

    def cuts(self, most_bytes: int) -> Iterator[Cut]:
        """Blocks whose rings have room in so many bytes, and most of whose columns are results'."""
        widest = self.kernel.sizes[self.columns[-1]]
        for vector, rows, threads in product(self.vectors, STEPS, THREADS):
            columns = self.columns_for(vector, threads)
            used = 2 * columns >= threads * vector and columns < 2 * widest + vector
            if used and self.bytes(vector, columns, self.depths(rows)) <= most_bytes:
                yield Cut(vector, rows, columns)

    def depths(self, rows: int) -> list[int]:
        """Rows of each ring, at least, where a step makes so many: the first one is read while the
        last one is made."""
        return [ring.depth + rows - 1 for ring in self.rings]

    def bytes(self, vector: int, columns: int, depths: Sequence[int]) -> int:
        """Of the rings of a block."""
        spans = self.spans(vector, columns)
        return sum(
            depth * span.count * word_bytes(stage.local.dtype)
            for stage, span, depth in zip(self.kernel.stages, spans, depths, strict=False)
        )

    def meetings(self, rows: int, depths: Sequence[int]) -> Meetings:
        """Where the threads of a block meet in a step: before a part that reads what a stage has
        made since they met last; and at the end, if rows of a next step could take the place of
        rows that some thread still reads. A ring with room for the rows of two steps has none of
        those."""
        before, made = set(), set[int]()
        for number in range(len(self.columns)):
            if made & {edge.stage for edge in self.edges if edge.reader == number}:
                before.add(number)
                made.clear()
            made.add(number)
        at_the_end = any(
            depths[edge.stage] < self.rings[edge.stage].depth + 2 * rows - 1
            and not any(met > edge.reader or met <= edge.stage for met in before)
            for edge in self.edges
        )
        return Meetings(frozenset(before), at_the_end)

    def lines(self, part: int, vector: int, rows: int) -> tuple[int, int]:
        """What a thread takes from rings in a step of a part: accesses, and words of them."""
        if (part, vector, rows) not in self._fitting_sizes:
            self._fitting_sizes[part, vector, rows] = self._count_lines(part, vector, rows)
        return self._fitting_sizes[part, vector, rows]

    @cached_property
    def _fitting_sizes(self) -> dict[tuple[int, int, int], tuple[int, int]]:
        return {}

    def _count_lines(self, part: int, vector: int, rows: int) -> tuple[int, int]:
        accesses = words = 0
        for stage, reached in self._reach[part].items():
            size = word_bytes(self.kernel.stages[stage].local.dtype) // _WORD
            found = {
                (row + turn, place // vector)
                for row, low, high in reached
                for turn in range(rows)
                for place in range(low, high + vector)
            }
            accesses += len(found)
            words += len(found) * vector * size
        return accesses, words

    @cached_property
    def _reach(self) -> list[dict[int, set[tuple[int, int, int]]]]:
        """Of each part, by the stage that it reads: rows, and from where to where in each."""
        found: list[dict[int, set[tuple[int, int, int]]]] = [{} for _ in self.columns]
        for edge in self.edges:
            part = self.kernel.parts[edge.reader]
            own = self.rings[edge.reader].axis if edge.reader < len(self.rings) else self.form.slide
            low, high = bounds(edge.row - axis(own), part.ranges)
            rows = found[edge.reader].setdefault(edge.stage, set())
            rows.update((row, edge.low, edge.high) for row in range(low, high + 1))
        return found


def word_bytes(dtype: DType) -> int:
    """Bytes of an element of a ring: elements wait in whole words."""
    return max(_WORD, dtype.storage_bytes)


def find_shared_slide(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target
) -> SharedSlide | str:
    """How blocks carry out a kernel with stages, or why they cannot."""
    sliding = find_sliding(kernel, tensors, LIMITS)
    if isinstance(sliding, str):
        return sliding
    found = SharedSlide(
        sliding.kernel, sliding.copies, sliding.form, sliding.columns, sliding.edges
    )
    if next(found.cuts(target.limits.shared_bytes_per_block), None) is None:
        return "shared memory has no room for its rows, or rows reach too far to the side"
    return found


def find_place(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target
) -> Slide | SharedSlide | str:
    """Where the rows of a kernel with stages are kept: in registers if these hold them."""
    found = find_slide(kernel, tensors)
    return find_shared_slide(kernel, tensors, target) if isinstance(found, str) else found
