"""Reading and writing at indices that are data.

Indices are si32 or si64 and never wrap around: one that is out of range is a violation when the
program runs, which tells the bound and the element at which the index stands, and its value too
unless the program runs on a GPU. Only the starts of dynamic slices are clamped.

Scatters turn every update into one position of the flattened operand and combine them there one
after the other; NumPy's unbuffered `ufunc.at` makes repeated positions add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.foundation.axes import normalise_axes, normalise_axis
from weft.foundation.dtypes import ANY, INDICES, NUMBERS, ORDERED, SI64, DType
from weft.foundation.errors import SpecViolation
from weft.foundation.whole_ops import combined_at
from weft.ptir.op import Array, EvalContext, Op, core_op
from weft.ptir.ops.along import take_along
from weft.ptir.ops.movement import window_at, window_fits
from weft.ptir.rules import (
    invalid_attribute,
    length_is,
    rank_at_least,
    rank_is,
    same_dim,
    same_dtype,
    same_shape,
    show,
    violation,
)
from weft.ptir.schema import USIZES, Choice, Isize, Maybe, Usize, WireEnum, attr
from weft.ptir.term import Cotangents, Pullback, Term, unknown_size
from weft.ptir.types import Dim, Shape, Symbol, TensorType


class ScatterFn(WireEnum):
    """How a scattered update meets the value already there, in wire order."""

    ADD = "Add"
    MAX = "Max"
    MIN = "Min"
    REPLACE = "Replace"


_GATHER = "GatherIndexOutOfBounds"
_SCATTER = "ScatterIndexOutOfBounds"


def _first_outside(indices: Array, limit: int) -> tuple[int, ...] | None:
    """The position of the first index that is not in [0, limit)."""
    if indices.size == 0 or (indices.min() >= 0 and indices.max() < limit):
        return None
    bad = (indices < 0) | (indices >= limit)
    return tuple(int(p) for p in np.unravel_index(int(np.argmax(bad)), indices.shape))


def _outside(code: str, indices: Array, at: tuple[int, ...], limit: int, of: str) -> SpecViolation:
    where = f"index {indices[at]} at {show(at)} of the indices"
    return violation(code, f"{where} is outside [0, {limit}), the range of {of}")


def _check_range(indices: Array, limit: int, axis: int, code: str) -> None:
    """Every index is in [0, limit); the first that is not is named with its position."""
    at = _first_outside(indices, limit)
    if at is not None:
        raise _outside(code, indices, at, limit, f"axis {axis} of x")


@core_op(tag=18, spec=None)
class Take(Op):
    """`out[i..., j...] = x[indices[i...], j...]`: rows of `x` along axis 0, in the shape of the
    indices. Each index is in [0, x.shape[0])."""

    operands = ("x", "indices")
    dtypes = {"x": ANY, "indices": INDICES}

    def infer(self, *types: TensorType) -> TensorType:
        x, indices = types
        rank_at_least(x, 1, "x")
        return x.with_shape((*indices.shape, *x.shape[1:]))

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        x, indices = args
        _check_range(indices, x.shape[0], 0, _GATHER)
        return np.asarray(np.take(x, indices, axis=0), x.dtype)

    def vjp(self, at: Pullback) -> Cotangents:
        g, (x, indices) = at.cotangent, at.operands
        window = range(indices.rank, g.rank)
        total = x.like(0).scatter_add(
            indices, g, update_window_dims=tuple(window), inserted_window_dims=(0,),
            scatter_dims_to_operand_dims=(0,),
        )  # fmt: skip
        return total, None


def _check_along(x: TensorType, other: TensorType, axis: int, name: str) -> int:
    """`other` has the shape of `x` but for one axis, which is returned normalised."""
    along = normalise_axis(axis, x.rank)
    rank_is(other, x.rank, name)
    for d in range(x.rank):
        if d != along:
            same_dim(x.shape[d], other.shape[d], f"axis {d} of x and {name} differs")
    return along


@core_op(tag=19)
class Gather(Op):
    """`out[i] = x[i with i[axis] replaced by indices[i]]`. `indices` has the shape of `x` except
    along `axis`, where it may have any extent; each index is in [0, x.shape[axis])."""

    operands = ("x", "indices")
    dtypes = {"x": ANY, "indices": INDICES}

    axis: int = attr(Isize())

    def infer(self, *types: TensorType) -> TensorType:
        x, indices = types
        _check_along(x, indices, self.axis, "indices")
        return x.with_shape(indices.shape)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        x, indices = args
        axis = normalise_axis(self.axis, x.ndim)
        _check_range(indices, x.shape[axis], axis, _GATHER)
        return take_along(x, indices, axis)

    def vjp(self, at: Pullback) -> Cotangents:
        x, indices = at.operands
        zeros = x.like(0)
        return zeros.scatter_reduce(indices, at.cotangent, axis=self.axis, reduce="add"), None


def _row_major(shape: Sequence[int]) -> list[int]:
    """How far apart neighbours along each axis are in the flattened array."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _offsets(extents: Sequence[int], strides: Sequence[int]) -> Array:
    """The flat position of every index of a box, in the shape of the box."""
    total = np.zeros(tuple(extents), np.intp)
    for axis, (extent, stride) in enumerate(zip(extents, strides, strict=True)):
        column = np.arange(extent, dtype=np.intp) * stride
        total += column.reshape(-1, *(1 for _ in extents[axis + 1 :]))
    return total


