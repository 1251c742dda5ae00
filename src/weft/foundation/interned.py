"""Interned nodes: two immutable nodes with equal fields are the same object.

Equality is identity, hashing is constant-time, and a graph with shared parts stays shared however
it is built. Decorate a class of annotated fields with `@node`; fields must be hashable.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform
from weakref import WeakValueDictionary

Class = TypeVar("Class", bound=type)


class _Interning(type):
    """Hands out the existing node when one with the same fields is alive."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        names = _NAMES.get(cls)
        if names is not None and len(args) == len(names):
            # Every field was given by position: a node that exists need not be made again.
            plain = _NUMBERS.isdisjoint(map(type, args))
            key = (cls, *args) if plain else (cls, *map(_field_key, args))
            found = _TABLE.get(key)
            if found is not None:
                return found
            made = super().__call__(*args)
        else:
            made = super().__call__(*args, **kwargs)
            if names is None:
                names = _NAMES[cls] = tuple(f.name for f in fields(made))
            key = (cls, *[_field_key(getattr(made, name)) for name in names])
        # Another thread may have made the same one meanwhile: the first to come is the one that
        # stays.
        return _TABLE.setdefault(key, made)


_TABLE: WeakValueDictionary[tuple[Any, ...], Any] = WeakValueDictionary()
_NAMES: dict[type, tuple[str, ...]] = {}


_NUMBERS = frozenset({bool, float, complex})


def _field_key(value: Any) -> Any:
    """Numbers of different types, and zeros of different sign, are different fields. An int is
    itself, all other numbers are pairs."""
    if type(value) in _NUMBERS:
        # 1, 1.0 and True are equal to Python, and so are 0.0 and -0.0; NaN is not even equal to
        # itself.
        return (type(value), repr(value))
    return value


class Node(metaclass=_Interning):
    """Base of interned nodes."""

    __slots__ = ("__weakref__",)


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def node(cls: Class) -> Class:
    """Make a class of fields an interned node."""
    made: Any = dataclass(frozen=True, eq=False, slots=True)(cls)
    result: Class = made
    return result
