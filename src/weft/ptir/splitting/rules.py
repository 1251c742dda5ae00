"""The interface of partitioning rules, and the table of them.

A rule is asked about an instruction of which at least one operand is split over a mesh. It answers
one rank's part of the result, and how the result is split. No rule gathers what is split: where the
operands do not fit together, or there is no rule, the user is told to say `reshard`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from weft.foundation.errors import InternalError, UserError
from weft.ptir.op import Op
from weft.ptir.op_rules import OpRules
from weft.ptir.ops.elementwise import BinaryFn, ElementwiseBinary, ElementwiseUnary, UnaryFn
from weft.ptir.splitting.resharding import Axes, Exchanges, Layout, Part, layout_text
from weft.ptir.term import Term
from weft.ptir.types import TensorType


class NotSplit(Exception):
    """Why an instruction cannot be split; the walk adds the place."""


@dataclass(frozen=True)
class Splitting:
    """One instruction, and what a rank has of its operands."""

    at: Exchanges
    op: Op
    operands: tuple[Part, ...]
    output: TensorType
    """The type of the whole result."""
    line: str

    def settled(self, index: int) -> Part:
        """An operand whose sum is made."""
        return self.at.settled(self.operands[index])

    def own(self, part: Part, layout: Layout) -> Term:
        """A part of the part that a rank has."""
        missing: dict[int, Axes] = {}
        for d, (have, want) in enumerate(zip(part.layout, layout, strict=True)):
            if have and have != want:
                raise NotSplit(
                    f"an operand is split {layout_text(part.layout)}, not {layout_text(layout)}"
                )
            if want and not have:
                missing[d] = want
        return self.at.cut(part.term, missing)

    def fitting(self, *layouts: Layout) -> Layout:
        """How a result is split whose axes are those of several operands."""
        found = []
        for several in zip(*layouts, strict=True):
            known = {axes for axes in several if axes}
            if len(known) > 1:
                raise self.apart(*layouts)
            found.append(known.pop() if known else ())
        return self.once(tuple(found), *layouts)

    def once(self, layout: Layout, *operands: Layout, pending: Axes = ()) -> Layout:
        """A layout in which each axis of the mesh splits one axis of the tensor."""
        names = [name for axes in layout for name in axes] + list(pending)
        if len(set(names)) < len(names):
            raise self.apart(*operands)
        return layout

    def apart(self, *layouts: Layout) -> NotSplit:
        said = " and ".join(dict.fromkeys(map(layout_text, layouts)))
        return NotSplit(f"its operands are split {said}, which do not fit together")

    def part(self, term: Term, layout: Layout, pending: Axes = (), line: str = "") -> Part:
        """The answer, of the shape that it must have."""
        wanted = self.at.local(self.output.static_shape, layout)
        if term.shape != wanted:
            raise InternalError(f"a part of {self.op.mnemonic} is {term.shape}, not {wanted}")
        ordered = tuple(name for name in self.at.mesh.shape if name in pending)
        return Part(term, layout, ordered, line or self.line)

    def emit(self, op: Op, terms: Sequence[Term], layout: Layout) -> Part:
        return self.part(self.at.tape.append(op, terms), layout)


splits: Final = OpRules[Splitting, Part]()

_SUMS: Final = (BinaryFn.ADD, BinaryFn.SUB)
_SCALES: Final[Mapping[BinaryFn, tuple[int, ...]]] = {BinaryFn.MUL: (0, 1), BinaryFn.DIV: (0,)}
"""In which operands an op is linear, the others given."""


@splits.elementwise
def elementwise(s: Splitting) -> Part:
    """All operands split in the same way. Sums stay pending through what is linear in them."""
    pending = [part.pending for part in s.operands]
    kept: Axes = ()
    if isinstance(s.op, ElementwiseUnary) and s.op.fn is UnaryFn.NEG:
        kept = pending[0]
    elif isinstance(s.op, ElementwiseBinary) and any(pending):
        # (sum a) ± (sum b) is one sum of a ± b only over the same ranks; a term that is whole would
        # be counted by each of them.
        same = s.op.fn in _SUMS and pending[0] == pending[1]
        given = _SCALES.get(s.op.fn, ())
        scaled = [at for at in (0, 1) if pending[at]]
        kept = pending[scaled[0]] if same or (len(scaled) == 1 and scaled[0] in given) else ()
    parts = s.operands if kept else tuple(map(s.at.settled, s.operands))
    layout = s.fitting(*(part.layout for part in parts))
    if set(kept) & {name for axes in layout for name in axes}:
        # A sum over ranks that have different parts of the other operand is made first.
        parts, kept = tuple(map(s.at.settled, s.operands)), ()
    line = next((part.line for part in s.operands if part.pending), "")
    term = s.at.tape.append(s.op, [s.own(part, layout) for part in parts])
    return s.part(term, layout, kept, line)


def waiting(op: Op, index: int) -> bool:
    """Whether an op may take a sum that is not made yet as that operand."""
    if isinstance(op, ElementwiseBinary):
        return op.fn in _SUMS or index in _SCALES.get(op.fn, ())
    if isinstance(op, ElementwiseUnary):
        return op.fn is UnaryFn.NEG
    return type(op) in WAITING


WAITING: set[type[Op]] = set()
"""Ops of other families that may take sums that are not made yet."""


def refusal(op: Op, why: str, line: str) -> UserError:
    """The sentence for an instruction that cannot be split."""
    return UserError(
        f"{op.mnemonic} is not split over the mesh: {why}; say how with weft.reshard(x, split)",
        "NoSplit",
        line,
    )