_DEFINED: Mapping[ScatterFn, frozenset[DType]] = {
    ScatterFn.ADD: NUMBERS,
    ScatterFn.MAX: ORDERED,
    ScatterFn.MIN: ORDERED,
    ScatterFn.REPLACE: ANY,
}


def _scatter(x: Array, positions: Array, updates: Array, fn: ScatterFn) -> Array:
    """A copy of `x` with each update combined into its flat position, one after the other."""
    return combined_at(x, positions, updates, str(fn)).reshape(x.shape)


def _check_ascending(axes: Sequence[int], rank: int, name: str) -> tuple[int, ...]:
    found = normalise_axes(axes, rank, name)
    if list(found) != sorted(found):
        raise invalid_attribute(f"{name} {list(axes)} must be in ascending order")
    return found


@core_op(tag=20, spec="ScatterSpec")
class ScatterAdd(Op):
    """A copy of `x` to which windows of `updates` are added at positions that `indices` holds.

    `index_vector_dim` is the axis of `indices` along which one index vector lies; without it (or
    when it equals the rank of `indices`) every element is a vector of length 1. Component `k` of a
    vector is a position on axis `scatter_dims_to_operand_dims[k]` of `x`. The axes of `updates` in
    `update_window_dims` run over the window, the others over the remaining axes of `indices`, in
    order. The window axes of `x` are those in neither `inserted_window_dims` nor
    `scatter_dims_to_operand_dims`; as in XLA an indexed axis may be a window axis as well, when
    `update_window_dims` has an entry for every axis that is not inserted. The window then begins at
    the index; on all other window axes it begins at 0. It may be smaller than `x`.

    Windows that overlap add up. A window that is not inside `x` is rejected. Narrow floats are
    added in f32 and rounded once, integers wrap."""

    operands = ("x", "indices", "updates")
    dtypes = {"x": NUMBERS, "indices": INDICES, "updates": NUMBERS}

    update_window_dims: tuple[int, ...] = attr(USIZES)
    inserted_window_dims: tuple[int, ...] = attr(USIZES)
    scatter_dims_to_operand_dims: tuple[int, ...] = attr(USIZES)
    index_vector_dim: int | None = attr(Maybe(Usize()))

    def infer(self, *types: TensorType) -> TensorType:
        x, indices, updates = types
        same_dtype(x, updates, "x and updates")
        window = self.window_axes(x.rank)
        self._check_vectors(x, indices)
        batch = self._batch_dims(indices.shape)
        expected = len(batch) + len(self.update_window_dims)
        if updates.rank != expected:
            raise violation(
                "RankMismatch",
                f"updates has rank {updates.rank}, not {expected}: {len(batch)} scattered axes and "
                f"{len(self.update_window_dims)} window axes",
            )
        _check_ascending(self.update_window_dims, updates.rank, "update_window_dims")
        scattered = (d for d in range(updates.rank) if d not in self.update_window_dims)
        for axis, dim in zip(scattered, batch, strict=True):
            same_dim(updates.shape[axis], dim, f"axis {axis} of updates and the indices differs")
        for axis, target in zip(self.update_window_dims, window, strict=True):
            self._check_window(x, updates, axis, target)
        return x

    def _check_window(self, x: TensorType, updates: TensorType, axis: int, target: int) -> None:
        size, dim = updates.shape[axis], x.shape[target]
        if isinstance(size, int) and isinstance(dim, int) and size > dim:
            raise violation(
                "ShapeMismatch",
                f"the window of updates on axis {axis} has size {size}, more than the {dim} of "
                f"axis {target} of x",
            )

    def _check_vectors(self, x: TensorType, indices: TensorType) -> None:
        scattered = normalise_axes(
            self.scatter_dims_to_operand_dims, x.rank, "scatter_dims_to_operand_dims"
        )
        axis = self.vector_axis(indices.rank)
        if axis > indices.rank:
            raise invalid_attribute(
                f"index_vector_dim {axis} is more than the rank {indices.rank} of the indices"
            )
        length: Dim = 1 if axis == indices.rank else indices.shape[axis]
        what = "the lengths of the index vectors and of scatter_dims_to_operand_dims differ"
        same_dim(length, len(scattered), what)

    def vector_axis(self, rank: int) -> int:
        return rank if self.index_vector_dim is None else self.index_vector_dim

    def _batch_dims(self, shape: Shape) -> Shape:
        axis = self.vector_axis(len(shape))
        return (*shape[:axis], *shape[axis + 1 :])

    def window_axes(self, rank: int) -> tuple[int, ...]:
        """The axes of x that the window dims of the updates run over, in order."""
        inserted = _check_ascending(self.inserted_window_dims, rank, "inserted_window_dims")
        kept = tuple(d for d in range(rank) if d not in inserted)
        plain = tuple(d for d in kept if d not in self.scatter_dims_to_operand_dims)
        wanted = len(self.update_window_dims)
        if wanted == len(kept):
            return kept
        if wanted == len(plain):
            return plain
        raise invalid_attribute(
            f"update_window_dims has {wanted} entries, but x has {len(plain)} axes that are neither"
            f" inserted nor indexed and {len(kept)} that are not inserted"
        )

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        x, indices, updates = args
        axes = self.window_axes(x.ndim)
        sizes = [updates.shape[d] for d in self.update_window_dims]
        starts = self._starts(x, indices, dict(zip(axes, sizes, strict=True)))
        if updates.size == 0:
            return x
        strides = _row_major(x.shape)
        window = _offsets(sizes, [strides[axis] for axis in axes])
        positions = starts.reshape(-1, 1) + window.reshape(1, -1)
        scattered = (d for d in range(updates.ndim) if d not in self.update_window_dims)
        ordered = updates.transpose([*scattered, *self.update_window_dims])
        return _scatter(x, positions, ordered, ScatterFn.ADD)

    def _starts(self, x: Array, indices: Array, sizes: Mapping[int, int]) -> Array:
        """The flat position in `x` where each window begins, after all are found to lie inside."""
        along = self.vector_axis(indices.ndim)
        explicit = along < indices.ndim
        components = np.moveaxis(indices, along, 0) if explicit else (indices,)
        starts = np.zeros((*indices.shape[:along], *indices.shape[along + 1 :]), np.intp)
        strides = _row_major(x.shape)
        for k, axis in enumerate(self.scatter_dims_to_operand_dims):
            component = np.asarray(components[k])
            size = sizes.get(axis, 1)
            limit = x.shape[axis] - size + 1
            at = _first_outside(component, limit)
            if at is not None:
                place = (*at[:along], k, *at[along:]) if explicit else at
                of = f"axis {axis} of x" + (f" for windows of {size}" if axis in sizes else "")
                raise _outside(_SCATTER, indices, place, limit, of)
            starts += component.astype(np.intp) * strides[axis]
        return starts

    def vjp(self, at: Pullback) -> Cotangents:
        g, (_, indices, updates) = at.cotangent, at.operands
        return g, None, self._windows(g, indices, updates) if at.wanted[2] else None

    def _windows(self, g: Term, indices: Term, updates: Term) -> Term:
        """The windows of `g` that the updates were added to."""
        axes = self.window_axes(g.rank)
        scattered = [d for d in range(updates.rank) if d not in self.update_window_dims]
        sizes = [updates.shape[d] for d in self.update_window_dims]
        order = [*scattered, *self.update_window_dims]
        if self._takes_rows(g, indices, sizes, axes):
            found = g.take(indices)
        else:
            positions = self._positions(g, indices, axes, sizes)
            total = math.prod(g.tensor.static_shape)
            found = g.reshape([total]).take(positions)
        return found.transpose([order.index(d) for d in range(updates.rank)])

    def _takes_rows(
        self, g: Term, indices: Term, sizes: Sequence[Dim], axes: Sequence[int]
    ) -> bool:
        """Whether the windows are whole rows along axis 0, whatever the sizes are."""
        plain = self.vector_axis(indices.rank) == indices.rank
        whole = tuple(axes) == tuple(range(1, g.rank)) and tuple(sizes) == g.shape[1:]
        return plain and whole and self.scatter_dims_to_operand_dims == (0,)

    def _positions(self, g: Term, indices: Term, axes: Sequence[int], sizes: Sequence[Dim]) -> Term:
        """Where each element of each window lies in the flattened operand: an axis for each
        scattered axis of the updates, then one for each window axis."""
        for dim in (*g.shape, *sizes):
            if isinstance(dim, Symbol):
                raise unknown_size(dim)
        strides = _row_major(g.tensor.static_shape)
        along = self.vector_axis(indices.rank)
        batch = self._batch_dims(indices.shape)
        dims = [*batch, *sizes]
        total = g.full(0, dims, SI64)
        for k, axis in enumerate(self.scatter_dims_to_operand_dims):
            component = indices if along == indices.rank else indices.part(along, k, 1)
            start = component.cast(SI64).reshape([*batch, *(1 for _ in sizes)])
            total = total + start.broadcast_to(dims) * strides[axis]
        for offset, axis in enumerate(axes):
            total = total + g.counting(dims, len(batch) + offset) * strides[axis]
        return total


