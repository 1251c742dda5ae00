"""Results that a program keeps from run to run on a GPU (`runtime.kept_results`).

When the same holder comes for the second time in a row, what is made of its inputs alone moves to
memory of its own, and runs that come after leave out the steps that make it, as long as nothing can
have changed:

    another holder, or none                   all steps run
    a run has overwritten an input's memory   its block counts that; all steps run
    another library sees an input's memory    nothing of it is kept
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Final

from weft.foundation.errors import ResourceExceeded
from weft.runtime.cuda.stretches import Stretches
from weft.runtime.cuda.tensors import DeviceTensor
from weft.runtime.kept_results import NOTHING, Kept, kept_of

_SHARE: Final = 4
"""Of the memory that is free a program keeps at most one part in so many."""


class Keeping:
    """What one program keeps, and for whom."""

    def __init__(self, stretches: Stretches, donated: Collection[int]) -> None:
        self.stretches, self.donated = stretches, donated
        self.kept: Kept | None = None
        """None as long as nobody has come twice."""
        self._holder: Callable[[], object] = _nobody
        self._writes: list[int] = []
        """How often the memory of each input had been overwritten."""
        self._changes = 0
        """And of any tensor, or been lent."""

    def forget(self) -> None:
        """The next run makes everything."""
        self._holder = _nobody

    def holds(self, holder: object, inputs: Sequence[DeviceTensor], data: Sequence[int]) -> bool:
        """Whether what is kept is what a run with these inputs would make. The holder is that of
        the run before."""
        if self.kept is None:
            lasting = set(range(len(inputs))).difference(data, self.donated)
            self._begin({number for number in lasting if inputs[number].writes is not None})
        if self._holder() is not holder:
            return False
        changes = self.stretches.resident.gpu.changes
        if changes != self._changes:
            # Any tensor of the device may have changed: only then the holder's are looked at one by
            # one.
            if self._count_writes(inputs, data) != self._writes:
                return False
            self._changes = changes
        return True

    def note(self, holder: object, inputs: Sequence[DeviceTensor], data: Sequence[int]) -> None:
        """A run with these inputs has made everything."""
        seen = self._count_writes(inputs, data)
        if seen is not None:
            self._writes, self._changes = seen, self.stretches.resident.gpu.changes
            self._holder = weakref.ref(holder)

    def _count_writes(
        self, inputs: Sequence[DeviceTensor], data: Sequence[int]
    ) -> list[int] | None:
        """How often the memory of each input was overwritten; None where somebody else may write
        into one, or nothing is kept."""
        if self.kept is None or not self.kept.steps or not set(data).isdisjoint(self.kept.inputs):
            return None
        seen = [inputs[number].writes for number in self.kept.inputs]
        return None if None in seen else [count for count in seen if count is not None]

    def _begin(self, lasting: Collection[int]) -> None:
        """Take memory for results, where there is plenty."""
        resident = self.stretches.resident
        self.kept = NOTHING
        found = kept_of(resident.artifact, lasting)
        if not found.steps:
            return
        free, _ = resident.gpu.pool.free_and_whole()
        # What is kept can be made again at any time: it must not be the reason why something else
        # finds no room.
        if _SHARE * sum(found.sizes.values()) > free:
            return
        with contextlib.suppress(ResourceExceeded):
            resident.keep(found.sizes)
            self.stretches.leave_out(found.steps)
            self.kept = found


def _nobody() -> None:
    """The holder of nothing."""
