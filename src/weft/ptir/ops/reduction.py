"""Reductions over axes and segments, positions of extremes, and running reductions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from weft.foundation import numeric
from weft.foundation.axes import normalise_axes, normalise_axis
from weft.foundation.dtypes import BOOL, I1, INDICES, NUMBERS, ORDERED, SI64, DType, as_dtype
from weft.foundation.functions import fold, rounds_each_step, running
from weft.ptir.op import Array, EvalContext, Op, core_op, extension_op, op_base
from weft.ptir.ops.reduce_kind import DEFINED, ReduceKind, reduce_identity, ufunc
from weft.ptir.rules import accumulator, index_range, rank_at_least, rank_is, same_dim, violation
from weft.ptir.schema import (
    OPTIONAL_DTYPE,
    USIZES,
    Bool,
    Choice,
    DTypeOf,
    Isize,
    Usize,
    WireEnum,
    attr,
)
from weft.ptir.term import Cotangents, Pullback, Term, unknown_size
from weft.ptir.types import UNKNOWN, Dim, Shape, Symbol, TensorType, multiply_dims


def reduced_shape(x: TensorType, axes: Sequence[int], keepdims: bool) -> Shape:
    """The shape left by reducing over `axes`: they become 1 or disappear."""
    gone = normalise_axes(axes, x.rank)
    if keepdims:
        return tuple(1 if axis in gone else dim for axis, dim in enumerate(x.shape))
    return tuple(dim for axis, dim in enumerate(x.shape) if axis not in gone)


def _summable(accum: DType | None) -> frozenset[DType]:
    """What can be summed: numbers, and i1 where an integer accumulator is given."""
    return NUMBERS | BOOL if accum is not None and accum.is_integer else NUMBERS


COUNTING = "with an integer accum_dtype, such as si32, it counts the true elements"
"""What to do about a sum over i1."""


def _check_accumulator(kind: ReduceKind, dtype: DType, accum: DType | None, what: str) -> None:
    counting = kind is ReduceKind.SUM and dtype is I1
    if not counting:
        accumulator(dtype, accum, what)


@core_op(tag=4)
class Reduce(Op):
    """The sum, maximum or minimum over `axes`, which become 1 with `keepdims` and disappear
    without; with an empty list nothing is reduced. Elements are converted to `accum_dtype`,
    combined there in an order that is not specified, and the result is cast to `out_dtype`
    (default: the dtype of x).

    The default accumulator is f32 for floats under 32 bits and the dtype of x otherwise; integer
    sums wrap in it. An explicit float accumulator under 32 bits rounds after each addition, in
    row-major order. `accum_dtype` is the dtype of x or a wider one of its class; only a sum over i1
    needs an integer one (it counts the true elements, and the default output is again i1: whether
    the count differs from 0). Maximum and minimum propagate NaN and are or and and on i1; complex
    numbers can only be summed. Over no elements the sum is 0, the maximum is the lowest value of
    the dtype of x (-Inf for floats that have it), and the minimum its highest."""

    operands = ("x",)
    relative_axes = {"axes": 0}

    kind: ReduceKind = attr(Choice(ReduceKind))
    axes: tuple[int, ...] = attr(USIZES)
    keepdims: bool = attr(Bool(), usual=False)
    accum_dtype: DType | None = attr(OPTIONAL_DTYPE)
    out_dtype: DType | None = attr(OPTIONAL_DTYPE)

    @classmethod
    def spellings(cls) -> Mapping[str, Mapping[str, Any]]:
        return {f"reduce_{kind}": {"kind": kind} for kind in ReduceKind}

    @property
    def mnemonic(self) -> str:
        return f"reduce_{self.kind}"

    @classmethod
    def rows(cls) -> Mapping[str, Mapping[str, frozenset[DType]]]:
        return {f"reduce_{kind}": {"x": dtypes} for kind, dtypes in DEFINED.items()}

    @property
    def dtype_table(self) -> Mapping[str, frozenset[DType]]:
        if self.kind is ReduceKind.SUM:
            return {"x": _summable(self.accum_dtype)}
        return {"x": DEFINED[self.kind]}

    def dtype_hint(self, dtype: DType, allowed: frozenset[DType]) -> str:
        counts = dtype is I1 and self.kind is ReduceKind.SUM
        return COUNTING if counts else super().dtype_hint(dtype, allowed)

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        _check_accumulator(self.kind, x.dtype, self.accum_dtype, self.mnemonic)
        return TensorType(self.out_dtype or x.dtype, reduced_shape(x, self.axes, self.keepdims))

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        (x,) = args
        dtype = as_dtype(x.dtype)
        accum = self.accum_dtype or numeric.accumulator_dtype(dtype)
        total = fold(ufunc(self.kind), x, self.axes, accum, reduce_identity(self.kind, dtype))
        return numeric.cast(total, accum, self.out_dtype or dtype).reshape(ctx.shape)

    def vjp(self, at: Pullback) -> Cotangents:
        """Equal extreme elements of `reduce_max` and `reduce_min` share the cotangent equally."""
        (x,) = at.operands
        g = at.cotangent.cast(x.dtype)
        if self.kind is ReduceKind.SUM:
            return (g.restored(self.axes, x.shape),)
        extreme = at.result
        if extreme.dtype is not x.dtype:
            extreme = x.emitter.emit(self.mnemonic, x, axes=self.axes, keepdims=False)
        chosen = x.compare(extreme.restored(self.axes, x.shape), "equal").cast(x.dtype)
        share = g / chosen.sum(self.axes).reshape(g.shape).maximum(1.0)
        return (chosen * share.restored(self.axes, x.shape),)


@extension_op("reduce_prod")
class ReduceProd(Op):
    """The product over `axes`, with the accumulator, output dtype and `keepdims` of `reduce_sum`;
    the product of no elements is 1. There is no product of i1: use `reduce_all`."""

    operands = ("x",)
    dtypes = {"x": NUMBERS}
    relative_axes = {"axes": 0}

    axes: tuple[int, ...] = attr(USIZES)
    keepdims: bool = attr(Bool(), default=False)
    accum_dtype: DType | None = attr(OPTIONAL_DTYPE, default=None)
    out_dtype: DType | None = attr(OPTIONAL_DTYPE, default=None)

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        accumulator(x.dtype, self.accum_dtype, self.mnemonic)
        return TensorType(self.out_dtype or x.dtype, reduced_shape(x, self.axes, self.keepdims))

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        (x,) = args
        dtype = as_dtype(x.dtype)
        accum = self.accum_dtype or numeric.accumulator_dtype(dtype)
        total = fold(np.multiply, x, self.axes, accum, np.ones((), dtype.numpy))
        return numeric.cast(total, accum, self.out_dtype or dtype).reshape(ctx.shape)

    def vjp(self, at: Pullback) -> Cotangents:
        """Each element gets the product of the others, also if there are zeros."""
        (x,) = at.operands
        gone = normalise_axes(self.axes, x.rank)
        kept = [axis for axis in range(x.rank) if axis not in gone]
        order = [*kept, *gone]
        dims = [x.shape[axis] for axis in kept]
        count = multiply_dims(*(x.shape[axis] for axis in gone))
        if count == UNKNOWN:
            raise unknown_size(next(d for d in x.shape if isinstance(d, Symbol)))
        flat = x.transpose(order).reshape([*dims, count])
        others = _product_of_others(flat, len(dims))
        g = at.cotangent.cast(x.dtype).restored([len(dims)], flat.shape)
        turned = (g * others.conj()).reshape([x.shape[axis] for axis in order])
        return (turned.transpose([order.index(axis) for axis in range(x.rank)]),)


@op_base
class _Logical(Op):
    """A reduction of i1."""

    operands = ("x",)
    dtypes = {"x": BOOL}
    relative_axes = {"axes": 0}
    no_gradient = "truth values have no derivative"
    function: ClassVar[Any]

    axes: tuple[int, ...] = attr(USIZES)
    keepdims: bool = attr(Bool(), default=False)

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        return x.with_shape(reduced_shape(x, self.axes, self.keepdims))

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        return np.asarray(self.function.reduce(args[0], axis=self.axes)).reshape(ctx.shape)


@extension_op("reduce_any")
class ReduceAny(_Logical):
    """Whether any element over `axes` is true; of no elements, false."""

    function = np.logical_or


@extension_op("reduce_all")
class ReduceAll(_Logical):
    """Whether every element over `axes` is true; of no elements, true."""

    function = np.logical_and


@op_base
class _Position(Op):
    """The position of an extreme element along an axis."""

    operands = ("x",)
    dtypes = {"x": ORDERED, "output_dtype": INDICES}
    no_gradient = "integers have no derivative"
    function: ClassVar[Any]

    axis: int = attr(Isize())
    keepdims: bool = attr(Bool(), usual=False)
    output_dtype: DType = attr(DTypeOf(), usual=SI64)

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        axis = normalise_axis(self.axis, x.rank)
        self._check_extent(axis, x.shape[axis])
        index_range(x.shape[axis], self.output_dtype, f"axis {axis} of {self.mnemonic}")
        return TensorType(self.output_dtype, reduced_shape(x, (axis,), self.keepdims))

    def _check_extent(self, axis: int, extent: Dim) -> None:
        if extent == 0:
            raise violation(
                "EmptyReduction", f"axis {axis} of {self.mnemonic} has no elements to choose from"
            )

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        x = numeric.widen(args[0], as_dtype(args[0].dtype))
        axis = normalise_axis(self.axis, x.ndim)
        self._check_extent(axis, x.shape[axis])
        found = self.function(x, axis=axis)
        return np.asarray(found, self.output_dtype.numpy).reshape(ctx.shape)


@core_op(tag=5)
class ArgMax(_Position):
    """The position of the largest element along `axis`. NaN counts as largest; of equal elements
    the first wins. An axis without elements is rejected."""

    function = staticmethod(np.argmax)


@extension_op("argmin")
class ArgMin(_Position):
    """The position of the smallest element along `axis`; of equal elements the first wins. NaN
    counts as smallest, as in NumPy. An axis without elements is rejected."""

    function = staticmethod(np.argmin)


class SegmentKind(WireEnum):
    """How a segment combines its rows, in wire order."""

    SUM = "Sum"
    MAX = "Max"


_SEGMENT_KINDS = {SegmentKind.SUM: ReduceKind.SUM, SegmentKind.MAX: ReduceKind.MAX}


@core_op(tag=32)
class SegmentReduce(Op):
    """`out[s]` is the sum or maximum of the rows `data[i]` with `ids[i] == s`, for s from 0 to
    `num_segments - 1`. A segment without rows is 0, or the lowest value of the dtype. An id outside
    that range is rejected when the program runs.

    Accumulation is that of `reduce`, with the result in the dtype of data: narrow floats add up in
    f32 unless `accum_dtype` says otherwise, integers wrap, a sum over i1 needs an integer
    accumulator. `indices_are_sorted` and `unique` are promises that a backend may use to be faster;
    the reference ignores them."""

    operands = ("data", "ids")

    kind: SegmentKind = attr(Choice(SegmentKind))
    num_segments: int = attr(Usize())
    accum_dtype: DType | None = attr(OPTIONAL_DTYPE)
    indices_are_sorted: bool = attr(Bool(), usual=False)
    unique: bool = attr(Bool(), usual=False)

    @classmethod
    def spellings(cls) -> Mapping[str, Mapping[str, Any]]:
        return {f"segment_{kind}": {"kind": kind} for kind in SegmentKind}

    @property
    def mnemonic(self) -> str:
        return f"segment_{self.kind}"

    @classmethod
    def rows(cls) -> Mapping[str, Mapping[str, frozenset[DType]]]:
        return {
            f"segment_{kind}": {"data": DEFINED[_SEGMENT_KINDS[kind]], "ids": INDICES}
            for kind in SegmentKind
        }

    @property
    def dtype_table(self) -> Mapping[str, frozenset[DType]]:
        data = _summable(self.accum_dtype) if self.kind is SegmentKind.SUM else ORDERED
        return {"data": data, "ids": INDICES}

    def dtype_hint(self, dtype: DType, allowed: frozenset[DType]) -> str:
        counts = dtype is I1 and self.kind is SegmentKind.SUM
        return COUNTING if counts else super().dtype_hint(dtype, allowed)

    def infer(self, *types: TensorType) -> TensorType:
        data, ids = types
        rank_at_least(data, 1, "data")
        rank_is(ids, 1, "ids")
        same_dim(ids.shape[0], data.shape[0], "ids and axis 0 of data differ in extent")
        kind = _SEGMENT_KINDS[self.kind]
        _check_accumulator(kind, data.dtype, self.accum_dtype, self.mnemonic)
        return data.with_shape((self.num_segments, *data.shape[1:]))

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        data, ids = args
        self._check_ids(ids)
        dtype, kind = as_dtype(data.dtype), _SEGMENT_KINDS[self.kind]
        accum = self.accum_dtype or numeric.accumulator_dtype(dtype)
        start = reduce_identity(kind, dtype).astype(accum.numpy)
        result = np.full(ctx.shape, start, accum.numpy)
        if rounds_each_step(ufunc(kind), accum):
            np.add.at(result, ids, data.astype(accum.numpy))
        elif ids.size:
            present, totals = _combine_runs(ufunc(kind), data, ids, accum)
            result[present] = totals
        return numeric.cast(result, accum, dtype)

    def _check_ids(self, ids: Array) -> None:
        bad = np.flatnonzero((ids < 0) | (ids >= self.num_segments))
        if bad.size:
            place = int(bad[0])
            raise violation(
                "ScatterIndexOutOfBounds",
                f"segment id {int(ids[place])} at position {place} is not in "
                f"[0, {self.num_segments})",
            )

    def vjp(self, at: Pullback) -> Cotangents:
        """Equal largest rows of a `segment_max` share the cotangent equally."""
        g, (data, ids) = at.cotangent, at.operands
        if self.kind is SegmentKind.SUM:
            return g.take(ids), None
        chosen = data.compare(at.result.take(ids), "equal").cast(data.dtype)
        count = chosen.segment_sum(
            ids,
            num_segments=self.num_segments,
            indices_are_sorted=self.indices_are_sorted,
            unique=self.unique,
        )
        # A segment without rows has nobody to hand anything to.
        return chosen * (g / count.maximum(1.0)).take(ids), None


def _combine_runs(function: Any, data: Array, ids: Array, accum: DType) -> tuple[Array, Array]:
    """The ids that occur, ascending, and the rows of each combined."""
    if np.any(ids[1:] < ids[:-1]):
        order = np.argsort(ids, kind="stable")
        data, ids = data[order], ids[order]
    starts = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
    wide = numeric.compute_dtype(accum)
    totals = function.reduceat(data.astype(wide.numpy, copy=False), starts, axis=0)
    return ids[starts], numeric.narrow(np.asarray(totals, wide.numpy), accum)


def _product_of_others(x: Term, axis: int) -> Term:
    """For each element along the axis, the product of all before and all after it."""
    before = x.cumulative_prod(axis=axis, reverse=False).shifted(axis, 1, 1)
    return before * x.cumulative_prod(axis=axis, reverse=True).shifted(axis, -1, 1)


def _recurrence(start: Term, factors: Term, axis: int, step: int) -> Term:
    """The `s` with `s[i] = start[i] + factors[i] * s[i - step]`, in as many rounds as the extent
    has binary digits: each doubles how far back an element has looked."""
    extent = start.shape[axis]
    if isinstance(extent, Symbol):
        raise unknown_size(extent)
    total, reach = start, 1
    while reach < extent:
        total = total + factors * total.shifted(axis, reach * step, 0)
        factors = factors * factors.shifted(axis, reach * step, 0)
        reach *= 2
    return total


def _to_last_record(at: Pullback, axis: int, reverse: bool) -> Term:
    """Each cotangent added to the element that was extreme there."""
    g, (x,) = at.cotangent, at.operands
    axis = normalise_axis(axis, x.rank)
    record = x.compare(at.result, "equal").maximum(x.compare(x, "not_equal"))
    position = g.counting(x.shape, axis)
    if reverse:
        beyond = position.like(SI64.highest)
        source = position.where(record, beyond).cumulative_min(axis=axis, reverse=True)
    else:
        source = position.where(record).cumulative_max(axis=axis, reverse=False)
    return g.like(0).scatter_reduce(source, g, axis=axis, reduce="add")


@op_base
class _Cumulative(Op):
    """A running reduction along an axis."""

    operands = ("x",)
    function: ClassVar[Any]

    axis: int = attr(Isize())
    reverse: bool = attr(Bool(), default=False)

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        normalise_axis(self.axis, x.rank)
        return x

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        (x,) = args
        axis = normalise_axis(self.axis, x.ndim)
        combine = partial(running, self.function, axis=axis, reverse=self.reverse)
        return numeric.compute(combine, as_dtype(x.dtype), x)


@extension_op("cumulative_sum")
class CumulativeSum(_Cumulative):
    """`out[i]` is the sum of the elements up to and including i along `axis`, or from i to the end
    with `reverse`. Integers wrap; floats add up in f64, each result rounded once."""

    dtypes = {"x": NUMBERS}
    function = np.add

    def vjp(self, at: Pullback) -> Cotangents:
        return (at.cotangent.cumulative_sum(axis=self.axis, reverse=not self.reverse),)


@extension_op("cumulative_prod")
class CumulativeProd(_Cumulative):
    """`out[i]` is the product of the elements up to and including i along `axis`, or from i to the
    end with `reverse`. Integers wrap; floats under 32 bits multiply in f32, each result rounded
    once."""

    dtypes = {"x": NUMBERS}
    function = np.multiply

    def vjp(self, at: Pullback) -> Cotangents:
        """Computed without division, so that it is right for zeros too."""
        (x,) = at.operands
        axis = normalise_axis(self.axis, x.rank)
        step = 1 if self.reverse else -1
        before = x.cumulative_prod(axis=axis, reverse=self.reverse).shifted(axis, -step, 1)
        factors = x.conj().shifted(axis, step, 0)
        return (before.conj() * _recurrence(at.cotangent, factors, axis, step),)


@extension_op("cumulative_max")
class CumulativeMax(_Cumulative):
    """`out[i]` is the maximum of the elements up to and including i along `axis`, or from i to the
    end with `reverse`. NaN propagates; on i1 it is or."""

    dtypes = {"x": ORDERED}
    function = np.maximum

    def vjp(self, at: Pullback) -> Cotangents:
        """Of equal extreme elements, the last one gets the whole cotangent."""
        return (_to_last_record(at, self.axis, self.reverse),)


@extension_op("cumulative_min")
class CumulativeMin(_Cumulative):
    """`out[i]` is the minimum of the elements up to and including i along `axis`, or from i to the
    end with `reverse`. NaN propagates; on i1 it is and."""

    dtypes = {"x": ORDERED}
    function = np.minimum

    def vjp(self, at: Pullback) -> Cotangents:
        """Of equal extreme elements, the last one gets the whole cotangent."""
        return (_to_last_record(at, self.axis, self.reverse),)
