"""Inputs for the cases: the same arrays on every machine for the same key."""

from __future__ import annotations

import math
import zlib
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import FP8_E4M3, I1, DType
from weft.testing.conformance.oracles.rounding import (
    from_whole,
    largest,
    nearest,
    part_dtype,
    rounded,
    smallest,
)

Array: TypeAlias = NDArray[Any]
Shape: TypeAlias = tuple[int, ...]


def source(*key: object) -> np.random.Generator:
    """A source of random numbers that depends on the key alone."""
    return np.random.default_rng(zlib.crc32("/".join(map(str, key)).encode()))


def sample(dtype: DType, shape: Shape, *key: object, scale: float = 2.0) -> Array:
    """Ordinary values: any integers, floats and complex numbers around 0."""
    rng = source(dtype, shape, *key)
    if dtype is I1:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_integer:
        low, high = int(dtype.lowest), int(dtype.highest)
        carrier: Any = np.int64 if low else np.uint64
        found = rng.integers(low, high, shape, dtype=carrier, endpoint=True)
        return np.asarray(found).astype(dtype.numpy)
    if dtype.is_complex:
        return joined(dtype, *rng.standard_normal((2, *shape)) * scale)
    return nearest(rng.standard_normal(shape) * scale, dtype)


def counts(dtype: DType, shape: Shape, *key: object, most: int = 4) -> Array:
    """Small whole numbers with many ties; sums and products of a few of them are exact."""
    rng = source("counts", dtype, shape, *key)
    if dtype is I1:
        return sample(dtype, shape, *key)
    low = 0 if dtype.lowest == 0 else -most
    drawn = rng.integers(low, most, shape, endpoint=True)
    if dtype.is_integer:
        return from_whole(np.asarray(drawn).astype(object), dtype)
    if dtype.is_complex:
        return joined(dtype, drawn, rng.integers(low, most, shape, endpoint=True))
    return nearest(np.asarray(drawn, np.float64), dtype)


def joined(dtype: DType, real: Any, imag: Any) -> Array:
    """Complex numbers from their parts, which are taken as they are."""
    result = np.empty(np.shape(real), dtype.numpy)
    result.real, result.imag = nearest(real, part_dtype(dtype)), nearest(imag, part_dtype(dtype))
    return result


def special(dtype: DType) -> Array:
    """The values where implementations differ: signed zeros, infinities, NaN, the ends of the
    range, subnormals, halves; the extremes of an integer; i1 has both its values."""
    if dtype is I1:
        return np.array([False, True])
    if dtype.is_integer:
        low, high = int(dtype.lowest), int(dtype.highest)
        near = [v for v in (-2, -1, 0, 1, 2, 3) if low <= v]
        return from_whole(np.array([low, low + 1, *near, high // 2, high - 1, high], object), dtype)
    floats = _special_floats(part_dtype(dtype))
    if dtype.is_complex:
        real, imag = np.meshgrid(floats[:12], floats[:12])
        return joined(dtype, real.reshape(-1), imag.reshape(-1))
    return floats


def _special_floats(dtype: DType) -> Array:
    top, low = largest(dtype), smallest(dtype)
    normal = float(2.0 ** math.ceil(math.log2(low) + dtype.precision - 1))
    ends = [math.nan, math.inf, -math.inf] if dtype is not FP8_E4M3 else [math.nan]
    values = [0.0, -0.0, 1.0, -1.0, *ends, top, -top, low, -low, normal, -normal]
    values += [0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.0, 0.75, top / 2, normal / 2, math.pi]
    return nearest(np.array(values), dtype)


def every(dtype: DType) -> Array:
    """Every value of a dtype of up to 8 bits."""
    if dtype.bits == 4:
        return np.arange(16, dtype=np.uint8).view(dtype.numpy)
    if dtype is I1:
        return np.array([False, True])
    return np.arange(256, dtype=np.uint8).view(dtype.numpy)


def edges(dtype: DType) -> Array:
    """Every value of a small dtype, the special values of a large one."""
    return every(dtype) if dtype.bits <= 8 else special(dtype)


def pairs(x: Array, y: Array) -> tuple[Array, Array]:
    """Every element of x beside every element of y."""
    return np.repeat(x, y.size), np.tile(y, x.size)


def near_one(dtype: DType, shape: Shape, *key: object) -> Array:
    """Floats and complex numbers around 1 and -1: long products of them stay in range."""
    rng = source(dtype, shape, *key)
    size = rng.uniform(0.8, 1.25, shape) * rng.choice([-1, 1], shape)
    return rounded(np.asarray(size), dtype)


def unusual(dtype: DType, shape: Shape, *key: object) -> Array:
    """Special values in any order."""
    return np.array(source(dtype, shape, *key).choice(special(dtype), shape), dtype.numpy)


def filling(dtype: DType) -> Any:
    """A Python number that a padding of this dtype can be."""
    if dtype is I1:
        return True
    if dtype.is_complex:
        return 1.5 - 2.5j
    return 3 if dtype.is_integer else -1.5


def positions(limit: int, shape: Shape, dtype: DType, *key: object) -> Array:
    """Indices in [0, limit), with repeats."""
    return source("positions", limit, shape, *key).integers(0, limit, shape).astype(dtype.numpy)
