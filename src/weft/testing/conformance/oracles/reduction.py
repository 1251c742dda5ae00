"""Reductions over axes: exact totals, and how far the plain evaluation is from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import F32, FP8_E4M3, I1, DType
from weft.testing.conformance.oracles.rounding import (
    from_whole,
    nearest,
    rounded,
    whole,
    wide,
    wrapped,
)

Array = NDArray[Any]


def sum_accumulator(dtype: DType) -> DType:
    """Where sums over a dtype are taken unless the program says otherwise."""
    return F32 if dtype.is_float and dtype.bits < 32 else dtype


def lines(x: Array, axes: Sequence[int]) -> Array:
    """The elements that are reduced together along the last axis, in row-major order."""
    rest = [axis for axis in range(x.ndim) if axis not in axes]
    turned = x.transpose(*rest, *sorted(axes))
    count = math.prod(x.shape[axis] for axis in axes)
    return turned.reshape(*(x.shape[axis] for axis in rest), count)


def total(x: Array, axes: Sequence[int], accum: DType, *, product: bool = False) -> Array:
    """The exact sum or product of floats or complex numbers, wide enough for `accum`."""
    rows = lines(wide(x.astype(accum.numpy)), axes)
    return np.asarray(np.prod(rows, axis=-1) if product else np.sum(rows, axis=-1))


def plain_error(x: Array, axes: Sequence[int], accum: DType, *, product: bool = False) -> float:
    """The largest error of combining one element after the other, each step rounded to `accum`."""
    exact = running(x, axes, accum, product=product)[..., -1:]
    return _distance(one_by_one(x, axes, accum, product=product)[..., -1:], exact)


def running(x: Array, axes: Sequence[int], accum: DType, *, product: bool = False) -> Array:
    """Every exact partial sum or product, wide."""
    rows = lines(wide(x.astype(accum.numpy)), axes)
    return np.asarray(np.cumprod(rows, axis=-1) if product else np.cumsum(rows, axis=-1))


def one_by_one(x: Array, axes: Sequence[int], accum: DType, *, product: bool = False) -> Array:
    """Every partial sum or product, rounded to `accum` at each step."""
    rows = lines(x.astype(accum.numpy), axes)
    if accum.bits >= 32:
        # `accumulate` cannot do anything but go step by step.
        step = np.multiply if product else np.add
        return np.asarray(step.accumulate(rows, axis=-1))
    result = rows.astype(np.float64)
    for i in range(1, rows.shape[-1]):
        last, new = result[..., i - 1], result[..., i]
        result[..., i] = nearest(last * new if product else last + new, accum).astype(np.float64)
    return rounded(result, accum)


def running_error(x: Array, axes: Sequence[int], accum: DType, *, product: bool = False) -> float:
    """The largest error of any partial result of the plain evaluation."""
    exact = running(x, axes, accum, product=product)
    return _distance(one_by_one(x, axes, accum, product=product), exact)


def _distance(got: Array, exact: Array) -> float:
    far = np.abs(got.astype(exact.dtype) - exact)
    return float(np.max(np.where(np.isfinite(far), far, 0), initial=0.0))


def integer_total(x: Array, axes: Sequence[int], accum: DType, *, product: bool = False) -> Array:
    """The sum or product of integers (or of i1, counted), wrapped to `accum`."""
    rows = lines(whole(x), axes)
    combine = math.prod if product else sum
    totals = np.empty(rows.shape[:-1], object)
    for index in np.ndindex(totals.shape):
        totals[index] = combine(rows[index].tolist())
    return wrapped(totals, accum)


def integer_running(x: Array, axis: int, dtype: DType, *, product: bool = False) -> Array:
    """Every partial sum or product of integers along an axis that comes last, wrapped."""
    rows = lines(whole(x), (axis,))
    combined = np.cumprod(rows, axis=-1) if product else np.cumsum(rows, axis=-1)
    return wrapped(np.asarray(combined, object), dtype)


# -- extremes ------------------------------------------------------------------------------------


def identity(kind: str, dtype: DType) -> Any:
    """What the maximum or minimum of nothing is."""
    if dtype is I1:
        return kind == "min"
    if dtype.is_float:
        top = 448.0 if dtype is FP8_E4M3 else math.inf
        return -top if kind == "max" else top
    return int(dtype.lowest if kind == "max" else dtype.highest)


def extreme(kind: str, x: Array, axes: Sequence[int], dtype: DType) -> Array:
    """The maximum or minimum over axes; NaN wins."""
    return _settle_values(
        _choose_extreme(kind, lines(_widen_exactly(x, dtype), axes), dtype), dtype
    )


def running_extreme(kind: str, x: Array, axis: int, dtype: DType) -> Array:
    """Every partial maximum or minimum along an axis that comes last."""
    rows = lines(_widen_exactly(x, dtype), (axis,))
    result = rows.copy()
    for i in range(rows.shape[-1]):
        result[..., i] = _choose_extreme(kind, rows[..., : i + 1], dtype)
    return _settle_values(result, dtype)


def _widen_exactly(x: Array, dtype: DType) -> Array:
    return wide(x) if dtype.is_float else whole(x)


def _choose_extreme(kind: str, rows: Array, dtype: DType) -> Array:
    if not rows.shape[-1]:
        return np.full(rows.shape[:-1], identity(kind, dtype), rows.dtype)
    best = np.array(rows[..., 0])
    for i in range(1, rows.shape[-1]):
        new = rows[..., i]
        better = new > best if kind == "max" else new < best
        best = np.where(better, new, best)
    if dtype.is_float:
        best = np.where(np.isnan(rows).any(axis=-1), np.nan, best)
    return np.asarray(best)


def _settle_values(values: Array, dtype: DType) -> Array:
    if dtype.is_float:
        return nearest(values, dtype)
    return values.astype(np.bool_) if dtype is I1 else from_whole(values, dtype)


def extreme_position(kind: str, x: Array, axis: int, dtype: DType) -> Array:
    """Where the first extreme along an axis is; NaN comes before everything."""
    rows = lines(_widen_exactly(x, dtype), (axis,))
    found = np.empty(rows.shape[:-1], object)
    for index in np.ndindex(found.shape):
        found[index] = _first_extreme(kind, rows[index].tolist())
    return found


def _first_extreme(kind: str, values: list[Any]) -> int:
    for i, value in enumerate(values):
        if value != value:  # noqa: PLR0124
            return i
    return values.index(max(values) if kind == "max" else min(values))


def truth(kind: str, x: Array, axes: Sequence[int]) -> Array:
    """Whether any, or every, element is true."""
    counted = np.sum(lines(x, axes), axis=-1, dtype=np.int64)
    size = math.prod(x.shape[axis] for axis in axes)
    return np.asarray(counted > 0 if kind == "any" else counted == size)
