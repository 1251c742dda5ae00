"""Operators that are functions of others: those that a model defines, and those whose description
in ONNX is a body."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto, defs, helper

from weft.foundation.errors import ResourceExceeded, Unimplemented, UserError, WeftWarning, brief
from weft.interop.onnx.graph import Graph, Input, Node, Reading, clean, graph_of, malformed
from weft.interop.onnx.tensors import NUMBER
from weft.interop.onnx.values import Value, dtype_of

Name = tuple[str, str, str]
"""Domain, name, overload."""
NEWEST: Final[Mapping[str, int]] = {
    "": defs.onnx_opset_version(),
    "ai.onnx.ml": 5,
    "ai.onnx.preview.training": 1,
}
"""The newest operator set of each domain that is known."""
EXPANDED: Final = 200_000
"""How many nodes the calls of a model's own functions may stand for, all together: a few kilobytes
of functions that each call another twice stand for more than anybody can run."""


def name_of(function: FunctionProto) -> Name:
    domain = "" if function.domain == "ai.onnx" else function.domain
    return domain, function.name, function.overload


def versions_of(imports: Sequence[Any]) -> dict[str, int]:
    """Which version of each domain is meant."""
    found: dict[str, int] = {}
    for each in imports:
        domain = "" if each.domain == "ai.onnx" else each.domain
        if domain in found and found[domain] != each.version:
            raise malformed(f"two versions of the operators {brief(domain)} are imported")
        found[domain] = each.version
    return found


def check_expansion(nodes: Sequence[NodeProto], functions: Mapping[Name, FunctionProto]) -> None:
    """Raise where the calls among the nodes stand for too many others. Each function is counted
    once; of one that calls itself nothing is counted here, since running it is refused."""
    counts = dict.fromkeys(functions, 0)
    callees = {name: _count_calls(each.node, functions) for name, each in functions.items()}
    for name in _callees_first(callees):
        counts[name] = callees[name].total() + sum(
            times * counts[callee] for callee, times in callees[name].items() if callee is not None
        )
    calls = _count_calls(nodes, functions).items()
    found = sum(times * counts[callee] for callee, times in calls if callee is not None)
    if found > EXPANDED:
        raise ResourceExceeded(
            f"the calls of the model's own functions stand for {_as_text(found)} nodes, over the "
            f"limit of {EXPANDED:,}"
        )


def _as_text(count: int) -> str:
    return f"{count:,}" if count < 10**15 else f"over 2**{count.bit_length() - 1}"


def _count_calls(
    nodes: Sequence[NodeProto], functions: Mapping[Name, FunctionProto]
) -> Counter[Name | None]:
    """How often nodes and their subgraphs call each function; None stands for other operators."""
    found: Counter[Name | None] = Counter()
    for node in _every(nodes):
        name = _name_called(node)
        found[name if name in functions else None] += 1
    return found


def _every(nodes: Sequence[NodeProto]) -> Iterator[NodeProto]:
    """Nodes, and those of their subgraphs."""
    waiting = [nodes]
    while waiting:
        for node in waiting.pop():
            yield node
            for each in node.attribute:
                waiting += [graph.node for graph in (each.g, *each.graphs) if graph.node]


def _name_called(node: NodeProto) -> Name:
    """What the function would be called that a node stands for."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    return domain, node.op_type, node.overload


def _callees_first(callees: Mapping[Name, Counter[Name | None]]) -> list[Name]:
    """The functions in an order in which each comes after those that it calls, as far as there is
    one."""
    order: dict[Name, None] = {}
    entered: set[Name] = set()
    for first in callees:
        waiting: list[tuple[Name, bool]] = [(first, False)]
        while waiting:
            name, left = waiting.pop()
            if left:
                order[name] = None
            elif name not in entered:
                entered.add(name)
                waiting.append((name, True))
                waiting += [(each, False) for each in callees[name] if each is not None]
    return list(order)


def body_of(function: FunctionProto, node: Node) -> Graph:
    """The body of a function for one call of it."""
    said = {each.name: each for each in (*_defaults(node), *function.attribute_proto)}
    defaults = {name: helper.get_attribute_value(each) for name, each in said.items()}
    texts = {k: v.decode("utf-8", "replace") for k, v in defaults.items() if isinstance(v, bytes)}
    bound = {**defaults, **texts, **node.attributes}
    # ONNX's own descriptions in other domains do not say which operators they are made of.
    versions = {"": NEWEST[""], **versions_of(function.opset_import)}
    reading = Reading(versions, None, bound)
    inputs = [Input(name, TypeProto()) for name in function.input]
    made = {*function.input, *(name for each in function.node for name in each.output)}
    outputs = [name if name in made else "" for name in function.output]
    return graph_of(function.name, inputs, outputs, {}, function.node, reading)


