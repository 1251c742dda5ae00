"""Sorting and searching. One order is used throughout: NaN is larger than everything else, equal
elements keep the order of their positions, and -0 equals +0."""

from __future__ import annotations

import numpy as np

from weft.foundation import numeric
from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import INDICES, ORDERED, SI64, DType, as_dtype
from weft.foundation.whole_ops import stable_order
from weft.ptir.op import Array, EvalContext, Op, core_op, extension_op
from weft.ptir.ops.along import as_middle, take_along
from weft.ptir.rules import index_range, invalid_attribute, rank_is, same_dtype
from weft.ptir.schema import Bool, Choice, DTypeOf, Isize, Usize, WireEnum, attr
from weft.ptir.term import Cotangents, Pullback
from weft.ptir.types import Dim, TensorType, TupleType, add_dims


def _sorted_positions(x: Array, axis: int, descending: bool) -> Array:
    """The positions along `axis` in sorted order; equal elements keep their order either way."""
    keys = as_middle(numeric.widen(x, as_dtype(x.dtype)), axis)
    return stable_order(keys, descending).reshape(x.shape)


@core_op(tag=31)
class TopK(Op):
    """The tuple of the `k` largest (or smallest) values along `axis`, sorted from the first to the
    last chosen, and their positions. NaN counts as largest; of equal values the lower position
    comes first. `k` may not exceed the extent of the axis."""

    operands = ("x",)
    dtypes = {"x": ORDERED, "indices_dtype": INDICES}

    k: int = attr(Usize())
    axis: int = attr(Isize(), usual=-1)
    largest: bool = attr(Bool(), usual=True)
    indices_dtype: DType = attr(DTypeOf(), usual=SI64)

    def infer(self, *types: TensorType) -> TupleType:
        (x,) = types
        axis = normalise_axis(self.axis, x.rank)
        self._check_extent(axis, x.shape[axis])
        index_range(x.shape[axis], self.indices_dtype, f"axis {axis} of top_k")
        values = x.with_shape((*x.shape[:axis], self.k, *x.shape[axis + 1 :]))
        return TupleType((values, values.with_dtype(self.indices_dtype)))

    def _check_extent(self, axis: int, extent: Dim) -> None:
        if isinstance(extent, int) and self.k > extent:
            raise invalid_attribute(
                f"k {self.k} of top_k exceeds the extent {extent} of axis {axis}"
            )

    def evaluate(self, ctx: EvalContext, *args: Array) -> tuple[Array, Array]:
        (x,) = args
        axis = normalise_axis(self.axis, x.ndim)
        self._check_extent(axis, x.shape[axis])
        order = _sorted_positions(x, axis, self.largest)[(slice(None),) * axis + (slice(self.k),)]
        return take_along(x, order, axis), order.astype(self.indices_dtype.numpy)

    def vjp(self, at: Pullback) -> Cotangents:
        """The cotangent of each value goes to the element at its position."""
        g = at.of_elements[0]
        zeros = at.operands[0].like(0)
        return (zeros.scatter_reduce(at.result[1], g, axis=self.axis, reduce="add"),)


@extension_op("sort")
class Sort(Op):
    """The elements along `axis` in ascending or descending order. NaN is larger than everything
    else, so it comes last or first; equal elements keep their order."""

    operands = ("x",)
    dtypes = {"x": ORDERED}

    axis: int = attr(Isize(), usual=-1)
    descending: bool = attr(Bool(), default=False)

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        normalise_axis(self.axis, x.rank)
        return x

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        (x,) = args
        axis = normalise_axis(self.axis, x.ndim)
        return take_along(x, _sorted_positions(x, axis, self.descending), axis)

    def vjp(self, at: Pullback) -> Cotangents:
        """The cotangent of each value goes to the element that it comes from; equal elements keep
        their order."""
        (x,) = at.operands
        order = x.argsort(axis=self.axis, descending=self.descending)
        return (x.like(0).scatter_reduce(order, at.cotangent, axis=self.axis, reduce="add"),)


@extension_op("argsort")
class Argsort(Op):
    """The positions along `axis` of the elements in ascending or descending order. NaN is larger
    than everything else; of equal elements the lower position comes first."""

    operands = ("x",)
    dtypes = {"x": ORDERED, "output_dtype": INDICES}
    no_gradient = "integers have no derivative"

    axis: int = attr(Isize(), usual=-1)
    descending: bool = attr(Bool(), default=False)
    output_dtype: DType = attr(DTypeOf(), default=SI64)

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        axis = normalise_axis(self.axis, x.rank)
        index_range(x.shape[axis], self.output_dtype, f"axis {axis} of argsort")
        return x.with_dtype(self.output_dtype)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        (x,) = args
        order = _sorted_positions(x, normalise_axis(self.axis, x.ndim), self.descending)
        return order.astype(self.output_dtype.numpy)


class Side(WireEnum):
    """Where an equal element would be inserted: before the first or after the last of its
    equals."""

    LEFT = "Left"
    RIGHT = "Right"


@extension_op("searchsorted")
class Searchsorted(Op):
    """For each value the number of elements of `sorted` that are less than it (`left`), or less
    than or equal to it (`right`): the position at which it would be inserted. `sorted` is rank 1
    and ascending, NaN last; where it is not ascending the result is some position from 0 to its
    extent."""

    operands = ("sorted", "values")
    dtypes = {"sorted": ORDERED, "values": ORDERED, "output_dtype": INDICES}
    no_gradient = "integers have no derivative"

    side: Side = attr(Choice(Side), default=Side.LEFT)
    output_dtype: DType = attr(DTypeOf(), default=SI64)

    def infer(self, *types: TensorType) -> TensorType:
        ascending, values = types
        same_dtype(ascending, values, "sorted and values")
        rank_is(ascending, 1, "sorted")
        index_range(add_dims(ascending.shape[0], 1), self.output_dtype, "searchsorted")
        return values.with_dtype(self.output_dtype)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        ascending, values = (numeric.widen(a, as_dtype(a.dtype)) for a in args)
        found = np.searchsorted(
            ascending, values, side="left" if self.side is Side.LEFT else "right"
        )
        return np.asarray(found).astype(self.output_dtype.numpy)
