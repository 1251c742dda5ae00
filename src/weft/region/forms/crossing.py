"""Elementwise kernels with transposed operands.

Where results go along one axis and an operand along another, neither order of loops is good for
both. Blocks of the two axes are: all of a cache line is used while it is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.foundation.index_expr import Expr, coefficient, linear
from weft.region.form import Crossing
from weft.region.ir import Fold, Kernel, Read, Reduce


def find_crossing(kernel: Kernel, strides: Mapping[str, Sequence[int]]) -> Crossing | None:
    """The two axes that a kernel without reductions goes along at once, if it does."""
    if not kernel.outputs or any(isinstance(let.expr, Reduce | Fold) for let in kernel.body):
        return None
    stored = [linear(o.index, strides[o.tensor]) for o in kernel.outputs]
    names = [axis.name for axis in kernel.axes if axis.size > 1]
    columns = next((a for a in names if all(coefficient(e, a) == 1 for e in stored)), None)
    if columns is None:
        return None
    reads = [let.expr for let in kernel.body if isinstance(let.expr, Read) and not let.expr.places]
    # Those that read a border lie across like others, but do not say where others are.
    for read in sorted(reads, key=lambda read: bool(read.guards)):
        address = linear(read.index, strides[read.tensor])
        rows = next((a for a in names if is_across(address, Crossing(columns, a))), None)
        if rows is not None:
            return Crossing(columns, rows)
    return None


def is_across(address: Expr, crossing: Crossing) -> bool:
    """Whether neighbours at an address are neighbours along the rows, and not along the columns."""
    return (
        crossing.rows != crossing.columns
        and coefficient(address, crossing.rows) == 1
        and coefficient(address, crossing.columns) not in (0, 1)
    )
