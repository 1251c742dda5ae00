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
from typing import Any, ClassVar, TypeAlias

import numpy as np

from weft.foundation import numeric
from weft.foundation.dtypes import COMPLEX, FLOATS, I1, NUMBERS, REALS, as_dtype
from weft.foundation.functions import divide
from weft.ptir.op import Array, EvalContext, Op, extension_op
from weft.ptir.rules import same_dtype, same_shape, violation
from weft.ptir.types import TensorType

Function: TypeAlias = Callable[..., Any]


class UnaryFunction(Op):
    """`out[i] = function(x[i])`, with the dtype of `x`."""

    operands = ("x",)
    dtypes = {"x": FLOATS | COMPLEX}
    elementwise = True
    function: ClassVar[Function]

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        return x

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        (x,) = args
        return numeric.compute(type(self).function, as_dtype(x.dtype), x)


class Predicate(UnaryFunction):
    """`out[i] = function(x[i])` as i1."""

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        return x.with_dtype(I1)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        (x,) = args
        return np.asarray(type(self).function(numeric.widen(x, as_dtype(x.dtype))))


class BinaryFunction(Op):
    """`out[i] = function(lhs[i], rhs[i])`, with the dtype and shape of both operands."""

    operands = ("lhs", "rhs")
    dtypes = {"lhs": FLOATS, "rhs": FLOATS}
    elementwise = True
    function: ClassVar[Function]

    def infer(self, *types: TensorType) -> TensorType:
        lhs, rhs = types
        same_dtype(lhs, rhs, f"the operands of {self.mnemonic}")
        same_shape(lhs, rhs, f"the operands of {self.mnemonic}")
        return lhs

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        lhs, rhs = args
        return numeric.compute(type(self).function, as_dtype(lhs.dtype), lhs, rhs)


class BitPatternFunction(BinaryFunction):
    """A binary function that works on the stored bits, so that no widening gets in the way."""

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        lhs, rhs = args
        return np.asarray(type(self).function(lhs, rhs)).view(lhs.dtype)


# -- what NumPy lacks ----------------------------------------------------------------------------


def _in_double(real: Function, on_complex: Function | None = None) -> Function:
    """`real` carried out in f64, or `on_complex` (default: `real`) in cf64.

    Rounded to a narrower dtype, the result is then the same on every machine but for rare ties.
    """

    def wide(*args: Array) -> Any:
        if args[0].dtype.kind == "c":
            return (on_complex or real)(*(a.astype(np.complex128, copy=False) for a in args))
        return real(*(a.astype(np.float64, copy=False) for a in args))

    return wide


def _complex(real: Array, imag: Array) -> Array:
    """Both parts put together as they are: no arithmetic, so zero signs and infinities survive."""
    result = np.empty(np.shape(real), np.complex128)
    result.real, result.imag = real, imag
    return result


def _sqrt(x: Array) -> Array:
    # A real square root is correctly rounded in any format: no detour is needed.
    return np.asarray(np.sqrt(x) if x.dtype.kind == "f" else _in_double(np.sqrt)(x))


def _complex_expm1(z: Array) -> Array:
    x, y = z.real, z.imag
    half = np.sin(y / 2)
    near = _complex(np.expm1(x) * np.cos(y) - 2 * half * half, np.exp(x) * np.sin(y))
    return np.where(np.abs(x) < 1, near, np.exp(z) - 1)


def _complex_log1p(z: Array) -> Array:
    # NumPy's own takes log(hypot(1 + x, y)), which forgets a small x altogether.
    x, y = z.real, z.imag
    near = _complex(0.5 * np.log1p(x * (2 + x) + y * y), np.arctan2(y, 1 + x))
    return np.where(np.hypot(x, y) < 0.5, near, np.log(_complex(1 + x, y)))


