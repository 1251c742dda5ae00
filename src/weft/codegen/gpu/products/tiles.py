"""Tile order: in which order a persistent grid visits the tiles of a result.

    rows        row after row
    grouped:N   bands of N rows of tiles, down each column of a band: neighbours share operands;
                where there are fewer rows, one band of all
    hilbert     along a Hilbert curve, from a table made here

Batches follow one another. Every order visits every tile once.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from weft.codegen.gpu.ir import Let, Stmt, Table
from weft.codegen.gpu.ir.scalar import Name, Scalar, TableAt, least
from weft.foundation.records import dataclass

TABLE_LIMIT: Final = 1 << 16
"""Tiles up to which a curve is written down as a table."""
SIDE_LIMIT: Final = (1 << 15) - 1
"""Rows or columns of tiles that such a table has room for in half of an entry."""
_HALF: Final = 16
"""Bits of an entry for each of its two numbers."""


@dataclass(frozen=True)
class TileOrder:
    """`rows x columns` tiles for each of `batches` matrices, in an order."""

    rows: int
    columns: int
    batches: int
    order: str

    @property
    def per_matrix(self) -> int:
        return self.rows * self.columns

    @property
    def count(self) -> int:
        return self.per_matrix * self.batches

    @property
    def band(self) -> int:
        """Rows of tiles in a group: all of one column at a time, or one row at a time."""
        asked = int(self.order.partition(":")[2]) if self.order.startswith("grouped:") else 1
        return min(asked, self.rows)

    @property
    def is_curve(self) -> bool:
        return self.order == "hilbert"

    @property
    def has_room(self) -> bool:
        """Whether a table holds all tiles of a matrix."""
        return self.per_matrix <= TABLE_LIMIT and max(self.rows, self.columns) <= SIDE_LIMIT

    @property
    def tables(self) -> tuple[Table, ...]:
        if not self.is_curve:
            return ()
        return (Table("tile_order", hilbert(self.rows, self.columns)),)

    def locate(self, tile: Scalar) -> tuple[Stmt, ...]:
        """Statements that make `tile_m`, `tile_n` and, for batches, `matrix` from a number."""
        body: list[Stmt] = []
        inside = tile
        if self.batches > 1:
            body.append(Let("matrix", tile // self.per_matrix))
            inside = tile % self.per_matrix
        body.append(Let("place", inside))
        place = Name("place")
        if self.is_curve:
            body.append(Let("packed", TableAt("tile_order", place)))
            body.append(Let("tile_m", Name("packed") >> _HALF))
            body.append(Let("tile_n", Name("packed") & ((1 << _HALF) - 1)))
            return tuple(body)
        band = self.band
        per_band = band * self.columns
        body.append(Let("first", (place // per_band) * band))
        height = _height(self.rows, band)
        body.append(Let("tile_m", Name("first") + (place % per_band) % height))
        body.append(Let("tile_n", (place % per_band) // height))
        return tuple(body)


def _height(rows: int, band: int) -> Scalar | int:
    """Rows in this band; the last one may be lower."""
    return band if rows % band == 0 else least(rows - Name("first"), band)


def known(order: str) -> bool:
    """Whether an order has a meaning."""
    name, _, number = order.partition(":")
    if name == "grouped":
        return number.isdecimal() and int(number) > 0
    return order in ("rows", "hilbert")


@cache
def hilbert(rows: int, columns: int) -> tuple[int, ...]:
    """Tiles `row << 16 | column` along the Hilbert curve of the square around them."""
    x, y = np.divmod(np.arange(rows * columns, dtype=np.int64), columns)
    packed = x << _HALF | y
    return tuple(packed[np.argsort(_points_passed(x, y))].tolist())


def _points_passed(x: NDArray[np.int64], y: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many points the curve through a square around all points has passed before each."""
    step, passed = 1, np.zeros_like(x)
    while step <= max(x.max(), y.max()):
        step *= 2
    while step > 1:
        step //= 2
        right, up = (x & step) // step, (y & step) // step
        # The curve goes through quadrants in the order (0, 0), (0, 1), (1, 1), (1, 0): 3 right XOR
        # up numbers them 0, 1, 2, 3, and each has step² points.
        passed += step * step * ((3 * right) ^ up)
        x, y = x & (step - 1), y & (step - 1)
        # The quadrants at the ends of the curve are turned; the other two are moved only.
        turned = up == 0
        flipped = turned & (right == 1)
        x, y = np.where(flipped, step - 1 - x, x), np.where(flipped, step - 1 - y, y)
        x, y = np.where(turned, y, x), np.where(turned, x, y)
    return passed
