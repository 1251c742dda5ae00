"""Elementwise functions beyond the contract's own: roots, rounding, trigonometry, powers, tests.

Accuracy, which the tests hold: f32 and narrower floats are carried out in f64 and rounded once, so
they err by half an ulp and a little. f64 is the platform's C library, within 4 ulp. Complex values
are carried out in cf64, and their error is measured as a whole: |result - exact| within 4 ulp of
|exact|, unless the op says otherwise. Infinities, NaN and the sides of branch cuts (the sign of a
zero part) are as in Annex G of the C standard.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from weft.foundation import functions, numeric
from weft.foundation.dtypes import COMPLEX, FLOATS, I1, NUMBERS, as_dtype
from weft.foundation.errors import InternalError
from weft.foundation.scalar import FUNCTIONS, Fn
from weft.ptir.op import Array, EvalContext, Op, extension_op
from weft.ptir.rules import same_dtype, same_shape
from weft.ptir.term import Cotangents, Pullback, Term
from weft.ptir.types import TensorType


class ScalarOp(Op):
    """A function of elements, which is defined for the dtypes of its row."""

    elementwise = True
    scalar: ClassVar[Fn]
    """Which one it is: the key of its row in `foundation.scalar`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "scalar" in cls.__dict__:
            cls.dtypes = dict.fromkeys(cls.operands, FUNCTIONS[cls.scalar].dtypes)


class UnaryFunction(ScalarOp):
    """`out[i] = function(x[i])`, with the dtype of `x`."""

    operands = ("x",)

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        return x

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        (x,) = args
        return functions.unary(str(self.scalar), as_dtype(x.dtype), x)

    def derivative(self, x: Term, y: Term) -> Term:
        """The derivative at `x`, where the function is `y`."""
        raise InternalError(f"{self.name} does not say what its derivative is")

    def vjp(self, at: Pullback) -> Cotangents:
        (x,) = at.operands
        return (at.cotangent * self.derivative(x, at.result).conj(),)


class Predicate(Op):
    """`out[i] = test(x[i])` as i1."""

    operands = ("x",)
    dtypes = {"x": FLOATS | COMPLEX}
    elementwise = True
    no_gradient = "truth values have no derivative"
    test: ClassVar[Callable[..., Any]]

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        return x.with_dtype(I1)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        (x,) = args
        return np.asarray(type(self).test(numeric.widen(x, as_dtype(x.dtype))))


class BinaryFunction(ScalarOp):
    """`out[i] = function(lhs[i], rhs[i])`, with the dtype and shape of both operands."""

    operands = ("lhs", "rhs")

    def infer(self, *types: TensorType) -> TensorType:
        lhs, rhs = types
        same_dtype(lhs, rhs, f"the operands of {self.mnemonic}")
        same_shape(lhs, rhs, f"the operands of {self.mnemonic}")
        return lhs

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        lhs, rhs = args
        return functions.binary(str(self.scalar), as_dtype(lhs.dtype), lhs, rhs)

    def derivatives(self, lhs: Term, rhs: Term, out: Term) -> tuple[Term, Term]:
        """The derivatives by either operand, where the function is `out`."""
        raise InternalError(f"{self.name} does not say what its derivatives are")

    def vjp(self, at: Pullback) -> Cotangents:
        lhs, rhs = at.operands
        by_lhs, by_rhs = self.derivatives(lhs, rhs, at.result)
        return at.cotangent * by_lhs.conj(), at.cotangent * by_rhs.conj()


# -- roots, rounding, sign -----------------------------------------------------------------------


@extension_op("sqrt")
class Sqrt(UnaryFunction):
    """The square root, correctly rounded for floats. Of a negative float it is NaN, of -0 it is -0;
    of a complex value it is the root with non-negative real part."""

    scalar = Fn.SQRT

    def derivative(self, x: Term, y: Term) -> Term:
        return 0.5 / y


@extension_op("floor")
class Floor(UnaryFunction):
    """The largest integer that is not above `x`. Zeros keep their sign; infinities and NaN stay."""

    scalar = Fn.FLOOR
    no_gradient = "it is piecewise constant"


