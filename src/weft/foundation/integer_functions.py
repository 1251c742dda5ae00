"""Functions of integer arrays: division, powers and shifts, which reject some operands, and
functions of the bits of any array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation import numeric
from weft.foundation.dtypes import as_dtype
from weft.foundation.errors import SpecViolation

Array = NDArray[Any]


def divide(lhs: Array, rhs: Array) -> Array:
    """Division: IEEE for floats; toward zero for integers, where zero divisors are a violation."""
    if lhs.dtype.kind not in "iu":
        return np.asarray(np.divide(lhs, rhs))
    zero = np.flatnonzero(np.broadcast_to(rhs, lhs.shape) == 0)
    if zero.size:
        raise SpecViolation("IntegerDivideByZero", f"the divisor is zero at element {int(zero[0])}")
    if lhs.dtype.kind == "u":
        return np.asarray(lhs // rhs)
    # NumPy rounds to minus infinity, which is one too low where a quotient that is not whole is
    # negative.
    quotient = np.floor_divide(lhs, rhs)
    inexact = quotient * rhs != lhs
    toward_zero = quotient + (inexact & ((lhs < 0) != (rhs < 0)))
    return np.asarray(toward_zero, lhs.dtype)


def remainder(lhs: Array, rhs: Array) -> Array:
    """What division toward zero leaves, with the sign of `lhs`."""
    if lhs.dtype.kind == "f":
        return np.asarray(np.fmod(lhs, rhs))
    return np.asarray(lhs - divide(lhs, rhs) * rhs)


def integer_power(base: Array, exponent: Array) -> Array:
    """Wrapping powers; negative exponents are a violation."""
    _reject_negative(exponent, "InvalidExponent", "the exponent")
    result = np.ones_like(base)
    # Squares and products wrap modulo 2^bits at every step, and so does the power itself: the bits
    # are the same.
    while np.any(exponent):
        result = np.where((exponent & 1) != 0, result * base, result)
        base, exponent = base * base, exponent >> 1
    return result


def shift_left(x: Array, amount: Array) -> Array:
    inside, beyond = _cut_shift(amount, x)
    return np.where(beyond, x.dtype.type(0), x << inside)


def shift_right(x: Array, amount: Array) -> Array:
    inside, beyond = _cut_shift(amount, x)
    shifted = x >> inside
    return np.where(beyond, shifted >> x.dtype.type(1), shifted)


def _cut_shift(amount: Array, x: Array) -> tuple[Array, Array]:
    """The amounts cut to one less than the width, and where one more step is still due. 4-bit
    values come in 8 bits: there, too, everything from bit 4 on is lost or sign."""
    _reject_negative(amount, "InvalidShift", "the shift amount")
    last = x.dtype.type(8 * x.dtype.itemsize - 1)
    return np.minimum(amount, last), amount > last


def _reject_negative(values: Array, code: str, what: str) -> None:
    negative = np.flatnonzero(values < 0)
    if negative.size:
        first = int(negative[0])
        value = int(values.reshape(-1)[first])
        raise SpecViolation(code, f"{what} is {value} at element {first}")


def copysign(magnitude: Array, sign: Array) -> Array:
    """`magnitude` with the sign bit of `sign`, as unsigned integers."""
    (size, mask), (signed, _) = _bits_and_sign(magnitude), _bits_and_sign(sign)
    return np.asarray((size & ~mask) | (signed & mask))


def nextafter(start: Array, goal: Array) -> Array:
    """The neighbour of `start` in the direction of `goal`, as unsigned integers."""
    dtype = as_dtype(start.dtype)
    x, y = numeric.widen(start, dtype), numeric.widen(goal, dtype)
    (bits, mask), (goal_bits, _) = _bits_and_sign(start), _bits_and_sign(goal)
    one = bits.dtype.type(1)
    # Bits of a float count up away from zero on both sides. From zero the next one is the least
    # with the sign of the goal.
    stepped = np.where((y > x) == (x > 0), bits + one, bits - one)
    stepped = np.where(x == 0, (goal_bits & mask) | one, stepped)
    stepped = np.where((x == y) | np.isnan(y), goal_bits, stepped)
    return np.where(np.isnan(x), bits, stepped)


def _bits_and_sign(x: Array) -> tuple[Array, Any]:
    """The stored bits as unsigned integers, and the bit that is the sign."""
    bits = x.view(f"u{x.dtype.itemsize}")
    return bits, bits.dtype.type(1 << (8 * x.dtype.itemsize - 1))
