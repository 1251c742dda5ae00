"""Grouped products on a GPU: a kernel for the table of tiles, then the product, tile by tile.

    grouped_rows  -->  group_tiles, grouped_tiles
    outer_rows    -->  group_spans, outer_tiles

Matrix instructions of SM90 take tiles of 64 rows and more, and the copy engine rows of whole lines
of memory. Other products of groups are not kept whole: they are taken apart as PTIR.
"""

from __future__ import annotations

import heapq
from typing import Final

from weft.foundation.dtypes import SI32
from weft.foundation.grouped_rows import (
    ENTRY,
    GroupedRows,
    GroupedTiles,
    GroupSpans,
    OuterRows,
    OuterTiles,
)
from weft.foundation.records import replace
from weft.foundation.whole_ops import WholeOp
from weft.region.ir import Kernel, OpaqueCall, Output, Pattern, Tensor

Parts = tuple[tuple[Kernel, ...], tuple[Tensor, ...]]
_NARROW: Final = 128
"""Columns up to which tiles are half as wide."""
_TILES: Final = ((192, 256), (128, 128), (64, 256), (64, 128))
"""Rows and columns of tiles to choose from. On eight sizes of an H200 the best of them is the best
of all that were timed, with 128x256 and 256x128, or within a hundredth of it."""
_SLICE: Final = 64
"""Rows of a matrix instruction, and the depth of a k step."""
_STEP_BYTES: Final = 2 * _SLICE
_BYTES: Final = 80.0
"""Bytes that a unit reads in a nanosecond, ..."""
_PRODUCTS: Final = 1.4
"""... nanoseconds that it multiplies a column of 64 rows in a k step, and ..."""
_START: Final = 800.0
"""... nanoseconds of a tile besides its steps: with these three the tile that is chosen took at
most 1.10 times as long as the best, on the eight sizes."""
_UNITS: Final = 132
"""Of the machine that the times were measured on, an H200."""
_MANY: Final = 64
"""Tiles of each unit from which on they end together."""


def in_tiles(kernel: Kernel, call: OpaqueCall, op: GroupedRows) -> Parts:
    """The kernels of a product of groups, and the table between them."""
    x, weight, offsets = call.inputs
    tile, width = _tile(op)
    product = GroupedTiles(**vars(op), tile=tile, width=width)
    found = product.tiles
    table = Tensor(f"{kernel.name}_tiles", SI32, (found.count + 1, ENTRY))
    finding = _table_kernel(kernel, found, offsets, table)
    made = replace(call, op=product, inputs=(x, weight, table.name))
    return (finding, replace(kernel, opaque=made)), (table,)


def with_spans(kernel: Kernel, call: OpaqueCall, op: OuterRows) -> Parts:
    """The kernels of the outer products of groups, and what is between them."""
    lhs, rhs, offsets = call.inputs
    spans = Tensor(f"{kernel.name}_spans", SI32, (op.groups, 2))
    finding = _table_kernel(kernel, GroupSpans(op.rows, op.groups), offsets, spans)
    product = OuterTiles(**vars(op), tile=256 if op.width > _NARROW else _NARROW)
    made = replace(call, op=product, inputs=(lhs, rhs, spans.name))
    return (finding, replace(kernel, opaque=made)), (spans,)


def _table_kernel(kernel: Kernel, op: WholeOp, offsets: str, table: Tensor) -> Kernel:
    """The kernel that makes a table of offsets."""
    call, output = OpaqueCall(op, (offsets,), (0,)), Output(table.name, "", ())
    return Kernel(f"{kernel.name}_find", Pattern.OPAQUE, (), (), (output,), opaque=call)


def _tile(op: GroupedRows) -> tuple[int, int]:
    """Rows and columns of a tile: those with which the last unit is done first, where groups have
    half as many rows as on average, as many, and half as many more, in turns."""
    return min(_TILES, key=lambda tile: _nanoseconds(op, *tile))


def _nanoseconds(op: GroupedRows, tile: int, width: int) -> float:
    """When the last unit is done, each taking the next tile when it is done with one."""
    columns = -(-op.columns // width)
    groups = [-(-(op.groups - first) // 3) for first in range(3)]
    shares = [_column_of_tiles(op, tile, width, share) for share in (1, 2, 3)]
    pairs = list(zip(groups, shares, strict=True))
    if columns * sum(count * len(costs) for count, costs in pairs) >= _MANY * _UNITS:
        return columns * sum(count * sum(costs) for count, costs in pairs) / _UNITS
    done = [0.0] * _UNITS
    for group in range(op.groups):
        for cost in shares[group % 3]:
            for _ in range(columns):
                # The unit that is free first takes the next tile: the least number is on top.
                heapq.heapreplace(done, done[0] + cost)
    return max(done)


def _column_of_tiles(op: GroupedRows, tile: int, width: int, share: int) -> list[float]:
    """What tiles take that have the rows of a group, of `share` halves of the average. A k step
    takes as long as its operands come, or as its products take, of which those of rows beyond the
    group are left out."""
    rows = max(1, op.rows * share // (2 * op.groups))
    left = [min(tile, rows - first) for first in range(0, rows, tile)]
    # A step is 128 bytes of each row of both operands.
    reads = (tile + width) * _STEP_BYTES / _BYTES
    steps = (max(reads, -(-n // _SLICE) * width * _PRODUCTS) for n in left)
    return [_START + step * -(-op.depth // _SLICE) for step in steps]
