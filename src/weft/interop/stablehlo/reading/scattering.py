"""Scatters: updates put to places in the flattened operand, by any computation.

Sums, extremes and replacements have an op in PTIR. Any other computation goes round by round: in
the first the first update of every place is combined with what is there, in the second the second,
until no place has one left. So each place sees its updates one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from weft.foundation.dtypes import SI64
from weft.interop.stablehlo.reading.control import captured
from weft.interop.stablehlo.reading.extents import (
    count,
    extent,
    first,
    flat,
    spread,
    strides,
    times,
)
from weft.interop.stablehlo.reading.indexing import components
from weft.interop.stablehlo.reading.reductions import folded_in_order, kind_of, run_on_tensors
from weft.interop.stablehlo.reading.shapes import pad
from weft.interop.stablehlo.reading.site import Lowering, Results, Site
from weft.interop.stablehlo.reading.windows import patches
from weft.interop.stablehlo.records import HloBlock
from weft.ptir.builder import BodyBuilder, Value
from weft.ptir.types import Dim, Shape

_NAMED: Final = {"sum": "add", "max": "max", "min": "min", "any": "max", "all": "min"}


def _scatter(at: Site) -> Results:
    count = (len(at.x) - 1) // 2
    xs, indices, updates = at.x[:count], at.x[count], at.x[count + 1 :]
    positions = _update_positions(at, xs[0], indices, updates[0])
    return _put_updates(
        at, at.op.blocks[0], xs, positions, updates, bool(at.attr("unique_indices"))
    )


def _put_updates(
    at: Site, block: HloBlock, xs: Sequence[Value], positions: Value, updates: Sequence[Value],
    unique: bool = False,
) -> list[Value]:  # fmt: skip
    """Operands with updates at positions; what falls outside goes to one more place, which is cut
    off in the end."""
    rows = [flat(at, x) for x in xs]
    boards = [at.b.concat([row, at.b.full([1], 0, row.dtype)], 0) for row in rows]
    places = flat(at, positions)
    values = [update.reshape(places.shape) for update in updates]
    how = _how(block, xs)
    if how:
        found = [at.b.emit("scatter_reduce", boards[0], places, values[0], axis=0, reduce=how)]
    elif places.shape == (0,):
        found = boards
    else:
        spare = spread(at, count(at, xs[0].shape), ())
        found = _by_rounds(at, block, boards, spare, places, values, unique)
    return [first(at, v, rows[0].shape[0]).reshape(xs[0].shape) for v in found]


def _how(block: HloBlock, xs: Sequence[Value]) -> str:
    """The reduction of PTIR that a computation is; nothing where it is none."""
    if len(xs) != 1:
        return ""
    if not block.ops and block.returned == (block.arguments[1],):
        return "replace"
    return _NAMED.get(kind_of(block, xs[0].dtype), "")


# -- where ---------------------------------------------------------------------------------------


def _update_positions(at: Site, x: Value, indices: Value, updates: Value) -> Value:
    """Where in the flattened operand each update goes; one past the end for those outside."""
    fields = at.fields("scatter_dimension_numbers")
    inserted = fields.get("inserted_window_dims", ())
    x_batch = fields.get("input_batching_dims", ())
    batching = dict(zip(x_batch, fields.get("scatter_indices_batching_dims", ()), strict=True))
    axes = fields.get("scatter_dims_to_operand_dims", ())
    parts = components(at, indices, axes, fields.get("index_vector_dim", 0), batching)
    windows = fields.get("update_window_dims", ())
    shape, dims = x.shape, updates.shape
    scattered = [axis for axis in range(len(dims)) if axis not in windows]
    window = [axis for axis in range(x.rank) if axis not in inserted and axis not in x_batch]
    along = dict(zip(window, windows, strict=True))
    total = at.b.full(dims, 0, SI64)
    inside = at.b.full(dims, True, "i1")
    for axis, stride in enumerate(strides(at, shape)):
        place = at.b.full(dims, 0, SI64)
        if axis in along and dims[along[axis]] not in (0, 1):
            place = at.b.iota(SI64, dims, along[axis])
        if axis in parts.by_axis:
            start = _at_axes(at, parts.by_axis[axis], scattered, dims)
            place = place + start
            limit = spread(at, extent(at, shape[axis]), dims)
            inside = inside & (place >= 0) & (place < limit)
        total = total + times(at, place, stride)
    return at.b.emit("select", inside, total, spread(at, count(at, shape), dims))


def _at_axes(at: Site, start: Value, axes: Sequence[int], dims: Shape) -> Value:
    full: list[Dim] = [1] * len(dims)
    for axis in axes:
        full[axis] = dims[axis]
    return at.spread(start.reshape(full), dims)


# -- any computation -----------------------------------------------------------------------------


def _by_rounds(
    at: Site, block: HloBlock, boards: Sequence[Value], spare: Value, places: Value,
    updates: Sequence[Value], unique: bool,
) -> list[Value]:  # fmt: skip
    if unique:
        return _round(at, block, boards, places, updates)
    turns = _earlier_updates(at, places, spare)
    most = at.b.reduce_max(turns, [0])
    taken = captured(at, [block])
    outer = [at.env[number] for number in taken]
    carry = [at.b.literal(0, SI64), most, spare, turns, places, *updates, *outer, *boards]
    own = len(carry) - len(boards)

    def again(b: BodyBuilder, *values: Value) -> list[Value]:
        turn, _, spare, turns, places, *rest = values[:own]
        env = {**at.env, **dict(zip(taken, rest[len(updates) :], strict=True))}
        inside = Site(at.reader, b, at.op, list(values), env)
        now = b.compare(turns, b.broadcast_to(turn, turns.shape), "equal")
        here = b.emit("select", now, places, b.broadcast_to(spare, places.shape))
        made = _round(inside, block, values[own:], here, rest[: len(updates)])
        return [turn + 1, *values[1:own], *made]

    def unfinished(b: BodyBuilder, *values: Value) -> list[Value]:
        return [values[0] <= values[1], *values]

    return list(at.b.while_(unfinished, again, *carry))[own:]


def _earlier_updates(at: Site, places: Value, spare: Value) -> Value:
    """How many earlier updates go to the same place. Order does not matter in the spare one."""
    order = at.b.emit("argsort", places, axis=0, descending=False, output_dtype=SI64)
    sorted_ = at.b.emit("gather", places, order, axis=0)
    first = at.b.emit("searchsorted", sorted_, sorted_, side="left", output_dtype=SI64)
    back = at.b.emit("argsort", order, axis=0, descending=False, output_dtype=SI64)
    turns = at.b.emit("gather", at.b.iota(SI64, places.shape, 0) - first, back, axis=0)
    beyond = at.b.compare(places, at.spread(spare, places.shape), "equal")
    return at.b.emit("select", beyond, at.full(0, turns), turns)


def _round(
    at: Site, block: HloBlock, boards: Sequence[Value], places: Value, updates: Sequence[Value]
) -> list[Value]:
    """Every place combined with the one update that goes to it."""
    old = [at.b.emit("take", board, places) for board in boards]
    new = run_on_tensors(at, block, [*old, *updates])
    return [
        at.b.emit("scatter_reduce", board, places, value, axis=0, reduce="replace")
        for board, value in zip(boards, new, strict=True)
    ]


# -- to the element that a window selects --------------------------------------------------------


def _select_and_scatter(at: Site) -> Value:
    """Windows of the operand, of which each selects an element; there its source goes."""
    x, source, start = at.x
    select, scatter = at.op.blocks
    shape = at.static(x)
    size = math.prod(shape)
    numbers = at.b.iota(SI64, [size], 0).reshape(shape)
    low, high = ([pair[i] for pair in at.pairs("padding", x.rank)] for i in range(2))
    none = [0] * x.rank
    outside = at.b.literal(size, SI64)
    boards = [
        pad(at, value, fill, low, high, none)
        for value, fill in ((x, at.b.literal(0, x.dtype)), (numbers, outside))
    ]

    def better(left: Sequence[Value], right: Sequence[Value]) -> list[Value]:
        (chosen,) = run_on_tensors(at, select, [left[0], right[0]])
        first = (left[1] < size) & ((right[1] == size) | chosen)
        return [at.b.emit("select", first, a, b) for a, b in zip(left, right, strict=True)]

    windows = [patches(at, board, (1,) * x.rank) for board in boards]
    _, places = folded_in_order(at, windows, [x.rank], better)
    board = at.spread(start, shape)
    return _put_updates(at, scatter, [board], places, [source])[0]


SCATTERING: Final[Mapping[str, Lowering]] = {
    "scatter": _scatter,
    "select_and_scatter": _select_and_scatter,
}
