"""Grouped products: rows in groups, each group times a matrix of its own, as in a mixture of
experts.

    GroupedRows   the product of all groups
    GroupTiles    which rows of which group each tile of the product has
    GroupedTiles  the product, where that is known
    OuterRows     of each group its rows of one operand, transposed, times those of another
    GroupSpans    where the rows of each group lie
    OuterTiles    that product, where they are known

Offsets say where each group ends and the next begins. One below the one before it counts as that,
one below 0 as 0, and one above the number of rows as that; rows after the last group give 0.

A tile belongs to one group. The table of tiles has four numbers for each: its group, the row from
which on rows are read, the row from which on results are written, and the row before which its
group ends. The first four numbers are how many tiles there are, and zeros. Rows after the last
group are tiles of a group that does not exist, which read what is not there: zeros.

As in `whole_ops`, operands and results are dense and in row-major order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from weft.foundation import numeric
from weft.foundation.dtypes import as_dtype

Array = NDArray[Any]
ENTRY: Final = 4
"""Numbers of a tile in the table."""


def group_ends(offsets: Array, rows: int) -> Array:
    """Where groups end, in order and within the rows."""
    return np.maximum.accumulate(np.clip(offsets.reshape(-1).astype(np.int64), 0, rows))


@dataclass(frozen=True)
class GroupedRows:
    """Operands x [rows, depth], weight [groups, depth, columns], or with `transposed` [groups,
    columns, depth], and offsets [groups]; the result is [rows, columns]. Floats under 32 bits are
    multiplied and added up in f32."""

    name: ClassVar[str] = "grouped_rows"
    base: ClassVar[int | None] = None

    rows: int
    groups: int
    depth: int
    columns: int
    transposed: bool

    def evaluate(self, *arrays: Array) -> Array:
        x, weight, offsets = arrays
        ends = group_ends(offsets, self.rows)
        starts = np.concatenate([[0], ends[:-1]])
        groups = range(self.groups)
        return self.product(x, weight, list(zip(groups, starts, starts, ends, strict=True)))

    def product(self, x: Array, weight: Array, tiles: list[tuple[int, int, int, int]]) -> Array:
        """The result of tiles: groups, rows that are read, rows that are written, and their end."""
        dtype = as_dtype(x.dtype)
        rows = numeric.widen(x, dtype).reshape(self.rows, self.depth)
        sides = (self.columns, self.depth) if self.transposed else (self.depth, self.columns)
        matrices = numeric.widen(weight, dtype).reshape(self.groups, *sides)
        result = np.zeros((self.rows, self.columns), rows.dtype)
        for group, source, first, end in tiles:
            if group < self.groups:
                matrix = matrices[group].T if self.transposed else matrices[group]
                result[first:end] = rows[source : source + end - first] @ matrix
        return numeric.narrow(result, dtype).reshape(-1)


@dataclass(frozen=True)
class GroupTiles:
    """Operand: offsets. The result is the table, [count + 1, 4], of tiles of `tile` rows."""

    name: ClassVar[str] = "group_tiles"
    base: ClassVar[int | None] = None

    rows: int
    groups: int
    tile: int

    @property
    def count(self) -> int:
        """Tiles that there are at most: each group, and the rest, may have one that is not full."""
        # A part of n rows has (n + tile - 1) // tile tiles, and there are groups + 1 parts. No tile
        # is empty, so there are never more than rows.
        return min(self.rows, (self.rows + (self.groups + 1) * (self.tile - 1)) // self.tile)

    def evaluate(self, *arrays: Array) -> Array:
        table = np.zeros((self.count + 1, ENTRY), np.int32)
        start = 0
        for group, end in enumerate([*group_ends(arrays[0], self.rows), self.rows]):
            for first in range(start, int(end), self.tile):
                table[0, 0] += 1
                source = first if group < self.groups else self.rows
                table[table[0, 0]] = group, source, first, end
            start = int(end)
        return table.reshape(-1)


@dataclass(frozen=True)
class GroupedTiles(GroupedRows):
    """Operands x, weight, and the table of tiles of `tile` rows; a tile is `width` columns wide."""

    name: ClassVar[str] = "grouped_tiles"

    tile: int
    width: int

    @property
    def tiles(self) -> GroupTiles:
        """The op that makes the table."""
        return GroupTiles(self.rows, self.groups, self.tile)

    def evaluate(self, *arrays: Array) -> Array:
        x, weight, table = arrays
        entries = table.reshape(-1, ENTRY)
        tiles = [
            (int(group), int(source), int(first), min(int(end), int(first) + self.tile))
            for group, source, first, end in entries[1 : 1 + int(entries[0, 0])]
        ]
        return self.product(x, weight, tiles)


@dataclass(frozen=True)
class OuterRows:
    """Operands lhs [rows, height], rhs [rows, width] and offsets [groups]; the result is [groups,
    height, width]: of each group the rows of lhs, transposed, times those of rhs. Floats under 32
    bits are multiplied and added up in f32."""

    name: ClassVar[str] = "outer_rows"
    base: ClassVar[int | None] = None

    rows: int
    groups: int
    height: int
    width: int

    def evaluate(self, *arrays: Array) -> Array:
        lhs, rhs, offsets = arrays
        ends = group_ends(offsets, self.rows)
        return self.product(lhs, rhs, np.stack([np.concatenate([[0], ends[:-1]]), ends], 1))

    def product(self, lhs: Array, rhs: Array, spans: Array) -> Array:
        """The result, where the first row of each group is known, and the row before which it
        ends."""
        dtype = as_dtype(lhs.dtype)
        left = numeric.widen(lhs, dtype).reshape(self.rows, self.height)
        right = numeric.widen(rhs, dtype).reshape(self.rows, self.width)
        found = [left[start:end].T @ right[start:end] for start, end in spans.tolist()]
        return numeric.narrow(np.stack(found), dtype).reshape(-1)


@dataclass(frozen=True)
class GroupSpans:
    """Operand: offsets. The result is [groups, 2]: the first row of each group, and the row before
    which it ends."""

    name: ClassVar[str] = "group_spans"
    base: ClassVar[int | None] = None

    rows: int
    groups: int

    def evaluate(self, *arrays: Array) -> Array:
        ends = group_ends(arrays[0], self.rows)
        return np.stack([np.concatenate([[0], ends[:-1]]), ends], 1).astype(np.int32).reshape(-1)


@dataclass(frozen=True)
class OuterTiles(OuterRows):
    """Operands lhs, rhs, and where the rows of each group lie; a tile is `tile` columns wide."""

    name: ClassVar[str] = "outer_tiles"

    tile: int

    def evaluate(self, *arrays: Array) -> Array:
        lhs, rhs, spans = arrays
        return self.product(lhs, rhs, spans.reshape(self.groups, 2))
