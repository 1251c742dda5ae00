"""Elementwise functions of real and complex numbers: powers, exponentials, logarithms, angles.
Integers are converted to the default float first, but for `pow`."""

from __future__ import annotations

from weft.foundation.calls import told
from weft.foundation.errors import SpecViolation
from weft.ops.arithmetic import TensorLike, binary, unary
from weft.ops.capture_recipes import recorded
from weft.ops.promotion import as_float
from weft.ops.session import Handle
from weft.ops.tensor import Tensor, tensor_method

__all__ = [
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "exp", "exp2",
    "expm1", "hypot", "log", "log1p", "log2", "log10", "logaddexp", "pow", "sin", "sinh", "sqrt",
    "tan", "tanh",
]  # fmt: skip


# -- powers and roots ----------------------------------------------------------------------------


@tensor_method
@told
def pow(x1: TensorLike, x2: TensorLike, /) -> Tensor:  # noqa: A001
    """`x1` to the power `x2`; an integer takes no negative exponent."""
    if type(x2) is int and x2 == 2 and isinstance(x1, Tensor):
        return binary("mul", x1, x1, "pow")
    if type(x2) is int and x2 < 0 and isinstance(x1, Tensor) and x1.dtype.is_integer:
        why = f"the exponent of {x1.type} is {x2}, and a negative power is not an integer"
        raise SpecViolation("InvalidAttributeValue", why, "convert x1 to a float")
    return binary("pow", x1, x2)


@tensor_method
@told
def sqrt(x: Tensor, /) -> Tensor:
    """The square root; NaN for floats below zero."""
    return unary("sqrt", x, floating=True)


@tensor_method
@told
def hypot(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`sqrt(x1^2 + x2^2)` without overflow in between."""
    return binary("hypot", x1, x2, floating=True)


# -- exponentials and logarithms -----------------------------------------------------------------


@tensor_method
@told
def exp(x: Tensor, /) -> Tensor:
    """e to the power `x`."""
    return unary("exp", x, floating=True)


@tensor_method
@told
def exp2(x: Tensor, /) -> Tensor:
    """2 to the power `x`."""
    return unary("exp2", x, floating=True)


@tensor_method
@recorded
def expm1(x: Handle, /) -> Handle:
    """`exp(x) - 1`, accurate where `x` is small. A complex result has no real part of -0."""
    result = x.cast(as_float(x.dtype)).expm1()
    if not x.dtype.is_complex:
        return result
    return (result.real() + 0.0).complex(result.imag())


@tensor_method
@told
def log(x: Tensor, /) -> Tensor:
    """The natural logarithm."""
    return unary("log", x, floating=True)


@tensor_method
@told
def log1p(x: Tensor, /) -> Tensor:
    """`log(1 + x)`, accurate where `x` is small."""
    return unary("log1p", x, floating=True)


@tensor_method
@told
def log2(x: Tensor, /) -> Tensor:
    """The logarithm to base 2."""
    return unary("log2", x, floating=True)


@tensor_method
@told
def log10(x: Tensor, /) -> Tensor:
    """The logarithm to base 10."""
    return unary("log10", x, floating=True)


@tensor_method
@told
def logaddexp(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """`log(exp(x1) + exp(x2))` without overflow in between."""
    return binary("logaddexp", x1, x2, floating=True)


# -- angles --------------------------------------------------------------------------------------


@tensor_method
@told
def sin(x: Tensor, /) -> Tensor:
    """The sine of an angle in radians."""
    return unary("sin", x, floating=True)


@tensor_method
@told
def cos(x: Tensor, /) -> Tensor:
    """The cosine of an angle in radians."""
    return unary("cos", x, floating=True)


@tensor_method
@told
def tan(x: Tensor, /) -> Tensor:
    """The tangent of an angle in radians."""
    return unary("tan", x, floating=True)


@tensor_method
@told
def asin(x: Tensor, /) -> Tensor:
    """The angle in [-pi/2, pi/2] whose sine is `x`."""
    return unary("asin", x, floating=True)


@tensor_method
@told
def acos(x: Tensor, /) -> Tensor:
    """The angle in [0, pi] whose cosine is `x`."""
    return unary("acos", x, floating=True)


@tensor_method
@told
def atan(x: Tensor, /) -> Tensor:
    """The angle in [-pi/2, pi/2] whose tangent is `x`."""
    return unary("atan", x, floating=True)


@tensor_method
@told
def atan2(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The angle of the point with ordinate `x1` and abscissa `x2`."""
    return binary("atan2", x1, x2, floating=True)


# -- hyperbolic functions ------------------------------------------------------------------------


@tensor_method
@told
def sinh(x: Tensor, /) -> Tensor:
    """The hyperbolic sine."""
    return unary("sinh", x, floating=True)


@tensor_method
@told
def cosh(x: Tensor, /) -> Tensor:
    """The hyperbolic cosine."""
    return unary("cosh", x, floating=True)


@tensor_method
@recorded
def tanh(x: Handle, /) -> Handle:
    """The hyperbolic tangent. At a complex infinity along the real axis the imaginary part is a
    zero with the sign of x's."""
    result = x.cast(as_float(x.dtype)).tanh()
    if not x.dtype.is_complex:
        return result
    real, imag = x.real(), x.imag()
    far = real.isinf().bitwise_and(imag.isfinite())
    flat = imag.session.full(0.0, imag.dtype, imag.shape).copysign(imag)
    return result.real().complex(far.select(flat, result.imag()))


@tensor_method
@told
def asinh(x: Tensor, /) -> Tensor:
    """The inverse of `sinh`."""
    return unary("asinh", x, floating=True)


@tensor_method
@told
def acosh(x: Tensor, /) -> Tensor:
    """The inverse of `cosh`, not negative."""
    return unary("acosh", x, floating=True)


@tensor_method
@told
def atanh(x: Tensor, /) -> Tensor:
    """The inverse of `tanh`."""
    return unary("atanh", x, floating=True)
