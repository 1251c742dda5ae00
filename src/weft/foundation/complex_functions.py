"""Functions of complex arrays that NumPy lacks, or carries out too coarsely. All work in cf64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def from_parts(real: Array, imag: Array) -> Array:
    """Both parts put together as they are: no arithmetic, so zero signs and infinities survive."""
    result = np.empty(np.shape(real), np.complex128)
    result.real, result.imag = real, imag
    return result


def expm1(z: Array) -> Array:
    x, y = z.real, z.imag
    # e^x cos y - 1 = (e^x - 1) cos y - (1 - cos y), and 1 - cos y = 2 sin^2(y / 2): no difference
    # of nearly equal numbers is left.
    half = np.sin(y / 2)
    near = from_parts(np.expm1(x) * np.cos(y) - 2 * half * half, np.exp(x) * np.sin(y))
    return np.where(np.abs(x) < 1, near, np.exp(z) - 1)


def log1p(z: Array) -> Array:
    # NumPy's own takes log(hypot(1 + x, y)), which forgets a small x altogether.
    x, y = z.real, z.imag
    # |1 + z|^2 - 1 = x (2 + x) + y^2.
    near = from_parts(0.5 * np.log1p(x * (2 + x) + y * y), np.arctan2(y, 1 + x))
    return np.where(np.hypot(x, y) < 0.5, near, np.log(from_parts(1 + x, y)))


def exp2(z: Array) -> Array:
    # The whole part of the exponent is applied exactly; 2^2000 and 2^-2000 overflow and vanish.
    whole = np.clip(np.nan_to_num(np.rint(z.real)), -2000, 2000).astype(np.int32)
    power = np.exp(from_parts((z.real - whole) * math.log(2), z.imag * math.log(2)))
    return from_parts(np.ldexp(power.real, whole), np.ldexp(power.imag, whole))


def direction(z: Array) -> Array:
    """`z / |z|`, which neither overflows nor underflows; 0 stays."""
    infinite = np.isinf(z)
    x, y = (_finite_stand_in(part, infinite) for part in (z.real, z.imag))
    # Both parts by one power of two, exactly: the larger lies in [1/2, 1), and the square of
    # neither overflows.
    exponent = np.frexp(np.maximum(np.abs(x), np.abs(y)))[1]
    x, y = np.ldexp(x, -exponent), np.ldexp(y, -exponent)
    size = np.hypot(x, y)
    return np.where(size == 0, z, from_parts(x / size, y / size))


def _finite_stand_in(part: Array, infinite: Array) -> Array:
    """Beside an infinite part a finite one is nothing; both infinite are equally long."""
    unit = np.copysign(np.isinf(part), part)
    return np.where(infinite & ~np.isnan(part), unit, part)
