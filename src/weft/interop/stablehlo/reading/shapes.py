"""Operations that move elements and compute none: slices, pads, broadcasts, and their like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from weft.foundation.dtypes import I1, SI64
from weft.interop.stablehlo.reading.extents import (
    clamped,
    flat,
    room,
    size_of,
    spread,
    strides,
    times,
)
from weft.interop.stablehlo.reading.site import Lowering, Results, Site
from weft.interop.stablehlo.records import HloTensor, HloTuple, tensors
from weft.ptir.builder import Value
from weft.ptir.literal import TensorLiteral
from weft.ptir.types import UNKNOWN, Dim, Symbol, TupleType

STOPS_GRADIENT: Final = "weft_stop_gradient"
"""The attribute of a barrier that was PTIR's `stop_gradient`."""
MOST_INLINE: Final = 16
"""Constants of at most so many elements are operands; larger ones are instructions."""


def constant(at: Site) -> Value:
    data: TensorLiteral = at.attr("value")
    if data.type.size <= MOST_INLINE:
        return at.b.literal(data)
    if data.is_splat:
        number = at.b.literal(data.array.reshape(-1)[0], data.type.dtype)
        return at.b.broadcast_to(number, data.type.shape)
    return at.b.constant(data)


def _constant_like(at: Site) -> Value:
    return at.full(at.attr("value"), at.x[0])


def _iota(at: Site) -> Value:
    kind, axis = at.result(), int(at.attr("iota_dimension"))
    if kind.dtype is I1:
        return at.b.cast(at.b.iota(SI64, at.shape(), axis), I1)
    return at.b.iota(kind.dtype, at.shape(), axis)


def _reshape(at: Site) -> Value:
    (x,) = at.x
    if at.result().is_static:
        return x.reshape(at.shape())
    return at.b.emit("reshape", x, new_shape=_reshaped_dims(at, x))


def _reshaped_dims(at: Site, x: Value) -> list[Dim]:
    """A size that is not known keeps its name where there is one of either; else it is computed."""
    unknown = [dim for dim in x.shape if not isinstance(dim, int)]
    wanted = at.result().dims
    if len(unknown) != 1 or wanted.count(None) != 1:
        at.refuse("more than one size of it is known only at run time")
    left = int(np.prod([d for d in x.shape if isinstance(d, int)]))
    right = int(np.prod([d for d in wanted if d is not None]))
    missing: Dim = unknown[0] if left == right else -1
    return [missing if dim is None else dim for dim in wanted]


def _transpose(at: Site) -> Value:
    return at.x[0].transpose(at.ints("permutation"))


def broadcast_in_dim(at: Site, x: Value, dims: Sequence[int], shape: Sequence[Dim]) -> Value:
    """Axis `i` of `x` becomes axis `dims[i]` of the result."""
    order = sorted(range(x.rank), key=lambda axis: dims[axis])
    x = x.transpose(order)
    places = sorted(dims)
    full: list[Dim] = [1] * len(shape)
    for axis, dim in zip(places, x.shape, strict=True):
        if isinstance(dim, Symbol) and dim != shape[axis]:
            at.reader.same((dim, shape[axis]))
        full[axis] = dim
    if places == list(range(len(shape) - x.rank, len(shape))):
        return at.spread(x, tuple(shape))  # PTIR lines axes up at the right by itself
    return at.spread(x.reshape(full), tuple(shape))


def _broadcast_in_dim(at: Site) -> Value:
    return broadcast_in_dim(at, at.x[0], at.ints("broadcast_dimensions"), at.shape())


def _dynamic_broadcast_in_dim(at: Site) -> Value:
    return broadcast_in_dim(at, at.x[0], at.ints("broadcast_dimensions"), at.sizes(1))


def _dynamic_reshape(at: Site) -> Value:
    """A size that is computed otherwise follows from the others."""
    wanted = at.reader.sizes(at.op.operands[1]) or (UNKNOWN,) * len(at.result().dims)
    if wanted.count(UNKNOWN) != 1:
        return at.x[0].reshape(at.sizes(1))
    return at.b.reshape(at.x[0], [-1 if dim == UNKNOWN else dim for dim in wanted])


def _dynamic_iota(at: Site) -> Value:
    axis = int(at.attr("iota_dimension"))
    return at.b.iota(at.result().dtype, at.sizes(0), axis)


def _broadcast(at: Site) -> Value:
    (x,), sizes = at.x, at.ints("broadcast_sizes")
    dims = range(len(sizes), len(sizes) + x.rank)
    return broadcast_in_dim(at, x, list(dims), (*sizes, *x.shape))


def _concatenate(at: Site) -> Value:
    return at.settled(lambda: at.joined(at.x, int(at.attr("dimension"))))


# -- slices --------------------------------------------------------------------------------------


