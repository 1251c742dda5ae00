"""From operands to one elementwise instruction: promotion, then explicit casts and broadcasts.

This is the hot path of capture: two tensors of one type become an instruction after two dictionary
look-ups, and everything else goes through `matched`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from weft.foundation.arrays import handed_in
from weft.foundation.dims import Shape
from weft.foundation.dtypes import F64, DType
from weft.foundation.errors import OutOfRange, UserError
from weft.foundation.lines import Line, user_line
from weft.foundation.memo import forgettable, memo
from weft.ops.calls import MISTAKES, explained
from weft.ops.graph.arena import Arena
from weft.ops.graph.context import arena_for, current
from weft.ops.graph.forms import broadcast_form, cast_form, form, plain_form
from weft.ops.graph.node import Form, Node
from weft.ops.numbers import Number, is_number, number, number_type, python_type
from weft.ops.promotion import DEFAULTS, EXACT, as_float, beside, promoted
from weft.ops.tensor import Tensor, from_array
from weft.ops.traced_numbers import UNFOLLOWED, TracedNumber, computed
from weft.ptir.literal import TensorLiteral
from weft.ptir.types import TensorType

TensorLike: TypeAlias = Tensor | Number | np.ndarray[Any, Any]

_PAIRS: dict[tuple[str, int], Form] = {}
"""The forms of ops on two operands of one type, by the name of the op and the type."""
_COMPARES: dict[tuple[str, int], Form] = {}
forgettable(_PAIRS.clear)
forgettable(_COMPARES.clear)


# -- shapes and dtypes ---------------------------------------------------------------------------


@memo(4096)
def broadcast_shapes(left: Shape, right: Shape) -> Shape:
    """The shape that both broadcast to, aligned at the last axis."""
    rank = max(len(left), len(right))
    padded = [(1,) * (rank - len(shape)) + shape for shape in (left, right)]
    result = []
    for a, b in zip(*padded, strict=True):
        if a != b and 1 not in (a, b):
            raise OutOfRange(
                "BroadcastDimsInvalid",
                f"lhs {listed(left)} and rhs {listed(right)} do not broadcast: "
                f"sizes {a} and {b} differ and neither is 1",
                "reshape one of them, or insert axes with None",
            )
        result.append(b if a == 1 else a)
    return tuple(result)


def broadcasts(shape: Shape, to: Shape) -> bool:
    """Whether a tensor of one shape can be repeated to another."""
    if len(shape) > len(to):
        return False
    aligned = to[len(to) - len(shape) :]
    return all(dim in (1, wanted) for dim, wanted in zip(shape, aligned, strict=True))


def listed(shape: Shape) -> str:
    """A shape as Python writes it."""
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def stretched(arena: Arena, node: Node, dtype: DType, shape: Shape, line: Line | None) -> Node:
    """A node in another dtype and shape: a cast and a broadcast, each only where it is needed."""
    kind = node.tensor
    if kind.dtype is not dtype:
        if isinstance(node.storage, TensorLiteral) and not kind.shape:
            node = arena.constant(number(node.storage.item().item(), dtype))
        else:
            node = arena.emit(cast_form(kind, dtype), (node,), line)
    if kind.shape != shape:
        node = arena.emit(broadcast_form(node.type, shape), (node,), line)
    return node


# -- operands ------------------------------------------------------------------------------------


def as_tensor(value: Any, arena: Arena | None = None) -> Tensor:
    """A tensor as it is; an array as a tensor in an arena; a traced number as the tensor that
    `asarray` makes of a number; nothing else."""
    tensor = as_operand(value, arena)
    dtype = DEFAULTS[python_type(tensor.dtype)]
    if tensor.number is None or dtype is tensor.dtype:
        return tensor
    return Tensor(stretched(arena_for(tensor._node), tensor._node, dtype, (), user_line()))


def as_operand(value: Any, arena: Arena | None = None) -> Tensor:
    """The same, but a traced number stays one, to take the dtype of what it meets."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return from_array(np.array(handed_in(value)), arena)
    raise UserError(
        f"a tensor is wanted here, not {type(value).__name__}; make one with weft.asarray"
    )


def number_kind(value: Any) -> type | None:
    """The type of a Python number, be it traced; None for anything else."""
    if isinstance(value, Tensor):
        return None if value.number is None else python_type(value.dtype)
    return number_type(value) if is_number(value) else None


def number_in(value: Any, dtype: DType, beside: Node) -> Tensor:
    """A number, be it traced, as a tensor of this dtype where another one is."""
    arena = arena_for(beside)
    if not isinstance(value, Tensor):
        return Tensor(arena.constant(number(value, dtype)))
    assert value.number is not None
    line = user_line()
    value.number.used_as(dtype, line)
    return Tensor(stretched(arena, value._node, dtype, (), line))


def common_dtype(x: Tensor, y: Tensor, floating: bool) -> DType:
    """The dtype that both are converted to; a traced number takes that of the other."""
    if (x.number is None) is (y.number is None):
        dtype = promoted(x.dtype, y.dtype)
    else:
        strong, number = (x, y) if x.number is None else (y, x)
        dtype = beside(strong.dtype, python_type(number.dtype))
    return _with_fractions(dtype, x, y) if floating else dtype


