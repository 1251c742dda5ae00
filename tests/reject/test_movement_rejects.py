"""Every rejection of the movement ops, with its code and exact text."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cases import each
from tests.support.one_op import NoScope, infer
from weft.foundation.dtypes import CF32, F32, I1, SI4, SI8, UI8, UI64, DType
from weft.foundation.errors import SpecViolation
from weft.ptir.literal import ScalarLiteral, ScalarTag
from weft.ptir.op import Op
from weft.ptir.ops.movement import (
    BroadcastTo,
    Concat,
    Iota,
    Pad,
    Reshape,
    Slice,
    Tile,
    Transpose,
)
from weft.ptir.schema import INFER, USIZE_MAX
from weft.ptir.types import Symbol, TupleType, shape_of, tensor

B, S = Symbol("B"), Symbol("S")
ZERO = ScalarLiteral(ScalarTag.FLOAT, 0.0)


def f32(*dims: Any) -> Any:
    return tensor("f32", dims)


CASES: list[tuple[Op, list[Any], str, str]] = [
    # reshape
    (
        Reshape((INFER, INFER)),
        [f32(4)],
        "InvalidAttributeValue",
        "new_shape [-1, -1] leaves more than one dimension to infer",
    ),
    (
        Reshape((4, 2)),
        [f32(2, 3)],
        "ShapeMismatch",
        "reshape from [2, 3] to [4, 2] changes the number of elements",
    ),
    (
        Reshape(()),
        [f32(2)],
        "ShapeMismatch",
        "reshape from [2] to [] changes the number of elements",
    ),
    (
        Reshape((0,)),
        [f32()],
        "ShapeMismatch",
        "reshape from [] to [0] changes the number of elements",
    ),
    (
        Reshape((4, INFER)),
        [f32(2, 3)],
        "ShapeMismatch",
        "reshape from [2, 3] to [4, -1] changes the number of elements",
    ),
    (
        Reshape((0, INFER)),
        [f32(2, 3)],
        "ShapeMismatch",
        "reshape from [2, 3] to [0, -1] changes the number of elements",
    ),
    (
        Reshape((0, 0, INFER)),
        [f32(0)],
        "InvalidAttributeValue",
        "reshape from [0] to [0, 0, -1] cannot infer a dimension beside one of size 0",
    ),
    (
        Reshape((0, 2, INFER)),
        [f32(0, 5)],
        "InvalidAttributeValue",
        "reshape from [0, 5] to [0, 2, -1] cannot infer a dimension beside one of size 0",
    ),
    (
        Reshape((0, INFER)),
        [f32("?B")],
        "InvalidAttributeValue",
        "reshape from [?B] to [0, -1] cannot infer a dimension beside one of size 0",
    ),
    (
        Reshape((B, 2)),
        [f32("?B", 4)],
        "ShapeMismatch",
        "reshape from [?B, 4] to [?B, 2] changes the number of elements",
    ),
    (
        Reshape((6,)),
        [f32("?B", 4)],
        "ShapeMismatch",
        "reshape from [?B, 4] to [6] changes the number of elements",
    ),
    (
        Reshape((B, 4)),
        [f32(6)],
        "ShapeMismatch",
        "reshape from [6] to [?B, 4] changes the number of elements",
    ),
    (
        Reshape((B, 0)),
        [f32(6)],
        "ShapeMismatch",
        "reshape from [6] to [?B, 0] changes the number of elements",
    ),
    # transpose
    (
        Transpose((0,)),
        [f32(2, 3)],
        "InvalidAttributeValue",
        "perm [0] is not a permutation of the 2 axes of the operand",
    ),
    (
        Transpose((0, 0)),
        [f32(2, 3)],
        "InvalidAttributeValue",
        "perm [0, 0] is not a permutation of the 2 axes of the operand",
    ),
    (
        Transpose((1, USIZE_MAX)),
        [f32(2, 3)],
        "InvalidAttributeValue",
        "perm [1, 18446744073709551615] is not a permutation of the 2 axes of the operand",
    ),
    # broadcast_to
    (
        BroadcastTo((3,)),
        [f32(1, 3)],
        "BroadcastRankMismatch",
        "shape [1, 3] has more axes than result_shape [3]",
    ),
    (
        BroadcastTo((4, 2, 3)),
        [f32(2, 4)],
        "BroadcastDimsInvalid",
        "axis 1 of shape [2, 4] has size 4, which does not broadcast to 3 in [4, 2, 3]",
    ),
    (
        BroadcastTo((1,)),
        [f32(0)],
        "BroadcastDimsInvalid",
        "axis 0 of shape [0] has size 0, which does not broadcast to 1 in [1]",
    ),
    (
        BroadcastTo((0,)),
        [f32(2)],
        "BroadcastDimsInvalid",
        "axis 0 of shape [2] has size 2, which does not broadcast to 0 in [0]",
    ),
    (
        BroadcastTo((S,)),
        [f32("?B")],
        "BroadcastDimsInvalid",
        "axis 0 of shape [?B] has size ?B, which does not broadcast to ?S in [?S]",
    ),
    (
        BroadcastTo((4,)),
        [f32("?B")],
        "BroadcastDimsInvalid",
        "axis 0 of shape [?B] has size ?B, which does not broadcast to 4 in [4]",
    ),
    # slice
    (
        Slice((0,), (1, 1)),
        [f32(2, 3)],
        "InvalidAttributeValue",
        "starts has 1 entries, not 2",
    ),
    (
        Slice((0, 0), (1,)),
        [f32(2, 3)],
        "InvalidAttributeValue",
        "sizes has 1 entries, not 2",
    ),
    (
        Slice((0, 2), (1, 2)),
        [f32(2, 3)],
        "InvalidAttributeValue",
        "slice of f32[2, 3] on axis 1: start 2 + size 2 is more than 3",
    ),
    (
        Slice((USIZE_MAX,), (USIZE_MAX,)),
        [f32(4)],
        "InvalidAttributeValue",
        "slice of f32[4] on axis 0: start 18446744073709551615 + size 18446744073709551615 "
        "is more than 4",
    ),
    (
        Slice((0,), (5,)),
        [f32(4)],
        "InvalidAttributeValue",
        "slice of f32[4] on axis 0: size 5 is more than 4",
    ),
    # concat
    (Concat(0), [], "ArityMismatch", "concat takes operands (*xs) but got 0"),
    (
        Concat(0),
        [f32()],
        "InvalidAttributeValue",
        "axis 0 is out of range; a rank-0 operand has nothing, the operand is a scalar",
    ),
    (
        Concat(-3),
        [f32(2, 3)],
        "InvalidAttributeValue",
        "axis -3 is out of range; a rank-2 operand has [-2, 2)",
    ),
    (
        Concat(0),
        [f32(2), f32(2), tensor("f64", [2])],
        "DTypeMismatch",
        "operands 0 and 2 of concat have dtypes f32 and f64",
    ),
    (
        Concat(0),
        [f32(2), f32(2, 1)],
        "RankMismatch",
        "operands 0 and 1 of concat have ranks 1 and 2",
    ),
    (
        Concat(-1),
        [f32(2, 3), f32(4, 3)],
        "ShapeMismatch",
        "axis 0 of operands 0 and 1 of concat differs: 2 and 4",
    ),
    (
        Concat(1),
        [f32("?B", 3), f32("?S", 3)],
        "DynamicDimensionMismatch",
        "axis 0 of operands 0 and 1 of concat differs: ?B and ?S",
    ),
    # pad
    (
        Pad((1,), (1, 1), (0, 0), ZERO),
        [f32(2, 3)],
        "InvalidAttributeValue",
        "low has 1 entries, not 2",
    ),
    (
        Pad((1, 1), (1,), (0, 0), ZERO),
        [f32(2, 3)],
        "InvalidAttributeValue",
        "high has 1 entries, not 2",
    ),
    (
        Pad((1, 1), (1, 1), (), ZERO),
        [f32(2, 3)],
        "InvalidAttributeValue",
        "interior has 0 entries, not 2",
    ),
    # tile
    (Tile((2,)), [f32(2, 3)], "InvalidAttributeValue", "repeats has 1 entries, not 2"),
    # iota
    (
        Iota((2, 3), F32, 2),
        [],
        "InvalidAttributeValue",
        "axis 2 is out of range; a rank-2 operand has [-2, 2)",
    ),
    (
        Iota((), F32, 0),
        [],
        "InvalidAttributeValue",
        "axis 0 is out of range; a rank-0 operand has nothing, the operand is a scalar",
    ),
    (
        Iota((2, 9), SI4, 1),
        [],
        "InvalidAttributeValue",
        "iota counts to 8 but si4 ends at 7",
    ),
    (Iota((129,), SI8, 0), [], "InvalidAttributeValue", "iota counts to 128 but si8 ends at 127"),
    (Iota((257,), UI8, 0), [], "InvalidAttributeValue", "iota counts to 256 but ui8 ends at 255"),
    (Iota((2,), I1, 0), [], "DTypeNotSupported", "iota is not defined for dtype of dtype i1"),
    (Iota((2,), F32, 0), [f32(2)], "ArityMismatch", "iota takes operands (none) but got 1"),
    (
        Transpose((0,)),
        [TupleType((f32(2),))],
        "TensorExpected",
        "operand x of transpose is the tuple (f32[2])",
    ),
    (
        Reshape((2,)),
        [TupleType((f32(2),))],
        "TensorExpected",
        "operand x of reshape is the tuple (f32[2])",
    ),
]


@each(("op", "types", "code", "why"), CASES)
def test_type_rules(op: Op, types: list[Any], code: str, why: str) -> None:
    with pytest.raises(SpecViolation) as caught:
        infer(op, *types)
    assert (caught.value.code, caught.value.why) == (code, why)


PAD_VALUES: list[tuple[DType, ScalarLiteral, str]] = [
    (F32, ScalarLiteral(ScalarTag.SIGNED, -3), "Signed(-3) cannot fill a tensor of dtype f32"),
    (F32, ScalarLiteral(ScalarTag.I1, True), "I1(True) cannot fill a tensor of dtype f32"),
    (F32, ScalarLiteral(ScalarTag.COMPLEX, 1j), "Complex(1j) cannot fill a tensor of dtype f32"),
    (CF32, ZERO, "Float(0.0) cannot fill a tensor of dtype cf32"),
    (I1, ScalarLiteral(ScalarTag.UNSIGNED, 1), "Unsigned(1) cannot fill a tensor of dtype i1"),
    (SI8, ScalarLiteral(ScalarTag.UNSIGNED, 1), "Unsigned(1) cannot fill a tensor of dtype si8"),
    (SI8, ScalarLiteral(ScalarTag.SIGNED, 128), "Signed(128) cannot fill a tensor of dtype si8"),
    (SI4, ScalarLiteral(ScalarTag.SIGNED, -9), "Signed(-9) cannot fill a tensor of dtype si4"),
    (UI64, ScalarLiteral(ScalarTag.SIGNED, 1), "Signed(1) cannot fill a tensor of dtype ui64"),
]


@pytest.mark.parametrize(("dtype", "value", "why"), PAD_VALUES, ids=str)
def test_pad_values_of_another_class_or_range(dtype: DType, value: ScalarLiteral, why: str) -> None:
    with pytest.raises(SpecViolation) as caught:
        infer(Pad((0,), (0,), (0,), value), tensor(dtype, [2]))
    assert caught.value.code == "InvalidAttributeValue"
    assert caught.value.why == f"pad_value {why}"


class Unbound(NoScope):
    """A scope in which no symbol has a size."""

    def is_bound(self, symbol: Symbol) -> bool:
        return False


UNBOUND: list[tuple[Op, list[Any], str, str]] = [
    (
        BroadcastTo((B, 2)),
        [f32(2)],
        "DynamicDimensionMismatch",
        "result_shape uses ?B, which no parameter or earlier instruction binds",
    ),
    (
        Iota((2, B), F32, 0),
        [],
        "DynamicDimensionMismatch",
        "the shape of iota uses ?B, which no parameter or earlier instruction binds",
    ),
    (
        Reshape((B, INFER)),
        [f32(6)],
        "InvalidAttributeValue",
        "new_shape [?B, -1] leaves more than one dimension to infer",
    ),
    (
        Reshape((B, S)),
        [f32(6)],
        "InvalidAttributeValue",
        "new_shape [?B, ?S] leaves more than one dimension to infer",
    ),
    (
        Reshape((4, B)),
        [f32(6)],
        "ShapeMismatch",
        "reshape from [6] to [4, -1] changes the number of elements",
    ),
]


@pytest.mark.parametrize(("op", "types", "code", "why"), UNBOUND, ids=lambda v: str(v)[:60])
def test_symbols_that_nothing_binds(op: Op, types: list[Any], code: str, why: str) -> None:
    with pytest.raises(SpecViolation) as caught:
        op.result_type(types, Unbound())
    assert (caught.value.code, caught.value.why) == (code, why)


ATTRIBUTES: list[tuple[Any, dict[str, Any], str]] = [
    (
        Reshape,
        {"new_shape": [-2]},
        "attribute new_shape of reshape: dimension -2 is negative",
    ),
    (
        Slice,
        {"starts": [-1], "sizes": [1]},
        "attribute starts of slice: -1 is not a whole number from 0 on",
    ),
    (
        Pad,
        {"low": [0], "high": [-1], "interior": [0], "pad_value": ZERO},
        "attribute high of pad: -1 is not a whole number from 0 on",
    ),
    (
        Pad,
        {"low": [0], "high": [0], "interior": [0], "pad_value": 0.0},
        "attribute pad_value of pad: 0.0 is not a scalar literal",
    ),
    (
        Concat,
        {"axis": 2**63},
        "attribute axis of concat: 9223372036854775808 is not a whole number from "
        "-9223372036854775808 to 9223372036854775807",
    ),
    (
        Iota,
        {"shape": [2], "dtype": "f33", "axis": 0},
        "attribute dtype of iota: 'f33' is not a dtype",
    ),
    (
        BroadcastTo,
        {"result_shape": [2.5]},
        "attribute result_shape of broadcast_to: 2.5 is not a dimension",
    ),
]


@pytest.mark.parametrize(("cls", "attrs", "why"), ATTRIBUTES, ids=lambda v: str(v)[:40])
def test_attributes_of_the_wrong_kind(cls: Any, attrs: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecViolation) as caught:
        cls(**attrs)
    assert caught.value.why == why


def test_negative_axes_of_iota_are_checked_against_its_shape() -> None:
    with pytest.raises(SpecViolation) as caught:
        Iota.make([], shape=shape_of([2, 3]), dtype="f32", axis=-3)
    assert caught.value.why == "axis -3 is out of range; a rank-2 operand has [-2, 2)"
