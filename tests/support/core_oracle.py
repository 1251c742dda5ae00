"""What Core IR modules mean, in plain NumPy: written from the specification, one function for each
instruction, and sharing nothing with the lowering that it judges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.support.one_op import Array
from weft.core_ir import CoreOperation, Module
from weft.core_ir.instructions import Padding

Attributes = Any


def evaluate(module: Module, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a module."""
    values: dict[int, Array] = {}
    given = iter(inputs)
    with np.errstate(all="ignore"):
        for op in module.operations:
            if op.opcode == "Input":
                values[op.value_id] = next(given)
            else:
                found = apply(op, [values[i] for i in op.operands])
                assert found.shape == op.result_type.shape, f"{op.summary}: {found.shape}"
                assert found.dtype == op.result_type.dtype.numpy, f"{op.summary}: {found.dtype}"
                values[op.value_id] = found
    return [values[i] for i in module.outputs]


def apply(op: CoreOperation, args: Sequence[Array]) -> Array:
    return np.asarray(MEANINGS[op.opcode](op.attributes, *args))


def constant(attributes: Attributes) -> Array:
    data = attributes["data"] if "data" in attributes else attributes["value"]
    return np.asarray(data.array)


def divide(attributes: Attributes, a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    if not b.all():
        raise ZeroDivisionError
    quotient = np.abs(a.astype(object)) // np.abs(b.astype(object))
    signed = np.where((a < 0) == (b < 0), quotient, -quotient)
    return np.asarray(signed.astype(object) % 2**64).astype(np.uint64).astype(a.dtype)


def reduced(attributes: Attributes, x: Array) -> tuple[Array, int]:
    axes = tuple(attributes["axes"]) or tuple(range(x.ndim))
    keep = attributes["keepdims"] and bool(attributes["axes"])
    total = np.sum(x, axis=axes, keepdims=keep, dtype=x.dtype) if x.ndim else x
    return np.asarray(total), int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))


def mean(attributes: Attributes, x: Array) -> Array:
    total, count = reduced(attributes, x)
    if x.dtype.kind == "f":
        return np.asarray(total / x.dtype.type(count), x.dtype)
    quotients = [int(abs(int(v)) // count) * (-1 if v < 0 else 1) for v in total.reshape(-1)]
    return np.array(quotients, x.dtype).reshape(total.shape)


def expand_dims(attributes: Attributes, x: Array) -> Array:
    return np.expand_dims(x, tuple(attributes["axes"]))


def index(attributes: Attributes, x: Array) -> Array:
    where = attributes["indices"]
    if any(not 0 <= i < n for i, n in zip(where, x.shape, strict=True)):
        raise IndexError
    return np.asarray(x[tuple(where)])


def slice_(attributes: Attributes, x: Array) -> Array:
    for axis in range(x.ndim):
        start, end = (max(attributes[name][axis], 0) for name in ("starts", "ends"))
        kept = list(range(start, min(end, x.shape[axis]), attributes["steps"][axis]))
        x = np.take(x, np.array(kept, np.int64), axis=axis)
    return x


def gather(attributes: Attributes, x: Array, indices: Array) -> Array:
    if indices.size and (indices.min() < 0 or indices.max() >= x.shape[0]):
        raise IndexError
    return x[indices]


def around(size: int, kernel: int, stride: int, padding: Padding, axis: int) -> tuple[int, int]:
    if padding.kind == "Valid":
        return 0, 0
    if padding.kind == "Custom":
        low, high = padding.pairs[axis]
        return low, high
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def conv2d(attributes: Attributes, x: Array, kernel: Array) -> Array:
    strides, padding = attributes["strides"], attributes["padding"]
    sides = [around(x.shape[1 + i], kernel.shape[i], strides[i], padding, i) for i in range(2)]
    board = np.pad(x, [(0, 0), *sides, (0, 0)])
    height, width = kernel.shape[:2]
    rows = range(0, board.shape[1] - height + 1, strides[0])
    columns = range(0, board.shape[2] - width + 1, strides[1])
    out = np.zeros((x.shape[0], len(rows), len(columns), kernel.shape[3]), x.dtype)
    for i, top in enumerate(rows):
        for j, left in enumerate(columns):
            patch = board[:, top : top + height, left : left + width, :]
            out[:, i, j, :] = np.einsum("nhwc,hwcf->nf", patch, kernel)
    return out


def relu(attributes: Attributes, x: Array) -> Array:
    return np.where(x > 0, x, x.dtype.type(0))


def relu_backward(attributes: Attributes, x: Array, g: Array) -> Array:
    return np.where(x > 0, g, g.dtype.type(0))


def slice_backward(attributes: Attributes, g: Array) -> Array:
    out = np.zeros(attributes["shape"], g.dtype)
    where = [
        start + np.arange(n) * step
        for start, step, n in zip(attributes["starts"], attributes["steps"], g.shape, strict=True)
    ]
    out[np.ix_(*where)] = g
    return out


def gather_backward(attributes: Attributes, g: Array, indices: Array) -> Array:
    out = np.zeros((attributes["rows"], *g.shape[indices.ndim :]), g.dtype)
    for at in np.ndindex(indices.shape):
        out[indices[at]] += g[at]
    return out


def linear_gradient(function: Callable[[Array], Array], like: Array, g: Array) -> Array:
    """The gradient of a linear function, by asking it about one element after the other."""
    out = np.zeros_like(like)
    for at in np.ndindex(like.shape):
        unit = np.zeros_like(like)
        unit[at] = 1
        out[at] = np.sum(function(unit) * g)
    return out


def conv2d_backward_input(attributes: Attributes, g: Array, kernel: Array) -> Array:
    like = np.zeros(attributes["shape"], g.dtype)
    return linear_gradient(lambda x: conv2d(attributes, x, kernel), like, g)


def conv2d_backward_filter(attributes: Attributes, x: Array, g: Array) -> Array:
    like = np.zeros(attributes["shape"], g.dtype)
    return linear_gradient(lambda kernel: conv2d(attributes, x, kernel), like, g)


MEANINGS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("ConstI64", "ConstF32", "ConstF64", "ConstTensor"), constant),
    "Add": lambda attributes, a, b: a + b,
    "Sub": lambda attributes, a, b: a - b,
    "Mul": lambda attributes, a, b: a * b,
    "Div": divide,
    "Sum": lambda attributes, x: reduced(attributes, x)[0],
    "Mean": mean,
    "Reshape": lambda attributes, x: x.reshape(attributes["new_shape"]),
    "Transpose": lambda attributes, x: x.transpose(attributes["permutation"]),
    "ExpandDims": expand_dims,
    "Squeeze": lambda attributes, x: np.squeeze(x, tuple(attributes["axes"])),
    "Index": index,
    "Slice": slice_,
    "Gather": gather,
    "Dot": lambda attributes, a, b: np.dot(a, b),
    "MatMul": lambda attributes, a, b: np.matmul(a, b),
    "Conv2d": conv2d,
    "Relu": relu,
    "Neg": lambda attributes, x: -x,
    "Exp": lambda attributes, x: np.exp(x),
    "Log": lambda attributes, x: np.log(x),
    "BroadcastTo": lambda attributes, x: np.broadcast_to(x, attributes["shape"]),
    "Reciprocal": lambda attributes, x: (1 / x).astype(x.dtype),
    "ReluBackward": relu_backward,
    "SliceBackward": slice_backward,
    "GatherBackward": gather_backward,
    "Conv2dBackwardInput": conv2d_backward_input,
    "Conv2dBackwardFilter": conv2d_backward_filter,
}