def _with_fractions(dtype: DType, *operands: Tensor) -> DType:
    """The dtype itself, or the float in which whole numbers are divided: numbers as Python does."""
    alone = dtype.is_integer and all(x.number is not None for x in operands)
    return F64 if alone else as_float(dtype)


def matched(
    x: TensorLike, y: TensorLike, line: Line | None, floating: bool = False
) -> tuple[Node, Node]:
    """Two operands in their common dtype and shape; at least one of them is a tensor. `floating`
    asks for a dtype with fractions."""
    if is_number(y):
        if is_number(x):
            raise UserError("at least one operand must be a tensor; make one with weft.asarray")
        return _beside_number(as_operand(x), y, line, floating)
    if is_number(x):
        right, left = _beside_number(as_operand(y), x, line, floating)
        return left, right
    tensor = x if isinstance(x, Tensor) else y
    arena = arena_for(tensor._node) if isinstance(tensor, Tensor) else current()
    a, b = as_operand(x, arena), as_operand(y, arena)
    dtype = common_dtype(a, b, floating)
    for each in (a, b):
        if each.number is not None:
            each.number.used_as(dtype, line)
    shape = broadcast_shapes(a.shape, b.shape)
    left = stretched(arena, a._node, dtype, shape, line)
    return left, stretched(arena, b._node, dtype, shape, line)


def _beside_number(x: Tensor, value: Any, line: Line | None, floating: bool) -> tuple[Node, Node]:
    """A tensor and a number, which takes its dtype unless its kind is larger, and its shape."""
    node, kind, arena = x._node, x.type, arena_for(x._node)
    if x.number is None:
        dtype = beside(kind.dtype, number_type(value))
    else:
        dtype = promoted(kind.dtype, EXACT[number_type(value)])
    if floating:
        dtype = _with_fractions(dtype, x)
    if dtype is not kind.dtype:
        node = arena.emit(cast_form(kind, dtype), (node,), line)
    constant = arena.constant(number(value, dtype))
    if kind.shape:
        wide = broadcast_form(constant.type, kind.shape)
        constant = arena.emit(wide, (constant,), line)
    return node, constant


def _result_tensor(node: Node, name: str, *operands: Any) -> Tensor:
    """The tensor of an instruction on these operands."""
    result = Tensor(node)
    if any(isinstance(x, Tensor) and x._wants_grad for x in operands):
        kind = node.tensor.dtype
        result.requires_grad = kind.is_float or kind.is_complex
    return numbered(result, name, *operands)


def numbered(result: Tensor, name: str, *operands: Any) -> Tensor:
    """The result of an instruction; of numbers alone it stands for a number too."""
    numbers: list[Any] = [x.number if isinstance(x, Tensor) else x for x in operands]
    if all(isinstance(x, TracedNumber) or is_number(x) for x in numbers):
        whole = result.dtype.is_integer
        result.number = computed(name, numbers, result._node.line) if whole else UNFOLLOWED
    return result


# -- instructions --------------------------------------------------------------------------------


def binary(name: str, x: Any, y: Any, called: str = "", floating: bool = False) -> Tensor:
    """One elementwise instruction on two operands."""
    line = user_line()
    try:
        if not floating and type(x) is type(y) is Tensor and x._node.type is y._node.type:
            a, b = x._node, y._node
        else:
            a, b = matched(x, y, line, floating)
        kind = a.type
        found = _PAIRS.get((name, id(kind)))
        if found is None:
            found = _PAIRS[name, id(kind)] = plain_form(name, kind, kind)
        node = arena_for(a).emit(found, (a, b), line)
    except MISTAKES as error:
        raise explained(called or name, error, line) from None
    return _result_tensor(node, name, x, y)


def comparison(op: str, x: Any, y: Any) -> Tensor:
    """Whether `x op y`, element by element."""
    line = user_line()
    try:
        if type(x) is type(y) is Tensor and x._node.type is y._node.type:
            a, b = x._node, y._node
        else:
            a, b = matched(x, y, line)
        found = _COMPARES.get((op, id(a.type)))
        if found is None:
            found = _COMPARES[op, id(a.type)] = form("compare", (a.type, a.type), {"op": op})
        return Tensor(arena_for(a).emit(found, (a, b), line))
    except MISTAKES as error:
        raise explained(op, error, line) from None


def unary(name: str, x: Any, called: str = "", floating: bool = False) -> Tensor:
    """One elementwise instruction on one operand; `floating` converts integers first."""
    line = user_line()
    try:
        operand = as_operand(x)
        node, arena = operand._node, arena_for(operand._node)
        kind = node.type
        if floating and isinstance(kind, TensorType):
            wanted = _with_fractions(kind.dtype, operand)
            if wanted is not kind.dtype:
                node = arena.emit(cast_form(kind, wanted), (node,), line)
        node = arena.emit(plain_form(name, node.type), (node,), line)
    except MISTAKES as error:
        raise explained(called or name, error, line) from None
    return _result_tensor(node, name, x)
