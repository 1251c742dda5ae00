"""Ops that make and take apart tuples."""

from __future__ import annotations

from weft.foundation.dtypes import ANY
from weft.ptir.op import Array, EvalContext, Op, extension_op
from weft.ptir.term import Cotangents, Pullback
from weft.ptir.types import TensorType, TupleType


@extension_op("make_tuple")
class MakeTuple(Op):
    """The tuple of the values, in order. The values may have any types."""

    operands = ("*values",)
    dtypes = {"values": ANY}

    def infer(self, *types: TensorType) -> TupleType:
        return TupleType(types)

    def evaluate(self, ctx: EvalContext, *args: Array) -> tuple[Array, ...]:
        return args

    def vjp(self, at: Pullback) -> Cotangents:
        return at.cotangents
