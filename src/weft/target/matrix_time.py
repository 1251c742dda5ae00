"""The cost model of products on SM90, form by form, in cycles of an SM.

    step  = either(either(multiplied, shared memory), lines of a tile / a unit's rate)
    tile  = steps * step + what storing its result adds
    wave  = either(tile, what the wave's tiles ask the second-level cache for / its rate)
    total = start + either(all waves, all bytes / memory's rate) + the last result's storing

`either` is the larger of two times that overlap, and more where they are close. A unit multiplies
128x256x64 in 1024 cycles. What decides between forms, beside how tiles fill the units:

- Operands are copied in rows of 128 bytes. A row that begins inside a line of the cache lies in
  two; one that begins inside a sector of 32 bytes costs as much as three.
- An operand that lies across k is copied in panels of 64 columns: what a tile has beyond whole
  panels is copied in vain, and panels of other tiles begin inside lines.
- Rows of a tile beyond the operand are filled with zeros, at a rate that all units share and that
  is a sixth of the cache's: the tile that reaches least beyond the result often wins.
- Results are stored in panels, the widest that divide a warpgroup's columns: 64, 32 or 16. Each
  panel costs a meeting, each of its rows a request, more where it lies in two lines. The results
  of the last wave are stored when nothing else is left to do.
- Two blocks that share an operand ask for its rows once, which pays where rows begin inside
  sectors; each row is still brought to both.
- A warpgroup that multiplies alone has gaps between steps, and a ring of three stages has waits.

The numbers were fitted to 214 products, about ten forms of each, timed side by side on an H200
(`benchmarks/gpu_unseen.py` and the frozen list): to the ratios between forms, by
`benchmarks/gpu_model.py`, which also judges the model on products that it was not fitted to. Two
thirds of the products' times are met within 10 percent, of the
ratios between good forms within 3.3. What the model does not have is the order of tiles, which
`target.tile_order` chooses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Final

from weft.foundation.memo import memo
from weft.foundation.records import dataclass
from weft.target.matrix_tiles import FORMS, K_STEP, NARROW, Extent, Form, stages_for
from weft.target.target import Target

CYCLES_A_SECOND: Final = 1.85e9
"""What the times of the products come out at that the model was fitted to."""
LINE: Final = 128
"""Bytes of a line of the cache, and of a row of a k step."""
PANEL: Final = 64
"""Rows of a matrix instruction, and elements of a row of 128 bytes."""
_WORD: Final = 2
"""Bytes of an element."""
_SECTOR: Final = 32
# 128 × 256 sums of 64 terms in 1024 cycles: at 1.85 GHz on 132 units 1.0e15 operations a second.
AREA_PER_CYCLE: Final = 32
_SHARP: Final = 5
_SOFT: Final = 3
"""How well the larger of two times hides the other: in steps and waves, and beside memory."""
_IN_TWO: Final = 2.0
"""What a row costs that lies in two lines."""
_LAST: Final = 2.0
"""Times that storing takes where the kernel waits for the stores to be done."""
_HEAVY: Final = 3.5
"""Elements for which one warpgroup carries out a heavy epilogue in a cycle."""
_SHALLOW: Final = 3
"""Stages with which a step that comes late is waited for."""
_PRECISION: Final = 0.01
"""The part of a time below which plans are alike, and the first of them is taken."""


@dataclass(frozen=True)
class Pace:
    """What was fitted: how fast the parts of a kernel are."""

    # 2.8 µs.
    start: float = 5100.0
    """Cycles before the first data arrive."""
    shared: float = 0.71
    """Cycles for a row that is read from shared memory or written to it."""
    alone: float = 28.0
    """Cycles of a step in which a warpgroup without another one beside it multiplies nothing."""
    late: float = 0.1
    """What waiting adds to the steps of a ring of few stages."""
    unit: float = 146.0
    cache: float = 81.0
    """Bytes a cycle that one unit can copy, and that each gets where all do."""
    # 4.7 TB a second.
    memory: float = 2530.0
    """Bytes a cycle that memory gives to all units."""
    off_sector: float = 1.71
    """What a row costs beside that which begins inside a sector."""
    beyond: float = 13.8
    """Rows beyond an operand that are filled in a cycle, of all units together."""
    panel: float = 106.0
    row: float = 1.45
    turn: float = 32.0
    """Cycles for storing a panel of the result, one of its rows, and for turning a swapped tile."""
    beside: float = 0.545
    """Of storing a result while the next tile is multiplied, what it adds to that tile."""
    following: float = 76.0
    """Cycles that a tile after another one costs beside its steps and results."""
    pair: float = 318.0
    """Cycles that starting and ending in pairs costs."""
    delivered: float = 1.7
    """What a row that is brought to two blocks costs each at most, in rows that begin at lines."""

    def lines(self, grain: int) -> float:
        """What a row costs, in rows that begin at lines, where rows begin at any multiple of so
        many bytes, all alike."""
        inside = _IN_TWO - grain / LINE
        return inside if grain >= _SECTOR else inside + self.off_sector * (1 - grain / _SECTOR)


@dataclass(frozen=True)
class Joining:
    """What it costs to add up the parts of sums by another kernel."""

    launch: float
    """Cycles of a kernel, which begins while the last tiles of the one before are stored."""
    near: int
    """Bytes of parts, at most, that the cache still has when they are read."""
    gain: float
    """Of the time of fewer parts, what more of them must take less than."""

    def cycles(self, sums: int, pace: Pace) -> float:
        """For so many sums of all parts, of 32 bits: written and read, or read alone."""
        size = 4 * sums
        return self.launch + (size + max(0, size - self.near)) / pace.memory


H200: Final = Pace()
ONE_AXIS: Final = Joining(2700.0, 0, 0.9)
"""Of products, whose forms are known better than what parts of them take."""
SEVERAL_AXES: Final = Joining(1600.0, 8 << 20, 0.95)
"""Of gradients of filters: 1.1 to 2.1 us for up to 6.5 MB, of which they were measured."""
_PARTS: Final = (2, 4, 8, 16, 32, 64)
"""Of sums that are cut."""


@dataclass(frozen=True)
class Operand:
    """How an operand lies in memory: along k or across it; the bytes, a line's at most, that all of
    its rows begin at multiples of."""

    along: bool = True
    grain: int = LINE
    share: float = 1.0
    """Of its rows in a step, those that are copied: fewer where several steps read one copy."""


PLAIN: Final = Operand()


@dataclass(frozen=True)
class Contraction:
    """A contraction as far as the time of its forms depends on it."""

    extent: Extent
    a: Operand = PLAIN
    b: Operand = PLAIN
    again: int = field(default=0, kw_only=True)
    """Bytes of the operands that are read again and again, as windows overlap: from a cache."""

    def suits(self, form: Form) -> bool:
        """Whether a form is for this contraction: narrow tiles hold one side whole, its rows where
        they are swapped, else its columns, and are no wider than they must be; two blocks share an
        operand where that pays: one whose rows begin inside sectors, which the second-level cache
        is asked for three times."""
        if form.columns in NARROW:
            side = self.extent.m if form.swap else self.extent.n
            return form.columns >= side and (form.columns == NARROW[0] or form.columns < 2 * side)
        if not form.paired:
            return True
        # 1000³, whose rows begin inside sectors, 11.7 -> 9.8 µs in pairs; 1024³, whose rows begin
        # at lines, 8.0 -> 8.1 and 8.7, 1024x1024x8192 26.6 -> 29.5 and 34.4 (H200).
        below = form.cluster == (2, 1)
        shared, size, tile = (
            (self.b, self.extent.m, form.rows) if below else (self.a, self.extent.n, form.columns)
        )
        return shared.along and shared.grain < _SECTOR and -(-size // tile) % 2 == 0

    def __str__(self) -> str:
        sizes = f"{self.extent.batch}*{self.extent.m}x{self.extent.n}x{self.extent.k}"
        letters = [
            f"{'k' if side.along else letter}{'' if side.grain == LINE else side.grain}"
            for side, letter in ((self.a, "m"), (self.b, "n"))
        ]
        return " ".join([sizes, *letters])


def cycles(
    form: Form, found: Contraction, target: Target, *, light: bool = True, pace: Pace = H200
) -> float:
    """The time of a form, whose epilogue may be `light` enough to be deferred."""
    return _Time(form, found, target, light, pace).total


def fastest(
    found: Contraction, target: Target, *, light: bool = True, forms: Sequence[Form] = FORMS
) -> Form:
    """The form that takes the least time; of equals, within what such times are good for, the first
    of the list."""
    return _fastest(found, target, light, tuple(forms))


@memo(1 << 12)
def _fastest(found: Contraction, target: Target, light: bool, forms: tuple[Form, ...]) -> Form:
    suiting = [form for form in forms if found.suits(form)]
    times = [math.log(cycles(form, found, target, light=light)) for form in suiting]
    return suiting[min(range(len(suiting)), key=lambda place: round(times[place] / _PRECISION))]


def split_for(
    extent: Extent, target: Target, counts: Sequence[int] = _PARTS, *, any_depth: bool = False
) -> int:
    """Parts into which a long contracted axis is best cut, one of `counts`, each summed by itself
    and then all of them together by another kernel; 1 for none. Parts are whole k steps, unless
    they may have `any_depth`."""
    found = Contraction(extent)
    return split_of(found, target, counts, FORMS, any_depth=any_depth, joining=ONE_AXIS)


def split_of(
    found: Contraction,
    target: Target,
    counts: Sequence[int],
    forms: Sequence[Form],
    *,
    any_depth: bool = True,
    joining: Joining = SEVERAL_AXES,
) -> int:
    """The same for a contraction whose operands lie in some way, by some forms."""
    return _best_split(found, target, tuple(counts), tuple(forms), any_depth, joining)


@memo(1 << 12)
def _best_split(
    found: Contraction,
    target: Target,
    counts: tuple[int, ...],
    forms: tuple[Form, ...],
    any_depth: bool,
    joining: Joining,
) -> int:
    extent = found.extent
    form = fastest(found, target, forms=forms)
    best, chosen = cycles(form, found, target), 1
    # Units that all have a tile gain nothing from more of them, and a tile of few steps is mostly
    # its beginning and end.
    if extent.tiles(form) >= target.limits.units:
        return chosen
    for parts in counts:
        depth = extent.k // parts
        whole = any_depth or not (extent.k % parts or depth % K_STEP)
        if not whole or depth < 4 * K_STEP:
            break
        piece = Extent(extent.batch * parts, extent.m, extent.n, depth)
        added = joining.cycles(piece.batch * extent.m * extent.n, H200)
        time = _fastest_cycles(replace(found, extent=piece), target, forms) + added
        if time < joining.gain * best:
            best, chosen = time, parts
    return chosen


def _fastest_cycles(found: Contraction, target: Target, forms: Sequence[Form]) -> float:
    return cycles(fastest(found, target, forms=forms), found, target)


def _overlap_two(one: float, other: float, sharpness: int) -> float:
    """The larger of two times that overlap, and some where neither hides the other."""
    large, small = max(one, other), min(one, other)
    if large == 0:
        return 0.0
    # The sharpness-th root of the sum of powers: the larger where one is much larger, and two equal
    # times take 2^(1/5) = 1.15 or 2^(1/3) = 1.26 of one.
    return float(large * (1 + (small / large) ** sharpness) ** (1 / sharpness))


class _Side:
    """An operand as tiles copy it: in rows of a line."""

    def __init__(
        self, operand: Operand, size: int, tile: int, k: int, pace: Pace, *, shared: bool
    ) -> None:
        self.count = -(-size // tile)
        rest = size - (self.count - 1) * tile
        # Along k the last step is copied whole, filled up with zeros; across k a step has the rows
        # that there are.
        self.copied, depth = operand.share * tile, float(-(-k // K_STEP))
        inside = operand.share * size
        if not operand.along:
            self.copied, depth = _whole_panels(tile), k / K_STEP
            inside = (self.count - 1) * self.copied + _whole_panels(rest)
        self.first = min(self.copied, inside)
        """Rows of the first tile's step, without those beyond the operand."""
        self.inside = inside * depth
        self.beyond = (self.count * self.copied - inside) * depth
        """Rows of all steps, for each tile of the other operand."""
        shifted = self.count > 1 and not operand.along and tile % PANEL > 0
        # Tiles across k that are no whole panels begin inside lines, wherever the operand begins.
        grain = math.gcd(operand.grain, _WORD * tile) if shifted else operand.grain
        alone = pace.lines(grain)
        self.cost = min(alone, pace.delivered) if shared else alone
        self.worst = max(_IN_TWO, self.cost) if shifted else self.cost
        """What a row costs, and one of the tile that begins worst."""


