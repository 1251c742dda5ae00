"""The verifier of Tiny: each rule broken once, with its exact message."""

from __future__ import annotations

import numpy as np
import pytest

from weft.foundation.dtypes import BF16, F32, F64, I1, SI8, SI32
from weft.foundation.errors import SpecViolation
from weft.foundation.index_expr import axis
from weft.foundation.scalar import Fn
from weft.tiny import build
from weft.tiny.ir import (
    Binary,
    Const,
    DynamicShrink,
    DynamicUpdate,
    Expand,
    Flip,
    Graph,
    Input,
    Iota,
    Pad,
    Permute,
    Reduce,
    ReduceFn,
    Reshape,
    Shrink,
    Unary,
    Value,
    View,
    Where,
)
from weft.tiny.verify import findings, verify

X, ROW, WIDE = Input("x", F32, (2, 3)), Input("row", F32, (3,)), Input("wide", F64, (2, 3))
ONE, ZERO = Const(1, SI32), Const(0.0, F32)
FIRST, SECOND = axis("i0"), axis("i1")

BROKEN: dict[str, tuple[Value, str]] = {
    "operands of two shapes": (
        Binary(Fn.ADD, X, ROW),
        "E1001 BroadcastMismatch: the operands have shapes [2, 3] and [3]; only Expand broadcasts",
    ),
    "an expansion of an axis that is not 1": (
        Expand(X, (4, 3)),
        "E1001 BroadcastMismatch: [2, 3] cannot be expanded to [4, 3]",
    ),
    "an expansion that adds an axis": (
        Expand(ROW, (2, 3)),
        "E1001 BroadcastMismatch: [3] cannot be expanded to [2, 3]",
    ),
    "a view that runs backwards": (
        View(X, (2, 3), (FIRST, SECOND * -1 + 2)),
        "E1102 NegativeStride: -i1 + 2 walks an axis backwards; use Flip",
    ),
    "a view that leaves its operand": (
        View(X, (2, 3), (FIRST, SECOND + 1)),
        "E1103 ViewOutOfRange: i1 + 1 runs from 1 to 3, outside [0, 3)",
    ),
    "a view with an axis of its own": (
        View(X, (2,), (FIRST, SECOND)),
        "E1106 AxisInvalid: i1 uses i1, which the view does not have",
    ),
    "a reshape that loses elements": (
        Reshape(X, (5,)),
        "E1104 ShapeMismatch: [2, 3] and [5] have different numbers of elements",
    ),
    "a permutation that repeats an axis": (
        Permute(X, (0, 0)),
        "E1106 AxisInvalid: [0, 0] is not a permutation of the 2 axes",
    ),
    "flipped axes out of range": (
        Flip(X, (2,)),
        "E1106 AxisInvalid: [2] are not ascending axes of an operand of rank 2",
    ),
    "a negative pad": (
        Pad(X, (-1, 0), (0, 0), ZERO),
        "E1104 ShapeMismatch: a pad of [-1, 0] and [0, 0] around rank 2",
    ),
    "padding of another dtype": (
        Pad(X, (1, 0), (0, 0), ONE),
        "E1105 DTypeMismatch: the operand is f32, the padding si32",
    ),
    "a window that leaves its operand": (
        Shrink(X, (1, 0), (2, 3)),
        "E1104 ShapeMismatch: a window of [2, 3] at [1, 0] leaves [2, 3]",
    ),
    "operands of two dtypes": (
        Binary(Fn.ADD, X, WIDE),
        "E1105 DTypeMismatch: the operands are f32 and f64; nothing is cast implicitly",
    ),
    "a predicate that is a number": (
        Where(X, X, X),
        "E1105 DTypeMismatch: the predicate is f32, not i1",
    ),
    "a function of the wrong dtype": (
        Unary(Fn.EXP, Input("n", SI8, (2,))),
        "E1105 DTypeMismatch: exp is not defined for si8",
    ),
    "a function of two operands given one": (
        Unary(Fn.ADD, X),
        "E1105 DTypeMismatch: add takes another number of operands",
    ),
    "an accumulator of another dtype": (
        Reduce(ReduceFn.SUM, Input("h", BF16, (2,)), (0,), F32),
        "E1105 DTypeMismatch: the operand is bf16, the accumulator f32; cast it first",
    ),
    "a sum of truth values": (
        Reduce(ReduceFn.SUM, Input("b", I1, (2,)), (0,), I1),
        "E1105 DTypeMismatch: sum is not defined for i1",
    ),
    "a constant of the wrong class": (
        Const(1, F32),
        "E1105 DTypeMismatch: the constant 1 is not a float, as f32 is",
    ),
    "a constant out of range": (
        Const(200, SI8),
        "E1105 DTypeMismatch: the constant 200 is outside the range of si8",
    ),
    "a counter along no axis": (
        Iota(SI32, (2,), 1),
        "E1106 AxisInvalid: axis 1 of a counter of shape [2]",
    ),
    "too few starts": (
        DynamicShrink(X, (ONE,), (1, 3)),
        "E1104 ShapeMismatch: 1 starts for an operand of rank 2",
    ),
    "a start that is a float": (
        DynamicUpdate(X, X, (ZERO, ONE)),
        "E1105 DTypeMismatch: a start is f32[], not a si32 or si64 scalar",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_rule_is_named(what: str) -> None:
    value, message = BROKEN[what]
    inputs = tuple(v for v in Graph((), (("y", value),)).values if isinstance(v, Input))
    found = list(findings(Graph(inputs, (("y", value),))))
    assert [f"{f.code}: {f.why}" for f in found] == [message]


def test_the_place_names_the_op_and_its_origin() -> None:
    bad = Binary(Fn.ADD, X, ROW)
    graph = Graph((X, ROW), (("y", bad),), {bad: (7, 9)}, op_names={bad: "bias_add"})
    with pytest.raises(SpecViolation) as caught:
        verify(graph)
    assert caught.value.where == "Binary bias_add (from %7, %9)"


def test_inputs_are_declared_once_and_have_their_data() -> None:
    table = Input("table", F32, (4,))
    good = build.reduce(ReduceFn.SUM, table, [0], F32)
    cases: list[tuple[Graph, str]] = [
        (Graph((), (("y", good),)), "the input 'table' is used but not declared"),
        (
            Graph((table, table), (("y", good),)),
            "the input 'table' is declared 2 times",
        ),
        (
            Graph((), (("y", good),), constants={"table": np.zeros(3, np.float32)}),
            "the data of 'table' is float32[3], not f32[4]",
        ),
        (Graph((table,), (("y", good), ("y", table))), "two outputs are called 'y'"),
    ]
    for graph, why in cases:
        assert [(f.code, f.why) for f in findings(graph)] == [("E1107 GraphInvalid", why)]
    verify(Graph((), (("y", good),), constants={"table": np.zeros(4, np.float32)}))
