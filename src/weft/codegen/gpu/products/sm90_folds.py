"""Row reductions in the epilogue of SM90 products: numbers of whole rows computed from a finished
tile.

    for each fold, for each piece of columns: its element program on the accumulators into spare
    registers, which are folded; then over the quad that has the row

A warpgroup has all columns of its rows, so nothing is exchanged between warps. Programs after a
fold take it as a value of the row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from math import gcd
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.quads import BOTH_ROWS, compute, over_quad
from weft.codegen.gpu.ir.element_ops import ElementOp
from weft.codegen.gpu.ir.scalar import Lit
from weft.codegen.gpu.products.problem import Folded
from weft.codegen.gpu.products.sm90_layout import Sm90Layout
from weft.foundation.dtypes import F32, I1, SI32
from weft.foundation.records import dataclass

_PIECE: Final = 64
"""Columns, at most, whose elements are held beside the accumulators."""
_SHORT_PIECE: Final = 32
_MANY: Final = 64 * 256
"""The same, where there are more accumulators than these."""
_ARRAY: Final = "folded"
_JOINED: Final = {"sum": "add", "max": "max"}
_NOTHING: Final = {"sum": 0.0, "max": -math.inf}


@dataclass(frozen=True)
class Folds:
    """Makes the statements that fold the rows of a tile."""

    layout: Sm90Layout

    @property
    def piece(self) -> int:
        """Columns that are folded at a time."""
        rows, columns = self.layout.warpgroup_tile
        return gcd(columns, _PIECE if rows * columns <= _MANY else _SHORT_PIECE)

    def state(self) -> Iterator[ir.Stmt]:
        """The registers that elements are folded in."""
        if self.layout.problem.folds:
            yield ir.Registers(_ARRAY, ir.RegisterKind.for_results(F32), self.piece // 2)

    def values(self, fold: Folded, block: int) -> ir.RowValues:
        """What was folded, to programs after it."""
        names = tuple(f"{self.name(fold, block, row)}_all" for row in BOTH_ROWS)
        return ir.RowValues(fold.name, F32, names)

    def name(self, fold: Folded, block: int, row: int) -> str:
        return f"{fold.name}_row{row}_of{block}"

    def columns(self) -> range:
        """Where pieces begin that have columns of the result."""
        return range(0, self.layout.problem.width, self.piece)

    def of_piece(
        self,
        fold: Folded,
        fragment: ir.Fragment,
        sources: Sequence[ir.ElementSource],
        block: int,
        column: int,
    ) -> Iterator[ir.Stmt]:
        """Fold the piece from a column on of an accumulator, with what was folded before."""
        problem = self.layout.problem
        ops, result, more = list(fold.ops), fold.result, list[ir.ElementSource]()
        # Sums beyond the last column are products with zeros, of which a program may make anything.
        if column + self.piece > problem.width:
            edge = (("edge", SI32, problem.n), ("nothing", F32, _NOTHING[fold.fn]))
            ops += [ElementOp(name, dtype, "const", (), value) for name, dtype, value in edge]
            ops.append(ElementOp("inside", I1, "lt", ("at", "edge")))
            ops.append(ElementOp("kept", F32, "select", ("inside", result, "nothing")))
            result = "kept"
            more.append(ir.IndexElements("at", SI32, Lit(0), 0, 1))
        yield ir.Epilogue(
            acc=ir.RegAt(f"acc{block}", column // 8 * 4),
            fragment=fragment,
            value=problem.value,
            sources=(*sources, *more),
            ops=tuple(ops),
            result=result,
            out=ir.RegAt(_ARRAY),
            out_dtype=F32,
            value_dtype=problem.total,
        )
        # Pieces follow one another from the first column on: one order of additions in every run.
        statement = ir.RowMax if fold.fn == "max" else ir.RowSum
        last = column + self.piece >= problem.width
        made = [self.name(fold, block, row) for row in BOTH_ROWS]
        only = column == 0 and last
        parts = made if only else [f"{name}_from_{column}" for name in made]
        yield statement(tuple(parts), _ARRAY)
        for name, part in zip(made, parts, strict=True):
            if column:
                before = f"{name}_from_0" if column == self.piece else f"{name}_to_{column}"
                joined = name if last else f"{name}_to_{column + self.piece}"
                yield compute(joined, _JOINED[fold.fn], before, part)
            if last:
                # The instruction leaves a row with four lanes, two of every eight columns each.
                yield from over_quad(name, _JOINED[fold.fn])
