"""How long a contraction takes on SM90, form by form, in cycles of a unit.

    step  = either(rows * columns / 32, slot bytes / copy rate)  a k step of 64
    tile  = steps * step + epilogue                               the epilogue unless it is hidden
    total = start and end + either(waves * tile, all bytes / memory rate)

`either` is the larger of two times, and more where they are close. A unit multiplies 128x256x64 in
1024 cycles. Ping-pong hides epilogues behind the other warpgroup's products. All numbers were
fitted to measured kernels, most of which the total meets within two percent at one clock; times of
forms compare, though clocks differ between problems.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from weft.target.target import Target

K_STEP: Final = 64
_AREA_PER_CYCLE: Final = 32
_ENDS: Final = 6000
"""Cycles before the first data arrive and after the last product."""
_EPILOGUE: Final = 36
"""Elements of the result that a unit stores in a cycle."""
_HEAVY: Final = 9
"""Elements for which one warpgroup carries out a heavy epilogue in a cycle."""
_COPY_RATE: Final = 75.0
"""Bytes a cycle that reach a unit from the second-level cache."""
_LATENCY: Final = 1300
"""Cycles from the request of data in memory to their arrival."""
_LAUNCH: Final = 4500
"""Cycles that another kernel costs."""
_MEMORY_RATE: Final = 2700.0
"""Bytes a cycle that memory gives to all units."""
_MOST_STAGES: Final = 12
_IN_STEPS: Final = 12
_IN_ALL: Final = 4
"""How sharply the larger of two times hides the other: within k steps, and over the kernel."""
_PRECISION: Final = 0.006
_MUCH: Final = 0.1
"""Of a result, what tiles may hold beyond it without being worse for that."""


@dataclass(frozen=True)
class Form:
    """A form that SM90 kernels can have."""

    rows: int
    columns: int
    warp_tile: tuple[int, int]
    roles: str = "cooperative"
    swap: bool = False
    """Whether rows of the tile are columns of the problem."""

    @property
    def consumers(self) -> int:
        if self.roles == "pingpong":
            return 2
        return (self.rows // self.warp_tile[0]) * (self.columns // self.warp_tile[1])

    @property
    def storing(self) -> int:
        """Warpgroups that store a tile together."""
        return 1 if self.roles == "pingpong" else self.consumers

    @property
    def defers(self) -> bool:
        """Whether results can wait in registers while the next tile is multiplied."""
        return self.roles == "cooperative" and self.warp_tile[0] == 64 and not self.swap

    @property
    def overhead(self) -> float:
        """What narrow panels of the result cost."""
        return 1.0 if self.columns % 32 == 0 or self.swap else 1.015

    def suits(self, extent: Extent) -> bool:
        """Whether swapped tiles hold all rows of the problem, and no more than they must."""
        if not self.swap:
            return True
        return self.columns >= extent.m and (self.columns == 8 or self.columns < 2 * extent.m)


@dataclass(frozen=True)
class Extent:
    """The sizes of a contraction."""

    batch: int
    m: int
    n: int
    k: int

    def tiles(self, form: Form) -> int:
        m, n = (self.n, self.m) if form.swap else (self.m, self.n)
        return self.batch * -(-m // form.rows) * -(-n // form.columns)

    def padding(self, form: Form) -> float:
        """How many times the result the tiles of a form would hold."""
        area = max(1, self.batch * self.m * self.n)
        return self.tiles(form) * form.rows * form.columns / area

    @property
    def bytes(self) -> int:
        """Of operands of 16 bits, and a result."""
        return 2 * self.batch * (self.m * self.k + self.k * self.n + self.m * self.n)


def _forms() -> Iterator[Form]:
    """Those that were measured most come first."""
    yield Form(128, 192, (128, 192), "pingpong")
    yield Form(128, 256, (64, 256))
    for columns in (160, 128):
        yield Form(128, columns, (128, columns), "pingpong")
    for columns in range(224, 64, -32):
        yield Form(128, columns, (64, columns))
    yield Form(64, 128, (64, 64))
    yield Form(128, 64, (64, 64))
    yield Form(256, 128, (128, 128))
    yield Form(192, 96, (64, 96))
    for columns in (8, 16, 32, 64, 96, 128, 192, 256):
        yield Form(64, columns, (64, columns), swap=True)
        yield Form(128, columns, (64, columns), swap=True)
    for columns in range(256, 32, -32):
        yield Form(64, columns, (64, columns))
    for columns in (240, 208, 176, 144):
        yield Form(128, columns, (64, columns))


FORMS: Final = tuple(_forms())


def stages_for(form: Form, target: Target, beside: int = 0, panel: int = 1) -> int:
    """As many stages as shared memory holds beside the staging of results; `panel` is what columns
    are stored in multiples of."""
    columns = -(-form.columns // panel) * panel
    staging = form.consumers * 2 * form.warp_tile[0] * 128 + 256
    room = target.limits.shared_bytes_per_block - staging - beside
    return max(2, min(_MOST_STAGES, room // _slot_bytes(form.rows, columns)))


def _slot_bytes(rows: int, columns: int) -> int:
    return 2 * K_STEP * (rows + columns)


def _either(one: float, other: float, sharpness: int) -> float:
    """The larger of two times that overlap, and some where neither hides the other."""
    large, small = max(one, other), min(one, other)
    return float(large * (1 + (small / large) ** sharpness) ** (1 / sharpness))


def cycles(form: Form, extent: Extent, target: Target, *, light: bool = True) -> float:
    """The time of a form, whose epilogue may be `light` enough to be deferred."""
    units = target.limits.units
    tiles = extent.tiles(form)
    slot = _slot_bytes(form.rows, form.columns)
    waiting = stages_for(form, target) * slot
    # Memory that all working units share gives each no more than its part.
    rate = min(_COPY_RATE, waiting / _LATENCY)
    step = _either(form.rows * form.columns / _AREA_PER_CYCLE, slot / rate, _IN_STEPS)
    steps = -(-extent.k // K_STEP)
    hidden = form.roles == "pingpong" or (light and form.defers)
    epilogue = 0.0 if hidden else form.rows * form.columns / _EPILOGUE
    waves = -(-tiles // units)
    working = waves * (steps * step + epilogue) * form.overhead
    # Nothing is left to hide the work after a single wave behind.
    after = 0.0 if light or waves > 1 else form.rows * form.columns / form.storing / _HEAVY
    return _either(working, extent.bytes / _MEMORY_RATE, _IN_ALL) + _ENDS + after


def fastest(
    extent: Extent, target: Target, *, light: bool = True, forms: Sequence[Form] = FORMS
) -> Form:
    """The form that takes the least time; of equals, within what such times are good for, the one
    with the most tiles at work, the least beyond the result, and the first of the list."""
    units = target.limits.units

    def rank(form: Form) -> tuple[int, int, int]:
        time = round(math.log(cycles(form, extent, target, light=light)) / _PRECISION)
        beyond = round(math.log(extent.padding(form)) / _MUCH)
        return time, -min(units, extent.tiles(form)), beyond

    return min((form for form in forms if form.suits(extent)), key=rank)


def split_for(extent: Extent, target: Target) -> int:
    """Parts into which a long contracted axis is best cut, each summed by itself and then all of
    them together by another kernel; 1 for none."""
    best, chosen = cycles(fastest(extent, target), extent, target), 1
    for parts in (2, 4, 8, 16, 32, 64):
        depth = extent.k // parts
        if extent.k % parts or depth % K_STEP or depth < 4 * K_STEP:
            break
        piece = Extent(extent.batch * parts, extent.m, extent.n, depth)
        partial = 8.0 * extent.batch * parts * extent.m * extent.n / _MEMORY_RATE
        time = cycles(fastest(piece, target), piece, target) + partial + _LAUNCH
        if time < 0.9 * best:
            best, chosen = time, parts
    return chosen
