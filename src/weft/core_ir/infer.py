"""The type of a result from the types of the operands and the attributes.

A rule raises a `SpecViolation` with a stable code, the reason and a suggestion, and leaves the
place to whoever knows it: the verifier, the builder, the surface language.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from weft.core_ir.instructions import BINARY, instruction
from weft.core_ir.rules import constant, contraction, elementwise, indexing, movement
from weft.core_ir.rules.checks import Attributes, Rule
from weft.core_ir.types import TensorType
from weft.foundation.dtypes import F32, F64, SI64
from weft.foundation.errors import InternalError, SpecViolation
from weft.foundation.limits import Limits

MAX_ELEMENTS: Final = 2**59 - 1
"""Then every tensor has fewer than 2^63 bytes; PTIR has the same bound."""

RULES: Final[Mapping[str, Rule]] = {
    "ConstI64": constant.scalar_constant(SI64),
    "ConstF32": constant.scalar_constant(F32),
    "ConstF64": constant.scalar_constant(F64),
    "ConstTensor": constant.const_tensor,
    **dict.fromkeys(BINARY, elementwise.binary),
    "Sum": movement.reduction,
    "Mean": movement.reduction,
    "Reshape": movement.reshape,
    "Transpose": movement.transpose,
    "ExpandDims": movement.expand_dims,
    "Squeeze": movement.squeeze,
    "Index": indexing.index,
    "Slice": indexing.slice_,
    "Gather": indexing.gather,
    "Dot": contraction.dot,
    "MatMul": contraction.matmul,
    "Conv2d": contraction.conv2d,
    "Relu": elementwise.float_function,
    "Neg": elementwise.same,
    "Exp": elementwise.float_function,
    "Log": elementwise.float_function,
    "BroadcastTo": elementwise.broadcast_to,
    "Reciprocal": elementwise.float_function,
    "ReluBackward": elementwise.relu_backward,
    "SliceBackward": indexing.slice_backward,
    "GatherBackward": indexing.gather_backward,
    "Conv2dBackwardInput": contraction.conv2d_backward_input,
    "Conv2dBackwardFilter": contraction.conv2d_backward_filter,
}
"""Every opcode but `Input`, whose type is what it declares."""


def infer(opcode: str, attributes: Attributes, types: Sequence[TensorType]) -> TensorType:
    """The type of the result, or a violation."""
    rule = RULES.get(opcode)
    if rule is None:
        raise InternalError(f"{instruction(opcode).opcode} has no type rule")
    found = rule(attributes, types, opcode)
    check_bounds(found)
    return found


def check_bounds(kind: TensorType) -> None:
    """A tensor has at most 64 axes and a countable number of elements."""
    if kind.rank > Limits.rank:
        raise SpecViolation(
            "E3002",
            f"a tensor of rank {kind.rank} is more than Weft holds",
            f"at most {Limits.rank} axes",
        )
    if math.prod(max(dim, 1) for dim in kind.shape) > MAX_ELEMENTS:
        raise SpecViolation("E3003", f"{kind} has more than 2^59 - 1 elements", "use smaller dims")
