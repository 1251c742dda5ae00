"""Bitwise logic and shifts on integers; the logic also on i1."""

from __future__ import annotations

import numpy as np

from weft.foundation.dtypes import BOOL, INTEGERS
from weft.ptir.op import Array, extension_op
from weft.ptir.ops.functions import BinaryFunction, UnaryFunction
from weft.ptir.rules import violation

_BITS = INTEGERS | BOOL


@extension_op("bitwise_and")
class BitwiseAnd(BinaryFunction):
    """The bits set in both operands; on i1 the logical and."""

    dtypes = {"lhs": _BITS, "rhs": _BITS}
    function = np.bitwise_and


@extension_op("bitwise_or")
class BitwiseOr(BinaryFunction):
    """The bits set in either operand; on i1 the logical or."""

    dtypes = {"lhs": _BITS, "rhs": _BITS}
    function = np.bitwise_or


@extension_op("bitwise_xor")
class BitwiseXor(BinaryFunction):
    """The bits set in exactly one operand; on i1 the logical exclusive or."""

    dtypes = {"lhs": _BITS, "rhs": _BITS}
    function = np.bitwise_xor


@extension_op("bitwise_not")
class BitwiseNot(UnaryFunction):
    """Every bit of `x` flipped: `-x - 1` for signed, `highest - x` for unsigned integers; on i1 the
    logical not."""

    dtypes = {"x": _BITS}
    function = np.invert


# The shifts see 4-bit values in 8 bits: there, too, everything from bit 4 on is lost or sign.


def _checked(amount: Array, x: Array) -> tuple[Array, Array]:
    """The amounts cut to one less than the width, and where one more step is still due."""
    negative = np.flatnonzero(amount < 0)
    if negative.size:
        first = int(negative[0])
        value = int(amount.reshape(-1)[first])
        raise violation("InvalidShift", f"the shift amount is {value} at element {first}")
    last = x.dtype.type(8 * x.dtype.itemsize - 1)
    return np.minimum(amount, last), amount > last


def _shift_left(x: Array, amount: Array) -> Array:
    inside, beyond = _checked(amount, x)
    return np.where(beyond, x.dtype.type(0), x << inside)


def _shift_right(x: Array, amount: Array) -> Array:
    inside, beyond = _checked(amount, x)
    shifted = x >> inside
    return np.where(beyond, shifted >> x.dtype.type(1), shifted)


@extension_op("shift_left")
class ShiftLeft(BinaryFunction):
    """`x` moved toward its high bits, each element by its own `amount`, zeros coming in. Bits that
    leave are lost, so an amount of the dtype's width or more gives 0. A negative amount is rejected
    when the program runs (InvalidShift)."""

    operands = ("x", "amount")
    dtypes = {"x": INTEGERS, "amount": INTEGERS}
    function = _shift_left


@extension_op("shift_right")
class ShiftRight(BinaryFunction):
    """`x` moved toward its low bits, each element by its own `amount`. Copies of the sign bit come
    in for signed integers and zeros for unsigned ones, so an amount of the dtype's width or more
    gives -1 for negative values and 0 otherwise. A negative amount is rejected when the program
    runs (InvalidShift)."""

    operands = ("x", "amount")
    dtypes = {"x": INTEGERS, "amount": INTEGERS}
    function = _shift_right
