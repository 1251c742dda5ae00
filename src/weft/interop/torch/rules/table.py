"""The table of rules, and what they are written in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.ops import namespace
from weft.ops.tensor import Tensor

Rule = Callable[..., Any]
w: Any = namespace
"""What `weft` hands out. A rule's arguments are whatever torch takes, so nothing here is typed."""
F: Any = namespace.functional

_RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """A function for these ops: `aten.add.Tensor`, or `aten.add` for every overload of it."""

    def keep(function: Rule) -> Rule:
        for name in names:
            _RULES[name] = function
        return function

    return keep


def rules(prefix: str, **named: Rule) -> None:
    """Functions for several ops, by the names they have behind a prefix such as `aten.`"""
    _RULES.update({prefix + name: function for name, function in named.items()})


def found(name: str) -> Rule | None:
    """The rule for an op: that of its overload, or that of all of them."""
    exact = _RULES.get(name)
    return exact if exact is not None else _RULES.get(name.rpartition(".")[0])


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def along(function: Rule, x: Any, axis: Any, keeps: bool = False, **more: Any) -> Any:
    """A function along axes, which a scalar of torch has too: 0 and -1. `keeps`: the axis is in the
    result."""
    if isinstance(axis, list):
        axis = tuple(axis) or None
    if x.ndim or axis not in (0, -1, (0,), (-1,)):
        return function(x, axis=axis, **more)
    made = function(w.reshape(x, (1,)), axis=0, **more)
    if not (keeps or more.get("keepdims")):
        return made
    if isinstance(made, tuple):
        return tuple(w.reshape(each, ()) for each in made)
    return w.reshape(made, ())


def part(x: Any, axis: int, cut: Any) -> Any:
    """A slice or an element along one axis."""
    return x[tuple(cut if a == axis % x.ndim else slice(None) for a in range(x.ndim))]


def pair(value: Any, count: int) -> tuple[Any, ...]:
    """A setting for each of several axes, where one number may stand for all."""
    if not isinstance(value, list | tuple):
        return (value,) * count
    return tuple(value) * count if len(value) == 1 else tuple(value)


def product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total
