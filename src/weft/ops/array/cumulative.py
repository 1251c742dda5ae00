"""Cumulative extremes with their positions, and cumulative log-sum-exp. Cumulative sums and
products are with the statistics.
"""

from __future__ import annotations

import math

from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import SI64
from weft.foundation.errors import SpecViolation
from weft.ops.array.movement import window
from weft.ops.array.operands import known
from weft.ops.capture_recipes import recorded
from weft.ops.promotion import as_float
from weft.ops.session import Handle
from weft.ops.tensor import tensor_method

__all__ = ["cummax", "cummin", "logcumsumexp"]


@tensor_method
@recorded
def cummax(x: Handle, /, axis: int = -1) -> tuple[Handle, Handle]:
    """The largest element up to each one along an axis, and its position: the last one where
    several are equal. NaN counts as largest."""
    return _running_extreme(x, "cumulative_max", axis)


@tensor_method
@recorded
def cummin(x: Handle, /, axis: int = -1) -> tuple[Handle, Handle]:
    """The smallest element up to each one along an axis, and its position: the last one where
    several are equal. NaN counts as smallest."""
    return _running_extreme(x, "cumulative_min", axis)


def _running_extreme(x: Handle, name: str, axis: int) -> tuple[Handle, Handle]:
    """An element that equals the extreme so far is a new one; the position of the newest is the
    largest position of any so far."""
    session, at = x.session, normalise_axis(axis, x.rank)
    values = session.emit(name, x, axis=at)
    newest = x.compare("equal", values)
    if x.dtype.is_float:
        newest = newest.bitwise_or(x.isnan())
    places = newest.select(session.iota(SI64, x.shape, at), session.full(0, SI64, x.shape))
    return values, session.emit("cumulative_max", places, axis=at)


@tensor_method
@recorded
def logcumsumexp(x: Handle, /, axis: int = -1) -> Handle:
    """`log(cumsum(exp(x)))` along an axis, without overflow, and without losing the small elements
    before a large one."""
    at = normalise_axis(axis, x.rank)
    if x.dtype.is_complex:
        raise SpecViolation("DTypeNotSupported", f"x is {x.dtype}", "give real numbers")
    result = x.cast(as_float(x.dtype))
    size, step = known(x.shape[at], f"axis {at}"), 1
    # After the steps 1, 2, 4, ... each element has met all those before it.
    while step < size:
        result = result.logaddexp(_delay_elements(result, at, step, size))
        step *= 2
    return result


def _delay_elements(x: Handle, axis: int, step: int, size: int) -> Handle:
    """The element `step` places before each one; before the first there is -Inf."""
    low, none = [0] * x.rank, [0] * x.rank
    low[axis] = step
    kept = window(x, axis, 0, size - step)
    return x.session.emit("pad", kept, low=low, high=none, interior=none, pad_value=-math.inf)
