"""Tracebacks of user mistakes end at the user's line, without the frames of Weft below it.

Python adds to a traceback every frame that the exception leaves, so Weft's own can be taken out
only when it has arrived outside. A trace function of the user's frame sees that moment. It is put
there when the error is about to be raised, and is gone after the first thing that happens, be it
something else. Where somebody traces already (a debugger, a tool that measures coverage), and with
WEFT_DEBUG=1, tracebacks stay whole.
"""

from __future__ import annotations

import os
import sys
from types import FrameType, TracebackType
from typing import Any, TypeVar

from weft.foundation.lines import is_inside, user_frame

E = TypeVar("E", bound=Exception)


def ending_outside(error: E) -> E:
    """The error, whose traceback will end in the user's frame if it is raised at once."""
    frame = user_frame(2)
    if frame is not None and sys.gettrace() is None and os.environ.get("WEFT_DEBUG") != "1":
        _Arrival(frame).expect()
    return error


class _Arrival:
    """Waits in a frame for an exception."""

    __slots__ = ("_frame",)

    def __init__(self, frame: FrameType) -> None:
        self._frame = frame

    def expect(self) -> None:
        # The frame's own trace function hears of its exceptions; the one for all calls is set
        # because Python asks frames only while there is one.
        self._frame.f_trace = self._happens
        sys.settrace(self._caught_before)

    def _happens(self, frame: FrameType, event: str, detail: Any) -> None:
        self._end()
        if event == "exception":
            _leave_out_weft(detail[2])

    def _caught_before(self, frame: FrameType, event: str, detail: Any) -> None:
        """A function is called, so that the exception is no longer under way."""
        self._end()

    def _end(self) -> None:
        sys.settrace(None)
        self._frame.f_trace = None


def _leave_out_weft(traceback: TracebackType) -> None:
    """Take Weft's frames out of what follows the first one, which is the user's."""
    at = traceback
    while at.tb_next is not None:
        if is_inside(at.tb_next.tb_frame):
            at.tb_next = at.tb_next.tb_next
        else:
            at = at.tb_next