@extension_op("ceil")
class Ceil(UnaryFunction):
    """The smallest integer that is not below `x`. Values in (-1, 0) become -0; infinities and NaN
    stay."""

    scalar = Fn.CEIL
    no_gradient = "it is piecewise constant"


@extension_op("trunc")
class Trunc(UnaryFunction):
    """`x` rounded toward zero. The sign is kept, also of a zero."""

    scalar = Fn.TRUNC
    no_gradient = "it is piecewise constant"


@extension_op("round")
class Round(UnaryFunction):
    """The nearest integer; ties round to the even one. The sign is kept, also of a zero."""

    scalar = Fn.ROUND
    no_gradient = "it is piecewise constant"


@extension_op("sign")
class Sign(UnaryFunction):
    """-1, 0 or 1 with the sign of `x`; a zero is returned as it is and NaN stays NaN. Of a complex
    value it is `x / |x|`, the direction, which neither overflows nor underflows; beside an infinite
    part a finite one counts as 0, and two infinite parts count as equal in size."""

    dtypes = {"x": NUMBERS}

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        (x,) = args
        return numeric.compute(functions.sign, as_dtype(x.dtype), x)

    def vjp(self, at: Pullback) -> Cotangents:
        """Zero for floats. For a complex `x`, the part of the cotangent that changes its direction;
        zero at 0."""
        g, (x,), y = at.cotangent, at.operands, at.result
        if not x.dtype.is_complex:
            return (None,)
        along = (y.conj() * g).real().cast(x.dtype)
        turned = (g - y * along) / x.abs()
        return (g.like(0).where(x.compare(0, "equal"), turned),)


# -- trigonometric and hyperbolic functions ------------------------------------------------------


@extension_op("sin")
class Sin(UnaryFunction):
    """The sine of `x` in radians, with an exact argument reduction for every `x`; of an infinity it
    is NaN."""

    scalar = Fn.SIN

    def derivative(self, x: Term, y: Term) -> Term:
        return x.cos()


@extension_op("cos")
class Cos(UnaryFunction):
    """The cosine of `x` in radians, with an exact argument reduction for every `x`; of an infinity
    it is NaN."""

    scalar = Fn.COS

    def derivative(self, x: Term, y: Term) -> Term:
        return -x.sin()


@extension_op("tan")
class Tan(UnaryFunction):
    """The tangent of `x` in radians, with an exact argument reduction for every `x`; of an infinity
    it is NaN."""

    scalar = Fn.TAN

    def derivative(self, x: Term, y: Term) -> Term:
        return y * y + 1


@extension_op("asin")
class Asin(UnaryFunction):
    """The angle in [-pi/2, pi/2] whose sine is `x`; NaN for floats outside [-1, 1]. Complex branch
    cuts: the real axis beyond -1 and 1."""

    scalar = Fn.ASIN

    def derivative(self, x: Term, y: Term) -> Term:
        return (1 - x * x).rsqrt()


@extension_op("acos")
class Acos(UnaryFunction):
    """The angle in [0, pi] whose cosine is `x`; NaN for floats outside [-1, 1]. Complex branch
    cuts: the real axis beyond -1 and 1."""

    scalar = Fn.ACOS

    def derivative(self, x: Term, y: Term) -> Term:
        return -(1 - x * x).rsqrt()


@extension_op("atan")
class Atan(UnaryFunction):
    """The angle in [-pi/2, pi/2] whose tangent is `x`. Complex branch cuts: the imaginary axis
    beyond -i and i."""

    scalar = Fn.ATAN

    def derivative(self, x: Term, y: Term) -> Term:
        return 1 / (x * x + 1)


@extension_op("sinh")
class Sinh(UnaryFunction):
    """The hyperbolic sine, `(exp(x) - exp(-x)) / 2`."""

    scalar = Fn.SINH

    def derivative(self, x: Term, y: Term) -> Term:
        return x.cosh()


