"""Type rules of elementwise instructions: binary ones broadcast, the others keep their shape."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core_ir.instructions import wholes
from weft.core_ir.rules.checks import Attributes, broadcast, floats_only, not_negative, same_dtype
from weft.core_ir.types import TensorType, show_shape
from weft.foundation.errors import SpecViolation


def binary(attributes: Attributes, types: Sequence[TensorType], opcode: str) -> TensorType:
    dtype = same_dtype(types, opcode)
    return TensorType(dtype, broadcast(types[0].shape, types[1].shape, opcode))


def float_function(attributes: Attributes, types: Sequence[TensorType], opcode: str) -> TensorType:
    floats_only(types[0], opcode)
    return types[0]


def same(attributes: Attributes, types: Sequence[TensorType], opcode: str) -> TensorType:
    return types[0]


def relu_backward(attributes: Attributes, types: Sequence[TensorType], opcode: str) -> TensorType:
    x, gradient = types
    same_dtype(types, opcode)
    floats_only(x, opcode)
    if x.shape != gradient.shape:
        raise SpecViolation(
            "E3003",
            f"the operands of {opcode} have shapes {show_shape(x.shape)} and "
            f"{show_shape(gradient.shape)}",
            "both have one shape",
        )
    return x


def broadcast_to(attributes: Attributes, types: Sequence[TensorType], opcode: str) -> TensorType:
    (x,) = types
    shape = wholes(attributes, "shape")
    not_negative(shape, opcode)
    if x.rank > len(shape) or broadcast(shape, x.shape, opcode) != shape:
        raise SpecViolation(
            "E3001",
            f"{show_shape(x.shape)} does not broadcast to {show_shape(shape)}",
            "each dim is 1 or the dim of the result, aligned at the right",
        )
    return x.with_shape(shape)