def _complex_exp2(z: Array) -> Array:
    # The whole part of the exponent is applied exactly; 2^2000 and 2^-2000 overflow and vanish.
    whole = np.clip(np.nan_to_num(np.rint(z.real)), -2000, 2000).astype(np.int32)
    power = np.exp(_complex((z.real - whole) * math.log(2), z.imag * math.log(2)))
    return _complex(np.ldexp(power.real, whole), np.ldexp(power.imag, whole))


def _sign(x: Array) -> Array:
    if x.dtype.kind == "c":
        return _direction(x.astype(np.complex128, copy=False))
    # NumPy turns -0 into +0.
    return np.where(x == 0, x, np.sign(x))


def _direction(z: Array) -> Array:
    infinite = np.isinf(z)
    x, y = (_finite_stand_in(part, infinite) for part in (z.real, z.imag))
    exponent = np.frexp(np.maximum(np.abs(x), np.abs(y)))[1]
    x, y = np.ldexp(x, -exponent), np.ldexp(y, -exponent)
    size = np.hypot(x, y)
    return np.where(size == 0, z, _complex(x / size, y / size))


def _finite_stand_in(part: Array, infinite: Array) -> Array:
    """Beside an infinite part a finite one is nothing; both infinite are equally long."""
    unit = np.copysign(np.isinf(part), part)
    return np.where(infinite & ~np.isnan(part), unit, part)


def _power(base: Array, exponent: Array) -> Array:
    if base.dtype.kind not in "iu":
        return np.asarray(_in_double(np.power)(base, exponent))
    negative = np.flatnonzero(exponent < 0)
    if negative.size:
        first = int(negative[0])
        value = int(exponent.reshape(-1)[first])
        raise violation("InvalidExponent", f"the exponent is {value} at element {first}")
    result = np.ones_like(base)
    while np.any(exponent):
        result = np.where((exponent & 1) != 0, result * base, result)
        base, exponent = base * base, exponent >> 1
    return result


def _fmod(lhs: Array, rhs: Array) -> Array:
    if lhs.dtype.kind == "f":
        return np.asarray(np.fmod(lhs, rhs))
    return np.asarray(lhs - divide(lhs, rhs) * rhs)


def _pattern(x: Array) -> tuple[Array, Any]:
    """The stored bits as unsigned integers, and the bit that is the sign."""
    bits = x.view(f"u{x.dtype.itemsize}")
    return bits, bits.dtype.type(1 << (8 * x.dtype.itemsize - 1))


def _copysign(magnitude: Array, sign: Array) -> Array:
    (size, mask), (signed, _) = _pattern(magnitude), _pattern(sign)
    return np.asarray((size & ~mask) | (signed & mask))


def _nextafter(start: Array, goal: Array) -> Array:
    dtype = as_dtype(start.dtype)
    x, y = numeric.widen(start, dtype), numeric.widen(goal, dtype)
    (bits, mask), (goal_bits, _) = _pattern(start), _pattern(goal)
    one = bits.dtype.type(1)
    stepped = np.where((y > x) == (x > 0), bits + one, bits - one)
    stepped = np.where(x == 0, (goal_bits & mask) | one, stepped)
    stepped = np.where((x == y) | np.isnan(y), goal_bits, stepped)
    return np.where(np.isnan(x), bits, stepped)


# -- roots, rounding, sign -----------------------------------------------------------------------


@extension_op("sqrt")
class Sqrt(UnaryFunction):
    """The square root, correctly rounded for floats. Of a negative float it is NaN, of -0 it is -0;
    of a complex value it is the root with non-negative real part."""

    function = _sqrt


@extension_op("floor")
class Floor(UnaryFunction):
    """The largest whole number not above `x`. Zeros keep their sign; infinities and NaN stay."""

    dtypes = {"x": FLOATS}
    function = np.floor


@extension_op("ceil")
class Ceil(UnaryFunction):
    """The smallest whole number not below `x`. Values in (-1, 0) become -0; infinities and NaN
    stay."""

    dtypes = {"x": FLOATS}
    function = np.ceil


