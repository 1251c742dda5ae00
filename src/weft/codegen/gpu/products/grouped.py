"""Grouped matrix products on SM90: groups of rows, each times a matrix of its own, with tiles from
a table.

A kernel before this one has written which rows of which group each tile has (`GroupTiles`), and how
many tiles there are. So a tile belongs to one group; where it reaches into the next one, what it
computes there is not stored: threads write rows, up to where the group ends. Tiles are visited
in bands of a few of the table, column by column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.ir.scalar import Lit, Name, Scalar, least, most
from weft.codegen.gpu.ir.values import PlaceOf
from weft.codegen.gpu.products.group_product import GroupProduct
from weft.codegen.gpu.products.operand import Operand
from weft.codegen.gpu.products.problem import Problem, Stored, Strides
from weft.codegen.gpu.products.sm90 import Sm90Builder
from weft.codegen.gpu.products.sm90_layout import ROW, Sm90Layout
from weft.codegen.gpu.products.tile_place import Place
from weft.codegen.gpu.products.tiles import TileOrder
from weft.foundation.dtypes import SI32
from weft.foundation.grouped_rows import ENTRY, GroupedTiles
from weft.foundation.records import dataclass
from weft.plan.ir import Header, MmaPlan
from weft.region.ir import Tensor
from weft.target.target import Target

_WORK: Final = Name("work")
"""Tiles that there are: those of the table, and so many side by side."""
_DEPTH: Final = 64
_CONSUMERS: Final = 2
_BAND: Final = 8
"""Tiles of the table that are visited together, column by column: those of one group share what
is read of its matrix, and so many rows stay in the cache that all units share."""
_ATOM: Final = 64
"""Rows of a matrix instruction."""
_BARRIERS: Final = 2048
"""Bytes of shared memory for barriers, at most, and for the alignment of tiles."""


@dataclass(frozen=True)
class GroupedLayout(Sm90Layout):
    """Tiles of groups, as many as there may be."""

    tiles: int = 0
    used: int = 0
    """Of the accumulators of a warpgroup, those that are multiplied and stored; 0 for all."""

    @property
    def blocks(self) -> int:
        return self.used or super().blocks

    @property
    def order(self) -> TileOrder:
        return TileOrder(self.tiles, -(-self.problem.n // self.tile[1]), 1, "rows")

    @property
    def tma_store(self) -> bool:
        return False

    @property
    def whole_lines(self) -> bool:
        return self.c.swizzle.span > 16


class GroupedBuilder(Sm90Builder):
    """Makes the statements of one kernel; `table` is the tensor that says where its tiles lie."""

    def __init__(self, layout: GroupedLayout, name: str, table: str) -> None:
        super().__init__(layout, name)
        self.groups = layout
        self.table = len(self.buffers)
        self.buffers.append(table)

    def tile_count(self) -> tuple[ir.Stmt, ...]:
        count = self.layout.order.rows
        return (
            self.read("tiles_read", Lit(0)),
            PlaceOf("tiles", "tiles_read", count + 1),
            ir.Let(_WORK.name, Name("tiles") * self.layout.order.columns),
        )

    @property
    def work(self) -> Scalar:
        return _WORK

    def read(self, name: str, place: Scalar) -> ir.Stmt:
        return ir.LoadElement(name, self.table, SI32, place, Lit(1))

    def locate(self) -> tuple[Place, tuple[ir.Stmt, ...]]:
        columns, rows = self.layout.order.columns, self.problem.m
        # Threads that load nothing have no band.
        per_band, height = _BAND * columns, most(Name("height"), 1)
        found: list[ir.Stmt] = [
            ir.Let("band", Name("tile") // per_band * _BAND),
            ir.Let("height", least(Name("tiles") - Name("band"), _BAND)),
            ir.Let("inside", Name("tile") % per_band),
            ir.Let("entry", (Name("band") + Name("inside") % height + 1) * ENTRY),
            ir.Let("tile_n", Name("inside") // height),
        ]
        sizes = {"matrix": self.problem.batch[0] + 1, "source": rows + 1, "first": rows + 1}
        for place, (name, size) in enumerate({**sizes, "end": rows + 1}.items()):
            found.append(self.read(f"{name}_read", Name("entry") + place))
            found.append(PlaceOf(name, f"{name}_read", size))
        row = (Name("source"), Name("first"), Name("end"))
        return Place(Lit(0), Name("tile_n"), (Name("matrix"),), row), tuple(found)

    def tile_body(self, place: Place) -> tuple[ir.Stmt, ...]:
        """The rows that a warpgroup has of the group, 64 at a time; one that has none only hands
        slots back, which others share."""
        if self.layout.pingpong:
            return super().tile_body(place)
        ring = self.ring
        step = (
            ir.MbarrierWait(ir.BarrierAt("full", ring.slot), ring.phase),
            self.release(ring.slot),
            *ring.advance(),
        )
        body: tuple[ir.Stmt, ...] = (ir.For("k", 0, self.layout.split.steps, 1, step),)
        rows = Name("own_rows")
        for blocks in range(1, self.layout.blocks + 1):
            part = Sm90Builder(replace(self.groups, used=blocks), self.name)
            body = (ir.If(rows > (blocks - 1) * _ATOM, Sm90Builder.tile_body(part, place), body),)
        return (ir.Let(rows.name, Name("end") - self.results.first_row(place)), *body)


def _grouped_layout(op: GroupedTiles, problem: Problem, name: str, target: Target) -> GroupedLayout:
    return GroupedLayout(problem, plan_of(op, name, target), target.limits.units, op.tiles.count)


def _grouped_problem(
    op: GroupedTiles, x: str, weight: str, result: str, tensors: Mapping[str, Tensor]
) -> Problem:
    dtype, matrix = tensors[x].dtype, op.depth * op.columns
    outer, inner = (op.depth, 1) if op.transposed else (1, op.columns)
    stored = Strides(0, op.columns, 1, (0,))
    return Problem(
        batch=(op.groups,),
        m=op.rows,
        n=op.columns,
        k=op.depth,
        a=Operand(x, dtype, 0, op.depth, 1, (0,)),
        b=Operand(weight, dtype, 0, outer, inner, (matrix,)),
        value="v0",
        sources=(),
        stored=(Stored(result, dtype, stored, (), "v0"),),
    )


def plan_of(op: GroupedTiles, name: str, target: Target) -> MmaPlan:
    """Two warpgroups share the rows of a tile, or its columns where they have too many rows, or
    have a tile each where it is only as high as theirs."""
    alone, beside = op.tile == _ATOM, op.tile == 3 * _ATOM
    rows = op.tile if alone or beside else op.tile // _CONSUMERS
    buffers = 1 if beside else 2
    slot, staging = (op.tile + op.width) * ROW, _CONSUMERS * buffers * rows * ROW
    stages = (target.limits.shared_bytes_per_block - staging - _BARRIERS) // slot
    return MmaPlan(
        Header(target.name, name),
        (op.tile, op.width, _DEPTH),
        stages=stages,
        warp_tile=(rows, op.width // _CONSUMERS if beside else op.width),
        arch="sm90",
        roles="pingpong" if alone else "cooperative",
        consumers=_CONSUMERS,
        store_buffers=buffers,
        operand_layouts=("row", "col" if op.transposed else "row"),
    )


PRODUCT: Final = GroupProduct(_grouped_problem, _grouped_layout, GroupedBuilder)
