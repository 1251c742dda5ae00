"""Gathers. The general form becomes positions in the flattened operand, made of index components,
of counts along window axes, and of the operand's strides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from weft.foundation.dtypes import SI64
from weft.interop.stablehlo.reading.extents import clamped, flat, room, strides, times
from weft.interop.stablehlo.reading.site import Lowering, Site
from weft.ptir.builder import Value
from weft.ptir.types import Dim, Shape


@dataclass(frozen=True)
class Components:
    """The index vectors of a gather or a scatter, one tensor for each axis of the operand that
    they name; all have the shape of the index batch."""

    by_axis: Mapping[int, Value]
    shape: Shape


def components(
    at: Site, indices: Value, axes: Sequence[int], vector: int,
    batching: Mapping[int, int],
) -> Components:  # fmt: skip
    """`batching` says which axis of the indices counts along which axis of the operand."""
    shape = indices.shape
    wide = at.b.cast(indices, SI64)
    batch = (*shape[:vector], *shape[vector + 1 :])
    found: dict[int, Value] = {}
    for position, axis in enumerate(axes):
        found[axis] = wide if vector == wide.rank else _component(at, wide, vector, position)
    for axis, index_axis in batching.items():
        along = index_axis - (index_axis > vector)
        found[axis] = at.b.iota(SI64, batch, along)
    return Components(found, batch)


def _component(at: Site, indices: Value, vector: int, position: int) -> Value:
    """One entry of every index vector."""
    shape = indices.shape
    batch = (*shape[:vector], *shape[vector + 1 :])
    known = [dim for dim in shape if isinstance(dim, int)]
    if len(known) == len(shape):
        starts, sizes = [0] * len(shape), known
        starts[vector], sizes[vector] = position, 1
        return at.sliced(indices, starts, sizes).reshape(batch)
    order = [vector, *(axis for axis in range(indices.rank) if axis != vector)]
    return at.b.emit("take", indices.transpose(order), at.b.literal(position, SI64))


# -- gather --------------------------------------------------------------------------------------


def _gather(at: Site) -> Value:
    return _gather_windows(at, at.ints("slice_sizes"))


def _dynamic_gather(at: Site) -> Value:
    return _gather_windows(at, at.sizes(2))


def _gather_windows(at: Site, sizes: Sequence[Dim]) -> Value:
    x, indices = at.x[:2]
    fields = at.fields("dimension_numbers")
    collapsed = fields.get("collapsed_slice_dims", ())
    operand_batch = fields.get("operand_batching_dims", ())
    index_batch = fields.get("start_indices_batching_dims", ())
    named = fields.get("start_index_map", ())
    vector = fields.get("index_vector_dim", 0)
    batching = dict(zip(operand_batch, index_batch, strict=True))
    parts = components(at, indices, named, vector, batching)
    window = [a for a in range(x.rank) if a not in collapsed and a not in operand_batch]
    found = _rows_at(at, x, parts, window, sizes)
    if found is None:
        found = _elements_at(at, x, parts, window, sizes)
    return _place_windows(found, fields.get("offset_dims", ()), len(parts.shape))


def _rows_at(
    at: Site, x: Value, parts: Components, window: Sequence[int], sizes: Sequence[Dim]
) -> Value | None:
    """Whole rows along one axis: PTIR's `take`, once the indices are inside."""
    if len(parts.by_axis) != 1:
        return None
    ((axis, start),) = parts.by_axis.items()
    others = [a for a in range(x.rank) if a != axis]
    if list(window) != others or sizes[axis] != 1 or any(sizes[a] != x.shape[a] for a in others):
        return None
    front = x.transpose([axis, *others])
    return at.b.emit("take", front, clamped(at, start, room(at, x.shape[axis], 1)))


def _elements_at(
    at: Site, x: Value, parts: Components, window: Sequence[int], sizes: Sequence[Dim]
) -> Value:
    dims = (*parts.shape, *(sizes[axis] for axis in window))
    if 0 in dims:
        return at.b.full(dims, 0, x.dtype)
    total = at.b.full(dims, 0, SI64)
    batch = len(parts.shape)
    for axis, stride in enumerate(strides(at, x.shape)):
        if axis in parts.by_axis:
            start = clamped(at, parts.by_axis[axis], room(at, x.shape[axis], sizes[axis]))
            total = total + times(at, _repeat_over_window(at, start, dims), stride)
        if axis in window and sizes[axis] not in (0, 1):
            place = at.b.iota(SI64, dims, batch + window.index(axis))
            total = total + times(at, place, stride)
    return at.b.emit("take", flat(at, x), total)


def _repeat_over_window(at: Site, start: Value, dims: Sequence[Dim]) -> Value:
    """The index batch, repeated over the window axes that follow it."""
    more = len(dims) - start.rank
    return at.spread(start.reshape([*start.shape, *(1 for _ in range(more))]), tuple(dims))


def _place_windows(found: Value, offsets: Sequence[int], batch: int) -> Value:
    """Window axes, which come last, moved to where the result wants them."""
    order, windows, batches = [], iter(range(batch, found.rank)), iter(range(batch))
    for axis in range(found.rank):
        order.append(next(windows) if axis in offsets else next(batches))
    return found.transpose(order)


# -- rows ----------------------------------------------------------------------------------------


def _torch_index_select(at: Site) -> Value:
    x, indices = at.x
    axis = int(at.attr("dim"))
    if int(at.attr("batch_dims", 0)):
        at.refuse("it has batch_dims")
    order = [axis, *(a for a in range(x.rank) if a != axis)]
    rows = at.b.emit("take", x.transpose(order), at.b.cast(indices, SI64))
    back = [*range(indices.rank, indices.rank + axis), *range(indices.rank)]
    return rows.transpose([*back, *range(indices.rank + axis, rows.rank)])


INDEXING: Final[Mapping[str, Lowering]] = {
    "gather": _gather,
    "dynamic_gather": _dynamic_gather,
    "torch_index_select": _torch_index_select,
}
