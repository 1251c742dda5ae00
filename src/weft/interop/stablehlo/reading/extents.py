"""Dynamic sizes: numbers where the text has them, values where only the run knows them.

Positions in a flattened tensor are made of sizes. Written with these functions, the same lowering
serves both kinds, and known sizes leave no instructions behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from weft.foundation.dtypes import SI64, DType
from weft.interop.stablehlo.reading.site import Site
from weft.ptir.builder import Value
from weft.ptir.types import Dim, Shape, multiply_dims

Extent: TypeAlias = "int | Value"
"""A number, or a scalar of si64."""


def size_of(at: Site, dim: Dim, dtype: DType = SI64) -> Value:
    """A size as a scalar: a sum of ones, where it is known only at run time."""
    if isinstance(dim, int):
        return at.b.literal(dim, dtype)
    return at.b.reduce_sum(at.b.full([dim], 1, dtype), [0])


def extent(at: Site, dim: Dim) -> Extent:
    return dim if isinstance(dim, int) else size_of(at, dim)


def strides(at: Site, shape: Sequence[Dim]) -> list[Extent]:
    """How far apart neighbours along each axis lie in the flattened tensor."""
    found: list[Extent] = [1] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        found[axis] = _multiply_extents(extent(at, shape[axis + 1]), found[axis + 1])
    return found


def count(at: Site, shape: Sequence[Dim]) -> Extent:
    """How many elements there are."""
    total: Extent = 1
    for dim in shape:
        total = _multiply_extents(total, extent(at, dim))
    return total


def _multiply_extents(left: Extent, right: Extent) -> Extent:
    if isinstance(left, int):
        left, right = right, left
    if isinstance(right, int) and (right == 1 or isinstance(left, int)):
        return left * right if isinstance(left, int) else left
    return left * right


def room(at: Site, dim: Dim, size: Dim) -> Extent:
    """How far a window of a size can be moved along an axis; never less than nothing."""
    if dim == size:
        return 0
    if isinstance(dim, int) and isinstance(size, int):
        return max(dim - size, 0)
    left = at.b.emit("sub", size_of(at, dim), size_of(at, size))
    return at.b.emit("maximum", left, at.b.literal(0, SI64))


def spread(at: Site, number: Extent, shape: Shape) -> Value:
    """A tensor with a number everywhere."""
    if isinstance(number, int):
        return at.b.full(shape, number, SI64)
    return at.spread(number, shape)


def times(at: Site, x: Value, number: Extent) -> Value:
    return x * (number if isinstance(number, int) else spread(at, number, x.shape))


def flat(at: Site, x: Value) -> Value:
    """All elements in one row."""
    total = multiply_dims(*x.shape)
    return x.reshape([total]) if isinstance(total, int) else at.b.reshape(x, [-1])


def first(at: Site, x: Value, size: Dim) -> Value:
    """The first elements of a row, so many of them."""
    if isinstance(size, int):
        return at.sliced(x, [0], [size])
    return at.b.emit("take", x, at.b.iota(SI64, [size], 0))


def clamped(at: Site, start: Value, last: Extent) -> Value:
    """Indices moved into the range from 0 to `last`."""
    high = spread(at, last, start.shape)
    return at.b.emit("clamp", start, at.full(0, start), high)
