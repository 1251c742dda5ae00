"""Products of groups of rows on a GPU: a table of tiles, then the product, tile by tile.

    grouped_rows  -->  group_tiles, grouped_tiles
    outer_rows    -->  group_spans, outer_tiles

Matrix instructions of SM90 take tiles of 64 rows and more, and the copy engine rows of whole lines
of memory. Other products of groups are not kept whole: they are taken apart as PTIR.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from weft.foundation.dtypes import BF16, F16, SI32, DType
from weft.foundation.grouped_rows import (
    ENTRY,
    GroupedRows,
    GroupedTiles,
    GroupSpans,
    OuterRows,
    OuterTiles,
)
from weft.foundation.whole_ops import WholeOp
from weft.region.ir import Kernel, OpaqueCall, Output, Pattern, Tensor
from weft.target.target import Kind, Target

Parts = tuple[tuple[Kernel, ...], tuple[Tensor, ...]]
_LINE: Final = 16
"""Bytes that rows in memory are multiples of."""
_MOST: Final = 1 << 31
"""Elements of rows, and entries of the table, that are counted in 32 bits."""
_NARROW: Final = 128
"""Columns up to which tiles are half as wide."""
_TILES: Final = ((128, 256), (64, 128), (64, 256), (128, 128))
"""Rows and columns of tiles to choose from; higher ones can be built, and are not measured."""
_SLICE: Final = 64
"""Rows of a matrix instruction, and the depth of a k step."""
_STEP_BYTES: Final = 2 * _SLICE
_BYTES: Final = 60.0
"""Bytes that a unit reads in a nanosecond."""
_PRODUCTS: Final = 1.3
"""Nanoseconds that it multiplies a column of 64 rows in a k step."""
_START: Final = 1500.0
"""Nanoseconds of a tile besides its steps."""


def stays_whole(op: WholeOp, dtype: DType, target: Target) -> bool:
    """Whether an op that may be taken apart as PTIR has kernels of its own on a target."""
    if target.kind is not Kind.GPU or not isinstance(op, GroupedRows | OuterRows):
        return False
    if not target.has("wgmma") or dtype not in (BF16, F16):
        return False
    sides = (op.height, op.width) if isinstance(op, OuterRows) else (op.depth, op.columns)
    lines = all(n * dtype.storage_bytes % _LINE == 0 for n in sides)
    return min(op.rows, op.groups, *sides) > 0 and lines and op.rows * max(sides) < _MOST


def in_tiles(kernel: Kernel, call: OpaqueCall, op: GroupedRows) -> Parts:
    """The kernels of a product of groups, and the table between them."""
    x, weight, offsets = call.inputs
    tile, width = _tile(op)
    product = GroupedTiles(**vars(op), tile=tile, width=width)
    found = product.tiles
    table = Tensor(f"{kernel.name}_tiles", SI32, (found.count + 1, ENTRY))
    finding = _found(kernel, found, offsets, table)
    made = replace(call, op=product, inputs=(x, weight, table.name))
    return (finding, replace(kernel, opaque=made)), (table,)


def with_spans(kernel: Kernel, call: OpaqueCall, op: OuterRows) -> Parts:
    """The kernels of the outer products of groups, and what is between them."""
    lhs, rhs, offsets = call.inputs
    spans = Tensor(f"{kernel.name}_spans", SI32, (op.groups, 2))
    finding = _found(kernel, GroupSpans(op.rows, op.groups), offsets, spans)
    product = OuterTiles(**vars(op), tile=256 if op.width > _NARROW else _NARROW)
    made = replace(call, op=product, inputs=(lhs, rhs, spans.name))
    return (finding, replace(kernel, opaque=made)), (spans,)


def _found(kernel: Kernel, op: WholeOp, offsets: str, table: Tensor) -> Kernel:
    """The kernel that makes a table of offsets."""
    call, output = OpaqueCall(op, (offsets,), (0,)), Output(table.name, "", ())
    return Kernel(f"{kernel.name}_find", Pattern.OPAQUE, (), (), (output,), opaque=call)


def _tile(op: GroupedRows) -> tuple[int, int]:
    """Rows and columns of a tile: those of which all tiles take the least time together, where
    groups have half as many rows as on average, as many, and half as many more."""
    return min(_TILES, key=lambda tile: _nanoseconds(op, *tile))


def _nanoseconds(op: GroupedRows, tile: int, width: int) -> float:
    """What the tiles of a group take one unit, about. A k step takes as long as its operands come,
    or as its products take, of which those of rows beyond the group are left out."""
    found = 0.0
    for share in (1, 2, 3):
        rows = max(1, op.rows * share // (2 * op.groups))
        while rows > 0:
            slices = -(-min(rows, tile) // _SLICE)
            step = max((tile + width) * _STEP_BYTES / _BYTES, slices * width * _PRODUCTS)
            found += _START + step * -(-op.depth // _SLICE)
            rows -= tile
    return found * -(-op.columns // width)
