"""Constants, and calls of kernels that only some backends know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.foundation.errors import SpecViolation, Unimplemented
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import Array, EvalContext, Op, Scope, Value, core_op
from weft.ptir.schema import Attributes, AttrMap, LiteralOf, String, attr
from weft.ptir.term import Cotangents, Pullback
from weft.ptir.types import TensorType, ValueType

if TYPE_CHECKING:
    from collections.abc import Sequence


@core_op(tag=0, spec=None, newtype=True)
class Constant(Op):
    """A dense tensor literal: row-major, little-endian, one byte an element for i1, si4 and ui4."""

    no_gradient = "it does not depend on anything"

    value: TensorLiteral = attr(LiteralOf())

    def infer(self, *types: TensorType) -> TensorType:
        self.value.check()
        return self.value.type

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        return self.value.array


@core_op(tag=36)
class CustomCall(Op):
    """A fused kernel that a backend provides under a name. The declared output type is
    authoritative. A target is named `namespace.name.vN`; those of public front ends (`byteir.*`,
    `tf.*`, `pytorch.*`) have no version. When a program is read, calls of targets that Weft knows
    become ops. Other calls are kept, verified by their declared type, and Unimplemented when they
    run. Names that begin with `weft.` are reserved for Weft: an unknown target among them does not
    verify."""

    operands = ("*args",)

    target: str = attr(String())
    attrs: AttrMap = attr(Attributes(), default=())

    def result_type(self, types: Sequence[ValueType], scope: Scope) -> ValueType:
        raise SpecViolation("UnknownCustomCall", f"the target {self.target!r} has no type rule")

    def check_arity(self, count: int) -> None:
        """Any number of operands, none included."""

    def evaluate(self, ctx: EvalContext, *args: Array) -> Value:
        raise Unimplemented(f"custom call {self.target}", "this backend does not know the target")

    def vjp(self, at: Pullback) -> Cotangents:
        raise Unimplemented(f"the gradient of {self.target}", "Weft does not know what it computes")
