"""Waiting for a device in a way that Ctrl-C ends.

What a device has begun cannot be stopped, and a call of the driver that waits lets Python do
nothing. So whoever waits asks again and again: without a pause at first, as the driver itself does,
and with pauses where it takes long. After Ctrl-C the device is still busy, and whatever comes next
(more work, memory given back, the end of the process) waits for it in the driver, where Python
cannot act; therefore a second Ctrl-C ends the process there and then, until somebody has waited to
the end.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Final

BUSY: Final = (
    "stopped waiting for the GPU, which cannot be stopped: it is still busy with what it was asked "
    "for; a second Ctrl-C ends the process"
)
_WITHOUT_PAUSE: Final = 0.01
"""Seconds."""
_PAUSE: Final = 0.001
"""Seconds between two looks: a read takes no longer by more than that."""
_HANDLERS: Final[list[Any]] = []
"""What Ctrl-C did before it was to end the process."""


def wait(is_done: Callable[[], bool], watch: Callable[[float], None] | None = None) -> None:
    """Return when a device is done; raise KeyboardInterrupt, with a sentence, after Ctrl-C. `watch`
    is told between pauses for how long it has been, and raises where waiting is in vain."""
    try:
        started = time.monotonic()
        while not is_done():
            waited = time.monotonic() - started
            if waited > _WITHOUT_PAUSE:
                time.sleep(_PAUSE)
                if watch is not None:
                    watch(waited)
    except KeyboardInterrupt:
        _end_by_the_next()
        raise KeyboardInterrupt(BUSY) from None
    _as_before()


def _end_by_the_next() -> None:
    """From now on Ctrl-C ends the process, whatever it does."""
    if threading.current_thread() is threading.main_thread() and not _HANDLERS:
        _HANDLERS.append(signal.signal(signal.SIGINT, signal.SIG_DFL))


def _as_before() -> None:
    """The device is not busy any more."""
    if _HANDLERS and threading.current_thread() is threading.main_thread():
        handler = _HANDLERS.pop()
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, handler)