@core_op(tag=21)
class ScatterReduce(Op):
    """A copy of `x` in which every update is combined with the element at its index: for each
    position `i` of `updates`, `x[i with i[axis] replaced by indices[i]]`. `indices` and `updates`
    have the same shape, which is that of `x` except along `axis`; each index is in [0,
    x.shape[axis]).

    The value of `x` itself takes part. `add` adds narrow floats in f32 and rounds once, integers
    wrap; `max` and `min` propagate NaN and are or and and on i1; `replace` takes the update that
    comes last in row-major order. `add` is defined for numbers, `max` and `min` for all but complex
    dtypes, `replace` for all."""

    operands = ("x", "indices", "updates")
    dtypes = {"x": ANY, "indices": INDICES, "updates": ANY}

    axis: int = attr(Isize())
    reduce: ScatterFn = attr(Choice(ScatterFn))

    @property
    def dtype_table(self) -> Mapping[str, frozenset[DType]]:
        defined = _DEFINED[self.reduce]
        return {"x": defined, "indices": INDICES, "updates": defined}

    def infer(self, *types: TensorType) -> TensorType:
        x, indices, updates = types
        same_dtype(x, updates, "x and updates")
        _check_along(x, updates, self.axis, "updates")
        same_shape(indices, updates, "indices and updates")
        return x

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        x, indices, updates = args
        axis = normalise_axis(self.axis, x.ndim)
        _check_range(indices, x.shape[axis], axis, _SCATTER)
        if updates.size == 0:
            return x
        strides = _row_major(x.shape)
        along, strides[axis] = strides[axis], 0
        positions = _offsets(updates.shape, strides) + indices.astype(np.intp) * along
        return _scatter(x, positions, updates, self.reduce)

    def vjp(self, at: Pullback) -> Cotangents:
        """Equal extreme values share the cotangent equally, including that of `x`. With `replace`,
        only the last update of an element gets the cotangent."""
        g, (_, indices, updates) = at.cotangent, at.operands
        match self.reduce:
            case ScatterFn.ADD:
                return g, None, g.gather(indices, axis=self.axis)
            case ScatterFn.REPLACE:
                zeros = updates.like(0)
                kept = g.scatter_reduce(indices, zeros, axis=self.axis, reduce="replace")
                return kept, None, self._last(g, indices, updates)
            case _:
                return self._share_among_equal(at)

    def _last(self, g: Term, indices: Term, updates: Term) -> Term:
        """The cotangents of the updates that nothing replaced: their number is what would have been
        left, had the numbers been scattered."""
        axis = normalise_axis(self.axis, g.rank)
        number = g.counting(updates.shape, axis)
        left = g.full(-1, g.shape, SI64).scatter_reduce(
            indices, number, axis=axis, reduce="replace"
        )
        # An update stays where the number that was left at its place is its own.
        stays = left.gather(indices, axis=axis).compare(number, "equal")
        return g.gather(indices, axis=axis).where(stays)

    def _share_among_equal(self, at: Pullback) -> Cotangents:
        g, (x, indices, updates) = at.cotangent, at.operands
        own = x.compare(at.result, "equal").cast(g.dtype)
        found = at.result.gather(indices, axis=self.axis)
        others = updates.compare(found, "equal").cast(g.dtype)
        # How many have the extreme value at each place, the value of x itself among them.
        count = own.scatter_reduce(indices, others, axis=self.axis, reduce="add")
        share = g / count
        return own * share, None, others * share.gather(indices, axis=self.axis)


