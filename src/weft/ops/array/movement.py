"""Movements of elements that take more than one instruction, on handles."""

from __future__ import annotations

from collections.abc import Sequence

from weft.foundation.axes import inverse
from weft.foundation.dims import Dim
from weft.foundation.dtypes import I1, SI64, DType
from weft.ops.array.operands import known
from weft.ops.session import Handle


def zero_of(dtype: DType) -> bool | int:
    """What fills a tensor of this dtype with zeros."""
    return False if dtype is I1 else 0


def rows_at(x: Handle, indices: Handle, axis: int) -> Handle:
    """The positions `indices` along an axis, whose place the axes of the indices take."""
    if axis == 0:
        return x.take(indices)
    front = [axis, *(a for a in range(x.rank) if a != axis)]
    found = x.transpose(front).take(indices)
    return moved(found, range(indices.rank), axis)


def moved(x: Handle, axes: Sequence[int], to: int) -> Handle:
    """The leading axes `axes`, which are 0, 1, ..., moved behind `to` of the others."""
    count = len(axes)
    others = list(range(count, x.rank))
    perm = [*others[:to], *axes, *others[to:]]
    return x if perm == list(range(x.rank)) else x.transpose(perm)


def permuted(x: Handle, perm: Sequence[int]) -> Handle:
    """Axis `i` of the result is axis `perm[i]`; `x` itself where nothing moves."""
    return x if list(perm) == list(range(x.rank)) else x.transpose(perm)


def unpermuted(x: Handle, perm: Sequence[int]) -> Handle:
    """What `permuted` did, undone."""
    return permuted(x, inverse(perm))


def flipped(x: Handle, axis: int) -> Handle:
    """The elements along an axis in reverse."""
    size = known(x.shape[axis], f"axis {axis}")
    if size < 2:
        return x
    backwards = (size - 1) - x.session.iota(SI64, (size,), 0)
    return rows_at(x, backwards, axis)


def window(x: Handle, axis: int, start: int, size: int) -> Handle:
    """`size` elements along an axis, from `start` on. Where other axes are dynamic the window is
    gathered, since a slice names every size."""
    if start == 0 and x.shape[axis] == size:
        return x
    sizes = [dim for dim in x.shape if isinstance(dim, int)]
    if len(sizes) == x.rank:
        starts = [0] * x.rank
        starts[axis], sizes[axis] = start, size
        return x.session.emit("slice", x, starts=starts, sizes=sizes)
    positions = x.session.iota(SI64, (size,), 0)
    return rows_at(x, positions + start if start else positions, axis)


def every(x: Handle, axis: int, step: int) -> Handle:
    """Every `step`-th element along an axis, from the first on: the axis becomes rows of `step`
    elements, whose first column is kept."""
    size = x.shape[axis]
    assert isinstance(size, int)
    if step == 1 or size <= 1:
        return x
    rows = -(-size // step)
    x = pad_axis_end(x, axis, rows * step - size)
    shape: list[Dim] = [*x.shape[:axis], rows, step, *x.shape[axis + 1 :]]
    column = window(x.reshape(shape), axis + 1, 0, 1)
    return column.reshape([*x.shape[:axis], rows, *x.shape[axis + 1 :]])


def pad_axis_end(x: Handle, axis: int, high: int) -> Handle:
    """Zeros after the elements of an axis."""
    if high == 0:
        return x
    none, after = [0] * x.rank, [0] * x.rank
    after[axis] = high
    fill = zero_of(x.dtype)
    return x.session.emit("pad", x, low=none, high=after, interior=none, pad_value=fill)


def rolled(x: Handle, shift: int, axis: int) -> Handle:
    """Elements moved along an axis; those that leave at its end come in at its start."""
    size = known(x.shape[axis], f"axis {axis}")
    split = -shift % size if size else 0
    if split == 0:
        return x
    return window(x, axis, split, size - split).concat(window(x, axis, 0, split), axis)
