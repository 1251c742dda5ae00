"""What a batching rule is, and the table of them.

A rule is asked about an instruction of which at least one operand is batched: it has a further
axis, its first. The others are as they were. The rule answers the batched result. Every op that
works on the elements at one index needs no rule of its own: its operands are all made batched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from weft.foundation.errors import InternalError, Unimplemented
from weft.ptir.op import Op
from weft.ptir.op_rules import OpRules
from weft.ptir.ops.custom import CustomGradient
from weft.ptir.tape import Tape
from weft.ptir.term import Term
from weft.ptir.types import Dim, TensorType, ValueType


@dataclass(frozen=True)
class Batching:
    """One instruction, and which of its operands are batched."""

    tape: Tape
    size: Dim
    """Of the batch axis."""
    op: Op
    operands: tuple[Term, ...]
    batched: tuple[bool, ...]
    output: ValueType
    """The type of the result before."""

    def spread(self, index: int) -> Term:
        """An operand as a batched one; one that is not is the same for all."""
        term = self.operands[index]
        return term if self.batched[index] else term.broadcast_to((self.size, *term.shape))

    @property
    def all_spread(self) -> list[Term]:
        return [self.spread(index) for index in range(len(self.operands))]

    def shape(self, index: int) -> tuple[Dim, ...]:
        """The shape of an operand without the batch axis."""
        shape = self.operands[index].shape
        return shape[1:] if self.batched[index] else shape

    @property
    def result(self) -> TensorType:
        """The batched type of the only result."""
        if not isinstance(self.output, TensorType):
            raise InternalError(f"{self.op.mnemonic} has several results")
        return self.output.with_shape((self.size, *self.output.shape))

    def emit(self, op: Op, *operands: Term) -> Term:
        """The op with the result that the batched one must have."""
        return self.tape.append(op, operands, self.result)

    def refuse(self, why: str) -> Unimplemented:
        return Unimplemented(f"vmap of {self.op.mnemonic}", why)


batches: Final = OpRules[Batching, Term](CustomGradient)


@batches.elementwise
def elementwise(b: Batching) -> Term:
    return b.emit(b.op, *b.all_spread)
