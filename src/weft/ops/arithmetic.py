"""Operators and the elementwise functions behind them: promotion, then explicit broadcasts, then
one PTIR instruction.

This is the hot path of capture: two tensors of one type become an instruction after two dictionary
look-ups, and everything else goes through `matched`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from weft.foundation.dims import Shape
from weft.foundation.dtypes import DType
from weft.foundation.errors import SpecViolation, UserError
from weft.ops.calls import explained
from weft.ops.graph.arena import Arena
from weft.ops.graph.context import current
from weft.ops.graph.forms import form, plain_form
from weft.ops.graph.node import Node
from weft.ops.lines import Line, user_line
from weft.ops.promotion import beside, promoted
from weft.ops.tensor import Tensor, from_array
from weft.ptir.literal import TensorLiteral, literal

Number: TypeAlias = bool | int | float | complex
TensorLike: TypeAlias = Tensor | Number | np.ndarray[Any, Any]


@lru_cache(4096)
def _number(kind: Any, text: str, dtype: DType) -> TensorLiteral:
    value = kind(text) if kind is not bool else text == "True"
    return literal(value, dtype)


def number(value: Number, dtype: DType) -> TensorLiteral:
    """A Python number as a rank-0 constant; the same number gives the same object."""
    if isinstance(value, float | complex) and not (dtype.is_float or dtype.is_complex):
        raise UserError(f"the number {value!r} is not representable in {dtype}")
    kind: Any = type(value)
    return _number(kind, repr(value), dtype)


def broadcast_shapes(left: Shape, right: Shape) -> Shape:
    """The shape that both broadcast to, aligned at the last axis."""
    if left == right:
        return left
    rank = max(len(left), len(right))
    padded = [(1,) * (rank - len(shape)) + shape for shape in (left, right)]
    result = []
    for a, b in zip(*padded, strict=True):
        if a != b and 1 not in (a, b):
            raise SpecViolation(
                "BroadcastDimsInvalid",
                f"shapes {_listed(left)} and {_listed(right)} do not broadcast: "
                f"sizes {a} and {b} differ and neither is 1",
                "reshape one of them, or insert axes with None",
            )
        result.append(b if a == 1 else a)
    return tuple(result)


def _listed(shape: Shape) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def stretched(arena: Arena, node: Node, dtype: DType, shape: Shape, line: Line | None) -> Node:
    """A node in another dtype and shape: a cast, a reshape that adds leading axes, a broadcast,
    each only where it is needed."""
    kind = node.tensor
    if kind.dtype is not dtype:
        if isinstance(node.storage, TensorLiteral) and not kind.shape:
            node = arena.constant(number(node.storage.item().item(), dtype))
        else:
            node = arena.emit(form("cast", (kind,), {"dtype": dtype}), (node,), line)
    if kind.shape != shape:
        if 0 < len(kind.shape) < len(shape):
            aligned = (1,) * (len(shape) - len(kind.shape)) + kind.shape
            made = form("reshape", (node.type,), {"new_shape": aligned})
            node = arena.emit(made, (node,), line)
        if node.tensor.shape != shape:
            made = form("broadcast_to", (node.type,), {"result_shape": shape})
            node = arena.emit(made, (node,), line)
    return node


def as_tensor(value: Any) -> Tensor:
    """A tensor as it is; an array as a tensor; nothing else."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return from_array(np.array(value))
    raise UserError(f"a tensor is wanted here, not {type(value).__name__}")


def matched(x: TensorLike, y: TensorLike, line: Line | None) -> tuple[Node, Node]:
    """Two operands in their common dtype and shape; at least one of them is a tensor."""
    arena = current()
    if isinstance(x, Number) and isinstance(y, Number):
        raise UserError("at least one operand must be a tensor")
    if isinstance(y, Number):
        node = as_tensor(x)._node
        kind: Any = type(y)
        dtype = beside(node.tensor.dtype, kind)
        left = stretched(arena, node, dtype, node.tensor.shape, line)
        right = arena.constant(number(y, dtype))
        return left, stretched(arena, right, dtype, left.tensor.shape, line)
    if isinstance(x, Number):
        right, left = matched(y, x, line)
        return left, right
    a, b = as_tensor(x)._node, as_tensor(y)._node
    dtype = promoted(a.tensor.dtype, b.tensor.dtype)
    shape = broadcast_shapes(a.tensor.shape, b.tensor.shape)
    return stretched(arena, a, dtype, shape, line), stretched(arena, b, dtype, shape, line)


def _wants_grad(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


def binary(name: str, x: Any, y: Any, called: str = "", **attrs: Any) -> Tensor:
    """One elementwise instruction on two operands."""
    line = user_line()
    try:
        if type(x) is Tensor and type(y) is Tensor and x._node.type is y._node.type:
            a, b = x._node, y._node
        else:
            a, b = matched(x, y, line)
        kind = a.type
        made = form(name, (kind, kind), attrs) if attrs else plain_form(name, kind, kind)
        node = current().emit(made, (a, b), line)
    except (SpecViolation, UserError) as error:
        raise explained(called or name, error, line) from None
    return Tensor(node, _wants_grad(x) or _wants_grad(y))


def unary(name: str, x: Any, called: str = "") -> Tensor:
    """One elementwise instruction on one operand."""
    line = user_line()
    try:
        node = as_tensor(x)._node
        made = plain_form(name, node.type)
        return Tensor(current().emit(made, (node,), line), _wants_grad(x))
    except (SpecViolation, UserError) as error:
        raise explained(called or name, error, line) from None


def _operator(name: str, called: str, swap: bool, attrs: dict[str, Any]) -> Callable[..., Any]:
    def forward(self: Tensor, other: Any) -> Any:
        if not isinstance(other, Tensor | Number | np.ndarray | np.generic):
            return NotImplemented
        return binary(name, self, other, called, **attrs)

    def backward(self: Tensor, other: Any) -> Any:
        if not isinstance(other, Tensor | Number | np.ndarray | np.generic):
            return NotImplemented
        return binary(name, other, self, called, **attrs)

    return backward if swap else forward


_OPERATORS = {"add": "add", "sub": "sub", "mul": "mul"}
_COMPARISONS = {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal",
    "ne": "not_equal",
}  # fmt: skip
for _short, _name in _OPERATORS.items():
    setattr(Tensor, f"__{_short}__", _operator(_name, _name, False, {}))
    setattr(Tensor, f"__r{_short}__", _operator(_name, _name, True, {}))
for _short, _name in _COMPARISONS.items():
    setattr(Tensor, f"__{_short}__", _operator("compare", _name, False, {"op": _name}))
Tensor.__neg__ = lambda self: unary("neg", self)  # type: ignore[method-assign]
