"""How much Python a call runs, counted: the same on a quiet machine and on a busy one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def python_calls(function: Callable[[], object]) -> int:
    """The calls of functions, written in Python or in C, that one call of this one makes once all
    is prepared."""
    for _ in range(3):
        function()
    count = 0

    def seen(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
