"""Column sums: kernels that can read a matrix in memory order.

    y[n] = g(sum over k of f(k, n)),  neighbours along n being neighbours in memory

Register tiles walk down a few columns at a time and jump from row to row, which no memory foresees.
Where the totals of a whole row fit into a cache of the thread, rows are read one after the other
and every element is added to the total of its column: the matrix is one stream. A product of a few
rows with a matrix is the same thing, with as many totals for each column.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from weft.foundation.index_expr import Expr, FloorDiv, axes_of, coefficient, linear
from weft.region.ir import Fold, Kernel, Let, Read, Reduce, Tensor, operands, row_major

FEW_ROWS: Final = 8
"""Rows of a contraction for which reading its matrix takes longer than multiplying."""
TOTAL_BYTES: Final = 128 * 1024
"""Totals, at most, of one piece: with what a strip of rows adds to them, they stay well inside a
second-level cache."""
NEAR_BYTES: Final = 16 * 1024
"""The same where a column has many totals, which are read and written as often as memory is read:
with their strip's they stay in the first cache."""
_WHOLE: Final = 64
"""Columns of which such pieces are made, but for the last: whole vectors, and whole lines."""
_PIECES: Final = 64
"""Pieces that sums of few rows are cut into, where there are columns enough: what they add up is
near, and need not be read in long runs."""
_LEAST_COLUMNS: Final = 256
"""Of such a piece."""
_FEW_ROWS: Final = 32
"""Rows of a sum that is short, as one of parts is."""
LINE_BYTES: Final = 128
"""Of a line of memory of a GPU."""
LONG_OF_STRIPS: Final = 512
"""Strips of a row from which on it is summed up beside those that share its lines."""


def reduced_once(kernel: Kernel) -> tuple[str, ...]:
    """The axes of a kernel's reductions, where it has one level of them, all over the same axes,
    and no result lives over these; nothing elsewhere."""
    sums = [let for let in kernel.body if isinstance(let.expr, Reduce)]
    every = {let.expr.axes for let in sums if isinstance(let.expr, Reduce)}
    if len(every) != 1 or any(isinstance(let.expr, Fold) for let in kernel.body):
        return ()
    (reduced,) = every
    if any(set(reduced) & set(kernel.let(output.value).axes) for output in kernel.outputs):
        return ()
    return () if any(_needs_another(let, kernel) for let in sums) else reduced


def _needs_another(let: Let, kernel: Kernel) -> bool:
    """Whether a reduction depends on a reduction."""
    lets = {found.name: found for found in kernel.body}
    stack = list(operands(let))
    while stack:
        found = lets[stack.pop()]
        if isinstance(found.expr, Reduce):
            return True
        stack += operands(found)
    return False


def summed_columns(kernel: Kernel, strides: Mapping[str, Sequence[int]]) -> str | None:
    """The axis of the columns, where a kernel does nothing but sum over them; None elsewhere."""
    reduced = set(reduced_once(kernel))
    sums = [let for let in kernel.body if isinstance(let.expr, Reduce)]
    if not reduced or not all(map(_regroups, sums)) or rows_together(kernel) > FEW_ROWS:
        return None
    roles = kernel.roles
    addresses = [
        (let, linear(let.expr.index, strides[let.expr.tensor]))
        for let in kernel.body
        if isinstance(let.expr, Read) and reduced & set(let.axes) and set(let.axes) - reduced
    ]
    kept = [axis.name for axis in kernel.axes if axis.name not in reduced]
    for name in reversed(kept if roles is None else roles.n):
        steps = [coefficient(address, name) for let, address in addresses if name in let.axes]
        if steps and all(step == 1 for step in steps):
            # Columns in panels are no rows that could be read whole.
            apart = roles is not None and any(_is_divided(a, name) for _, a in addresses)
            return None if apart else name
    return None


def _is_divided(address: Expr, name: str) -> bool:
    """Whether an address has an axis in a floor division."""
    divided = (term.value for term, _ in address.terms if isinstance(term, FloorDiv))
    return any(name in axes_of(value) for value in divided)


def _regroups(let: Let) -> bool:
    """Whether it is a sum that may be added up in another order."""
    return (
        isinstance(let.expr, Reduce)
        and let.expr.fn == "sum"
        and not (let.dtype.is_float and let.dtype.bits < 32)
    )


def rows_together(kernel: Kernel) -> int:
    """Results of one column that a piece computes: the rows of a contraction."""
    return math.prod(kernel.sizes[name] for name in kernel.roles.m) if kernel.roles else 1


