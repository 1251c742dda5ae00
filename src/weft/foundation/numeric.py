"""Arithmetic that many ops share: casts, and computing on narrow storage types.

Narrow floats (f16, bf16, fp8) are computed in f32 and rounded once; 4-bit integers are computed in
8 bits and wrapped. Every function here is vectorised and takes arrays of the NumPy type of a dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import F32, F64, I1, SI4, SI8, SI32, UI4, UI8, UI32, DType, Kind

Array = NDArray[Any]


def compute_dtype(dtype: DType) -> DType:
    """The dtype in which single operations on `dtype` are carried out."""
    if dtype.is_float and dtype.bits < 32:
        return F32
    if dtype is SI4:
        return SI8
    return UI8 if dtype is UI4 else dtype


def wide_dtype(dtype: DType) -> DType:
    """Where formulas of floats are computed: f64 in f64, all others in f32."""
    return F64 if dtype is F64 else F32


def is_number_of(value: complex, dtype: DType) -> bool:
    """Whether a dtype has this number; floats may round it."""
    if dtype.is_complex or isinstance(value, complex):
        return dtype.is_complex
    if dtype is I1:
        return value in (0, 1)
    if dtype.is_integer:
        whole = math.isfinite(value) and value == int(value)
        return whole and dtype.lowest <= value <= dtype.highest
    return not math.isfinite(value) or abs(value) <= dtype.highest


def accumulator_dtype(dtype: DType) -> DType:
    """The default accumulator of sums and dots over `dtype`: dots also widen small integers."""
    return F32 if dtype.is_float and dtype.bits < 32 else dtype


def dot_accumulator_dtype(dtype: DType) -> DType:
    """The default accumulator of `dot_general`."""
    if dtype.is_integer and dtype.bits < 32:
        return SI32 if dtype.is_signed else UI32
    return accumulator_dtype(dtype)


def compute(function: Callable[..., Any], dtype: DType, *args: Array) -> Array:
    """`function` of arrays of `dtype`, carried out in the compute dtype and rounded back."""
    wide = compute_dtype(dtype)
    if wide is dtype:
        return np.asarray(function(*args), dtype=dtype.numpy)
    return narrow(np.asarray(function(*(widen(a, dtype) for a in args))), dtype)


def widen(array: Array, dtype: DType) -> Array:
    """The array in the compute dtype of its dtype; exact."""
    wide = compute_dtype(dtype)
    return array if wide is dtype else array.astype(wide.numpy)


def narrow(array: Array, dtype: DType) -> Array:
    """A computed array back in `dtype`: floats round to nearest even, integers wrap."""
    if dtype.is_float:
        return round_float(array, dtype)
    if dtype in (SI4, UI4):
        return np.asarray(array.astype(np.uint8) & 0x0F).view(dtype.numpy)
    return array.astype(dtype.numpy)


def round_float(array: Array, dtype: DType) -> Array:
    """A real float array rounded once, to nearest even, to a float dtype; what is too large becomes
    what the dtype has for it, and that is no news."""
    with np.errstate(over="ignore"):
        if dtype.bits < 16 or dtype.name == "bf16":
            # ml_dtypes converts f64 through f32; rounding that step to odd keeps the result right.
            array = _to_odd_f32(array) if array.dtype == np.float64 else array
        return array.astype(dtype.numpy)


def _to_odd_f32(array: Array) -> Array:
    # Rounded to nearest, taken one back where that went away from zero, and then the last bit set
    # where anything was lost: rounding to odd. A second rounding, to a format that has at least two
    # digits less, then gives what a single one would: the set bit keeps numbers off its ties.
    near = np.atleast_1d(array.astype(np.float32))
    exact = np.atleast_1d(array)
    back = near.astype(np.float64)
    inexact = (back != exact) & ~np.isnan(exact)
    away = inexact & (np.abs(back) > np.abs(exact))
    bits = near.view(np.uint32) - away.astype(np.uint32)
    bits |= inexact.astype(np.uint32)
    return np.asarray(bits.view(np.float32).reshape(array.shape))


def cast(array: Array, source: DType, target: DType) -> Array:
    """The contract's cast: truncating and saturating to integers, nearest even to floats."""
    if source is target:
        return array
    if target is I1:
        return np.asarray(array != np.zeros((), array.dtype), np.bool_)
    if source.is_complex and not target.is_complex:
        array, source = array.real, F32 if source.bits == 64 else F64
        return cast(array, source, target)
    if target.is_complex:
        part = F32 if target.bits == 64 else F64
        real = array if source.is_complex else cast(array, source, part)
        return real.astype(target.numpy)
    if target.is_float:
        return _to_float(array, source, target)
    if source.is_float:
        return _float_to_int(array, target)
    return _int_to_int(array, source, target)


