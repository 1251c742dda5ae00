"""Discrete Fourier transforms by contraction, a library form for every producer.

A transform of size n = a b is a transform of size a along rows, a turn of each element, and one of
size b along columns; the small ones are matrix products. So the cost per element is the sum of the
factors, and all of it is `dot_general`. A prime factor costs itself.
"""

from __future__ import annotations

import math
from typing import Final

from weft.foundation.dtypes import F64, SI64, DType
from weft.ptir.library import Emitter, H

_LARGEST_PRODUCT: Final = 64
"""Up to this size a transform is one matrix product."""


def fourier_sums(b: Emitter[H], x: H, size: int, sign: int) -> H:
    """`sum(x[j] exp(sign 2 pi i j k / size))` for every k along the last axis of a complex tensor,
    which has this size; there is no factor."""
    rank, rows = x.rank, _radix(size)
    matrix = _roots(b, rows, rows, rows, sign, x.dtype)
    if rows == size:
        return _product(b, x, matrix, rank - 1)
    columns = size // rows
    split = b.emit("reshape", x, new_shape=[*x.shape[:-1], rows, columns])
    first = _product(b, split, matrix, rank - 1)
    turns = _roots(b, columns, rows, size, sign, x.dtype)
    turned = b.emit("mul", first, b.broadcast_to(turns, first.shape))
    exchange = [*range(rank - 1), rank, rank - 1]
    second = fourier_sums(b, b.emit("transpose", turned, perm=exchange), columns, sign)
    return b.emit("reshape", b.emit("transpose", second, perm=exchange), new_shape=x.shape)


def _product(b: Emitter[H], x: H, matrix: H, axis: int) -> H:
    return b.emit(
        "dot_general", x, matrix, batch_lhs=[], batch_rhs=[], contract_lhs=[axis], contract_rhs=[0]
    )


def _roots(b: Emitter[H], rows: int, columns: int, size: int, sign: int, dtype: DType) -> H:
    """`exp(sign 2 pi i r c / size)` for every row r and column c; the angle is reduced exactly."""
    places = [b.iota(SI64, (rows, columns), axis) for axis in (0, 1)]
    turns = b.emit("fmod", b.emit("mul", *places), size)
    angle = b.emit("mul", b.cast(turns, F64), sign * 2 * math.pi / size)
    return b.cast(b.emit("complex", b.emit("cos", angle), b.emit("sin", angle)), dtype)


def _radix(size: int) -> int:
    """The factor that goes first: the largest up to the limit; all where there is none."""
    if size <= _LARGEST_PRODUCT:
        return size
    return next((f for f in range(_LARGEST_PRODUCT, 1, -1) if size % f == 0), size)
