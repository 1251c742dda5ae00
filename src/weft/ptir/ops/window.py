"""Sliding windows: patches as a tensor of their own, and reductions over each window.

Both ops see windows through strides of the (padded) operand; only the result is materialised.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from weft.foundation import limits, numeric
from weft.foundation.dtypes import ANY, SI64, UI8, DType, as_dtype
from weft.foundation.errors import Unimplemented
from weft.ptir.literal import ScalarLiteral, scalar_literal
from weft.ptir.op import Array, EvalContext, Op, core_op
from weft.ptir.ops.movement import check_pad_value, padded
from weft.ptir.ops.reduce_kind import DEFINED, ReduceKind, reduce_identity, ufunc
from weft.ptir.rules import accumulator, all_positive, invalid_attribute, length_is, rank_at_least
from weft.ptir.schema import OPTIONAL_DTYPE, PADDING, USIZES, Choice, PerAxis, ScalarOf, attr
from weft.ptir.term import Cotangents, Pullback, Term, unknown_size
from weft.ptir.types import UNKNOWN, Dim, Symbol, TensorType, multiply_dims


def _dilated_extent(extent: int, step: int) -> int:
    """How many places `extent` elements take that lie `step` apart."""
    return (extent - 1) * step + 1 if extent else 0


def _window_count(
    dim: Dim, span: int, stride: int, padding: tuple[int, int], *, axis: int, base: int = 1
) -> Dim:
    """How many windows of `span` places there are along an axis of size `dim`."""
    around = sum(padding)
    if isinstance(dim, Symbol):
        return dim if (around, stride, base) == (span - 1, 1, 1) else UNKNOWN
    places = _dilated_extent(dim, base) + around
    if places == 0:
        return 0
    if span > places:
        raise invalid_attribute(
            f"the window on axis {axis} spans {span} places, more than the {places} of the "
            "padded operand"
        )
    return (places - span) // stride + 1


def _board(
    x: Array, low: Sequence[int], shape: Sequence[int], steps: Sequence[int], fill: Array
) -> Array:
    """The operand with its padding; itself where there is none."""
    if x.shape == tuple(shape):
        return x
    # Padding may be far larger than operand and result, which are all that was checked before.
    count = math.prod(shape) * x.dtype.itemsize
    limits.check_bytes(count, "the padded operand of a window op", limits.current())
    return padded(x, low, shape, steps, fill)


_MOST_PIECES = 1024
"""How many instructions the gradient of a window may have along one axis."""


def _known_extent(x: Term, axis: int) -> int:
    """The extent of an axis in numbers."""
    dim = x.shape[axis]
    if isinstance(dim, Symbol):
        raise unknown_size(dim)
    return dim


@core_op(tag=27)
class ExtractPatches(Op):
    """Every window of a channels-last operand `x[N, spatial..., C]` as one row: the result is
    `[N, out_spatial..., prod(window) * C]`, and a row has the layout `(window..., C)`.

    On each spatial axis the window has `window` elements `dilation` apart, moves by `strides`, and
    runs over `x` with `padding` (low, high) elements of `pad_value` around it:
    `out = (in + low + high - ((window - 1) * dilation + 1)) / stride + 1`, rounded down. A window
    larger than the padded axis is rejected, except that a padded axis of size 0 has no windows."""

    operands = ("x",)
    dtypes = {"x": ANY}

    window: tuple[int, ...] = attr(USIZES)
    strides: tuple[int, ...] = attr(USIZES, usual=PerAxis(1, besides=2))
    dilation: tuple[int, ...] = attr(USIZES, usual=PerAxis(1, besides=2))
    padding: tuple[tuple[int, int], ...] = attr(PADDING, usual=PerAxis((0, 0), besides=2))
    pad_value: ScalarLiteral = attr(ScalarOf())

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        rank_at_least(x, 2, "x")
        for name in ("window", "strides", "dilation", "padding"):
            length_is(getattr(self, name), x.rank - 2, name)
        for name in ("window", "strides", "dilation"):
            all_positive(getattr(self, name), name)
        check_pad_value(self.pad_value, x.dtype)
        places = (self._positions(axis, dim) for axis, dim in enumerate(x.shape[1:-1]))
        return x.with_shape((x.shape[0], *places, multiply_dims(*self.window, x.shape[-1])))

    def _positions(self, axis: int, dim: Dim) -> Dim:
        span = _dilated_extent(self.window[axis], self.dilation[axis])
        return _window_count(dim, span, self.strides[axis], self.padding[axis], axis=axis + 1)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        (x,) = args
        if 0 in ctx.shape:
            return np.empty(ctx.shape, x.dtype)
        around = ((0, 0), *self.padding, (0, 0))
        shape = [n + low + high for n, (low, high) in zip(x.shape, around, strict=True)]
        fill = self.pad_value.fill(as_dtype(x.dtype))
        board = _board(x, [low for low, _ in around], shape, [1] * x.ndim, fill)
        first, *spatial, last = board.strides
        moves = [b * s for b, s in zip(spatial, self.strides, strict=True)]
        reach = [b * d for b, d in zip(spatial, self.dilation, strict=True)]
        extents = [*ctx.shape[:-1], *self.window, x.shape[-1]]
        return _view_strided(board, extents, [first, *moves, *reach, last]).reshape(ctx.shape)

    def vjp(self, at: Pullback) -> Cotangents:
        """Every window is added back to its position, one spatial axis after the other."""
        return (self.folded(at.cotangent, at.operands[0]),)

    def folded(self, patches: Term, x: Term) -> Term:
        """The sum of all patches at the places of `x` that they would be taken from."""
        g = patches.reshape([*patches.shape[:-1], *self.window, x.shape[-1]])
        for axis in range(len(self.window)):
            g = self._put_back(g, axis, x)
        return g

    def _put_back(self, g: Term, axis: int, x: Term) -> Term:
        """The places along one axis, and the window there, made one axis of the extent in `x`. The
        windows come after all places, and those of the axes before are gone already."""
        at, inner = axis + 1, 1 + len(self.window)
        low, high = self.padding[axis]
        stride, step = self.strides[axis], self.dilation[axis]
        if self.window[axis] > _MOST_PIECES:
            raise Unimplemented(
                f"a window of {self.window[axis]}",
                f"it is put back piece by piece, and more than {_MOST_PIECES} are too many",
            )
        dims = [*g.shape[:inner], *g.shape[inner + 1 :]]
        if (self.window[axis], stride, low, high) == (1, 1, 0, 0):
            return g.reshape(dims)
        count, size = _known_extent(g, at), _known_extent(x, at)
        board = low + size + high
        dims[at] = board
        total = g.full(0, dims)
        for offset in range(self.window[axis] if count else 0):
            piece = g.part(inner, offset, 1)
            piece = piece.reshape([*g.shape[:inner], *g.shape[inner + 1 :]])
            before, after, between = ([0] * piece.rank for _ in range(3))
            before[at], between[at] = offset * step, stride - 1
            after[at] = board - offset * step - _dilated_extent(count, stride)
            piece = piece.pad(before, after, between)
            total = piece if offset == 0 else total + piece
        return total.part(at, low, size)


def _view_strided(board: Array, extents: Sequence[int], strides: Sequence[int]) -> Array:
    """The view with these extents and byte strides, but for axes of extent 1: left out, they cannot
    exceed NumPy's rank, nor their strides its integers."""
    axes = [(n, s) for n, s in zip(extents, strides, strict=True) if n != 1]
    # NumPy's array interface, which as_strided goes through, has no name for fp8.
    plain = board.view(np.uint8) if board.dtype.itemsize == 1 else board
    view = as_strided(plain, [n for n, _ in axes], [s for _, s in axes], writeable=False)
    return view.view(board.dtype)


