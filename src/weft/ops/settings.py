"""What tells two settings apart: values that are part of a compiled version rather than its inputs.

Python holds 1, 1.0 and True for equal, and an object of a class without `__eq__` for the same
whatever its attributes are. A function may do one thing with one and another with the other, so a
setting is compared with what it has besides its equals: `exact`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Hashable, Iterator
from enum import Enum
from types import FunctionType, GetSetDescriptorType
from typing import Any, Final

import numpy as np

FOREIGN: Final = sys.stdlib_module_names | {"weft", "numpy"}
"""Packages whose functions and classes hold none of the user's values."""
_BY_KIND: Final = frozenset({int, bool, str, bytes, type(None), FunctionType, type})
"""Equal values of one of these classes are the same to a function."""
_DEEPEST: Final = 3
_MOST: Final = 1_000
"""How many items of one container are looked at."""


class Same:
    """An object that is compared by its identity."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is Same and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def exact(value: Any, depth: int = 0) -> Any:
    """What a setting has besides its equals: 1, 1.0 and True are not one setting, nor are 0.0 and
    -0.0, in tuples, sets and records neither; nor is an object that was changed since."""
    kind: Any = type(value)
    if kind in _BY_KIND:
        return kind
    if kind is tuple:
        return tuple([exact(each, depth) for each in value])
    if kind in (float, complex) or isinstance(value, np.generic):
        return kind, repr(value)
    if isinstance(value, tuple):
        return kind, tuple([exact(each, depth) for each in value])
    if isinstance(value, frozenset):
        return kind, frozenset([(each, exact(each, depth)) for each in value])
    if kind is slice:
        return kind, exact((value.start, value.stop, value.step))
    if _is_foreign(kind):
        return kind
    if dataclasses.is_dataclass(value) and kind.__eq__ is not object.__eq__:
        return kind, tuple([exact(each, depth) for each in _fields_compared(value)])
    held = attributes_inside(value)
    slots = _slots_inside(value)
    if (held is None and not slots) or depth >= _DEEPEST:
        return kind
    parts = [*(held or {}).items(), *slots.items()]
    return kind, tuple([(name, frozen(each, depth + 1)) for name, each in parts])


def _is_foreign(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in FOREIGN


def attributes_inside(value: Any) -> dict[str, Any] | None:
    """The attributes of a setting that may change while it equals itself: of an object of the
    user's that Python compares by its identity. None for any other."""
    kind: Any = type(value)
    if kind in _BY_KIND or kind.__hash__ is not object.__hash__ or isinstance(value, type | Enum):
        return None
    if _is_foreign(kind):
        return None
    spaces = [vars(base)["__dict__"] for base in kind.__mro__ if "__dict__" in vars(base)]
    if not spaces or type(spaces[0]) is not GetSetDescriptorType:
        return None  # it has none, or is asked for it, as modules are
    held: dict[str, Any] = spaces[0].__get__(value)
    return held


def _slots_inside(value: Any) -> dict[str, Any]:
    """The same for those that a class has in `__slots__`, as they are at this moment."""
    kind: Any = type(value)
    if kind.__hash__ is not object.__hash__ or isinstance(value, type | Enum) or _is_foreign(kind):
        return {}
    found = {}
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ()) if not _is_foreign(base) else ()
        for name in [slots] if isinstance(slots, str) else slots:
            if name[:2] != "__" and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def can_change(value: Any, depth: int = 0) -> bool:
    """Whether a setting may change while it equals itself."""
    return next(changing_parts(value, depth), None) is not None


def changing_parts(value: Any, depth: int = 0) -> Iterator[Any]:
    """The dicts, lists and sets that a setting is made of, as far as `exact` looks at them, and the
    objects with `__slots__`, of which nobody can keep what they have."""
    kind: Any = type(value)
    if kind in _BY_KIND or kind is float:
        return
    inside: Any = ()
    if kind in (list, dict, set):
        yield value
        inside = value.values() if kind is dict else value
    elif isinstance(value, tuple | frozenset):
        inside = value
    elif _is_foreign(kind):
        return
    elif dataclasses.is_dataclass(value) and kind.__eq__ is not object.__eq__:
        yield from _own_dict(value)
        inside = _fields_compared(value)
    elif depth < _DEEPEST:
        held = attributes_inside(value)
        slots = _slots_inside(value)
        if slots:
            yield value
        if held is not None:
            yield held
        inside, depth = [*(held or {}).values(), *slots.values()], depth + 1
    for each in inside if len(inside) <= _MOST else ():
        yield from changing_parts(each, depth)


def _fields_compared(record: Any) -> list[Any]:
    """The fields of a dataclass by which two are compared."""
    return [getattr(record, each.name) for each in dataclasses.fields(record) if each.compare]


def _own_dict(record: Any) -> list[Any]:
    """Where a dataclass that can be assigned to keeps its fields."""
    return [vars(record)] if type(record).__hash__ is None and hasattr(record, "__dict__") else []


def frozen(value: Any, depth: int) -> Hashable:
    """An attribute of a setting as it is at this moment."""
    kind: Any = type(value)
    if kind in (list, set, dict) and (len(value) > _MOST or depth > _DEEPEST):
        return Same(value)
    if kind is list or isinstance(value, tuple):
        return kind, tuple([frozen(each, depth + 1) for each in value])
    if kind is set:
        return kind, frozenset([(each, exact(each, depth)) for each in value])
    if kind is dict:
        items = [(key, exact(key), frozen(each, depth + 1)) for key, each in value.items()]
        return kind, tuple(items)
    if kind.__hash__ is None and dataclasses.is_dataclass(value):
        return kind, tuple([frozen(each, depth + 1) for each in _fields_compared(value)])
    if isinstance(value, dict):
        return kind, frozen(dict(value), depth)
    if kind.__hash__ is None and type(getattr(value, "__dict__", None)) is dict:
        return kind, frozen(vars(value), depth + 1)  # a namespace
    if kind.__hash__ is None or kind.__eq__ is object.__eq__ or kind.__module__ in _BY_ELEMENT:
        return Same(value), exact(value, depth)
    try:
        hash(value)
    except TypeError:
        return Same(value)
    return value, exact(value, depth)


_BY_ELEMENT: Final = frozenset({"weft.ops.tensor"})
"""Where classes are from whose `==` is no answer."""
