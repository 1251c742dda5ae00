"""Reading and assigning elements by index: `x[key]`, `x[key] = value`, `take`, `take_along_axis`.

Positions count from the end where they are negative. One that is out of range is an error: at once
where it is known, when the program runs where it is data. An assignment makes the tensor show a new
value; nothing that was computed from the old one changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from weft.foundation.axes import normalise_axis
from weft.foundation.dims import Dim, Shape
from weft.foundation.dtypes import I1, SI32, SI64, DType
from weft.foundation.errors import OutOfRange, SizeWanted, SpecViolation
from weft.foundation.lines import user_line
from weft.ops.arithmetic import (
    as_tensor,
    broadcast_shapes,
    broadcasts,
    listed,
    number_in,
    number_kind,
)
from weft.ops.array.movement import every, flipped, moved, permuted, rows_at, window
from weft.ops.array.operands import given, known_shape, taken
from weft.ops.array.selection import (
    Places,
    Point,
    Selection,
    Span,
    Window,
    adds_axis,
    parsed,
    windowed,
)
from weft.ops.calls import public
from weft.ops.capture_recipes import captured, recorded
from weft.ops.graph.context import arena_for
from weft.ops.numbers import is_number
from weft.ops.promotion import beside, promoted
from weft.ops.session import Handle
from weft.ops.tensor import Tensor, from_array, tensor_method
from weft.ptir.literal import literal

__all__ = ["take", "take_along_axis"]


# -- reading -------------------------------------------------------------------------------------


@tensor_method("__getitem__")
@public
def getitem(self: Tensor, key: Any, /) -> Tensor:
    """The elements that an index expression names, as NumPy means it."""
    items = key if isinstance(key, tuple) else (key,)
    written = _write_index(items)
    if written is None:
        x = taken(self)
        return given(selected(x, parsed(_with_handles(items, x), x.shape)), self)
    window = _movable_window(self, written)
    if window is None:
        found: Tensor = captured(
            _select_index, [self, *_index_tensors(items)], user_line(), written
        )
    else:
        operands = [self, _window_start(self, window), *_index_tensors(items)]
        found = captured(_read_window, operands, user_line(), window.sizes, _as_written(window))
    return found


def _movable_window(x: Tensor, written: tuple[Any, ...]) -> Window | None:
    """The part of x that an index expression is about, where its place may be an operand: another
    place is then the same program. Inside a traced function places are known for good, and a slice
    that knows its place is computed better. None too where all of x is taken, or nothing."""
    shape = tuple([size for size in x.shape if isinstance(size, int)])
    if len(shape) < x.ndim or arena_for(x._node).tracing:
        return None
    items = [slice(*i) if i and isinstance(i, tuple) else i for i in written]
    found = windowed(items, shape)
    return None if found.sizes == shape or 0 in found.sizes else found


def _window_start(x: Tensor, window: Window) -> Tensor:
    return Tensor(arena_for(x._node).constant(literal(list(window.start), SI64)))


def _as_written(window: Window) -> tuple[Any, ...]:
    return tuple((i.start, i.stop, i.step) if isinstance(i, slice) else i for i in window.rest)


def _write_index(items: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """An index expression without masks and arrays as part of a recipe's name: slices as tuples,
    and an empty one for each tensor of integers."""
    found: list[Any] = []
    for item in items:
        kind = type(item)
        if kind is int or item is None or item is Ellipsis:
            found.append(item)
        elif kind is slice:
            bounds = (item.start, item.stop, item.step)
            if not {int, type(None)}.issuperset(map(type, bounds)):
                return None
            found.append(bounds)
        elif kind is Tensor and item.dtype.is_integer:
            found.append(())
        else:
            return None
    return tuple(found)


def _index_tensors(items: tuple[Any, ...]) -> list[Tensor]:
    return [item for item in items if isinstance(item, Tensor)]


def _rebuild_index(written: tuple[Any, ...], places: Sequence[Handle]) -> list[Any]:
    """The index expression that was written, with handles for its tensors."""
    rest = iter(places)
    return [
        (slice(*item) if item else next(rest)) if isinstance(item, tuple) else item
        for item in written
    ]


def _with_handles(items: tuple[Any, ...], x: Handle) -> list[Any]:
    """The entries with handles of x's session for tensors of integers."""
    return [
        x.session.import_(i) if isinstance(i, Tensor) and i.dtype.is_integer else i for i in items
    ]


def _select_index(x: Handle, *operands: Any) -> Handle:
    *places, written = operands
    return selected(x, parsed(_rebuild_index(written, places), x.shape))


