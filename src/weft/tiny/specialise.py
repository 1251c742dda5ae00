"""A Tiny graph with symbolic sizes, specialised to given ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from weft.foundation.dims import Symbol
from weft.foundation.errors import UserError
from weft.foundation.interned import Node
from weft.tiny.ir import Graph, Input, Value


def specialise(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The graph with every symbol replaced by its size; names and origins follow."""
    _check_sizes(graph, sizes)
    new: dict[Value, Value] = {}
    for value in (*graph.inputs, *graph.values):
        new.setdefault(value, _rebuild_value(value, new, sizes))
    return Graph(
        tuple(i for i in (new[i] for i in graph.inputs) if isinstance(i, Input)),
        tuple((name, new[value]) for name, value in graph.outputs),
        {new[value]: ids for value, ids in graph.origin.items()},
        graph.constants,
        {new[value]: name for value, name in graph.names.items()},
        {new[value]: name for value, name in graph.op_names.items()},
    )


def _check_sizes(graph: Graph, sizes: Mapping[str, int]) -> None:
    """Every size is a number that a dim can have, and there is a symbol for it."""
    names = {name: None for value in (*graph.inputs, *graph.values) for name in _symbols(value)}
    for name, size in sizes.items():
        if name not in names:
            there = f"its symbols are {', '.join(names)}" if names else "it has no symbols"
            raise UserError(f"a size is given for {name!r}, which the graph does not have: {there}")
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise UserError(f"the size of ?{name} is {size!r}, not a whole number from 0 on")


def _symbols(value: Value) -> Iterator[str]:
    """The names of the symbols in the fields of a value."""
    waiting: list[Any] = [getattr(value, field.name) for field in fields(value)]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Symbol):
            yield item.name
        elif isinstance(item, tuple):
            waiting.extend(reversed(item))


def _rebuild_value(value: Value, new: Mapping[Value, Value], sizes: Mapping[str, int]) -> Value:
    def replaced(item: Any) -> Any:
        if isinstance(item, Symbol):
            if item.name not in sizes:
                raise UserError(f"the size of {item} is not given")
            return sizes[item.name]
        if isinstance(item, tuple):
            return tuple(replaced(part) for part in item)
        return new.get(item, item) if isinstance(item, Node) else item  # type: ignore[call-overload]

    made: Value = type(value)(*(replaced(getattr(value, f.name)) for f in fields(value)))
    return made
