"""Arithmetic, rounding, signs and complex parts, element by element."""

from __future__ import annotations

from typing import Any

from weft.foundation.calls import told
from weft.foundation.errors import SpecViolation
from weft.foundation.lines import Line, user_line
from weft.ops.arithmetic import TensorLike, as_operand, binary, comparison, numbered, unary
from weft.ops.array.operands import given, paired, taken
from weft.ops.calls import public
from weft.ops.capture_recipes import captured, recorded
from weft.ops.session import Handle
from weft.ops.tensor import Tensor, tensor_method, tensor_property

__all__ = [
    "abs", "add", "ceil", "clip", "conj", "copysign", "divide", "floor", "floor_divide", "fmod",
    "imag", "lerp", "maximum", "minimum", "multiply", "negative", "nextafter", "positive", "real",
    "reciprocal", "remainder", "round", "sign", "signbit", "square", "subtract", "trunc",
]  # fmt: skip


# -- arithmetic ----------------------------------------------------------------------------------


@tensor_method
@told
def add(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1 + x2`."""
    return binary("add", x1, x2)


@tensor_method
@told
def subtract(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1 - x2`."""
    return binary("sub", x1, x2, "subtract")


@tensor_method
@told
def multiply(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1 * x2`."""
    return binary("mul", x1, x2, "multiply")


@tensor_method
@told
def divide(x1: TensorLike, x2: TensorLike, /, *, rounding: str | None = None) -> Tensor:
    """`x1 / x2`; integers are converted to the default float first. With `rounding`, "trunc" or
    "floor", the quotient is a whole number, and that of integers an integer."""
    if rounding is None:
        return binary("div", x1, x2, "divide", floating=True)
    return _whole_quotient(x1, x2, rounding)


@public
def _whole_quotient(x1: TensorLike, x2: TensorLike, rounding: str) -> Tensor:
    if rounding == "floor":
        return floor_divide(x1, x2)
    if rounding != "trunc":
        raise SpecViolation(
            "InvalidAttributeValue", f"rounding is {rounding!r}", "it can be 'trunc', 'floor'"
        )
    line = user_line()
    found: Tensor = captured(_cut_quotient, paired(x1, x2, line), line)
    return numbered(found, "divide", x1, x2)


def _cut_quotient(x: Handle, y: Handle) -> Handle:
    return (x / y).trunc() if x.dtype.is_float else x / y


@tensor_method
@public
def floor_divide(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The largest whole number not above `x1 / x2`. Integers must not be divided by zero."""
    line = user_line()
    found: Tensor = captured(_floor_quotient, paired(x1, x2, line), line)
    return numbered(found, "floor_divide", x1, x2)


def _floor_quotient(x: Handle, y: Handle) -> Handle:
    if x.dtype.is_float:
        return _float_quotient(x, y)
    quotient = x / y
    if x.dtype.is_signed:
        quotient = quotient - _sides_differ(x.fmod(y), y).cast(x.dtype)
    return quotient


def _float_quotient(x: Handle, y: Handle) -> Handle:
    """Exact where both are finite, since `x - fmod(x, y)` is a multiple of y; the plain
    quotient, rounded down, where one is infinite or y is zero."""
    plain = x / y
    rest = x.fmod(y)
    exact = ((x - rest) / y).round() - _sides_differ(rest, y).cast(x.dtype)
    # A quotient of 0 has the sign that a division gives it.
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
    line = user_line()
    found: Tensor = captured(_remainder, paired(x1, x2, line), line)
    return numbered(found, "remainder", x1, x2)


def _remainder(x: Handle, y: Handle) -> Handle:
    rest = x.fmod(y)
    if x.dtype.is_float or x.dtype.is_signed:
        rest = _sides_differ(rest, y).select(rest + y, rest)
    return _zero_on_side(rest, y) if x.dtype.is_float else rest


def _zero_on_side(rest: Handle, divisor: Handle) -> Handle:
    """A remainder whose zeros have the sign of the divisor; it varies as x does there too."""
    fixed = rest.stop_gradient()
    # `fixed - rest` is 0, with the slope of -rest.
    zero = fixed.copysign(divisor) - (fixed - rest)
    return rest.compare("equal", 0).select(zero, rest)


@tensor_method
@told
def fmod(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """What the quotient without its fraction leaves, with the sign of `x1`: C's `fmod`."""
    return binary("fmod", x1, x2)


@tensor_method
@public
def lerp(x1: Tensor, x2: TensorLike, weight: TensorLike, /) -> Tensor:
    """`x1` where the weight is 0, `x2` where it is 1, and on the line through both elsewhere."""
    line = user_line()
    first, second = paired(x1, x2, line)
    first, share = paired(first, weight, line)
    found: Tensor = captured(_interpolate, [first, paired(second, share, line)[0], share], line)
    return found


def _interpolate(x: Handle, y: Handle, weight: Handle) -> Handle:
    """Counted from the nearer end, so that both ends are met exactly."""
    distance = y - x
    near = weight.compare("less", 0.5)
    return near.select(x + distance * weight, y - distance * (1.0 - weight))


@tensor_method
@told
def negative(x: Tensor, /) -> Tensor:
    """`-x`."""
    return unary("neg", x, "negative")


@tensor_method
@public
def positive(x: Tensor, /) -> Tensor:
    """`x` itself, as a tensor of its own."""
    return numbered(as_operand(x).__copy__(), "positive", x)


@tensor_method
@public
def abs(x: Tensor, /) -> Tensor:  # noqa: A001
    """The absolute value; of a complex tensor a real one."""
    value = as_operand(x)
    size = unary("abs", value)
    return unary("real", size) if value.dtype.is_complex else size


@tensor_method
@told
def reciprocal(x: Tensor, /) -> Tensor:
    """`1 / x`."""
    return unary("reciprocal", x, floating=True)


@tensor_method
@told
def square(x: Tensor, /) -> Tensor:
    """`x * x`."""
    return binary("mul", x, x, "square")


@tensor_method
@recorded
def sign(x: Handle, /) -> Handle:
    """-1, 0 or 1, never -0; of a complex number its direction."""
    if x.dtype.is_complex:
        zero = x.session.full(0, x.dtype, x.shape)
        return x.compare("equal", zero).select(zero, x.sign())
    return x.sign() + 0.0 if x.dtype.is_float else x.sign()


@tensor_method
@told
def maximum(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The larger of two; NaN where one is NaN."""
    return binary("maximum", x1, x2)


@tensor_method
@told
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
    """`min(max(x, lower), upper)`: the upper bound holds where they cross; None is no bound. At
    a bound the derivative is that of `x`."""
    line = user_line()
    result = positive(x)
    low = high = None
    if result.number is None and min is not None:
        result, low = paired(result, min, line)
    if result.number is None and max is not None:
        result, high = paired(result, max, line)
    if result.number is None and result.dtype.is_float:
        return _bound_elements(result, low, high, line)
    if min is not None:
        result = binary("maximum", result, min)
    return result if max is None else binary("minimum", result, max)


def _bound_elements(
    x: Tensor, low: Tensor | None, high: Tensor | None, line: Line | None
) -> Tensor:
    if low is not None and high is not None:
        low, _ = paired(low, x, line)
    bounds = [bound for bound in (low, high) if bound is not None]
    found: Tensor = captured(_clamp_elements, [x, *bounds], line, low is None, high is None)
    return found


def _clamp_elements(x: Handle, *bounds: Any) -> Handle:
    """`clamp` with the bounds that there are: handles, then whether each is missing."""
    *given, no_low, no_high = bounds
    rest = iter(given)
    lowest, highest = (
        x.session.full(n, x.dtype, x.shape) for n in (x.dtype.lowest, x.dtype.highest)
    )
    return x.clamp(lowest if no_low else next(rest), highest if no_high else next(rest))


# -- signs and neighbours of floats --------------------------------------------------------------


@tensor_method
@told
def copysign(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`x1` with the sign of `x2`."""
    return binary("copysign", x1, x2, floating=True)


@tensor_method
@told
def nextafter(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The float next to `x1` in the direction of `x2`."""
    return binary("nextafter", x1, x2, floating=True)


@tensor_method
@public
def signbit(x: Tensor, /) -> Tensor:
    """Whether the sign bit is set."""
    value = as_operand(x)
    return comparison("less", value, 0) if value.dtype.is_integer else unary("signbit", value)


# -- rounding ------------------------------------------------------------------------------------


@tensor_method
@public
def ceil(x: Tensor, /) -> Tensor:
    """The smallest whole number not below `x`."""
    return _round_elements("ceil", as_operand(x))


@tensor_method
@public
def floor(x: Tensor, /) -> Tensor:
    """The largest whole number not above `x`."""
    return _round_elements("floor", as_operand(x))


@tensor_method
@public
def trunc(x: Tensor, /) -> Tensor:
    """`x` without its fraction."""
    return _round_elements("trunc", as_operand(x))


@tensor_method
@public
def round(x: Tensor, /) -> Tensor:  # noqa: A001
    """The nearest whole number, the even one of two; complex parts each for themselves."""
    value = as_operand(x)
    if value.dtype.is_complex:
        handle = taken(value)
        return given(handle.real().round().complex(handle.imag().round()), x)
    return _round_elements("round", value)


def _round_elements(name: str, x: Tensor) -> Tensor:
    """Integers are whole numbers already."""
    return positive(x) if x.dtype.is_integer else unary(name, x)


# -- complex parts -------------------------------------------------------------------------------


@tensor_method
@public
def conj(x: Tensor, /) -> Tensor:
    """The complex conjugate; of a real tensor itself."""
    value = as_operand(x)
    return unary("conj", value) if value.dtype.is_complex else positive(value)


@tensor_property
@public
def real(x: Tensor, /) -> Tensor:
    """The real part; of a real tensor itself."""
    value = as_operand(x)
    return unary("real", value) if value.dtype.is_complex else positive(value)


@tensor_property
@public
def imag(x: Tensor, /) -> Tensor:
    """The imaginary part; of a real tensor zeros."""
    value = as_operand(x)
    if value.dtype.is_complex:
        return unary("imag", value)
    handle = taken(value)
    return given(handle.session.full(0, handle.dtype, handle.shape))
