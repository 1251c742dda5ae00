"""Plans for row reductions with column sums on a GPU: a block takes rows one after the other and
adds up their columns.

A part of the rows is a block's. Its threads keep a sum for each of their columns in registers, all
the way, and one row beside them, or several. As many rows are taken side by side as the registers
of a unit hold, so that others are on their way while some wait for one another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from weft.plan.ir import Header, RowPlan
from weft.plan.rows import (
    chunks_of,
    kept_registers,
    ring_room,
    row_length,
    row_streams,
    row_vector_axis,
    shared_reads,
    whole_part,
)
from weft.region.form import Row, Rows
from weft.region.ir import Kernel, Let, Read, Reduce, Tensor, form_of
from weft.target import roofline
from weft.target.target import Target

_BASE: Final = 36
"""Registers of a thread for addresses and what is being computed, when it is told to make do."""
_WARP: Final = 32
_MANY_ELEMENTS: Final = 16
"""Of a row, from which on each costs a thread more than it saves."""
_MORE: Final = 0.01
"""What each of them costs, in shares of reading a row."""
_MERGED_BYTES: Final = 96 << 10
"""Shared memory in which the rows of a block leave their sums for the first of them."""
MEETINGS: Final = 15
"""Rows of several warps that meet by themselves: a block has so many barriers beside its own."""
_VECTOR_BYTES: Final = 16
_MOST_ELEMENTS: Final = 8
"""Of a vector."""
_AHEAD: Final = 2
"""Rows in a ring: 16384 rows of 4096 take 108 us with two and 111 with four (H200)."""
_PARTITIONS: Final = 4
"""Of a unit."""
_PARTIAL_BYTES: Final = 8192
"""Shared memory for partial results and barriers beside it."""
_MEETING: Final = 0.06
"""What each doubling of the warps of a row costs, in shares of reading it."""


def column_sums(kernel: Kernel) -> list[Let]:
    """The sums of columns of a kernel that walks."""
    walked = form_of(kernel).rows.walked
    sums = [let for let in kernel.body if isinstance(let.expr, Reduce)]
    return [let for let in sums if isinstance(let.expr, Reduce) and let.expr.axes == (walked,)]


def as_rows(kernel: Kernel) -> Kernel:
    """A kernel that walks, to those who know rows alone."""
    rows = form_of(kernel).rows
    reduced = tuple(name for name in rows.reduced if name != rows.walked)
    return replace(kernel, form=Row(Rows(reduced, regular=True)))


def _rows_alone(kernel: Kernel) -> Kernel:
    """The same without what it stores of columns."""
    sums = {let.name for let in column_sums(kernel)}
    own = tuple(output for output in kernel.outputs if output.value not in sums)
    return replace(as_rows(kernel), outputs=own)


def blocks_of_unit(kernel: Kernel, target: Target) -> int:
    """Blocks that a unit has at a time."""
    return -(-parts_of(kernel) // target.limits.units)


def parts_of(kernel: Kernel) -> int:
    rows = form_of(kernel).rows
    sizes = (size for name, size in kernel.sizes.items() if name not in rows.reduced)
    return math.prod(sizes)


def walked_registers(kernel: Kernel, plan: RowPlan) -> int:
    """Registers that a row and the sums of its columns take of each thread, at least."""
    rows = as_rows(kernel)
    elements = chunks_of(rows, plan) * plan.vector
    each = len(column_sums(kernel)) + plan.rows_per_thread * kept_registers(rows)
    return _BASE + elements * each


def holds_columns(kernel: Kernel, plan: RowPlan, target: Target) -> bool:
    """Whether registers hold, beside these, what all rows read alike."""
    rows = as_rows(kernel)
    elements = chunks_of(rows, plan) * plan.vector
    shared = len(shared_reads(rows)) * elements
    given = _registers_left(plan, resident_walks(kernel, plan, target), target)
    return walked_registers(kernel, plan) + shared <= given


def merged_bytes(kernel: Kernel, plan: RowPlan) -> int:
    """Shared memory for the sums of all rows of a block but the first."""
    width = max(let.dtype.storage_bytes for let in column_sums(kernel))
    elements = chunks_of(as_rows(kernel), plan) * plan.vector * plan.threads
    return (plan.rows_per_block - 1) * len(column_sums(kernel)) * elements * width


def walked_plan(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, header: Header
) -> RowPlan | None:
    """How many threads share a row, and how many rows a block has at a time; None where a kernel
    does not walk, or its parts leave units without."""
    if form_of(kernel).rows.walked is None or 2 * parts_of(kernel) < target.limits.units:
        return None
    rows = _rows_alone(kernel)
    axis = row_vector_axis(rows)
    assert axis is not None
    vector = whole_part(kernel.sizes[axis], _vector(rows, tensors, axis))
    every = [
        RowPlan(header, vector, 1, 1 << n, accumulators=1, walks=True)
        for n in range(_WARP.bit_length() - 1, 11)
    ]
    suiting = [plan for plan in every if _rows_side_by_side(kernel, plan, target)]
    best = min(suiting or every[-1:], key=lambda plan: _cost(kernel, plan))
    side = _rows_side_by_side(kernel, best, target)
    if side <= 1:
        return replace(best, ring=_ring_of(kernel, best, target))
    twice = replace(best, rows_per_thread=2)
    fewer = _rows_side_by_side(kernel, twice, target)
    if best.threads > _WARP and fewer > 1:
        return replace(twice, rows_per_block=fewer)
    return replace(best, rows_per_block=side)


def _vector(rows: Kernel, tensors: Mapping[str, Tensor], axis: str) -> int:
    """Elements of one access to rows; what all of them share may take several."""
    names = {let.expr.tensor for let in row_streams(rows) if isinstance(let.expr, Read)}
    names |= {o.tensor for o in rows.outputs if axis in rows.let(o.value).axes}
    widest = max(tensors[name].dtype.storage_bytes for name in names)
    return min(_MOST_ELEMENTS, max(1, _VECTOR_BYTES // widest))


def _ring_of(kernel: Kernel, plan: RowPlan, target: Target) -> int:
    """Pieces of the rows that wait for a block which has one row at a time; 0 where there is no
    copy engine, rows are not made of whole pieces, or shared memory does not hold two."""
    rows, limits = as_rows(kernel), target.limits
    pieces = chunks_of(rows, plan)
    whole = pieces * plan.threads * plan.vector == row_length(rows)
    if not target.has("tma") or not whole:
        return 0
    size = pieces * plan.threads * _VECTOR_BYTES * len(row_streams(rows))
    room = min(ring_room(target), limits.shared_bytes_per_unit // blocks_of_unit(kernel, target))
    ahead = min(_AHEAD, (room - _PARTIAL_BYTES) // size)
    return ahead * pieces if ahead > 1 else 0


def _rows_side_by_side(kernel: Kernel, plan: RowPlan, target: Target) -> int:
    """Rows of a block whose registers a unit has; none where it has not even those of one."""
    blocks, walked = blocks_of_unit(kernel, target), form_of(kernel).rows.walked
    assert walked is not None
    length = kernel.sizes[walked] // plan.rows_per_thread
    most = min(target.limits.threads_per_block // plan.threads, MEETINGS, length)
    for rows in range(most, 0, -1):
        found = replace(plan, rows_per_block=rows)
        little = merged_bytes(kernel, found) * blocks <= _MERGED_BYTES
        if little and walked_registers(kernel, found) <= _registers_left(found, blocks, target):
            return rows
    return 0


def _registers_left(plan: RowPlan, blocks: int, target: Target) -> int:
    """Registers that each thread has where a unit has so many blocks: every part of a unit has its
    own, and as many warps as another, or one less."""
    # A unit is four partitions, each with a quarter of the registers, and warps are dealt out to
    # them: the one with the most warps decides.
    warps = -(-blocks * plan.rows_per_block * plan.threads // _WARP)
    return roofline.registers_given(target.limits, -(-warps // _PARTITIONS) * _PARTITIONS * _WARP)


def resident_walks(kernel: Kernel, plan: RowPlan, target: Target) -> int:
    """Blocks that the compiler is told to leave registers for."""
    needed, blocks = walked_registers(kernel, plan), blocks_of_unit(kernel, target)
    while blocks > 1 and _registers_left(plan, blocks, target) < needed:
        blocks -= 1
    return blocks


def _cost(kernel: Kernel, plan: RowPlan) -> float:
    """What a row costs: lanes that have nothing of it, and warps that meet."""
    rows = as_rows(kernel)
    lanes = chunks_of(rows, plan) * plan.threads * plan.vector
    more = max(0, chunks_of(rows, plan) * plan.vector - _MANY_ELEMENTS)
    return lanes / row_length(rows) + _MEETING * math.log2(plan.threads // _WARP) + _MORE * more
