"""Interruptible native calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from weft.foundation.progress import wait_for

_SECONDS_TO_START: Final = 5.0
"""That a thread may take to begin."""


def watched(
    call: Callable[[], int], stop: Callable[[bool], None], what: str, estimate: float
) -> int:
    """What a long call answers, made by another thread: Python acts on signals in its main thread
    alone, and not while that one is in a native call. This one tells a terminal what is running,
    and how many seconds it is estimated to take. After Ctrl-C `stop` is told, and told that it
    is urgent after a second one; the exception comes out when the call has ended, for its memory
    is given back then. The thread is not joined: in Python before 3.13 a join that was interrupted
    takes the thread for ended."""
    found: list[int] = []
    ended = threading.Event()

    def work() -> None:
        try:
            found.append(call())
        finally:
            ended.set()

    thread = threading.Thread(target=work, daemon=True)
    try:
        thread.start()
        wait_for(ended, what, estimate)
    except BaseException:
        # Nobody knows whether a start that was interrupted has been one.
        patience = None if thread.ident is not None else _SECONDS_TO_START
        try:
            stop(False)
            ended.wait(patience)
        except BaseException:
            stop(True)
            ended.wait(patience)
            raise
        raise
    return found[0]