def _to_float(array: Array, source: DType, target: DType) -> Array:
    if source.is_float:
        if source.bits < 16 or source.name == "bf16":
            array = array.astype(np.float32)
        return round_float(array, target)
    if source.kind is Kind.BOOL or source.bits <= 8:
        return array.astype(np.float32).astype(target.numpy)
    if target.bits >= 32:
        return array.astype(target.numpy)
    return round_float(_int_to_odd_f64(array), target)


def _int_to_odd_f64(array: Array) -> Array:
    """Integers as f64; those beyond 53 bits keep a sticky bit so that a later rounding is right."""
    if array.dtype.itemsize < 8:
        return array.astype(np.float64)
    # Twelve of 64 bits are cut, and the highest of them says whether any was set: 52 bits and that
    # one are what a double holds exactly.
    unit = array.dtype.type(0xFFF)
    sticky = (array & ~unit) | np.where((array & unit) != 0, array.dtype.type(0x800), 0).astype(
        array.dtype
    )
    large = (array >= array.dtype.type(1 << 53)) | (
        (array < 0) & (array <= -(1 << 53)) if array.dtype.kind == "i" else False
    )
    return np.where(large, sticky, array).astype(np.float64)


def _float_to_int(array: Array, target: DType) -> Array:
    if array.dtype.itemsize < 4:
        array = array.astype(np.float32)
    whole = np.trunc(array).astype(np.float64)
    low, high = int(target.lowest), int(target.highest)
    # high + 1 is a power of two, which a double has, and high itself may not be one. Where low - 1
    # is none it rounds to low, which is what comes out of it.
    over, under = whole >= float(high + 1), whole <= float(low - 1)
    inside = np.where(over | under | np.isnan(whole), 0.0, whole)
    wide: Any = np.uint64 if target.bits == 64 and not target.is_signed else np.int64
    result = inside.astype(wide)
    result = np.where(over, wide(high), np.where(under, wide(low), result))
    return result.astype(wide).astype(target.numpy)


def _int_to_int(array: Array, source: DType, target: DType) -> Array:
    if source.kind is Kind.BOOL:
        return array.astype(np.uint8).astype(target.numpy)
    low = max(int(source.lowest), int(target.lowest))
    high = min(int(source.highest), int(target.highest))
    wide = array.astype(np.int64) if source.bits < 64 else array
    return np.asarray(np.clip(wide, low, high)).astype(target.numpy)


def as_pairs(array: Array) -> Array:
    """A complex array as floats with one more axis, of size 2: real and imaginary part. Others stay
    as they are."""
    if array.dtype.kind != "c":
        return array
    part = np.float32 if array.dtype == np.complex64 else np.float64
    return np.ascontiguousarray(array).view(part).reshape(*array.shape, 2)


def as_complex(array: Array) -> Array:
    """The complex array that floats with a last axis of size 2 are the parts of."""
    whole = np.complex64 if array.dtype == np.float32 else np.complex128
    return np.ascontiguousarray(array).view(whole).reshape(array.shape[:-1])
