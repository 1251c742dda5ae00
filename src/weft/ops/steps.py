"""Access paths in Python code: how one gets from one object to the next by variables, globals,
attributes, items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import reduce
from types import CodeType
from typing import Any, Final, NamedTuple
from weakref import ref

from weft.ops.settings import FOREIGN
from weft.ops.state import Holder, attributes

PLAIN: Final = (str, bytes, int, float, complex, type(None))
BROKEN_WAY: Final = (AttributeError, IndexError, TypeError, ValueError)
"""What a step raises where something of another kind is in the way now; an empty cell, too."""


class Step(NamedTuple):
    """One step of a way: `read(holder, key)` is what comes next."""

    read: Callable[[Any, Any], Any]
    key: Any
    text: str
    """How Python code writes it; with a dot or bracket in front, where the holder comes before."""


def written(way: Sequence[Step]) -> str:
    """A way as Python writes it."""
    return reduce(join_path, (step.text for step in way), "")


def names_in_code(code: CodeType) -> set[str]:
    """The globals and attributes that code names, with the functions written inside it."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(names_in_code, inner))


def attributes_held(holder: Any) -> dict[str, Any]:
    if isinstance(holder, Holder):
        return attributes(holder)
    try:
        found = object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def is_foreign(module: object) -> bool:
    return not isinstance(module, str) or module.partition(".")[0] in FOREIGN


def is_plain_key(key: object) -> bool:
    """Whether a key may be kept: it keeps nothing else alive."""
    if type(key) is tuple:
        return all(map(is_plain_key, key))
    return isinstance(key, (*PLAIN, Enum))


def item_step(read: Callable[[Any, Any], Any], key: Any) -> Step:
    return Step(read, key, f"[{key!r}]")


def read_member(space: Any, name: str) -> Any:
    return vars(space).get(name)


def read_variable(function: Any, index: int) -> Any:
    return function.__closure__[index].cell_contents


def read_global(function: Any, name: str) -> Any:
    return function.__globals__.get(name)


def read_referent(reference: Any, _: None) -> Any:
    return reference()


def step_to(known: Any, text: str = "") -> Step:
    """To a function or class that is known, whoever reaches it; it is not kept alive."""
    return Step(_read_known, ref(known), text)


def _read_known(_: Any, known: ref[Any]) -> Any:
    return known()


def read_class(holder: Any, _: None) -> Any:
    return type(holder)


def try_step(step: Step, holder: Any) -> Any:
    try:
        return step.read(holder, step.key)
    except BROKEN_WAY:
        return None


def join_path(name: str, text: str) -> str:
    """A way and one more step; what a called function names begins anew."""
    return name + text if not text or text[0] in ".[" else text
