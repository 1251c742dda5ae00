"""Discrete Fourier transforms by contraction, a library form for every producer.

A transform of size n = a b is a transform of size a along rows, a turn of each element, and one of
size b along columns; the small ones are matrix products. So the cost per element is the sum of the
factors, and all of it is `dot_general`. A prime factor costs itself.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np

from weft.foundation.dtypes import F64, SI64, DType
from weft.ptir.library import V
from weft.ptir.literal import TensorLiteral, from_array
from weft.ptir.written import Emits

_LARGEST_PRODUCT: Final = 64
"""Up to this size a transform is one matrix product."""
_LARGEST_TABLE: Final = 1 << 14
"""Roots of one that are written down in the program, at most."""
_MOST_TABLES: Final = 64
"""Tables that are kept."""


def fourier_sums(x: V, size: int, sign: int) -> V:
    """`sum(x[j] exp(sign 2 pi i j k / size))` for every k along the last axis of a complex tensor,
    which has this size; there is no factor."""
    rank, rows = x.rank, _radix(size)
    matrix = _roots(x.emitter, rows, rows, rows, sign, x.dtype)
    if rows == size:
        return _multiply_matrix(x, matrix, rank - 1)
    columns = size // rows
    first = _multiply_matrix(x.reshape((*x.shape[:-1], rows, columns)), matrix, rank - 1)
    turns = _roots(x.emitter, columns, rows, size, sign, x.dtype)
    turned = first * turns.broadcast_to(first.shape)
    exchange = [*range(rank - 1), rank, rank - 1]
    second = fourier_sums(turned.transpose(exchange), columns, sign)
    return second.transpose(exchange).reshape(x.shape)


def _multiply_matrix(x: V, matrix: V, axis: int) -> V:
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
    row, column = np.indices((rows, columns))
    angle = (row * column % size) * _turn(size, sign)
    return from_array((np.cos(angle) + 1j * np.sin(angle)).astype(dtype.numpy))


def _turn(size: int, sign: int) -> float:
    """The angle of one step round the circle."""
    return sign * 2 * math.pi / size


def _radix(size: int) -> int:
    """The factor that goes first: the largest up to the limit; all where there is none."""
    if size <= _LARGEST_PRODUCT:
        return size
    return next((f for f in range(_LARGEST_PRODUCT, 1, -1) if size % f == 0), size)