def _read_window(x: Handle, start: Handle, *operands: Any) -> Handle:
    *places, sizes, written = operands
    return _select_index(x.dynamic_slice(start, sizes=sizes), *places, written)


def selected(x: Handle, selection: Selection) -> Handle:
    """The elements of a selection."""
    x = _take_windows(x, selection)
    sizes = iter(x.shape)
    shape: list[Dim] = []
    for pick in selection.picks:
        size = 1 if adds_axis(pick) else next(sizes)
        if not isinstance(pick, Point):
            shape.append(size)
    x = x.reshape(shape)
    return _gather_places(x, selection) if selection.has_places else x


def _take_windows(x: Handle, selection: Selection) -> Handle:
    """The spans and points of each axis; points keep an axis of size 1."""
    spans = [_as_span(pick, dim) for pick, dim in zip(selection.own, x.shape, strict=True)]
    if all(isinstance(dim, int) for dim in x.shape):
        x = _slice_spans(x, spans)
    else:
        for axis, span in enumerate(spans):
            if isinstance(span.extent, int):
                x = window(x, axis, span.low, span.extent)
    for axis, span in enumerate(spans):
        x = every(x, axis, abs(span.step)) if abs(span.step) > 1 else x
        x = flipped(x, axis) if span.step < 0 else x
    return x


def _as_span(pick: Any, dim: Dim) -> Span:
    if isinstance(pick, Span):
        return pick
    return Span(pick.at, 1) if isinstance(pick, Point) else Span(0, dim)


def _slice_spans(x: Handle, spans: list[Span]) -> Handle:
    sizes = tuple(span.extent for span in spans)
    if sizes == x.shape:
        return x
    starts = tuple(span.low if span.size else 0 for span in spans)
    return x.session.emit("slice", x, starts=starts, sizes=sizes)


def _gather_places(x: Handle, selection: Selection) -> Handle:
    """The places, of an x whose axes are the picks without points."""
    picks = [pick for pick in selection.picks if not isinstance(pick, Point)]
    axes = [axis for axis, pick in enumerate(picks) if isinstance(pick, Places)]
    others = [axis for axis in range(x.rank) if axis not in axes]
    positions = [_position_handle(x, axis, picks[axis]) for axis in axes]
    rest = tuple(x.shape[axis] for axis in others)
    if len(axes) == 1:
        return rows_at(x, positions[0], axes[0])
    sizes = [x.shape[axis] for axis in axes]
    flat = permuted(x, [*axes, *others]).reshape((_element_count(sizes), *rest))
    place = _linear(positions, sizes)
    together = axes == list(range(axes[0], axes[-1] + 1))
    return moved(flat.take(place), range(place.rank), axes[0] if together else 0)


def _element_count(sizes: list[Dim]) -> int:
    return math.prod(size if isinstance(size, int) else _refuse_open_size(size) for size in sizes)


def _refuse_open_size(size: Dim) -> int:
    raise SizeWanted(
        "DynamicDimensionMismatch",
        f"an axis of the open size {size} cannot be indexed together with others",
        "index one axis after the other",
    )


def _position_handle(x: Handle, axis: int, pick: Any) -> Handle:
    """Positions as a handle; those that are data count from the end where they are negative."""
    if isinstance(pick.positions, np.ndarray):
        if not pick.positions.ndim:
            found = x.session.literal(int(pick.positions), SI64)
        else:
            found = x.session.import_(from_array(pick.positions, x.session.arena))
        counted = isinstance(x.shape[axis], int) or not (pick.positions < 0).any()
        return found if counted else from_the_front(found, x.shape[axis])
    return from_the_front(pick.positions, x.shape[axis])


def from_the_front(indices: Handle, size: Dim) -> Handle:
    """Indices in an index dtype, negative ones only where they are out of range: a message then
    shows the number that was given."""
    unsigned = indices.dtype.is_integer and not indices.dtype.is_signed
    narrow = indices.dtype.bits < 32 or indices.dtype is SI32
    indices = indices.cast(SI32 if narrow else SI64)
    if unsigned or (indices.rank and 0 in indices.shape):
        return indices
    if not isinstance(size, int) or size > SI32.highest:
        indices = indices.cast(SI64)
    wrapped = indices + (size if isinstance(size, int) else _count_size(indices, size))
    inside = indices.compare("less", 0).bitwise_and(wrapped.compare("greater_equal", 0))
    return inside.select(wrapped, indices)


def _count_size(indices: Handle, size: Dim) -> Handle:
    """An open size beside each of some indices, counted when the program runs."""
    count = indices.session.full(1, SI64, (size,)).reduce_sum((0,))
    return count.broadcast_to(indices.shape)


