"""What dot_general refuses, with the exact reason."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cases import each
from tests.support.one_op import infer
from weft.foundation.dtypes import BF16, F16, F32, F64, SI8, SI32, UI32, DType
from weft.foundation.errors import SpecViolation
from weft.ptir.ops.contraction import DotGeneral
from weft.ptir.types import ValueType, tensor


def dot(
    batch: tuple[Any, Any] = ((), ()),
    contract: tuple[Any, Any] = ((1,), (0,)),
    accum: DType | None = None,
    out: DType | None = None,
) -> DotGeneral:
    return DotGeneral(batch[0], batch[1], contract[0], contract[1], accum, out)


A, B = tensor("f32", [2, 3]), tensor("f32", [3, 4])
A3, B3 = tensor("f32", [5, 2, 3]), tensor("f32", [5, 3, 4])
HALF = tensor("f16", [2, 3]), tensor("f16", [3, 4])
BYTES = tensor("si8", [2, 3]), tensor("si8", [3, 4])

CASES: list[tuple[DotGeneral, list[ValueType], str, str]] = [
    (dot(), [A], "ArityMismatch", "dot_general takes operands (lhs, rhs) but got 1"),
    (
        dot(),
        [tensor("i1", [2, 3]), tensor("i1", [3, 4])],
        "DTypeNotSupported",
        "dot_general is not defined for lhs of dtype i1",
    ),
    (
        dot(),
        [A, tensor("f64", [3, 4])],
        "DTypeMismatch",
        "the operands of dot_general have dtypes f32 and f64",
    ),
    (
        dot(contract=((2,), (0,))),
        [A, B],
        "InvalidAttributeValue",
        "contract_lhs 2 is out of range; a rank-2 operand has [-2, 2)",
    ),
    (
        dot(contract=((1,), (7,))),
        [A, B],
        "InvalidAttributeValue",
        "contract_rhs 7 is out of range; a rank-2 operand has [-2, 2)",
    ),
    (
        dot(batch=((3,), (0,)), contract=((2,), (1,))),
        [A3, B3],
        "InvalidAttributeValue",
        "batch_lhs 3 is out of range; a rank-3 operand has [-3, 3)",
    ),
    (
        dot(contract=((1, 1), (0, 1))),
        [A, B],
        "InvalidAttributeValue",
        "contract_lhs [1, 1] names an axis twice",
    ),
    (
        dot(batch=((0, 1), (0, 0)), contract=((2,), (1,))),
        [A3, B3],
        "InvalidAttributeValue",
        "batch_rhs [0, 0] names an axis twice",
    ),
    (
        dot(batch=((0,), (0,)), contract=((0,), (1,))),
        [A3, B3],
        "InvalidAttributeValue",
        "axis 0 of lhs is in both batch_lhs and contract_lhs",
    ),
    (
        dot(batch=((0,), (0,)), contract=((2,), (0,))),
        [A3, B3],
        "InvalidAttributeValue",
        "axis 0 of rhs is in both batch_rhs and contract_rhs",
    ),
    (
        dot(contract=((0, 1), (0,))),
        [A, B],
        "InvalidAttributeValue",
        "contract_lhs names 2 axes but contract_rhs names 1",
    ),
    (
        dot(batch=((), (0,)), contract=((2,), (1,))),
        [A3, B3],
        "InvalidAttributeValue",
        "batch_lhs names 0 axes but batch_rhs names 1",
    ),
    (
        dot(contract=((0,), (0,))),
        [A, B],
        "ShapeMismatch",
        "contract axis 0 of lhs and 0 of rhs differ in extent: 2 and 3",
    ),
    (
        dot(batch=((1,), (0,)), contract=((2,), (1,))),
        [A3, B3],
        "ShapeMismatch",
        "batch axis 1 of lhs and 0 of rhs differ in extent: 2 and 5",
    ),
    (
        dot(),
        [tensor("f32", [2, "K"]), B],
        "DynamicDimensionMismatch",
        "contract axis 1 of lhs and 0 of rhs differ in extent: ?K and 3",
    ),
    (
        dot(accum=F16),
        [A, B],
        "InvalidAccumDTypeOverride",
        "dot_general of f32 cannot accumulate in f16",
    ),
    (
        dot(accum=BF16),
        list(HALF),
        "InvalidAccumDTypeOverride",
        "dot_general of f16 cannot accumulate in bf16",
    ),
    (
        dot(accum=F32),
        list(BYTES),
        "InvalidAccumDTypeOverride",
        "dot_general of si8 cannot accumulate in f32",
    ),
    (
        dot(accum=UI32),
        list(BYTES),
        "InvalidAccumDTypeOverride",
        "dot_general of si8 cannot accumulate in ui32",
    ),
    (
        dot(accum=SI8),
        [tensor("si32", [2, 3]), tensor("si32", [3, 4])],
        "InvalidAccumDTypeOverride",
        "dot_general of si32 cannot accumulate in si8",
    ),
]


@each(("op", "types", "code", "why"), CASES)
def test_types_are_refused(op: DotGeneral, types: list[ValueType], code: str, why: str) -> None:
    with pytest.raises(SpecViolation) as caught:
        infer(op, *types)
    assert (caught.value.code, caught.value.why) == (code, why)


def test_the_result_type() -> None:
    lhs, rhs = tensor("f16", ["B", 2, 3, "S"]), tensor("f16", ["S", "B", 3, 7])
    op = dot(batch=((2, 0), (2, 1)), contract=((3,), (0,)))
    assert infer(op, lhs, rhs) == tensor("f16", [3, "B", 2, 7])
    wide = dot(accum=F32, out=F64)
    assert infer(wide, *HALF) == tensor("f64", [2, 4])
    assert infer(dot(accum=SI32, out=SI32), *BYTES) == tensor("si32", [2, 4])
    huge = 2**64 - 1
    big = tensor("f32", [huge, huge])
    assert infer(dot(), big, big) == big


def test_negative_axes_are_normalised_by_the_builder() -> None:
    attrs = {"batch_lhs": [-3], "batch_rhs": [0], "contract_lhs": [-1], "contract_rhs": [-2]}
    made = DotGeneral.make([A3, B3], **attrs, accum_dtype=None, out_dtype=None)
    assert made == dot(batch=((0,), (0,)), contract=((2,), (1,)))
