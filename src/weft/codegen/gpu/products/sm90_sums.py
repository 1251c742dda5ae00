"""Column sums in the epilogue of SM90 products, computed while a panel of results is staged.

    for each 64 rows of the panel: each warp takes 16 columns, transposed as they are read, and
    multiplies them by ones, 16 rows at a time; four lanes have the sums, and store them

All rows of a part lie in the buffer, so nothing is exchanged between warps, and no lane adds up
what another one has. Between the meeting after which a panel is staged and the next one, which all
reach before the buffer is written again, it may be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.element_ops import ElementOp
from weft.codegen.gpu.ir.scalar import LANE, Lit, Name, Scalar
from weft.codegen.gpu.products.problem import Summed
from weft.codegen.gpu.products.sm90_layout import Sm90Layout
from weft.codegen.gpu.products.tile_place import Place, offset
from weft.foundation.dtypes import F32
from weft.foundation.records import dataclass
from weft.region.forms.part_sums import PART, PIECE

_ONES: Final = "ones"
_ONE: Final = "one"
_MATRIX: Final = 16
"""Rows that a matrix instruction sums."""
_BLOCK: Final = Name("block_of_rows")
_QUARTER: Final = Name("quarter")


@dataclass(frozen=True)
class Sums:
    """Makes the statements that sum the columns of one result."""

    layout: Sm90Layout
    buffers: Sequence[str]
    number: int
    """Of the result."""

    @property
    def own(self) -> tuple[Summed, ...]:
        """The sums of that result."""
        return tuple(found for found in self.layout.problem.sums if found.of == self.number)

    def of_panel(
        self, place: Place, row: Scalar, column: Scalar, start: Scalar
    ) -> Iterator[ir.Stmt]:
        """Those of a panel that begins at a row and a column of the result, and is staged from
        `start` on."""
        warps = self.layout.c.columns // PIECE
        for found in self.own:
            body = tuple(self.of_block(found, place, row, column, start))
            blocks = ir.For(_BLOCK.name, 0, self.layout.blocks, 1, body)
            yield blocks if warps == 4 else ir.If(warps > _QUARTER, (blocks,))

    def of_block(
        self, found: Summed, place: Place, row: Scalar, column: Scalar, start: Scalar
    ) -> Iterator[ir.Stmt]:
        """Of the 64 rows of an accumulator, 16 columns."""
        tile, dtype, problem = self.layout.c, self.layout.problem.out_dtype, self.layout.problem
        # One is exact in every dtype and rounds no product: only the additions round, in f32.
        yield values.Compute(ElementOp(_ONE, F32, "const", (), 1.0))
        yield ir.Registers(_ONES, ir.RegisterKind.B32, 4)
        for register in range(4):
            yield ir.PackPair(ir.RegAt(_ONES, register), _ONE, _ONE, dtype)
        yield ir.Registers("summed", ir.RegisterKind.F32, 8, zero=True)
        yield ir.Registers("turned", ir.RegisterKind.B32, 4)
        for step in range(PART // _MATRIX):
            line = _BLOCK * PART + step * _MATRIX + (LANE & 15)
            inside = tile.of(line, _QUARTER * PIECE + (LANE >> 4) * 8)
            source = ir.Address("c", start + inside)
            yield ir.LdMatrix(ir.RegAt("turned"), source, transposed=True)
            for half in (0, 1):
                acc, ones = ir.RegAt("summed", 4 * half), ir.RegAt(_ONES)
                yield ir.MmaSync(acc, ones, ir.RegAt("turned", 2 * half), dtype, dtype)
        first = row + _BLOCK * PART
        across = column + _QUARTER * PIECE + (LANE & 3) * 2
        strides, part = found.strides, first // PART
        # All rows of a product with ones are the same: those of the lanes from the fifth on, and
        # the lower ones, count as outside.
        fragment = ir.Fragment(PIECE // 8, LANE >> 2, across, 1, problem.n)
        base = offset(replace(strides, column=0), part, Lit(0), place.batch)
        even = all(s % 2 == 0 for s in (strides.row, strides.offset, *strides.batch))
        width = 2 if strides.column == 1 and even and problem.n % 2 == 0 else 1
        store = ir.StGlobalVec(
            ir.RegAt("summed"),
            F32,
            fragment,
            self.buffers.index(found.tensor),
            base,
            0,
            strides.column,
            width,
        )
        yield ir.If(first < problem.m, (store,))
