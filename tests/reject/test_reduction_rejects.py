"""What the reductions refuse, with the exact reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.cases import each
from tests.support.one_op import apply, infer
from weft.foundation.dtypes import BF16, F16, F32, F64, SI8, SI32, SI64, UI32
from weft.foundation.errors import SpecViolation
from weft.ptir.op import Op
from weft.ptir.ops.reduce_kind import ReduceKind
from weft.ptir.ops.reduction import (
    ArgMax,
    ArgMin,
    CumulativeMax,
    CumulativeSum,
    Reduce,
    ReduceAll,
    ReduceAny,
    ReduceProd,
    SegmentKind,
    SegmentReduce,
)
from weft.ptir.types import TensorType, ValueType, tensor

SUM, MAX, MIN = ReduceKind


def total(**attrs: Any) -> Reduce:
    return Reduce(**{"kind": SUM, "axes": (0,), "keepdims": False, **_NO_DTYPES, **attrs})


_NO_DTYPES = {"accum_dtype": None, "out_dtype": None}


def segments(**attrs: Any) -> SegmentReduce:
    default = {"kind": SegmentKind.SUM, "num_segments": 3, "accum_dtype": None}
    return SegmentReduce(**{**default, "indices_are_sorted": False, "unique": False, **attrs})


M = tensor("f32", [2, 3])
IDS = tensor("si32", [2])
CASES: list[tuple[Op, list[ValueType], str, str]] = [
    (total(), [], "ArityMismatch", "reduce_sum takes operands (x) but got 0"),
    (total(), [M, M], "ArityMismatch", "reduce_sum takes operands (x) but got 2"),
    (
        total(axes=(2,)),
        [M],
        "InvalidAttributeValue",
        "axes 2 is out of range; a rank-2 operand has [-2, 2)",
    ),
    (
        total(axes=(0,)),
        [tensor("f32")],
        "InvalidAttributeValue",
        "axes 0 is out of range; a rank-0 operand has nothing, the operand is a scalar",
    ),
    (total(axes=(1, 1)), [M], "InvalidAttributeValue", "axes [1, 1] names an axis twice"),
    (
        total(),
        [tensor("i1", [2])],
        "DTypeNotSupported",
        "reduce_sum is not defined for x of dtype i1",
    ),
    (
        total(accum_dtype=F32),
        [tensor("i1", [2])],
        "DTypeNotSupported",
        "reduce_sum is not defined for x of dtype i1",
    ),
    (
        total(kind=MAX),
        [tensor("cf32", [2])],
        "DTypeNotSupported",
        "reduce_max is not defined for x of dtype cf32",
    ),
    (
        total(kind=MIN),
        [tensor("cf64", [2])],
        "DTypeNotSupported",
        "reduce_min is not defined for x of dtype cf64",
    ),
    (
        total(accum_dtype=F16),
        [M],
        "InvalidAccumDTypeOverride",
        "reduce_sum of f32 cannot accumulate in f16",
    ),
    (
        total(accum_dtype=BF16),
        [tensor("f16", [2])],
        "InvalidAccumDTypeOverride",
        "reduce_sum of f16 cannot accumulate in bf16",
    ),
    (
        total(accum_dtype=SI32),
        [M],
        "InvalidAccumDTypeOverride",
        "reduce_sum of f32 cannot accumulate in si32",
    ),
    (
        total(accum_dtype=UI32),
        [tensor("si8", [2])],
        "InvalidAccumDTypeOverride",
        "reduce_sum of si8 cannot accumulate in ui32",
    ),
    (
        total(accum_dtype=F64),
        [tensor("cf32", [2])],
        "InvalidAccumDTypeOverride",
        "reduce_sum of cf32 cannot accumulate in f64",
    ),
    (
        total(kind=MAX, accum_dtype=SI32),
        [tensor("i1", [2])],
        "InvalidAccumDTypeOverride",
        "reduce_max of i1 cannot accumulate in si32",
    ),
    (
        ReduceProd((0,)),
        [tensor("i1", [2])],
        "DTypeNotSupported",
        "reduce_prod is not defined for x of dtype i1",
    ),
    (
        ReduceProd((0,), False, SI8),
        [tensor("si32", [2])],
        "InvalidAccumDTypeOverride",
        "reduce_prod of si32 cannot accumulate in si8",
    ),
    (
        ReduceProd((5,)),
        [M],
        "InvalidAttributeValue",
        "axes 5 is out of range; a rank-2 operand has [-2, 2)",
    ),
    (
        ReduceAny((0,)),
        [tensor("si8", [2])],
        "DTypeNotSupported",
        "reduce_any is not defined for x of dtype si8",
    ),
    (
        ReduceAll((0, 0)),
        [tensor("i1", [2])],
        "InvalidAttributeValue",
        "axes [0, 0] names an axis twice",
    ),
    (
        ArgMax(2, False, SI32),
        [M],
        "InvalidAttributeValue",
        "axis 2 is out of range; a rank-2 operand has [-2, 2)",
    ),
    (
        ArgMax(-3, False, SI32),
        [M],
        "InvalidAttributeValue",
        "axis -3 is out of range; a rank-2 operand has [-2, 2)",
    ),
    (
        ArgMax(1, False, SI32),
        [tensor("f32", [2, 0])],
        "EmptyReduction",
        "axis 1 of arg_max has no elements to choose from",
    ),
    (
        ArgMin(-2, False, SI64),
        [tensor("f32", [0, 2])],
        "EmptyReduction",
        "axis 0 of argmin has no elements to choose from",
    ),
    (
        ArgMax(0, False, F32),
        [M],
        "DTypeNotSupported",
        "arg_max is not defined for output_dtype of dtype f32",
    ),
    (
        ArgMin(0, False, UI32),
        [M],
        "DTypeNotSupported",
        "argmin is not defined for output_dtype of dtype ui32",
    ),
    (
        ArgMax(0, False, SI32),
        [tensor("cf32", [2])],
        "DTypeNotSupported",
        "arg_max is not defined for x of dtype cf32",
    ),
    (
        ArgMax(0, False, SI32),
        [tensor("i1", [2**31 + 1])],
        "InvalidAttributeValue",
        "axis 0 of arg_max has 2147483649 positions, more than si32 can number",
    ),
    (
        segments(),
        [tensor("f32"), IDS],
        "RankMismatch",
        "data has rank 0, at least 1 is needed",
    ),
    (
        segments(),
        [M, tensor("si32", [2, 1])],
        "RankMismatch",
        "ids has rank 2, not 1",
    ),
    (
        segments(),
        [M, tensor("si32", [3])],
        "ShapeMismatch",
        "ids and axis 0 of data differ in extent: 3 and 2",
    ),
    (
        segments(),
        [tensor("f32", ["B", 3]), tensor("si32", ["N"])],
        "DynamicDimensionMismatch",
        "ids and axis 0 of data differ in extent: ?N and ?B",
    ),
    (
        segments(),
        [M, tensor("ui32", [2])],
        "DTypeNotSupported",
        "segment_sum is not defined for ids of dtype ui32",
    ),
    (
        segments(),
        [tensor("i1", [2]), IDS],
        "DTypeNotSupported",
        "segment_sum is not defined for data of dtype i1",
    ),
    (
        segments(kind=SegmentKind.MAX),
        [tensor("cf64", [2]), IDS],
        "DTypeNotSupported",
        "segment_max is not defined for data of dtype cf64",
    ),
    (
        segments(accum_dtype=F16),
        [M, IDS],
        "InvalidAccumDTypeOverride",
        "segment_sum of f32 cannot accumulate in f16",
    ),
    (
        CumulativeSum(0),
        [tensor("f32")],
        "InvalidAttributeValue",
        "axis 0 is out of range; a rank-0 operand has nothing, the operand is a scalar",
    ),
    (
        CumulativeSum(0),
        [tensor("i1", [2])],
        "DTypeNotSupported",
        "cumulative_sum is not defined for x of dtype i1",
    ),
    (
        CumulativeMax(0),
        [tensor("cf32", [2])],
        "DTypeNotSupported",
        "cumulative_max is not defined for x of dtype cf32",
    ),
]


@each(("op", "types", "code", "why"), CASES)
def test_types_are_refused(op: Op, types: list[ValueType], code: str, why: str) -> None:
    with pytest.raises(SpecViolation) as caught:
        infer(op, *types)
    assert (caught.value.code, caught.value.why) == (code, why)


@pytest.mark.parametrize(
    ("attrs", "why"),
    [
        ({"axes": (-1,)}, "attribute axes of reduce: -1 is not a whole number from 0 on"),
        ({"axes": 1}, "attribute axes of reduce: 1 is not a list"),
        ({"keepdims": 1}, "attribute keepdims of reduce: 1 is not true or false"),
        ({"kind": "Prod"}, "attribute kind of reduce: 'Prod' is not one of sum, max, min"),
        ({"accum_dtype": "f33"}, "attribute accum_dtype of reduce: 'f33' is not a dtype"),
    ],
)
def test_attributes_are_refused(attrs: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecViolation) as caught:
        total(**attrs)
    assert caught.value.code == "InvalidAttributeValue"
    assert caught.value.why.startswith(why)


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        ([0, 3], "segment id 3 at position 1 is not in [0, 3)"),
        ([-1, 7], "segment id -1 at position 0 is not in [0, 3)"),
        ([2**31 - 1, 0], "segment id 2147483647 at position 0 is not in [0, 3)"),
    ],
)
@pytest.mark.parametrize("promise", [False, True])
def test_segment_ids_are_refused_at_run_time(ids: list[int], why: str, promise: bool) -> None:
    op = segments(indices_are_sorted=promise, unique=promise)
    with pytest.raises(SpecViolation) as caught:
        apply(op, np.zeros((2, 0), np.float32), np.asarray(ids, np.int32))
    assert (caught.value.code, caught.value.why) == ("ScatterIndexOutOfBounds", why)


def test_an_empty_axis_is_refused_at_run_time() -> None:
    dynamic = tensor("f32", ["B", 3])
    assert infer(ArgMax(0, False, SI32), dynamic) == TensorType(SI32, (3,))
    with pytest.raises(SpecViolation) as caught:
        apply(ArgMax(0, False, SI32), np.zeros((0, 3), np.float32))
    assert caught.value.code == "EmptyReduction"


def test_dynamic_dims_pass_through() -> None:
    x = tensor("f16", ["B", 3, "S"])
    assert infer(total(axes=(1,)), x) == tensor("f16", ["B", "S"])
    assert infer(total(axes=(0, 2), keepdims=True, out_dtype=F32), x) == tensor("f32", [1, 3, 1])
    assert infer(segments(), x, tensor("si64", ["B"])) == tensor("f16", [3, 3, "S"])
    assert infer(CumulativeSum(-1), x) == x


def test_huge_sizes_cost_nothing_to_check() -> None:
    huge = 2**64 - 1
    x = tensor("f32", [huge, huge])
    assert infer(total(), x) == tensor("f32", [huge])
    assert infer(segments(num_segments=huge), x, tensor("si64", [huge])) == x


def test_negative_axes_are_normalised_by_the_builder() -> None:
    op = Reduce.make([M], kind=SUM, axes=[-1], keepdims=False, accum_dtype=None, out_dtype=None)
    assert op == total(axes=(1,))
    assert ReduceAny.make([tensor("i1", [2, 3])], axes=[-2]) == ReduceAny((0,))


def test_a_sum_over_i1_is_told_how_to_count() -> None:
    flags = tensor("i1", [2])
    for op, operands in ((total(), [flags]), (segments(), [flags, IDS])):
        with pytest.raises(SpecViolation) as caught:
            infer(op, *operands)
        assert caught.value.hint == (
            "with an integer accum_dtype, such as si32, it counts the true elements"
        )
    with pytest.raises(SpecViolation) as caught:
        infer(total(kind=MAX), tensor("cf32", [2]))
    assert caught.value.hint.startswith("defined for i1, si4, ")
