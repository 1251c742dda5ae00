"""From PTIR to Tiny: gather, scatter, sorting and searching.

What reads where data says is a `Gather` behind a `Check`. What writes there, and what sorts, stays
whole as one of the records of `foundation.whole_ops`, on operands brought into the order that the
record wants.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from weft.foundation.axes import inverse, normalise_axis
from weft.foundation.dims import Shape, static, static_shape
from weft.foundation.dtypes import I1, SI64, UI32
from weft.foundation.scalar import Fn
from weft.foundation.whole_ops import Order, Scatter
from weft.ptir.ops import indexing, ordering
from weft.ptir.types import TensorType, TupleType
from weft.tiny import build
from weft.tiny.from_ptir_elementwise import is_nan
from weft.tiny.from_ptir_row import Rows
from weft.tiny.ir import (
    Binary,
    Const,
    DynamicShrink,
    DynamicUpdate,
    Gather,
    Iota,
    Opaque,
    Rule,
    Value,
    Where,
)
from weft.tiny.spelled_out import known_number

_GATHER: Final = "GatherIndexOutOfBounds"
_SCATTER: Final = "ScatterIndexOutOfBounds"


# -- windows at places that are computed ---------------------------------------------------------


def _scalar_starts(start: Value, rank: int) -> tuple[Value, ...]:
    return tuple(build.element(start, [k]) for k in range(rank))


def _dynamic_slice(op: indexing.DynamicSlice, args: Sequence[Value], output: TensorType) -> Value:
    x, start = args
    starts = _scalar_starts(start, output.rank)
    known = [int(s.value.real) for s in starts if isinstance(s, Const)]
    if len(known) == len(starts):
        bounds = zip(known, x.shape, op.sizes, strict=True)
        return build.shrink(x, [min(max(s, 0), static(d) - n) for s, d, n in bounds], op.sizes)
    return DynamicShrink(x, starts, op.sizes)


def _dynamic_update_slice(
    op: indexing.DynamicUpdateSlice, args: Sequence[Value], output: TensorType
) -> Value:
    x, update, start = args
    return DynamicUpdate(x, update, _scalar_starts(start, output.rank))


# -- reading -------------------------------------------------------------------------------------


def _gather_checked(x: Value, index: Value, axis: int, shape: Shape) -> Value:
    """`x` read at checked places, which are repeated to `shape`. An axis without elements has none
    to read: every index is a violation, and zeros stand for what is not there. Numbers that count
    along the axis are the places themselves."""
    size = static(x.shape[axis])
    if 0 in shape:
        return build.splat(0, x.dtype, shape)
    # Checked before they are repeated: a violation then names the place among the indices.
    checked = build.expand(build.check(index, Rule.INSIDE, _GATHER, size), shape)
    if size and isinstance(x, Iota) and x.axis == axis:
        return build.cast(checked, x.dtype)
    if size:
        return Gather(x, checked, axis)
    zeros = build.splat(0, x.dtype, shape)
    return Where(build.binary(Fn.LT, checked, 0), zeros, zeros)


def _take(op: indexing.Take, args: Sequence[Value], output: TensorType) -> Value:
    x, indices = args
    window = _known_rows(x, indices)
    if window is not None:
        return build.reshape(window, output.shape)
    rows = build.reshape(indices, (prod(static_shape(indices.shape)), *(1,) * (len(x.shape) - 1)))
    shape = (rows.shape[0], *x.shape[1:])
    return build.reshape(_gather_checked(x, rows, 0, shape), output.shape)


def _known_rows(x: Value, indices: Value) -> Value | None:
    """The rows of x that known indices name in equal steps, forwards or backwards, or again."""
    count, total = prod(static_shape(indices.shape)), static(x.shape[0])
    known = _equal_steps(indices)
    if count == 0 or known is None:
        return None
    first, step = known
    last = first + step * (count - 1)
    if not 0 <= min(first, last) <= max(first, last) < min(total, int(indices.dtype.highest) + 1):
        return None
    start, rest = min(first, last), x.shape[1:]
    if abs(step) > 1:
        rows = build.every(x, start, abs(step), count)
    else:
        size = count if step else 1
        window = build.shrink(x, (start, *(0 for _ in rest)), (size, *rest))
        rows = build.expand(window, (count, *rest))
    return build.flip(rows, (0,) if step < 0 else ())


def _equal_steps(indices: Value) -> tuple[int, int] | None:
    """The first of indices that are known to be equally far apart, and how far; 0 where there is
    one. What wraps around in between is right again where the first and the last index are."""
    if prod(static_shape(indices.shape)) == 1:
        first = build.element(indices, [0] * len(indices.shape))
        return (int(first.value.real), 0) if isinstance(first, Const) else None
    match indices:
        case Iota(shape=(_,)):
            return 0, 1
        case Binary(fn=Fn.ADD | Fn.SUB | Fn.MUL as fn, lhs=lhs, rhs=rhs):
            left, right = _equal_steps(lhs), _equal_steps(rhs)
            return None if left is None or right is None else _combine_steps(fn, left, right)
    number = known_number(indices)
    return (int(number.real), 0) if number is not None and len(indices.shape) == 1 else None


def _combine_steps(fn: Fn, left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int] | None:
    (a, b), (c, d) = left, right
    if fn is Fn.MUL:
        return None if b and d else (a * c, a * d + b * c)
    return (a + c, b + d) if fn is Fn.ADD else (a - c, b - d)


def _gather(op: indexing.Gather, args: Sequence[Value], output: TensorType) -> Value:
    x, indices = args
    return _gather_checked(x, indices, normalise_axis(op.axis, output.rank), indices.shape)


# -- writing -------------------------------------------------------------------------------------


def _scatter_reduce(
    op: indexing.ScatterReduce, args: Sequence[Value], output: TensorType
) -> Value | None:
    x, indices, updates = args
    along = normalise_axis(op.axis, output.rank)
    sizes, count = output.static_shape, static(indices.shape[along])
    if 0 in updates.shape:
        return x
    if 0 in sizes:
        return None
    outer, width = prod(sizes[:along]), prod(sizes[along + 1 :])
    index = build.check(indices, Rule.INSIDE, _SCATTER, sizes[along])
    whole = Scatter(str(op.reduce), outer, sizes[along], width, count, each=width > 1)
    return _scatter_updates(whole, x, index, updates)


def _scatter_updates(whole: Scatter, x: Value, index: Value, updates: Value) -> Value:
    return Opaque(whole, (x, index, updates), 0, x.dtype, x.shape, base=0)


def _scatter_add(
    op: indexing.ScatterAdd, args: Sequence[Value], output: TensorType
) -> Value | None:
    """Rows added to rows where windows fill the axes that no index names; elements else."""
    x, indices, updates = args
    if 0 in updates.shape:
        return x
    if 0 in x.shape:
        return None
    batch = [d for d in range(len(updates.shape)) if d not in op.update_window_dims]
    updates = build.permute(updates, [*batch, *op.update_window_dims])
    axes = op.window_axes(len(x.shape))
    extents = static_shape(updates.shape)[len(batch) :]
    count = prod(static_shape(updates.shape)[: len(batch)])
    window = dict(zip(axes, extents, strict=True))
    starts = _components(op, indices, x, window)
    scattered = op.scatter_dims_to_operand_dims
    whole_rows = all(window[axis] == static(x.shape[axis]) for axis in axes)
    if whole_rows and not set(axes) & set(scattered):
        order = [
            *scattered,
            *(k for k in range(len(x.shape)) if k not in (*scattered, *axes)),
            *axes,
        ]
        turned = build.permute(x, order)
        rows = [static(x.shape[k]) for k in order[: len(order) - len(axes)]]
        index = _flat_index(starts, rows[: len(starts)])
        rest = prod(rows[len(starts) :])
        whole = Scatter("add", 1, prod(rows), prod(extents), count)
        # A window is at position 0 of inserted axes that no index names: the first of `rest` rows.
        index = build.binary(Fn.MUL, index, rest) if rest != 1 else index
        return build.permute(_scatter_updates(whole, turned, index, updates), inverse(order))
    positions = _window_positions(starts, scattered, axes, (count, *extents), x)
    whole = Scatter("add", 1, prod(static_shape(x.shape)), 1, count * prod(extents))
    return _scatter_updates(whole, x, positions, updates)


def _components(
    op: indexing.ScatterAdd, indices: Value, x: Value, window: dict[int, int]
) -> list[Value]:
    """The checked positions along each indexed axis, each flat."""
    along = op.vector_axis(len(indices.shape))
    found = []
    for k, axis in enumerate(op.scatter_dims_to_operand_dims):
        part = indices
        if along < len(indices.shape):
            start, size = [0] * len(indices.shape), [*static_shape(indices.shape)]
            start[along], size[along] = k, 1
            part = build.shrink(indices, start, size)
        flat = build.reshape(part, (prod(static_shape(part.shape)),))
        # Where a window begins there must be room for all of it.
        limit = static(x.shape[axis]) - window.get(axis, 1) + 1
        found.append(build.cast(build.check(flat, Rule.INSIDE, _SCATTER, limit), SI64))
    return found


def _flat_index(parts: Sequence[Value], sizes: Sequence[int]) -> Value:
    """Positions along several axes as one number, the last axis running fastest."""
    total = parts[0]
    for part, size in zip(parts[1:], sizes[1:], strict=True):
        total = Binary(Fn.ADD, build.binary(Fn.MUL, total, size), part)
    return total


def _window_positions(
    starts: Sequence[Value],
    scattered: Sequence[int],
    axes: Sequence[int],
    shape: tuple[int, ...],
    x: Value,
) -> Value:
    """The flat position in `x` of every element of every window; `shape` is (windows, extents)."""
    sizes = static_shape(x.shape)
    stride = [prod(sizes[k + 1 :]) for k in range(len(sizes))]
    total = build.splat(0, SI64, shape)
    for start, axis in zip(starts, scattered, strict=True):
        column = build.reshape(start, (shape[0], *(1,) * len(axes)))
        moved = build.binary(Fn.MUL, build.expand(column, shape), stride[axis])
        total = Binary(Fn.ADD, total, moved)
    for k, axis in enumerate(axes):
        moved = build.binary(Fn.MUL, Iota(SI64, shape, k + 1), stride[axis])
        total = Binary(Fn.ADD, total, moved)
    return total


# -- sorting and searching -----------------------------------------------------------------------


def _first_in_order(x: Value, axis: int, count: int, descending: bool) -> tuple[Value, Value]:
    """The first elements along an axis in order, and their positions as si64."""
    order = [*(k for k in range(len(x.shape)) if k != axis), axis]
    rows = build.permute(x, order)
    sizes = static_shape(rows.shape)
    whole = Order(prod(sizes[:-1]), sizes[-1], count, descending)
    shape = (*sizes[:-1], count)
    if 0 in shape:
        positions: Value = build.splat(0, SI64, shape)
        values: Value = build.splat(0, x.dtype, shape)
    else:
        scratch = whole.workspace(x.dtype.storage_bytes)
        positions = Opaque(whole, (rows,), 0, SI64, shape, workspace=scratch)
        values = Gather(rows, positions, len(shape) - 1)
    back = inverse(order)
    return build.permute(values, back), build.permute(positions, back)


def _top_k(op: ordering.TopK, args: Sequence[Value], output: TupleType) -> tuple[Value, Value]:
    (x,) = args
    values, positions = _first_in_order(x, normalise_axis(op.axis, len(x.shape)), op.k, op.largest)
    return values, build.cast(positions, op.indices_dtype)


def _sort(op: ordering.Sort, args: Sequence[Value], output: TensorType) -> Value:
    axis = normalise_axis(op.axis, output.rank)
    return _first_in_order(args[0], axis, output.static_shape[axis], op.descending)[0]


def _argsort(op: ordering.Argsort, args: Sequence[Value], output: TensorType) -> Value:
    axis = normalise_axis(op.axis, output.rank)
    positions = _first_in_order(args[0], axis, output.static_shape[axis], op.descending)[1]
    return build.cast(positions, op.output_dtype)


def _searchsorted(op: ordering.Searchsorted, args: Sequence[Value], output: TensorType) -> Value:
    """A binary search by halves: `found` elements are known to lie before the value, and a power of
    two more are tried, from the largest one down."""
    ascending, values = args
    length = static(ascending.shape[0])
    flat = build.reshape(values, (prod(static_shape(values.shape)),))
    if ascending.dtype is I1:
        ascending, flat = (build.cast(side, UI32) for side in (ascending, flat))
    found = build.splat(0, SI64, flat.shape)
    step = 1 << max(length.bit_length() - 1, 0)
    while step and length:
        tried = build.binary(Fn.ADD, found, step)
        there = build.binary(Fn.LE, tried, length)
        # What is read behind the end counts for nothing, but must be there to be read.
        place = build.binary(Fn.MIN, build.binary(Fn.SUB, tried, 1), length - 1)
        here = Gather(ascending, place, 0)
        ahead = Binary(Fn.MIN, there, _before(here, flat, op.side))
        found = Where(ahead, tried, found)
        step //= 2
    return build.cast(build.reshape(found, output.shape), output.dtype)


def _before(here: Value, value: Value, side: ordering.Side) -> Value:
    """Whether an element comes before a value, NaN being the largest."""
    fn = Fn.LT if side is ordering.Side.LEFT else Fn.LE
    less: Value = Binary(fn, here, value)
    if not value.dtype.is_float:
        return less
    last = is_nan(value)
    if side is ordering.Side.LEFT:
        last = Binary(Fn.MIN, last, Binary(Fn.EQ, here, here))
    return Binary(Fn.MAX, less, last)


ROWS: Final[Rows] = {
    indexing.Take: _take,
    indexing.Gather: _gather,
    indexing.ScatterAdd: _scatter_add,
    indexing.ScatterReduce: _scatter_reduce,
    indexing.DynamicSlice: _dynamic_slice,
    indexing.DynamicUpdateSlice: _dynamic_update_slice,
    ordering.TopK: _top_k,
    ordering.Sort: _sort,
    ordering.Argsort: _argsort,
    ordering.Searchsorted: _searchsorted,
}
