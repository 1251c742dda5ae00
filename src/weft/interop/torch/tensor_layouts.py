"""Memory layouts of torch tensors in a graph, and which results are views of inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.fx import Node

Order = tuple[int, ...] | None
"""The axes of a tensor as they lie, the slowest first; None where they lie in order."""

_VIEWS: Final = frozenset(
    getattr(torch.ops.aten, name)
    for name in ("alias", "detach", "permute", "squeeze", "t", "transpose", "unsqueeze", "view")
)
"""Ops that show all elements of a tensor where they are."""


def order_of(fake: Any) -> Order:
    """How a tensor lies that torch says this of; one with open sizes is taken to lie in order."""
    sizes = (*fake.shape, *(fake.stride() if fake.layout is torch.strided else ()))
    if fake.layout is not torch.strided or not all(isinstance(size, int) for size in sizes):
        return None
    if fake.is_contiguous() or not fake.numel():
        return None
    order = tuple(sorted(range(fake.ndim), key=lambda axis: -fake.stride()[axis]))
    return None if order == tuple(range(fake.ndim)) else order


def in_order(shape: Sequence[Any], order: Order) -> tuple[Any, ...]:
    """The sizes of axes as they lie."""
    return tuple(shape) if order is None else tuple(shape[axis] for axis in order)


def back(order: tuple[int, ...]) -> tuple[int, ...]:
    """Where each axis lies."""
    return tuple(order.index(axis) for axis in range(len(order)))


def lying(tensor: torch.Tensor, order: Order) -> torch.Tensor:
    """A tensor with its axes as they lie."""
    return tensor if order is None else tensor.permute(order)


def views_from(node: Node) -> list[Node]:
    """The ops by which a node shows an input, the first one first; none where it does not."""
    found: list[Node] = []
    while node.op == "call_function":
        packet = getattr(node.target, "overloadpacket", None)
        first = node.args[0] if node.args else None
        more = [*node.args[1:], *node.kwargs.values()]
        if packet not in _VIEWS or not isinstance(first, Node) or _has_nodes(more):
            return []
        found.append(node)
        node = first
    return found[::-1] if node.op == "placeholder" else []


def _has_nodes(values: Any) -> bool:
    if isinstance(values, list | tuple):
        return any(map(_has_nodes, values))
    return isinstance(values, Node)


def shown_by(views: Sequence[Node], tensor: torch.Tensor) -> torch.Tensor:
    """An input as these ops show it."""
    for node in views:
        function: Any = node.target
        tensor = function(tensor, *node.args[1:], **node.kwargs)
    return tensor
