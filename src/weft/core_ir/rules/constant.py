"""Type rules of constants: what is held must be what is declared."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.core_ir.instructions import data_of, wholes
from weft.core_ir.literals import Unreadable
from weft.core_ir.rules.checks import Attributes, Rule, positive_dims
from weft.core_ir.types import TensorType, dtype_name, scalar, show_shape
from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError, SpecViolation


def scalar_constant(dtype: DType) -> Rule:
    def rule(attributes: Attributes, types: Sequence[TensorType], opcode: str) -> TensorType:
        data = data_of(attributes)
        if isinstance(data, Unreadable):
            raise SpecViolation(data.code, data.why, f"write one {dtype_name(dtype)} number")
        if data.type.shape:
            raise SpecViolation(
                "E3010",
                f"{opcode} holds a scalar, not {show_shape(data.type.shape)}",
                "use ConstTensor",
            )
        if data.type.dtype is not dtype:
            raise _wrong_data_dtype(data.type.dtype, dtype)
        return scalar(dtype)

    return rule


def const_tensor(attributes: Attributes, types: Sequence[TensorType], opcode: str) -> TensorType:
    data, dtype, shape = data_of(attributes), attributes["dtype"], wholes(attributes, "shape")
    if not isinstance(dtype, DType):
        raise InternalError("the dtype of a ConstTensor is not a dtype")
    positive_dims(shape, "shape")
    if isinstance(data, Unreadable):
        raise SpecViolation(
            data.code,
            data.why,
            f"write {math.prod(shape)} {dtype_name(dtype)} numbers in the "
            f"shape {show_shape(shape)}",
        )
    if data.type.dtype is not dtype:
        raise _wrong_data_dtype(data.type.dtype, dtype)
    held = data.type.static_shape
    if held == shape:
        return TensorType(dtype, shape)
    if len(held) == 1 != len(shape):
        raise SpecViolation(
            "E4005",
            f"the shape {show_shape(shape)} takes {math.prod(shape)} elements in "
            f"{len(shape)} levels of lists, the data are {held[0]} in one",
            f"write {math.prod(shape)} numbers, one list for each axis",
        )
    raise SpecViolation(
        "E3010",
        f"the data have the shape {show_shape(held)}, declared is {show_shape(shape)}",
        f"declare {show_shape(held)}",
    )


def _wrong_data_dtype(held: DType, declared: DType) -> SpecViolation:
    return SpecViolation(
        "E2004",
        f"the data are {dtype_name(held)}, declared is {dtype_name(declared)}",
        "declare the dtype of the data",
    )
