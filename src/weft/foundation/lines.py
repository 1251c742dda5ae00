"""Which line of the user's code an instruction comes from.

Recording must cost next to nothing, since every captured instruction does it: a `Line` keeps the
code object and the position in its bytecode, and becomes a file and a number when it is shown.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeAlias

_PACKAGE = str(Path(__file__).parents[1]) + "/"
_INSIDE: dict[CodeType, bool] = {}
"""Whether a function is Weft's own, for every function seen so far."""

_PROCESS = {"has a user": True}
"""Whether lines outside Weft are a user's; those around the command line are not."""

Line: TypeAlias = tuple[CodeType, int]
"""A place in the user's code: the code object and the offset of an instruction in it."""


def is_inside(frame: FrameType) -> bool:
    """Whether the function of a frame is Weft's own. Methods that a dataclass is given come from no
    file: what they belong to says it."""
    code = frame.f_code
    found = _INSIDE.get(code)
    if found is None:
        home = frame.f_globals.get("__name__", "")
        made = code.co_filename == "<string>" and str(home).startswith("weft.")
        found = _INSIDE[code] = made or code.co_filename.startswith(_PACKAGE)
    return found


def user_line() -> Line | None:
    """The innermost line outside Weft; None where there is none."""
    frame: FrameType | None = sys._getframe(2) if _PROCESS["has a user"] else None
    while frame is not None:
        code = frame.f_code
        inside = _INSIDE.get(code)
        if inside is None:
            inside = is_inside(frame)
        if not inside:
            return (code, frame.f_lasti)
        frame = frame.f_back
    return None


@contextmanager
def without_user() -> Iterator[None]:
    """A command runs: what calls Weft is the library that reads its options."""
    before = _PROCESS["has a user"]
    _PROCESS["has a user"] = False
    try:
        yield
    finally:
        _PROCESS["has a user"] = before


def user_frame(depth: int) -> FrameType | None:
    """The innermost frame outside Weft, from the caller at this depth on; None where there is
    none."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and is_inside(frame):
        frame = frame.f_back
    return frame


def failing_line(error: BaseException) -> Line | None:
    """The innermost line outside Weft that an exception has come through so far; None where there
    is none."""
    found = None
    at = error.__traceback__
    while at is not None:
        if not is_inside(at.tb_frame):
            found = (at.tb_frame.f_code, at.tb_lasti)
        at = at.tb_next
    return found


@dataclass(frozen=True)
class Place:
    """A line as people read it."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.number}"


def place_of(line: Line | None) -> Place | None:
    """The file and the number of a line."""
    if line is None:
        return None
    code, offset = line
    number = code.co_firstlineno
    for start, end, found in code.co_lines():
        if start <= offset < end and found is not None:
            number = found
            break
    return Place(code.co_filename, number)


def shown(line: Line | None) -> str:
    """`file:number`; empty where it is not known."""
    return "" if line is None else _shown(line, line[0].co_filename)


@lru_cache(maxsize=4096)
def _shown(line: Line, _file: str) -> str:
    """Code objects of the same text are equal whatever file they come from: the file is part of
    what is remembered."""
    return str(place_of(line))
