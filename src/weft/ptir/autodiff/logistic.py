"""The derivative of a quotient by `1 + exp(u)`: sigmoid, silu and gates, whoever wrote them.

    y = n / (1 + exp(u))        dy / dn = 1 / (1 + exp(u))        dy / du = -y / (1 + exp(-u))

Op by op, the way back would multiply with exp(u) what division by a large `1 + exp(u)` has left:
infinity with 0 where exp(u) overflows. Here every factor stays between 0 and 1 and keeps its small
values. The second factor is the reciprocal of the same form, so a gradient of the gradient finds
itself here again.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.ptir.autodiff.definitions import Definitions, definition, known_number
from weft.ptir.ir import Instruction, Operand
from weft.ptir.ops.elementwise import BinaryFn, ElementwiseBinary, ElementwiseUnary, UnaryFn
from weft.ptir.term import Cotangents, Term
from weft.ptir.types import TensorType


@dataclass(frozen=True)
class Logistic:
    """`n / (1 + exp(u))` in a body; `numerator` is None where it is the reciprocal."""

    numerator: Operand | None
    divisor: Operand
    exponent: Operand

    @property
    def sources(self) -> tuple[Operand, ...]:
        """What the way back leads to."""
        own = () if self.numerator is None else (self.numerator,)
        return (*own, self.exponent)


def logistic(instruction: Instruction, made: Definitions) -> Logistic | None:
    """The instruction as a quotient by `1 + exp(u)` of floats, if that is what it is."""
    kind = instruction.output
    if not isinstance(kind, TensorType) or not kind.dtype.is_float:
        return None
    match instruction.op:
        case ElementwiseUnary(fn=UnaryFn.RECIPROCAL):
            numerator, divisor = None, instruction.operands[0]
        case ElementwiseBinary(fn=BinaryFn.DIV):
            numerator, divisor = instruction.operands
        case _:
            return None
    exponent = _exponent(divisor, made)
    return None if exponent is None else Logistic(numerator, divisor, exponent)


def pulled_back(form: Logistic, divisor: Term, u: Term, y: Term, g: Term) -> Cotangents:
    """The cotangents of `form.sources` from that of the quotient, which is `y`."""
    by_exponent = -(g * y * ((-u).exp() + 1.0).reciprocal())
    return [by_exponent] if form.numerator is None else [g / divisor, by_exponent]


def _exponent(divisor: Operand, made: Definitions) -> Operand | None:
    """u where the divisor is `1 + exp(u)`."""
    addition = definition(divisor, made)
    if addition is None or addition.op != ElementwiseBinary(BinaryFn.ADD):
        return None
    for one, power in (addition.operands, addition.operands[::-1]):
        exponential = definition(power, made)
        if exponential is None or exponential.op != ElementwiseUnary(UnaryFn.EXP):
            continue
        if known_number(one, made) == 1:
            return exponential.operands[0]
    return None