def _linear(positions: list[Handle], sizes: list[Dim]) -> Handle:
    """Positions on several axes as one on the axes taken together. Where one is out of range the
    whole is -1, which the gather rejects."""
    shape = reduce(broadcast_shapes, [p.shape for p in positions])
    wide = [p.cast(SI64).broadcast_to(shape) for p in positions]
    place, valid = wide[0], _in_range(wide[0], sizes[0])
    for position, size in zip(wide[1:], sizes[1:], strict=True):
        place = place * int(size) + position
        valid = valid.bitwise_and(_in_range(position, size))
    return valid.select(place, place.session.full(-1, SI64, shape))


def _in_range(position: Handle, size: Dim) -> Handle:
    above = position.compare("greater_equal", 0)
    return above.bitwise_and(position.compare("less", int(size)))


@tensor_method
@recorded
def take(x: Handle, indices: Handle, /, axis: int | None = None) -> Handle:
    """The elements at some positions along an axis, whose place the axes of `indices` take."""
    if axis is None and x.rank != 1:
        raise OutOfRange(
            "InvalidAttributeValue",
            f"x {listed(x.shape)} has rank {x.rank}, so the axis must be named",
            "pass axis=",
        )
    at = normalise_axis(0 if axis is None else axis, x.rank)
    _check_indices(indices)
    return rows_at(x, from_the_front(indices, x.shape[at]), at)


def _check_indices(indices: Handle) -> None:
    if not indices.dtype.is_integer:
        raise SpecViolation(
            "DTypeNotSupported",
            f"indices are of dtype {indices.dtype}, but integers are wanted",
            "convert them with astype",
        )


@tensor_method
@recorded
def take_along_axis(x: Handle, indices: Handle, /, axis: int = -1) -> Handle:
    """For every index the element at that position along the axis, and at the index's own position
    on all others, where the two broadcast."""
    _check_indices(indices)
    if indices.rank != x.rank:
        raise OutOfRange(
            "RankMismatch",
            f"x {listed(x.shape)} and indices {listed(indices.shape)} have different ranks",
            "insert axes with None",
        )
    at = normalise_axis(axis, x.rank)
    positions = from_the_front(indices, x.shape[at])
    front = broadcast_shapes(x.shape[:at], positions.shape[:at])
    back = broadcast_shapes(x.shape[at + 1 :], positions.shape[at + 1 :])
    positions = positions.broadcast_to((*front, positions.shape[at], *back))
    return x.broadcast_to((*front, x.shape[at], *back)).gather(positions, axis=at)


# -- assigning -----------------------------------------------------------------------------------


@tensor_method("__setitem__")
@public
def setitem(self: Tensor, key: Any, value: Any, /) -> None:
    """Give the elements that an index expression names new values, which broadcast to them."""
    items = key if isinstance(key, tuple) else (key,)
    new, line = _value_as_tensor(self, value), user_line()
    mask = _whole_mask(items, self, new)
    written = _write_index(items)
    if mask is not None:
        self.become(captured(_replace_masked, [self, mask, new], line))
    elif written is not None:
        window = _movable_window(self, written)
        if window is None:
            self.become(
                captured(_assign_elements, [self, new, *_index_tensors(items)], line, written)
            )
        else:
            operands = [self, new, _window_start(self, window), *_index_tensors(items)]
            rest = _as_written(window)
            self.become(captured(_assigned_window, operands, line, window.sizes, rest))
    else:
        x = taken(self)
        selection = parsed(_with_handles(items, x), known_shape(x))
        self.become(given(_replace_selection(x, selection, x.session.import_(new)), self, new))


def _value_as_tensor(x: Tensor, value: Any) -> Tensor:
    """The value assigned, as a tensor; its numbers fit the dtype of x."""
    arena = arena_for(x._node)
    kind = number_kind(value)
    if is_number(value) or (kind is not None and beside(x.dtype, kind) is x.dtype):
        return number_in(value, x.dtype, x._node)
    tensor = as_tensor(value, arena)
    if tensor.dtype.kind is not x.dtype.kind and not _can_hold(tensor.dtype, x.dtype):
        raise SpecViolation(
            "DTypeMismatch",
            f"elements of {tensor.dtype} cannot be assigned to a tensor of {x.dtype}",
            f"convert them with .astype({x.dtype})",
        )
    return tensor


def _can_hold(value: DType, target: DType) -> bool:
    if value.is_integer and target.is_integer:
        return True
    return promoted(value, target) is target


def _assign_elements(x: Handle, value: Handle, *operands: Any) -> Handle:
    *places, written = operands
    return _replace_selection(x, parsed(_rebuild_index(written, places), known_shape(x)), value)


