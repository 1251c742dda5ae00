"""Composite ops: their meaning is a formula in simpler ops.

    class Double(Composite):
        def decompose(self, x: Term) -> Term:
            return x + x

The decomposition is written once, in terms, and used three times: the reference runs it, a program
is decomposed with it for whoever does not know the op, and where the op has no gradient rule of its
own, the gradient is that of the formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from weft.foundation.dtypes import as_dtype
from weft.foundation.errors import InternalError, SpecViolation, Unimplemented
from weft.foundation.whole_ops import WholeOp
from weft.ptir.gradient import vjp
from weft.ptir.interp import Interpreter
from weft.ptir.ir import ElementRef, Operand, Program
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import Array, EvalContext, Op, Value
from weft.ptir.passes.redundant import dce
from weft.ptir.slots import is_smooth
from weft.ptir.tape import Workshop, empty_program
from weft.ptir.term import Cotangents, Parts, Pullback, Term
from weft.ptir.types import TensorType, TupleType


class Composite(Op):
    """An op whose meaning is its decomposition."""

    def decompose(self, *operands: Term) -> Parts:
        """The result in terms of the operands; `Unimplemented` where it needs the size of a
        dynamic dim in numbers."""
        raise InternalError(f"{self.name} has no decomposition")

    def check_values(self, *args: Array) -> None:
        """Reject operands whose elements break a rule, in the words of this op.

        The decomposition rejects them as well, in the words of the ops that it is made of;
        `rejection` has words for it.
        """

    def rejection(self) -> tuple[str, str] | None:
        """The code and the sentence for operands that a guard of the decomposition rejects; None
        where it has no guard."""
        return None

    def whole(self, *types: TensorType) -> WholeOp | None:
        """What carries it out in one piece, on operands of these static types, for targets that
        have a kernel for that; None where it is taken apart everywhere."""
        return None

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

    def vjp(self, at: Pullback) -> Cotangents:
        types = tuple(operand.tensor for operand in at.operands)
        wanted = tuple(index for index, asked in enumerate(at.wanted) if asked)
        parts = at.of_elements if isinstance(at.result.type, TupleType) else (at.cotangent,)
        seeds = [part for part in parts if is_smooth(part.type)]
        found = _replay_program(_adjoint(self, types, wanted), [*at.operands, *seeds])
        gradients = dict(zip(wanted, found, strict=True))
        return [gradients.get(index) for index in range(len(types))]


_EMPTY = empty_program("composite")


@lru_cache(maxsize=256)
def _as_program(op: Composite, types: tuple[TensorType, ...]) -> Program:
    """The program that computes an op by its decomposition."""
    shop = Workshop(_EMPTY)
    tape = shop.function_tape(_EMPTY.main)
    found = op.decompose(*map(tape.parameter, types))
    return shop.finished(tape, found if isinstance(found, tuple) else [found])


@lru_cache(maxsize=256)
def _adjoint(op: Composite, types: tuple[TensorType, ...], wrt: tuple[int, ...]) -> Program:
    """The program from operands and cotangents to the gradients with respect to some operands."""
    program = vjp(_as_program(op, types), wrt)
    main, count = program.main, len(program.main.results) - len(wrt)
    alone = replace(main, results=main.results[count:], result_ids=main.result_ids[count:])
    # The forward results are known where the gradient is taken.
    return dce(program.with_main(alone))


def _replay_program(program: Program, operands: Sequence[Term]) -> list[Term]:
    """The results of a program without control flow on these operands, as further terms."""
    main, emitter = program.main, operands[0].emitter
    values = dict(zip(main.parameter_ids, operands, strict=True))

    def term(operand: Operand) -> Term:
        if isinstance(operand, TensorLiteral):
            return emitter.literal(operand.array, operand.type.dtype)
        value = values[operand.id]
        return value[operand.index] if isinstance(operand, ElementRef) else value

    for instruction in main.body:
        op = instruction.op
        fixed = op.spellings()[op.mnemonic]
        attrs = {name: getattr(op, name) for name in op.all_attributes() if name not in fixed}
        values[instruction.id] = emitter.emit(
            op.mnemonic, *map(term, instruction.operands), **attrs
        )
    return [values[value_id] for value_id in main.result_ids]


def expand(op: Composite, *operands: Term) -> Parts | None:
    """The decomposition of a composite op as a rule of `weft.ptir.decompositions`; None where its
    dynamic dims have no names or must be numbers."""
    try:
        return op.decompose(*operands)
    except Unimplemented:
        return None
    except SpecViolation as error:
        if error.code != "DynamicDimensionMismatch":
            raise
        return None
