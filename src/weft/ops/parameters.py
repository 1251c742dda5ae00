"""Parameter names of a function, and which leaves of its arguments belong to which parameter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any, TypeAlias

from weft.foundation.errors import UserError, WrongArguments, brief
from weft.ops.pytree import Structure, leaf_names

Names: TypeAlias = int | str | Iterable[int | str]
"""Parameters of a function, by position or name."""
Dynamic: TypeAlias = Mapping[int | str, Mapping[int, str]]
"""For parameters, by position or name, which of their axes have no fixed size, and what those are
called."""


class Parameters:
    """The parameters of one function by name. Structures are those of (positional arguments, named
    arguments)."""

    def __init__(self, function: Callable[..., Any], label: str) -> None:
        self.label = label
        self._signature: inspect.Signature | None = None
        with suppress(TypeError, ValueError):
            self._signature = inspect.signature(function)
        self.names = list(self._signature.parameters) if self._signature else []
        kinds = [p.kind for p in self._signature.parameters.values()] if self._signature else []
        several = inspect.Parameter.VAR_POSITIONAL
        self._rest = kinds.index(several) if several in kinds else len(kinds)
        """The position from which on arguments are those of a `*args`."""

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Say so where the function does not take these arguments."""
        if self._signature is None:
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            takes = ", ".join(self.names) or "nothing"
            raise WrongArguments(f"{error}; it takes {takes}", "WrongArguments") from None

    def positions(self, what: str, given: Names) -> frozenset[int]:
        """The parameters that the option `what` names."""
        several = (given,) if isinstance(given, int | str) else given
        items = tuple(several) if isinstance(several, Iterable) else (given,)
        for item in items:
            if isinstance(item, bool) or not isinstance(item, int | str):
                raise UserError(
                    f"{what} is {brief(given)}; give the position or the name of an argument, such "
                    f"as 0 or {_example(self.names)!r}, or a tuple of these",
                    "InvalidArgument",
                )
        return frozenset(self.position(what, item) for item in items)

    def position(self, what: str, item: int | str) -> int:
        if isinstance(item, str):
            if item not in self.names:
                raise UserError(
                    f"{what} names {item!r}; {self.label} takes {', '.join(self.names)}",
                    "UnknownArgument",
                )
            return self.names.index(item)
        if not 0 <= item < max(len(self.names), 1):
            raise UserError(
                f"{what} names argument {item}; there are {len(self.names)}", "UnknownArgument"
            )
        return item

    def dynamic_axes(self, given: Dynamic) -> dict[int, dict[int, str]]:
        """The names of dynamic axes, by position and axis."""
        if not isinstance(given, Mapping):
            raise UserError(
                f"dynamic is {given!r}; give a dict such as {{'x': {{0: 'B'}}}}: for an argument, "
                "the names of its axes that have no fixed size",
                "InvalidDynamic",
            )
        return {
            self.position("dynamic", item): _check_axes(item, axes) for item, axes in given.items()
        }

    def owners(self, structure: Structure) -> list[int]:
        """For every leaf, the position of the parameter it belongs to; -1 where there is none."""
        args, kwargs = structure.children
        found = [p for p, child in enumerate(args.children) for _ in range(child.leaf_count)]
        for name, child in _list_keywords(kwargs):
            position = self.names.index(name) if name in self.names else -1
            found += [position] * child.leaf_count
        return found

    def leaf_names(self, structure: Structure) -> list[str]:
        """What every leaf is called: `params['w'][0]`."""
        args, kwargs = structure.children
        found = []
        for position, child in enumerate(args.children):
            found += leaf_names(child, self._name_at(position))
        for name, child in _list_keywords(kwargs):
            found += leaf_names(child, name)
        return found

    def _name_at(self, position: int) -> str:
        """The name of a positional argument: `x`, or `xs[1]` of `*xs`."""
        if position < self._rest:
            return self.names[position]
        if self._rest < len(self.names):
            return f"{self.names[self._rest]}[{position - self._rest}]"
        return f"argument {position}"


def _example(names: Sequence[str]) -> str:
    return names[0] if names else "x"


def setting_advice(structure: Structure, index: int) -> str:
    """How a leaf of the arguments that is no tensor is said to be a setting."""
    holders: list[Structure] = []
    while structure.kind is not None:
        holders.append(structure)
        for child in structure.children:
            if index < child.leaf_count:
                structure = child
                break
            index -= child.leaf_count
    if len(holders) <= 2:  # The arguments, and those by position or by name.
        return "name it in static="
    apart = "pass it as an argument of its own that static= names"
    if is_dataclass(holders[-1].kind):
        return f"declare the field with field(metadata={{'static': True}}), or {apart}"
    return apart


def hash_advice(value: Any) -> str:
    """What to pass in the place of a setting without a hash."""
    match value:
        case dict():
            return "pass a frozen dataclass, or tuple(d.items()), instead of a dict"
        case set():
            return "pass a frozenset instead of a set"
        case _ if is_dataclass(value):
            return f"declare {type(value).__name__} with @dataclass(frozen=True)"
        case _ if isinstance(value, list | tuple):
            return "pass a tuple instead of a list"
    return "pass a number, a string or a tuple of these"


def _list_keywords(kwargs: Structure) -> list[tuple[str, Structure]]:
    names = kwargs.rest if isinstance(kwargs.rest, tuple) else ()
    return list(zip(map(str, names), kwargs.children, strict=True))


def _check_axes(item: int | str, axes: Any) -> dict[int, str]:
    good = isinstance(axes, Mapping) and all(
        type(axis) is int and isinstance(name, str) and name for axis, name in axes.items()
    )
    if not good:
        raise UserError(
            f"dynamic[{item!r}] is {axes!r}; give a dict from axes to names, such as {{0: 'B'}}",
            "InvalidDynamic",
        )
    return {axis: name.removeprefix("?") for axis, name in axes.items()}
