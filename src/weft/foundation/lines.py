"""Source locations: the line of the user's code that an instruction comes from.

Recording must cost next to nothing, since every captured instruction does it: a `Line` keeps the
code object, the position in its bytecode, the layer of the model and the function of Weft's that
were being called, and becomes a `Place`, a file and a number, when it is shown.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Self, TypeAlias

_PACKAGE = str(Path(__file__).parents[1]) + "/"
_OURS = (_PACKAGE, threading.__file__)
"""Weft's own files, and the one that every thread begins in: it is no line of a user."""
_INSIDE: dict[CodeType, bool] = {}
"""Whether a function is Weft's own, for every function seen so far."""

_READERS = frozenset({*sys.stdlib_module_names, "numpy", "torch", "jax"})
"""The modules that hand tensors of their callers on."""

_PROCESS = {"has a user": True}
"""Whether lines outside Weft are a user's; those around the command line are not."""


class Place(str):
    """A line as people read it, `gpt.py:31`, which knows the whole name of its file, and the layer
    that was called when it was written, `blocks[3].attn`. Two places are the same only where all of
    that is. The function that the line called, `cross_entropy`, is for sentences alone. What took
    the place of instructions of several lines has the others `beside` its own."""

    __slots__ = ("beside", "file", "function", "layer", "number")

    file: str
    number: int
    layer: str
    function: str
    beside: tuple[Place, ...]

    def __new__(cls, file: str, number: int, layer: str = "", function: str = "") -> Self:
        made = super().__new__(cls, f"{Path(file).name}:{number}")
        made.file, made.number, made.layer, made.function = file, number, layer, function
        made.beside = ()
        return made

    def __getnewargs__(self) -> tuple[str, int, str]:  # type: ignore[override]
        return self.file, self.number, self.layer

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Place):
            return self.__getnewargs__() == other.__getnewargs__()
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def with_beside(self, others: Iterable[str | None]) -> Place:
        """The same place, which stands for these lines too, and for what they stand for."""
        found = dict.fromkeys(self.beside)
        for other in others:
            if isinstance(other, Place):
                found.update(dict.fromkeys((other, *other.beside)))
        found.pop(self, None)
        if tuple(found) == self.beside:
            return self
        made = Place(self.file, self.number, self.layer, self.function)
        made.beside = tuple(Place(o.file, o.number, o.layer, o.function) for o in found)
        return made


Line: TypeAlias = tuple[CodeType, int, str, str] | Place
"""A place in the user's code: the code object, the offset of an instruction in it, the layer and
the function; or the place itself, where it is known already."""


class _Layer(threading.local):
    """What is being called in this thread: the layer of a model, and a functional op."""

    module: object = None
    path: str = ""
    """What the modules around it call it: `.blocks[3].attn`."""
    function: str = ""
    """The op that the user called, whichever it calls itself."""


LAYER = _Layer()


@contextmanager
def inside_layer(name: str) -> Iterator[None]:
    """Lines name a layer of this name, inside the one that is being called."""
    path = LAYER.path
    LAYER.path = f"{path}.{name}"
    try:
        yield
    finally:
        LAYER.path = path


def is_inside(frame: FrameType) -> bool:
    """Whether the function of a frame is Weft's own. Methods that a dataclass is given come from no
    file: what they belong to says it."""
    code = frame.f_code
    found = _INSIDE.get(code)
    if found is None:
        home = frame.f_globals.get("__name__", "")
        made = code.co_filename == "<string>" and str(home).startswith("weft.")
        found = _INSIDE[code] = made or code.co_filename.startswith(_OURS)
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
            return (code, frame.f_lasti, LAYER.path, LAYER.function)
        frame = frame.f_back
    return None


def reading_line() -> Line | None:
    """The innermost line outside Weft, and outside Python's modules and the array libraries that
    read tensors for their callers (`copy.deepcopy`, `torch.from_dlpack`)."""
    frame: FrameType | None = sys._getframe(1) if _PROCESS["has a user"] else None
    while frame is not None:
        home = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if home not in _READERS and not is_inside(frame):
            return (frame.f_code, frame.f_lasti, LAYER.path, LAYER.function)
        frame = frame.f_back
    return user_line()


@contextmanager
def without_user(has: bool = False) -> Iterator[None]:
    """A command runs: what calls Weft is the library that reads its options. It `has` a user again
    where it runs a script."""
    before = _PROCESS["has a user"]
    _PROCESS["has a user"] = has
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
            found = (at.tb_frame.f_code, at.tb_lasti, "", "")
        at = at.tb_next
    return found


def place_of(line: Line | None) -> Place | None:
    """The file and the number of a line."""
    if line is None or isinstance(line, Place):
        return line
    # Code objects of the same text are equal whatever file they come from: the file is part of
    # what is remembered.
    return _line_place(line, line[0].co_filename)


def shown(line: Line | None) -> str:
    """`file:number`; empty where it is not known."""
    return "" if line is None else place_of(line) or ""


@lru_cache(maxsize=1 << 14)
def _line_place(line: tuple[CodeType, int, str, str], file: str) -> Place:
    code, offset, layer, function = line
    number = code.co_firstlineno
    for start, end, found in code.co_lines():
        if start <= offset < end and found is not None:
            number = found
            break
    return Place(file, number, layer.removeprefix("."), function)