def _assigned_window(x: Handle, value: Handle, start: Handle, *operands: Any) -> Handle:
    *places, sizes, written = operands
    new = _assign_elements(x.dynamic_slice(start, sizes=sizes), value, *places, written)
    return x.dynamic_update_slice(new, start, sizes=sizes)


def _replace_selection(x: Handle, selection: Selection, value: Handle) -> Handle:
    """x with the elements of a selection replaced."""
    shape, value = known_shape(x), value.cast(x.dtype)
    if selection.has_places or any(isinstance(p, Span) and p.step != 1 for p in selection.own):
        return _scatter_values(x, selection, value)
    spans = [_as_span(pick, dim) for pick, dim in zip(selection.own, shape, strict=True)]
    sizes = tuple(int(span.size) for span in spans)
    update = _fit_value(value, _shape_of(selection)).reshape(sizes)
    if sizes == shape:
        return update
    start = x.session.literal([span.start if span.size else 0 for span in spans], SI64)
    return x.session.emit("dynamic_update_slice", x, update, start, sizes=sizes)


def _shape_of(selection: Selection) -> Shape:
    """The shape that a selection without places has."""
    return tuple(
        pick.size if isinstance(pick, Span) else 1
        for pick in selection.picks
        if not isinstance(pick, Point)
    )


def _fit_value(value: Handle, shape: Shape) -> Handle:
    """The value broadcast to the elements assigned; leading axes of size 1 do not count."""
    dims = value.shape
    while len(dims) > len(shape) and dims[0] == 1:
        dims = dims[1:]
    if not broadcasts(dims, shape):
        raise OutOfRange(
            "BroadcastDimsInvalid",
            f"a value of shape {listed(value.shape)} does not broadcast to the "
            f"{listed(shape)} elements assigned to",
            "reshape it",
        )
    return value.reshape(dims).broadcast_to(shape)


def _scatter_values(x: Handle, selection: Selection, value: Handle) -> Handle:
    """Values at positions along the one axis that has places, where all others are whole. Else at
    positions of the flattened tensor: those that the selection takes from a tensor of
    positions."""
    axis = _only_axis_with_places(x, selection)
    if axis is not None:
        return _scattered_along(x, selection.picks[axis], axis, value)
    size = math.prod(known_shape(x))
    numbers = x.session.iota(SI64, (size,), 0).reshape(x.shape)
    places = selected(numbers, selection)
    update = _fit_value(value, places.shape)
    count = math.prod(known_shape(places))
    flat = x.reshape((size,)).scatter_reduce(
        places.reshape((count,)), update.reshape((count,)), axis=0, reduce="replace"
    )
    return flat.reshape(x.shape)


def _only_axis_with_places(x: Handle, selection: Selection) -> int | None:
    """The axis with places, where there is one and every other axis is taken whole."""
    axes = [axis for axis, pick in enumerate(selection.picks) if isinstance(pick, Places)]
    if len(selection.picks) != x.rank or len(axes) != 1 or adds_axis(selection.picks[axes[0]]):
        return None
    others = [pick == Span(0, dim) for pick, dim in zip(selection.picks, x.shape, strict=True)]
    return axes[0] if sum(others) == x.rank - 1 else None


def _scattered_along(x: Handle, pick: Any, axis: int, value: Handle) -> Handle:
    places = _position_handle(x, axis, pick)
    front, back = x.shape[:axis], x.shape[axis + 1 :]
    count = math.prod(known_shape(places))
    update = _fit_value(value, (*front, *places.shape, *back)).reshape((*front, count, *back))
    column = places.reshape((*[1] * axis, count, *[1] * len(back)))
    return x.scatter_reduce(column.broadcast_to(update.shape), update, axis=axis, reduce="replace")


def _whole_mask(items: tuple[Any, ...], x: Tensor, value: Tensor) -> Tensor | None:
    """The mask of `x[mask] = value`, where the value is the same for all elements of the mask's
    axes: then nothing needs to be read."""
    mask = items[0] if len(items) == 1 else None
    if isinstance(mask, np.ndarray) and mask.dtype == np.bool_:
        mask = as_tensor(mask, arena_for(x._node))
    if not isinstance(mask, Tensor) or mask.dtype is not I1 or not mask.ndim:
        return None
    rest = x.shape[mask.ndim :]
    same = x.shape[: mask.ndim] == mask.shape and broadcasts(value.shape, rest)
    return mask if same else None


def _replace_masked(x: Handle, mask: Handle, value: Handle) -> Handle:
    wide = mask.reshape((*mask.shape, *[1] * (x.rank - mask.rank))).broadcast_to(x.shape)
    return wide.select(value.cast(x.dtype).broadcast_to(x.shape), x)
