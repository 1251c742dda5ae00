"""Elementwise kernels whose operands lie along another axis than their results.

Where results go along one axis and an operand along another, neither order of loops is good for
both. Blocks of the two axes are: all of a cache line is used while it is there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from weft.foundation.index_expr import Expr, coefficient, linear
from weft.region.ir import Fold, Kernel, Read, Reduce, Tensor, row_major

BLOCK: Final = 64
"""Edge of a block: its operands and results fit in a first-level cache, and their pages in a table
of recent ones."""


class Crossing(NamedTuple):
    """The axis that results are contiguous along, and the one that an operand is."""

    columns: str
    rows: str


def crossing_of(kernel: Kernel, strides: Mapping[str, Sequence[int]]) -> Crossing | None:
    """The two axes that a kernel without reductions goes along at once, if it does."""
    if not kernel.outputs or any(isinstance(let.expr, Reduce | Fold) for let in kernel.body):
        return None
    stored = [linear(o.index, strides[o.tensor]) for o in kernel.outputs]
    names = [axis.name for axis in kernel.axes if axis.size > 1]
    columns = next((a for a in names if all(coefficient(e, a) == 1 for e in stored)), None)
    if columns is None:
        return None
    for let in kernel.body:
        if isinstance(let.expr, Read) and not let.expr.guards and not let.expr.places:
            address = linear(let.expr.index, strides[let.expr.tensor])
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


def crossing_in(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Crossing | None:
    """The two axes where all tensors lie as they are declared."""
    names = [*kernel.inputs, *(output.tensor for output in kernel.outputs)]
    return crossing_of(kernel, {name: row_major(tensors[name].shape) for name in names})


def row_axes(kernel: Kernel, tensors: Mapping[str, Tensor], crossing: Crossing) -> tuple[str, ...]:
    """The axes that, with the rows as the last, are one in all tensors: rows are counted on where
    one of them ends."""
    places = [
        (let.expr.tensor, let.expr.index) for let in kernel.body if isinstance(let.expr, Read)
    ]
    places += [(output.tensor, output.index) for output in kernel.outputs]
    addresses = [linear(index, row_major(tensors[name].shape)) for name, index in places]
    found, size = [crossing.rows], kernel.sizes[crossing.rows]
    for name in [a.name for a in reversed(kernel.axes) if a.name not in crossing and a.size > 1]:
        if all(coefficient(e, name) == size * coefficient(e, crossing.rows) for e in addresses):
            found.insert(0, name)
            size *= kernel.sizes[name]
    return tuple(found)


def block_for(kernel: Kernel, tensors: Mapping[str, Tensor]) -> int:
    """The block that a kernel is best cut into; 1 for none."""
    found = crossing_in(kernel, tensors)
    if found is None or min(kernel.sizes[found.columns], kernel.sizes[found.rows]) < BLOCK // 4:
        return 1
    return BLOCK if math.prod(kernel.sizes.values()) >= BLOCK * BLOCK else 1
