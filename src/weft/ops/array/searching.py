"""Positions of elements, and choosing between elements.

`nonzero` reads its argument: how many positions there are is in the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import I1, SI32, SI64
from weft.foundation.errors import OutOfRange, SpecViolation, UserError
from weft.foundation.lines import user_line
from weft.ops.arithmetic import (
    TensorLike,
    as_tensor,
    broadcast_shapes,
    listed,
    number_in,
    number_kind,
)
from weft.ops.array.data_types import result_type
from weft.ops.array.manipulation import axes_of
from weft.ops.array.operands import in_common_dtype, paired
from weft.ops.array.reading import read_elements
from weft.ops.calls import public
from weft.ops.capture_recipes import captured, recorded
from weft.ops.graph.context import arena_for
from weft.ops.promotion import beside
from weft.ops.session import Handle
from weft.ops.tensor import Tensor, from_array, tensor_method

__all__ = ["argmax", "argmin", "count_nonzero", "nonzero", "searchsorted", "where"]


@tensor_method
@recorded
def argmax(x: Handle, /, axis: int | None = None, *, keepdims: bool = False) -> Handle:
    """The position of the largest element, the first of equals; NaN counts as largest. Without an
    axis, the position in the flattened tensor."""
    return _extreme_position("arg_max", x, axis, keepdims)


@tensor_method
@recorded
def argmin(x: Handle, /, axis: int | None = None, *, keepdims: bool = False) -> Handle:
    """The position of the smallest element, the first of equals; NaN is chosen before all."""
    return _extreme_position("argmin", x, axis, keepdims)


def _extreme_position(name: str, x: Handle, axis: int | None, keepdims: bool) -> Handle:
    rank, flat = x.rank, axis is None
    x = x.reshape((-1,)) if flat else x
    at = 0 if axis is None else normalise_axis(axis, rank)
    if x.shape[at] == 0:
        raise OutOfRange(
            "ShapeMismatch",
            f"x {listed(x.shape)} has no elements along axis {at}",
            "check for an empty tensor first",
        )
    kept = bool(keepdims) and not flat
    found = x.session.emit(name, x, axis=at, keepdims=kept, output_dtype=SI64)
    return found.reshape((1,) * rank) if flat and keepdims else found


@tensor_method
@recorded
def count_nonzero(
    x: Handle, /, axis: int | Sequence[int] | None = None, *, keepdims: bool = False
) -> Handle:
    """How many elements are not zero."""
    axes = axes_of(axis, x.rank)
    sizes = [x.shape[a] for a in axes]
    known = [size for size in sizes if isinstance(size, int)]
    fits = len(known) == len(sizes) and math.prod(known) <= SI32.highest
    ones = x.cast(I1).cast(SI32 if fits else SI64)
    return ones.reduce_sum(axes, bool(keepdims)).cast(SI64)


@tensor_method
@public
def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """The positions of the elements that are not zero, one vector an axis, in row-major order.
    This reads `x`."""
    value = as_tensor(x)
    if not value.shape:
        raise SpecViolation(
            "RankMismatch", "x () has rank 0 and so no positions", "reshape it to (1,) first"
        )
    places = np.nonzero(read_elements(value, "the number of elements that are not zero"))
    return tuple(from_array(along, arena_for(value._node)) for along in places)


@tensor_method
@public
def searchsorted(
    x1: Tensor, x2: TensorLike, /, *, side: str = "left", sorter: Tensor | None = None
) -> Tensor:
    """Where each element of `x2` would be inserted into the sorted vector `x1`; `sorter` holds the
    positions that sort it. With "right" it comes after equal elements."""
    if side not in ("left", "right"):
        raise UserError(f"side is {side!r}; it can be 'left' or 'right'")
    vector = as_tensor(x1)
    values = _number_in_dtype(vector, x2)
    operands = [vector, values, *([] if sorter is None else [as_tensor(sorter)])]
    found: Tensor = captured(_search_sorted, operands, user_line(), side)
    return found


def _number_in_dtype(x: Tensor, value: Any) -> Tensor:
    """A number as a tensor, in the dtype it has beside `x`; any other tensor as it is."""
    kind = number_kind(value)
    return as_tensor(value) if kind is None else number_in(value, beside(x.dtype, kind), x._node)


def _search_sorted(*operands: Handle | str) -> Handle:
    x, values, *sorter, side = operands
    assert isinstance(x, Handle)
    assert isinstance(values, Handle)
    if x.rank != 1:
        raise SpecViolation(
            "RankMismatch",
            f"x1 {listed(x.shape)} has rank {x.rank}, not 1",
            "search one sorted vector at a time",
        )
    x, values = in_common_dtype(x, values)
    for order in sorter:
        x = x.take(order.cast(SI64))  # type: ignore[union-attr]
    return x.session.emit("searchsorted", x, values, side=side, output_dtype=SI64)


@public
def where(condition: Tensor, x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1` where the condition holds, `x2` elsewhere."""
    chosen, line = as_tensor(condition), user_line()
    if number_kind(x1) is None or number_kind(x2) is None:
        first, second = paired(x1, x2, line)
    else:
        dtype = result_type(x1, x2)
        first, second = (number_in(x, dtype, chosen._node) for x in (x1, x2))
    found: Tensor = captured(_select_elements, [chosen, first, second], line)
    return found


@tensor_method("where")
@public
def _where_method(x: Tensor, condition: Tensor, other: TensorLike = 0, /) -> Tensor:
    """`x` where the condition holds, `other` elsewhere."""
    return where(condition, x, other)


def _select_elements(condition: Handle, x: Handle, y: Handle) -> Handle:
    shape = broadcast_shapes(condition.shape, x.shape)
    predicate = condition.cast(I1).broadcast_to(shape)
    return predicate.select(x.broadcast_to(shape), y.broadcast_to(shape))
