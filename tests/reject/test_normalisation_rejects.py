"""What layer_norm refuses, with the exact reason."""

from __future__ import annotations

import pytest

from tests.support.one_op import infer
from weft.foundation.errors import SpecViolation
from weft.ptir.ops.normalisation import LayerNorm
from weft.ptir.types import ValueType, tensor

X, G = tensor("f32", [2, 3]), tensor("f32", [3])
CASES: list[tuple[LayerNorm, list[ValueType], str, str]] = [
    (
        LayerNorm(1e-5, 1),
        [X, G],
        "ArityMismatch",
        "layer_norm takes operands (x, gamma, beta) but got 2",
    ),
    (
        LayerNorm(1e-5, 1),
        [tensor("si32", [2, 3]), G, G],
        "DTypeNotSupported",
        "layer_norm is not defined for x of dtype si32",
    ),
    (
        LayerNorm(1e-5, 1),
        [X, tensor("f16", [3]), G],
        "DTypeMismatch",
        "x and gamma have dtypes f32 and f16",
    ),
    (
        LayerNorm(1e-5, 1),
        [X, G, tensor("f64", [3])],
        "DTypeMismatch",
        "x and beta have dtypes f32 and f64",
    ),
    (LayerNorm(1e-5, 1), [X, X, G], "RankMismatch", "gamma has rank 2, not 1"),
    (LayerNorm(1e-5, 1), [X, G, tensor("f32")], "RankMismatch", "beta has rank 0, not 1"),
    (
        LayerNorm(1e-5, 0),
        [X, G, G],
        "ShapeMismatch",
        "gamma and feature axis 0 of x differ in extent: 3 and 2",
    ),
    (
        LayerNorm(1e-5, -1),
        [X, G, tensor("f32", [4])],
        "ShapeMismatch",
        "beta and feature axis 1 of x differ in extent: 4 and 3",
    ),
    (
        LayerNorm(1e-5, -1),
        [tensor("f32", [2, "D"]), G, G],
        "DynamicDimensionMismatch",
        "gamma and feature axis 1 of x differ in extent: 3 and ?D",
    ),
    (
        LayerNorm(1e-5, 2),
        [X, G, G],
        "InvalidAttributeValue",
        "feature_axis 2 is out of range; a rank-2 operand has [-2, 2)",
    ),
    (
        LayerNorm(-1.0, 1),
        [X, G, G],
        "InvalidAttributeValue",
        "epsilon -1.0 of layer_norm is not a finite number of at least 0",
    ),
    (
        LayerNorm(float("nan"), 1),
        [X, G, G],
        "InvalidAttributeValue",
        "epsilon nan of layer_norm is not a finite number of at least 0",
    ),
    (
        LayerNorm(float("inf"), 1),
        [X, G, G],
        "InvalidAttributeValue",
        "epsilon inf of layer_norm is not a finite number of at least 0",
    ),
]


@pytest.mark.parametrize(("op", "types", "code", "why"), CASES)
def test_types_are_refused(op: LayerNorm, types: list[ValueType], code: str, why: str) -> None:
    with pytest.raises(SpecViolation) as caught:
        infer(op, *types)
    assert (caught.value.code, caught.value.why) == (code, why)


def test_the_result_type() -> None:
    x, feature = tensor("bf16", ["B", "D", 3]), tensor("bf16", ["D"])
    assert infer(LayerNorm(0, -2), x, feature, feature) == x


def test_attributes_are_refused() -> None:
    with pytest.raises(SpecViolation) as caught:
        LayerNorm("tiny", 0)  # type: ignore[arg-type]
    why = "attribute epsilon of layer_norm: 'tiny' is not a number"
    assert (caught.value.code, caught.value.why) == ("InvalidAttributeValue", why)
