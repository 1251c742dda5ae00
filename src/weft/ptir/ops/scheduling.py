"""The op `barrier`: an order of computation that no operand would ask for."""

from __future__ import annotations

from weft.foundation.dtypes import ANY
from weft.ptir.op import Array, EvalContext, Op, extension_op
from weft.ptir.term import Cotangents, Pullback
from weft.ptir.types import TensorType


@extension_op("barrier")
class Barrier(Op):
    """The value of `x`, available only after `after` has been computed. It counts as a different
    value from `x`, so equal computations on both are done twice. This saves memory: values are
    computed again instead of being stored until then."""

    operands = ("x", "after")
    dtypes = {"x": ANY, "after": ANY}

    def infer(self, *types: TensorType) -> TensorType:
        return types[0]

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        return args[0]

    def vjp(self, at: Pullback) -> Cotangents:
        return at.cotangent, None