def columns_of_piece(kernel: Kernel, columns: str) -> int:
    """How many columns one piece sums up: all of them, or as many as have room for their totals;
    fewer where there are few rows, as parts of a sum are."""
    sums = [let for let in kernel.body if isinstance(let.expr, Reduce)]
    each = rows_together(kernel) * sum(let.dtype.storage_bytes for let in sums)
    size = max(1, kernel.sizes[columns])
    if rows_together(kernel) > FEW_ROWS // 2:
        return min(size, max(_WHOLE, NEAR_BYTES // each // _WHOLE * _WHOLE))
    most = max(1, TOTAL_BYTES // each)
    if (
        kernel.roles is None
        and math.prod(kernel.sizes[a] for a in reduced_once(kernel)) <= _FEW_ROWS
    ):
        gone = {*reduced_once(kernel), columns}
        others = math.prod(axis.size for axis in kernel.axes if axis.name not in gone)
        most = min(most, max(_LEAST_COLUMNS, others * size // _PIECES))
    return -(-size // -(-size // most))


def pieces_of_columns(kernel: Kernel, columns: str) -> int:
    """How many pieces the kernel has when each sums up so many columns."""
    gone = {*reduced_once(kernel), columns, *(kernel.roles.m if kernel.roles else ())}
    others = math.prod(axis.size for axis in kernel.axes if axis.name not in gone)
    return others * -(-kernel.sizes[columns] // columns_of_piece(kernel, columns))


def matrix_bytes(kernel: Kernel, columns: str) -> int:
    """What is read of everything that lives over rows and columns."""
    reduced = set(reduced_once(kernel))
    return sum(
        math.prod(kernel.sizes[name] for name in let.axes) * let.dtype.storage_bytes
        for let in kernel.body
        if isinstance(let.expr, Read) and columns in let.axes and reduced & set(let.axes)
    )


def side_by_side(
    kernel: Kernel, reduced: Collection[str], strides: Mapping[str, Sequence[int]]
) -> int:
    """How many rows lie side by side in memory, element by element, in everything that is read
    along them."""
    addresses = [
        linear(let.expr.index, strides[let.expr.tensor])
        for let in kernel.body
        if isinstance(let.expr, Read) and set(reduced) & set(let.axes)
    ]
    count = 1
    for axis in reversed(kernel.axes):
        if axis.name in reduced or axis.size == 1:
            continue
        steps = {coefficient(address, axis.name) for address in addresses} - {0}
        if steps != {count}:
            break
        count *= axis.size
    return count


def strips_side_by_side(
    kernel: Kernel, reduced: Collection[str], strides: Mapping[str, Sequence[int]]
) -> tuple[tuple[str, ...], int]:
    """The reduced axes along which rows are strips of neighbours, with strips of other rows beside
    them, in everything that is read along rows; and how many elements lie side by side so. No axes
    where rows lie in no such strips, or in one piece."""
    addresses = [
        linear(let.expr.index, strides[let.expr.tensor])
        for let in kernel.body
        if isinstance(let.expr, Read) and set(reduced) & set(let.axes)
    ]
    left = {axis.name: axis.size for axis in kernel.axes if axis.size > 1}
    strip: list[str] = []
    count, rows = 1, 1
    while True:
        next_to = (
            name
            for name in left
            if {coefficient(address, name) for address in addresses} - {0} == {count}
        )
        found = next(next_to, None)
        if found is None or (found in reduced and rows > 1):
            break
        size = left.pop(found)
        if found in reduced:
            strip.insert(0, found)
        else:
            rows *= size
        count *= size
    apart = rows > 1 and any(name in left for name in reduced)
    return (tuple(strip) if apart else (), count)


def short_strips(
    kernel: Kernel, reduced: Collection[str], tensors: Mapping[str, Tensor]
) -> tuple[str, ...]:
    """The axes of strips that are no whole lines of memory, of long rows that fill lines together:
    the groups of a norm over images whose channels lie last."""
    strides = {name: row_major(tensors[name].shape) for name in kernel.inputs}
    strip, beside = strips_side_by_side(kernel, reduced, strides)
    reads = [let for let in kernel.body if isinstance(let.expr, Read) and {*reduced} & {*let.axes}]
    width = max((let.dtype.storage_bytes for let in reads), default=1)
    own = math.prod(kernel.sizes[name] for name in strip)
    count = math.prod(kernel.sizes[name] for name in reduced) // max(1, own)
    long = count >= LONG_OF_STRIPS and beside * width % LINE_BYTES == 0
    return strip if strip and long and own * width % LINE_BYTES else ()
