"""Methods under `jit`, and the pickling of functions under `jit`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any
from weakref import ref

from weft.foundation.errors import UserError, a_type
from weft.ops.pytree import is_container


class BoundFunctions:
    """For every instance whose method a function is, the function of its own that it has."""

    def __init__(self, make: Callable[[Callable[..., Any], int], Any]) -> None:
        self._make = make
        self._made: dict[int, tuple[ref[Any], Any]] = {}

    def to(self, instance: Any, jitted: Any) -> Any:
        """The function with its first argument filled in."""
        if is_container(instance):
            return partial(jitted, instance)
        found = self._made.get(id(instance))
        if found is None or found[0]() is not instance:
            found = self._made[id(instance)] = self._bind_method(instance, jitted)
        return Method(instance, found[1])

    def _bind_method(self, instance: Any, jitted: Any) -> tuple[ref[Any], Any]:
        made, key = self._made, id(instance)
        try:
            weak = ref(instance, lambda _: made.pop(key, None))
        except TypeError:
            raise UserError(
                f"{jitted.name} is a method of {a_type(instance)}, which can have no weak "
                "references; add '__weakref__' to its __slots__, or make it a container with "
                "weft.register_pytree"
            ) from None

        def call(*args: Any, **kwargs: Any) -> Any:
            return jitted.function(weak(), *args, **kwargs)

        update_wrapper(call, jitted.function)
        signature = inspect.signature(jitted.function.__get__(instance))
        call.__signature__ = signature  # type: ignore[attr-defined]
        return weak, self._make(call, 1)

    def all(self) -> list[Any]:
        return [made for _, made in self._made.values()]

    def clear(self) -> None:
        for made in self.all():
            made.clear()


class Method:
    """The function of one instance, which it keeps alive."""

    __slots__ = ("_instance", "_jitted")

    def __init__(self, instance: Any, jitted: Any) -> None:
        self._instance = instance
        self._jitted = jitted

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._jitted(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jitted, name)


def original(jitted: Any, function: Callable[..., Any], label: str) -> str:
    """The name under which others find the function under `jit`: what pickle writes."""
    name = getattr(function, "__qualname__", "")
    found: Any = sys.modules.get(getattr(function, "__module__", ""), None)
    for step in name.split("."):
        found = getattr(found, step, None)
    if found is not jitted:
        raise UserError(
            f"{label} under weft.jit cannot be pickled: it is not what its module calls {name!r}; "
            "decorate a function of the module with @weft.jit, or pickle the function itself and "
            "put it under weft.jit again",
            "CannotBePickled",
        )
    return name
