"""Exact numbers and the nearest value of a dtype.

A narrow float is looked up in the sorted list of all its values, wider ones are the hardware's own
IEEE conversions, and integers are Python's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import CF32, CF64, F32, F64, FP8_E4M3, DType

Array = NDArray[Any]

PART = {CF32: F32, CF64: F64}
"""The dtype of the two parts of each complex dtype."""


def part_dtype(dtype: DType) -> DType:
    """The dtype of the parts of a complex dtype; any other dtype itself."""
    return PART.get(dtype, dtype)


def precision(dtype: DType) -> int:
    """Significand bits of a float, or of each part of a complex number."""
    return part_dtype(dtype).precision


def _finfo_of(dtype: DType) -> Any:
    return ml_dtypes.finfo(part_dtype(dtype).numpy)  # type: ignore[no-untyped-call]


def smallest(dtype: DType) -> float:
    """The smallest positive value of a float dtype, or of the parts of a complex one."""
    return float(_finfo_of(dtype).smallest_subnormal)


def largest(dtype: DType) -> float:
    """The largest finite value of a float dtype, or of the parts of a complex one."""
    return float(_finfo_of(dtype).max)


def wide(array: Array) -> Array:
    """Floats and complex numbers, exactly, in a format with bits to spare: f64 for those of up to
    32 bits, long double for f64 (which is no wider than f64 on a few machines)."""
    if array.dtype.kind == "c":
        return array.astype(np.complex128 if array.itemsize == 8 else np.clongdouble)
    return array.astype(np.float64 if array.itemsize < 8 else np.longdouble)


def whole(array: Array) -> Array:
    """Integers and i1 as Python integers, in an array of objects."""
    unsigned = array.dtype == np.uint64
    return array.astype(np.uint64 if unsigned else np.int64).astype(object)


def wrapped(values: Array, dtype: DType) -> Array:
    """Python integers taken modulo the width of an integer dtype."""
    low = int(dtype.lowest)
    return from_whole((values - low) % (1 << dtype.bits) + low, dtype)


def saturated(values: Array, dtype: DType) -> Array:
    """Python integers cut to the range of an integer dtype."""
    low, high = int(dtype.lowest), int(dtype.highest)
    raised = np.asarray(np.maximum(np.asarray(values, object), low), object)
    return from_whole(np.minimum(raised, high), dtype)


def from_whole(values: Array, dtype: DType) -> Array:
    """Python integers that fit an integer dtype, as an array of it."""
    objects = np.asarray(values, object)
    carrier: Any = np.uint64 if dtype.bits == 64 and not dtype.is_signed else np.int64
    return objects.astype(carrier).astype(dtype.numpy)


@cache
def magnitudes(dtype: DType) -> Array:
    """Every finite value of a narrow float that is not negative; its place is its bit pattern."""
    patterns = np.arange(1 << (dtype.bits - 1), dtype=f"u{dtype.bits // 8}")
    with np.errstate(all="ignore"):
        values = patterns.view(dtype.numpy).astype(np.float64)
    finite: Array = values[np.isfinite(values)]
    finite.flags.writeable = False
    return finite


def nearest(values: Array, dtype: DType) -> Array:
    """Real numbers rounded to a float dtype: to nearest, halfway cases to the even pattern."""
    with np.errstate(all="ignore"):
        if dtype in (F32, F64):
            return np.asarray(values).astype(dtype.numpy)
        return _search(np.asarray(values, np.float64), dtype)


def _search(values: Array, dtype: DType) -> Array:
    table = magnitudes(dtype)
    size = np.abs(np.where(np.isnan(values), 0.0, values))
    upper = np.clip(np.searchsorted(table, size), 1, len(table) - 1)
    below, above = size - table[upper - 1], table[upper] - size
    down = (below < above) | ((below == above) & (upper % 2 == 1))
    pattern = np.where(down, upper - 1, upper)
    # One more step of the last binade is where rounding leaves the format.
    edge = table[-1] + (table[-1] - table[-2]) / 2
    over = (size > edge) | ((size == edge) & (len(table) % 2 == 0))
    beyond = len(table)
    pattern = np.where(over, beyond, np.where(size > table[-1], beyond - 1, pattern))
    pattern = np.where(np.isnan(values), (1 << (dtype.bits - 1)) - 1, pattern)
    sign = np.signbit(values).astype(np.int64) << (dtype.bits - 1)
    return np.asarray((pattern + sign).astype(f"u{dtype.bits // 8}")).view(dtype.numpy)


def nearest_complex(values: Array, dtype: DType) -> Array:
    """Complex numbers with each part rounded."""
    result = np.empty(np.shape(values), dtype.numpy)
    result.real = nearest(np.real(values), part_dtype(dtype))
    result.imag = nearest(np.imag(values), part_dtype(dtype))
    return result


def rounded(values: Array, dtype: DType) -> Array:
    """Exact values, real or complex, as an array of a float or complex dtype."""
    return nearest_complex(values, dtype) if dtype.is_complex else nearest(values, dtype)


def nearest_of_integers(values: Iterable[int], dtype: DType) -> list[float]:
    """Integers of any size rounded once to a float dtype, by integer arithmetic alone."""
    return [_nearest_of_integer(value, dtype) for value in values]


def _nearest_of_integer(value: int, dtype: DType) -> float:
    size = abs(value)
    shift = max(0, size.bit_length() - dtype.precision)
    quotient, rest = divmod(size, 1 << shift)
    double = 2 * rest
    if double > 1 << shift or (double == 1 << shift and shift and quotient % 2):
        quotient += 1
    result = quotient << shift
    if result > largest(dtype):
        return math.nan if dtype is FP8_E4M3 else math.copysign(math.inf, value)
    return float(result if value >= 0 else -result)