def _whole_panels(size: int) -> int:
    return -(-size // PANEL) * PANEL


class _Time:
    """The time of a form, from its parts."""

    def __init__(
        self, form: Form, found: Contraction, target: Target, light: bool, pace: Pace
    ) -> None:
        extent, self.pace, self.again = found.extent, pace, found.again
        self.form, self.extent, self.units = form, extent, target.limits.units
        self.tiles = max(1, extent.tiles(form))
        self.steps = -(-extent.k // K_STEP)
        self.deferred = light and form.defers and self.tiles > self.units
        self.work = 0.0 if light else form.warp_tile[0] * form.warp_tile[1] / _HEAVY
        sides = ((found.a, extent.m), (found.b, extent.n))
        first, second = reversed(sides) if form.swap else sides
        below, beside = (blocks > 1 for blocks in form.cluster)
        self.rows = _Side(*first, form.rows, extent.k, pace, shared=beside)
        self.columns = _Side(*second, form.columns, extent.k, pace, shared=below)
        width = _WORD * form.warp_tile[0 if form.swap else 1]
        self.span = math.gcd(width, LINE)
        """Bytes of a row of a panel of the result."""
        self.panels = width // self.span
        self.stored_rows = self._stored_rows()
        self.store = self._store()
        shallow = stages_for(form, target) <= _SHALLOW
        self.tile = self.steps * self._step() * (1 + pace.late if shallow else 1.0)
        self.added = self._added_cycles()

    @property
    def total(self) -> float:
        # The last wave asks the cache for as many tiles as it has, and takes as long as one of
        # them.
        full, tail = divmod(self.tiles, self.units)
        tile, asked = self.tile + self.added, self._cache_cycles() / self.tiles
        waves = full * _overlap_two(tile, asked * self.units, _SHARP)
        if tail:
            waves += _overlap_two(tile, asked * tail, _SHARP)
        memory = (self.extent.bytes - self.again) / self.pace.memory
        body = _overlap_two(waves - self.added, memory, _SOFT)
        start = self.pace.start + (self.pace.pair if self.form.paired else 0.0)
        return start + body + _LAST * self.store + self.work

    def _step(self) -> float:
        """A k step: multiplied, read from shared memory and written to it, copied."""
        form, rows, columns = self.form, self.rows, self.columns
        multiplied = form.rows * form.columns / AREA_PER_CYCLE
        # Each instruction reads 64 rows of A and all columns of B anew.
        read = form.rows / PANEL * (PANEL + form.columns)
        shared = self.pace.shared * (read + rows.copied + columns.copied)
        gap = self.pace.alone if form.consumers == 1 else 0.0
        copied = LINE * (rows.first * rows.worst + columns.first * columns.worst) / self.pace.unit
        return _overlap_two(gap + _overlap_two(multiplied, shared, _SHARP), copied, _SHARP)

    def _cache_cycles(self) -> float:
        """What all tiles ask the second-level cache for, in cycles: rows inside the operands and
        beyond them, and results but for those of the last wave."""
        rows, columns = self.rows, self.columns
        inside = (
            rows.inside * rows.cost * columns.count + columns.inside * columns.cost * rows.count
        )
        beyond = rows.beyond * columns.count + columns.beyond * rows.count
        copied = LINE * inside / (self.units * self.pace.cache) + beyond / self.pace.beyond
        # Results of the last wave are in `total`, times `_LAST`.
        waves = -(-self.tiles // self.units)
        stored = self.stored_rows * self.pace.row / self.units * (waves - 1) / waves
        return self.extent.batch * copied + stored

    def _stored_rows(self) -> float:
        """Rows of all panels of the result, those that lie in two lines counted more."""
        width = _WORD * self.extent.n
        in_two = (self.span - math.gcd(width, self.span)) / LINE
        panels = -(-width // self.span)
        return self.extent.batch * self.extent.m * panels * (1 + _IN_TWO * in_two)

    def _store(self) -> float:
        """Storing the result of a tile."""
        rows = self.stored_rows / self.tiles * self.pace.row
        stored = _overlap_two(self.panels * self.pace.panel, rows, _SOFT)
        return stored + self.pace.turn if self.form.swap else stored

    def _added_cycles(self) -> float:
        """What a tile that is not a unit's only one takes beside its steps."""
        return self._store_cycles() + (self.pace.following if self.tiles > self.units else 0.0)

    def _store_cycles(self) -> float:
        """What storing a result adds to the time of a tile that is not the last."""
        store = self.store + self.work
        if self.form.roles == "pingpong":
            # Two warpgroups take turns: two tiles take two multiplications, or one and what storing
            # takes where that is longer. Each tile pays half of the difference.
            return max(0.0, (store - self.tile) / 2)
        if not self.deferred:
            return store
        # A panel is stored in a step of the next tile; panels for which there is no step are stored
        # at its end, where nothing hides them.
        left = max(0.0, 1 - self.steps / self.panels)
        return store * (left + self.pace.beside * (1 - left))
