"""Positions of elements, and choosing between elements.

`nonzero` reads its argument: how many positions there are is in the data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import I1, SI64
from weft.foundation.errors import OutOfRange, SpecViolation, UserError
from weft.ops.arithmetic import TensorLike, as_tensor, broadcast_shapes, listed, matched
from weft.ops.array.data_types import result_type
from weft.ops.array.linear_algebra import in_common_dtype
from weft.ops.array.manipulation import axes_of
from weft.ops.array.operands import given, taken
from weft.ops.array.reading import read
from weft.ops.calls import public
from weft.ops.numbers import is_number, number
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor, from_array, tensor_method

__all__ = ["argmax", "argmin", "count_nonzero", "nonzero", "searchsorted", "where"]


@tensor_method
@public
def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The position of the largest element, the first of equals; NaN counts as largest. Without an
    axis, the position in the flattened tensor."""
    return given(_extreme("arg_max", taken(x), axis, keepdims))


@tensor_method
@public
def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The position of the smallest element, the first of equals; NaN is chosen before all."""
    return given(_extreme("argmin", taken(x), axis, keepdims))


def _extreme(name: str, x: Handle, axis: int | None, keepdims: bool) -> Handle:
    rank = x.rank
    if axis is None:
        x = x.reshape((-1,))
    at = 0 if axis is None else normalise_axis(axis, rank)
    if x.shape[at] == 0:
        raise OutOfRange("ShapeMismatch", f"x {listed(x.shape)} has no elements along axis {at}")
    flat = axis is None
    found = x.session.emit(name, x, axis=at, keepdims=keepdims and not flat, output_dtype=SI64)
    return found.reshape((1,) * rank) if flat and keepdims else found


@tensor_method
@public
def count_nonzero(
    x: Tensor, /, *, axis: int | Sequence[int] | None = None, keepdims: bool = False
) -> Tensor:
    """How many elements are not zero."""
    value = taken(x)
    axes = axes_of(axis, value.rank)
    return given(value.cast(I1).cast(SI64).reduce_sum(axes, keepdims))


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
    places = np.nonzero(read(value, "the number of elements that are not zero"))
    return tuple(from_array(places_along) for places_along in places)


@tensor_method
@public
def searchsorted(
    x1: Tensor, x2: Tensor, /, *, side: str = "left", sorter: Tensor | None = None
) -> Tensor:
    """Where each element of `x2` would be inserted into the sorted vector `x1`; `sorter` holds the
    positions that sort it. With "right" it comes after equal elements."""
    if side not in ("left", "right"):
        raise UserError(f"side is {side!r}; it can be 'left' or 'right'")
    x, values = in_common_dtype(x1, x2)
    if x.rank != 1:
        raise SpecViolation("RankMismatch", f"x1 {listed(x.shape)} has rank {x.rank}, not 1")
    if sorter is not None:
        x = x.take(x.session.import_(as_tensor(sorter)).cast(SI64))
    return given(x.session.emit("searchsorted", x, values, side=side, output_dtype=SI64))


@tensor_method
@public
def where(condition: Tensor, x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1` where the condition holds, `x2` elsewhere."""
    chosen = as_tensor(condition)
    session = Session.of(chosen)
    if is_number(x1) and is_number(x2):
        dtype = result_type(x1, x2)
        first, second = (session.arena.constant(number(n, dtype)) for n in (x1, x2))  # type: ignore[arg-type]
    else:
        first, second = matched(x1, x2, session.line)
    shape = broadcast_shapes(chosen.shape, first.tensor.shape)
    predicate = session.import_(chosen).cast(I1).broadcast_to(shape)
    on_true = Handle(session, first).broadcast_to(shape)
    on_false = Handle(session, second).broadcast_to(shape)
    return given(predicate.select(on_true, on_false), x1, x2)
