"""Gradients that loop steps only add to a carry are summed after the loop instead.

    before   each step:  total = total + x_t @ y_t
    after    each step returns y_t;  total + sum over t and k of X[t, :, k] * Y[t, k, :]

The gradient of a weight that every step uses is such a total: one product of everything after the
loop takes the place of a small one, and of a pass over the weight, at every step. Sums are found
behind transposes and reshapes; where an operand would be stacked for nothing but the sum, it must
not be much larger than the carry that a step would read and write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from weft.ptir.ir import Instruction, Ref
from weft.ptir.op import Op
from weft.ptir.ops.contraction import DotGeneral
from weft.ptir.ops.elementwise import BinaryFn, ElementwiseBinary
from weft.ptir.ops.movement import Reshape, Transpose
from weft.ptir.ops.reduce_kind import ReduceKind
from weft.ptir.ops.reduction import Reduce
from weft.ptir.passes.residuals import byte_count
from weft.ptir.tape import Tape
from weft.ptir.term import Term
from weft.ptir.types import Dim, TensorType

MOST_MORE = 2
"""How many times as large as a carry may be what is stacked for its sum alone."""


@dataclass(frozen=True)
class StepSum:
    """What a step adds: a product or a sum of values of that step, then moved about."""

    op: DotGeneral | Reduce
    operands: tuple[int, ...]
    shape: tuple[Dim, ...]
    moves: tuple[Op, ...]

    def over_steps(self, tape: Tape, stacks: Mapping[int, Term]) -> Term:
        """The same of all steps together, given its operands of all steps, stacked."""
        op, terms = self.op, [stacks[operand] for operand in self.operands]
        if isinstance(op, DotGeneral):
            found = tape.append(_all_steps(op), terms)
        else:
            # Without axes of size 1, whose places the leading axis has moved; the shape of a step
            # brings them back.
            total = replace(op, axes=(0, *_axes_behind_one(op.axes)), keepdims=False)
            found = tape.append(total, terms).reshape(self.shape)
        for move in self.moves:
            found = tape.append(move, [found])
        return found


def _all_steps(op: DotGeneral) -> DotGeneral:
    """The product of operands with a leading axis of steps, which is summed over too."""
    return replace(
        op,
        batch_lhs=_axes_behind_one(op.batch_lhs),
        batch_rhs=_axes_behind_one(op.batch_rhs),
        contract_lhs=(0, *_axes_behind_one(op.contract_lhs)),
        contract_rhs=(0, *_axes_behind_one(op.contract_rhs)),
    )


def _axes_behind_one(axes: Sequence[int]) -> tuple[int, ...]:
    """The axes, behind one more."""
    return tuple(axis + 1 for axis in axes)


class LoopSums:
    """The body of a loop, and what it adds to carries."""

    def __init__(self, tape: Tape, stacked: Iterable[int], fixed: frozenset[int]) -> None:
        """`stacked` are values that are at hand of all steps anyway, `fixed` those that no step
        changes."""
        self.tape = tape
        self.stacked = set(stacked)
        self.fixed = fixed
        self.made = {i.id: i for i in tape.body}
        self.uses = Counter(use for i in tape.body for use in i.uses)

    def added(self, carry: int, end: int) -> list[StepSum] | None:
        """What a step adds to a carry to make `end`; None where it does something else. What has to
        be stacked for it is from now on."""
        found: list[StepSum] = []
        open_ids, seen = [end], False
        while open_ids:
            value_id = open_ids.pop()
            instruction = self.made.get(value_id)
            if value_id == carry:
                seen = True
            elif instruction is not None and self._is_addition(instruction, value_id == end):
                open_ids += [o.id for o in instruction.operands if isinstance(o, Ref)]
            else:
                step = self._step_sum(instruction)
                if step is None:
                    return None
                found.append(step)
        new = {o for step in found for o in step.operands} - self.stacked
        more = sum(byte_count(self.tape.types[value_id]) for value_id in new)
        # Only the addition may read the carry: whoever looks at a partial sum needs it at every
        # step.
        alone = self.uses[carry] == 1 and bool(found)
        if not seen or not alone or more > MOST_MORE * byte_count(self.tape.types[carry]):
            return None
        self.stacked |= new
        return found

    def _is_addition(self, instruction: Instruction, is_end: bool) -> bool:
        op = instruction.op
        return (
            isinstance(op, ElementwiseBinary)
            and op.fn is BinaryFn.ADD
            and all(isinstance(operand, Ref) for operand in instruction.operands)
            and self.uses[instruction.id] == (0 if is_end else 1)
        )

    def _step_sum(self, instruction: Instruction | None) -> StepSum | None:
        """The sum that a value is, behind moves of elements; None where it is none, or of something
        that no loop can stack."""
        moves: list[Op] = []
        while instruction is not None and isinstance(instruction.op, Transpose | Reshape):
            moves.append(instruction.op)
            source = instruction.operands[0]
            instruction = self.made.get(source.id) if isinstance(source, Ref) else None
        if instruction is None or not isinstance(instruction.output, TensorType):
            return None
        op = instruction.op
        if not isinstance(op, DotGeneral | Reduce):
            return None
        if isinstance(op, Reduce) and op.kind is not ReduceKind.SUM:
            return None
        operands = tuple(o.id for o in instruction.operands if isinstance(o, Ref))
        if len(operands) < len(instruction.operands) or not self.fixed.isdisjoint(operands):
            return None
        return StepSum(op, operands, instruction.output.shape, tuple(reversed(moves)))
