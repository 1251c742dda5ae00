"""Rules of ops on whole axes: movement, reductions, order, windows. Axes count one further."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import SI64
from weft.ptir.batching.rules import Batching, batches
from weft.ptir.op_rules import op_as
from weft.ptir.ops.movement import BroadcastTo, Concat, Pad, Reshape, Slice, Tile, Transpose
from weft.ptir.ops.ordering import Argsort, Searchsorted, Side, Sort, TopK
from weft.ptir.ops.reduction import (
    ArgMax,
    ArgMin,
    CumulativeMax,
    CumulativeMin,
    CumulativeProd,
    CumulativeSum,
    Reduce,
    ReduceAll,
    ReduceAny,
    ReduceProd,
)
from weft.ptir.ops.scheduling import Barrier
from weft.ptir.ops.window import ExtractPatches, ReduceWindow
from weft.ptir.term import Term, unknown_size
from weft.ptir.types import Symbol, multiply_dims


def changed(op: Any, **attrs: Any) -> Any:
    """The op with other attributes."""
    return replace(op, **attrs)


@batches(Reshape)
def reshape(b: Batching) -> Term:
    return b.operands[0].reshape(b.result.shape)


@batches(Transpose)
def transpose(b: Batching) -> Term:
    perm = op_as(b, Transpose).perm
    return b.operands[0].transpose([0, *(axis + 1 for axis in perm)])


@batches(BroadcastTo)
def broadcast_to(b: Batching) -> Term:
    """Axes that a broadcast adds in front come between the batch axis and the others."""
    wanted = b.result.shape
    own = b.shape(0)
    ones = [1] * (len(wanted) - 1 - len(own))
    return b.operands[0].reshape([b.size, *ones, *own]).broadcast_to(wanted)


@batches(Slice)
def slice_(b: Batching) -> Term:
    op = op_as(b, Slice)
    if isinstance(b.size, Symbol):
        raise unknown_size(b.size)
    return b.operands[0].slice([0, *op.starts], [b.size, *op.sizes])


@batches(Concat)
def concat(b: Batching) -> Term:
    op = op_as(b, Concat)
    axis = normalise_axis(op.axis, len(b.shape(0)))
    return b.emit(Concat(axis + 1), *b.all_spread)


@batches(Pad)
def pad(b: Batching) -> Term:
    op = op_as(b, Pad)
    wider = Pad((0, *op.low), (0, *op.high), (0, *op.interior), op.pad_value)
    return b.emit(wider, b.operands[0])


@batches(Tile)
def tile(b: Batching) -> Term:
    return b.emit(Tile((1, *op_as(b, Tile).repeats)), b.operands[0])


@batches(Reduce, ReduceProd, ReduceAny, ReduceAll)
def reduce(b: Batching) -> Term:
    axes = getattr(b.op, "axes", ())
    return b.emit(changed(b.op, axes=tuple(axis + 1 for axis in axes)), b.operands[0])


@batches(ArgMax, ArgMin, CumulativeSum, CumulativeProd, CumulativeMax, CumulativeMin, Sort, Argsort)
def along_axis(b: Batching) -> Term:
    return b.emit(moved_axis(b), *b.all_spread)


def moved_axis(b: Batching) -> Any:
    """The op along the axis that was meant."""
    axis = normalise_axis(getattr(b.op, "axis", 0), len(b.shape(0)))
    return changed(b.op, axis=axis + 1)


@batches(TopK)
def top_k(b: Batching) -> Term:
    return b.tape.append(moved_axis(b), b.operands)


@batches(Searchsorted)
def searchsorted(b: Batching) -> Term:
    """Where each value of the batch has a table of its own, the elements before are counted; NaN
    comes after every number."""
    if not b.batched[0]:
        return b.emit(b.op, *b.operands)
    op = op_as(b, Searchsorted)
    table, values = b.all_spread
    dims = (*values.shape, table.shape[1])
    ones = [1] * (values.rank - 1)
    element = table.reshape([b.size, *ones, table.shape[1]]).broadcast_to(dims)
    value = values.reshape([*values.shape, 1]).broadcast_to(dims)
    left = op.side is Side.LEFT
    before = element.compare(value, "less" if left else "less_equal")
    if values.dtype.is_float:
        # Comparisons with NaN are false, so elements before a NaN are not counted yet: all numbers
        # are (`left`), or all elements.
        beyond = value.compare(value, "not_equal")
        if left:
            beyond = beyond.minimum(element.compare(element, "equal"))
        before = before.maximum(beyond)
    return before.reduce_sum(
        axes=(values.rank,), keepdims=False, accum_dtype=SI64, out_dtype=op.output_dtype
    )


@batches(ExtractPatches)
def extract_patches(b: Batching) -> Term:
    """The batch axis joins the one that patches are taken for already."""
    (x,) = b.operands
    joined = multiply_dims(b.size, x.shape[1])
    flat = x.reshape([joined, *x.shape[2:]])
    found = b.tape.append(b.op, [flat])
    return found.reshape(b.result.shape)


@batches(ReduceWindow)
def reduce_window(b: Batching) -> Term:
    op = op_as(b, ReduceWindow)
    wider = changed(
        op,
        window_dims=(1, *op.window_dims),
        strides=(1, *op.strides),
        padding=((0, 0), *op.padding),
        base_dilation=(1, *op.base_dilation),
        window_dilation=(1, *op.window_dilation),
    )
    return b.emit(wider, b.operands[0])


@batches(Barrier)
def barrier(b: Batching) -> Term:
    return b.emit(b.op, b.spread(0), b.operands[1])
