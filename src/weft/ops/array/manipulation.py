"""Functions that place elements and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from weft.foundation.axes import normalise_axes, normalise_axis
from weft.foundation.dims import Shape, Symbol, shape_of
from weft.foundation.errors import OutOfRange, UserError
from weft.ops.arithmetic import as_tensor, broadcast_shapes, broadcasts, listed
from weft.ops.array.movement import flipped, permuted, rows_at, window
from weft.ops.array.operands import given, known, taken
from weft.ops.calls import public
from weft.ops.promotion import promoted
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor, from_array, tensor_method

__all__ = [
    "broadcast_arrays", "broadcast_to", "concat", "expand_dims", "flip", "moveaxis", "permute_dims",
    "repeat", "reshape", "roll", "squeeze", "stack", "tile", "unstack",
]  # fmt: skip


def axes_of(axis: Any, rank: int) -> tuple[int, ...]:
    """One axis, several, or None for all, counted from the front."""
    if axis is None:
        return tuple(range(rank))
    return normalise_axes(_tuple(axis), rank, "axis")


def _tuple(value: Any) -> tuple[int, ...]:
    items = tuple(value) if isinstance(value, tuple | list) else (value,)
    for item in items:
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise UserError(f"whole numbers are wanted here, not {value!r}")
    return tuple(int(item) for item in items)


# -- shapes --------------------------------------------------------------------------------------


@tensor_method
@public
def broadcast_to(x: Tensor, /, shape: Sequence[int]) -> Tensor:
    """`x` repeated to a shape."""
    value = taken(x)
    wanted = shape_of(shape)
    if not broadcasts(value.shape, wanted):
        raise OutOfRange(
            "BroadcastDimsInvalid",
            f"x {listed(value.shape)} does not broadcast to {listed(wanted)}",
            "axes are aligned at the last; each has the size wanted, or 1",
        )
    return given(value.broadcast_to(wanted), x)


@public
def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """All of them in the shape that they broadcast to together."""
    values = [as_tensor(array) for array in arrays]
    shape: Shape = reduce(broadcast_shapes, [value.shape for value in values], ())
    return [given(taken(value).broadcast_to(shape), value) for value in values]


@public
def reshape(x: Tensor, /, shape: Sequence[int], *, copy: bool | None = None) -> Tensor:
    """The elements in row-major order under another shape; one size may be -1 and is inferred."""
    dims = shape if isinstance(shape, tuple | list) else (shape,)
    wanted = tuple(dim if isinstance(dim, Symbol) else _tuple(dim)[0] for dim in dims)
    return given(taken(x).reshape(wanted), x)


@tensor_method("reshape")
def _reshape_method(x: Tensor, /, *shape: Any, copy: bool | None = None) -> Tensor:
    """`weft.reshape`; the sizes may also be written one by one: `x.reshape(2, -1)`."""
    one = len(shape) == 1 and isinstance(shape[0], tuple | list)
    return reshape(x, shape[0] if one else shape, copy=copy)


@tensor_method
@public
def expand_dims(x: Tensor, /, axis: int | Sequence[int] = 0) -> Tensor:
    """`x` with axes of size 1 inserted; positions are those of the result."""
    value = taken(x)
    places = normalise_axes(_tuple(axis), value.rank + len(_tuple(axis)), "axis")
    sizes = iter(value.shape)
    rank = value.rank + len(places)
    return given(value.reshape([1 if a in places else next(sizes) for a in range(rank)]), x)


@tensor_method
@public
def squeeze(x: Tensor, /, axis: int | Sequence[int]) -> Tensor:
    """`x` without these axes, which have size 1."""
    value = taken(x)
    axes = axes_of(axis, value.rank)
    for at in axes:
        if value.shape[at] != 1:
            raise OutOfRange(
                "ShapeMismatch",
                f"axis {at} of x {listed(value.shape)} has size {value.shape[at]}, not 1",
                "only axes of size 1 can be left out",
            )
    return given(value.reshape([d for a, d in enumerate(value.shape) if a not in axes]), x)


# -- axes ----------------------------------------------------------------------------------------


@public
def permute_dims(x: Tensor, /, axes: Sequence[int]) -> Tensor:
    """Axis `i` of the result is axis `axes[i]` of `x`."""
    value = taken(x)
    perm = normalise_axes(_tuple(axes), value.rank, "axes")
    if len(perm) != value.rank:
        raise OutOfRange(
            "InvalidAttributeValue",
            f"axes {tuple(axes)} is not a permutation of the {value.rank} axes of "
            f"{listed(value.shape)}",
            "name every axis once",
        )
    return given(permuted(value, perm), x)


@tensor_method("permute_dims")
def _permute_dims_method(x: Tensor, /, *axes: Any) -> Tensor:
    """`weft.permute_dims`; the axes may also be written one by one."""
    one = len(axes) == 1 and isinstance(axes[0], tuple | list)
    return permute_dims(x, axes[0] if one else axes)


@tensor_method
@public
def moveaxis(x: Tensor, source: int | Sequence[int], destination: int | Sequence[int], /) -> Tensor:
    """`x` with some axes at other positions and the rest in order."""
    value = taken(x)
    origin, target = axes_of(source, value.rank), axes_of(destination, value.rank)
    if len(origin) != len(target):
        raise UserError(f"{len(origin)} axes cannot move to {len(target)} positions")
    places = dict(zip(target, origin, strict=True))
    rest = iter([axis for axis in range(value.rank) if axis not in origin])
    perm = [places[a] if a in places else next(rest) for a in range(value.rank)]
    return given(permuted(value, perm), x)


@tensor_method
@public
def flip(x: Tensor, /, *, axis: int | Sequence[int] | None = None) -> Tensor:
    """The elements along some axes, or all, in reverse."""
    value = taken(x)
    for at in axes_of(axis, value.rank):
        value = flipped(value, at)
    return given(value, x)


@tensor_method
@public
def roll(
    x: Tensor, /, shift: int | Sequence[int], *, axis: int | Sequence[int] | None = None
) -> Tensor:
    """Elements moved along an axis; those that leave at its end come in at its start. Without an
    axis the flattened tensor is rolled."""
    value = taken(x)
    if axis is None:
        if not isinstance(shift, int):
            raise UserError("several shifts need as many axes")
        return given(_rolled(value.reshape((-1,)), shift, 0).reshape(value.shape), x)
    axes = [normalise_axis(at, value.rank) for at in _tuple(axis)]
    shifts = _tuple(shift) * (len(axes) if isinstance(shift, int) else 1)
    if len(shifts) != len(axes):
        raise UserError(f"{len(shifts)} shifts do not go with {len(axes)} axes")
    for by, at in zip(shifts, axes, strict=True):
        value = _rolled(value, by, at)
    return given(value, x)


def _rolled(x: Handle, shift: int, axis: int) -> Handle:
    size = known(x.shape[axis], f"axis {axis}")
    split = -shift % size if size else 0
    if split == 0:
        return x
    return window(x, axis, split, size - split).concat(window(x, axis, 0, split), axis)


# -- joining and repeating -----------------------------------------------------------------------


def joined_operands(arrays: Sequence[Any]) -> list[Handle]:
    """Several tensors in the dtype they have in common."""
    if isinstance(arrays, Tensor):
        raise UserError("a list of tensors is wanted here, not one tensor")
    values = [as_tensor(array) for array in arrays]
    if not values:
        raise UserError("at least one tensor is wanted")
    dtype = reduce(promoted, [value.dtype for value in values])
    session = Session.of(*values)
    return [session.import_(value).cast(dtype) for value in values]


@public
def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """Tensors one after the other along an axis; flattened first where it is None."""
    values = joined_operands(arrays)
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
    joined = first if len(values) == 1 else first.session.concat(values, at)
    return given(joined, *arrays)


@public
def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Tensors of one shape along a new axis."""
    values = joined_operands(arrays)
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
    return given(rows[0] if len(rows) == 1 else first.session.concat(rows, at), *arrays)


