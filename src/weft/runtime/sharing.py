"""How many threads a launch on a CPU is for, and how many pieces of it one takes at a time.

A thread more costs a launch a little under a tenth of a microsecond, which it takes to come and to
be waited for. Work of w is done soonest by so many threads that each has as much of it as all of
them cost: the root of w over that. Threads that sleep are woken where a program has enough to do
for as long as that takes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
WORTH_SHARING: Final = 4_000
"""Nanoseconds of work, as estimated, from which on several threads share a launch."""
_OF_A_THREAD: Final = 40
"""Nanoseconds that a thread more costs: half of what they were measured to be on 16 cores, since
short kernels take about twice as long as is estimated."""
_OF_A_GRAB: Final = 1_000
"""The least nanoseconds of work that are worth asking for again."""
_GRABS: Final = 4
"""How often a thread asks for pieces, for balance."""
WORTH_WAKING: Final = 30_000
"""Nanoseconds of work in a program for which threads are woken: the first comes after about ten
microseconds."""
CONSTANTS: Final = {
    "WORTH_SHARING": WORTH_SHARING,
    "OF_A_THREAD": _OF_A_THREAD,
    "OF_A_GRAB": _OF_A_GRAB,
    "GRABS": _GRABS,
}
"""What programs in C are shared out by."""


def shared_out(pieces: Array, work: Array, threads: int) -> Array:
    """For each launch, given its pieces and its nanoseconds of work: how many pieces are taken at a
    time, by how many threads, and whether those that sleep are woken for it."""
    best = np.sqrt(work / _OF_A_THREAD).astype(np.int64)
    wanted = np.clip(best, 1, np.minimum(threads, np.maximum(1, pieces)))
    # As many as are needed for as many rounds of pieces.
    wanted = -(-pieces // np.maximum(1, -(-pieces // wanted)))
    wanted = np.where(work >= WORTH_SHARING, np.maximum(1, wanted), 1)
    grabs = np.clip(work // _OF_A_GRAB, wanted, wanted * _GRABS)
    grab = np.maximum(1, np.where(wanted > 1, pieces // np.maximum(1, grabs), pieces))
    wakes = np.full_like(pieces, int(work[wanted > 1].sum()) >= WORTH_WAKING)
    return np.stack([grab, wanted, wakes], axis=1)
