"""The part of a tensor that one turn of a loop has: the partitioning of a mesh, with turns of a
loop in place of ranks, which exchange nothing.

A turn is given its rows of what was made before the loop, and the whole of what all turns read.
What would be as large as the tensor in the middle, it makes for its rows alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final

from weft.foundation.mesh import Mesh
from weft.ptir.ir import ElementRef, Instruction, Operand, Ref
from weft.ptir.literal import TensorLiteral
from weft.ptir.ops.movement import BroadcastTo, Iota
from weft.ptir.ops.scheduling import Barrier
from weft.ptir.slots import Slot, slot_type
from weft.ptir.splitting.resharding import DEEPEST, Axes, Exchanges, Layout, Part, whole
from weft.ptir.splitting.rules import NotSplit, Splitting, splits
from weft.ptir.tape import Tape
from weft.ptir.term import Term
from weft.ptir.types import TensorType, ValueType

TURN: Final = "turn"
"""The axis of the mesh."""


class Turn(Exchanges):
    """One turn, written on a tape whose parameters are what it is given."""

    def __init__(
        self,
        tape: Tape,
        turns: int,
        types: Mapping[int, ValueType],
        makers: Mapping[int, Instruction],
        large: int,
    ) -> None:
        super().__init__(tape, Mesh(((TURN, turns),)))
        self.turns, self.types, self.makers, self.large = turns, types, makers, large
        self.given: dict[Slot, Term] = {}
        """What all turns read."""
        self.pieces: dict[Slot, Term] = {}
        """What each turn has rows of."""
        self._axes: dict[Slot, int] = {}
        self._slots: dict[int, Slot] = {}
        """Which value from before the loop a parameter is."""

    def outside(self, operand: Operand) -> Part:
        """What was made before the loop, as a turn sees it."""
        if isinstance(operand, TensorLiteral):
            return whole(self.tape.constant(operand))
        return whole(self._whole((operand.id, getattr(operand, "index", None))))

    def _whole(self, slot: Slot) -> Term:
        if slot not in self.given:
            kind = slot_type(slot, self.types)
            if not isinstance(kind, TensorType):
                raise NotSplit("a tuple is read")
            self.given[slot] = self._parameter(slot, kind)
        return self.given[slot]

    def _parameter(self, slot: Slot, kind: TensorType) -> Term:
        made = self.tape.parameter(kind)
        self._slots[self.tape.parameter_ids[-1]] = slot
        return made

    def _slot(self, term: Term) -> Slot:
        operand = self.tape.operand(term)
        if not isinstance(operand, Ref) or operand.id not in self._slots:
            raise NotSplit("rows are taken of what is not a tensor from before the loop")
        return self._slots[operand.id]

    # -- rows of what there is -------------------------------------------------------------------

    def cut(self, term: Term, wanted: Mapping[int, Axes], depth: int = 0) -> Term:
        """A turn's rows of what was made before the loop."""
        if not wanted:
            return term
        slot = self._slot(term)
        made = self.makers.get(slot[0]) if slot[1] is None else None
        if made is not None and isinstance(made.op, BroadcastTo):
            (source,) = made.operands
            return self._broadcast(term, self.outside(source).term, wanted, depth)
        if made is not None and isinstance(made.op, Iota) and made.op.axis not in wanted:
            return term.counting(self._shape(term, wanted), made.op.axis, made.op.dtype)
        if made is not None and isinstance(made.op, Barrier) and self.is_large(term.tensor):
            return self.cut(self.outside(made.operands[0]).term, wanted, depth)
        if made is not None and self._is_made_again(made, term, depth):
            rows = self._made_again(made, term, wanted, depth)
            if rows is not None:
                return rows
        return self._cut_out(term, wanted)

    def _is_made_again(self, made: Instruction, term: Term, depth: int) -> bool:
        """Whether a turn makes rows itself that would take much memory before the loop, or that
        are made of such."""
        if made.op.random or made.op.regions or depth > DEEPEST:
            return False
        kinds = [term.type, *(self.types[value_id] for value_id in made.uses)]
        return any(isinstance(kind, TensorType) and self.is_large(kind) for kind in kinds)

    def _made_again(
        self, made: Instruction, term: Term, wanted: Mapping[int, Axes], depth: int
    ) -> Term | None:
        """The rows of what an op made, from rows of its operands; None where it needs others."""
        ((axis, axes),) = wanted.items()
        rule, parts = splits.of(made.op), list[Part]()
        for operand in made.operands:
            part = self.outside(operand)
            shape = part.term.shape
            if len(shape) > axis and shape[axis] == term.shape[axis]:
                layout = tuple(axes if d == axis else () for d in range(len(shape)))
                part = Part(self.cut(part.term, wanted, depth + 1), layout)
            parts.append(part)
        if rule is None:
            return None
        try:
            found = rule(Splitting(self, made.op, tuple(parts), term.tensor, self.tape.line))
        except NotSplit:
            return None
        asked = tuple(wanted.get(d, ()) for d in range(term.rank))
        # A rule that answers the whole, or a sum over turns, has not made the rows that are asked
        # for.
        return found.term if found.layout == asked and not found.pending else None

    def is_large(self, kind: TensorType) -> bool:
        """Whether a tensor is as large as those that the loop is there for."""
        return kind.is_static and prod(kind.static_shape) >= self.large

    def _cut_out(self, term: Term, wanted: Mapping[int, Axes]) -> Term:
        ((axis, _),) = wanted.items()
        slot = self._slot(term)
        # Rows are one stretch of memory only where nothing counts slower than their axis.
        if prod(term.tensor.static_shape[:axis]) != 1 or self._axes.get(slot, axis) != axis:
            raise NotSplit("the rows of a turn do not lie together")
        if slot not in self.pieces:
            kind = term.tensor.with_shape(self._shape(term, wanted))
            self.pieces[slot] = self._parameter(slot, kind)
            self._axes[slot] = axis
        return self.pieces[slot]

    # -- what turns do not do --------------------------------------------------------------------

    def settled(self, part: Part) -> Part:
        if part.pending:
            raise NotSplit("a sum over all turns is read in one of them")
        return part

    def reduced(self, term: Term, axes: Axes, fn: str, line: str) -> Term:
        raise NotSplit("only sums are made over turns")

    def resharded(self, part: Part, wanted: Layout) -> Part:
        raise NotSplit("turns exchange nothing")


def slot_operand(slot: Slot) -> Operand:
    """The operand that reads a slot."""
    value_id, index = slot
    return Ref(value_id) if index is None else ElementRef(value_id, index)
