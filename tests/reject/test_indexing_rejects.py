"""Every rejection of the indexing ops, with its code and exact text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.cases import each
from tests.support.one_op import Array, apply, by_name, infer
from weft.foundation.dtypes import ALL, INDICES, DType
from weft.foundation.errors import SpecViolation
from weft.ptir.op import Op
from weft.ptir.ops.indexing import (
    DynamicSlice,
    DynamicUpdateSlice,
    Gather,
    ScatterAdd,
    ScatterFn,
    ScatterReduce,
    Take,
)
from weft.ptir.schema import USIZE_MAX
from weft.ptir.types import tensor

GATHER = "GatherIndexOutOfBounds"
SCATTER = "ScatterIndexOutOfBounds"


def f32(*dims: Any) -> Any:
    return tensor("f32", dims)


def si32(*dims: Any) -> Any:
    return tensor("si32", dims)


MAX, ADD = ScatterReduce(0, ScatterFn.MAX), ScatterReduce(0, ScatterFn.ADD)

CASES: list[tuple[Op, list[Any], str, str]] = [
    # take
    (Take(), [f32(), si32()], "RankMismatch", "x has rank 0, at least 1 is needed"),
    (Take(), [f32(3)], "ArityMismatch", "take takes operands (x, indices) but got 1"),
    # gather
    (
        Gather(2),
        [f32(2, 3), si32(2, 3)],
        "InvalidAttributeValue",
        "axis 2 is out of range; a rank-2 operand has [-2, 2)",
    ),
    (
        Gather(0),
        [f32(), si32()],
        "InvalidAttributeValue",
        "axis 0 is out of range; a rank-0 operand has nothing, the operand is a scalar",
    ),
    (Gather(0), [f32(2, 3), si32(2)], "RankMismatch", "indices has rank 1, not 2"),
    (
        Gather(0),
        [f32(2, 3), si32(5, 4)],
        "ShapeMismatch",
        "axis 1 of x and indices differs: 3 and 4",
    ),
    (
        Gather(-2),
        [f32(2, "?B"), si32(5, 4)],
        "DynamicDimensionMismatch",
        "axis 1 of x and indices differs: ?B and 4",
    ),
    # scatter_add
    (
        ScatterAdd((1,), (0,), (0,), 1),
        [f32(5, 4), si32(3, 1), tensor("f64", [3, 4])],
        "DTypeMismatch",
        "x and updates have dtypes f32 and f64",
    ),
    (
        ScatterAdd((1,), (2,), (0,), 1),
        [f32(5, 4), si32(3, 1), f32(3, 4)],
        "InvalidAttributeValue",
        "inserted_window_dims 2 is out of range; a rank-2 operand has [-2, 2)",
    ),
    (
        ScatterAdd((), (1, 0), (0,), 1),
        [f32(5, 4), si32(3, 1), f32(3)],
        "InvalidAttributeValue",
        "inserted_window_dims [1, 0] must be in ascending order",
    ),
    (
        ScatterAdd((), (0, 0), (0,), 1),
        [f32(5, 4), si32(3, 1), f32(3)],
        "InvalidAttributeValue",
        "inserted_window_dims [0, 0] names an axis twice",
    ),
    (
        ScatterAdd((1, 2), (0,), (0,), 1),
        [f32(5, 4), si32(3, 1), f32(3, 4, 1)],
        "InvalidAttributeValue",
        "update_window_dims has 2 entries, but x has 1 axes that are neither inserted nor indexed "
        "and 1 that are not inserted",
    ),
    (
        ScatterAdd((1,), (0,), (USIZE_MAX,), 1),
        [f32(5, 4), si32(3, 1), f32(3, 4)],
        "InvalidAttributeValue",
        "scatter_dims_to_operand_dims 18446744073709551615 is out of range; a rank-2 operand has "
        "[-2, 2)",
    ),
    (
        ScatterAdd((1,), (0,), (0, 0), 1),
        [f32(5, 4), si32(3, 2), f32(3, 4)],
        "InvalidAttributeValue",
        "scatter_dims_to_operand_dims [0, 0] names an axis twice",
    ),
    (
        ScatterAdd((1,), (0,), (0,), 3),
        [f32(5, 4), si32(3, 1), f32(3, 4)],
        "InvalidAttributeValue",
        "index_vector_dim 3 is more than the rank 2 of the indices",
    ),
    (
        ScatterAdd((1,), (0,), (0,), 1),
        [f32(5, 4), si32(3, 2), f32(3, 4)],
        "ShapeMismatch",
        "the lengths of the index vectors and of scatter_dims_to_operand_dims differ: 2 and 1",
    ),
    (
        ScatterAdd((), (0, 1), (0, 1), None),
        [f32(5, 4), si32(3), f32(3)],
        "ShapeMismatch",
        "the lengths of the index vectors and of scatter_dims_to_operand_dims differ: 1 and 2",
    ),
    (
        ScatterAdd((1,), (0,), (0,), 1),
        [f32(5, 4), si32(3, "?K"), f32(3, 4)],
        "DynamicDimensionMismatch",
        "the lengths of the index vectors and of scatter_dims_to_operand_dims differ: ?K and 1",
    ),
    (
        ScatterAdd((1,), (0,), (0,), 1),
        [f32(5, 4), si32(3, 1), f32(3, 4, 1)],
        "RankMismatch",
        "updates has rank 3, not 2: 1 scattered axes and 1 window axes",
    ),
    (
        ScatterAdd((2,), (0,), (0,), 1),
        [f32(5, 4), si32(3, 1), f32(3, 4)],
        "InvalidAttributeValue",
        "update_window_dims 2 is out of range; a rank-2 operand has [-2, 2)",
    ),
    (
        ScatterAdd((1, 0), (), (), 0),
        [f32(5, 4), si32(0), f32(5, 4)],
        "InvalidAttributeValue",
        "update_window_dims [1, 0] must be in ascending order",
    ),
    (
        ScatterAdd((1,), (0,), (0,), 1),
        [f32(5, 4), si32(3, 1), f32(2, 4)],
        "ShapeMismatch",
        "axis 0 of updates and the indices differs: 2 and 3",
    ),
    (
        ScatterAdd((1,), (0,), (0,), 1),
        [f32(5, 4), si32("?N", 1), f32("?M", 4)],
        "DynamicDimensionMismatch",
        "axis 0 of updates and the indices differs: ?M and ?N",
    ),
    (
        ScatterAdd((1,), (0,), (0,), 1),
        [f32(5, 4), si32(3, 1), f32(3, 5)],
        "ShapeMismatch",
        "the window of updates on axis 1 has size 5, more than the 4 of axis 1 of x",
    ),
    # scatter_reduce
    (
        MAX,
        [f32(5), si32(3), tensor("f16", [3])],
        "DTypeMismatch",
        "x and updates have dtypes f32 and f16",
    ),
    (MAX, [f32(5), si32(3), f32(3, 1)], "RankMismatch", "updates has rank 2, not 1"),
    (
        MAX,
        [f32(5), si32(3), f32(4)],
        "ShapeMismatch",
        "indices and updates have shapes [3] and [4]",
    ),
    (
        MAX,
        [f32(5), si32("?N"), f32(4)],
        "DynamicDimensionMismatch",
        "indices and updates have shapes [?N] and [4]",
    ),
    (
        ScatterReduce(-1, ScatterFn.ADD),
        [f32(5, 2), si32(4, 3), f32(4, 3)],
        "ShapeMismatch",
        "axis 0 of x and updates differs: 5 and 4",
    ),
    (
        ScatterReduce(1, ScatterFn.ADD),
        [f32(5), si32(5), f32(5)],
        "InvalidAttributeValue",
        "axis 1 is out of range; a rank-1 operand has [-1, 1)",
    ),
    # dynamic slices
    (
        DynamicSlice((2,)),
        [f32(4, 4), si32(2)],
        "InvalidAttributeValue",
        "sizes has 1 entries, not 2",
    ),
    (DynamicSlice((2,)), [f32(4), si32()], "RankMismatch", "start has rank 0, not 1"),
    (
        DynamicSlice((2,)),
        [f32(4), si32(2)],
        "ShapeMismatch",
        "the length of start and the rank of x differ: 2 and 1",
    ),
    (
        DynamicSlice((2,)),
        [f32(4), si32("?N")],
        "DynamicDimensionMismatch",
        "the length of start and the rank of x differ: ?N and 1",
    ),
    (
        DynamicSlice((1, 5)),
        [f32(4, 4), si32(2)],
        "InvalidAttributeValue",
        "dynamic_slice of f32[4, 4] on axis 1: size 5 is more than 4",
    ),
    (
        DynamicUpdateSlice((1,)),
        [f32(4), tensor("f64", [1]), si32(1)],
        "DTypeMismatch",
        "x and update have dtypes f32 and f64",
    ),
    (
        DynamicUpdateSlice((1, 1)),
        [f32(4, 4), f32(1), si32(2)],
        "RankMismatch",
        "update has rank 1, not 2",
    ),
    (
        DynamicUpdateSlice((5,)),
        [f32(4), f32(5), si32(1)],
        "InvalidAttributeValue",
        "dynamic_update_slice of f32[4] on axis 0: size 5 is more than 4",
    ),
    (
        DynamicUpdateSlice((2,)),
        [f32(4), f32(3), si32(1)],
        "ShapeMismatch",
        "axis 0 of update and sizes differs: 3 and 2",
    ),
    (
        DynamicUpdateSlice((2,)),
        [f32(4), f32("?B"), si32(1)],
        "DynamicDimensionMismatch",
        "axis 0 of update and sizes differs: ?B and 2",
    ),
    (
        DynamicUpdateSlice((2,)),
        [f32(4), f32(2)],
        "ArityMismatch",
        "dynamic_update_slice takes operands (x, update, start) but got 2",
    ),
]


@each(("op", "types", "code", "why"), CASES)
def test_type_rules(op: Op, types: list[Any], code: str, why: str) -> None:
    with pytest.raises(SpecViolation) as caught:
        infer(op, *types)
    assert (caught.value.code, caught.value.why) == (code, why)


@pytest.mark.parametrize("dtype", by_name(frozenset(ALL) - INDICES), ids=str)
def test_indices_are_si32_or_si64(dtype: DType) -> None:
    start = tensor(dtype, [1])
    for op, types, name in [
        (Take(), [f32(4), start], "indices"),
        (Gather(0), [f32(4), start], "indices"),
        (MAX, [f32(4), start, f32(1)], "indices"),
        (ScatterAdd((), (0,), (0,), None), [f32(4), start, f32(1)], "indices"),
        (DynamicSlice((1,)), [f32(4), start], "start"),
        (DynamicUpdateSlice((1,)), [f32(4), f32(1), start], "start"),
    ]:
        with pytest.raises(SpecViolation) as caught:
            infer(op, *types)
        assert caught.value.code == "DTypeNotSupported"
        assert caught.value.why == f"{op.name} is not defined for {name} of dtype {dtype}"
        assert caught.value.hint == "defined for si32, si64"


UNDEFINED = [
    (ADD, "i1"),
    (MAX, "cf32"),
    (ScatterReduce(0, ScatterFn.MIN), "cf64"),
    (ScatterAdd((), (0,), (0,), None), "i1"),
]


@pytest.mark.parametrize(("op", "dtype"), UNDEFINED, ids=str)
def test_dtypes_without_the_reduction(op: Op, dtype: str) -> None:
    x = tensor(dtype, [4])
    with pytest.raises(SpecViolation) as caught:
        infer(op, x, si32(4), x)
    assert caught.value.code == "DTypeNotSupported"
    assert caught.value.why == f"{op.name} is not defined for x of dtype {dtype}"


def ints(*values: Any) -> Array:
    return np.array(values, np.int32)


ROW, SQUARE = np.zeros(3, np.float32), np.zeros((2, 3), np.float32)
PAIR = np.ones(2, np.float32)
POINT = ScatterAdd((), (0, 1), (1, 0), 0)
WINDOW = ScatterAdd((1,), (), (0,), None)

RUNS: list[tuple[Op, list[Array], str, str]] = [
    (
        Take(),
        [ROW, ints([0, 1], [3, 2])],
        GATHER,
        "index 3 at [1, 0] of the indices is outside [0, 3), the range of axis 0 of x",
    ),
    (
        Take(),
        [ROW, np.array(-1)],
        GATHER,
        "index -1 at [] of the indices is outside [0, 3), the range of axis 0 of x",
    ),
    (
        Take(),
        [np.zeros((0, 2), np.float32), ints(0)],
        GATHER,
        "index 0 at [0] of the indices is outside [0, 0), the range of axis 0 of x",
    ),
    (
        Gather(-1),
        [SQUARE, np.array([[0, 2], [2**40, -5]])],
        GATHER,
        "index 1099511627776 at [1, 0] of the indices is outside [0, 3), the range of axis 1 of x",
    ),
    (
        ADD,
        [ROW, ints(0, -3), PAIR],
        SCATTER,
        "index -3 at [1] of the indices is outside [0, 3), the range of axis 0 of x",
    ),
    (
        ScatterReduce(0, ScatterFn.REPLACE),
        [ROW, ints(3, 0), PAIR],
        SCATTER,
        "index 3 at [0] of the indices is outside [0, 3), the range of axis 0 of x",
    ),
    (
        POINT,
        [SQUARE, ints([2, 3], [1, 0]), PAIR],
        SCATTER,
        "index 3 at [0, 1] of the indices is outside [0, 3), the range of axis 1 of x",
    ),
    (
        POINT,
        [SQUARE, ints([2, 2], [1, 2]), PAIR],
        SCATTER,
        "index 2 at [1, 1] of the indices is outside [0, 2), the range of axis 0 of x",
    ),
    (
        WINDOW,
        [ROW, ints(0, 2), np.ones((2, 2), np.float32)],
        SCATTER,
        "index 2 at [1] of the indices is outside [0, 2), "
        "the range of axis 0 of x for windows of 2",
    ),
    (
        ScatterAdd((1,), (0,), (0,), None),
        [SQUARE, ints(2), np.ones((1, 0), np.float32)],
        SCATTER,
        "index 2 at [0] of the indices is outside [0, 2), the range of axis 0 of x",
    ),
]


@pytest.mark.parametrize(("op", "args", "code", "why"), RUNS, ids=lambda v: str(v)[:60])
def test_indices_out_of_range(op: Op, args: list[Array], code: str, why: str) -> None:
    with pytest.raises(SpecViolation) as caught:
        apply(op, *args)
    assert (caught.value.code, caught.value.why) == (code, why)


def test_the_last_index_in_range_is_accepted() -> None:
    assert apply(Take(), ROW, ints(2)).tolist() == [0.0]
    assert apply(ADD, ROW, ints(2, 2), PAIR).tolist() == [0.0, 0.0, 2.0]
    out = apply(WINDOW, ROW, ints(0, 1), np.ones((2, 2), np.float32))
    assert out.tolist() == [1.0, 2.0, 1.0]
    assert apply(POINT, SQUARE, ints([2, 2], [1, 1]), PAIR)[1, 2] == 2.0
