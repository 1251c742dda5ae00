"""Gathers. The general form becomes positions in the flattened operand, made of index components,
of counts along window axes, and of the operand's strides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from weft.foundation.dtypes import SI64
from weft.interop.stablehlo.reading.site import Lowering, Site
from weft.ptir.builder import Value
from weft.ptir.types import Dim


@dataclass(frozen=True)
class Components:
    """The index vectors of a gather or a scatter, one tensor for each axis of the operand that
    they name; all have the shape of the index batch."""

    by_axis: Mapping[int, Value]
    shape: tuple[int, ...]


def components(
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


def strides(shape: Sequence[int]) -> list[int]:
    """How far apart neighbours along each axis lie in the flattened tensor."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


# -- gather --------------------------------------------------------------------------------------


def _gather(at: Site) -> Value:
    return _gathered(at, at.ints("slice_sizes"))


def _dynamic_gather(at: Site) -> Value:
    return _gathered(at, at.sizes(2))


def _gathered(at: Site, sizes: Sequence[Dim]) -> Value:
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
        known = [size for size in sizes if isinstance(size, int)]
        if len(known) != len(sizes):
            at.refuse("its slices have sizes that are known only at run time")
        found = _elements_at(at, x, parts, window, known)
    return _placed(at, found, fields.get("offset_dims", ()), len(parts.shape))


def _rows_at(
    at: Site, x: Value, parts: Components, window: Sequence[int], sizes: Sequence[Dim]
) -> Value | None:
    """Whole rows along one axis: PTIR's `take`, once the indices are inside."""
    if len(parts.by_axis) != 1:
        return None
    ((axis, start),) = parts.by_axis.items()
    others, last = [a for a in range(x.rank) if a != axis], x.shape[axis]
    if list(window) != others or sizes[axis] != 1 or any(sizes[a] != x.shape[a] for a in others):
        return None
    if not isinstance(last, int):
        at.refuse(f"it reads along an axis of {x.type} whose size is known only at run time")
    front = at.transposed(x, [axis, *others])
    return at.b.emit("take", front, _clamped(at, start, last - 1))


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
    for axis, stride in enumerate(strides(shape)):
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


# -- rows ----------------------------------------------------------------------------------------


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
    "dynamic_gather": _dynamic_gather,
    "torch_index_select": _torch_index_select,
}