def _check_start(x: TensorType, sizes: Sequence[int], start: TensorType, what: str) -> None:
    length_is(sizes, x.rank, "sizes")
    rank_is(start, 1, "start")
    same_dim(start.shape[0], x.rank, "the length of start and the rank of x differ")
    window_fits([0] * x.rank, sizes, x, what)


def _clamp_window(x: Array, sizes: Sequence[int], start: Array) -> tuple[Any, ...]:
    """The window whose start is moved as little as needed for it to lie inside `x`."""
    bounds = zip(start.tolist(), x.shape, sizes, strict=True)
    return window_at([min(max(at, 0), dim - size) for at, dim, size in bounds], sizes)


@core_op(tag=22)
class DynamicSlice(Op):
    """The window of `x` that begins at `start` and has shape `sizes`. `start` has one entry per
    axis, each clamped to [0, x.shape[d] - sizes[d]]: an index out of range moves the window and is
    not an error. A window larger than `x` is rejected."""

    operands = ("x", "start")
    dtypes = {"x": ANY, "start": INDICES}

    sizes: tuple[int, ...] = attr(USIZES)

    def infer(self, *types: TensorType) -> TensorType:
        x, start = types
        _check_start(x, self.sizes, start, "dynamic_slice")
        return x.with_shape(self.sizes)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        x, start = args
        window: Array = x[_clamp_window(x, self.sizes, start)]
        return window

    def vjp(self, at: Pullback) -> Cotangents:
        x, start = at.operands
        return x.like(0).dynamic_update_slice(at.cotangent, start, sizes=self.sizes), None


@core_op(tag=23)
class DynamicUpdateSlice(Op):
    """A copy of `x` with the window that begins at `start` replaced by `update`, whose shape is
    `sizes`. `start` is clamped as in `dynamic_slice`."""

    operands = ("x", "update", "start")
    dtypes = {"x": ANY, "update": ANY, "start": INDICES}

    sizes: tuple[int, ...] = attr(USIZES)

    def infer(self, *types: TensorType) -> TensorType:
        x, update, start = types
        same_dtype(x, update, "x and update")
        rank_is(update, x.rank, "update")
        _check_start(x, self.sizes, start, "dynamic_update_slice")
        for axis, (dim, size) in enumerate(zip(update.shape, self.sizes, strict=True)):
            same_dim(dim, size, f"axis {axis} of update and sizes differs")
        return x

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        x, update, start = args
        result = np.array(x, order="C")
        result[_clamp_window(x, self.sizes, start)] = update
        return result

    def vjp(self, at: Pullback) -> Cotangents:
        g, (_, update, start) = at.cotangent, at.operands
        outside = g.dynamic_update_slice(update.like(0), start, sizes=self.sizes)
        return outside, g.dynamic_slice(start, sizes=self.sizes), None
