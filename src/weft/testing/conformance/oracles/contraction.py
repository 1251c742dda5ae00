"""Sums of products: exact ones, and the plain evaluation one product after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import F32, SI32, UI32, DType
from weft.testing.conformance.oracles.rounding import nearest, whole, wide, wrapped

Array = NDArray[Any]


@dataclass(frozen=True)
class Pairing:
    """Which axes of two operands belong together."""

    batch: tuple[Sequence[int], Sequence[int]] = ((), ())
    contract: tuple[Sequence[int], Sequence[int]] = ((), ())


def dot_accumulator(dtype: DType) -> DType:
    """Where products are added up unless the program says otherwise."""
    if dtype.is_integer and dtype.bits < 32:
        return SI32 if dtype.is_signed else UI32
    return F32 if dtype.is_float and dtype.bits < 32 else dtype


def result_shape(lhs: Array, rhs: Array, pairing: Pairing) -> tuple[int, ...]:
    """Batch axes, then the other axes of the left, then those of the right operand."""
    left, right = (_side_extents(x, pairing, side) for side, x in enumerate((lhs, rhs)))
    return (*left[0], *left[1], *right[1])


def _side_extents(x: Array, pairing: Pairing, side: int) -> tuple[list[int], list[int], list[int]]:
    """The extents of the batch, the other and the contracted axes of an operand."""
    batch, contract = pairing.batch[side], pairing.contract[side]
    others = [n for axis, n in enumerate(x.shape) if axis not in (*batch, *contract)]
    return [x.shape[axis] for axis in batch], others, [x.shape[axis] for axis in contract]


def _matrices(x: Array, pairing: Pairing, side: int) -> Array:
    """An operand as [batch, others, contracted]."""
    batch, contract = pairing.batch[side], pairing.contract[side]
    others = [axis for axis in range(x.ndim) if axis not in (*batch, *contract)]
    sizes = [math.prod(extents) for extents in _side_extents(x, pairing, side)]
    return x.transpose(*batch, *others, *contract).reshape(sizes)


def products(lhs: Array, rhs: Array, pairing: Pairing, accum: DType) -> Array:
    """The exact sums of products: wide for floats, wrapped to `accum` for integers."""
    shape = result_shape(lhs, rhs, pairing)
    if accum.is_integer:
        left, right = _matrices(whole(lhs), pairing, 0), _matrices(whole(rhs), pairing, 1)
        return _integer_products(left, right, accum).reshape(shape)
    left, right = (
        _matrices(wide(x.astype(accum.numpy)), pairing, side) for side, x in enumerate((lhs, rhs))
    )
    return np.asarray(np.matmul(left, right.swapaxes(-1, -2)).reshape(shape))


def _integer_products(left: Array, right: Array, accum: DType) -> Array:
    """Modulo 2^64 nothing that an accumulator of up to 64 bits holds is lost."""
    rows, columns = ((x % (1 << 64)).astype(np.uint64) for x in (left, right))
    total = np.zeros((left.shape[0], left.shape[1], right.shape[1]), np.uint64)
    for k in range(left.shape[2]):
        total += rows[:, :, None, k] * columns[:, None, :, k]
    return wrapped(total.astype(object), accum)


def plain_error(lhs: Array, rhs: Array, pairing: Pairing, accum: DType) -> float:
    """The largest error when each product and each sum is rounded to `accum`."""
    exact = products(lhs, rhs, pairing, accum)
    left, right = (
        _matrices(x.astype(accum.numpy), pairing, side) for side, x in enumerate((lhs, rhs))
    )
    total = np.zeros((left.shape[0], left.shape[1], right.shape[1]), accum.numpy)
    for k in range(left.shape[2]):
        total = _add_product(total, left[:, :, None, k], right[:, None, :, k], accum)
    far = np.abs(total.reshape(exact.shape).astype(exact.dtype) - exact)
    return float(np.max(np.where(np.isfinite(far), far, 0), initial=0.0))


def _add_product(total: Array, left: Array, right: Array, accum: DType) -> Array:
    if accum.bits >= 32:
        return np.asarray(total + left * right, accum.numpy)
    product = nearest(left.astype(np.float64) * right.astype(np.float64), accum)
    return nearest(total.astype(np.float64) + product.astype(np.float64), accum)
