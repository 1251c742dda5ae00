"""Conversion between dtypes, through exact Python numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import I1, DType
from weft.testing.conformance.oracles.functions import each
from weft.testing.conformance.oracles.rounding import (
    from_whole,
    nearest,
    nearest_of_integers,
    part_dtype,
    saturated,
    whole,
)

Array = NDArray[Any]


def convert(x: Array, source: DType, target: DType) -> Array:
    """The contract's cast."""
    with np.errstate(all="ignore"):
        if target is I1:
            return np.asarray(x != np.zeros((), x.dtype), np.bool_)
        if target.is_complex:
            return _to_complex(x, source, target)
        if source.is_complex:
            return convert(
                np.ascontiguousarray(x.real).reshape(x.shape), part_dtype(source), target
            )
        if target.is_float:
            return _to_float(x, source, target)
        return _to_integer(x, source, target)


def _to_complex(x: Array, source: DType, target: DType) -> Array:
    result = np.zeros(x.shape, target.numpy)
    if source.is_complex:
        result.real, result.imag = (
            nearest(x.real, part_dtype(target)),
            nearest(x.imag, part_dtype(target)),
        )
    else:
        result.real = convert(x, source, part_dtype(target))
    return result


def _to_float(x: Array, source: DType, target: DType) -> Array:
    if source.is_float:
        return nearest(x.astype(np.float64), target)
    values = nearest_of_integers(whole(x).reshape(-1).tolist(), target)
    return nearest(np.array(values, np.float64), target).reshape(x.shape)


def _to_integer(x: Array, source: DType, target: DType) -> Array:
    if not source.is_float:
        return saturated(whole(x), target)
    low, high = int(target.lowest), int(target.highest)

    def cut(value: float) -> int:
        if math.isnan(value):
            return 0
        if math.isinf(value):
            return high if value > 0 else low
        return min(max(math.trunc(value), low), high)

    return from_whole(each(cut, x.astype(np.float64)), target)
