"""Discrete Fourier transforms by contraction, a library form for every producer.

A transform of size n = a b is a transform of size a along rows, a turn of each element, and one of
size b along columns; the small ones are matrix products. So the cost per element is the sum of the
factors, and all of it is `dot_general`; where two factors are equal, both products are the same
kernel. A prime factor costs itself.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import CF64, F32, F64, SI64, DType
from weft.foundation.fourier_steps import steps_of
from weft.ptir.library import V
from weft.ptir.literal import TensorLiteral, from_array
from weft.ptir.written import Emits

_LARGEST_PRODUCT: Final = 64
"""Up to this size a transform is one matrix product."""
_LARGEST_TABLE: Final = 1 << 14
"""Roots of one that are written down in the program, at most."""
_FEW: Final = 1 << 14
"""Up to so many numbers are transformed by one real product; to put the real and imaginary parts of
more of them side by side takes longer than four products read them for."""
_LONGEST_CHIRP: Final = 1 << 14
"""Sizes without factors that are transformed as convolutions, at most: their tables are written
down."""
_MOST_TABLES: Final = 64
"""Tables that are kept."""


def transformed(x: V, size: int, sign: int, *, divided: bool = False) -> V:
    """What `fourier_sums` says, divided by the size or not, as an op where there is one."""
    if steps_of(size):
        return x.apply("weft.fourier", inverse=sign > 0, divided=divided)
    if _radix(size) == size > _LARGEST_PRODUCT and size <= _LONGEST_CHIRP:
        sums = _by_convolution(x, size, sign)
    else:
        sums = fourier_sums(x, size, sign)
    return sums * (1 / size) if divided else sums


def _by_convolution(x: V, size: int, sign: int) -> V:
    """Since 2 j k = j^2 + k^2 - (k - j)^2, the sums are a convolution of x, turned by half squares,
    with half squares: a product of transforms of a size that has steps."""
    long = next(n for n in range(2 * size, 4 * size) if steps_of(n))
    last, squares = x.rank - 1, np.arange(size) ** 2 % (2 * size)
    chirp = np.exp(sign * 1j * math.pi * squares / size)
    around = np.zeros(long, np.complex128)
    around[:size] = chirp.conj()
    around[long - size + 1 :] = chirp[:0:-1].conj()
    given = x.dtype.numpy
    turns, kernel = (
        x.emitter.literal(from_array(table.astype(given)), x.dtype)
        for table in (chirp, np.fft.fft(around))
    )
    none, high = [0] * x.rank, [0] * x.rank
    high[last] = long - size
    turned = x * turns.broadcast_to(x.shape)
    filled = turned.apply("pad", low=none, high=high, interior=none, pad_value=0)
    there = transformed(filled, long, -1)
    product = there * kernel.broadcast_to(there.shape)
    back = transformed(product, long, 1, divided=True)
    sums = back.apply("slice", starts=none, sizes=x.shape)
    return sums * turns.broadcast_to(x.shape)


def fourier_sums(x: V, size: int, sign: int) -> V:
    """`sum(x[j] exp(sign 2 pi i j k / size))` for every k along the last axis of a complex tensor,
    which has this size; there is no factor."""
    rank, rows = x.rank, _radix(size)
    if rows == size:
        return _multiply_roots(x, rows, sign, rank - 1)
    columns = size // rows
    first = _multiply_roots(x.reshape((*x.shape[:-1], rows, columns)), rows, sign, rank - 1)
    turns = _roots(x.emitter, columns, rows, size, sign, x.dtype)
    turned = first * turns.broadcast_to(first.shape)
    exchange = [*range(rank - 1), rank, rank - 1]
    if _radix(columns) == columns:
        second = _multiply_roots(turned, columns, sign, rank - 1)
    else:
        second = fourier_sums(turned.transpose(exchange), columns, sign)
    return second.transpose(exchange).reshape(x.shape)


def _multiply_roots(x: V, size: int, sign: int, axis: int) -> V:
    """The transforms of this size along an axis, which becomes the last one. A product of complex
    numbers is four of real ones; one of twice as many rows and columns compiles in a quarter of the
    time, and is what short transforms are."""
    dims = [dim for dim in x.shape if isinstance(dim, int)]
    is_short = len(dims) == x.rank and math.prod(dims) <= _FEW
    if not is_short or 4 * size * size > _LARGEST_TABLE:
        return _contract(x, _roots(x.emitter, size, size, size, sign, x.dtype), axis)
    part = F64 if x.dtype is CF64 else F32
    roots = x.emitter.literal(_table_of_parts(size, sign, part), part)
    parts = x.apply("real").apply("concat", x.apply("imag"), axis=axis)
    sums = _contract(parts, roots, axis)
    shape = (*sums.shape[:-1], size)
    real, imag = (
        sums.apply("slice", starts=[*(0 for _ in shape[1:]), start], sizes=shape)
        for start in (0, size)
    )
    return real.apply("complex", imag)


def _contract(x: V, matrix: V, axis: int) -> V:
    return x.apply(
        "dot_general", matrix, batch_lhs=[], batch_rhs=[], contract_lhs=[axis], contract_rhs=[0]
    )


def _roots(b: Emits[V], rows: int, columns: int, size: int, sign: int, dtype: DType) -> V:
    """`exp(sign 2 pi i r c / size)` for every row r and column c; the angle is reduced exactly. It
    depends on nothing that is given, and short tables are constants of the program: to compile
    sines takes longer than to compute them."""
    if rows * columns <= _LARGEST_TABLE:
        return b.literal(_table(rows, columns, size, sign, dtype), dtype)
    row, column = (b.emit("iota", shape=(rows, columns), dtype=SI64, axis=axis) for axis in (0, 1))
    turns = (row * column).apply("fmod", size)
    angle = turns.cast(F64) * _turn(size, sign)
    return angle.apply("cos").apply("complex", angle.apply("sin")).cast(dtype)


@lru_cache(_MOST_TABLES)
def _table(rows: int, columns: int, size: int, sign: int, dtype: DType) -> TensorLiteral:
    """The same, as the reference computes it."""
    angle = _angles(rows, columns, size, sign)
    return from_array((np.cos(angle) + 1j * np.sin(angle)).astype(dtype.numpy))


@lru_cache(_MOST_TABLES)
def _table_of_parts(size: int, sign: int, dtype: DType) -> TensorLiteral:
    """A matrix that a row of real parts, and imaginary parts after them, is multiplied by for those
    of its transform: of the roots that `_table` has."""
    angle = _angles(size, size, size, sign)
    real, imag = np.cos(angle), np.sin(angle)
    return from_array(np.block([[real, imag], [-imag, real]]).astype(dtype.numpy))


def _angles(rows: int, columns: int, size: int, sign: int) -> NDArray[Any]:
    row, column = np.indices((rows, columns))
    return (row * column % size) * _turn(size, sign)


def _turn(size: int, sign: int) -> float:
    """The angle of one step round the circle."""
    return sign * 2 * math.pi / size


def _radix(size: int) -> int:
    """The factor that goes first: the greater of the two nearest ones, or the largest up to the
    limit where two are not enough; all where there is none."""
    if size <= _LARGEST_PRODUCT:
        return size
    factors = [f for f in range(_LARGEST_PRODUCT, 1, -1) if size % f == 0]
    pairs = (f for f in reversed(factors) if f * f >= size and size // f <= _LARGEST_PRODUCT)
    return next(pairs, factors[0] if factors else size)
