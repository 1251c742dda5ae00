"""Detection of leaked tracers: which traced values a function has stored outside, where, and by
which line.

When a traced function is over, nobody holds a tensor of its arena any more, unless the function has
stored one in an attribute, a container or a variable that outlives it. What is stored would be the
same value for ever, however often the compiled function runs.
"""

from __future__ import annotations

import dis
import gc
import inspect
from collections.abc import Callable, Iterator
from types import CellType, CodeType
from typing import Any

from weft.foundation.errors import UserError, a_type
from weft.foundation.lines import Place, shown
from weft.ops.graph.arena import Arena
from weft.ops.graph.node import Node
from weft.ops.state import Holder, attributes

_STORES = frozenset({"STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF", "STORE_NAME"})
_MODULE = "give it the module as an argument, whose state is carried back to the caller's"
_OTHER = "return the new value and store it after the call"


def check_leaks(arena: Arena, function: Callable[..., Any]) -> None:
    """Nobody holds a tensor of this arena, in which the function was traced."""
    leaks = _leaks(arena)
    # Cycles of what was just made hold them, as a rule: to look through the youngest objects takes
    # microseconds, through all of them as long as a large program has objects.
    for generation in range(3):
        if not leaks:
            return
        gc.collect(generation)
        leaks = _leaks(arena)
    if leaks:
        raise _leak(arena, leaks[0], function)


def _leaks(arena: Arena) -> list[Node]:
    return [node for node in (*arena.created, *arena.parameters) if node.is_owned]


def _leak(arena: Arena, node: Node, function: Callable[..., Any]) -> UserError:
    function = inspect.unwrap(function)
    tensor = node.owner() if node.owner is not None else None
    holder, name = _holder(tensor)
    inside = any(isinstance(x, Holder) for x in _owners(tensor))
    del tensor
    line = _stored_at(function, name) or shown(node.line) or _defined_at(function)
    made = shown(node.line)
    origin = f" made at {made}" if made else ""
    what = "its argument" if node.form is None else "a value"
    return UserError(
        f"[jit] {arena.name} keeps {what} of type {node.type}{origin} outside itself, in {holder}; "
        f"a traced function may change nothing outside: {_MODULE if inside else _OTHER}",
        "CapturedStateChanged",
        line,
    )


def _holder(tensor: Any) -> tuple[str, str]:
    """In what a tensor is kept, in words, and the name it has there."""
    for referrer in gc.get_referrers(tensor):
        if isinstance(referrer, dict):
            return _holding_dict(referrer, _name_in(referrer, tensor))
        attributes = _attributes_of(referrer)
        name = _name_in(attributes or {}, tensor)
        if name:
            return f"the attribute {name} of {a_type(referrer)}", name
        if isinstance(referrer, list | set | tuple):
            return a_type(referrer), ""
        if isinstance(referrer, CellType):
            return "a variable of an enclosing function", ""
    return "an attribute, a list or a global", ""


def _owners(tensor: Any) -> Iterator[Any]:
    """The objects that have a tensor as an attribute."""
    for referrer in gc.get_referrers(tensor):
        yield referrer
        if isinstance(referrer, dict):
            yield from (x for x in gc.get_referrers(referrer) if _attributes_of(x) is referrer)


def _holding_dict(holder: dict[Any, Any], name: str) -> tuple[str, str]:
    if "__builtins__" in holder:
        return f"the global {name}", name
    for owner in gc.get_referrers(holder):
        if _attributes_of(owner) is holder:
            return f"the attribute {name} of {a_type(owner)}", name
    return f"a dict, under {name}", ""


def _name_in(holder: dict[Any, Any], tensor: Any) -> str:
    for name, value in holder.items():
        if value is tensor:
            return str(name)
    return ""


def _attributes_of(value: Any) -> dict[str, Any] | None:
    if isinstance(value, Holder):
        return attributes(value)
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def _stored_at(function: Callable[..., Any], name: str) -> str:
    """The line of a function that stores something under a name; empty where there is none."""
    code = getattr(function, "__code__", None)
    if not name or code is None:
        return ""
    for inner in _codes(code):
        number = inner.co_firstlineno
        for instruction in dis.get_instructions(inner):
            number = instruction.starts_line or number
            if instruction.opname in _STORES and instruction.argval == name:
                return str(Place(inner.co_filename, number))
    return ""


def _defined_at(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    return str(Place(code.co_filename, code.co_firstlineno)) if code is not None else ""


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
