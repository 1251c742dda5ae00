"""Equality of static arguments: values that are part of a compiled version rather than its inputs.

Python holds 1, 1.0 and True for equal, and an object of a class without `__eq__` for the same
whatever its attributes are. A function may do one thing with one and another with the other, so a
setting is compared with what it has besides its equals: `exact`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
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
MOST_ITEMS: Final = 1_000
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
    objects of which nobody can keep what they have, such as those with `__slots__`."""
    kind: Any = type(value)
    if kind in _BY_KIND or kind is float:
        return
    inside: Any = ()
    if isinstance(value, _MUTABLE):
        yield value
        inside, depth = (value.values() if isinstance(value, dict) else value), depth + 1
    elif isinstance(value, tuple | frozenset):
        inside = value
    elif _is_namespace(value):
        yield vars(value)
        inside, depth = vars(value).values(), depth + 1
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
    for each in inside if len(inside) <= MOST_ITEMS and depth <= _DEEPEST else ():
        yield from changing_parts(each, depth)


_MUTABLE: Final = (list, dict, set, deque)


def _is_namespace(value: Any) -> bool:
    """Whether an object is compared by its attributes, and has no hash for this."""
    kind: Any = type(value)
    if kind.__hash__ is not None or isinstance(value, _MUTABLE) or dataclasses.is_dataclass(value):
        return False
    return type(getattr(value, "__dict__", None)) is dict


def inside_of(value: Any) -> Iterator[Any]:
    """A setting, and what is in it, as far as that may change."""
    yield value
    parts = [value] if isinstance(value, tuple) else changing_parts(value)
    for part in parts:
        for each in part.values() if isinstance(part, dict) else part:
            yield from inside_of(each) if isinstance(each, tuple) else (each,)


def _fields_compared(record: Any) -> list[Any]:
    """The fields of a dataclass by which two are compared."""
    return [getattr(record, each.name) for each in dataclasses.fields(record) if each.compare]


def _own_dict(record: Any) -> list[Any]:
    """Where a dataclass that can be assigned to keeps its fields."""
    return [vars(record)] if type(record).__hash__ is None and hasattr(record, "__dict__") else []


def frozen(value: Any, depth: int) -> Hashable:
    """An attribute of a setting as it is at this moment."""
    kind: Any = type(value)
    if isinstance(value, _MUTABLE) and (len(value) > MOST_ITEMS or depth > _DEEPEST):
        return Same(value)
    if isinstance(value, list | tuple | deque):
        return kind, tuple([frozen(each, depth + 1) for each in value])
    if isinstance(value, set):
        return kind, frozenset([(each, exact(each, depth)) for each in value])
    if isinstance(value, dict):
        items = [(key, exact(key), frozen(each, depth + 1)) for key, each in value.items()]
        return kind, tuple(items)
    if _is_namespace(value):
        return kind, frozen(vars(value), depth + 1)
    if has_hash(value) and kind.__eq__ is not object.__eq__ and kind.__module__ not in _BY_ELEMENT:
        return value, exact(value, depth)
    if dataclasses.is_dataclass(value) and kind.__eq__ is not object.__eq__:
        fields = dataclasses.fields(value)
        return kind, tuple([frozen(getattr(value, each.name), depth + 1) for each in fields])
    return Same(value), exact(value, depth)


def has_hash(value: Any) -> bool:
    """Whether a value has a hash, as far as its parts go."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


_BY_ELEMENT: Final = frozenset({"weft.ops.tensor"})
"""Where classes are from whose `==` is no answer."""