@core_op(tag=28)
class ReduceWindow(Op):
    """The sum, maximum or minimum of every window of `x`; the dtype is kept.

    On each axis the window has `window_dims` elements `window_dilation` apart and moves by
    `strides` over `x`, whose elements lie `base_dilation` apart with `padding` (low, high) places
    around them. Places without an element contribute the identity of the reduction. A window larger
    than the padded axis is rejected, except that a padded axis of size 0 has no windows.

    `sum` is defined for numbers, `max` and `min` for all but complex dtypes; they propagate NaN,
    and are or and and on i1. Elements are combined in an order that is not specified. Narrow floats
    accumulate in f32, integers in their own dtype, wrapping. An explicit `accum_dtype` is the dtype
    of `x` or a wider one of its class; a float under 32 bits then really rounds after each
    addition. The accumulated value is cast to the dtype of `x` at the end, so that integers
    saturate."""

    operands = ("x",)
    dtypes = {"x": ANY}

    window_dims: tuple[int, ...] = attr(USIZES)
    strides: tuple[int, ...] = attr(USIZES, usual=PerAxis(1))
    padding: tuple[tuple[int, int], ...] = attr(PADDING, usual=PerAxis((0, 0)))
    base_dilation: tuple[int, ...] = attr(USIZES, usual=PerAxis(1))
    window_dilation: tuple[int, ...] = attr(USIZES, usual=PerAxis(1))
    reduce: ReduceKind = attr(Choice(ReduceKind))
    accum_dtype: DType | None = attr(OPTIONAL_DTYPE)

    @property
    def dtype_table(self) -> Mapping[str, frozenset[DType]]:
        return {"x": DEFINED[self.reduce]}

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        for name in ("window_dims", "strides", "padding", "base_dilation", "window_dilation"):
            length_is(getattr(self, name), x.rank, name)
        for name in ("window_dims", "strides", "base_dilation", "window_dilation"):
            all_positive(getattr(self, name), name)
        accumulator(x.dtype, self.accum_dtype, "reduce_window")
        return x.with_shape(self._positions(axis, dim) for axis, dim in enumerate(x.shape))

    def _positions(self, axis: int, dim: Dim) -> Dim:
        span = _dilated_extent(self.window_dims[axis], self.window_dilation[axis])
        base = self.base_dilation[axis]
        return _window_count(
            dim, span, self.strides[axis], self.padding[axis], axis=axis, base=base
        )

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        (x,) = args
        if 0 in ctx.shape:
            return np.empty(ctx.shape, x.dtype)
        dtype = as_dtype(x.dtype)
        accum = self.accum_dtype or numeric.accumulator_dtype(dtype)
        work = accum if self._rounds_each_step(accum) else numeric.compute_dtype(accum)
        total = numeric.cast(x, dtype, accum).astype(work.numpy, copy=False)
        fill = numeric.cast(reduce_identity(self.reduce, dtype), dtype, accum).astype(work.numpy)
        # A rectangular window is reduced one axis after the other: sizes add up, not multiply.
        for axis in range(x.ndim):
            total = self._reduce_axis(total, axis, fill)
        return numeric.cast(numeric.narrow(total, accum), accum, dtype)

    def _rounds_each_step(self, accum: DType) -> bool:
        return self.reduce is ReduceKind.SUM and accum.is_float and accum.bits < 32

    def _reduce_axis(self, total: Array, axis: int, fill: Array) -> Array:
        before, extent, after = total.shape[:axis], total.shape[axis], total.shape[axis + 1 :]
        (low, high), base = self.padding[axis], self.base_dilation[axis]
        if (self.window_dims[axis], self.strides[axis], low, high, base) == (1, 1, 0, 0, 1):
            return total
        flat = total.reshape(math.prod(before), extent, math.prod(after))
        places = low + _dilated_extent(extent, base) + high
        shape = (flat.shape[0], places, flat.shape[2])
        result = self._slide(_board(flat, (0, low, 0), shape, (1, base, 1), fill), axis)
        return result.reshape(*before, result.shape[1], *after)

    def _slide(self, board: Array, axis: int) -> Array:
        """Every window along the middle axis reduced to one element."""
        stride, step = self.strides[axis], self.window_dilation[axis]
        span = _dilated_extent(self.window_dims[axis], step)
        if self._rounds_each_step(as_dtype(board.dtype)):
            # `ufunc.reduce` would keep partial sums of a narrow float in f32.
            starts = board.shape[1] - span + 1
            places = range(0, span, step)
            return functools.reduce(np.add, (board[:, at : at + starts : stride] for at in places))
        windows = sliding_window_view(board, span, axis=1)[:, ::stride, :, ::step]
        # The axis over which a window lies comes first: there NumPy reduces fastest.
        first = np.moveaxis(windows, -1, 0)
        return np.asarray(ufunc(self.reduce).reduce(first, axis=0, dtype=board.dtype))

    def vjp(self, at: Pullback) -> Cotangents:
        """Of equal extreme elements of a window, the first one gets the whole cotangent."""
        g, (x,) = at.cotangent, at.operands
        if 0 in (*x.shape, *g.shape):
            return (x.like(0),)
        return (self._sums(g, x) if self.reduce is ReduceKind.SUM else self._to_first(g, x),)

    def _sums(self, g: Term, x: Term) -> Term:
        """For each element the sum over the windows that it lies in: another sliding sum."""
        around = [self._around(axis, x, g) for axis in range(x.rank)]
        board = g.reduce_window(
            window_dims=self.window_dims, window_dilation=self.window_dilation, padding=around,
            strides=[1] * x.rank, base_dilation=self.strides, reduce="sum",
            accum_dtype=self.accum_dtype,
        )  # fmt: skip
        for axis, (low, high) in enumerate(self.padding):
            if low or high:
                spread = _dilated_extent(_known_extent(x, axis), self.base_dilation[axis])
                board = board.part(axis, low, spread)
        return self._drop_dilation(board, x)

    def _around(self, axis: int, x: Term, g: Term) -> tuple[int, int]:
        """The padding with which windows over `g` begin at each place of the padded operand."""
        low, high = self.padding[axis]
        span = _dilated_extent(self.window_dims[axis], self.window_dilation[axis])
        base, stride = self.base_dilation[axis], self.strides[axis]
        if (span, base, stride, low, high) == (1, 1, 1, 0, 0):
            return 0, 0
        board = low + _dilated_extent(_known_extent(x, axis), base) + high
        return span - 1, board - _dilated_extent(_known_extent(g, axis), stride)

    def _drop_dilation(self, board: Term, x: Term) -> Term:
        for axis, base in enumerate(self.base_dilation):
            if base != 1:
                board = board.every(axis, base, _known_extent(x, axis))
        return board

    def _to_first(self, g: Term, x: Term) -> Term:
        """Each cotangent put back at the first position of the extreme element in its window."""
        worst = float(reduce_identity(self.reduce, x.dtype))
        none = [0] * x.rank
        board = x.pad(none, none, [base - 1 for base in self.base_dilation], worst)
        pad_value = scalar_literal(worst, x.dtype)
        patches = ExtractPatches(
            self.window_dims, self.strides, self.window_dilation, self.padding, pad_value
        )
        rows = board.reshape([1, *board.shape, 1])
        windows = rows.extract_patches(
            window=patches.window, strides=patches.strides, dilation=patches.dilation,
            padding=patches.padding, pad_value=pad_value,
        )  # fmt: skip
        last = windows.rank - 1
        find = windows.arg_max if self.reduce is ReduceKind.MAX else windows.argmin
        # Positions are read once for each window an element lies in: a byte, where one will do.
        narrow = UI8 if math.prod(self.window_dims) <= 1 << UI8.bits else SI64
        first = find(axis=last, keepdims=True, output_dtype=SI64).cast(narrow)
        places = windows.counting(windows.shape, last).cast(narrow)
        hit = places.compare(first.broadcast_to(windows.shape), "equal")
        spread = g.reshape([1, *g.shape, 1]).broadcast_to(windows.shape).where(hit)
        back = patches.folded(spread, rows).reshape(board.shape)
        return self._drop_dilation(back, x)
