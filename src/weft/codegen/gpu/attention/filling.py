"""Loads of queries, keys and values into shared memory by cp.async."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.ir.scalar import THREAD, Lit, Name, Scalar, both, total, wide
from weft.codegen.gpu.ir.swizzle import TileLayout
from weft.codegen.gpu.products.operand import Operand
from weft.foundation.records import dataclass

_PIECE: Final = 8
"""Elements of 16 bytes."""
_UNROLLED: Final = 16
"""Copies of a thread that are written out one after the other."""


@dataclass(frozen=True)
class Filling:
    """Copies that all of so many threads take part in, of the matrices at a place in a batch."""

    threads: int
    buffers: Sequence[str]
    batch: tuple[Scalar, ...]

    def rows(
        self,
        name: str,
        operand: Operand,
        tile: TileLayout,
        start: Scalar,
        first: Scalar,
        extents: tuple[int, int],
    ) -> Iterator[ir.Stmt]:
        """Rows of a matrix of these extents from `first` on, at `start` of the shared tile with a
        name; zeros for what is not there. Every thread takes every `threads`-th piece."""
        pieces = tile.rows * (tile.columns // _PIECE)
        turns = -(-pieces // self.threads)

        def turn(number: Scalar) -> tuple[ir.Stmt, ...]:
            row, column = self.piece(tile, number)
            target = ir.Address(name, start + tile.of(row, column))
            load = self.load(target, operand, tile, (first + row, column), extents)
            if pieces % self.threads == 0:
                return (load,)
            return (ir.If(number * self.threads + THREAD < pieces, (load,)),)

        if turns <= _UNROLLED:
            for number in range(turns):
                yield from turn(Lit(number))
        else:
            var = f"{name}_turn"
            yield ir.For(var, 0, turns, 1, turn(Name(var)), times=_UNROLLED)

    def piece(self, tile: TileLayout, turn: Scalar) -> tuple[Scalar, Scalar]:
        """Row and column of a thread's piece of a turn: the same column in all, where whole rows
        are a turn's."""
        in_row = tile.columns // _PIECE
        if self.threads % in_row == 0:
            row = THREAD // in_row + turn * (self.threads // in_row)
            return row, THREAD % in_row * _PIECE
        piece = turn * self.threads + THREAD
        return piece // in_row, piece % in_row * _PIECE

    def load(
        self,
        target: ir.Address,
        operand: Operand,
        tile: TileLayout,
        place: tuple[Scalar, Scalar],
        extents: tuple[int, int],
    ) -> ir.Stmt:
        """16 bytes of a row; nothing is compared where tiles are whole."""
        row, column = place
        terms = [wide(row) * operand.outer, wide(column)]
        for index, stride in zip(self.batch, operand.batch, strict=True):
            terms.append(wide(index) * stride)
        guard: Scalar = Lit(1)
        if extents[0] % tile.rows:
            guard = both(guard, row < extents[0])
        if extents[1] != tile.columns:
            guard = both(guard, column < extents[1])
        start = total(operand.offset, *terms) * operand.dtype.storage_bytes
        return ir.CpAsync(target, self.buffers.index(operand.tensor), start, guard)


def element_at(tile: TileLayout, row: Scalar, column: Scalar, first: int) -> Scalar:
    """Where an element lies whose column is less than 16 behind a `first` one, a multiple of 16."""
    # `column` may reach 15 beyond `first`, which is a number at hand: the panel is known here, and
    # the division of `TileLayout.of` is spared at run time.
    panel, inside = divmod(first, tile.panel_columns)
    one = replace(tile, columns=tile.panel_columns)
    return one.of(row, column - first + inside) + panel * tile.panel_bytes
