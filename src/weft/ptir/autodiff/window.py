"""The gradient of rows taken at consecutive positions: a window, where a slice cannot be used since
another size is dynamic.

    y = take(x, iota + start)        dx = dy between zeros

The rule of `take` would add every row at its position, as data.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.ptir.autodiff.definitions import Definitions, definition, known_number
from weft.ptir.ir import Instruction, Operand
from weft.ptir.ops.elementwise import BinaryFn, ElementwiseBinary
from weft.ptir.ops.indexing import Take
from weft.ptir.ops.movement import Iota
from weft.ptir.term import Term


@dataclass(frozen=True)
class Window:
    """`size` rows from `start` on."""

    start: int
    size: int

    def placed(self, x: Term, rows: Term | None) -> Term | None:
        """Zeros like x but for these rows; None where x has no such rows, as far as is known."""
        total = x.shape[0]
        if rows is None or not isinstance(total, int):
            return None
        after = total - self.start - self.size
        if self.start < 0 or after < 0:
            return None
        rest = [0] * (rows.rank - 1)
        return rows.pad([self.start, *rest], [after, *rest])


def window(instruction: Instruction, made: Definitions) -> Window | None:
    """The rows that the instruction takes, if they are a window."""
    if not isinstance(instruction.op, Take):
        return None
    positions = instruction.operands[1]
    count = _iota_length(positions, made)
    if count is not None:
        return Window(0, count)
    addition = definition(positions, made)
    if addition is None or addition.op != ElementwiseBinary(BinaryFn.ADD):
        return None
    count, start = (
        _iota_length(addition.operands[0], made),
        known_number(addition.operands[1], made),
    )
    return None if count is None or start is None else Window(int(start), count)


def _iota_length(positions: Operand, made: Definitions) -> int | None:
    """How many there are of 0, 1, 2, ..."""
    match definition(positions, made):
        case Instruction(op=Iota(shape=(int(size),))):
            return size
    return None
