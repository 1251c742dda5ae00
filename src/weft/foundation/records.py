"""Frozen dataclasses that load fast.

Python's `dataclass` writes six functions for a frozen class and compiles each of them: most of a
millisecond, of which a compiler with a thousand such classes takes a second to load; and one
program makes objects of a few. Here a class is given its fields, and each function is made when it
is called first: what compares and hashes here, the others by Python. To whoever uses such a class,
and to a type checker, it is a dataclass as any other. One that is not frozen, has other options or
inherits from a dataclass is left to Python.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import FrozenInstanceError
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

__all__ = ["dataclass", "replace"]

if TYPE_CHECKING:
    from dataclasses import dataclass, replace
else:

    def replace(given, /, **changes):
        """`dataclasses.replace`, which for most classes of ours need not ask what a field is."""
        cls = given.__class__
        names = _PLAIN.get(cls)
        if names is None or not changes.keys() <= {*names}:
            return dataclasses.replace(given, **changes)
        return cls(*[changes[n] if n in changes else getattr(given, n) for n in names])

    def dataclass(cls=None, **options):
        """The decorator `dataclasses.dataclass`."""

        def decorate(cls):
            if options in _OURS and not any(map(dataclasses.is_dataclass, cls.__mro__)):
                return _with_fields(cls, options)
            return dataclasses.dataclass(**options)(cls)

        return decorate if cls is None else decorate(cls)


_OURS: Final = ({"frozen": True}, {"frozen": True, "eq": False})
_NOTHING: Final = {"init": False, "repr": False, "eq": False}
_ALONE: Final[dict[str, dict[str, bool]]] = {
    # Fields of what is not frozen are set in another way.
    "__init__": {**_NOTHING, "init": True, "frozen": True},
    "__repr__": {**_NOTHING, "repr": True},
    "__eq__": {**_NOTHING, "eq": True},
    "__hash__": {**_NOTHING, "unsafe_hash": True},
}
"""The options with which Python writes one function of a class."""
_PLAIN: Final[dict[type, tuple[str, ...]]] = {}
"""The fields of classes whose objects are made of them in order."""


def _with_fields(cls: type, options: dict[str, bool]) -> type:
    """A class with its fields; each of its functions is that of a twin that Python makes when it is
    called."""
    own = vars(cls)
    kept = (*own.get("__annotations__", ()), "__annotations__", "__module__", "__qualname__")
    # The twin has the fields alone: Python writes its functions from these, and what the class has
    # written itself stays its own.
    twin = {name: own[name] for name in kept if name in own}
    if hasattr(cls, "__post_init__"):
        twin["__post_init__"] = cls.__post_init__
    # A class that says what is equal, and nothing of a hash, has None in the place of one.
    written = {name for name in own if name != "__hash__" or own[name] is not None}
    wanted = [name for name in _ALONE if name not in written]
    if options.get("eq") is False:
        wanted = [name for name in wanted if name not in ("__eq__", "__hash__")]
    # Python describes a class without a docstring by its `__init__`, which it does not see here.
    cls.__doc__ = cls.__doc__ or cls.__name__
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    made.__dataclass_params__.frozen = True
    fields = dataclasses.fields(cls)
    placed = all(f.init and not f.kw_only for f in fields)
    if placed and "__init__" in wanted and len(fields) == len(made.__dataclass_fields__):
        _PLAIN[cls] = tuple(field.name for field in fields)
    for name in wanted:
        setattr(made, name, _first(cls, name, twin))
    made.__setattr__, made.__delattr__ = _refuse_to_set, _refuse_to_delete
    return cls


def _first(cls: type, name: str, twin: dict[str, Any]) -> Callable[..., Any]:
    """A function that makes way for the one that it stands for."""

    def first(*given: Any, **named: Any) -> Any:
        made = _short_function(cls, name) or _function_of_twin(name, twin)
        made.__module__, made.__qualname__ = cls.__module__, f"{cls.__qualname__}.{name}"
        setattr(cls, name, made)
        return getattr(cls, name)(*given, **named)

    return first


def _function_of_twin(name: str, twin: dict[str, Any]) -> Callable[..., Any]:
    # Python would describe the twin by the signature of its `__init__`, and take long for it.
    whole: Any = dataclasses.dataclass(**_ALONE[name])(type("Twin", (), {**twin, "__doc__": name}))
    made: Callable[..., Any] = getattr(whole, name)
    return made


def _short_function(cls: type, name: str) -> Callable[..., Any] | None:
    """A function that needs no text of its own; None where it does."""
    fields = dataclasses.fields(cls)
    if name == "__eq__":
        shown = _getter(f.name for f in fields if f.compare)

        def __eq__(self: Any, other: Any) -> bool:  # noqa: N807
            if other.__class__ is not self.__class__:
                return NotImplemented
            return shown(self) == shown(other)

        return __eq__
    if name == "__hash__":
        hashed = _getter(f.name for f in fields if (f.compare if f.hash is None else f.hash))

        def __hash__(self: Any) -> int:  # noqa: N807
            return hash(hashed(self))

        return __hash__
    return None


def _getter(names: Iterable[str]) -> Callable[[Any], tuple[Any, ...]]:
    """What gives the values of some fields."""
    match tuple(names):
        case ():
            return lambda one: ()
        case (name,):
            return lambda one: (getattr(one, name),)
        case several:
            return attrgetter(*several)


def _refuse_to_set(self: Any, name: str, value: Any) -> None:
    if _is_held(self, name):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _refuse_to_delete(self: Any, name: str) -> None:
    if _is_held(self, name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _is_held(self: Any, name: str) -> bool:
    """Whether an attribute may not change; a class that inherits may have others of its own."""
    held = type(self)
    return "__dataclass_fields__" in vars(held) or name in held.__dataclass_fields__
