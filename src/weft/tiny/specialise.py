"""A Tiny graph with symbols as sizes, made for given sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from weft.foundation.dims import Symbol
from weft.foundation.errors import UserError
from weft.foundation.interned import Node
from weft.tiny.ir import Graph, Input, Value


def specialise(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The graph with every symbol replaced by its size; names and origins follow."""
    new: dict[Value, Value] = {}
    for value in (*graph.inputs, *graph.values):
        new.setdefault(value, _rebuilt(value, new, sizes))
    return Graph(
        tuple(i for i in (new[i] for i in graph.inputs) if isinstance(i, Input)),
        tuple((name, new[value]) for name, value in graph.outputs),
        {new[value]: ids for value, ids in graph.origin.items()},
        graph.constants,
        {new[value]: name for value, name in graph.names.items()},
        {new[value]: name for value, name in graph.op_names.items()},
    )


def _rebuilt(value: Value, new: Mapping[Value, Value], sizes: Mapping[str, int]) -> Value:
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
