"""Bit patterns of numbers by arithmetic: no memory is read in two ways."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import BF16, F16, F32, F64, FP8_E4M3, FP8_E5M2, DType

_BIAS = {FP8_E4M3: 7, FP8_E5M2: 15, F16: 15, BF16: 127, F32: 127, F64: 1023}


def pattern(value: Any, dtype: DType) -> int:
    """The bits of a number that is not NaN, as an integer that is not negative."""
    if dtype.is_integer:
        return int(value) % (1 << dtype.bits)
    real = float(value)
    sign = int(math.copysign(1, real) < 0) << (dtype.bits - 1)
    return sign + _magnitude(abs(real), dtype)


def _magnitude(size: float, dtype: DType) -> int:
    fraction, bias = dtype.precision - 1, _BIAS[dtype]
    if math.isinf(size):
        return ((1 << (dtype.bits - 1 - fraction)) - 1) << fraction
    exponent = max(math.frexp(size)[1] - 1, 1 - bias) if size else 1 - bias
    # Without the leading one for normal numbers, which then counts as a step of the exponent.
    steps = int(math.ldexp(size, fraction - exponent))
    return ((exponent + bias - 1) << fraction) + steps


def reread(x: NDArray[Any], source: DType, target: DType) -> NDArray[Any]:
    """Numbers of one dtype as the integers of another that have their bits."""
    half = 1 << (target.bits - 1)
    found = [pattern(value, source) for value in x.reshape(-1)]
    if target.is_signed:
        found = [bits - 2 * half if bits >= half else bits for bits in found]
    return np.array(found, target.numpy).reshape(x.shape)
