"""The order of tiles in one wave of blocks, for reuse in the second-level cache.

Blocks go to units in the order of their numbers, sixteen in a row to one cluster of units (an
H200's blocks 16 to 31 share one, blocks 32 to 47 the next). What several blocks of a cluster of
units ask for at about the same time seems to be asked of the second-level cache once. So it matters
which tiles follow one another: in bands of few rows they share rows of the first operand and differ
in columns, in bands of many rows the other way round, and a last band of a single row shares next
to nothing. 416x3104x5392 in tiles of 64x256 takes 30.0 microseconds in one band of 7 rows, 33.2 in
bands of 4, 43.1 of 6 and 45.5 of 1.

The height that is chosen is the one for which all clusters of units together ask for the fewest
rows. Of 19 forms that were timed in up to ten orders each it loses 1 percent on average, and 5 at
most; bands of 4 rows lose 3 and 11, bands of 8 rows 2 and 8. Of 28 forms that came after it it
loses 1.6 percent at most, bands of 4 rows 10.
"""

from __future__ import annotations

from typing import Final

from weft.target.matrix_tiles import Form
from weft.target.matrix_time import H200, Contraction

NEIGHBOURS: Final = 16
"""Blocks with numbers in a row that share a cluster of units."""


def one_wave(found: Contraction, form: Form) -> str:
    """The order of a form's tiles where each block has one of them."""
    sides = ((found.a, found.extent.m), (found.b, found.extent.n))
    blocks, tile = form.cluster, (form.rows, form.columns)
    rows, columns = (
        _pieces(size, step * count, H200.lines(operand.grain))
        for (operand, size), step, count in zip(
            reversed(sides) if form.swap else sides, tile, blocks, strict=True
        )
    )
    # Tiles are counted in pairs where blocks are.
    together = NEIGHBOURS // (blocks[0] * blocks[1])
    heights = range(1, min(len(rows), NEIGHBOURS) + 1)
    best = min(
        heights,
        key=lambda height: _bytes_asked(rows, columns, found.extent.batch, height, together),
    )
    return f"grouped:{best}"


def _pieces(size: int, step: int, cost: float) -> list[float]:
    """What the rows of each tile cost, along one side of the result."""
    return [cost * min(step, size - first) for first in range(0, max(1, size), step)]


def _bytes_asked(
    rows: list[float], columns: list[float], batch: int, height: int, together: int
) -> float:
    """What all clusters of units ask for in a k step, tiles visited in bands of some height."""
    tiles = [
        (matrix, row, column)
        for matrix in range(batch)
        for first in range(0, len(rows), height)
        for column in range(len(columns))
        for row in range(first, min(first + height, len(rows)))
    ]
    total = 0.0
    for start in range(0, len(tiles), together):
        near = tiles[start : start + together]
        # Each row and column of tiles counts once for a cluster of units, however many blocks need
        # it.
        total += sum(rows[row] for _, row in {(matrix, row) for matrix, row, _ in near})
        total += sum(
            columns[column] for _, column in {(matrix, column) for matrix, _, column in near}
        )
    return round(total, 3)
