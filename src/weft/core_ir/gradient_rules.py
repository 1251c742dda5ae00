"""The gradient rules of Core IR: from the gradient of a result to those of its operands.

A rule appends operations to the module and answers one value for each operand, or None for an
operand that has no gradient. Gradients have the shapes of what they belong to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from weft.core_ir.builder import ModuleBuilder
from weft.core_ir.instructions import Attribute, wholes
from weft.core_ir.ir import CoreOperation
from weft.core_ir.rules.checks import normal_axes, reduced_axes
from weft.core_ir.rules.indexing import sliced
from weft.core_ir.types import Shape
from weft.foundation.axes import inverse

Gradients: TypeAlias = Sequence[int | None]
Rule: TypeAlias = Callable[[ModuleBuilder, CoreOperation, int], Gradients]


def _sum_to_shape(b: ModuleBuilder, g: int, shape: Shape) -> int:
    """A gradient summed over the axes along which an operand of `shape` was broadcast."""
    wide = b.shape(g)
    extra = len(wide) - len(shape)
    axes = [
        axis
        for axis, dim in enumerate(wide)
        if axis < extra or (shape[axis - extra] == 1 and dim != 1)
    ]
    summed = b.emit("Sum", g, axes=axes, keepdims=False) if axes else g
    return _reshape_gradient(b, summed, shape)


def _reshape_gradient(b: ModuleBuilder, g: int, shape: Shape) -> int:
    kind = b.type(g)
    if kind.shape == shape:
        return g
    # Reshape takes positive dims only; what has no elements has no gradient to move.
    return (
        b.full(0.0, kind.with_shape(shape)) if 0 in shape else b.emit("Reshape", g, new_shape=shape)
    )


def _add(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    return [_sum_to_shape(b, g, b.shape(x)) for x in op.operands]


def _sub(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    lhs, rhs = op.operands
    return [_sum_to_shape(b, g, b.shape(lhs)), _sum_to_shape(b, b.emit("Neg", g), b.shape(rhs))]


def _mul(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    lhs, rhs = op.operands
    return [
        _sum_to_shape(b, b.emit("Mul", g, rhs), b.shape(lhs)),
        _sum_to_shape(b, b.emit("Mul", g, lhs), b.shape(rhs)),
    ]


def _sum_gradient(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    return [_repeat_gradient(b, op, g)]


def _mean_gradient(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    shape = b.shape(op.operands[0])
    count = math.prod(shape[axis] for axis in reduced_axes(op.attributes, len(shape), op.opcode))
    dtype = b.type(g).dtype
    share = b.constant(np.asarray(1.0 / count if count else 0.0, dtype.numpy), dtype)
    return [_repeat_gradient(b, op, b.emit("Mul", g, share))]


def _repeat_gradient(b: ModuleBuilder, op: CoreOperation, g: int) -> int:
    """The gradient of a reduction repeated over the axes that it took away."""
    shape = b.shape(op.operands[0])
    axes = reduced_axes(op.attributes, len(shape), op.opcode)
    kept = tuple(1 if axis in axes else dim for axis, dim in enumerate(shape))
    if 0 in shape:
        return b.full(0.0, b.type(op.operands[0]))
    column = _reshape_gradient(b, g, kept) if b.shape(g) else g
    return b.emit("BroadcastTo", column, shape=shape) if b.shape(column) != shape else column


def _relu(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    return [b.emit("ReluBackward", op.operands[0], g)]


def _neg(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    return [b.emit("Neg", g)]


def _exp(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    return [b.emit("Mul", g, op.value_id)]


def _log(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    return [b.emit("Mul", g, b.emit("Reciprocal", op.operands[0]))]


def _reciprocal(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    square = b.emit("Mul", op.value_id, op.value_id)
    return [b.emit("Neg", b.emit("Mul", g, square))]


def _relu_backward(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    return [None, b.emit("ReluBackward", op.operands[0], g)]


# -- movement and positions ----------------------------------------------------------------------


def _reshape(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    return [_reshape_gradient(b, g, b.shape(op.operands[0]))]


def _transpose(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    permutation = wholes(op.attributes, "permutation")
    normal = normal_axes(permutation, len(permutation), op.opcode)
    return [b.emit("Transpose", g, permutation=inverse(normal))]


def _broadcast_to(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    return [_sum_to_shape(b, g, b.shape(op.operands[0]))]


def _index_gradient(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    shape = b.shape(op.operands[0])
    ones = (1,) * len(shape)
    starts = wholes(op.attributes, "indices")
    element = _reshape_gradient(b, g, ones)
    return [b.emit("SliceBackward", element, shape=shape, starts=starts, steps=ones)]


def _slice(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    shape = b.shape(op.operands[0])
    ranges = sliced(op.attributes, shape)
    starts, steps = [r.start for r in ranges], [r.step for r in ranges]
    return [b.emit("SliceBackward", g, shape=shape, starts=starts, steps=steps)]


def _slice_backward(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    starts, steps = wholes(op.attributes, "starts"), wholes(op.attributes, "steps")
    sizes = b.shape(op.operands[0])
    places = zip(starts, sizes, steps, strict=True)
    ends = [start + (size - 1) * step + 1 if size else start for start, size, step in places]
    return [b.emit("Slice", g, starts=starts, ends=ends, steps=steps)]


def _gather(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    x, indices = op.operands
    return [b.emit("GatherBackward", g, indices, rows=b.shape(x)[0]), None]


def _gather_backward(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    return [b.emit("Gather", g, op.operands[1]), None]


# -- sums of products ----------------------------------------------------------------------------


def _dot_gradient(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    lhs, rhs = op.operands
    match len(b.shape(lhs)), len(b.shape(rhs)):
        case 1, 1:
            return [b.emit("Mul", g, rhs), b.emit("Mul", g, lhs)]
        case 2, 1:
            return [b.emit("Mul", _as_column(b, g), rhs), b.emit("Dot", g, lhs)]
        case 1, 2:
            return [b.emit("Dot", rhs, g), b.emit("Mul", _as_column(b, lhs), g)]
    return _matmul(b, op, g)


def _as_column(b: ModuleBuilder, x: int) -> int:
    return b.emit("ExpandDims", x, axes=[1])


def _matmul(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    lhs, rhs = op.operands
    for_lhs = _sum_to_shape(b, b.emit("MatMul", g, _swap_last_axes(b, rhs)), b.shape(lhs))
    if len(b.shape(rhs)) == 2 and 0 not in b.shape(lhs) + b.shape(rhs):
        # One product of tall matrices instead of one a batch that are then added up.
        lhs, g = _flatten_batch(b, lhs), _flatten_batch(b, g)
    return [for_lhs, _sum_to_shape(b, b.emit("MatMul", _swap_last_axes(b, lhs), g), b.shape(rhs))]


def _swap_last_axes(b: ModuleBuilder, x: int) -> int:
    """The last two axes exchanged."""
    rank = len(b.shape(x))
    return b.emit("Transpose", x, permutation=[*range(rank - 2), rank - 1, rank - 2])


def _flatten_batch(b: ModuleBuilder, x: int) -> int:
    """A batch of matrices as one, row under row."""
    shape = b.shape(x)
    return x if len(shape) == 2 else b.emit("Reshape", x, new_shape=(-1, shape[-1]))


def _conv2d(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    x, kernel = op.operands
    return [
        b.emit("Conv2dBackwardInput", g, kernel, shape=b.shape(x), **_moves(op)),
        b.emit("Conv2dBackwardFilter", x, g, shape=b.shape(kernel), **_moves(op)),
    ]


def _conv2d_backward_input(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    outer, kernel = op.operands
    return [
        b.emit("Conv2d", g, kernel, **_moves(op)),
        b.emit("Conv2dBackwardFilter", g, outer, shape=b.shape(kernel), **_moves(op)),
    ]


def _conv2d_backward_filter(b: ModuleBuilder, op: CoreOperation, g: int) -> Gradients:
    x, outer = op.operands
    return [
        b.emit("Conv2dBackwardInput", outer, g, shape=b.shape(x), **_moves(op)),
        b.emit("Conv2d", x, g, **_moves(op)),
    ]


def _moves(op: CoreOperation) -> dict[str, Attribute]:
    """How the kernel moves, the same forwards and backwards."""
    return {name: op.attributes[name] for name in ("strides", "padding")}


GRADIENTS: Final[Mapping[str, Rule]] = {
    "Add": _add,
    "Sub": _sub,
    "Mul": _mul,
    "Sum": _sum_gradient,
    "Mean": _mean_gradient,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "ExpandDims": _reshape,
    "Squeeze": _reshape,
    "Index": _index_gradient,
    "Slice": _slice,
    "Gather": _gather,
    "Dot": _dot_gradient,
    "MatMul": _matmul,
    "Conv2d": _conv2d,
    "Relu": _relu,
    "Neg": _neg,
    "Exp": _exp,
    "Log": _log,
    "BroadcastTo": _broadcast_to,
    "Reciprocal": _reciprocal,
    "ReluBackward": _relu_backward,
    "SliceBackward": _slice_backward,
    "GatherBackward": _gather_backward,
    "Conv2dBackwardInput": _conv2d_backward_input,
    "Conv2dBackwardFilter": _conv2d_backward_filter,
}
"""Every opcode that has operands but `Div`, to which the specification gives no gradient."""