def strided(at: Site, x: Value, axis: int, step: int) -> Value:
    """Every `step`-th element along an axis, from the first: the axis is cut into pieces of that
    size, the last one filled up, and the first element of each is taken. Where other axes are
    open, the elements are named."""
    size = x.shape[axis]
    if step == 1 or size in (0, 1):
        return x
    if isinstance(size, int) and not x.tensor.is_static:
        return taken_along(at, x, axis, at.b.literal(np.arange(0, size, step)))
    shape = list(at.static(x))
    count = -(-shape[axis] // step)
    filled = pad_axes(at, x, {axis: (0, count * step - shape[axis], 0)})
    cut = [*shape[:axis], count, step, *shape[axis + 1 :]]
    first = [*shape[:axis], count, 1, *shape[axis + 1 :]]
    found = at.sliced(filled.reshape(cut), [0] * len(cut), first)
    return found.reshape([*shape[:axis], count, *shape[axis + 1 :]])


def _slice(at: Site) -> Value:
    bounds = [at.ints(n) for n in ("start_indices", "limit_indices", "strides")]
    return _slice_with_steps(at, at.x[0], *bounds)


def _real_dynamic_slice(at: Site) -> Value:
    """Where sizes are open, an axis is taken whole or its elements are named."""
    x = at.x[0]
    if x.tensor.is_static:
        return _slice_with_steps(at, x, *(at.numbers(index) for index in (1, 2, 3)))
    bounds = zip(*(at.sizes(index) for index in (1, 2, 3)), x.shape, strict=True)
    for axis, (start, limit, step, size) in enumerate(bounds):
        if (start, limit, step) == (0, size, 1):
            continue
        if not (isinstance(start, int) and isinstance(limit, int) and isinstance(step, int)):
            at.refuse(f"how much it takes of axis {axis} is known only at run time")
        x = taken_along(at, x, axis, at.b.literal(np.arange(start, limit, step)))
    return x


def _slice_with_steps(
    at: Site, x: Value, starts: Sequence[int], limits: Sequence[int], steps: Sequence[int]
) -> Value:
    found = at.sliced(x, starts, [b - a for a, b in zip(starts, limits, strict=True)])
    for axis, step in enumerate(steps):
        found = strided(at, found, axis, step)
    return found


def pad_axes(at: Site, x: Value, pads: Mapping[int, tuple[int, int, int]]) -> Value:
    """`x` with zeros around and between its elements: (low, high, interior) for some axes."""
    if not any(any(pad) for pad in pads.values()):
        return x
    low, high, interior = (
        [pads.get(axis, (0, 0, 0))[i] for axis in range(x.rank)] for i in range(3)
    )
    return at.b.emit("pad", x, low=low, high=high, interior=interior, pad_value=0)


def pad(
    at: Site, x: Value, value: Value, low: Sequence[int], high: Sequence[int],
    interior: Sequence[int],
) -> Value:  # fmt: skip
    """StableHLO's pad: negative amounts cut off, and the value may be computed."""
    if not any((*low, *high, *interior)):
        return x
    around = [max(n, 0) for n in low], [max(n, 0) for n in high]
    made = _fill_around(at, x, value, *around, interior)
    if min(*low, *high) >= 0:
        return made
    apart = [d + max(d - 1, 0) * i for d, i in zip(at.static(x), interior, strict=True)]
    starts = [max(-n, 0) for n in low]
    sizes = [d + a + b for d, a, b in zip(apart, low, high, strict=True)]
    return at.sliced(made, starts, sizes)


def _fill_around(
    at: Site, x: Value, value: Value, low: Sequence[int], high: Sequence[int],
    interior: Sequence[int],
) -> Value:  # fmt: skip
    if not any((*low, *high, *interior)):
        return x

    def padded(value: Value, number: Any) -> Value:
        return at.b.emit("pad", value, pad_value=number, low=low, high=high, interior=interior)

    known = value.operand
    if isinstance(known, TensorLiteral):
        return padded(x, known.array.item())
    # The value is not known yet: where nothing of `x` lies is found by padding truth values.
    inside, made = padded(at.b.full(x.shape, True, I1), False), padded(x, 0)
    return at.b.emit("select", inside, made, at.b.broadcast_to(value, made.shape))


def _pad(at: Site) -> Value:
    x, value = at.x
    low, high, interior = (
        at.ints(n) for n in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    return pad(at, x, value, low, high, interior)


def _dynamic_pad(at: Site) -> Value:
    low, high, interior = (at.numbers(index) for index in (2, 3, 4))
    return pad(at, at.x[0], at.x[1], low, high, interior)


def reversed_along(at: Site, x: Value, axes: Sequence[int]) -> Value:
    """`x` backwards along some axes."""
    for axis in axes:
        size = x.shape[axis]
        if isinstance(size, Symbol):
            last = spread(at, room(at, size, 1), (size,))
            x = taken_along(at, x, axis, last - at.b.iota(SI64, (size,), 0))
        elif size > 1:
            x = taken_along(at, x, axis, at.b.literal(np.arange(size - 1, -1, -1)))
    return x


def taken_along(at: Site, x: Value, axis: int, positions: Value) -> Value:
    """The elements at some positions of an axis."""
    order = [axis, *(a for a in range(x.rank) if a != axis)]
    found = at.b.emit("take", x.transpose(order), positions)
    return found.transpose(np.argsort(order).tolist())


def _reverse(at: Site) -> Value:
    return reversed_along(at, at.x[0], at.ints("dimensions"))


# -- sizes and starts that are computed ----------------------------------------------------------


def start_vector(at: Site, starts: Sequence[Value]) -> Value:
    """Scalars as one vector of indices."""
    return at.joined([at.b.cast(start, SI64).reshape((1,)) for start in starts], 0)


def _dynamic_slice(at: Site) -> Value:
    x, *starts = at.x
    if not starts:
        return x
    sizes = at.ints("slice_sizes")
    return at.b.emit("dynamic_slice", x, start_vector(at, starts), sizes=sizes)


def _dynamic_update_slice(at: Site) -> Value:
    x, update, *starts = at.x
    if not starts:
        return update
    sizes = [dim for dim in update.shape if isinstance(dim, int)]
    if len(sizes) != update.rank:
        return _replace_window(at, x, update, starts)
    start = start_vector(at, starts)
    return at.b.emit("dynamic_update_slice", x, update, start, sizes=sizes)


def _replace_window(at: Site, x: Value, update: Value, starts: Sequence[Value]) -> Value:
    """A window whose size is known only at run time, put to its positions one by one."""
    total = at.b.full(update.shape, 0, SI64)
    for axis, stride in enumerate(strides(at, x.shape)):
        start = clamped(
            at, at.b.cast(starts[axis], SI64), room(at, x.shape[axis], update.shape[axis])
        )
        place = at.b.iota(SI64, update.shape, axis) + at.spread(start, update.shape)
        total = total + times(at, place, stride)
    places = flat(at, total)
    values = at.b.reshape(update, places.shape)
    found = at.b.emit("scatter_reduce", flat(at, x), places, values, axis=0, reduce="replace")
    return found.reshape(x.shape)


def _get_dimension_size(at: Site) -> Value:
    (x,), axis = at.x, int(at.attr("dimension"))
    return size_of(at, x.shape[axis], at.result().dtype)


def _set_dimension_size(at: Site) -> Value:
    """A tensor of PTIR has no elements beyond its size, so only its own size can be set."""
    (x, _), axis = at.x, int(at.attr("dimension"))
    if at.sizes(1) != (x.shape[axis],):
        at.refuse(f"the size is another than that of axis {axis} of {x.type}")
    return x


def shape_of(at: Site) -> Value:
    (x,) = at.x
    if not x.rank:
        return at.b.literal(np.zeros(0, np.int64))
    sizes = [size_of(at, dim).reshape((1,)) for dim in x.shape]
    return at.joined(sizes, 0)


# -- tuples and barriers -------------------------------------------------------------------------


def _tuple(at: Site) -> Value:
    """Of tensors only: what a tuple inside holds stands in its place."""
    return at.b.emit("make_tuple", *(leaf for x in at.x for leaf in _leaves(x)))


def _leaves(x: Value) -> list[Value]:
    return list(x) if isinstance(x.type, TupleType) else [x]


def _get_tuple_element(at: Site) -> Value:
    declared, index = at.reader.declared(at.op.operands[0]), int(at.attr("index"))
    if not isinstance(declared, HloTuple):
        raise at.violation("its operand is not a tuple")
    before = sum(len(tensors(kind)) for kind in declared.elements[:index])
    element = declared.elements[index]
    found = [at.x[0][before + number] for number in range(len(tensors(element)))]
    return found[0] if isinstance(element, HloTensor) else at.b.emit("make_tuple", *found)


def _as_it_is(at: Site) -> Results:
    return at.x


def _barrier(at: Site) -> Results:
    """A barrier with Weft's mark stops gradients. Any other makes every value wait for the next
    one, and counts as another value than what it waits with."""
    if at.attr(STOPS_GRADIENT):
        return [at.b.emit("stop_gradient", x) for x in at.x]
    if any(isinstance(x.type, TupleType) for x in at.x):
        return at.x
    return [at.b.emit("barrier", x, at.x[index - 1]) for index, x in enumerate(at.x)]


SHAPES: Final[Mapping[str, Lowering]] = {
    "constant": constant,
    "constant_like": _constant_like,
    "iota": _iota,
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast_in_dim,
    "dynamic_broadcast_in_dim": _dynamic_broadcast_in_dim,
    "dynamic_reshape": _dynamic_reshape,
    "dynamic_iota": _dynamic_iota,
    "broadcast": _broadcast,
    "concatenate": _concatenate,
    "slice": _slice,
    "pad": _pad,
    "dynamic_pad": _dynamic_pad,
    "real_dynamic_slice": _real_dynamic_slice,
    "set_dimension_size": _set_dimension_size,
    "reverse": _reverse,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "get_dimension_size": _get_dimension_size,
    "shape.shape_of": shape_of,
    "tuple": _tuple,
    "get_tuple_element": _get_tuple_element,
    "optimization_barrier": _barrier,
    "copy": _as_it_is,
    "sdy.sharding_constraint": _as_it_is,
}
