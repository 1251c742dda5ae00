"""Which targets have kernels of their own for products of groups of rows."""

from __future__ import annotations

from typing import Final

from weft.foundation.dtypes import BF16, F16, DType
from weft.foundation.grouped_rows import GroupedRows, OuterRows
from weft.foundation.whole_ops import WholeOp
from weft.target.target import Kind, Target

_LINE: Final = 16
"""Bytes that rows in memory are multiples of."""
_MOST: Final = 1 << 31
"""Elements of rows, and entries of the table, that are counted in 32 bits."""


def stays_whole(op: WholeOp, dtype: DType, target: Target) -> bool:
    """Whether an op that may be taken apart as PTIR has kernels of its own on a target."""
    if target.kind is not Kind.GPU or not isinstance(op, GroupedRows | OuterRows):
        return False
    if not target.has("wgmma") or dtype not in (BF16, F16):
        return False
    sides = (op.height, op.width) if isinstance(op, OuterRows) else (op.depth, op.columns)
    lines = all(n * dtype.storage_bytes % _LINE == 0 for n in sides)
    return min(op.rows, op.groups, *sides) > 0 and lines and op.rows * max(sides) < _MOST
