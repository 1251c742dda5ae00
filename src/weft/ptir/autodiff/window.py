"""The gradient of rows taken at consecutive positions: a window, where a slice cannot be used since
another size is dynamic, and an axis that runs backwards.

    y = take(x, iota + start)        dx = dy between zeros
    y = take(x, last - iota)         dx = dy backwards between zeros

The rule of `take` would add every row at its position, as data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.ptir.autodiff.definitions import Definitions, definition, known_number
from weft.ptir.ir import Instruction, Operand
from weft.ptir.literal import TensorLiteral
from weft.ptir.ops.constant import Constant
from weft.ptir.ops.elementwise import BinaryFn, ElementwiseBinary
from weft.ptir.ops.indexing import Take
from weft.ptir.ops.movement import Iota
from weft.ptir.term import Term


@dataclass(frozen=True)
class Window:
    """`size` rows from `start` on, forwards or backwards."""

    start: int
    size: int
    backwards: bool = False

    def placed(self, x: Term, rows: Term | None) -> Term | None:
        """Zeros like x but for these rows; None where x has no such rows, as far as is known."""
        total = x.shape[0]
        if rows is None or not isinstance(total, int):
            return None
        before = self.start - self.size + 1 if self.backwards else self.start
        after = total - before - self.size
        if before < 0 or after < 0:
            return None
        rest = [0] * (rows.rank - 1)
        inside = rows.flipped(0) if self.backwards else rows
        return inside.pad([before, *rest], [after, *rest])


def window(instruction: Instruction, made: Definitions) -> Window | None:
    """The rows that the instruction takes, if they are a window."""
    if not isinstance(instruction.op, Take):
        return None
    positions = instruction.operands[1]
    count = _iota_length(positions, made)
    if count is not None:
        return Window(0, count)
    found = definition(positions, made)
    if found is not None and isinstance(found.op, Constant):
        positions = found.op.value
    if isinstance(positions, TensorLiteral):
        return _of_numbers(positions)
    if found is None or not isinstance(found.op, ElementwiseBinary):
        return None
    left, right = found.operands
    backwards = found.op.fn is BinaryFn.SUB
    if backwards:
        left, right = right, left
    elif found.op.fn is not BinaryFn.ADD:
        return None
    count, start = _iota_length(left, made), known_number(right, made)
    return None if count is None or start is None else Window(int(start), count, backwards)


def _of_numbers(positions: TensorLiteral) -> Window | None:
    """The window that positions name which are known one by one."""
    numbers = positions.array
    if numbers.ndim != 1 or not len(numbers):
        return None
    start, size = int(numbers[0]), len(numbers)
    for step in (1, -1):
        if np.array_equal(numbers, start + step * np.arange(size)):
            return Window(start, size, backwards=step < 0)
    return None


def _iota_length(positions: Operand, made: Definitions) -> int | None:
    """How many there are of 0, 1, 2, ..."""
    match definition(positions, made):
        case Instruction(op=Iota(shape=(int(size),))):
            return size
    return None
