"""A race detector: plain accesses of two warps to one byte of shared memory, one of them a write,
must be ordered by a synchronisation that both took part in.

Every warp has a clock, and knows how far it has seen the clocks of the others: a meeting brings all
who meet to the same knowledge, a barrier hands on what those who arrived knew to those who wait. An
access is ordered after an earlier one if its warp has seen the other's clock at that time. Lanes of
one warp are ordered by their meetings alone. What the copy engine writes is ordered by its
barriers, which the memory itself watches over.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.foundation.errors import InternalError

Array = NDArray[Any]
_NOBODY: Final = -1
_CLOCK: Final = np.int32
"""Most of what a block of many warps and much memory costs is room for times."""


class Hazard(InternalError):
    """A kernel does something whose result depends on timing, or waits for ever."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class Races:
    """The clocks of a block's warps, and when each byte was last touched by whom."""

    def __init__(self, warps: int, size: int) -> None:
        self.seen = np.eye(warps, dtype=_CLOCK)
        """What each warp (row) has seen of the clock of each other one."""
        self.writer = np.full(size, _NOBODY, np.int16)
        self.written = np.zeros(size, _CLOCK)
        self.read = np.zeros((warps, size), _CLOCK)
        self.counted = np.zeros((warps, size), _CLOCK)
        """When each warp last counted in each byte; such accesses need no order among them."""
        # The latest of all bytes, by warp: what a warp has seen of these it has seen of every byte,
        # and no byte has to be looked at.
        self.last_written = np.zeros(warps, _CLOCK)
        self.last_read = np.zeros(warps, _CLOCK)
        self.last_counted = np.zeros(warps, _CLOCK)
        self.is_counted_in = False
        self.last_after = np.full(warps, _NOBODY, _CLOCK)
        self.meetings = np.zeros(warps, _CLOCK)
        """How often the lanes of each warp have met."""
        self.lane = np.full(size, _NOBODY, np.int16)
        self.after = np.full(size, _NOBODY, _CLOCK)
        """The lane that wrote each byte, and after how many meetings of its warp."""

    # -- order -----------------------------------------------------------------------------------

    def release(self, warp: int) -> Array:
        """What a warp knows when it arrives somewhere; what it does next comes later."""
        # Vector clocks: a warp's own number grows at each hand-over, so that what it does
        # afterwards is told apart from what it handed on.
        known: Array = self.seen[warp].copy()
        self.seen[warp, warp] += 1
        return known

    def meet(self, warp: int) -> Array:
        """The same, where the lanes of the warp wait for one another too."""
        self.meetings[warp] += 1
        return self.release(warp)

    def acquire(self, warp: int, known: Array) -> None:
        """A warp goes on where others have arrived."""
        np.maximum(self.seen[warp], known, out=self.seen[warp])

    # -- accesses --------------------------------------------------------------------------------

    def reads(self, warp: int, places: Array, what: str, lanes: Array | None = None) -> None:
        """A warp reads bytes; whoever wrote them did so before. `lanes` says which lane reads each
        row of places, where each reads for itself."""
        where = places.reshape(-1)
        self._check_written(warp, where, f"{what} reads")
        if lanes is not None:
            self._check_lanes(warp, places, lanes, what)
        # Of a byte the last read of each warp is enough: whoever has seen that has seen all before
        # it.
        self.read[warp, where] = self.last_read[warp] = self.seen[warp, warp]

    def writes(self, warp: int, places: Array, what: str, lanes: Array | None = None) -> None:
        """A warp writes bytes; whoever wrote or read them did so before. Without `lanes` the warp
        writes them together."""
        self.check_free(warp, places, what)
        self.note_writes(warp, places, lanes)

    def note_writes(self, warp: int, places: Array, lanes: Array | None) -> None:
        """Bytes that a warp has written, or waited for: others meet it before they read them."""
        where = places.reshape(-1)
        self.writer[where] = warp
        self.written[where] = self.last_written[warp] = self.seen[warp, warp]
        self.lane[places] = _NOBODY if lanes is None else lanes[:, None]
        self.after[where] = self.last_after[warp] = self.meetings[warp]

    def counts(self, warp: int, places: Array) -> None:
        """A warp counts in bytes; whoever else wrote or read them did so before."""
        where = places.reshape(-1)
        self._check_stored(warp, where, "counting changes")
        self._check_read(warp, where, "counting")
        self.counted[warp, where] = self.last_counted[warp] = self.seen[warp, warp]
        self.is_counted_in = True

    def check_free(self, warp: int, places: Array, what: str) -> None:
        """Nobody but this warp may still be at these bytes."""
        where = places.reshape(-1)
        self._check_written(warp, where, f"{what} overwrites")
        self._check_read(warp, where, what)

    def _check_read(self, warp: int, where: Array, what: str) -> None:
        seen = self.seen[warp]
        # Only warps whose latest read of any byte this one has not seen can have a read of these
        # that it has not.
        for other in np.flatnonzero(self.last_read > seen).tolist():
            if other != warp and np.count_nonzero(self.read[other, where] > seen[other]):
                raise Hazard(
                    f"{what} of warp {warp} overwrites shared memory that warp {other} may still "
                    "read"
                )

    def check_unread(self, places: Array, known: Array | None) -> None:
        """Nobody may still read these bytes, as far as another block knows."""
        seen = np.zeros(len(self.read), _CLOCK) if known is None else known
        if np.count_nonzero(self.read[:, places.reshape(-1)] > seen[:, None]):
            raise Hazard("a copy of another block overwrites shared memory that is still read")

    def forget(self, places: Array) -> None:
        """The copy engine writes these bytes: nobody's plain store is there any more."""
        self.writer[places] = _NOBODY

    def _check_lanes(self, warp: int, places: Array, lanes: Array, what: str) -> None:
        # Lanes have met since the warp last wrote anything.
        if self.last_after[warp] != self.meetings[warp]:
            return
        strange = (self.writer[places] == warp) & (self.lane[places] != lanes[:, None])
        if np.count_nonzero(strange & (self.after[places] == self.meetings[warp])):
            raise Hazard(
                f"{what} reads shared memory that another lane of warp {warp} wrote, and they have "
                "not met since"
            )

    def _check_written(self, warp: int, where: Array, what: str) -> None:
        self._check_stored(warp, where, what)
        if not self.is_counted_in:
            return
        seen = self.seen[warp].copy()
        # Lanes of the warp itself have counted and met since.
        seen[warp] -= 1
        for other in np.flatnonzero(self.last_counted > seen).tolist():
            if (self.counted[other, where] > seen[other]).any():
                raise Hazard(
                    f"{what} shared memory that warp {other} counted in, and warp {warp} has not "
                    "met it since"
                )

    def _check_stored(self, warp: int, where: Array, what: str) -> None:
        # By warp, and behind them all for nobody: who has written since this warp saw it last.
        # One place more than warps: nobody, who is number -1, indexes the last one, which is false.
        ahead = np.zeros(len(self.seen) + 1, bool)
        np.greater(self.last_written, self.seen[warp], out=ahead[:-1])
        ahead[warp] = False
        if not np.count_nonzero(ahead):
            return
        writer = self.writer[where]
        late = ahead[writer]
        if not np.count_nonzero(late):
            return
        late &= self.written[where] > self.seen[warp][writer]
        if np.count_nonzero(late):
            other = int(writer[late][0])
            raise Hazard(
                f"{what} shared memory that warp {other} wrote, and warp {warp} has not met it "
                "since"
            )
