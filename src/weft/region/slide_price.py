"""What a kernel with stages takes on a GPU, with its rows in registers.

Warps are many, and a unit takes turns between those that it has room for. A step of all of them
takes as long as their instructions; a step of one waits for what it is made of, which the others
hide in part. The numbers were read from 24 plans of four programs on an H200.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import hypot, prod
from typing import Final

from weft.foundation.dtypes import F32
from weft.region.forms.slides import LANES, Slide
from weft.region.ir import Binary, Const, Kernel, Unary
from weft.target.target import Target

WARPS: Final = 4
"""Of a block, at most."""
_STRIPS: Final = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_EXCHANGE: Final = 2
_ACCESS: Final = 4
_STEP: Final = 12
"""Instructions that an exchange between lanes and an access to memory take the time of, and what
each step counts and compares."""
_WAIT: Final = 1.3e-9
_ROW: Final = 100e-9
_BRANCH: Final = 60e-9
"""Seconds that a warp waits for each of its instructions, for memory in each step, and where code
branches, past which nothing is moved."""
_BRANCHING: Final = frozenset({"div", "sqrt", "sin", "cos", "tan", "pow", "fmod"})


@dataclass(frozen=True)
class Shape:
    """How a kernel is cut: columns of a lane, and rows of a strip."""

    vector: int
    rows: int


def slide_shape(slide: Slide, operations: Sequence[float], target: Target) -> Shape:
    """The shape that takes the least time."""
    return min(_shapes(slide), key=lambda shape: slide_seconds(slide, operations, target, shape))


def _shapes(slide: Slide) -> Iterator[Shape]:
    height = slide.kernel.sizes[slide.form.slide]
    for vector in slide.vectors():
        for rows in _STRIPS:
            strips = -(-height // rows)
            yield Shape(vector, -(-height // strips))


def slide_seconds(slide: Slide, operations: Sequence[float], target: Target, shape: Shape) -> float:
    """The time that warps take to compute, given the operations of a point of every part."""
    limits, vector = target.limits, shape.vector
    sizes, form = slide.kernel.sizes, slide.form
    tiles = -(-sizes[slide.columns[-1]] // slide.width(vector))
    strips = -(-sizes[form.slide] // shape.rows)
    warps = prod(sizes[name] for name in form.batch) * tiles * strips
    registers = -(-slide.registers(vector) // 8) * 8
    room = min(limits.warps_per_unit, limits.registers_per_unit // (registers * LANES))
    together = min(room, warps / limits.units)
    turns = max(1.0, warps / (limits.units * room))
    rate = target.vector_rate(F32) / (2 * LANES * limits.units)
    step = vector * sum(operations) + _EXCHANGE * slide.exchanges(vector) + _STEP
    step += _ACCESS * _accesses(slide, vector)
    waiting, computing = _ROW + _WAIT * step, together * step / rate
    waiting += _BRANCH * vector * sum(map(_branches, slide.kernel.parts))
    return turns * (shape.rows + form.warm_up) * hypot(computing, waiting)


def _accesses(slide: Slide, vector: int) -> int:
    """Accesses to memory in a step: of each part that reads, and of the results; one by one where
    rows are not whole vectors."""
    found = 0
    for part, column, loads in zip(slide.kernel.parts, slide.columns, slide.loading, strict=True):
        whole = part.sizes[column] % vector == 0
        stores = part is slide.kernel.parts[-1]
        found += (loads + stores) * (1 if whole else vector * vector)
    return found


def _branches(part: Kernel) -> int:
    """Functions with code for odd numbers beside; quotients by a number have none."""
    numbers = {let.name for let in part.body if isinstance(let.expr, Const)}
    return sum(
        isinstance(let.expr, Unary | Binary)
        and let.expr.fn in _BRANCHING
        and getattr(let.expr, "rhs", "") not in numbers
        for let in part.body
    )
