"""In which order a persistent grid visits the tiles of a result.

    rows        row after row
    grouped:N   bands of N rows of tiles, down each column of a band: neighbours share operands
    hilbert     along a Hilbert curve, from a table made here

Batches follow one another. Every order visits every tile once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from weft.codegen.gpu.ir import Let, Stmt, Table
from weft.codegen.gpu.scalar import Name, Scalar, TableAt, least

TABLE_LIMIT: Final = 1 << 16
"""Tiles up to which a curve is written down as a table."""
_HALF: Final = 16


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
        return int(self.order.partition(":")[2]) if self.order.startswith("grouped:") else 1

    @property
    def tables(self) -> tuple[Table, ...]:
        if self.order != "hilbert":
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
        if self.order == "hilbert":
            body.append(Let("packed", TableAt("tile_order", place)))
            body.append(Let("tile_m", Name("packed") >> _HALF))
            body.append(Let("tile_n", Name("packed") & ((1 << _HALF) - 1)))
            return tuple(body)
        band = min(self.band, self.rows)
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
    side = 1
    while side < max(rows, columns):
        side *= 2
    x, y = _curve(side)
    inside = (x < rows) & (y < columns)
    return tuple(int(v) for v in (x[inside] << _HALF) | y[inside])


def _curve(side: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The points of the curve through a square whose side is a power of two, in order."""
    rest = np.arange(side * side, dtype=np.int64)
    x = np.zeros_like(rest)
    y = np.zeros_like(rest)
    step = 1
    while step < side:
        right = (rest // 2) & 1
        up = (rest ^ right) & 1
        # The quadrants at the ends of the curve are turned; the other two are moved only.
        turned = up == 0
        flipped = turned & (right == 1)
        x = np.where(flipped, step - 1 - x, x)
        y = np.where(flipped, step - 1 - y, y)
        x, y = np.where(turned, y, x), np.where(turned, x, y)
        x, y = x + step * right, y + step * up
        rest //= 4
        step *= 2
    return x, y
