"""Rules of ops that read and write at indices. What is out of range stays a violation: indices are
never moved into a range that belongs to another value of the batch."""

from __future__ import annotations

from collections.abc import Sequence

from weft.foundation.dtypes import SI64
from weft.ptir.batching.rules import Batching, batches
from weft.ptir.batching.shapes import moved_axis
from weft.ptir.op_rules import op_as
from weft.ptir.ops.indexing import (
    DynamicSlice,
    DynamicUpdateSlice,
    Gather,
    ScatterAdd,
    ScatterReduce,
    Take,
)
from weft.ptir.ops.reduction import SegmentKind, SegmentReduce
from weft.ptir.term import Term, known_size
from weft.ptir.types import Dim, multiply_dims


@batches(Gather, ScatterReduce)
def along_axis(b: Batching) -> Term:
    return b.emit(moved_axis(b), *b.all_spread)


@batches(Take)
def take(b: Batching) -> Term:
    x, indices = b.operands
    if not b.batched[0]:
        return b.emit(b.op, x, indices)
    if not b.batched[1]:
        return x.move_axis(0, 1).take(indices).move_axis(indices.rank, 0)
    # Each value has its own rows and its own indices: a gather along the rows.
    rows, own = b.shape(0)[1:], b.shape(1)
    count = multiply_dims(*own)
    wanted = indices.reshape([b.size, count, *(1 for _ in rows)])
    found = x.gather(wanted.broadcast_to([b.size, count, *rows]), axis=1)
    return found.reshape(b.result.shape)


@batches(ScatterAdd)
def scatter_add(b: Batching) -> Term:
    """The number of the value in the batch becomes a further component of each index."""
    op = op_as(b, ScatterAdd)
    x, indices, updates = b.all_spread
    own = b.shape(1)
    along = len(own) if op.index_vector_dim is None else op.index_vector_dim
    if along == len(own):
        indices = indices.reshape([*indices.shape, 1])
    dims = [*indices.shape]
    dims[along + 1] = 1
    number = indices.counting(dims, 0, indices.dtype)
    wider = ScatterAdd(
        tuple(d + 1 for d in op.update_window_dims),
        (0, *(d + 1 for d in op.inserted_window_dims)),
        (0, *(d + 1 for d in op.scatter_dims_to_operand_dims)),
        along + 1,
    )
    return b.emit(wider, x, number.concat(indices, axis=along + 1), updates)


@batches(DynamicSlice)
def dynamic_slice(b: Batching) -> Term:
    op = op_as(b, DynamicSlice)
    x, start = b.spread(0), b.operands[1]
    if not b.batched[1]:
        sizes = [known_size(b.size), *op.sizes]
        return x.dynamic_slice(_with_batch(start), sizes=sizes)
    for axis, size in enumerate(op.sizes):
        if x.shape[axis + 1] != size:
            positions = x.counting((b.size, size), 1) + _window_begin(start, axis, x, size)
            x = _gather_elements(x, positions, axis + 1)
    return x


@batches(DynamicUpdateSlice)
def dynamic_update_slice(b: Batching) -> Term:
    op = op_as(b, DynamicUpdateSlice)
    x, update, start = b.spread(0), b.spread(1), b.operands[2]
    if not b.batched[2]:
        sizes = [known_size(b.size), *op.sizes]
        return x.dynamic_update_slice(update, _with_batch(start), sizes=sizes)
    inside: Term | None = None
    for axis, size in enumerate(op.sizes):
        extent = x.shape[axis + 1]
        if extent == size:
            continue
        begin = _window_begin(start, axis, x, size, extent)
        offset = x.counting((b.size, extent), 1) - begin
        last = offset.like(size - 1)
        # Each axis in turn: every position of x asks for the element of the update that would lie
        # there. Those outside the window ask for its first or last one, which the mask drops.
        update = _gather_elements(update, offset.maximum(offset.like(0)).minimum(last), axis + 1)
        within = offset.compare(0, "greater_equal").minimum(offset.compare(last, "less_equal"))
        mask = _lay_along(within, axis + 1, x.shape)
        inside = mask if inside is None else inside.minimum(mask)
    return update if inside is None else update.where(inside, x)


def _with_batch(start: Term) -> Term:
    """A start that leaves the batch axis where it is."""
    return start.full(0, [1]).concat(start, axis=0)


def _window_begin(start: Term, axis: int, x: Term, size: int, columns: Dim | None = None) -> Term:
    """Where the window of each value begins along an axis, moved into range as the op does, and
    repeated over `columns`."""
    batch = start.shape[0]
    wanted = start.part(1, axis, 1).cast(SI64)
    last = (x.extent(axis + 1, SI64) - size).broadcast_to(wanted.shape)
    inside = wanted.maximum(wanted.like(0)).minimum(last)
    return inside.broadcast_to([batch, size if columns is None else columns])


def _gather_elements(x: Term, positions: Term, axis: int) -> Term:
    """The elements of each value at its own positions along an axis."""
    dims = [*x.shape]
    dims[axis] = positions.shape[1]
    return x.gather(_lay_along(positions, axis, dims), axis=axis)


def _lay_along(columns: Term, axis: int, dims: Sequence[Dim]) -> Term:
    """[batch, n] laid along the first axis and another one."""
    shape = [columns.shape[0], *(1 for _ in dims[1:])]
    shape[axis] = columns.shape[1]
    return columns.reshape(shape).broadcast_to(dims)


@batches(SegmentReduce)
def segment_reduce(b: Batching) -> Term:
    op = op_as(b, SegmentReduce)
    data, ids = b.operands
    if not b.batched[1]:
        return b.tape.append(op, [data.move_axis(0, 1), ids]).move_axis(1, 0)
    if op.accum_dtype is not None:
        raise b.refuse("the segments differ within the batch, and accum_dtype is given")
    data = b.spread(0)
    empty = 0 if op.kind is SegmentKind.SUM else data.dtype.lowest
    start = data.full(empty, b.result.shape)
    places = _lay_along(ids, 1, data.shape)
    kind = "add" if op.kind is SegmentKind.SUM else "max"
    return start.scatter_reduce(places, data, axis=1, reduce=kind)
