"""`all`, `any` and `diff`."""

from __future__ import annotations

from collections.abc import Sequence

from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import I1
from weft.foundation.errors import OutOfRange
from weft.foundation.lines import user_line
from weft.ops.arithmetic import as_tensor
from weft.ops.array.manipulation import axes_of, concat
from weft.ops.array.movement import window
from weft.ops.array.operands import known
from weft.ops.calls import public
from weft.ops.capture_recipes import captured, recorded
from weft.ops.session import Handle
from weft.ops.tensor import Tensor, tensor_method

__all__ = ["all", "any", "diff"]

Axes = int | Sequence[int] | None


@tensor_method
@recorded
def all(x: Handle, /, axis: Axes = None, *, keepdims: bool = False) -> Handle:  # noqa: A001
    """Whether every element is true; of no elements, true. Numbers are true unless zero."""
    return x.cast(I1).reduce_all(axes=axes_of(axis, x.rank), keepdims=bool(keepdims))


@tensor_method
@recorded
def any(x: Handle, /, axis: Axes = None, *, keepdims: bool = False) -> Handle:  # noqa: A001
    """Whether any element is true; of no elements, false."""
    return x.cast(I1).reduce_any(axes=axes_of(axis, x.rank), keepdims=bool(keepdims))


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
    parts = [part for part in (prepend, x, append) if part is not None]
    joined = concat(parts, axis=axis) if len(parts) > 1 else x
    found: Tensor = captured(_differences_along, [as_tensor(joined)], user_line(), axis, n)
    return found


def _differences_along(x: Handle, axis: int, n: int) -> Handle:
    if n < 0:
        raise OutOfRange("InvalidAttributeValue", f"n is {n}", "it must not be negative")
    at = normalise_axis(axis, x.rank)
    for _ in range(n):
        size = known(x.shape[at], f"axis {at}")
        if size == 0:
            break
        ahead, behind = window(x, at, 1, size - 1), window(x, at, 0, size - 1)
        x = ahead.bitwise_xor(behind) if x.dtype is I1 else ahead - behind
    return x
