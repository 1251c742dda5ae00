"""Graph breaks: ops that Weft cannot carry out run in torch; the graph is cut around them, and they
are named.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from weft.foundation.errors import Unimplemented, WeftError, WeftWarning, clipped
from weft.interop.torch.compiled import CompiledGraph, Settings, Shaped
from weft.interop.torch.interpret import (
    CONTROL,
    NodeFailed,
    is_arithmetic,
    is_report,
    name_of,
    nodes_without_rule,
    sized,
)
from weft.interop.torch.lines import shown

Call = Callable[[list[Any]], Any]


def compiled(module: GraphModule, fakes: Sequence[Any], settings: Settings) -> Call:
    """What torch calls in the place of a graph: Weft's program, with parts in torch where there
    is no other way."""
    try:
        made, inputs, lost = _trace_graph(module, fakes, settings)
        if not lost:
            if not made.leave_open(inputs):
                made.version(tuple(inputs[at] for at in made.numbers), inputs)
            return _box_function(made)
    except WeftError as error:
        _warn_or_raise(f"a graph of {len(module.graph.nodes)} ops runs in torch: {error}", settings)
        return _in_torch(module)
    told = {node: why for node, why in lost.items() if not is_report(node)}
    if told:
        _warn_or_raise(_name_ops(told), settings)
    return _part_graph(module, lost, settings)


def _box_function(function: Call) -> Call:
    """A function of one list, which is what torch hands over where it is told so."""

    def call(args: list[Any]) -> Any:
        return function(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _example(fake: Any) -> Any:
    """A stand-in for an argument: of its dtype, and its shape in numbers."""
    if isinstance(fake, torch.Tensor):
        return Shaped(fake.dtype, tuple(sized(size) for size in fake.shape))
    return sized(fake) if isinstance(fake, torch.SymInt) else fake


def _trace_graph(
    module: GraphModule, fakes: Sequence[Any], settings: Settings
) -> tuple[CompiledGraph, list[Any], dict[Node, str]]:
    """The graph, stand-ins for its arguments, and the nodes that Weft cannot carry out with why:
    those without a rule, and those whose rule refuses them when the graph is traced."""
    lost = dict.fromkeys(nodes_without_rule(module), "there is no rule for it")
    made = CompiledGraph(module, settings)
    inputs = [_example(fake) for fake in fakes]
    while True:
        try:
            made.trace(inputs, lost)
        except NodeFailed as failed:
            if failed.node in lost:
                raise failed.error from None
            lost[failed.node] = getattr(failed.error, "reason", "") or str(failed.error)
            continue
        return made, inputs, lost


def _name_ops(lost: Mapping[Node, str]) -> str:
    """One line with every op that runs in torch."""
    counts = Counter(name_of(node) for node in lost)
    parts = []
    for name, count in counts.items():
        node = next(node for node in lost if name_of(node) == name)
        times = f", {count} times" if count > 1 else ""
        parts.append(f"{name}{times}{shown(node)}: {clipped(lost[node], 200)}")
    return f"these ops run in torch: {'; '.join(parts)}"


def _warn_or_raise(what: str, settings: Settings) -> None:
    if settings.whole:
        raise Unimplemented("torch.compile", f"{what}; fullgraph=True needs all of them in Weft")
    warnings.warn(f"[weft] {clipped(what, 900)}", WeftWarning, stacklevel=2)


def _in_torch(module: GraphModule) -> Call:
    return _box_function(lambda args: module.forward(*args))


class _Supported(OperatorSupportBase):  # type: ignore[misc]
    """All nodes but the lost ones, those that write into inputs, and those with parts of the graph
    as operands: a part of a graph has tensors and numbers alone."""

    def __init__(self, lost: Mapping[Node, str]) -> None:
        self.lost = lost

    def is_node_supported(self, submodules: Any, node: Node) -> bool:
        if node.op != "call_function" or node in self.lost or is_arithmetic(node):
            return node.op == "call_function" and node not in self.lost and _of_tensors(node)
        name = name_of(node)
        return not name.endswith("copy_.default") and name not in CONTROL and _of_tensors(node)


def _of_tensors(node: Node) -> bool:
    """Whether a node gives tensors that Weft has."""
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(each, torch.Tensor) for each in values)


def _part_graph(module: GraphModule, lost: Mapping[Node, str], settings: Settings) -> Call:
    """The graph with every stretch of known ops as one program."""
    partitioner = CapabilityBasedPartitioner(
        module, _Supported(lost), allows_single_node_partition=False
    )
    fused = partitioner.fuse_partitions(partitioner.propose_partitions())
    for name, part in list(fused.named_children()):
        if isinstance(part, GraphModule) and name.startswith("fused_"):
            fused.add_submodule(name, _Part(part, settings))
    return _in_torch(fused)


class _Part(torch.nn.Module):  # type: ignore[misc]
    """A stretch of known ops."""

    def __init__(self, module: GraphModule, settings: Settings) -> None:
        super().__init__()
        self.made = CompiledGraph(module, settings)
        (results,) = list(module.graph.nodes)[-1].args
        self.single = not isinstance(results, list | tuple)

    def forward(self, *args: Any) -> Any:
        found = self.made(list(args))
        return found[0] if self.single else tuple(found)
