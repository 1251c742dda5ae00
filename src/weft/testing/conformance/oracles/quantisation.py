"""Linear quantisation as ONNX defines it, with the arithmetic that PTIR fixes: the division is a
single IEEE operation in the dtype of the scale, the product one in f32, or in f64 where f64 takes
part, and so are the sum and the difference with a zero point of fp8."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import F64, DType, as_dtype
from weft.testing.conformance.oracles.functions import each
from weft.testing.conformance.oracles.rounding import from_whole, largest, nearest, whole

Array = NDArray[Any]


def along(parameter: Array, rank: int, axis: int | None) -> Array:
    """A parameter that broadcasts over the tensor it belongs to."""
    if axis is None or parameter.ndim == 0:
        return parameter
    return parameter.reshape([-1 if d == axis else 1 for d in range(rank)])


def work_dtype(*dtypes: DType) -> np.dtype[Any]:
    """The dtype that divides and multiplies."""
    return np.dtype(np.float64 if F64 in dtypes else np.float32)


def quotient(x: Array, scale: Array) -> Array:
    """x / scale, rounded once: f32 holds the quotient of narrower floats with twice their digits
    and two more, so that rounding twice changes nothing."""
    work = np.float64 if x.dtype == np.float64 else np.float32
    with np.errstate(all="ignore"):
        return np.asarray((x.astype(work) / scale.astype(work)).astype(x.dtype))


def quantised(ratio: Array, zero: Array | None, dtype: DType) -> Array:
    """A quotient rounded, halves to even, plus the zero point, saturated; NaN gives 0. In fp8 only
    the saturated sum is rounded, and NaN stays."""
    if dtype.is_float:
        work = work_dtype(as_dtype(ratio.dtype))
        total = ratio.astype(work)
        return _narrow_total(total if zero is None else total + zero.astype(work), dtype)
    low, high = int(dtype.lowest), int(dtype.highest)

    def step(value: float, offset: int) -> int:
        if math.isnan(value):
            return 0
        if math.isinf(value):
            return high if value > 0 else low
        return min(max(round(value) + offset, low), high)

    offsets = np.zeros((), object) if zero is None else whole(zero)
    return from_whole(each(step, ratio.astype(np.float64), offsets), dtype)


def _narrow_total(total: Array, dtype: DType) -> Array:
    top = largest(dtype)
    within = np.where(total > top, top, np.where(total < -top, -top, total))
    return nearest(within, dtype)


def restored(q: Array, scale: Array, zero: Array | None) -> Array:
    """(q - zero) * scale: the difference of integers is exact, that of fp8 and the product round
    in the scale's dtype."""
    if as_dtype(q.dtype).is_float:
        real = q.astype(scale.dtype)
        return (real if zero is None else real - zero.astype(scale.dtype)) * scale
    steps = whole(q) if zero is None else whole(q) - whole(zero)
    return np.asarray(np.asarray(steps, object).astype(scale.dtype) * scale)