def _schema(node: Node) -> Any:
    return _schema_of(node.op, node.version or 1, node.domain)


@lru_cache(4096)
def _schema_of(op: str, version: int, domain: str) -> Any:
    try:
        return defs.get_schema(op, version, domain)
    except (defs.SchemaError, TypeError, ValueError):
        return None


def _defaults(node: Node) -> list[AttributeProto]:
    """What ONNX puts in the place of attributes that a node does not have."""
    schema = _schema(node)
    if schema is None:
        return []
    found = [each.default_value for each in schema.attributes.values()]
    return [each for each in found if each.name]


def schema_function(node: Node, operands: Sequence[Value]) -> FunctionProto | None:
    """The function that ONNX describes an operator by, for operands like these; None where it
    describes it in words."""
    schema = _schema(node)
    if schema is None:
        return None
    if schema.has_function:
        body: FunctionProto = schema.function_body
        return body
    if not schema.has_context_dependent_function:
        return None
    types = [type_of(each).SerializeToString() for each in operands]
    try:
        text = schema.get_context_dependent_function(resolved(node).SerializeToString(), types)
        made = FunctionProto()
        made.ParseFromString(text)
    except Exception as error:
        raise Unimplemented(str(node), f"ONNX does not expand it: {brief(error, 200)}") from None
    return made


def check_arity(node: Node) -> None:
    """Raise unless the node has as many operands as its operator takes."""
    schema = _schema(node)
    if schema is None:
        return
    count = len(node.inputs)
    single = defs.OpSchema.FormalParameterOption.Single
    pairs = zip(node.inputs, schema.inputs, strict=False)
    absent = any(not name and formal.option == single for name, formal in pairs)
    if not schema.min_input <= count <= schema.max_input or absent:
        raise malformed(
            f"{count} operands are given; it takes {schema.min_input} to {schema.max_input}"
        )


def warn_of_attributes(
    nodes: Sequence[NodeProto], versions: Mapping[str, int], functions: Mapping[Name, FunctionProto]
) -> None:
    """Warn of attributes that operators do not have: what they should do, nobody does."""
    odd = list(_odd_attributes(nodes, versions, functions))
    for each in functions.values():
        odd += _odd_attributes(each.node, versions_of(each.opset_import), functions)
    if odd:
        more = f" (and {len(odd) - 5:,} more)" if len(odd) > 5 else ""
        warnings.warn(
            f"[load] attributes that operators do not have may have no effect: "
            f"{', '.join(odd[:5])}{more}",
            WeftWarning,
            stacklevel=2,
        )


def _odd_attributes(
    nodes: Sequence[NodeProto], versions: Mapping[str, int], functions: Mapping[Name, FunctionProto]
) -> Iterator[str]:
    """Each attribute that its operator does not have in the version that is meant, in words."""
    for node in _every(nodes):
        name = _name_called(node)
        known = None
        if name not in functions:
            known = _attributes_of(node.op_type, versions.get(name[0], 0) or 1, name[0])
        for each in node.attribute if known is not None else ():
            if known is not None and each.name not in known:
                label = node.name or next(iter(node.output), "")
                yield f"{brief(each.name)} of {clean(node.op_type)} {brief(label)}"


@lru_cache(4096)
def _attributes_of(op: str, version: int, domain: str) -> frozenset[str] | None:
    schema = _schema_of(op, version, domain)
    return None if schema is None else frozenset(schema.attributes)


def is_described(node: Node) -> bool:
    """Whether ONNX describes the operator by a function."""
    schema = _schema(node)
    return schema is not None and bool(schema.has_function or schema.has_context_dependent_function)


def resolved(node: Node) -> NodeProto:
    """The node as a file would store it, with the attributes of the function around it filled
    in."""
    assert node.proto is not None
    if not any(each.ref_attr_name for each in node.proto.attribute):
        return node.proto
    plain = {k: v for k, v in node.attributes.items() if not isinstance(v, Graph)}
    return helper.make_node(node.op, node.inputs, node.outputs, domain=node.domain, **plain)


def type_of(value: Value) -> TypeProto:
    """What ONNX calls the type of a value; an empty one for what is left out."""
    if value is None:
        return TypeProto()
    if isinstance(value, list):
        if not value:
            raise UserError("an empty sequence has no type")
        return helper.make_sequence_type_proto(type_of(value[0]))
    dims = [dim if isinstance(dim, int) else str(dim) for dim in value.shape]
    return helper.make_tensor_type_proto(NUMBER[dtype_of(value)], dims)
