"""Work partition of attention kernels: which blocks of columns a tile of rows visits, which of them
need no mask, and which thread block does which tile in which order.

Of an attention rows are queries and columns keys; of the gradients of keys it is the other way
round. The grid is persistent: a block takes one tile after the other, the longest first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from heapq import heapreplace
from itertools import accumulate
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.attention.reading import HullTables
from weft.codegen.gpu.ir.scalar import BLOCK, Lit, Name, Scalar, TableAt, least, most
from weft.foundation.records import dataclass
from weft.plan.ir import AttentionPlan
from weft.region.forms.bands import Band
from weft.target.target import Target

TILE: Final = Name("tile")
_LONGEST_TABLE: Final = 16_384
"""Tiles whose order is written down."""
_TILE_COST: Final = 1
"""What a tile costs beside its blocks of columns, in blocks: its rows come and its results go."""


@dataclass(frozen=True)
class Steps:
    """The blocks of columns that a tile of rows goes through, from `first` to `last` - 1; every row
    sees those from `whole_from` to `whole_to` - 1 whole."""

    first: Scalar
    last: Scalar
    whole_from: Scalar
    whole_to: Scalar

    @property
    def edge(self) -> Scalar:
        """Whether columns of the last block are hidden from some row."""
        return (self.whole_to < self.last) | (self.whole_from >= self.last)

    @property
    def loops(self) -> tuple[tuple[Scalar, Scalar, bool], ...]:
        """The loops before the last block, downwards: where each begins (one too many), where it
        ends, and whether columns are hidden in it."""
        upper = most(least(self.whole_to, self.last - 1), self.first)
        lower = least(most(self.whole_from, self.first), upper)
        return (
            (self.last - 1, upper, True),
            (upper, lower, False),
            (lower, self.first, True),
        )

    @property
    def ranges(self) -> tuple[tuple[Scalar, Scalar, bool], ...]:
        """The loops through all blocks, upwards: where each begins, where it ends, and whether
        columns are hidden in it."""
        start = least(most(self.whole_from, self.first), self.last)
        end = most(least(self.whole_to, self.last), start)
        return ((self.first, start, True), (start, end, False), (end, self.last, True))


class Work(ABC):
    """What is to be done, by tiles of rows and blocks of columns."""

    plan: AttentionPlan
    target: Target

    @property
    @abstractmethod
    def rows(self) -> int: ...

    @property
    @abstractmethod
    def columns(self) -> int: ...

    @property
    def tile_rows(self) -> int:
        return self.plan.tile_q

    @property
    def tile_columns(self) -> int:
        return self.plan.tile_kv

    @property
    @abstractmethod
    def band(self) -> Band:
        """Which columns a row sees, by how far they are ahead of it."""

    @property
    @abstractmethod
    def matrices(self) -> int: ...

    @property
    @abstractmethod
    def column_bytes(self) -> int:
        """What is read for a column."""

    @property
    @abstractmethod
    def hulls(self) -> tuple[HullTables, ...]:
        """Where tables of the run say which columns a tile of rows sees."""

    @property
    def turns(self) -> int:
        """How often a tile goes through its columns."""
        return 1

    @property
    def tiles(self) -> int:
        """Tiles of rows."""
        return -(-self.rows // self.tile_rows)

    @property
    def blocks(self) -> int:
        """Blocks of columns."""
        return -(-self.columns // self.tile_columns)

    @property
    def items(self) -> int:
        return self.tiles * self.matrices

    @property
    def grid(self) -> int:
        """Blocks: as many as there are units, each with several pieces of work. Where nobody knows
        beforehand how long these take, each has a block, and units that are done take the next."""
        return self.items if self.hulls else min(self.target.limits.units, self.items)

    @cached_property
    def together(self) -> int:
        """Matrices whose tiles are worked on at a time: half of the cache that all units share has
        room for their columns, of which every tile reads all again."""
        each = self.columns * self.column_bytes * self.turns
        # A divisor of all matrices, so that every group of them is as large and one schedule does
        # for all.
        room = max(1, self.target.limits.cache_bytes[-1] // 2 // each)
        divisors = (n for n in range(min(room, self.matrices), 0, -1))
        return next(n for n in divisors if self.matrices % n == 0)

    def steps(self, tile: Scalar) -> Steps:
        """The blocks of columns of a tile of rows: one at least, whether anybody sees it or not."""
        band, size = self.band, self.tile_columns
        low_row = tile * self.tile_rows
        high_row = least(low_row + (self.tile_rows - 1), self.rows - 1)
        first: Scalar = Lit(0)
        last: Scalar = Lit(self.blocks)
        whole_from: Scalar = Lit(0)
        whole_to: Scalar = Lit(self.columns // size)
        if band.low is not None:
            first = least(most(low_row + band.low, 0) // size, self.blocks - 1)
            whole_from = _block_count(most(high_row + band.low, 0), size)
        if band.high is not None:
            end = least(most(high_row + (band.high + 1), 1), self.columns)
            last = most(_block_count(end, size), first + 1)
            whole_to = least(most(low_row + (band.high + 1), 0) // size, whole_to)
        return Steps(first, last, whole_from, whole_to)

    def steps_of_tile(self) -> Steps:
        """Those of the tile that is worked on."""
        if not self.hulls:
            return self.steps(TILE)
        return Steps(*map(Name, ("first", "last", "whole_from", "whole_to")))

    def at_most(self, count: Callable[[Steps], Scalar]) -> int:
        """The largest number of something that is counted in the steps of a tile; 1, where that is
        known only when it runs."""
        if self.hulls:
            return 1
        counts = (count(self.steps(Lit(tile))) for tile in range(self.tiles))
        return max((found.value for found in counts if isinstance(found, Lit)), default=0)

    # Order

    @property
    def per_group(self) -> int:
        """Tiles of the matrices that are worked on at a time."""
        return self.together * self.tiles

    def tile_of(self, item: Scalar) -> Scalar:
        """The tile of rows of a piece of work: those with the most columns come first."""
        place = item % self.per_group // self.together
        counts = self.counts
        return place if counts[0] > counts[-1] else (self.tiles - 1) - place

    @property
    def period(self) -> int:
        """Pieces of work after which the order of work begins anew."""
        groups = self.items // self.per_group
        room = max(1, _LONGEST_TABLE // self.per_group)
        return self.per_group * next(n for n in range(room, 0, -1) if groups % n == 0)

    @cached_property
    def schedule(self) -> tuple[ir.Table, ...]:
        """The pieces of work of a period, by blocks, and where those of each block begin.

        Each piece goes to the block that is done first, as if all ran at one speed: of a causal
        attention with the pieces dealt out in turn, the last block ends up to 29 % late. Where all
        pieces are alike, or nobody knows how long they take, there is nothing to gain.
        """
        if self.hulls:
            return ()
        together, group = self.together, self.per_group
        every = [self.cost(item) for item in range(0, group, together)]
        if len(set(every)) == 1:
            return ()
        costs = [cost for cost in every for _ in range(together)] * (self.period // group)
        taken: list[list[int]] = [[] for _ in range(self.grid)]
        ends = [(0, block) for block in range(self.grid)]
        # The longest first, each to whoever is done first: the last block ends less than one piece
        # after the mean (Graham, 1969), and the last pieces are the shortest.
        for item, cost in enumerate(costs):
            end, block = ends[0]
            taken[block].append(item)
            heapreplace(ends, (end + cost, block))
        starts = accumulate((len(items) for items in taken), initial=0)
        order = tuple(item for items in taken for item in items)
        return ir.Table("order", order), ir.Table("starts", tuple(starts))

    def cost(self, item: int) -> int:
        """Of a piece of work, in blocks of columns."""
        tile = self.tile_of(Lit(item))
        assert isinstance(tile, Lit)
        return self.turns * self.counts[tile.value] + _TILE_COST

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The blocks of columns of every tile."""
        every = [self.steps(Lit(tile)) for tile in range(self.tiles)]
        found = [steps.last - steps.first for steps in every]
        return tuple(count.value for count in found if isinstance(count, Lit))

    def located(self, batch: Sequence[int], bounds: tuple[ir.Stmt, ...] = ()) -> Iterator[ir.Stmt]:
        """Where the piece of work `item` is: its tile and its matrix; `batch` are the sizes that
        the matrices are counted in, and `batch0`, ... the place of this one. `bounds`, where there
        are any, say between which blocks of columns its own lie."""
        item, group = Name("item"), Name("item") // self.per_group
        yield ir.Let(TILE.name, self.tile_of(item))
        yield ir.Let("matrix", group * self.together + item % self.together)
        rest: Scalar = Name("matrix")
        for axis in reversed(range(len(batch))):
            yield ir.Let(f"batch{axis}", rest % batch[axis] if axis else rest)
            rest = rest // batch[axis]
        steps = self.steps(TILE)
        yield from bounds or (ir.Let("first", steps.first), ir.Let("last", steps.last))

    def each_tile(
        self, batch: Sequence[int], body: tuple[ir.Stmt, ...], bounds: tuple[ir.Stmt, ...] = ()
    ) -> ir.Stmt:
        """A loop over the tiles of this block, of a few matrices at a time, each `located`."""
        inner = (*self.located(batch, bounds), *body)
        if not self.schedule:
            return ir.For("item", BLOCK, self.items, self.grid, inner)
        chosen = ir.Let("item", Name("period") + TableAt("order", Name("turn_number")))
        start, end = (TableAt("starts", BLOCK + ahead) for ahead in (0, 1))
        turns = ir.For("turn_number", start, end, 1, (chosen, *inner))
        return ir.For("period", 0, self.items, self.period, (turns,))


def _block_count(count: Scalar, size: int) -> Scalar:
    return (count + (size - 1)) // size


def range_length(steps: Steps, number: int) -> Scalar:
    """How many blocks one of the loops upwards goes through."""
    start, end, _ = steps.ranges[number]
    return end - start
