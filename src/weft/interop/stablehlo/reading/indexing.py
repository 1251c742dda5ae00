"""Gathers, scatters and sorts. The general forms become positions in the flattened operand, made
of index components, of counts along window axes, and of the operand's strides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from weft.foundation.dtypes import SI64
from weft.interop.stablehlo.reading.reductions import kind_of
from weft.interop.stablehlo.reading.site import Lowering, Results, Site
from weft.interop.stablehlo.records import HloBlock, HloOp
from weft.ptir.builder import Value

_SCATTERS: Final = {"sum": "add", "max": "max", "min": "min", "any": "max", "all": "min"}


@dataclass(frozen=True)
class Components:
    """The index vectors of a gather or a scatter, one tensor for each axis of the operand that
    they name; all have the shape of the index batch."""

    by_axis: Mapping[int, Value]
    shape: tuple[int, ...]


def _components(
    at: Site, indices: Value, axes: Sequence[int], vector: int,
    batching: Mapping[int, int],
) -> Components:  # fmt: skip
    """`batching` says which axis of the indices counts along which axis of the operand."""
    shape = at.static(indices)
    wide = at.b.cast(indices, SI64)
    batch = (*shape[:vector], *shape[vector + 1 :])
    found: dict[int, Value] = {}
    for position, axis in enumerate(axes):
        if vector == indices.rank:
            found[axis] = wide
            continue
        starts, sizes = [0] * len(shape), list(shape)
        starts[vector], sizes[vector] = position, 1
        found[axis] = at.reshaped(at.sliced(wide, starts, sizes), batch)
    for axis, index_axis in batching.items():
        along = index_axis - (index_axis > vector)
        found[axis] = at.b.iota(SI64, batch, along)
    return Components(found, batch)


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


# -- gather --------------------------------------------------------------------------------------


def _gather(at: Site) -> Value:
    x, indices = at.x
    fields = at.fields("dimension_numbers")
    collapsed = fields.get("collapsed_slice_dims", ())
    operand_batch = fields.get("operand_batching_dims", ())
    index_batch = fields.get("start_indices_batching_dims", ())
    named, sizes = fields.get("start_index_map", ()), at.ints("slice_sizes")
    vector = fields.get("index_vector_dim", 0)
    batching = dict(zip(operand_batch, index_batch, strict=True))
    parts = _components(at, indices, named, vector, batching)
    window = [a for a in range(x.rank) if a not in collapsed and a not in operand_batch]
    found = _rows_at(at, x, parts, window, sizes)
    if found is None:
        found = _elements_at(at, x, parts, window, sizes)
    return _placed(at, found, fields.get("offset_dims", ()), len(parts.shape))


def _rows_at(
    at: Site, x: Value, parts: Components, window: Sequence[int], sizes: Sequence[int]
) -> Value | None:
    """Whole rows along one axis: PTIR's `take`, once the indices are inside."""
    if len(parts.by_axis) != 1:
        return None
    ((axis, start),) = parts.by_axis.items()
    shape = at.static(x)
    others = [a for a in range(x.rank) if a != axis]
    if list(window) != others or sizes[axis] != 1 or any(sizes[a] != shape[a] for a in others):
        return None
    front = at.transposed(x, [axis, *others])
    return at.b.emit("take", front, _clamped(at, start, shape[axis] - 1))


def _clamped(at: Site, start: Value, last: int) -> Value:
    low, high = at.full(0, start), at.full(max(last, 0), start)
    return at.b.emit("clamp", start, low, high)


def _elements_at(
    at: Site, x: Value, parts: Components, window: Sequence[int], sizes: Sequence[int]
) -> Value:
    shape = at.static(x)
    dims = (*parts.shape, *(sizes[axis] for axis in window))
    if 0 in dims:
        return at.b.full(dims, 0, x.dtype)
    total = at.b.full(dims, 0, SI64)
    batch = len(parts.shape)
    for axis, stride in enumerate(_strides(shape)):
        if axis in parts.by_axis:
            start = _clamped(at, parts.by_axis[axis], shape[axis] - sizes[axis])
            total = total + _over(at, start, dims) * stride
        if axis in window and sizes[axis] > 1:
            total = total + at.b.iota(SI64, dims, batch + window.index(axis)) * stride
    return at.b.emit("take", at.reshaped(x, [math.prod(shape)]), total)


def _over(at: Site, start: Value, dims: Sequence[int]) -> Value:
    """The index batch, repeated over the window axes that follow it."""
    more = len(dims) - start.rank
    return at.spread(at.reshaped(start, [*start.shape, *(1 for _ in range(more))]), tuple(dims))


def _placed(at: Site, found: Value, offsets: Sequence[int], batch: int) -> Value:
    """Window axes, which come last, moved to where the result wants them."""
    order, windows, batches = [], iter(range(batch, found.rank)), iter(range(batch))
    for axis in range(found.rank):
        order.append(next(windows) if axis in offsets else next(batches))
    return at.transposed(found, order)


# -- scatter -------------------------------------------------------------------------------------


def _scatter(at: Site) -> Results:
    count = (len(at.x) - 1) // 2
    if count != 1:
        at.refuse(f"it scatters into {count} operands at once")
    x, indices, updates = at.x
    shape = at.static(x)
    how = _how(at)
    if not updates.rank and not x.rank:
        return _combined(at, x, updates, how)
    positions = _positions(at, x, indices, updates)
    size = math.prod(shape)
    # What falls outside goes to one more place, which is cut off in the end.
    spare = at.b.full([1], 0, x.dtype)
    board = at.b.concat([at.reshaped(x, [size]), spare], 0)
    flat = [at.reshaped(v, [math.prod(at.static(updates))]) for v in (positions, updates)]
    found = at.b.emit("scatter_reduce", board, *flat, axis=0, reduce=how)
    return at.reshaped(at.sliced(found, [0], [size]), shape)


