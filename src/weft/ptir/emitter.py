"""Writing instructions into a body: terms that stand for operands of PTIR.

What a body is decides where an instruction goes and what its result is called: a `Tape` is a body
that is written from its start, a `Replacement` takes the place of one instruction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError
from weft.ptir.ir import ElementRef, Operand, Ref
from weft.ptir.literal import TensorLiteral, literal
from weft.ptir.op import Op, make_op
from weft.ptir.term import Term
from weft.ptir.types import TupleType, ValueType
from weft.ptir.written import Number


class Emitter(ABC):
    """Makes instructions by name, each typed where it is made, and hands out terms."""

    def __init__(self) -> None:
        self._operands: list[Operand] = []

    @abstractmethod
    def append(self, op: Op, operands: Sequence[Term]) -> Term:
        """An op on these operands."""

    def emit(self, name: str, *operands: Term | Number, **attrs: Any) -> Term:
        model = next((operand for operand in operands if isinstance(operand, Term)), None)
        terms = [o if isinstance(o, Term) else self._like(o, model) for o in operands]
        return self.append(make_op(name, [term.type for term in terms], attrs), terms)

    def _like(self, number: Number, model: Term | None) -> Term:
        if model is None:
            raise InternalError(f"it is not known which dtype the number {number} has")
        return model.like(number)

    def term(self, operand: Operand, kind: ValueType) -> Term:
        self._operands.append(operand)
        return Term(self, len(self._operands) - 1, kind)

    def operand(self, term: Term) -> Operand:
        if term.emitter is not self:
            raise InternalError(f"a term of type {term.type} belongs to another body")
        return self._operands[term.key]

    def literal(self, value: Any, dtype: DType) -> Term:
        return self.constant(literal(value, dtype))

    def constant(self, made: TensorLiteral) -> Term:
        return self.term(made, made.type)

    def element(self, value: Term, index: int) -> Term:
        operand = self.operand(value)
        if not isinstance(value.type, TupleType) or not isinstance(operand, Ref):
            raise InternalError(f"a value of type {value.type} has no elements that can be named")
        return self.term(ElementRef(operand.id, index), value.type.elements[index])
