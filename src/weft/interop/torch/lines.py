"""Source locations of torch graphs: which line of the model every op comes from."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any, Final

from torch.fx import Node

from weft.foundation.lines import Place

_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')
_CALL: Final = (lambda function: function()).__code__


def place_of(node: Node) -> Place | None:
    """The line of the user's code that an op comes from; None where torch does not know it."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    return Place(frames[-1][0], int(frames[-1][1])) if frames else None


def shown(node: Node) -> str:
    """The same as text: ` (model.py:12)`, or nothing."""
    place = place_of(node)
    return f" ({place})" if place else ""


def at_line(node: Node, function: Callable[[], Any]) -> Any:
    """What a function without arguments gives, called as if from the line of an op: instructions
    and errors take their line from the innermost frame outside Weft."""
    place = place_of(node)
    return function() if place is None else _caller(place.file, place.number)(function)


@lru_cache(maxsize=4096)
def _caller(file: str, number: int) -> FunctionType:
    code = _CALL.replace(co_filename=file, co_firstlineno=number, co_name="forward")
    return FunctionType(code, {"__name__": "torch model"})
