"""Nested containers as flat lists: what traced functions take and give.

Tuples, named tuples, lists, dicts (in order of their keys) and None are containers; so is every
class that is registered, and every dataclass marked with `@pytree`. Anything else is a leaf.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from weft.foundation.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Node:
    """How one kind of container comes apart: into children and the rest, and together again."""

    flatten: Callable[[Any], tuple[Sequence[Any], Hashable]]
    unflatten: Callable[[Hashable, Sequence[Any]], Any]
    names: Callable[[Hashable, int], list[str]]


@dataclass(frozen=True)
class Structure:
    """The shape of a nested container without its leaves; equal for equal shapes."""

    kind: type | None
    """None: a leaf."""
    rest: Hashable = None
    children: tuple[Structure, ...] = ()

    @cached_property
    def leaf_count(self) -> int:
        return 1 if self.kind is None else sum(child.leaf_count for child in self.children)


LEAF = Structure(None)
_NODES: dict[type, Node] = {}


def _positions(rest: Hashable, count: int) -> list[str]:
    return [f"[{index}]" for index in range(count)]


def _keys(rest: Any, count: int) -> list[str]:
    return [f"[{key!r}]" for key in rest]


def _fields(rest: Any, count: int) -> list[str]:
    return [f".{name}" for name in rest]


def register_pytree(
    kind: type,
    flatten: Callable[[Any], tuple[Sequence[Any], Hashable]],
    unflatten: Callable[[Any, Sequence[Any]], Any],
    names: Callable[[Any, int], list[str]] = _positions,
) -> None:
    """Make a class a container: `flatten(x)` answers (children, rest), `unflatten(rest, children)`
    makes one again, `names(rest, count)` says what its children are called in messages."""
    _NODES[kind] = Node(flatten, unflatten, names)


def _flatten_dict(value: dict[Any, Any]) -> tuple[list[Any], Hashable]:
    try:
        keys = tuple(sorted(value))
    except TypeError:
        keys = tuple(value)
    return [value[key] for key in keys], keys


register_pytree(tuple, lambda x: (x, None), lambda rest, c: tuple(c))
register_pytree(list, lambda x: (x, None), lambda rest, c: list(c))
register_pytree(dict, _flatten_dict, lambda rest, c: dict(zip(rest, c, strict=True)), _keys)
register_pytree(type(None), lambda x: ((), None), lambda rest, c: None)


def pytree(cls: type[T]) -> type[T]:
    """Make a dataclass a container of its fields."""
    names = tuple(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]

    def flatten(value: Any) -> tuple[list[Any], Hashable]:
        return [getattr(value, name) for name in names], names

    def unflatten(rest: Any, children: Sequence[Any]) -> Any:
        made = object.__new__(cls)
        for name, child in zip(rest, children, strict=True):
            object.__setattr__(made, name, child)
        return made

    register_pytree(cls, flatten, unflatten, _fields)
    return cls


def _node_of(kind: type) -> Node | None:
    found = _NODES.get(kind)
    if found is None and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        names = tuple(kind._fields)
        found = _NODES[kind] = Node(lambda x: (tuple(x), names), lambda rest, c: kind(*c), _fields)
    return found


def flatten(value: Any) -> tuple[list[Any], Structure]:
    """The leaves of a nested container, in order, and its structure."""
    leaves: list[Any] = []
    return leaves, _flatten(value, leaves, 0)


def _flatten(value: Any, leaves: list[Any], depth: int) -> Structure:
    node = _node_of(type(value))
    if node is None:
        leaves.append(value)
        return LEAF
    if depth > 200:
        raise UserError("a container is nested more than 200 deep, or contains itself")
    children, rest = node.flatten(value)
    return Structure(type(value), rest, tuple(_flatten(c, leaves, depth + 1) for c in children))


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    """The container with these leaves."""
    if len(leaves) != structure.leaf_count:
        raise UserError(f"{len(leaves)} leaves for a structure of {structure.leaf_count}")
    return _unflatten(structure, iter(leaves))


def _unflatten(structure: Structure, leaves: Iterator[Any]) -> Any:
    if structure.kind is None:
        return next(leaves)
    node = _node_of(structure.kind)
    assert node is not None
    return node.unflatten(structure.rest, [_unflatten(c, leaves) for c in structure.children])


def leaf_names(structure: Structure, prefix: str = "") -> list[str]:
    """What each leaf is called: `params['w'][0].bias`."""
    if structure.kind is None:
        return [prefix]
    node = _node_of(structure.kind)
    assert node is not None
    steps = node.names(structure.rest, len(structure.children))
    return [
        name
        for step, child in zip(steps, structure.children, strict=True)
        for name in leaf_names(child, prefix + step)
    ]


def map_leaves(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """The container with `function` applied to each leaf (and those at its place in the others)."""
    leaves, structure = flatten(value)
    rest = []
    for other in others:
        found, shape = flatten(other)
        if shape != structure:
            raise UserError("map_leaves takes containers of one structure")
        rest.append(found)
    return unflatten(structure, [function(*items) for items in zip(leaves, *rest, strict=True)])
