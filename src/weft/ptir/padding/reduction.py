"""Padding rules of reductions: padded elements become the neutral element."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.foundation.axes import normalise_axes, normalise_axis
from weft.foundation.dtypes import DType
from weft.ptir.op import Op
from weft.ptir.op_rules import op_as
from weft.ptir.ops.contraction import DotGeneral
from weft.ptir.ops.reduce_kind import ReduceKind, reduce_identity
from weft.ptir.ops.reduction import (
    ArgMax,
    ArgMin,
    CumulativeMax,
    CumulativeMin,
    CumulativeProd,
    CumulativeSum,
    Reduce,
    ReduceAll,
    ReduceAny,
    ReduceProd,
)
from weft.ptir.padding.rules import Padding, neutral, pads
from weft.ptir.term import Term


def _lowest(dtype: DType) -> Any:
    return reduce_identity(ReduceKind.MAX, dtype)


def _highest(dtype: DType) -> Any:
    return reduce_identity(ReduceKind.MIN, dtype)


_UNNOTICED: Mapping[type[Op], Callable[[DType], Any]] = {
    ReduceProd: lambda dtype: 1,
    ReduceAll: lambda dtype: True,
    ReduceAny: lambda dtype: False,
    ArgMax: _lowest,
    ArgMin: _highest,
    CumulativeSum: neutral,
    CumulativeProd: lambda dtype: 1,
    CumulativeMax: _lowest,
    CumulativeMin: _highest,
}
"""What an op does not notice behind the real elements. Of equal elements the first wins."""
_KINDS: Mapping[ReduceKind, Callable[[DType], Any]] = {
    ReduceKind.SUM: neutral,
    ReduceKind.MAX: _lowest,
    ReduceKind.MIN: _highest,
}


@pads(Reduce)
def reduce(p: Padding) -> Term:
    op = op_as(p, Reduce)
    return _replay_masked(p, op.axes, _KINDS[op.kind](p.operands[0].dtype))


@pads(ReduceProd, ReduceAll, ReduceAny)
def reduce_by(p: Padding) -> Term:
    return _replay_masked(p, getattr(p.op, "axes", ()), _UNNOTICED[type(p.op)](p.operands[0].dtype))


@pads(ArgMax, ArgMin)
def position(p: Padding) -> Term:
    return _replay_masked(
        p, [getattr(p.op, "axis", 0)], _UNNOTICED[type(p.op)](p.operands[0].dtype)
    )


@pads(CumulativeSum, CumulativeProd, CumulativeMax, CumulativeMin)
def cumulative(p: Padding) -> Term:
    """Forward, an element depends on those before it alone."""
    x = p.operands[0]
    axis = normalise_axis(getattr(p.op, "axis", 0), x.rank)
    if not getattr(p.op, "reverse", False):
        return p.replay()
    return p.replay(p.masked(0, _UNNOTICED[type(p.op)](x.dtype), [axis]))


def _replay_masked(p: Padding, axes: Any, value: Any) -> Term:
    return p.replay(p.masked(0, value, normalise_axes(axes, p.operands[0].rank)))


@pads(DotGeneral)
def dot_general(p: Padding) -> Term:
    """Both sides are masked along contracted axes: zero times what is without meaning may be
    NaN."""
    op = op_as(p, DotGeneral)
    lhs, rhs = (term.shape for term in p.operands)
    pairs = [
        *zip(op.batch_lhs, op.batch_rhs, strict=True),
        *zip(op.contract_lhs, op.contract_rhs, strict=True),
    ]
    for left, right in pairs:
        p.require_same(lhs[left], rhs[right])
    return p.replay(p.masked(0, 0, op.contract_lhs), p.masked(1, 0, op.contract_rhs))
