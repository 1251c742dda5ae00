"""How long a contraction takes on SM90 whose rows begin inside lines of the cache, form by form.

As `matrix_tiles`, in cycles of a unit, and beside that:

- A row of 128 bytes that begins inside a line lies in two of them, and is asked for twice.
- An operand whose rows do not lie along k is copied in panels of 64: what a tile has beyond whole
  panels is copied in vain, and panels of other tiles begin inside lines.
- Results are stored in rows of the tile: short ones, and those inside lines, take longer.

The numbers were fitted to 65 products of random sizes, about nine forms of each, timed side by side
(`benchmarks/gpu_unseen.py`): to how much longer the form that the model has first takes than the
best one, and to the ratios between forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from weft.target.matrix_tiles import FORMS, K_STEP, Extent, Form, stages_for
from weft.target.target import Target

LINE: Final = 128
PANEL: Final = 64
_AREA_PER_CYCLE: Final = 32
_COPY_RATE: Final = 54.8
_UNIT_RATE: Final = 95.3
"""Bytes a cycle that reach each unit where all are at work, and one at most."""
_LATENCY: Final = 1719.0
_TWICE_ALONG: Final = 2.04
_TWICE_ACROSS: Final = 2.36
"""What a row inside lines costs, of an operand that lies along k and of one that does not."""
_STEP: Final = 17.8
_STORE: Final = 11.3
_STORE_INSIDE: Final = 2.75
_SHORT_ROWS: Final = 1.39
"""Elements that are stored in a cycle; what rows inside lines cost, and what rows of 64."""
_HIDDEN: Final = 0.235
_LAST: Final = 0.55
"""Of storing a tile, what other products do not hide, and what is left of the last one."""
_NARROW: Final = 1.138
"""What columns that are no multiple of 32 cost."""
_MEMORY_RATE: Final = 2976.0
_ENDS: Final = 4919.0
_IN_STEPS: Final = 7.24
_IN_ALL: Final = 3.96


@dataclass(frozen=True)
class Operand:
    """How an operand lies in memory: along k or across it; whether its rows begin at lines."""

    along: bool = True
    on_lines: bool = True

    def bytes(self, size: int) -> float:
        """What copying so many rows, or columns, of a k step costs."""
        copied = size if self.along else -(-size // PANEL) * PANEL
        if self.on_lines and (self.along or size % PANEL == 0):
            return 2.0 * K_STEP * copied
        return 2.0 * K_STEP * copied * (_TWICE_ALONG if self.along else _TWICE_ACROSS)


PLAIN: Final = Operand()


@dataclass(frozen=True)
class Lie:
    """How both operands of a contraction lie."""

    a: Operand = PLAIN
    b: Operand = PLAIN

    def is_plain(self, extent: Extent) -> bool:
        """Whether all rows begin at lines, those of the result too."""
        return self.a.on_lines and self.b.on_lines and 2 * extent.n % LINE == 0


AS_EXPECTED: Final = Lie()


def cycles(form: Form, extent: Extent, lie: Lie, target: Target, *, light: bool = True) -> float:
    """The time of a form, whose epilogue may be `light` enough to be deferred."""
    units, tiles = target.limits.units, extent.tiles(form)
    waves, steps = -(-tiles // units), -(-extent.k // K_STEP)
    hidden = form.roles == "pingpong" or (light and form.defers and tiles > units)
    store = _store(form, extent)
    tile = steps * _step(form, lie, tiles, target) + (store * _HIDDEN if hidden else store)
    working = waves * tile + (_LAST * store if hidden else 0.0)
    narrow = _NARROW if form.columns % 32 and not form.swap else 1.0
    return _either(working * narrow, extent.bytes / _MEMORY_RATE, _IN_ALL) + _ENDS


def _step(form: Form, lie: Lie, tiles: int, target: Target) -> float:
    """A k step: multiplied, or copied."""
    units = target.limits.units
    rows, columns = (lie.b, lie.a) if form.swap else (lie.a, lie.b)
    slot = rows.bytes(form.rows) + columns.bytes(form.columns)
    panel = 1 if columns.along else PANEL
    waiting = stages_for(form, target, 0, panel) * 2 * K_STEP * (form.rows + form.columns)
    shared = min(_COPY_RATE * units / min(units, max(1, tiles)), _UNIT_RATE)
    rate = min(shared, waiting / _LATENCY)
    return _either(form.rows * form.columns / _AREA_PER_CYCLE, slot / rate, _IN_STEPS) + _STEP


def _store(form: Form, extent: Extent) -> float:
    """Storing the result of a tile."""
    inside = 1.0 if 2 * extent.n % LINE == 0 else _STORE_INSIDE
    short = 1 + _SHORT_ROWS * PANEL / (form.rows if form.swap else form.columns)
    return form.rows * form.columns / _STORE * inside * short


def _either(one: float, other: float, sharpness: float) -> float:
    """The larger of two times that overlap, and some where neither hides the other."""
    large, small = max(one, other), min(one, other)
    return float(large * (1 + (small / large) ** sharpness) ** (1 / sharpness))


def fastest(
    extent: Extent, lie: Lie, target: Target, *, light: bool = True, forms: Sequence[Form] = FORMS
) -> Form:
    """The form that takes the least time; of equals the first of the list."""
    suiting = [form for form in forms if form.suits(extent)]
    return min(suiting, key=lambda form: cycles(form, extent, lie, target, light=light))
