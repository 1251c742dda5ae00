"""What a model is, read once from its file: graphs of nodes, checked to be in an order in which
they can run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from onnx import AttributeProto, GraphProto, NodeProto, TypeProto, ValueInfoProto

from weft.foundation.errors import SpecViolation, Unimplemented, brief
from weft.foundation.limits import current
from weft.interop.onnx.tensors import read_tensor
from weft.interop.onnx.values import Array

Attributes = Mapping[str, Any]
_SCALARS: Final = {
    AttributeProto.FLOAT: "f", AttributeProto.INT: "i", AttributeProto.STRING: "s",
    AttributeProto.TYPE_PROTO: "tp", AttributeProto.FLOATS: "floats", AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Node:
    """One operator, with the names of what it takes and gives; an empty name is left out."""

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Attributes
    version: int
    """Of the operator set that its domain is taken from."""
    overload: str = ""
    captured: tuple[str, ...] = ()
    """What its subgraphs use of the graph around them."""
    proto: NodeProto | None = None
    """As it stands in the file: for operators that are functions of their own description."""

    @property
    def label(self) -> str:
        """Its name, or that of what it gives first, as it can be printed."""
        return clean(self.name or next(iter(filter(None, self.outputs)), ""))

    def __str__(self) -> str:
        kind = self.op if not self.domain else f"{self.domain}.{self.op}"
        return f"{clean(kind)} {self.label!r}" if self.label else clean(kind)


@dataclass(frozen=True, eq=False)
class Input:
    """An input of a graph: its name, and what it is said to be."""

    name: str
    type: TypeProto


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in an order in which they can run."""

    name: str
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array]
    nodes: tuple[Node, ...]
    captured: tuple[str, ...] = ()
    last_uses: tuple[tuple[str, ...], ...] = field(default=(), repr=False)
    """For every node, the values that nobody needs after it."""


@dataclass(frozen=True)
class Reading:
    """What is known while a graph is read."""

    versions: Mapping[str, int]
    folder: Path | None = None
    bound: Attributes = field(default_factory=dict)
    """The attributes of the function whose body is read."""
    depth: int = 0


def clean(text: str) -> str:
    """A name of the file on one short line."""
    return brief(text)[1:-1]


def read_graph(proto: GraphProto, reading: Reading) -> Graph:
    """A graph of a file, checked."""
    if reading.depth > current().nesting:
        raise malformed(f"graphs are nested over {current().nesting} deep")
    constants = {}
    for stored in proto.initializer:
        if not stored.name or stored.name in constants:
            raise malformed(f"there are two initialisers {brief(stored.name)}")
        constants[stored.name] = read_tensor(stored, reading.folder)
    if proto.sparse_initializer:
        raise Unimplemented("sparse_initializer", "sparse tensors are not read")
    inputs = tuple(_read_input(each) for each in proto.input)
    outputs = tuple(each.name for each in proto.output)
    return graph_of(clean(proto.name), inputs, outputs, constants, proto.node, reading)


def graph_of(
    name: str,
    inputs: Sequence[Input],
    outputs: Sequence[str],
    constants: Mapping[str, Array],
    nodes: Sequence[NodeProto],
    reading: Reading,
) -> Graph:
    """A graph of these parts, in an order in which it can run."""
    read = [read_node(each, reading) for each in nodes]
    _check_names(inputs, constants, read, name)
    ordered, captured = _order_nodes(read, {i.name for i in inputs} | constants.keys(), reading)
    made = {i.name for i in inputs} | constants.keys() | set(_names_made(ordered))
    missing = [out for out in outputs if out and out not in made]
    if missing and not reading.depth:
        raise malformed(f"nothing makes the output {brief(missing[0])} of graph {name!r}")
    captured = tuple(dict.fromkeys((*captured, *missing)))
    return Graph(
        name,
        tuple(inputs),
        tuple(outputs),
        constants,
        tuple(ordered),
        captured,
        _last_uses(ordered, set(outputs)),
    )


def _read_input(proto: ValueInfoProto) -> Input:
    return Input(proto.name, proto.type)


def malformed(why: str) -> SpecViolation:
    return SpecViolation("MalformedModel", why)