@extension_op("trunc")
class Trunc(UnaryFunction):
    """`x` without its fraction: rounded toward zero, keeping the sign, of a zero too."""

    dtypes = {"x": FLOATS}
    function = np.trunc


@extension_op("round")
class Round(UnaryFunction):
    """The nearest whole number; halfway cases go to the even one. The sign is kept, of a zero
    too."""

    dtypes = {"x": FLOATS}
    function = np.rint


@extension_op("sign")
class Sign(UnaryFunction):
    """-1, 0 or 1 with the sign of `x`; a zero is returned as it is and NaN stays NaN. Of a complex
    value it is `x / |x|`, the direction, which neither overflows nor underflows; one infinite part
    outweighs a finite one, and two infinite parts count as equally long."""

    dtypes = {"x": NUMBERS}
    function = _sign


# -- trigonometric and hyperbolic functions ------------------------------------------------------


@extension_op("sin")
class Sin(UnaryFunction):
    """The sine of `x` in radians, exactly reduced however large `x` is; of an infinity it is
    NaN."""

    function = _in_double(np.sin)


@extension_op("cos")
class Cos(UnaryFunction):
    """The cosine of `x` in radians, exactly reduced however large `x` is; of an infinity it is
    NaN."""

    function = _in_double(np.cos)


@extension_op("tan")
class Tan(UnaryFunction):
    """The tangent of `x` in radians, exactly reduced however large `x` is; of an infinity it is
    NaN."""

    function = _in_double(np.tan)


@extension_op("asin")
class Asin(UnaryFunction):
    """The angle in [-pi/2, pi/2] whose sine is `x`; NaN for floats outside [-1, 1]. Complex branch
    cuts: the real axis beyond -1 and 1."""

    function = _in_double(np.arcsin)


@extension_op("acos")
class Acos(UnaryFunction):
    """The angle in [0, pi] whose cosine is `x`; NaN for floats outside [-1, 1]. Complex branch
    cuts: the real axis beyond -1 and 1."""

    function = _in_double(np.arccos)


@extension_op("atan")
class Atan(UnaryFunction):
    """The angle in [-pi/2, pi/2] whose tangent is `x`. Complex branch cuts: the imaginary axis
    beyond -i and i."""

    function = _in_double(np.arctan)


@extension_op("sinh")
class Sinh(UnaryFunction):
    """The hyperbolic sine, `(exp(x) - exp(-x)) / 2`."""

    function = _in_double(np.sinh)


@extension_op("cosh")
class Cosh(UnaryFunction):
    """The hyperbolic cosine, `(exp(x) + exp(-x)) / 2`."""

    function = _in_double(np.cosh)


@extension_op("asinh")
class Asinh(UnaryFunction):
    """The inverse of `sinh`. Complex branch cuts: the imaginary axis beyond -i and i."""

    function = _in_double(np.arcsinh)


@extension_op("acosh")
class Acosh(UnaryFunction):
    """The non-negative inverse of `cosh`; NaN for floats below 1. Complex branch cut: the real axis
    below 1."""

    function = _in_double(np.arccosh)


@extension_op("atanh")
class Atanh(UnaryFunction):
    """The inverse of `tanh`; infinite at -1 and 1, NaN for floats outside. Complex branch cuts: the
    real axis beyond -1 and 1."""

    function = _in_double(np.arctanh)


# -- exponentials and logarithms -----------------------------------------------------------------


@extension_op("expm1")
class Expm1(UnaryFunction):
    """`exp(x) - 1`, accurate where `x` is small."""

    function = _in_double(np.expm1, _complex_expm1)


@extension_op("log1p")
class Log1p(UnaryFunction):
    """`log(1 + x)`, accurate where `x` is small; -inf at -1, NaN for floats below. Complex branch
    cut: the real axis below -1."""

    function = _in_double(np.log1p, _complex_log1p)


