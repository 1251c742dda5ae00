"""Where every element of a moved tensor comes from, by index arithmetic.

`np.indices` gives the index of each result element along each axis; every function computes from it
the index to read, and where a padding value stands instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import DType
from weft.testing.conformance.oracles.rounding import (
    from_whole,
    nearest,
    nearest_of_integers,
    rounded,
)

Array = NDArray[Any]
Shape = Sequence[int]


def read(x: Array, index: Sequence[Array]) -> Array:
    """The elements of x at these indices, one array of them for each axis."""
    return np.asarray(x[tuple(index)] if index else x)


def reshaped(x: Array, shape: Shape) -> Array:
    """Element number i, in row-major order, stays number i."""
    number = _count_elements(shape)
    index = []
    for extent in reversed(x.shape):
        index.append(number % max(extent, 1))
        number = number // max(extent, 1)
    return read(x, index[::-1]).reshape(shape)


def _count_elements(shape: Shape) -> Array:
    return np.arange(math.prod(shape)).reshape(shape)


def transposed(x: Array, perm: Shape) -> Array:
    """Axis i of the result is axis perm[i] of x."""
    at = np.indices([x.shape[axis] for axis in perm])
    return read(x, [at[perm.index(axis)] for axis in range(x.ndim)])


def broadcast(x: Array, shape: Shape) -> Array:
    """An axis of extent 1 is read at 0 everywhere."""
    at = np.indices(shape)[len(shape) - x.ndim :]
    index = [i * (n != 1) for i, n in zip(at, x.shape, strict=True)]
    if not x.ndim:
        return np.full(shape, x, x.dtype)
    return read(x, index)


def window(x: Array, starts: Shape, sizes: Shape) -> Array:
    """The result at i is x at start + i."""
    at = np.indices(sizes)
    return read(x, [i + start for i, start in zip(at, starts, strict=True)])


def concatenated(xs: Sequence[Array], axis: int) -> Array:
    """Each operand is written behind the ones before it."""
    shape = list(xs[0].shape)
    shape[axis] = sum(x.shape[axis] for x in xs)
    result = np.empty(shape, xs[0].dtype)
    begin = 0
    for x in xs:
        at = np.indices(x.shape)
        result[tuple(i + begin * (d == axis) for d, i in enumerate(at))] = x
        begin += x.shape[axis]
    return result


def scalar_array(value: Any, dtype: DType) -> Array:
    """A padding value as an array of rank 0, rounded to nearest."""
    if dtype.is_complex:
        return rounded(np.asarray(value, np.complex128), dtype)
    return nearest(np.asarray(value), dtype) if dtype.is_float else np.asarray(value, dtype.numpy)


def pad_array(x: Array, low: Shape, high: Shape, interior: Shape, fill: Array) -> Array:
    """Element i of an axis stands at low + i (interior + 1); everything else is padding."""
    extents = zip(x.shape, low, high, interior, strict=True)
    shape = [lo + n + hi + max(n - 1, 0) * gap for n, lo, hi, gap in extents]
    if not x.ndim:
        return x
    inside: Any = True
    index = []
    for at, n, lo, gap in zip(np.indices(shape), x.shape, low, interior, strict=True):
        place, hole = np.divmod(at - lo, gap + 1)
        inside = inside & (hole == 0) & (place >= 0) & (place < n)
        index.append(np.clip(place, 0, max(n - 1, 0)))
    if not x.size:
        return np.full(shape, fill, x.dtype)
    return np.asarray(np.where(inside, read(x, index), fill), x.dtype)


def tiled(x: Array, repeats: Shape) -> Array:
    """The result at i is x at i modulo the extent."""
    shape = [n * count for n, count in zip(x.shape, repeats, strict=True)]
    if not x.ndim:
        return x
    at = np.indices(shape)
    return read(x, [i % max(n, 1) for i, n in zip(at, x.shape, strict=True)])


def counted(shape: Shape, axis: int, dtype: DType) -> Array:
    """Each element is its own index along an axis."""
    index = np.indices(shape)[axis]
    if dtype.is_integer:
        return from_whole(index.astype(object), dtype)
    if dtype.is_complex:
        return np.asarray(index.astype(dtype.numpy))
    column = np.array(nearest_of_integers(range(shape[axis]), dtype), np.float64)
    return nearest(column[index], dtype)