@extension_op("cosh")
class Cosh(UnaryFunction):
    """The hyperbolic cosine, `(exp(x) + exp(-x)) / 2`."""

    scalar = Fn.COSH

    def derivative(self, x: Term, y: Term) -> Term:
        return x.sinh()


@extension_op("asinh")
class Asinh(UnaryFunction):
    """The inverse of `sinh`. Complex branch cuts: the imaginary axis beyond -i and i."""

    scalar = Fn.ASINH

    def derivative(self, x: Term, y: Term) -> Term:
        return (x * x + 1).rsqrt()


@extension_op("acosh")
class Acosh(UnaryFunction):
    """The non-negative inverse of `cosh`; NaN for floats below 1. Complex branch cut: the real axis
    below 1."""

    scalar = Fn.ACOSH

    def derivative(self, x: Term, y: Term) -> Term:
        return (x - 1).rsqrt() * (x + 1).rsqrt()


@extension_op("atanh")
class Atanh(UnaryFunction):
    """The inverse of `tanh`; infinite at -1 and 1, NaN for floats outside. Complex branch cuts: the
    real axis beyond -1 and 1."""

    scalar = Fn.ATANH

    def derivative(self, x: Term, y: Term) -> Term:
        return 1 / (1 - x * x)


# -- exponentials and logarithms -----------------------------------------------------------------


@extension_op("expm1")
class Expm1(UnaryFunction):
    """`exp(x) - 1`, accurate where `x` is small."""

    scalar = Fn.EXPM1

    def derivative(self, x: Term, y: Term) -> Term:
        return y + 1


@extension_op("log1p")
class Log1p(UnaryFunction):
    """`log(1 + x)`, accurate where `x` is small; -inf at -1, NaN for floats below. Complex branch
    cut: the real axis below -1."""

    scalar = Fn.LOG1P

    def derivative(self, x: Term, y: Term) -> Term:
        return 1 / (x + 1)


@extension_op("exp2")
class Exp2(UnaryFunction):
    """2 to the power `x`. For cf64 the error grows with the imaginary part: up to `|imag(x)|` ulp
    more."""

    scalar = Fn.EXP2

    def derivative(self, x: Term, y: Term) -> Term:
        return y * math.log(2)


@extension_op("log2")
class Log2(UnaryFunction):
    """The logarithm to base 2; -inf at 0, NaN for floats below. Complex branch cut: the real axis
    below 0."""

    scalar = Fn.LOG2

    def derivative(self, x: Term, y: Term) -> Term:
        return 1 / (x * math.log(2))


@extension_op("log10")
class Log10(UnaryFunction):
    """The logarithm to base 10; -inf at 0, NaN for floats below. Complex branch cut: the real axis
    below 0."""

    scalar = Fn.LOG10

    def derivative(self, x: Term, y: Term) -> Term:
        return 1 / (x * math.log(10))


# -- tests ---------------------------------------------------------------------------------------


@extension_op("signbit")
class Signbit(Predicate):
    """Whether the sign bit is set, which tells -0 from +0 and also reads the sign of a NaN."""

    dtypes = {"x": FLOATS}
    test = np.signbit


@extension_op("isnan")
class IsNan(Predicate):
    """Whether `x` is NaN; for complex values, whether either part is."""

    test = np.isnan


@extension_op("isinf")
class IsInf(Predicate):
    """Whether `x` is an infinity of either sign; for complex values, whether either part is.
    fp8_e4m3 has no infinity, so there it is always false."""

    test = np.isinf


@extension_op("isfinite")
class IsFinite(Predicate):
    """Whether `x` is neither NaN nor an infinity; for complex values, whether neither part is."""

    test = np.isfinite


# -- functions of two operands -------------------------------------------------------------------


@extension_op("atan2")
class Atan2(BinaryFunction):
    """The angle in [-pi, pi] of the point with ordinate `lhs` and abscissa `rhs`. The signs of
    zeros select the quadrant; two infinities give the angle of a diagonal."""

    scalar = Fn.ATAN2

    def derivatives(self, lhs: Term, rhs: Term, out: Term) -> tuple[Term, Term]:
        """Both are 0 at the origin."""
        size = _nonzero(lhs.hypot(rhs))
        return rhs / size / size, -(lhs / size) / size


