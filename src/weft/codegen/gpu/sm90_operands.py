"""How tiles of A and B come into shared memory: tensor maps, and the loads of a k step.

The copy engine wants rows whose pitch is a multiple of 16 bytes. Rows of A may have any: those that
begin at the same place within 16 bytes (a *phase*) are regular among themselves, so there is a map
for each phase, from the whole line on in which its first row begins. In a tile the rows of one
phase follow one another; `Sm90Layout.tile_row` says which row of the result that makes each.

    pitch 767, 2 bytes:   a0: rows 0, 8, 16 ...   a1: rows 1, 9, 17 ...   ...   a7: rows 7, 15 ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weft.codegen.gpu import ir
from weft.codegen.gpu.matmul import Operand
from weft.codegen.gpu.mma_place import Place, present
from weft.codegen.gpu.scalar import Scalar
from weft.codegen.gpu.sm90_layout import TMA_ALIGNMENT, Sm90Layout, box_of_batch, sizes_of_batch
from weft.codegen.gpu.swizzle import Major, TileLayout


@dataclass(frozen=True)
class Side:
    """One operand: its tile, and how it lies along the axis that is not contracted."""

    name: str
    operand: Operand
    tile: TileLayout
    extent: int
    step: int
    phases: int

    @property
    def rows(self) -> int:
        """Rows of a tile that one load brings."""
        return self.tile.rows // self.phases

    def map_name(self, phase: int) -> str:
        return self.name if self.phases == 1 else f"{self.name}{phase}"

    def start(self, phase: int) -> tuple[int, int]:
        """Where a phase's map begins, at a whole line, and the elements before its first row."""
        first = self.operand.offset + phase * self.operand.pitch
        skipped = first % (TMA_ALIGNMENT // self.operand.dtype.storage_bytes)
        return first - skipped, skipped


@dataclass(frozen=True)
class Operands:
    """Makes the maps and loads of both operands."""

    layout: Sm90Layout
    buffers: Sequence[str]

    @property
    def sides(self) -> tuple[Side, Side]:
        layout, problem = self.layout, self.layout.problem
        bm, bn, _ = layout.tile
        return (
            Side("a", problem.a, layout.a, problem.m, bm, layout.phases),
            Side("b", problem.b, layout.b, problem.n, bn, 1),
        )

    def maps(self) -> Iterator[ir.TensorMap]:
        for side in self.sides:
            yield from (self.map_of(side, phase) for phase in range(side.phases))

    def map_of(self, side: Side, phase: int) -> ir.TensorMap:
        problem, operand = self.layout.problem, side.operand
        start, skipped = side.start(phase)
        rows = -(-(side.extent - phase) // side.phases)
        along, across = (problem.k, rows) if operand.major is Major.K else (rows, problem.k)
        return ir.TensorMap(
            side.map_name(phase),
            self.buffers.index(operand.tensor),
            operand.dtype,
            start,
            (skipped + along, across, *sizes_of_batch(problem, operand.batch)),
            (operand.pitch * side.phases, *(s for s in operand.batch if s)),
            (side.tile.panel_columns, side.rows, *box_of_batch(operand.batch)),
            side.tile.swizzle,
        )

    def loads(self, place: Place, slot: Scalar, k: Scalar) -> Iterator[ir.Stmt]:
        """Fill a slot with a k step."""
        for side, outer in zip(self.sides, (place.m, place.n), strict=True):
            for phase in range(side.phases):
                yield from self.load(side, phase, outer, place, slot, k)

    def load(
        self, side: Side, phase: int, outer: Scalar, place: Place, slot: Scalar, k: Scalar
    ) -> Iterator[ir.Stmt]:
        tile, depth = side.tile, self.layout.tile[2]
        _, skipped = side.start(phase)
        batch = present(place.batch, side.operand.batch)
        inside = phase * side.rows * tile.swizzle.span
        for panel in range(tile.panels):
            target = ir.Address(side.name, slot * tile.bytes + (panel * tile.panel_bytes + inside))
            along = panel * tile.panel_columns + skipped
            if side.operand.major is Major.K:
                coords = (k * depth + along, outer * (side.step // side.phases))
            else:
                coords = (outer * side.step + along, k * depth)
            name = side.map_name(phase)
            yield ir.TmaLoad(target, name, (*coords, *batch), ir.BarrierAt("full", slot))
