"""Source locations of torch graphs: which line of the model every op comes from."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import torch
from torch.fx import Node

from weft.foundation.lines import Place

_FRAME: Final = re.compile(r'File "(?!<eval_with_key>)([^"]+)", line (\d+)')
"""Files that torch writes for graphs inside of graphs have no lines that anybody could look up."""
_TORCH: Final = str(Path(torch.__file__).parent) + os.sep
_CALL: Final = (lambda function: function()).__code__


def place_of(node: Node) -> Place | None:
    """The line of the user's code that an op comes from: the innermost outside of torch's own
    layers, or inside of them where there is no other; None where torch does not know it."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return None
    own = [frame for frame in frames if not frame[0].startswith(_TORCH)]
    file, number = (own or frames)[-1]
    return Place(file, int(number))


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