def read_node(proto: NodeProto, reading: Reading) -> Node:
    """A node of a file, with its attributes as Python values."""
    domain = "" if proto.domain == "ai.onnx" else proto.domain
    version = reading.versions.get(domain, 0)
    where = f"{clean(proto.op_type)} {clean(proto.name)!r}"
    attributes = {}
    for each in proto.attribute:
        if each.name in attributes:
            raise malformed(f"{where} has two attributes {brief(each.name)}")
        if each.ref_attr_name:
            if each.ref_attr_name in reading.bound:
                attributes[each.name] = reading.bound[each.ref_attr_name]
            continue
        attributes[each.name] = _attribute(each, reading, where)
    graphs = [v for v in attributes.values() if isinstance(v, Graph)]
    captured = tuple(dict.fromkeys(name for graph in graphs for name in graph.captured))
    return Node(
        proto.op_type, domain, proto.name, tuple(proto.input), tuple(proto.output), attributes,
        version, proto.overload, captured, proto,
    )  # fmt: skip


def _attribute(proto: AttributeProto, reading: Reading, where: str) -> Any:
    kind = proto.type
    if kind in _SCALARS:
        value = getattr(proto, _SCALARS[kind])
        if kind in (AttributeProto.FLOATS, AttributeProto.INTS, AttributeProto.STRINGS):
            return [_decode_text(each) if isinstance(each, bytes) else each for each in value]
        return _decode_text(value) if isinstance(value, bytes) else value
    if kind == AttributeProto.TENSOR:
        return read_tensor(proto.t, reading.folder)
    if kind == AttributeProto.TENSORS:
        return [read_tensor(each, reading.folder) for each in proto.tensors]
    if kind == AttributeProto.GRAPH:
        inner = Reading(reading.versions, reading.folder, reading.bound, reading.depth + 1)
        return read_graph(proto.g, inner)
    raise Unimplemented(where, f"the attribute {brief(proto.name)} is of a kind that is not read")


def _decode_text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _names_made(nodes: Sequence[Node]) -> Iterator[str]:
    return (name for node in nodes for name in node.outputs if name)


def _check_names(
    inputs: Sequence[Input], constants: Mapping[str, Array], nodes: Sequence[Node], graph: str
) -> None:
    """Every name is made once; an initialiser may give an input its default."""
    names = [each.name for each in inputs]
    if len(set(names)) != len(names) or "" in names:
        raise malformed(f"graph {graph!r} has two inputs of one name, or one without a name")
    seen = set(names) | constants.keys()
    for node in nodes:
        for name in filter(None, node.outputs):
            if name in seen:
                raise malformed(f"{node} makes {brief(name)}, which exists already")
            seen.add(name)


def _order_nodes(
    nodes: Sequence[Node], known: set[str], reading: Reading
) -> tuple[list[Node], tuple[str, ...]]:
    """The nodes so that each comes after those it needs, and what they need of the outside."""
    maker = {name: index for index, node in enumerate(nodes) for name in node.outputs if name}
    outside: dict[str, Node] = {}
    users: list[list[int]] = [[] for _ in nodes]
    waiting = [0] * len(nodes)
    for index, node in enumerate(nodes):
        needed = set(filter(None, (*node.inputs, *node.captured)))
        for name in sorted(needed):
            if name in maker:
                users[maker[name]].append(index)
                waiting[index] += 1
            elif name not in known:
                outside.setdefault(name, node)
    if outside and not reading.depth:
        name, node = next(iter(outside.items()))
        raise malformed(
            f"{node} takes {brief(name)}, which no input, initialiser or other node gives"
        )
    return _sort_nodes(nodes, users, waiting), tuple(outside)


def _sort_nodes(nodes: Sequence[Node], users: list[list[int]], waiting: list[int]) -> list[Node]:
    """In the order of the file wherever that is an order in which they can run."""
    ready = [index for index, count in enumerate(waiting) if not count][::-1]
    ordered = []
    while ready:
        index = ready.pop()
        ordered.append(index)
        for user in reversed(users[index]):
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    if len(ordered) < len(nodes):
        stuck = next(nodes[i] for i, count in enumerate(waiting) if count)
        raise malformed(f"{stuck} needs its own result: the graph has a cycle")
    return [nodes[index] for index in ordered]


def _last_uses(nodes: Sequence[Node], kept: set[str]) -> tuple[tuple[str, ...], ...]:
    seen, found = set(kept), []
    for node in reversed(nodes):
        used = dict.fromkeys(filter(None, (*node.inputs, *node.captured, *node.outputs)))
        found.append(tuple(name for name in used if name not in seen))
        seen.update(used)
    return tuple(reversed(found))
