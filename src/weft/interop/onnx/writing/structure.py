"""Movements, reductions, products and indexing in ONNX's operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import F32, I1, SI32, SI64, UI32, DType
from weft.foundation.errors import Unimplemented
from weft.interop.onnx.writing.elementwise import Rule, cast
from weft.interop.onnx.writing.page import Edge, Page
from weft.ptir.op import Op
from weft.ptir.ops.contraction import DotGeneral
from weft.ptir.ops.indexing import (
    DynamicSlice,
    DynamicUpdateSlice,
    Gather,
    ScatterAdd,
    ScatterReduce,
)
from weft.ptir.ops.movement import BroadcastTo, Concat, Iota, Pad, Slice, Tile, Transpose
from weft.ptir.ops.ordering import Argsort, Sort, TopK
from weft.ptir.ops.reduction import ArgMax, ArgMin, CumulativeSum, Reduce, SegmentReduce
from weft.ptir.types import Dim, TensorType

# -- movements -------------------------------------------------------------------------------------


def _reshape(page: Page, op: Op, x: list[Edge], out: TensorType) -> Edge:
    return page.reshape(x[0], out.shape)


def _transpose(page: Page, op: Transpose, x: list[Edge], out: TensorType) -> Edge:
    return page.transpose(x[0], op.perm)


def _broadcast(page: Page, op: BroadcastTo, x: list[Edge], out: TensorType) -> Edge:
    return page.expand(x[0], out.shape)


def part(page: Page, x: Edge, axis: int, start: Edge, stop: Edge, size: Dim) -> Edge:
    """A part of an axis; the ends are vectors of one."""
    shape = tuple(size if each == axis else dim for each, dim in enumerate(x.shape))
    given = x, start, stop, page.numbers([axis])
    return page.op("Slice", *given, like=x.type.with_shape(shape))


def _slice(page: Page, op: Slice, x: list[Edge], out: TensorType) -> Edge:
    starts = page.numbers([int(start) for start in op.starts])
    stops = page.op("Add", starts, page.sizes(out.shape), like=starts.type)
    if all(isinstance(size, int) for size in out.shape):
        pairs = zip(op.starts, out.shape, strict=True)
        stops = page.numbers([int(a) + int(n) for a, n in pairs if isinstance(n, int)])
    return page.op("Slice", x[0], starts, stops, page.numbers(range(x[0].rank)), like=out)


def _concat(page: Page, op: Concat, x: list[Edge], out: TensorType) -> Edge:
    return page.op("Concat", *x, like=out, axis=normalise_axis(op.axis, out.rank))


def _tile(page: Page, op: Tile, x: list[Edge], out: TensorType) -> Edge:
    return page.op("Tile", x[0], page.numbers(list(op.repeats)), like=out)


def _iota(page: Page, op: Iota, x: list[Edge], out: TensorType) -> Edge:
    size = out.shape[op.axis]
    none = TensorType(SI64, ())
    stop = page.op("Squeeze", page.sizes([size]), page.numbers([0]), like=none)
    counts = (page.full(0, SI64), stop, page.full(1, SI64))
    counted = page.cast(page.op("Range", *counts, like=TensorType(SI64, (size,))), out.dtype)
    thin: list[Dim] = [1] * out.rank
    thin[op.axis] = size
    return page.expand(page.reshape(counted, thin), out.shape)


def padded(
    page: Page, x: Edge, low: Sequence[int], high: Sequence[int], value: Edge, shape: Sequence[Dim]
) -> Edge:
    """An array with a value around it."""
    if not any(low) and not any(high):
        return x
    given = x, page.numbers([*low, *high]), value
    return page.op("Pad", *given, like=x.type.with_shape(tuple(shape)))


def _pad(page: Page, op: Pad, x: list[Edge], out: TensorType) -> Edge:
    value = page.full(op.pad_value.value, out.dtype)
    found = x[0]
    for axis, gap in enumerate(op.interior):
        found = spread(page, found, axis, gap, value) if gap else found
    return padded(page, found, op.low, op.high, value, out.shape)


def spread(page: Page, x: Edge, axis: int, gap: int, value: Edge) -> Edge:
    """So many copies of a value between each two elements along an axis."""
    size = x.shape[axis]
    if not isinstance(size, int):
        raise Unimplemented("pad", "ONNX has no padding between the elements of an open axis")
    if size < 2:
        return x
    low = [0] * (x.rank + 1)
    high = [gap if each == axis + 1 else 0 for each in range(x.rank + 1)]
    apart = page.reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    wider = (*x.shape[: axis + 1], gap + 1, *x.shape[axis + 1 :])
    joined = (*x.shape[:axis], size * (gap + 1), *x.shape[axis + 1 :])
    found = page.reshape(padded(page, apart, low, high, value, wider), joined)
    kept = size * (gap + 1) - gap
    return part(page, found, axis, page.numbers([0]), page.numbers([kept]), kept)


# -- reductions ------------------------------------------------------------------------------------


def reduced(
    page: Page, name: str, x: Edge, axes: Sequence[int], keepdims: bool, out: TensorType
) -> Edge:
    """A reduction in a dtype that ONNX takes, of the shape of `out`."""
    narrow = x.dtype.is_integer and x.dtype.bits < 32
    used = SI32 if x.dtype is I1 or narrow else x.dtype
    like = TensorType(used, out.shape)
    given = page.cast(x, used)
    if not axes:
        return given
    return page.op(name, given, page.numbers(list(axes)), like=like, keepdims=int(keepdims))


_REDUCED: Final = {
    "reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
}  # fmt: skip


def _reduce(page: Page, op: Reduce, x: list[Edge], out: TensorType) -> Edge:
    given = x[0]
    exact = op.mnemonic in ("reduce_max", "reduce_min")
    if not exact and op.accum_dtype is not None:
        given = cast(page, given, op.accum_dtype)
    axes = [axis % max(given.rank, 1) for axis in op.axes]
    if not exact and given.dtype.is_integer and given.dtype.bits < 32:
        raise Unimplemented(op.mnemonic, f"ONNX has no sum of {given.dtype} that wraps")
    found = reduced(page, _REDUCED[op.mnemonic], given, axes, op.keepdims, out)
    return cast(page, found, out.dtype)


def _any(page: Page, op: Reduce, x: list[Edge], out: TensorType) -> Edge:
    name = "ReduceMax" if op.mnemonic == "reduce_any" else "ReduceMin"
    axes = [axis % max(x[0].rank, 1) for axis in op.axes]
    return page.cast(reduced(page, name, x[0], axes, op.keepdims, out), I1)


def _arg(page: Page, op: ArgMax | ArgMin, x: list[Edge], out: TensorType) -> Edge:
    given = page.cast(x[0], SI32 if x[0].dtype is I1 else x[0].dtype)
    name = "ArgMax" if isinstance(op, ArgMax) else "ArgMin"
    axis = normalise_axis(op.axis, given.rank)
    like, keep = out.with_dtype(SI64), int(op.keepdims)
    return page.cast(page.op(name, given, like=like, axis=axis, keepdims=keep), out.dtype)


def _cumulative_sum(page: Page, op: CumulativeSum, x: list[Edge], out: TensorType) -> Edge:
    if out.dtype.is_integer and out.dtype.bits < 32:
        raise Unimplemented(op.mnemonic, f"ONNX has no sum of {out.dtype} that wraps")
    axis = page.full(normalise_axis(op.axis, out.rank), SI64)
    return page.op("CumSum", x[0], axis, like=out, reverse=int(op.reverse))


def _segments(page: Page, op: SegmentReduce, x: list[Edge], out: TensorType) -> Edge:
    data, ids = x
    total = str(op.kind) == "sum"
    if total:
        data = cast(page, data, _sum_dtype(op.accum_dtype, data.dtype))
    first = page.expand(page.full(0 if total else data.dtype.lowest, data.dtype), out.shape)
    places = page.cast(page.reshape(ids, (*ids.shape, 1)), SI64)
    reduction = "add" if total else "max"
    like = out.with_dtype(data.dtype)
    found = page.op("ScatterND", first, places, data, like=like, reduction=reduction)
    return cast(page, found, out.dtype)


def _sum_dtype(accum: DType | None, dtype: DType) -> DType:
    narrow = dtype.is_float and dtype.bits < 32
    return accum or (F32 if narrow else dtype)


# -- order -----------------------------------------------------------------------------------------


def top_k(page: Page, op: TopK, x: Edge, values: TensorType, indices: TensorType) -> list[Edge]:
    axis = normalise_axis(op.axis, x.rank)
    kinds = [values, indices.with_dtype(SI64)]
    given = [x, page.numbers([op.k])]
    largest = int(op.largest)
    found = page.nodes_for("TopK", given, kinds, axis=axis, largest=largest, sorted=1)
    return [found[0], page.cast(found[1], indices.dtype)]


def _sort(page: Page, op: Sort | Argsort, x: list[Edge], out: TensorType) -> Edge:
    axis = normalise_axis(op.axis, x[0].rank)
    kinds = [x[0].type, x[0].type.with_dtype(SI64)]
    given = [x[0], page.sizes([x[0].shape[axis]])]
    largest = int(op.descending)
    found = page.nodes_for("TopK", given, kinds, axis=axis, largest=largest, sorted=1)
    return found[0] if isinstance(op, Sort) else page.cast(found[1], out.dtype)


# -- products --------------------------------------------------------------------------------------


def _write_dot(page: Page, op: DotGeneral, x: list[Edge], out: TensorType) -> Edge:
    """A product of matrices: batch axes first, then those that stay, then those that go."""
    used = _product_dtype(op, x[0].dtype)
    lhs, rhs = (cast(page, each, used) for each in x)
    free = [
        [axis for axis in range(side.rank) if axis not in (*batch, *gone)]
        for side, batch, gone in (
            (lhs, op.batch_lhs, op.contract_lhs), (rhs, op.batch_rhs, op.contract_rhs),
        )
    ]  # fmt: skip
    left = page.transpose(lhs, [*op.batch_lhs, *free[0], *op.contract_lhs])
    right = page.transpose(rhs, [*op.batch_rhs, *op.contract_rhs, *free[1]])
    batch, gone = len(op.batch_lhs), len(op.contract_lhs)
    rows = left.shape[batch : left.rank - gone]
    columns = right.shape[batch + gone :]
    left = _join_groups(page, left, [batch, len(rows), gone])
    right = _join_groups(page, right, [batch, gone, len(columns)])
    shape = (*left.shape[:-1], right.shape[-1])
    found = page.op("MatMul", left, right, like=TensorType(used, shape))
    return cast(page, page.reshape(found, out.shape), out.dtype)


def _join_groups(page: Page, x: Edge, counts: list[int]) -> Edge:
    """The batch axes as they are, and each of the two groups after them as one axis."""
    shape = list(x.shape[: counts[0]])
    at = counts[0]
    for count in counts[1:]:
        group = x.shape[at : at + count]
        shape.append(group[0] if count == 1 else _known_size(group))
        at += count
    return page.reshape(x, shape)


def _known_size(group: Sequence[Dim]) -> int:
    if not all(isinstance(dim, int) for dim in group):
        raise Unimplemented("dot_general", "ONNX cannot join open axes in a product")
    return math.prod(int(dim) for dim in group if isinstance(dim, int))


def _product_dtype(op: DotGeneral, dtype: DType) -> DType:
    if op.accum_dtype is not None:
        return op.accum_dtype
    if dtype.is_integer and dtype.bits < 32:
        return SI32 if dtype.is_signed else UI32
    if dtype is I1:
        raise Unimplemented("dot_general", "ONNX has no product of truth values")
    wider = op.out_dtype is not None and op.out_dtype is not dtype and dtype.is_float
    return F32 if wider and dtype.bits < 32 else dtype


# -- indexing --------------------------------------------------------------------------------------


def _take(page: Page, op: Op, x: list[Edge], out: TensorType) -> Edge:
    return page.op("Gather", *x, like=out, axis=0)


def _gather(page: Page, op: Gather, x: list[Edge], out: TensorType) -> Edge:
    return page.op("GatherElements", *x, like=out, axis=normalise_axis(op.axis, out.rank))


def _scatter_reduce(page: Page, op: ScatterReduce, x: list[Edge], out: TensorType) -> Edge:
    kind = str(op.reduce)
    axis = normalise_axis(op.axis, out.rank)
    reduction = "none" if kind == "replace" else kind
    if out.dtype is I1 and kind != "replace":
        raise Unimplemented("scatter_reduce", "ONNX does not scatter truth values so")
    return page.op("ScatterElements", *x, like=out, axis=axis, reduction=reduction)


def _scatter_add(page: Page, op: ScatterAdd, x: list[Edge], out: TensorType) -> Edge:
    """Rows at positions along the first axes: what gradients of lookups are."""
    target, indices, updates = x
    depth = len(op.scatter_dims_to_operand_dims)
    vector = op.index_vector_dim
    if vector is None or vector == indices.rank:
        indices = page.reshape(indices, (*indices.shape, 1))
    elif vector != indices.rank - 1:
        raise Unimplemented("scatter_add", "ONNX needs positions along the last axis")
    lead = indices.rank - 1
    whole = list(range(lead, lead + out.rank - depth))
    rows = list(op.scatter_dims_to_operand_dims) == list(range(depth))
    rows = rows and list(op.inserted_window_dims) == list(range(depth))
    rows = (
        rows and list(op.update_window_dims) == whole and updates.shape[lead:] == out.shape[depth:]
    )
    if not rows:
        raise Unimplemented("scatter_add", "ONNX scatters whole rows along the first axes only")
    places = page.cast(indices, SI64)
    return page.op("ScatterND", target, places, updates, like=out, reduction="add")


def _clamp_starts(page: Page, x: Edge, start: Edge, sizes: Sequence[Dim]) -> Edge:
    """Where a window begins: clamped so that it lies inside."""
    vector = TensorType(SI64, (x.rank,))
    room = page.op("Sub", page.sizes(x.shape), page.sizes(sizes), like=vector)
    positive = page.op("Max", page.cast(start, SI64), page.numbers([0] * x.rank), like=vector)
    return page.op("Min", positive, room, like=vector)


def _dynamic_slice(page: Page, op: DynamicSlice, x: list[Edge], out: TensorType) -> Edge:
    starts = _clamp_starts(page, x[0], x[1], out.shape)
    stops = page.op("Add", starts, page.sizes(out.shape), like=starts.type)
    return page.op("Slice", x[0], starts, stops, page.numbers(range(out.rank)), like=out)


def _update_slice(page: Page, op: DynamicUpdateSlice, x: list[Edge], out: TensorType) -> Edge:
    """The update with what lies around it, axis by axis from the last one."""
    target, update, start = x
    starts = _clamp_starts(page, target, start, update.shape)
    one = TensorType(SI64, (1,))
    begins = [
        page.op("Slice", starts, page.numbers([k]), page.numbers([k + 1]), like=one)
        for k in range(out.rank)
    ]
    found = update
    for axis in reversed(range(out.rank)):
        if update.shape[axis] == target.shape[axis]:
            continue
        found = _place_inside(page, target, found, begins, update.shape, axis)
    return found


def _place_inside(
    page: Page, target: Edge, inner: Edge, begins: list[Edge], sizes: Sequence[Dim], axis: int
) -> Edge:
    """`inner` between what the target has before and after it along an axis."""
    one = TensorType(SI64, (1,))
    slab = target
    for each in range(axis):
        stop = page.op("Add", begins[each], page.sizes([sizes[each]]), like=one)
        slab = part(page, slab, each, begins[each], stop, sizes[each])
    after = page.op("Add", begins[axis], page.sizes([sizes[axis]]), like=one)
    unknown = slab.type  # what lies before and after has sizes that only the run knows
    axes = page.numbers([axis])
    before = page.op("Slice", slab, page.numbers([0]), begins[axis], axes, like=unknown)
    most = page.numbers([np.iinfo(np.int64).max])
    behind = page.op("Slice", slab, after, most, axes, like=unknown)
    return page.op("Concat", before, inner, behind, like=slab.type, axis=axis)


STRUCTURE: Final[dict[str, Rule]] = {
    "reshape": _reshape, "transpose": _transpose, "broadcast_to": _broadcast, "slice": _slice,
    "concat": _concat, "tile": _tile, "iota": _iota, "pad": _pad, "reduce_sum": _reduce,
    "reduce_max": _reduce, "reduce_min": _reduce, "reduce_prod": _reduce, "reduce_any": _any,
    "reduce_all": _any, "arg_max": _arg, "argmin": _arg, "cumulative_sum": _cumulative_sum,
    "segment_reduce": _segments, "segment_sum": _segments, "segment_max": _segments,
    "sort": _sort, "argsort": _sort, "dot_general": _write_dot, "take": _take, "gather": _gather,
    "scatter_reduce": _scatter_reduce, "scatter_add": _scatter_add,
    "dynamic_slice": _dynamic_slice, "dynamic_update_slice": _update_slice,
}  # fmt: skip