@extension_op("pow")
class Pow(BinaryFunction):
    """`lhs` to the power `rhs`. Floats follow IEEE pow: `pow(x, 0)` and `pow(1, y)` are 1 even for
    NaN, a negative base with a fractional exponent is NaN. Integers wrap, `0` to the `0` is 1, and
    a negative exponent is rejected when the program runs (InvalidExponent). Complex powers take the
    principal logarithm; 0 to a power with positive real part is 0, to 0 is 1, else NaN. For cf64
    the error grows with the exponent: up to `2 |rhs log(lhs)|` ulp more."""

    scalar = Fn.POW

    def derivatives(self, lhs: Term, rhs: Term, out: Term) -> tuple[Term, Term]:
        """The base 0 has the derivative 0 for the power 0; the one by the power is 0 there as well,
        unless the power has a negative real part."""
        # Where a derivative is 0, the base 1 stands in for 0: then those of higher order exist too.
        base, one = lhs.compare(0, "equal"), lhs.like(1)
        part = rhs.real() if rhs.dtype.is_complex else rhs
        flat = one.where(base.minimum(rhs.compare(0, "equal")), lhs)
        vanishing = one.where(base.minimum(part.compare(0, "greater_equal")), lhs)
        return rhs * flat.pow(rhs - 1), out * vanishing.log()


@extension_op("fmod")
class Fmod(BinaryFunction):
    """The remainder of the division truncated toward zero: exact, with the sign of `lhs`. Floats
    follow C fmod: NaN for a zero divisor or an infinite `lhs`, `lhs` itself for an infinite
    divisor. For integers a zero divisor is rejected when the program runs (IntegerDivideByZero),
    and the remainder of the lowest value by -1 is 0."""

    scalar = Fn.FMOD

    def derivatives(self, lhs: Term, rhs: Term, out: Term) -> tuple[Term, Term]:
        return lhs.like(1), -(lhs / rhs).trunc()


@extension_op("copysign")
class Copysign(BinaryFunction):
    """`lhs` with the sign bit of `rhs`; zeros and NaN have one too."""

    scalar = Fn.COPYSIGN

    def vjp(self, at: Pullback) -> Cotangents:
        """Zero where `lhs` is 0; the sign bit of `rhs` does not vary smoothly."""
        return at.cotangent * at.operands[0].sign() * at.result.sign(), None


@extension_op("nextafter")
class Nextafter(BinaryFunction):
    """The neighbour of `lhs` in its own dtype in the direction of `rhs`; `rhs` itself if they are
    equal; NaN if either is NaN. Infinity follows the largest finite value."""

    scalar = Fn.NEXTAFTER
    dtype_bound = True
    no_gradient = "it depends on the dtype, not only on the numbers"


@extension_op("hypot")
class Hypot(BinaryFunction):
    """`sqrt(lhs^2 + rhs^2)` without overflow in between; infinite if either operand is, even if the
    other is NaN."""

    scalar = Fn.HYPOT

    def derivatives(self, lhs: Term, rhs: Term, out: Term) -> tuple[Term, Term]:
        """Both are 0 at the origin."""
        size = _nonzero(out)
        return lhs / size, rhs / size


def _nonzero(size: Term) -> Term:
    """A length to divide by what is 0 where it is: 1 stands in for 0."""
    return size.like(1).where(size.compare(0, "equal"), size)


@extension_op("logaddexp")
class Logaddexp(BinaryFunction):
    """`log(exp(lhs) + exp(rhs))` without overflow in between. In f64 the error is within 4 ulp of
    the larger of |lhs|, |rhs| and 1, so a result near 0 has fewer correct digits."""

    scalar = Fn.LOGADDEXP

    def derivatives(self, lhs: Term, rhs: Term, out: Term) -> tuple[Term, Term]:
        return 1 / ((rhs - lhs).exp() + 1), 1 / ((lhs - rhs).exp() + 1)
