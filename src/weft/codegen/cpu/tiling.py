"""Tiling: how the axes of a kernel are split into loops, and which plan fields decide it.

    axis = segments;  segment = count tiles of (unroll x lanes) elements, from `start`

A `MapPlan` gives the vector axis `vector` lanes and `unroll` vectors a tile. Where there are rows
enough for all threads, a piece is a whole row, gone through tile by tile, so that what a row shares
is worked out once for it. With `block`, a piece
is a block of two axes, and operands that lie across are transposed tile by tile. A `RowPlan` does
the same along the reduced axis, where the unrolled vectors are independent partial results
(`accumulators`); if the contiguous axis is not reduced, lanes run along that one instead, and the
unrolled vectors are columns side by side; with `across`, all columns of a piece are summed up row
by row, in scratch. With `keep_row`, what is dear and needed by several
passes over a row is written into scratch by the first.

An `MmaPlan` gives a register tile: `warp_tile` = rows x columns. `vectorize.axis` says which
columns the lanes carry: those of the result (n), or those that are summed (k), which suits a few
rows; a small tile then keeps several sums of each element apart.
A piece computes `tile[0]` rows with the same columns of B; with B in `cache`, it first copies those
into scratch, one after the other. With A and B in `cache`, a piece is a block of
`tile[0]` rows and `tile[1]` columns, and both operands are packed, `tile[2]` of the sum at a time;
8-bit numbers may be packed as words of four, and words of these or of two bf16 be multiplied by
matrix tiles. With one of them cached as an image, see `images`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from weft.foundation.errors import InternalError
from weft.memory.ir import MemRef
from weft.plan.blocks import PANELS, TILES
from weft.plan.cpu_rows import contiguous_axis, drawn_groups, kept_values
from weft.plan.ir import MapPlan, MmaPlan, Plan, RowPlan
from weft.plan.rows import reduced_axes
from weft.plan.staged import NARROW
from weft.plan.transposes import crossing_of
from weft.region.form import Crossing
from weft.region.forms.columns import columns_of_piece
from weft.region.ir import Kernel, Reduce, form_of

PARTIAL_SUMS: Final = 8
"""Sums along k that are kept apart, at least: two units with a latency of four."""

MANY_ROWS: Final = 64
"""Rows that keep all threads busy to the end, though each of them is one piece."""
WIDE: Final = 8
"""Lanes of vectors that are worth halving."""
FEW: Final = 4
"""Vectors of a whole map that take no longer when they are more and narrower."""


@dataclass(frozen=True)
class AxisTiling:
    """A tile of an axis: `unroll` vectors of `lanes` elements."""

    unroll: int = 1
    lanes: int = 1


@dataclass(frozen=True)
class Segment:
    """`count` equal tiles that follow one another from `start`."""

    start: int
    count: int
    unroll: int
    lanes: int

    @property
    def extent(self) -> int:
        return self.unroll * self.lanes


@dataclass(frozen=True)
class Packing:
    """Columns of an operand that many rows share, one tile of these after the other."""

    value: str
    """The Let that reads the operand."""
    rows_axis: str
    rows: int
    columns_axis: str
    copies: bool
    """Whether they are copied into scratch first."""


@dataclass(frozen=True)
class Blocking:
    """A contraction in blocks of both operands: what one piece computes, and the register tile."""

    block_rows: int
    block_columns: int
    depth: int
    """How much of the summed axes is packed at a time."""
    rows: int
    columns: int
    lanes: int
    words: bool = False
    """Whether four neighbours along the summed axes are packed as one number."""
    tiles: bool = False
    """Whether words are multiplied by matrix tiles."""
    lies: bool = False
    """Whether one operand lies in panels, and is read where it is."""


@dataclass(frozen=True)
class Blocks:
    """Pieces that are blocks of two axes, gone through tile by tile."""

    crossing: Crossing
    edge: int


@dataclass(frozen=True)
class Columns:
    """Columns that are summed up row by row, so many in a piece."""

    axis: str
    width: int


@dataclass(frozen=True)
class Tiling:
    """The tiles of every axis, and which axis the lanes run along."""

    vector_axis: str | None
    outer_tiles: dict[str, AxisTiling]
    inner_tiles: dict[str, AxisTiling]
    packing: Packing | None = None
    blocking: Blocking | None = None
    blocks: Blocks | None = None
    columns: Columns | None = None
    kept: tuple[str, ...] = ()
    """Values of a row that later passes over it read from scratch."""
    whole_rows: bool = False
    """Whether a piece has all tiles along the vector axis."""
    groups: bool = False
    """Whether lanes run along groups, and what a group shares is computed before its numbers."""

    def outer(self, axis: str) -> AxisTiling:
        return self.outer_tiles.get(axis, AxisTiling())

    def inner(self, axis: str) -> AxisTiling:
        return self.inner_tiles.get(axis, AxisTiling())


def halved_segments(size: int, tiling: AxisTiling) -> list[Segment]:
    """The same, but of what is left of wide vectors, as much as can be is a vector of half the
    lanes, and of half of these."""
    found = segments(size, tiling)
    rest, lanes = found[-1] if found else None, tiling.lanes // 2
    if rest is None or rest.lanes > 1 or tiling.lanes < WIDE:
        return found
    found, start = found[:-1], rest.start
    # Each width is taken once at most: two of half the lanes would have been one of the whole.
    while lanes >= NARROW:
        if size - start >= lanes:
            found.append(Segment(start, 1, 1, lanes))
            start += lanes
        lanes //= 2
    return [*found, *([Segment(start, 1, size - start, 1)] if size > start else [])]


def segments(size: int, tiling: AxisTiling) -> list[Segment]:
    """Full tiles, then the full vectors that are left, then the single elements that are left."""
    found = []
    full = size // (tiling.unroll * tiling.lanes)
    if full:
        found.append(Segment(0, full, tiling.unroll, tiling.lanes))
    start = full * tiling.unroll * tiling.lanes
    vectors = (size - start) // tiling.lanes
    if vectors:
        found.append(Segment(start, 1, vectors, tiling.lanes))
    start += vectors * tiling.lanes
    if size > start:
        found.append(Segment(start, 1, size - start, 1))
    return found


def tiling_of(kernel: Kernel, refs: dict[str, MemRef], plan: Plan) -> Tiling:
    """The tiles that a plan asks for."""
    reduced = reduced_axes(kernel)
    if isinstance(plan, MmaPlan):
        return _matrix_tiling(kernel, plan)
    strides = {name: ref.strides for name, ref in refs.items()}
    if isinstance(plan, MapPlan) and plan.block > 1:
        return _block_tiling(kernel, plan)
    if isinstance(plan, RowPlan) and plan.across:
        return _column_tiling(kernel, plan)
    lanes = plan.vector if isinstance(plan, RowPlan) else 1
    vector = contiguous_axis(kernel, strides, lanes)
    # Lanes along the sum would be so many sums side by side, added up at the end: another order.
    if vector in reduced and _keeps_order(kernel):
        vector = None
    groups = drawn_groups(kernel, strides) if isinstance(plan, MapPlan) else None
    if groups is not None:
        tile, group = AxisTiling(1, plan.vector), AxisTiling(kernel.sizes[groups[1]])
        both = {groups[0]: tile, groups[1]: group}
        return Tiling(groups[0], both, {groups[0]: tile}, groups=True)
    if isinstance(plan, MapPlan):
        tile = _map_tile(kernel, vector, plan)
    elif isinstance(plan, RowPlan):
        tile = AxisTiling(plan.accumulators, plan.vector)
    else:
        tile = AxisTiling()
    kept = kept_values(kernel) if isinstance(plan, RowPlan) and plan.keep_row else ()
    if vector is None:
        return Tiling(None, {}, {}, kept=kept)
    outer = {} if vector in reduced else {vector: tile}
    whole = isinstance(plan, MapPlan) and _has_many_rows(kernel, vector)
    return Tiling(vector, outer, {vector: tile}, kept=kept, whole_rows=whole)


def _map_tile(kernel: Kernel, along: str | None, plan: MapPlan) -> AxisTiling:
    """The tile of a map along its vectors. What is left of whole ones is code of its own, which
    LLVM takes as long for as for them: a map of few vectors is made of narrower ones where those
    leave nothing."""
    size = kernel.sizes[along] if along is not None else 0
    lanes = plan.vector
    few = math.prod(kernel.sizes.values()) <= FEW * lanes
    if few and size % lanes and size % NARROW == 0:
        while size % lanes:
            lanes //= 2
        return AxisTiling(1, lanes)
    return AxisTiling(plan.unroll, lanes)


def _has_many_rows(kernel: Kernel, along: str) -> bool:
    return math.prod(axis.size for axis in kernel.axes if axis.name != along) >= MANY_ROWS


def _keeps_order(kernel: Kernel) -> bool:
    """Whether a reduction must combine elements one after the other: only sums may be regrouped,
    and not where each of their steps rounds to a narrow float."""
    return any(
        isinstance(let.expr, Reduce)
        and let.dtype.is_float
        and (let.expr.fn == "prod" or (let.expr.fn == "sum" and let.dtype.bits < 32))
        for let in kernel.body
    )


def _block_tiling(kernel: Kernel, plan: MapPlan) -> Tiling:
    """Tiles of both axes of a crossing: as many rows as a vector has lanes, to be transposed."""
    crossing = crossing_of(kernel)
    if crossing is None:
        raise InternalError("blocks without an operand that lies across the results")
    outer = {
        crossing.columns: AxisTiling(plan.unroll, plan.vector),
        crossing.rows: AxisTiling(plan.vector, 1),
    }
    return Tiling(crossing.columns, outer, {}, blocks=Blocks(crossing, plan.block))


def _column_tiling(kernel: Kernel, plan: RowPlan) -> Tiling:
    """All columns of a piece, `accumulators` vectors at a time."""
    columns = form_of(kernel).rows.columns
    if columns is None:
        raise InternalError("columns are summed up in a kernel that does something else")
    tile = AxisTiling(plan.accumulators, plan.vector)
    width = columns_of_piece(kernel, columns)
    return Tiling(columns, {columns: tile}, {}, columns=Columns(columns, width))


def _matrix_tiling(kernel: Kernel, plan: MmaPlan) -> Tiling:
    roles = kernel.roles
    lanes = plan.vectorize.width if plan.vectorize else 1
    rows, columns = plan.warp_tile
    if roles is None or not roles.n:
        return Tiling(None, {}, {})
    along_k = plan.vectorize is not None and plan.vectorize.axis.startswith("k")
    across = AxisTiling(columns) if along_k else AxisTiling(max(1, columns // lanes), lanes)
    outer = {roles.n[-1]: across}
    if roles.m:
        outer[roles.m[-1]] = AxisTiling(rows, 1)
    if along_k:
        # The sums of the tile are chains of their own, too: fewer of each element are needed where
        # it has many.
        partial = max(1, PARTIAL_SUMS // (rows * columns))
        return Tiling(roles.k[-1], outer, {roles.k[-1]: AxisTiling(partial, lanes)})
    if {cached.tensor for cached in plan.cache} == {"A", "B"}:
        block_rows, block_columns, depth = plan.tile
        kinds = {cached.where for cached in plan.cache}
        words, tiles, lies = (where in kinds for where in ("words", TILES, PANELS))
        blocking = Blocking(
            block_rows, block_columns, depth, rows, columns, lanes, words, tiles, lies
        )
        return Tiling(roles.n[-1], {}, {}, blocking=blocking)
    packing = None
    if roles.m and (plan.cache or plan.tile[0] > rows):
        shared, copies = max(rows, plan.tile[0]), bool(plan.cache)
        packing = Packing(roles.rhs, roles.m[-1], shared, roles.n[-1], copies)
    return Tiling(roles.n[-1], outer, {}, packing)
