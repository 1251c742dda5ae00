"""Whether all or any elements are true, and differences of neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import I1
from weft.foundation.errors import OutOfRange
from weft.ops.array.manipulation import axes_of, concat
from weft.ops.array.movement import window
from weft.ops.array.operands import given, known, taken
from weft.ops.calls import public
from weft.ops.tensor import Tensor, tensor_method

__all__ = ["all", "any", "diff"]

Axes = int | Sequence[int] | None


@tensor_method
@public
def all(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """Whether every element is true; of no elements, true. Numbers are true unless zero."""
    value = taken(x).cast(I1)
    axes = axes_of(axis, value.rank)
    return given(value.session.emit("reduce_all", value, axes=axes, keepdims=keepdims))


@tensor_method
@public
def any(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """Whether any element is true; of no elements, false."""
    value = taken(x).cast(I1)
    axes = axes_of(axis, value.rank)
    return given(value.session.emit("reduce_any", value, axes=axes, keepdims=keepdims))


@tensor_method
@public
def diff(
    x: Tensor,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """Each element minus the one before it along an axis, `n` times over; `prepend` and `append`
    are joined on first."""
    if n < 0:
        raise OutOfRange("InvalidAttributeValue", f"n is {n}, but must not be negative")
    parts = [part for part in (prepend, x, append) if part is not None]
    value = taken(concat(parts, axis=axis) if len(parts) > 1 else x)
    at = normalise_axis(axis, value.rank)
    for _ in range(n):
        size = known(value.shape[at], f"axis {at}")
        if size == 0:
            break
        ahead, behind = window(value, at, 1, size - 1), window(value, at, 0, size - 1)
        value = ahead.bitwise_xor(behind) if value.dtype is I1 else ahead - behind
    return given(value, *parts)
