"""Functions that place elements and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from weft.foundation.axes import normalise_axes, normalise_axis
from weft.foundation.calls import told
from weft.foundation.dims import Dim, Shape, Symbol, shape_of
from weft.foundation.dtypes import SI64
from weft.foundation.errors import OutOfRange, UserError
from weft.foundation.lines import user_line
from weft.ops.arithmetic import as_tensor, broadcast_shapes, broadcasts, listed
from weft.ops.array.movement import flipped, permuted, rolled, rows_at, window
from weft.ops.array.operands import known
from weft.ops.array.reading import read_elements
from weft.ops.array.stacking import joined_data, stacked_parts
from weft.ops.calls import public
from weft.ops.capture_recipes import captured, recorded
from weft.ops.promotion import promoted
from weft.ops.session import Handle
from weft.ops.tensor import Tensor, from_array, tensor_method

__all__ = [
    "broadcast_arrays", "broadcast_to", "concat", "expand_dims", "flip", "moveaxis", "permute_dims",
    "repeat", "reshape", "roll", "sliding_window", "squeeze", "stack", "tile", "unstack",
]  # fmt: skip

_COUNTS = "elements are repeated 0 times or more"


def axes_of(axis: Any, rank: int) -> tuple[int, ...]:
    """One axis, several, or None for all, counted from the front."""
    if axis is None:
        return tuple(range(rank))
    return normalise_axes(_whole_numbers(axis), rank, "axis")


def _whole_numbers(value: Any) -> tuple[int, ...]:
    """One whole number or several."""
    items = tuple(value) if isinstance(value, tuple | list) else (value,)
    for item in items:
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise UserError(f"whole numbers are wanted here, not {value!r}")
    return tuple(int(item) for item in items)


# -- shapes --------------------------------------------------------------------------------------


@tensor_method
@recorded
def broadcast_to(x: Handle, /, shape: Sequence[Dim]) -> Handle:
    """`x` repeated to a shape."""
    wanted = shape_of(shape)
    if not broadcasts(x.shape, wanted):
        raise OutOfRange(
            "BroadcastDimsInvalid",
            f"x {listed(x.shape)} does not broadcast to {listed(wanted)}",
            "axes are aligned at the last; each has the size wanted, or 1",
        )
    return x.broadcast_to(wanted)


@public
def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """All of them in the shape that they broadcast to together."""
    values = [as_tensor(array) for array in arrays]
    shape: Shape = reduce(broadcast_shapes, [value.shape for value in values], ())
    return [broadcast_to(value, shape) for value in values]


@recorded
def reshape(x: Handle, /, shape: Sequence[Dim], *, copy: bool | None = None) -> Handle:
    """The elements in row-major order under another shape; one size may be -1 and is inferred."""
    dims = shape if isinstance(shape, tuple | list) else (shape,)
    return x.reshape(dim if isinstance(dim, Symbol) else _whole_numbers(dim)[0] for dim in dims)


@tensor_method("reshape")
@told
def _reshape_method(x: Tensor, /, *shape: Any, copy: bool | None = None) -> Tensor:
    """`weft.reshape`; the sizes may also be written one by one: `x.reshape(2, -1)`."""
    one = len(shape) == 1 and isinstance(shape[0], tuple | list)
    return reshape(x, shape[0] if one else shape)


@tensor_method
@recorded
def expand_dims(x: Handle, /, axis: int | Sequence[int] = 0) -> Handle:
    """`x` with axes of size 1 inserted; positions are those of the result."""
    rank = x.rank + len(_whole_numbers(axis))
    places = normalise_axes(_whole_numbers(axis), rank, "axis")
    sizes = iter(x.shape)
    return x.reshape([1 if a in places else next(sizes) for a in range(rank)])


@tensor_method
@recorded
def squeeze(x: Handle, /, axis: int | Sequence[int] | None = None) -> Handle:
    """`x` without these axes, which have size 1; without all that have where none are named."""
    if axis is None:
        return x.reshape([dim for dim in x.shape if dim != 1])
    axes = axes_of(axis, x.rank)
    for at in axes:
        if x.shape[at] != 1:
            raise OutOfRange(
                "ShapeMismatch",
                f"axis {at} of x {listed(x.shape)} has size {x.shape[at]}, not 1",
                "only axes of size 1 can be left out",
            )
    return x.reshape([dim for a, dim in enumerate(x.shape) if a not in axes])


# -- axes ----------------------------------------------------------------------------------------


@recorded
def permute_dims(x: Handle, /, axes: Sequence[int]) -> Handle:
    """Axis `i` of the result is axis `axes[i]` of `x`."""
    perm = normalise_axes(_whole_numbers(axes), x.rank, "axes")
    if len(perm) != x.rank:
        raise OutOfRange(
            "InvalidAttributeValue",
            f"axes {tuple(axes)} is not a permutation of the {x.rank} axes of {listed(x.shape)}",
            "name every axis once",
        )
    return permuted(x, perm)


@tensor_method("permute_dims")
@told
def _permute_dims_method(x: Tensor, /, *axes: Any) -> Tensor:
    """`weft.permute_dims`; the axes may also be written one by one."""
    one = len(axes) == 1 and isinstance(axes[0], tuple | list)
    return permute_dims(x, axes[0] if one else axes)


@tensor_method
@recorded
def moveaxis(x: Handle, source: int | Sequence[int], destination: int | Sequence[int], /) -> Handle:
    """`x` with some axes at other positions and the rest in order."""
    origin, target = axes_of(source, x.rank), axes_of(destination, x.rank)
    if len(origin) != len(target):
        raise UserError(f"{len(origin)} axes cannot move to {len(target)} positions")
    places = dict(zip(target, origin, strict=True))
    rest = iter([axis for axis in range(x.rank) if axis not in origin])
    return permuted(x, [places[a] if a in places else next(rest) for a in range(x.rank)])


@tensor_method
@recorded
def flip(x: Handle, /, axis: int | Sequence[int] | None = None) -> Handle:
    """The elements along some axes, or all, in reverse."""
    for at in axes_of(axis, x.rank):
        x = flipped(x, at)
    return x


@tensor_method
@recorded
def roll(
    x: Handle, /, shift: int | Sequence[int], axis: int | Sequence[int] | None = None
) -> Handle:
    """Elements moved along an axis; those that leave at its end come in at its start. Without an
    axis the flattened tensor is rolled."""
    if axis is None:
        shifts = _whole_numbers(shift)
        if len(shifts) != 1 or isinstance(shift, tuple | list):
            raise UserError("several shifts need as many axes")
        return rolled(x.reshape((-1,)), shifts[0], 0).reshape(x.shape)
    axes = [normalise_axis(at, x.rank) for at in _whole_numbers(axis)]
    shifts = _whole_numbers(shift) * (len(axes) if isinstance(shift, int) else 1)
    if len(shifts) != len(axes):
        raise UserError(f"{len(shifts)} shifts do not go with {len(axes)} axes")
    for by, at in zip(shifts, axes, strict=True):
        x = rolled(x, by, at)
    return x


@tensor_method
@recorded
def sliding_window(x: Handle, /, size: int, step: int = 1, *, axis: int = -1) -> Handle:
    """The windows of `size` elements along an axis, one every `step` elements: the axis counts the
    windows, and a new last axis holds the elements of each."""
    at = normalise_axis(axis, x.rank)
    length = known(x.shape[at], f"axis {at}")
    (wide,), (apart,) = _whole_numbers(size), _whole_numbers(step)
    if not 0 <= wide <= length or apart < 1:
        raise OutOfRange(
            "InvalidAttributeValue",
            f"there are no windows of {size} elements, {step} apart, on axis {at} of x "
            f"{listed(x.shape)}",
            "a window fits into its axis, and the next one begins at least one element later",
        )
    starts = np.arange(0, length - wide + 1, apart)
    places = x.session.literal(starts[:, None] + np.arange(wide)[None, :], SI64)
    found = rows_at(x, places, at)
    order = [*range(at + 1), *range(at + 2, found.rank), at + 1]
    return permuted(found, order)


# -- joining and repeating -----------------------------------------------------------------------


def _check_tensors(arrays: Any) -> list[Tensor]:
    if isinstance(arrays, Tensor):
        raise UserError("a list of tensors is wanted here, not one tensor")
    values = [as_tensor(array) for array in arrays]
    if not values:
        raise UserError("at least one tensor is wanted")
    return values


def _promote_handles(values: Sequence[Handle]) -> list[Handle]:
    """Several handles in the dtype they have in common."""
    dtype = reduce(promoted, [value.dtype for value in values])
    return [value.cast(dtype) for value in values]


@public
def concat(arrays: Sequence[Tensor], /, axis: int | None = 0) -> Tensor:
    """Tensors one after the other along an axis; flattened first where it is None."""
    tensors = _check_tensors(arrays)
    joined: Tensor = captured(_concatenate_operands, tensors, user_line(), axis)
    copied = joined_data(tensors, lambda given: np.concatenate(given, axis))
    return joined if copied is None else copied


def _concatenate_operands(*operands: Any) -> Handle:
    *given, axis = operands
    values = _promote_handles(given)
    if axis is None:
        values, axis = [value.reshape((-1,)) for value in values], 0
    first = values[0]
    at = normalise_axis(axis, first.rank)
    for index, value in enumerate(values):
        same = [a for a in range(first.rank) if a != at]
        if value.rank != first.rank or any(value.shape[a] != first.shape[a] for a in same):
            raise OutOfRange(
                "ShapeMismatch",
                f"tensor 0 {listed(first.shape)} and tensor {index} {listed(value.shape)} differ "
                f"in more than axis {at}",
                "reshape them so that only the joined axis differs",
            )
    return first if len(values) == 1 else first.session.concat(values, at)


@public
def stack(arrays: Sequence[Tensor], /, axis: int = 0) -> Tensor:
    """Tensors of one shape along a new axis."""
    tensors = _check_tensors(arrays)
    parts = stacked_parts(tensors, axis)
    if parts is not None:
        return parts
    joined: Tensor = captured(_stack_operands, tensors, user_line(), axis)
    copied = joined_data(tensors, lambda given: np.stack(given, axis))
    return joined if copied is None else copied


def _stack_operands(*operands: Any) -> Handle:
    *given, axis = operands
    values = _promote_handles(given)
    first = values[0]
    for index, value in enumerate(values):
        if value.shape != first.shape:
            raise OutOfRange(
                "ShapeMismatch",
                f"tensor 0 {listed(first.shape)} and tensor {index} {listed(value.shape)} differ",
                "stacked tensors have one shape",
            )
    at = normalise_axis(axis, first.rank + 1)
    shape = (*first.shape[:at], 1, *first.shape[at:])
    rows = [value.reshape(shape) for value in values]
    return rows[0] if len(rows) == 1 else first.session.concat(rows, at)


@tensor_method
@recorded
def unstack(x: Handle, /, axis: int = 0) -> tuple[Handle, ...]:
    """The slices along an axis, each without it."""
    at = normalise_axis(axis, x.rank)
    shape = (*x.shape[:at], *x.shape[at + 1 :])
    size = known(x.shape[at], f"axis {at}")
    return tuple(window(x, at, i, 1).reshape(shape) for i in range(size))


@tensor_method
@recorded
def tile(x: Handle, repetitions: Sequence[int], /) -> Handle:
    """`x` repeated as a whole along each axis; the shorter of shape and repetitions gets leading
    ones."""
    times = _whole_numbers(repetitions)
    times = (1,) * (x.rank - len(times)) + times
    x = x.reshape((1,) * (len(times) - x.rank) + x.shape)
    for count in times:
        if count < 0:
            raise OutOfRange(
                "InvalidAttributeValue", f"repetitions {times} has a negative number", _COUNTS
            )
    return x if set(times) <= {1} else x.tile(repeats=times)


@tensor_method
@public
def repeat(x: Tensor, repeats: int | Tensor, /, axis: int | None = None) -> Tensor:
    """Each element several times in a row, along an axis or in the flattened tensor. Repeats that
    differ per element are read, since the result's size depends on them."""
    value = as_tensor(x)
    repeated: Tensor
    if isinstance(repeats, int):
        repeated = captured(_repeat_elements, [value], user_line(), repeats, axis)
        return repeated
    counts = as_tensor(repeats)
    if counts.ndim > 1 or not counts.dtype.is_integer:
        raise UserError(f"repeats must be a number or a vector of integers, not {counts.type}")
    each = read_elements(counts, "the size of the result").reshape(-1)
    if each.size == 1:
        repeated = captured(_repeat_elements, [value], user_line(), int(each[0]), axis)
        return repeated
    if (each < 0).any():
        raise OutOfRange("InvalidAttributeValue", "repeats has a negative number", _COUNTS)
    places = from_array(np.arange(each.size).repeat(each), value.arena)
    repeated = captured(_repeat_rows, [value, places], user_line(), axis, each.size)
    return repeated


def _repeat_elements(x: Handle, times: int, axis: int | None) -> Handle:
    if times < 0:
        raise OutOfRange("InvalidAttributeValue", f"repeats is {times}", _COUNTS)
    x, at = _flat_or_axis(x, axis)
    front, size, back = x.shape[:at], known(x.shape[at], f"axis {at}"), x.shape[at + 1 :]
    spread = x.reshape((*front, size, 1, *back)).broadcast_to((*front, size, times, *back))
    return spread.reshape((*front, size * times, *back))


def _repeat_rows(x: Handle, places: Handle, axis: int | None, count: int) -> Handle:
    x, at = _flat_or_axis(x, axis)
    if x.shape[at] != count:
        raise OutOfRange(
            "ShapeMismatch",
            f"{count} repeats do not go with {x.shape[at]} elements",
            "give one number, or one for each element",
        )
    return rows_at(x, places, at)


def _flat_or_axis(x: Handle, axis: int | None) -> tuple[Handle, int]:
    """The tensor and the axis meant; without one it is flattened."""
    return (x.reshape((-1,)), 0) if axis is None else (x, normalise_axis(axis, x.rank))
