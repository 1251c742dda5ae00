"""Checks of an edited graph against the one that was made: the same inputs and outputs. Everything
between them is free.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.foundation.errors import Finding, SpecViolation
from weft.tiny.ir import Graph, Value
from weft.tiny.verify import GRAPH


def agree(read: Graph, made: Graph) -> None:
    """Raise where a graph that was read is not one of the program."""
    found = list(_graph_differences(read, made))
    if found:
        raise SpecViolation.of(found)


def _graph_differences(read: Graph, made: Graph) -> Iterator[Finding]:
    pairs = (
        ("inputs", [(v.name, v) for v in read.inputs], [(v.name, v) for v in made.inputs]),
        ("outputs", list(read.outputs), list(made.outputs)),
    )
    for what, got, wanted in pairs:
        shown, needed = (
            [_describe_value(*entry) for entry in entries] for entries in (got, wanted)
        )
        if shown != needed:
            yield Finding(
                GRAPH,
                "the graph",
                f"the {what} are {', '.join(shown)}; those of the program are {', '.join(needed)}",
                f"leave the {what} as they were",
            )


def _describe_value(name: str, value: Value) -> str:
    return f"{name}: {value.dtype}{list(value.shape)}"