@extension_op("exp2")
class Exp2(UnaryFunction):
    """2 to the power `x`. For cf64 the error grows with the imaginary part: up to `|imag(x)|` ulp
    more."""

    function = _in_double(np.exp2, _complex_exp2)


@extension_op("log2")
class Log2(UnaryFunction):
    """The logarithm to base 2; -inf at 0, NaN for floats below. Complex branch cut: the real axis
    below 0."""

    function = _in_double(np.log2)


@extension_op("log10")
class Log10(UnaryFunction):
    """The logarithm to base 10; -inf at 0, NaN for floats below. Complex branch cut: the real axis
    below 0."""

    function = _in_double(np.log10)


# -- tests ---------------------------------------------------------------------------------------


@extension_op("signbit")
class Signbit(Predicate):
    """Whether the sign bit is set, which tells -0 from +0 and also reads the sign of a NaN."""

    dtypes = {"x": FLOATS}
    function = np.signbit


@extension_op("isnan")
class IsNan(Predicate):
    """Whether `x` is NaN; for complex values, whether either part is."""

    function = np.isnan


@extension_op("isinf")
class IsInf(Predicate):
    """Whether `x` is an infinity of either sign; for complex values, whether either part is.
    fp8_e4m3 has no infinity, so there it is always false."""

    function = np.isinf


@extension_op("isfinite")
class IsFinite(Predicate):
    """Whether `x` is neither NaN nor an infinity; for complex values, whether neither part is."""

    function = np.isfinite


# -- functions of two operands -------------------------------------------------------------------


@extension_op("atan2")
class Atan2(BinaryFunction):
    """The angle in [-pi, pi] of the point with ordinate `lhs` and abscissa `rhs`. Zero signs choose
    the quadrant; two infinities lie on a diagonal."""

    function = _in_double(np.arctan2)


@extension_op("pow")
class Pow(BinaryFunction):
    """`lhs` to the power `rhs`. Floats follow IEEE pow: `pow(x, 0)` and `pow(1, y)` are 1 even for
    NaN, a negative base with a fractional exponent is NaN. Integers wrap, `0` to the `0` is 1, and
    a negative exponent is rejected when the program runs (InvalidExponent). Complex powers take the
    principal logarithm; 0 to a power with positive real part is 0, to 0 is 1, else NaN. For cf64
    the error grows with the exponent: up to `2 |rhs log(lhs)|` ulp more."""

    dtypes = {"lhs": NUMBERS, "rhs": NUMBERS}
    function = _power


@extension_op("fmod")
class Fmod(BinaryFunction):
    """The remainder of the division truncated toward zero: exact, with the sign of `lhs`. Floats
    follow C fmod: NaN for a zero divisor or an infinite `lhs`, `lhs` itself for an infinite
    divisor. For integers a zero divisor is rejected when the program runs (IntegerDivideByZero),
    and the remainder of the lowest value by -1 is 0."""

    dtypes = {"lhs": REALS, "rhs": REALS}
    function = _fmod


@extension_op("copysign")
class Copysign(BitPatternFunction):
    """`lhs` with the sign bit of `rhs`; zeros and NaN have one too."""

    function = _copysign


@extension_op("nextafter")
class Nextafter(BitPatternFunction):
    """The neighbour of `lhs` in its own dtype in the direction of `rhs`; `rhs` itself where they
    are equal; NaN where either is NaN. Beyond the largest finite value lies infinity."""

    dtype_bound = True
    function = _nextafter


@extension_op("hypot")
class Hypot(BinaryFunction):
    """`sqrt(lhs^2 + rhs^2)` without overflow in between; infinite where either operand is, even
    beside NaN."""

    function = _in_double(np.hypot)


@extension_op("logaddexp")
class Logaddexp(BinaryFunction):
    """`log(exp(lhs) + exp(rhs))` without overflow in between. In f64 the error is within 4 ulp of
    the larger of |lhs|, |rhs| and 1, so a result near 0 has fewer correct digits."""

    function = _in_double(np.logaddexp)
