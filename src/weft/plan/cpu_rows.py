"""Row reductions on a CPU: which values of a row are cached between passes, and how a row is split.

A kernel with reductions goes over a row once for every reduction that waits for another, and once
more for its results. A value that two of these passes need and that is dear to compute is *kept*:
the first pass writes it into memory of the thread, the later ones read it there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from weft.foundation.dtypes import I1
from weft.foundation.index_expr import FloorDiv, axes_of, coefficient, linear
from weft.foundation.scalar import FUNCTIONS
from weft.plan.ir import Header, RowPlan
from weft.plan.rows import is_regular, reduced_axes, row_length
from weft.plan.staged import NARROW
from weft.region.forms.columns import (
    matrix_bytes,
    pieces_of_columns,
    rows_together,
)
from weft.region.ir import (
    Binary,
    Fold,
    Kernel,
    Let,
    Read,
    Reduce,
    Tensor,
    Unary,
    Words,
    form_of,
    operands,
    row_major,
    walk,
)
from weft.region.row_reads import passes_before, piece_sums

KEPT_BYTES: Final = 256 * 1024
"""Memory of a thread for the kept values of one tile: well inside a second-level cache."""
_CHEAP: Final = frozenset(str(fn) for fn, row in FUNCTIONS.items() if row.operations == 1)
"""Functions that are not worth a store and a load."""
_EVERY_SECOND: Final = 16
"""Lanes of vectors that are read with one element in two left out."""
_SIDE_BY_SIDE: Final = 16
"""Vectors of neighbouring columns that are reduced together: as many as registers hold."""
_PIECES: Final = 8
"""Pieces that are left for threads to share."""
_STREAM_BYTES: Final = 512 * 1024
"""A matrix that stays in no second-level cache."""
_WIDE: Final = 128
"""Columns that are more than a register tile holds."""
_LEAST_PIECES: Final = 2
_GATHERED: Final = 16
"""Elements that lie apart and are put into vectors at a time: loading them takes longer than an
addition, and the code for each of them is long."""
_TOGETHER: Final = (0, 1, 2)
"""How far apart neighbouring lanes lie that one or two instructions load."""
_IN_STREAM: Final = 4
"""Vectors of a row that are added to their totals at a time, at most: a line of memory."""


def kept_values(kernel: Kernel) -> tuple[str, ...]:
    """The values that are written down in one pass over a row and read in the later ones."""
    if not is_regular(kernel) or piece_sums(kernel):
        return ()
    reduced = set(reduced_axes(kernel))
    before = passes_before(kernel)
    last = max(before.values(), default=0) + 1
    needed: dict[str, set[int]] = {output.value: {last} for output in kernel.outputs}
    kept = []
    for let in reversed(kernel.body):
        passes = needed.get(let.name, set())
        if isinstance(let.expr, Reduce | Fold):
            passes = {before[let.name]}
        elif len(passes) > 1 and reduced & set(let.axes) and is_dear(let):
            kept.append(let.name)
            passes = {min(passes)}
        for name in operands(let):
            needed.setdefault(name, set()).update(passes)
    return tuple(reversed(kept))


def is_dear(let: Let) -> bool:
    """Whether computing a value again takes longer than keeping it."""
    match let.expr:
        case Unary(fn=fn) | Binary(fn=fn):
            return fn not in _CHEAP
        case Read(guards=guards, places=places):
            return bool(guards or places)
        case Words():
            return True
    return False


def kept_bytes(kernel: Kernel, columns: int) -> int:
    """What keeping takes of each thread, with so many columns side by side."""
    reduced = set(reduced_axes(kernel))
    total = 0
    for name in kept_values(kernel):
        let = kernel.let(name)
        elements = math.prod(kernel.sizes[a] for a in let.axes if a in reduced)
        total += elements * columns * let.dtype.storage_bytes
    return total


def contiguous_axis(
    kernel: Kernel, strides: Mapping[str, Sequence[int]], lanes: int = 1
) -> str | None:
    """The axis along which most accesses are to neighbouring elements, of those first that fill at
    least half of a vector; of equals the innermost, of those first that fill a whole one. Wide
    vectors read every second element as two vectors, which is not held against an axis."""
    addresses = [
        linear(let.expr.index, strides[let.expr.tensor])
        for let in kernel.body
        if isinstance(let.expr, Read)
    ]
    addresses += [linear(o.index, strides[o.tensor]) for o in kernel.outputs]
    fair = (0, 1, 2) if lanes >= _EVERY_SECOND else (0, 1)
    best, chosen = (False, 0, False), None
    for axis in kernel.axes:
        steps = [coefficient(address, axis.name) for address in addresses]
        score = sum(step == 1 for step in steps) - 2 * sum(step not in fair for step in steps)
        rank = (2 * axis.size >= lanes, score, axis.size >= lanes)
        if axis.size > 1 and score >= 0 and rank >= best and any(step == 1 for step in steps):
            best, chosen = rank, axis.name
    return chosen


def drawn_groups(kernel: Kernel, strides: Mapping[str, Sequence[int]]) -> tuple[str, str] | None:
    """The axis of groups and the axis of a group, where random numbers are drawn in groups that lie
    next to each other and have so few numbers that no vector fits into one. A vector has a number
    of each of several groups then, and what a group shares is computed once."""
    if not any(isinstance(let.expr, Words) for let in kernel.body):
        return None
    outputs = [linear(o.index, strides[o.tensor]) for o in kernel.outputs]
    for group in kernel.axes:
        if not 1 < group.size < NARROW or any(coefficient(x, group.name) != 1 for x in outputs):
            continue
        for groups in kernel.axes:
            if all(coefficient(x, groups.name) == group.size for x in outputs):
                return groups.name, group.name
    return None


def columns_together(kernel: Kernel, tensors: Mapping[str, Tensor], plan: RowPlan) -> int:
    """Columns of one tile, which are reduced side by side; one where vectors run along rows."""
    vector = vector_axis(kernel, tensors, plan.vector)
    if vector is None or vector in reduced_axes(kernel):
        return 1
    return plan.accumulators * plan.vector


def cpu_row_plan(
    kernel: Kernel, tensors: Mapping[str, Tensor], lanes: int, header: Header
) -> RowPlan:
    """Partial results enough to hide the latency of an addition, or columns enough to use all of
    what memory hands over at a time."""
    vector = vector_axis(kernel, tensors, lanes)
    if is_stream(kernel):
        together = min(_IN_STREAM, max(1, _SIDE_BY_SIDE // rows_together(kernel)))
        return RowPlan(header, lanes, accumulators=together, keep_row=False, across=True)
    if vector is None or vector in reduced_axes(kernel):
        most = max(1, _GATHERED // lanes) if gathers(kernel, tensors, vector) else 4
        partial = max(1, min(most, row_length(kernel) // max(lanes, 1)))
        plan = RowPlan(header, lanes, accumulators=partial)
        if partial == 4 and _widens_integers(kernel):
            # As many accumulators, side by side: what is read then fills more of a vector.
            plan = RowPlan(header, 4 * lanes, accumulators=1)
    else:
        together = _side_by_side(kernel, vector, lanes)
        if gathers(kernel, tensors, vector):
            together = min(together, max(1, _GATHERED // lanes))
        plan = RowPlan(header, lanes, accumulators=together)
    keep = 0 < kept_bytes(kernel, columns_together(kernel, tensors, plan)) <= KEPT_BYTES
    return replace(plan, keep_row=keep)


def gathers(kernel: Kernel, tensors: Mapping[str, Tensor], vector: str | None) -> bool:
    """Whether lanes along an axis read elements that lie apart, one by one."""
    for let in kernel.body:
        if vector is not None and isinstance(let.expr, Read) and vector in let.axes:
            address = linear(let.expr.index, row_major(tensors[let.expr.tensor].shape))
            cut = (t for t, _ in address.terms if isinstance(t, FloorDiv))
            if coefficient(address, vector) not in _TOGETHER or any(
                vector in axes_of(term.value) for term in cut
            ):
                return True
    return False


def _widens_integers(kernel: Kernel) -> bool:
    """Whether narrow integers are read and wide ones computed with, in any order exactly."""
    every = list(walk(kernel.body))
    if not all(let.dtype.is_integer or let.dtype is I1 for let in every):
        return False
    widest = max(let.dtype.bits for let in every)
    return widest >= 32 and any(
        isinstance(let.expr, Read) and let.dtype.bits < widest for let in every
    )


def is_stream(kernel: Kernel) -> bool:
    """Whether columns are summed up of a matrix so large and wide that whole rows of it should be
    read, with pieces enough for several threads."""
    columns = form_of(kernel).rows.columns
    if columns is None or pieces_of_columns(kernel, columns) < _LEAST_PIECES:
        return False
    large = matrix_bytes(kernel, columns) >= _STREAM_BYTES
    return large and kernel.sizes[columns] >= _WIDE


def _side_by_side(kernel: Kernel, vector: str, lanes: int) -> int:
    reductions = [let for let in kernel.body if isinstance(let.expr, Reduce | Fold)]
    dear = any(is_dear(let) and set(let.axes) & set(reduced_axes(kernel)) for let in kernel.body)
    most = 4 if dear else max(1, _SIDE_BY_SIDE // len(reductions))
    points = math.prod(axis.size for axis in kernel.axes if axis.name not in reduced_axes(kernel))
    together = 1
    while together < most and kernel.sizes[vector] >= 2 * together * lanes:
        if points < _PIECES * 2 * together * lanes:
            break
        together *= 2
    return together


def vector_axis(kernel: Kernel, tensors: Mapping[str, Tensor], lanes: int = 1) -> str | None:
    """The axis that so many lanes of a CPU run along."""
    names = [*kernel.inputs, *(output.tensor for output in kernel.outputs)]
    return contiguous_axis(kernel, {name: row_major(tensors[name].shape) for name in names}, lanes)
