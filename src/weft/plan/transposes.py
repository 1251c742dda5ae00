"""Block sizes for elementwise kernels with transposed operands (`region.forms.crossing`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

from weft.foundation.index_expr import Axis, Expr, coefficient, linear
from weft.foundation.records import dataclass
from weft.region.form import Crossing, Map
from weft.region.forms.crossing import is_across
from weft.region.ir import Kernel, Let, Read, Tensor, form_of, row_major

BLOCK: Final = 64
"""Edge of a block: its operands and results fit in a first-level cache, and their pages in a table
of recent ones."""
LINE: Final = 16
"""Bytes of the widest access of a GPU's thread."""
_LINES_ASIDE: Final = 8
"""Lines of results that follow one another at least in a block of runs: a line of the cache."""
_RUN_BYTES: Final = 20 << 10
"""Of an operand's runs in a block, at most: ten blocks of a unit are on their way at once."""
_BLOCKS_OF_UNIT: Final = 4
"""That there are at least, if blocks need not be too small for it."""
_SECTOR: Final = 32
"""Bytes that a GPU's memory hands out at a time."""


def crossing_of(kernel: Kernel) -> Crossing | None:
    """The two axes that a kernel goes along at once, if it does."""
    form = form_of(kernel)
    return form.crossing if isinstance(form, Map) else None


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


def reads_borders(kernel: Kernel) -> bool:
    """Whether reads have guards, so that code for whole blocks is not code for all of them."""
    return any(isinstance(let.expr, Read) and let.expr.guards for let in kernel.body)


def block_for(kernel: Kernel) -> int:
    """The block that a kernel is best cut into; 1 for none."""
    found = crossing_of(kernel)
    if found is None or min(kernel.sizes[found.columns], kernel.sizes[found.rows]) < BLOCK // 4:
        return 1
    return BLOCK if math.prod(kernel.sizes.values()) >= BLOCK * BLOCK else 1


# -- runs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Runs:
    """Operands that lie across the results and in which all rows follow one another at each column,
    and columns on one another: filters `[o, i, r, s]` whose copy is `[o, r, s, i]`. Some columns
    with all of their rows are a run of memory there.

    `rows` are the axes that act as one in all tensors, `columns` those that do in these operands,
    the axis along which results lie last; both outermost first."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    length: int
    """Of all rows."""
    count: int
    """Of all columns."""


def turned_reads(
    kernel: Kernel, tensors: Mapping[str, Tensor], crossing: Crossing
) -> Iterator[tuple[Let, Expr]]:
    """The reads that lie across the results, and where their elements lie."""
    for let in kernel.body:
        if isinstance(let.expr, Read) and not let.expr.places:
            address = linear(let.expr.index, row_major(tensors[let.expr.tensor].shape))
            if is_across(address, crossing):
                yield let, address


def runs_of(kernel: Kernel, tensors: Mapping[str, Tensor], crossing: Crossing) -> Runs | None:
    """The runs of the operands that lie across the results, if all of them have the same."""
    rows, sizes = row_axes(kernel, tensors, crossing), kernel.sizes
    length = count = math.prod(sizes[name] for name in rows)
    turned = list(turned_reads(kernel, tensors, crossing))
    addresses = [address for _, address in turned]
    if any(isinstance(let.expr, Read) and let.expr.guards for let, _ in turned):
        return None
    if any(not isinstance(term, Axis) for address in addresses for term, _ in address.terms):
        return None
    columns: list[str] = []
    left = [name for name in sizes if name not in rows and sizes[name] > 1]
    while True:
        found = [n for n in left if all(coefficient(e, n) == count for e in addresses)]
        if len(found) != 1 or not (columns or found == [crossing.columns]):
            break
        columns[:0] = found
        left.remove(found[0])
        count *= sizes[found[0]]
    return Runs(rows, tuple(columns), length, count // length) if columns else None


def run_block(kernel: Kernel, tensors: Mapping[str, Tensor], units: int) -> tuple[int, int] | None:
    """The columns that a block of a GPU best takes with all of their rows, and how many rows these
    are; None where blocks as long as they are wide are as good, or others."""
    crossing = crossing_of(kernel)
    runs = None if crossing is None else runs_of(kernel, tensors, crossing)
    points = math.prod(kernel.sizes.values())
    if crossing is None or runs is None or points < BLOCK * BLOCK:
        return None
    aside = kernel.sizes[crossing.columns]
    sizes = [let.dtype.storage_bytes for let, _ in turned_reads(kernel, tensors, crossing)]
    stored = min(tensors[output.tensor].dtype.storage_bytes for output in kernel.outputs)
    in_line = LINE // min(sizes)
    if aside % in_line or aside * stored < _SECTOR:
        return None
    if runs.length >= BLOCK and runs.length % in_line == 0:
        return None
    columns = _LINES_ASIDE * in_line
    while columns <= runs.length:
        columns *= 2
    while (
        2 * columns * runs.length * sum(sizes) <= _RUN_BYTES
        and columns < runs.count
        and points // runs.length >= 2 * columns * _BLOCKS_OF_UNIT * units
    ):
        columns *= 2
    fits = columns * runs.length * sum(sizes) <= _RUN_BYTES
    return (columns, runs.length) if fits else None
