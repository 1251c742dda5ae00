"""What the quantisation ops refuse, with the exact reason."""

from __future__ import annotations

import pytest

from tests.support.cases import each
from tests.support.one_op import infer
from weft.foundation.dtypes import F32, FP8_E4M3, SI8, SI32, UI8, UI32
from weft.foundation.errors import SpecViolation
from weft.ptir.op import Op
from weft.ptir.ops.quantisation import Dequantize, Quantize, Requantize
from weft.ptir.types import ValueType, tensor

X, Q = tensor("f32", [2, 3]), tensor("si8", [2, 3])
SCALE, SCALES = tensor("f32"), tensor("f32", [3])
ZERO, ZEROS, UZERO = tensor("si8"), tensor("si8", [3]), tensor("ui8")

CASES: list[tuple[Op, list[ValueType], str, str]] = [
    (
        Quantize(SI8, 1),
        [X],
        "ArityMismatch",
        "quantize takes operands (x, scale, zero_point?) but got 1",
    ),
    (
        Dequantize(None, F32),
        [Q],
        "ArityMismatch",
        "dequantize takes operands (x, scale, zero_point?) but got 1",
    ),
    (
        Requantize(UI8, None),
        [Q],
        "ArityMismatch",
        "requantize takes operands (q, in_scale, in_zero_point, out_scale, out_zero_point) "
        "but got 1",
    ),
    (
        Quantize(SI8, None),
        [X, SCALE, ZERO, ZERO],
        "ArityMismatch",
        "quantize takes operands (x, scale, zero_point?) but got 4",
    ),
    (
        Quantize(SI32, None),
        [X, SCALE],
        "DTypeNotSupported",
        "quantize is not defined for output_dtype of dtype si32",
    ),
    (
        Quantize(F32, None),
        [X, SCALE],
        "DTypeNotSupported",
        "quantize is not defined for output_dtype of dtype f32",
    ),
    (
        Requantize(FP8_E4M3, None),
        [Q, SCALE, ZERO, SCALE, tensor("fp8_e4m3")],
        "DTypeNotSupported",
        "requantize is not defined for out_zero_point of dtype fp8_e4m3",
    ),
    (
        Quantize(SI8, None),
        [Q, SCALE],
        "DTypeNotSupported",
        "quantize is not defined for x of dtype si8",
    ),
    (
        Quantize(SI8, None),
        [X, tensor("si8")],
        "DTypeNotSupported",
        "quantize is not defined for scale of dtype si8",
    ),
    (
        Quantize(SI8, None),
        [X, tensor("f16")],
        "DTypeMismatch",
        "x and scale have dtypes f32 and f16",
    ),
    (
        Quantize(SI8, None),
        [X, SCALE, UZERO],
        "DTypeMismatch",
        "zero_point has dtype ui8, not si8",
    ),
    (
        Quantize(SI8, None),
        [X, SCALES],
        "RankMismatch",
        "scale (there is no axis) has rank 1, not 0",
    ),
    (Quantize(SI8, 1), [X, SCALE], "RankMismatch", "scale along axis 1 has rank 0, not 1"),
    (
        Quantize(SI8, 0),
        [X, SCALES],
        "ShapeMismatch",
        "scale and axis 0 differ in extent: 3 and 2",
    ),
    (
        Quantize(SI8, 0),
        [tensor("f32", ["B", 3]), SCALES],
        "DynamicDimensionMismatch",
        "scale and axis 0 differ in extent: 3 and ?B",
    ),
    (
        Quantize(SI8, 1),
        [X, SCALES, ZERO],
        "ShapeMismatch",
        "zero_point and scale have shapes [] and [3]",
    ),
    (
        Quantize(SI8, 2),
        [X, SCALES],
        "InvalidAttributeValue",
        "axis 2 is out of range; a rank-2 operand has [-2, 2)",
    ),
    (
        Dequantize(None, None),
        [tensor("ui32"), SCALE],
        "DTypeNotSupported",
        "dequantize is not defined for x of dtype ui32",
    ),
    (
        Dequantize(None, SI8),
        [Q, SCALE],
        "DTypeNotSupported",
        "dequantize is not defined for output_dtype of dtype si8",
    ),
    (
        Dequantize(None, None),
        [Q, SCALE, UZERO],
        "DTypeMismatch",
        "zero_point has dtype ui8, not si8",
    ),
    (
        Dequantize(None, None),
        [Q, SCALES],
        "RankMismatch",
        "scale (there is no axis) has rank 1, not 0",
    ),
    (
        Dequantize(1, None),
        [Q, tensor("f32", [4])],
        "ShapeMismatch",
        "scale and axis 1 differ in extent: 4 and 3",
    ),
    (
        Requantize(UI32, None),
        [Q, SCALE, ZERO, SCALE, UZERO],
        "DTypeNotSupported",
        "requantize is not defined for output_dtype of dtype ui32",
    ),
    (
        Requantize(UI8, None),
        [Q, SCALE, ZERO, tensor("f64"), UZERO],
        "DTypeMismatch",
        "in_scale and out_scale have dtypes f32 and f64",
    ),
    (
        Requantize(UI8, None),
        [Q, SCALE, UZERO, SCALE, UZERO],
        "DTypeMismatch",
        "in_zero_point has dtype ui8, not si8",
    ),
    (
        Requantize(UI8, None),
        [Q, SCALE, ZERO, SCALE, ZERO],
        "DTypeMismatch",
        "out_zero_point has dtype si8, not ui8",
    ),
    (
        Requantize(UI8, None),
        [Q, SCALES, ZEROS, SCALE, UZERO],
        "RankMismatch",
        "in_scale (there is no axis) has rank 1, not 0",
    ),
    (
        Requantize(UI8, 0),
        [Q, SCALE, ZERO, SCALES, tensor("ui8", [3])],
        "ShapeMismatch",
        "out_scale and axis 0 differ in extent: 3 and 2",
    ),
    (
        Requantize(UI8, 1),
        [Q, SCALES, ZERO, SCALE, UZERO],
        "ShapeMismatch",
        "in_zero_point and in_scale have shapes [] and [3]",
    ),
    (
        Requantize(UI8, 9),
        [Q, SCALE, ZERO, SCALE, UZERO],
        "InvalidAttributeValue",
        "axis 9 is out of range; a rank-2 operand has [-2, 2)",
    ),
]


@each(("op", "types", "code", "why"), CASES)
def test_types_are_refused(op: Op, types: list[ValueType], code: str, why: str) -> None:
    with pytest.raises(SpecViolation) as caught:
        infer(op, *types)
    assert (caught.value.code, caught.value.why) == (code, why)


def test_the_result_types() -> None:
    dynamic = tensor("f16", ["B", 3])
    assert infer(Quantize(UI8, 1), dynamic, tensor("f16", [3])) == tensor("ui8", ["B", 3])
    assert infer(Quantize(UI8, 0), dynamic, tensor("f16", ["B"])) == tensor("ui8", ["B", 3])
    assert infer(Dequantize(None, None), Q, tensor("bf16")) == tensor("bf16", [2, 3])
    assert infer(Dequantize(None, F32), tensor("si32"), tensor("bf16")) == tensor("f32")
    assert infer(Requantize(UI8, 1), Q, SCALES, ZEROS, SCALE, UZERO) == tensor("ui8", [2, 3])


def test_negative_axes_are_normalised_by_the_builder() -> None:
    assert Quantize.make([X, SCALES], output_dtype=SI8, axis=-1) == Quantize(SI8, 1)
    assert Quantize.make([X, SCALE], output_dtype=SI8, axis=None) == Quantize(SI8, None)
