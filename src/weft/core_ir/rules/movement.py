"""Type rules of reductions and of instructions that change a shape and no element."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.core_ir import suggest
from weft.core_ir.instructions import flag, wholes
from weft.core_ir.rules.checks import (
    Attributes,
    new_axes,
    normal_axes,
    positive_dims,
    reduced_axes,
)
from weft.core_ir.types import TensorType, dtype_name, scalar, show_shape
from weft.foundation.errors import SpecViolation


def reduction(attributes: Attributes, types: Sequence[TensorType], opcode: str) -> TensorType:
    (x,) = types
    axes = reduced_axes(attributes, x.rank, opcode)
    if opcode == "Mean" and x.dtype.is_integer and 0 in (x.shape[axis] for axis in axes):
        raise SpecViolation(
            "E3006",
            f"the mean of no {dtype_name(x.dtype)} elements has no value: axes "
            f"{show_shape(axes)} of {show_shape(x.shape)} are empty",
            "make the slice before it wider",
        )
    if not wholes(attributes, "axes"):
        return scalar(x.dtype)
    if flag(attributes, "keepdims"):
        return x.with_shape(1 if axis in axes else dim for axis, dim in enumerate(x.shape))
    return x.with_shape(dim for axis, dim in enumerate(x.shape) if axis not in axes)


def reshape(attributes: Attributes, types: Sequence[TensorType], opcode: str) -> TensorType:
    (x,) = types
    new_shape = wholes(attributes, "new_shape")
    if new_shape.count(-1) > 1:
        raise SpecViolation(
            "E3006",
            f"new_shape {show_shape(new_shape)} leaves more than one dim to infer",
            "only one may be -1",
        )
    positive_dims([1 if dim == -1 else dim for dim in new_shape], "new_shape")
    others = math.prod(dim for dim in new_shape if dim != -1)
    inferred = x.size // others
    shape = tuple(inferred if dim == -1 else dim for dim in new_shape)
    if math.prod(shape) != x.size:
        raise SpecViolation(
            "E3007",
            f"{show_shape(x.shape)} has {x.size} elements, which do not make "
            f"{show_shape(new_shape)}",
            suggest.nearest_shape(x.size, shape),
        )
    return x.with_shape(shape)


def transpose(attributes: Attributes, types: Sequence[TensorType], opcode: str) -> TensorType:
    (x,) = types
    permutation = wholes(attributes, "permutation")
    normal = [axis + x.rank if -x.rank <= axis < 0 else axis for axis in permutation]
    if sorted(normal) != list(range(x.rank)):
        raise SpecViolation(
            "E3008",
            f"{show_shape(permutation)} is not a permutation of the {x.rank} axes of "
            f"{show_shape(x.shape)}",
            suggest.completed_permutation(normal, x.rank),
        )
    return x.with_shape(x.shape[axis] for axis in normal)


def expand_dims(attributes: Attributes, types: Sequence[TensorType], opcode: str) -> TensorType:
    (x,) = types
    shape = list(x.shape)
    for axis in new_axes(wholes(attributes, "axes"), x.rank, opcode):
        shape.insert(axis, 1)
    return x.with_shape(shape)


def squeeze(attributes: Attributes, types: Sequence[TensorType], opcode: str) -> TensorType:
    (x,) = types
    axes = normal_axes(wholes(attributes, "axes"), x.rank, opcode)
    for axis in axes:
        if x.shape[axis] != 1:
            raise SpecViolation(
                "E3009",
                f"axis {axis} of {show_shape(x.shape)} has size {x.shape[axis]}, not 1",
                suggest.single_axes(x.shape),
            )
    return x.with_shape(dim for axis, dim in enumerate(x.shape) if axis not in axes)
