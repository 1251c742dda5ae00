"""The cost model of fused stages on a GPU, with their rows in registers.

Warps are many, and a unit takes turns between those that it has room for. A step of all of them
takes as long as their instructions; a step of one waits for what it is made of, which the others
hide in part. The numbers were read from 24 plans of four programs on an H200.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import hypot, prod
from typing import Final

from weft.foundation.dtypes import F32
from weft.foundation.records import dataclass
from weft.region.forms.slides import LANES, Slide
from weft.region.forms.sliding import Sliding
from weft.region.ir import Binary, Const, Kernel, Unary
from weft.target.target import Target

WARPS: Final = 4
"""Of a block, at most."""
_STRIPS: Final = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_EXCHANGE: Final = 2
ACCESS: Final = 4
STEP: Final = 12
"""Instructions that an exchange between lanes and an access to memory take the time of, and what
each step counts and compares."""
WAIT: Final = 1.3e-9
ROW: Final = 100e-9
_BRANCH: Final = 130e-9
"""Seconds that a warp waits for each of its instructions, for memory in each step, and where code
branches, past which nothing is moved."""
_BRANCH_STEPS: Final = 40
_BRANCH_REGISTERS: Final = 4
"""Instructions and registers that such code takes besides its operation, in every column."""
_BRANCHING: Final = frozenset({"div", "sqrt", "sin", "cos", "tan", "pow", "fmod"})


@dataclass(frozen=True)
class Shape:
    """How a kernel is cut: columns of a lane, and rows of a strip."""

    vector: int
    rows: int


def slide_shape(slide: Slide, operations: Sequence[float], target: Target) -> Shape:
    """The shape that takes the least time."""
    lanes = [_Lanes.of(slide, operations, target, vector) for vector in slide.vectors()]
    found = ((each, rows) for each in lanes for rows in strips_of(slide))
    best, rows = min(found, key=lambda shape: shape[0].seconds(shape[1]))
    return Shape(best.vector, rows)


def strips_of(slide: Sliding) -> Iterator[int]:
    """Rows of a strip, so that all strips are about as long."""
    height = slide.kernel.sizes[slide.form.slide]
    for rows in _STRIPS:
        yield -(-height // -(-height // rows))


def slide_seconds(slide: Slide, operations: Sequence[float], target: Target, shape: Shape) -> float:
    """The time that warps take to compute, given the operations of a point of every part."""
    return _Lanes.of(slide, operations, target, shape.vector).seconds(shape.rows)


@dataclass(frozen=True)
class _Lanes:
    """What a step takes where lanes have so many columns, whatever the strips."""

    vector: int
    height: int
    """Rows of the results."""
    beside: int
    """Warps that lie side by side."""
    warm_up: int
    units: int
    room: int
    """Warps that a unit has registers for."""
    instructions: float
    """Seconds of a unit for a step of one warp."""
    waiting: float
    """Seconds of a warp for a step."""
    branches: bool
    """Whether it waits for so long that a unit with few warps left is hardly faster."""

    @classmethod
    def of(cls, slide: Slide, operations: Sequence[float], target: Target, vector: int) -> _Lanes:
        limits, sizes, form = target.limits, slide.kernel.sizes, slide.form
        tiles = -(-sizes[slide.columns[-1]] // slide.width(vector))
        branches = vector * sum(map(branches_of, slide.kernel.parts))
        held = slide.registers(vector) + _BRANCH_REGISTERS * branches
        registers = -(-held // 8) * 8
        rate = target.vector_rate(F32) / (2 * LANES * limits.units)
        step = vector * sum(operations) + _EXCHANGE * slide.exchanges(vector) + STEP
        step += ACCESS * _accesses(slide, vector) + _BRANCH_STEPS * branches
        waiting = ROW + WAIT * step + _BRANCH * branches
        return cls(
            vector,
            sizes[form.slide],
            prod(sizes[name] for name in form.batch) * tiles,
            form.warm_up,
            limits.units,
            min(limits.warps_per_unit, limits.registers_per_unit // (registers * LANES)),
            step / rate,
            waiting,
            branches > 0,
        )

    def seconds(self, rows: int) -> float:
        """The time of strips of so many rows."""
        warps = self.beside * -(-self.height // rows) / self.units
        if not self.branches:
            turns = max(1.0, warps / self.room)
            return turns * self._turn(rows, min(self.room, warps))
        full, left = divmod(warps, self.room)
        return full * self._turn(rows, self.room) + (self._turn(rows, left) if left else 0.0)

    def _turn(self, rows: int, together: float) -> float:
        """The time of a strip of each of the warps that a unit has at once."""
        return (rows + self.warm_up) * hypot(together * self.instructions, self.waiting)


def _accesses(slide: Slide, vector: int) -> int:
    """Accesses to memory in a step: of each part that reads, and of the results; one by one where
    rows are not whole vectors."""
    found = 0
    for part, column, loads in zip(slide.kernel.parts, slide.columns, slide.loading, strict=True):
        whole = part.sizes[column] % vector == 0
        stores = part is slide.kernel.parts[-1]
        found += (loads + stores) * (1 if whole else vector * vector)
    return found


def branches_of(part: Kernel) -> int:
    """Functions with code for odd numbers beside; quotients by a number have none."""
    numbers = {let.name for let in part.body if isinstance(let.expr, Const)}
    return sum(
        isinstance(let.expr, Unary | Binary)
        and let.expr.fn in _BRANCHING
        and getattr(let.expr, "rhs", "") not in numbers
        for let in part.body
    )
