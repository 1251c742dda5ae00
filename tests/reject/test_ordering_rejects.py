"""What the ordering ops refuse, with the exact reason."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.one_op import apply, infer
from weft.foundation.dtypes import F32, SI32, SI64, UI32
from weft.foundation.errors import SpecViolation
from weft.ptir.op import Op
from weft.ptir.ops.ordering import Argsort, Searchsorted, Side, Sort, TopK
from weft.ptir.types import TupleType, ValueType, tensor

M = tensor("f32", [2, 3])
LINE = tensor("f32", [4])
Z = tensor("cf32", [4])
CASES: list[tuple[Op, list[ValueType], str, str]] = [
    (TopK(1, 0, True, SI32), [M, M], "ArityMismatch", "top_k takes operands (x) but got 2"),
    (
        TopK(4, -1, True, SI32),
        [M],
        "InvalidAttributeValue",
        "k 4 of top_k exceeds the extent 3 of axis 1",
    ),
    (
        TopK(2**64 - 1, 0, True, SI32),
        [M],
        "InvalidAttributeValue",
        "k 18446744073709551615 of top_k exceeds the extent 2 of axis 0",
    ),
    (
        TopK(1, 2, True, SI32),
        [M],
        "InvalidAttributeValue",
        "axis 2 is out of range; a rank-2 operand has [-2, 2)",
    ),
    (
        TopK(1, 0, True, UI32),
        [M],
        "DTypeNotSupported",
        "top_k is not defined for indices_dtype of dtype ui32",
    ),
    (
        TopK(1, 0, True, SI32),
        [Z],
        "DTypeNotSupported",
        "top_k is not defined for x of dtype cf32",
    ),
    (
        TopK(1, 0, True, SI32),
        [tensor("i1", [2**31 + 1])],
        "InvalidAttributeValue",
        "axis 0 of top_k has 2147483649 positions, more than si32 can number",
    ),
    (
        Sort(0),
        [tensor("f32")],
        "InvalidAttributeValue",
        "axis 0 is out of range; a rank-0 operand has nothing, the operand is a scalar",
    ),
    (Sort(0), [Z], "DTypeNotSupported", "sort is not defined for x of dtype cf32"),
    (
        Argsort(-3, False, SI64),
        [M],
        "InvalidAttributeValue",
        "axis -3 is out of range; a rank-2 operand has [-2, 2)",
    ),
    (
        Argsort(0, False, F32),
        [M],
        "DTypeNotSupported",
        "argsort is not defined for output_dtype of dtype f32",
    ),
    (
        Argsort(0, False, SI32),
        [tensor("i1", [2**31 + 1])],
        "InvalidAttributeValue",
        "axis 0 of argsort has 2147483649 positions, more than si32 can number",
    ),
    (Searchsorted(), [M, M], "RankMismatch", "sorted has rank 2, not 1"),
    (
        Searchsorted(),
        [LINE, tensor("f64", [2])],
        "DTypeMismatch",
        "sorted and values have dtypes f32 and f64",
    ),
    (
        Searchsorted(),
        [Z, Z],
        "DTypeNotSupported",
        "searchsorted is not defined for sorted of dtype cf32",
    ),
    (
        Searchsorted(Side.LEFT, F32),
        [LINE, LINE],
        "DTypeNotSupported",
        "searchsorted is not defined for output_dtype of dtype f32",
    ),
    (
        Searchsorted(Side.LEFT, SI32),
        [tensor("f32", [2**31]), LINE],
        "InvalidAttributeValue",
        "searchsorted has 2147483649 positions, more than si32 can number",
    ),
]


@pytest.mark.parametrize(("op", "types", "code", "why"), CASES)
def test_types_are_refused(op: Op, types: list[ValueType], code: str, why: str) -> None:
    with pytest.raises(SpecViolation) as caught:
        infer(op, *types)
    assert (caught.value.code, caught.value.why) == (code, why)


def test_k_is_checked_again_when_a_dynamic_axis_gets_its_size() -> None:
    op = TopK(4, 0, True, SI32)
    values = tensor("f32", [4, 3])
    assert infer(op, tensor("f32", ["B", 3])) == TupleType((values, values.with_dtype(SI32)))
    with pytest.raises(SpecViolation) as caught:
        apply(op, np.zeros((2, 3), np.float32))
    assert caught.value.why == "k 4 of top_k exceeds the extent 2 of axis 0"


def test_sides_have_names() -> None:
    assert infer(Searchsorted(Side.RIGHT), LINE, M) == tensor("si64", [2, 3])
    with pytest.raises(SpecViolation) as caught:
        Searchsorted("middle")  # type: ignore[arg-type]
    why = "attribute side of searchsorted: 'middle' is not one of left, right"
    assert (caught.value.code, caught.value.why) == ("InvalidAttributeValue", why)