def _combined(at: Site, x: Value, update: Value, how: str) -> Value:
    if how == "replace":
        return update
    return at.b.emit({"add": "add", "max": "maximum", "min": "minimum"}[how], x, update)


def _how(at: Site) -> str:
    block = at.op.blocks[0]
    if not block.ops and block.returned == (block.arguments[1],):
        return "replace"
    kind = kind_of(block, at.x[0].dtype)
    if kind not in _SCATTERS:
        at.refuse("its region is none of sum, maximum, minimum and replacement")
    return _SCATTERS[kind]


def _positions(at: Site, x: Value, indices: Value, updates: Value) -> Value:
    """Where in the flattened operand each update goes; one past the end for those outside."""
    fields = at.fields("scatter_dimension_numbers")
    inserted = fields.get("inserted_window_dims", ())
    x_batch = fields.get("input_batching_dims", ())
    batching = dict(zip(x_batch, fields.get("scatter_indices_batching_dims", ()), strict=True))
    axes = fields.get("scatter_dims_to_operand_dims", ())
    parts = _components(at, indices, axes, fields.get("index_vector_dim", 0), batching)
    windows = fields.get("update_window_dims", ())
    shape, dims = at.static(x), at.static(updates)
    scattered = [axis for axis in range(len(dims)) if axis not in windows]
    window = [axis for axis in range(x.rank) if axis not in inserted and axis not in x_batch]
    along = dict(zip(window, windows, strict=True))
    total = at.b.full(dims, 0, SI64)
    inside = at.b.full(dims, True, "i1")
    for axis, stride in enumerate(_strides(shape)):
        place = at.b.full(dims, 0, SI64)
        if axis in along and dims[along[axis]] > 1:
            place = at.b.iota(SI64, dims, along[axis])
        if axis in parts.by_axis:
            start = _at_axes(at, parts.by_axis[axis], scattered, dims)
            place = place + start
            inside = inside & (place >= 0) & (place < shape[axis])
        total = total + place * stride
    outside = at.b.full(dims, math.prod(shape), SI64)
    return at.b.emit("select", inside, total, outside)


def _at_axes(at: Site, start: Value, axes: Sequence[int], dims: Sequence[int]) -> Value:
    full = [1] * len(dims)
    for axis in axes:
        full[axis] = dims[axis]
    return at.spread(at.reshaped(start, full), tuple(dims))


# -- sort ----------------------------------------------------------------------------------------


def _sort(at: Site) -> Results:
    key, descending = _key(at, at.op.blocks[0])
    values = at.aligned(at.x)
    axis = int(at.attr("dimension", -1))
    order = at.b.emit("argsort", values[key], axis=axis, descending=descending, output_dtype=SI64)
    return [at.b.emit("gather", x, order, axis=axis) for x in values]


def _key(at: Site, block: HloBlock) -> tuple[int, bool]:
    """Which operand the comparator looks at, and whether the largest comes first."""
    made = {result: op for op in block.ops for result in op.results}
    last = made.get(block.returned[0])
    if last is not None and last.name == "compare":
        sides = [_source(operand, made, block) for operand in last.operands]
        direction = str(last.attributes["comparison_direction"]).rstrip(">").split()[-1]
        if None not in sides and direction in ("LT", "LE", "GT", "GE"):
            left, right = (side for side in sides if side is not None)
            if left // 2 == right // 2 and left != right:
                less = direction in ("LT", "LE")
                return left // 2, less is (left % 2 == 1)
    at.refuse("its comparator is not the comparison of one operand's elements")


def _source(value: int, made: Mapping[int, HloOp], block: HloBlock) -> int | None:
    """The one argument that a compared value is made of, by steps that keep the order: what JAX
    does to floats, so that zeros of both signs and all NaNs are equal."""
    found: set[int] = set()
    stack = [value]
    while stack:
        top = stack.pop()
        if top in block.arguments:
            found.add(block.arguments.index(top))
        elif top in made and made[top].name in ("select", "compare", "constant"):
            stack.extend(made[top].operands)
        else:
            return None
    return found.pop() if len(found) == 1 else None


def _top_k(at: Site) -> Results:
    (x,) = at.x
    found = at.b.emit(
        "top_k", x, k=int(at.attr("k")), axis=-1, largest=bool(at.attr("largest", True)),
        indices_dtype=at.result(1).dtype,
    )  # fmt: skip
    return list(found)


def _torch_index_select(at: Site) -> Value:
    x, indices = at.x
    axis = int(at.attr("dim"))
    if int(at.attr("batch_dims", 0)):
        at.refuse("it has batch_dims")
    order = [axis, *(a for a in range(x.rank) if a != axis)]
    rows = at.b.emit("take", at.transposed(x, order), at.b.cast(indices, SI64))
    back = [*range(indices.rank, indices.rank + axis), *range(indices.rank)]
    return at.transposed(rows, [*back, *range(indices.rank + axis, rows.rank)])


INDEXING: Final[Mapping[str, Lowering]] = {
    "gather": _gather,
    "scatter": _scatter,
    "sort": _sort,
    "top_k": _top_k,
    "topk": _top_k,
    "torch_index_select": _torch_index_select,
}
