"""Sums, products, extremes, means and deviations, over some axes or all.

Integers are summed and multiplied in 64 bits, whatever their dtype; floats keep theirs, and what is
narrower than f32 is accumulated there and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import F32, I1, SI64, UI64, DType
from weft.foundation.errors import OutOfRange, SpecViolation
from weft.ops.arithmetic import listed
from weft.ops.array.data_types import dtype_named
from weft.ops.array.manipulation import axes_of
from weft.ops.capture_recipes import recorded
from weft.ops.promotion import as_float
from weft.ops.session import Handle
from weft.ops.tensor import tensor_method

__all__ = ["cumulative_prod", "cumulative_sum", "max", "mean", "min", "prod", "std", "sum", "var"]

Axes = int | Sequence[int] | None


def total_dtype(dtype: DType, wanted: Any) -> DType:
    """The dtype of a sum or product of elements of `dtype`, unless one is asked for."""
    if wanted is not None:
        return dtype_named(wanted)
    if dtype is I1 or dtype.is_signed:
        return SI64
    return UI64 if dtype.is_integer else dtype


def summed(x: Handle, axes: Sequence[int], keepdims: bool, dtype: DType) -> Handle:
    """The sum in a dtype."""
    return _accumulate_in("reduce_sum", x, axes, keepdims, dtype)


def _accumulate_in(
    name: str, x: Handle, axes: Sequence[int], keepdims: bool, dtype: DType
) -> Handle:
    """A sum or product in a dtype. A wider dtype of the same kind is the accumulator itself; all
    others are converted first."""
    source = x.dtype
    widens = source.kind is dtype.kind and dtype.bits > source.bits
    if not widens:
        x = x.cast(dtype)
    wide = dtype if widens else None
    return x.session.emit(
        name, x, axes=tuple(axes), keepdims=bool(keepdims), accum_dtype=wide, out_dtype=wide
    )


@tensor_method
@recorded
def sum(  # noqa: A001
    x: Handle, /, axis: Axes = None, *, dtype: Any = None, keepdims: bool = False
) -> Handle:
    """The sum; of no elements, 0."""
    return summed(x, axes_of(axis, x.rank), keepdims, total_dtype(x.dtype, dtype))


@tensor_method
@recorded
def prod(x: Handle, /, axis: Axes = None, *, dtype: Any = None, keepdims: bool = False) -> Handle:
    """The product; of no elements, 1."""
    wanted = total_dtype(x.dtype, dtype)
    return _accumulate_in("reduce_prod", x, axes_of(axis, x.rank), keepdims, wanted)


# -- extremes ------------------------------------------------------------------------------------


@tensor_method
@recorded
def max(x: Handle, /, axis: Axes = None, *, keepdims: bool = False) -> Handle:  # noqa: A001
    """The largest element; NaN where there is one."""
    return x.reduce_max(_axes_with_elements(x, axis), bool(keepdims))


@tensor_method
@recorded
def min(x: Handle, /, axis: Axes = None, *, keepdims: bool = False) -> Handle:  # noqa: A001
    """The smallest element; NaN where there is one."""
    return x.reduce_min(_axes_with_elements(x, axis), bool(keepdims))


def _axes_with_elements(x: Handle, axis: Any) -> tuple[int, ...]:
    """Axes to choose elements from: there must be some."""
    axes = axes_of(axis, x.rank)
    if any(x.shape[a] == 0 for a in axes):
        raise OutOfRange(
            "ShapeMismatch",
            f"x {listed(x.shape)} has no elements along axes {axes} to choose from",
            "check for an empty tensor first",
        )
    return axes


# -- means and deviations ------------------------------------------------------------------------


@tensor_method
@recorded
def mean(x: Handle, /, axis: Axes = None, *, keepdims: bool = False) -> Handle:
    """The mean; integers are converted to the default float first."""
    average = averaged(_as_wide_float(x), axes_of(axis, x.rank), bool(keepdims))
    return average.cast(as_float(x.dtype))


def _as_wide_float(x: Handle) -> Handle:
    """In a float dtype of 32 bits or more."""
    dtype = as_float(x.dtype)
    return x.cast(F32 if dtype.bits < F32.bits else dtype)


def averaged(x: Handle, axes: Sequence[int], keepdims: bool, less: float = 0) -> Handle:
    """The sum divided by the number of elements, `less` some."""
    total = x.reduce_sum(axes, keepdims)
    sizes = [x.shape[a] for a in axes]
    if all(isinstance(size, int) for size in sizes):
        count = math.prod(size for size in sizes if isinstance(size, int)) - less
        return total / float(count if count > 0 else 0)
    ones = x.session.full(1.0, x.dtype, x.shape).reduce_sum(axes, keepdims)
    rest = (ones - less) if less else ones
    return total / rest.maximum(rest.session.full(0.0, rest.dtype, rest.shape))


@tensor_method
@recorded
def var(
    x: Handle, /, axis: Axes = None, *, correction: float = 0.0, keepdims: bool = False
) -> Handle:
    """The mean of the squared distances from the mean; `correction` is taken off the number of
    elements."""
    return _variance(x, axes_of(axis, x.rank), correction, keepdims).cast(as_float(x.dtype))


@tensor_method
@recorded
def std(
    x: Handle, /, axis: Axes = None, *, correction: float = 0.0, keepdims: bool = False
) -> Handle:
    """The square root of `var`; where that is 0, so is the derivative."""
    spread = _variance(x, axes_of(axis, x.rank), correction, keepdims)
    return root(spread).cast(as_float(x.dtype))


def root(total: Handle) -> Handle:
    """The square root of a sum of squares. A root rises infinitely fast at 0, where the length it
    is has its kink: there the result is a constant, so that its gradient is 0 and not NaN."""
    s = total.session
    zero = total.compare("equal", 0.0)
    safe = s.select(zero, s.full(1.0, total.dtype, total.shape), total)
    return s.select(zero, s.full(0.0, total.dtype, total.shape), safe.sqrt())


def _variance(x: Handle, axes: Sequence[int], correction: float, keepdims: bool) -> Handle:
    if x.dtype.is_complex:
        raise SpecViolation(
            "DTypeNotSupported",
            f"the spread of complex numbers ({x.dtype}) is not defined here",
            "take it of weft.real and weft.imag, and add",
        )
    wide = _as_wide_float(x)
    distance = wide - averaged(wide, axes, True).broadcast_to(wide.shape)
    return averaged(distance * distance, axes, bool(keepdims), float(correction))


# -- running sums --------------------------------------------------------------------------------


@tensor_method
@recorded
def cumulative_sum(
    x: Handle, /, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False
) -> Handle:
    """The sums of the elements up to each one along an axis; `include_initial` puts a 0 before."""
    return _reduce_running("cumulative_sum", x, axis, dtype, include_initial, 0)


@tensor_method
@recorded
def cumulative_prod(
    x: Handle, /, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False
) -> Handle:
    """The products of the elements up to each one along an axis; `include_initial` puts a 1
    before."""
    return _reduce_running("cumulative_prod", x, axis, dtype, include_initial, 1)


def _reduce_running(
    name: str, x: Handle, axis: int | None, dtype: Any, include_initial: bool, first: int
) -> Handle:
    if axis is None and x.rank != 1:
        raise OutOfRange(
            "InvalidAttributeValue",
            f"x {listed(x.shape)} has rank {x.rank}, so the axis must be named",
            "pass axis=",
        )
    at = normalise_axis(0 if axis is None else axis, x.rank)
    x = x.cast(total_dtype(x.dtype, dtype))
    result = x.session.emit(name, x, axis=at)
    if include_initial:
        shape = (*x.shape[:at], 1, *x.shape[at + 1 :])
        result = x.session.full(first, x.dtype, shape).concat(result, at)
    return result
