"""The workspace of a kernel in the interpreter: global memory through which blocks pass on partial
sums.

Every word remembers which warp of which block wrote it and which read it last, and when by that
warp's clock. Whoever comes next must have learned of that: from a counter, which hands on what
those knew who passed it, and from the meetings of its own block.
"""

from __future__ import annotations

from dataclasses import field
from typing import Final

import numpy as np

from weft.codegen.gpu import ir
from weft.codegen.gpu.interp.memory import POISON, Array
from weft.codegen.gpu.interp.races import Hazard
from weft.foundation.records import dataclass

_NOBODY: Final = -1
Knowledge = dict[int, Array]
"""By block, how far the clocks of its warps have been seen."""


@dataclass(frozen=True)
class Visitor:
    """A warp that comes to the workspace, and what it knows, of itself its own clock."""

    block: int
    warp: int
    known: Knowledge

    @property
    def clock(self) -> int:
        return int(self.known[self.block][self.warp])


class _Visits:
    """Who came last to each word, and when."""

    def __init__(self, words: int) -> None:
        self.block = np.full(words, _NOBODY, np.int64)
        self.warp = np.zeros(words, np.int64)
        self.clock = np.zeros(words, np.int64)

    def note(self, places: Array, visitor: Visitor) -> None:
        self.block[places], self.warp[places] = visitor.block, visitor.warp
        self.clock[places] = visitor.clock

    def are_known(self, places: Array, visitor: Visitor) -> bool:
        """Whether a warp knows of all the last visits to some words."""
        return all(
            self._known_from(int(block), places, visitor)
            for block in np.unique(self.block[places])
            if block != _NOBODY
        )

    def _known_from(self, block: int, places: Array, visitor: Visitor) -> bool:
        there = places[self.block[places] == block]
        seen = visitor.known.get(block)
        return seen is not None and bool((self.clock[there] <= seen[self.warp[there]]).all())


@dataclass
class Counter:
    """A number, and what those knew who changed it."""

    value: int = 0
    known: Knowledge = field(default_factory=dict)


class Workspace:
    """The counters and words of one launch."""

    def __init__(self, frame: ir.Workspace) -> None:
        self.counters = [Counter() for _ in range(frame.counters)]
        self.words = np.full(4 * frame.words, POISON, np.uint8).view(np.uint32)
        self._written, self._read = _Visits(frame.words), _Visits(frame.words)

    def counter(self, number: int) -> Counter:
        if not 0 <= number < len(self.counters):
            raise Hazard(f"there is no counter {number} of {len(self.counters)}")
        return self.counters[number]

    def keep(self, places: Array, words: Array, visitor: Visitor) -> None:
        """Words that a warp writes."""
        self._check(places)
        # Whoever writes must know of the last write and of the last read; who reads only of the
        # write.
        if not all(visits.are_known(places, visitor) for visits in (self._written, self._read)):
            raise Hazard("a sum overwrites words of the workspace that another block may still use")
        self._written.note(places, visitor)
        self.words[places] = words

    def take(self, places: Array, visitor: Visitor) -> Array:
        """Words that a warp reads."""
        self._check(places)
        missing = (self._written.block[places] == _NOBODY).any()
        if missing or not self._written.are_known(places, visitor):
            raise Hazard("a sum is read from the workspace before its block has handed it on")
        self._read.note(places, visitor)
        found: Array = self.words[places]
        return found

    def _check(self, places: Array) -> None:
        if places.min() < 0 or places.max() >= self.words.size:
            raise Hazard(f"word {int(places.max())} of a workspace of {self.words.size} is used")

    def finish(self) -> None:
        """The next launch finds the counters as this one leaves them."""
        if any(counter.value for counter in self.counters):
            raise Hazard("a counter of the workspace is not zero when the kernel ends")
