"""Ops that are formulas: what they mean is what simpler ops make of their operands.

    class Double(Composite):
        def decompose(self, x: Term) -> Term:
            return x + x

The decomposition is written once, in terms, and used three times: the reference runs it, a program
is decomposed with it for whoever does not know the op, and (where the op has no gradient rule of
its own) its gradient is taken.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

from weft.foundation.dtypes import DType, as_dtype
from weft.foundation.errors import InternalError, SpecViolation, Unimplemented
from weft.ptir.interp import Interpreter
from weft.ptir.ir import Function, Instruction, Program
from weft.ptir.op import Array, EvalContext, Op, Value
from weft.ptir.passes.emitter import Emitter, Handle
from weft.ptir.tape import Workshop
from weft.ptir.term import Number, Term
from weft.ptir.types import TensorType

Parts: TypeAlias = "Term | tuple[Term, ...]"
"""A result as a formula: one term, or one for each element of a tuple."""


class Composite(Op):
    """An op whose meaning is its decomposition."""

    def decompose(self, *operands: Term) -> Parts:
        """The result in terms of the operands; `Unimplemented` where it needs the size of a
        dynamic dim in numbers."""
        raise InternalError(f"{self.name} has no decomposition")

    def check_values(self, *args: Array) -> None:
        """Reject operands whose elements break a rule, in the words of this op.

        The decomposition rejects them as well, in the words of the ops that it is made of.
        """

    def evaluate(self, ctx: EvalContext, *args: Array) -> Value:
        self.check_values(*args)
        types = tuple(TensorType(as_dtype(array.dtype), array.shape) for array in args)
        interpreter = Interpreter(_as_program(self, types))
        try:
            found = interpreter.run(args, ctx.seed, execution=ctx.execution)
        except SpecViolation as error:
            # The place inside the formula says nothing to those who wrote the op.
            raise SpecViolation(error.code, error.why, error.hint) from None
        return found[0] if len(found) == 1 else found


_EMPTY = Program("composite", (Function("composite", (), (), (), ()),), ())


@lru_cache(maxsize=256)
def _as_program(op: Composite, types: tuple[TensorType, ...]) -> Program:
    """The program that computes an op by its decomposition."""
    shop = Workshop(_EMPTY)
    tape = shop.function_tape(_EMPTY.main)
    ids = tuple(range(len(types)))
    operands = [tape.parameter(kind, index) for index, kind in enumerate(types)]
    found = op.decompose(*operands)
    return shop.finished(tape, ids, found if isinstance(found, tuple) else [found])


class _Formula:
    """Terms over the emitter of a pass."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._handles: list[Handle] = []

    def term(self, handle: Handle) -> Term:
        self._handles.append(handle)
        return Term(self, len(self._handles) - 1, handle.type)

    def handle(self, term: Term) -> Handle:
        return self._handles[term.key]

    def emit(self, name: str, *operands: Term | Number, **attrs: Any) -> Term:
        values = [self.handle(o) if isinstance(o, Term) else o for o in operands]
        return self.term(self._emitter.emit(name, *values, **attrs))

    def literal(self, value: Any, dtype: DType) -> Term:
        return self.term(self._emitter.literal(value, dtype))

    def element(self, value: Term, index: int) -> Term:
        return self.term(self.handle(value)[index])


def expand(emitter: Emitter, instruction: Instruction) -> Handle | tuple[Handle, ...] | None:
    """The decomposition of a composite instruction as a rule of `weft.ptir.decompositions`; None
    where its dynamic dims have no names or must be numbers."""
    op = instruction.op
    if not isinstance(op, Composite):
        raise InternalError(f"{op.mnemonic} is not a composite op")
    formula = _Formula(emitter)
    operands = [formula.term(handle) for handle in emitter.values(instruction)]
    try:
        found = op.decompose(*operands)
    except Unimplemented:
        return None
    except SpecViolation as error:
        if error.code != "DynamicDimensionMismatch":
            raise
        return None
    return tuple(map(formula.handle, found)) if isinstance(found, tuple) else formula.handle(found)
