"""Ring buffers of fused stages: tiles of columns, and the slot of each row.

A tile of the results needs of each stage the hull of what is read of it, composed through all
stages between. All tiles of a stage have as many columns, in whole vectors: near the end of a row
they begin further to the left instead, and what they compute then is computed twice.

Row r lies at `r mod depth` in a ring, which has whole rows, or those columns of a tile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod

from weft.foundation.index_expr import Expr, Index, constant, linear
from weft.foundation.records import dataclass
from weft.region.form import Ring
from weft.region.forms.staged import Columns
from weft.region.ir import Kernel, Stage, row_major


@dataclass(frozen=True)
class Tile:
    """The columns of a part that each tile has: `width` of them along an axis, from the place in
    `starts` that belongs to its number."""

    axis: str
    width: int
    starts: tuple[int, ...]

    @cached_property
    def bends(self) -> dict[int, int]:
        """The tiles that begin otherwise than so far behind the one before as the second does
        behind the first, and by how much."""
        pairs = enumerate(zip(self.starts, self.starts[1:], strict=False), 1)
        steps = {number: two - one - self.step for number, (one, two) in pairs}
        return {number: more for number, more in steps.items() if more}

    @cached_property
    def step(self) -> int:
        """From one tile to the next, mostly."""
        steps = [two - one for one, two in zip(self.starts, self.starts[1:], strict=False)]
        return max(steps, key=steps.count, default=0)

    def start(self, tile: Expr) -> Expr:
        """The first column of a tile, by its number."""
        count = len(self.starts)
        # Floors that are 1 from some tile on and 0 before it.
        steps = ((tile + (count - at)) // count * more for at, more in self.bends.items())
        return sum(steps, tile * self.step + self.starts[0])


@dataclass(frozen=True)
class Tiles:
    """How rows of the results are cut into tiles of `size` columns: what each has of every part,
    the results last."""

    size: int
    parts: tuple[Tile, ...]

    @property
    def count(self) -> int:
        return len(self.parts[-1].starts)

    @property
    def bends(self) -> int:
        """Tiles of a part that begin otherwise than those between: each makes addresses longer."""
        return max(len(tile.bends) for tile in self.parts)


def cut_rows(kernel: Kernel, columns: Columns, size: int, whole: Sequence[int]) -> Tiles:
    """Tiles of so many columns of the results, and of every stage what they need in vectors of
    `whole` columns."""
    body = len(kernel.stages)
    total = kernel.sizes[columns.axes[body]]
    parts = {body: Tile(columns.axes[body], size, tuple(range(0, total, size)))}
    ends = {body: [min(start + size, total) for start in parts[body].starts]}
    for number in reversed(range(body)):
        own = kernel.stages[number].kernel.sizes[columns.axes[number]]
        edges = [edge for edge in columns.edges if edge.stage == number]
        needs = []
        for tile in range(len(parts[body].starts)):
            low = min(parts[e.reader].starts[tile] + e.low for e in edges)
            high = max(ends[e.reader][tile] + e.high for e in edges)
            # What is read beyond the ends of a row is padding.
            needs.append((min(max(low, 0), own - 1), max(1, min(high, own))))
        longest = max(1, *(high - low for low, high in needs))
        width = min(own, -(-longest // whole[number]) * whole[number])
        starts = tuple(min(low, own - width) for low, _ in needs)
        parts[number] = Tile(columns.axes[number], width, starts)
        ends[number] = [start + width for start in starts]
    return Tiles(size, tuple(parts[number] for number in range(body + 1)))


@dataclass(frozen=True)
class Held:
    """A local in its ring."""

    stage: Stage
    ring: Ring
    depth: int
    tile: Tile | None = None

    @property
    def inside(self) -> Mapping[str, int]:
        """The axes of a row, and how much of each is held."""
        outside = {self.ring.axis, *self.ring.batch}
        sizes = {a.name: a.size for a in self.stage.outer if a.name not in outside}
        return sizes | ({} if self.tile is None else {self.tile.axis: self.tile.width})

    @property
    def row(self) -> int:
        """Elements of a row."""
        return prod(self.inside.values())

    @property
    def elements(self) -> int:
        return self.depth * self.row

    @property
    def bytes(self) -> int:
        return self.elements * self.stage.local.dtype.storage_bytes

    def column(self, point: Sequence[Expr], tile: Expr) -> Expr:
        """How far a point lies behind the first column that is held for a tile, by its number."""
        if self.tile is None:
            return constant(0)
        return self._places(point)[self.tile.axis] - self.tile.start(tile)

    def address(self, point: Index, tile: Expr) -> Expr:
        """Where a point lies, in the ring of a tile."""
        places, inside = self._places(point), self.inside
        if self.tile is not None:
            places[self.tile.axis] = self.column(point, tile)
        row = linear([places[name] for name in inside], row_major(tuple(inside.values())))
        return (places[self.ring.axis] % self.depth) * self.row + row

    def _places(self, point: Sequence[Expr]) -> dict[str, Expr]:
        return dict(zip((found.name for found in self.stage.outer), point, strict=True))
