"""Pausing Python's garbage collector while many objects without cycles are made.

Reading and compiling make millions of small objects, nearly all of which go when nobody refers to
them. Python would look through those that are there for cycles again and again: as long as all of
the reading takes, or a tenth of the compiling, and more the more objects the rest of the process
has.
"""

from __future__ import annotations

import gc
from typing import Final

from weft.foundation.forks import new_reentrant_lock


class _Paused:
    """While some thread is inside, nobody looks for cycles. Any number of threads may be inside,
    and a thread may enter again; whoever had switched the search off finds it off afterwards."""

    def __init__(self) -> None:
        self._lock = new_reentrant_lock()
        self._inside = 0
        self._was_running = False
        self._others_froze = False
        """Whether somebody else was seen to keep objects out of the search. It is remembered, for
        Python counts them one by one, and who does so does it for the life of the process."""

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._was_running = gc.isenabled()
                gc.disable()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._was_running:
                self._others_froze = self._others_froze or gc.get_freeze_count() > 0
                if not self._others_froze:
                    # What was made meanwhile stays, as a rule. It becomes old at once: the next
                    # search among what is young would go through all of it.
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()


collector_paused: Final = _Paused()