@tensor_method
@public
def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis, each without it."""
    value = taken(x)
    at = normalise_axis(axis, value.rank)
    shape = (*value.shape[:at], *value.shape[at + 1 :])
    size = known(value.shape[at], f"axis {at}")
    return tuple(given(window(value, at, i, 1).reshape(shape), x) for i in range(size))


@tensor_method
@public
def tile(x: Tensor, repetitions: Sequence[int], /) -> Tensor:
    """`x` repeated as a whole along each axis; the shorter of shape and repetitions gets leading
    ones."""
    value = taken(x)
    times = _tuple(repetitions)
    times = (1,) * (value.rank - len(times)) + times
    value = value.reshape((1,) * (len(times) - value.rank) + value.shape)
    for count in times:
        if count < 0:
            raise OutOfRange("InvalidAttributeValue", f"repetitions {times} has a negative number")
    return given(value if set(times) <= {1} else value.tile(repeats=times), x)


@tensor_method
@public
def repeat(x: Tensor, repeats: int | Tensor, /, *, axis: int | None = None) -> Tensor:
    """Each element several times in a row, along an axis or in the flattened tensor. Repeats that
    differ per element are read, since the result's size depends on them."""
    value = taken(x)
    if axis is None:
        value, axis = value.reshape((-1,)), 0
    at = normalise_axis(axis, value.rank)
    if isinstance(repeats, int):
        return given(_repeated(value, repeats, at), x)
    counts = as_tensor(repeats)
    if counts.ndim > 1 or not counts.dtype.is_integer:
        raise UserError(f"repeats must be a number or a vector of integers, not {counts.type}")
    if counts.size == 1:
        return given(_repeated(value, int(counts.item()), at), x)
    size = known(value.shape[at], f"axis {at}")
    if counts.shape != (size,):
        raise OutOfRange(
            "ShapeMismatch", f"{counts.shape[0]} repeats do not go with {size} elements"
        )
    each = counts._elements()
    if (each < 0).any():
        raise OutOfRange("InvalidAttributeValue", "repeats has a negative number")
    places = from_array(np.arange(size).repeat(each))
    return given(rows_at(value, value.session.import_(places), at), x)


def _repeated(x: Handle, times: int, axis: int) -> Handle:
    if times < 0:
        raise OutOfRange("InvalidAttributeValue", f"repeats is {times}, but must not be negative")
    front, size, back = x.shape[:axis], known(x.shape[axis], f"axis {axis}"), x.shape[axis + 1 :]
    spread = x.reshape((*front, size, 1, *back)).broadcast_to((*front, size, times, *back))
    return spread.reshape((*front, size * times, *back))
