"""Elementwise arithmetic, comparison, logic and rounding. Operands are promoted and broadcast; at
least one of two is a tensor, the other may be a Python number."""

from __future__ import annotations

from typing import Any

from weft.foundation.dtypes import I1
from weft.ops.arithmetic import TensorLike, as_tensor, binary, cast_form, comparison, unary
from weft.ops.array.operands import given, paired, taken
from weft.ops.calls import public
from weft.ops.graph.context import arena_for
from weft.ops.lines import user_line
from weft.ops.numbers import is_number
from weft.ops.session import Handle
from weft.ops.tensor import Tensor, tensor_method

__all__ = [
    "abs", "add", "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "ceil", "clip", "conj", "copysign", "divide", "equal",
    "floor", "floor_divide", "greater", "greater_equal", "imag", "isfinite", "isinf", "isnan",
    "less", "less_equal", "logical_and", "logical_not", "logical_or", "logical_xor", "maximum",
    "minimum", "multiply", "negative", "nextafter", "not_equal", "positive", "real", "reciprocal",
    "remainder", "round", "sign", "signbit", "square", "subtract", "trunc",
]  # fmt: skip


# -- arithmetic ----------------------------------------------------------------------------------


@tensor_method
def add(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1 + x2`."""
    return binary("add", x1, x2)


@tensor_method
def subtract(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1 - x2`."""
    return binary("sub", x1, x2, "subtract")


@tensor_method
def multiply(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1 * x2`."""
    return binary("mul", x1, x2, "multiply")


@tensor_method
def divide(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1 / x2`; integers are converted to the default float first."""
    return binary("div", x1, x2, "divide", floating=True)


@tensor_method
@public
def floor_divide(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The largest whole number not above `x1 / x2`. Integers must not be divided by zero."""
    x, y = paired(x1, x2)
    if x.dtype.is_integer:
        quotient = x / y
        if x.dtype.is_signed:
            quotient = quotient - _sides_differ(x.fmod(y), y).cast(x.dtype)
        return given(quotient, x1, x2)
    return given(_floor_quotient(x, y), x1, x2)


def _floor_quotient(x: Handle, y: Handle) -> Handle:
    """Floats: exact where both are finite, since `x - fmod(x, y)` is a multiple of y; the plain
    quotient, rounded down, where one is infinite or y is zero."""
    plain = x / y
    rest = x.fmod(y)
    exact = ((x - rest) / y).round() - _sides_differ(rest, y).cast(x.dtype)
    exact = exact.copysign(plain)
    ordinary = x.isfinite().bitwise_and(y.isfinite()).bitwise_and(y.compare("not_equal", 0))
    return ordinary.select(exact, plain.floor())


def _sides_differ(rest: Handle, divisor: Handle) -> Handle:
    """Whether a remainder is on the other side of zero than its divisor."""
    sides = rest.compare("less", 0).bitwise_xor(divisor.compare("less", 0))
    return sides.bitwise_and(rest.compare("not_equal", 0))


@tensor_method
@public
def remainder(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """What `floor_divide` leaves, with the sign of `x2`: Python's `%`."""
    x, y = paired(x1, x2)
    rest = x.fmod(y)
    if x.dtype.is_float or x.dtype.is_signed:
        rest = _sides_differ(rest, y).select(rest + y, rest)
    if x.dtype.is_float:
        rest = rest.copysign(y)
    return given(rest, x1, x2)


@tensor_method
def negative(x: Tensor, /) -> Tensor:
    """`-x`."""
    return unary("neg", x, "negative")


@tensor_method
@public
def positive(x: Tensor, /) -> Tensor:
    """`x` itself, as a tensor of its own."""
    return as_tensor(x).__copy__()


@tensor_method
@public
def abs(x: Tensor, /) -> Tensor:  # noqa: A001
    """The absolute value; of a complex tensor a real one."""
    value = as_tensor(x)
    size = unary("abs", value)
    return unary("real", size) if value.dtype.is_complex else size


@tensor_method
def reciprocal(x: Tensor, /) -> Tensor:
    """`1 / x`."""
    return unary("reciprocal", x, floating=True)


@tensor_method
def square(x: Tensor, /) -> Tensor:
    """`x * x`."""
    return binary("mul", x, x, "square")


@tensor_method
@public
def sign(x: Tensor, /) -> Tensor:
    """-1, 0 or 1; of a complex number its direction."""
    value = as_tensor(x)
    if not value.dtype.is_complex:
        return unary("sign", value)
    handle = taken(value)
    zero = handle.session.full(0, handle.dtype, handle.shape)
    return given(handle.compare("equal", zero).select(zero, handle.sign()), x)


@tensor_method
def maximum(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The larger of two; NaN where one is NaN."""
    return binary("maximum", x1, x2)


@tensor_method
def minimum(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The smaller of two; NaN where one is NaN."""
    return binary("minimum", x1, x2)


@tensor_method
@public
def clip(
    x: Tensor,
    /,
    min: TensorLike | None = None,
    max: TensorLike | None = None,
) -> Tensor:
    """`x`, but `min` where it is less and `max` where it is more; None is no bound."""
    result = positive(x)
    if max is not None:
        result = binary("minimum", result, max)
    return result if min is None else binary("maximum", result, min)


# -- signs and neighbours of floats --------------------------------------------------------------


@tensor_method
def copysign(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1` with the sign of `x2`."""
    return binary("copysign", x1, x2, floating=True)


@tensor_method
def nextafter(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The float next to `x1` in the direction of `x2`."""
    return binary("nextafter", x1, x2, floating=True)


@tensor_method
@public
def signbit(x: Tensor, /) -> Tensor:
    """Whether the sign bit is set."""
    value = as_tensor(x)
    return comparison("less", value, 0) if value.dtype.is_integer else unary("signbit", value)


# -- rounding ------------------------------------------------------------------------------------


@tensor_method
@public
def ceil(x: Tensor, /) -> Tensor:
    """The smallest whole number not below `x`."""
    return _rounded("ceil", as_tensor(x))


@tensor_method
@public
def floor(x: Tensor, /) -> Tensor:
    """The largest whole number not above `x`."""
    return _rounded("floor", as_tensor(x))


@tensor_method
@public
def trunc(x: Tensor, /) -> Tensor:
    """`x` without its fraction."""
    return _rounded("trunc", as_tensor(x))


@tensor_method
@public
def round(x: Tensor, /) -> Tensor:  # noqa: A001
    """The nearest whole number, the even one of two; complex parts each for themselves."""
    value = as_tensor(x)
    if value.dtype.is_complex:
        handle = taken(value)
        return given(handle.real().round().complex(handle.imag().round()), x)
    return _rounded("round", value)


def _rounded(name: str, x: Tensor) -> Tensor:
    """Integers are whole numbers already."""
    return positive(x) if x.dtype.is_integer else unary(name, x)


# -- complex parts -------------------------------------------------------------------------------


@tensor_method
@public
def conj(x: Tensor, /) -> Tensor:
    """The complex conjugate; of a real tensor itself."""
    value = as_tensor(x)
    return unary("conj", value) if value.dtype.is_complex else positive(value)


@tensor_method
@public
def real(x: Tensor, /) -> Tensor:
    """The real part; of a real tensor itself."""
    value = as_tensor(x)
    return unary("real", value) if value.dtype.is_complex else positive(value)


@tensor_method
@public
def imag(x: Tensor, /) -> Tensor:
    """The imaginary part; of a real tensor zeros."""
    value = as_tensor(x)
    if value.dtype.is_complex:
        return unary("imag", value)
    handle = taken(value)
    return given(handle.session.full(0, handle.dtype, handle.shape))


# -- tests of floats -----------------------------------------------------------------------------


@tensor_method
@public
def isfinite(x: Tensor, /) -> Tensor:
    """Whether it is neither NaN nor an infinity."""
    return _float_test("isfinite", as_tensor(x), whole=True)


@tensor_method
@public
def isinf(x: Tensor, /) -> Tensor:
    """Whether it is an infinity."""
    return _float_test("isinf", as_tensor(x), whole=False)


@tensor_method
@public
def isnan(x: Tensor, /) -> Tensor:
    """Whether it is NaN."""
    return _float_test("isnan", as_tensor(x), whole=False)


def _float_test(name: str, x: Tensor, whole: bool) -> Tensor:
    """The answer for integers, `whole`, is the same everywhere."""
    if x.dtype.is_float or x.dtype.is_complex:
        return unary(name, x)
    handle = taken(x)
    return given(handle.session.full(whole, I1, handle.shape))


# -- comparison ----------------------------------------------------------------------------------


@tensor_method
def equal(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1 == x2`."""
    return comparison("equal", x1, x2)


@tensor_method
def not_equal(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1 != x2`."""
    return comparison("not_equal", x1, x2)


@tensor_method
def less(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1 < x2`."""
    return comparison("less", x1, x2)


@tensor_method
def less_equal(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1 <= x2`."""
    return comparison("less_equal", x1, x2)


@tensor_method
def greater(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1 > x2`."""
    return comparison("greater", x1, x2)


@tensor_method
def greater_equal(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1 >= x2`."""
    return comparison("greater_equal", x1, x2)


# -- logic and bits ------------------------------------------------------------------------------


@tensor_method
def logical_and(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Whether both are true; a number is true unless it is zero."""
    return binary("bitwise_and", _truth(x1), _truth(x2), "logical_and")


@tensor_method
def logical_or(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Whether either is true."""
    return binary("bitwise_or", _truth(x1), _truth(x2), "logical_or")


@tensor_method
def logical_xor(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Whether exactly one is true."""
    return binary("bitwise_xor", _truth(x1), _truth(x2), "logical_xor")


@tensor_method
def logical_not(x: Tensor, /) -> Tensor:
    """Whether it is false."""
    return unary("bitwise_not", _truth(x), "logical_not")


def _truth(x: Any) -> Any:
    """An operand of logic: its elements as i1."""
    if is_number(x):
        return bool(x)
    if not isinstance(x, Tensor) or x.dtype is I1:
        return x
    node = x._node
    return Tensor(arena_for(node).emit(cast_form(node.type, I1), (node,), user_line()))


@tensor_method
def bitwise_and(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The bits set in both."""
    return binary("bitwise_and", x1, x2)


@tensor_method
def bitwise_or(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The bits set in either."""
    return binary("bitwise_or", x1, x2)


@tensor_method
def bitwise_xor(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The bits set in exactly one."""
    return binary("bitwise_xor", x1, x2)


@tensor_method
def bitwise_invert(x: Tensor, /) -> Tensor:
    """Every bit flipped."""
    return unary("bitwise_not", x, "bitwise_invert")


@tensor_method
def bitwise_left_shift(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1` moved `x2` bits up."""
    return binary("shift_left", x1, x2, "bitwise_left_shift")


@tensor_method
def bitwise_right_shift(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1` moved `x2` bits down, keeping its sign."""
    return binary("shift_right", x1, x2, "bitwise_right_shift")
