"""Work in this process that is given up when it takes too long."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class GivenUp(BaseException):
    """The time was over. No `Exception`: what is interrupted may take those for failures of its
    own and go on."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `GivenUp` in the block when that many seconds have passed, as soon as it executes
    Python. Only in the main thread, and not one inside the other."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise GivenUp(f"given up after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
