"""Norms of vectors and matrices, and singular values, which some of them are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.foundation.errors import UserError
from weft.ops.array.manipulation import axes_of
from weft.ops.array.matrices import computed_in, magnitude, matrices
from weft.ops.array.statistics import root, summed
from weft.ops.capture_recipes import recorded
from weft.ops.promotion import as_float
from weft.ops.session import Handle

_REAL = {"cf32": "f32", "cf64": "f64"}


def singular_values(x: Handle) -> Handle:
    """Real and descending, along the last axis."""
    return x.svd(full_matrices=False)[1]


def real_dtype(dtype: Any) -> Any:
    """The dtype of absolute values."""
    return _REAL.get(dtype.name, dtype)


@recorded
def vector_norm(
    x: Handle,
    /,
    *,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    ord: float = 2,
) -> Handle:
    """The sum of the powers of the absolute values, and its root; for an `ord` of infinity the
    largest, of 0 the number of those that are not zero. Over some axes or all."""
    dtype = as_float(x.dtype)
    sizes = magnitude(x.cast(computed_in(dtype)))
    return _norm(sizes, axes_of(axis, x.rank), bool(keepdims), ord).cast(real_dtype(dtype))


def _norm(sizes: Handle, axes: Sequence[int], keepdims: bool, order: Any) -> Handle:
    if isinstance(order, str | complex):
        raise UserError(f"ord is {order!r}; it must be a real number or an infinity")
    if order == math.inf:
        largest = sizes.reduce_max(axes, keepdims)
        return largest.maximum(largest.session.full(0.0, largest.dtype, largest.shape))
    if order == -math.inf:
        return sizes.reduce_min(axes, keepdims)
    if order == 0:
        return sizes.compare("not_equal", 0.0).cast(sizes.dtype).reduce_sum(axes, keepdims)
    if order == 1:
        return sizes.reduce_sum(axes, keepdims)
    if order == 2:
        return root((sizes * sizes).reduce_sum(axes, keepdims))
    total = _power_without_kink(sizes, float(order)).reduce_sum(axes, keepdims)
    return _power_without_kink(total, 1.0 / float(order))


def _power_without_kink(x: Handle, exponent: float) -> Handle:
    """`x` to a power, x not negative. Powers under 1 change infinitely fast at 0, where a norm has
    its kink: there the result is a constant, so that its gradient is 0 and not NaN."""
    if exponent >= 1:
        return x.pow(exponent)
    s = x.session
    zero = x.compare("equal", 0.0)
    rest = s.select(zero, s.full(1.0, x.dtype, x.shape), x).pow(exponent)
    at_zero = 0.0 if exponent > 0 else math.inf
    return s.select(zero, s.full(at_zero, x.dtype, x.shape), rest)


@recorded
def matrix_norm(
    x: Handle,
    /,
    *,
    keepdims: bool = False,
    ord: float | str | None = "fro",
) -> Handle:
    """A norm of each matrix: "fro", "nuc" (the sum of the singular values), 1, -1, 2, -2, or an
    infinity of either sign."""
    value, dtype = matrices(x)
    wide = [value.rank - 2, value.rank - 1]
    result = _matrix_norm(value, ord).cast(real_dtype(dtype))
    shape = tuple(1 if a in wide else d for a, d in enumerate(value.shape))
    return result.reshape(shape if keepdims else shape[:-2])


def _matrix_norm(x: Handle, order: Any) -> Handle:
    rank = x.rank
    if order in (2, -2, "nuc"):
        values = singular_values(x)
        last = [values.rank - 1]
        if order == "nuc":
            return summed(values, last, False, values.dtype)
        return values.reduce_max(last) if order == 2 else values.reduce_min(last)
    sizes = magnitude(x)
    if order in ("fro", None):
        return root((sizes * sizes).reduce_sum([rank - 2, rank - 1]))
    if order not in (1, -1, math.inf, -math.inf):
        raise UserError(f"ord is {order!r}; it can be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf")
    along = rank - 2 if abs(order) == 1 else rank - 1
    totals = sizes.reduce_sum([along])
    last = [totals.rank - 1]
    return totals.reduce_max(last) if order > 0 else totals.reduce_min(last)
