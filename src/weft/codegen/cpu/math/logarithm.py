"""log, and functions computed from it: log2, log10, log1p, the inverse hyperbolic functions,
logaddexp.

ln x = n ln 2 + ln(1 + f) with 1 + f between sqrt(1/2) and sqrt(2), and
ln(1 + f) = f - f^2/2 + s (f^2/2 + s^2 P(s^2)), s = f / (2 + f).
"""

from __future__ import annotations

import math
from typing import Final

from weft.codegen.cpu.code import Val
from weft.codegen.cpu.math.exponential import LN2_HIGH, LN2_LOW, exp
from weft.codegen.cpu.math.writer import Pair, Writer

# (2 atanh(s) / s - 2) / s^2 as a polynomial in s^2.
_SERIES: Final = {
    "float": (0.6666666655404201, 0.4000012221181065, 0.28550778633191964, 0.23331614471843498),
    "double": (
        0.6666666666666666, 0.40000000000000885, 0.28571428570799784, 0.22222222392581045,
        0.18181795547521137, 0.15386244737621665, 0.13268638369266825, 0.13088034850927555,
    ),
}  # fmt: skip
_LOG10_2_HIGH: Final = {"float": 0.301025390625, "double": 0.3010299950838089}
"""With so few digits that the product with an exponent is exact, and what is left:"""
_LOG10_2_LOW: Final = {"float": 4.605038981195214e-06, "double": 5.801722962879576e-10}
_HUGE: Final = 2.0**28
"""From here on 1 + x^2 is x^2 in every format, for the inverse hyperbolic functions."""


def log(w: Writer, x: Val) -> Val:
    n, f = exponent_and_rest(w, x)
    return _choose_edges(w, _combine_parts(w, n, f, w.mul(n, LN2_LOW[x.scalar])), x)


def log2(w: Writer, x: Val) -> Val:
    n, f = exponent_and_rest(w, x)
    series = _combine_parts(w, w.like(0.0, x), f, w.like(0.0, x))
    return _choose_edges(w, w.fma(series, math.log2(math.e), n), x)


def log10(w: Writer, x: Val) -> Val:
    n, f = exponent_and_rest(w, x)
    series = _combine_parts(w, w.like(0.0, x), f, w.like(0.0, x))
    small = w.fma(series, math.log10(math.e), w.mul(n, _LOG10_2_LOW[x.scalar]))
    return _choose_edges(w, w.fma(n, _LOG10_2_HIGH[x.scalar], small), x)


def log1p(w: Writer, x: Val) -> Val:
    """The logarithm of 1 + x = 2^n (1 + f): n is that of the rounded sum, and f = x / 2^n +
    (2^-n - 1), of which only the last sum rounds."""
    u = w.add(x, 1.0)
    exponent = _exponent(w, u, w.bits(u))
    power = w.integer("shl", exponent, w.form(x).mantissa)
    n = w.as_float(exponent)
    part = w.from_bits(w.integer("sub", w.bits(x), power))
    # Four times as much, as 2^-n has no normal number where x is largest.
    scale = w.from_bits(w.integer("sub", w.bits(w.like(4.0, x)), power))
    f = w.add(part, w.fma(scale, 0.25, -1.0))
    # Of what is tiny the square, which is computed in vain, would underflow: 150 cycles on x86-64.
    tiny = w.test("olt", w.abs(x), 2.0 ** (-w.form(x).mantissa - 2))
    f = w.choose(tiny, 0.25, f)
    result = _combine_parts(w, n, f, w.mul(n, LN2_LOW[x.scalar]))
    return w.choose(tiny, x, _choose_edges(w, result, u))


def asinh(w: Writer, x: Val) -> Val:
    """ln(1 + |x| + x^2 / (1 + sqrt(1 + x^2))), or ln |x| + ln 2 far out."""
    size = w.abs(x)
    held = w.code.intrinsic("llvm.minnum", size, w.like(_HUGE, x))
    square = w.mul(held, held)
    root = w.sqrt(w.add(square, 1.0))
    near = log1p(w, w.add(held, w.div(square, w.add(root, 1.0))))
    return w.copysign(_or_far(w, size, near), x)


def acosh(w: Writer, x: Val) -> Val:
    """ln(1 + t + sqrt(2 t + t^2)) with t = x - 1, or ln x + ln 2 far out; NaN below 1."""
    t = w.sub(w.code.intrinsic("llvm.minnum", x, w.like(_HUGE, x)), 1.0)
    root = w.sqrt(w.mul(t, w.add(t, 2.0)))
    near = log1p(w, w.add(t, root))
    result = _or_far(w, x, near)
    return w.choose(w.test("uge", x, 1.0), w.choose(w.is_nan(x), x, result), math.nan)


def atanh(w: Writer, x: Val) -> Val:
    """ln(1 + 2 |x| / (1 - |x|)) / 2."""
    size = w.abs(x)
    ratio = w.div(w.add(size, size), w.sub(1.0, size))
    result = w.mul(log1p(w, ratio), 0.5)
    result = w.choose(w.test("ogt", size, 1.0), math.nan, result)
    return w.copysign(result, x)


def logaddexp(w: Writer, x: Val, y: Val) -> Val:
    """The greater of the two plus ln(1 + e^-|x - y|); infinities that are equal stay."""
    greater = w.code.intrinsic("llvm.maximum", x, y)
    apart = w.choose(w.test("oeq", x, y), 0.0, w.sub(x, y))
    return w.add(greater, log1p(w, exp(w, w.neg(w.abs(apart)))))


def _or_far(w: Writer, size: Val, near: Val) -> Val:
    far = w.add(log(w, size), math.log(2))
    return w.choose(w.test("olt", size, _HUGE), near, far)


def exponent_and_rest(w: Writer, x: Val) -> Pair:
    """n as a float, and f, of x = 2^n (1 + f) for a positive x, subnormal ones included."""
    form = w.form(x)
    tiny = w.test("olt", x, 2.0 ** (2 - form.bias))
    lift = float(form.mantissa + 2)
    bits = w.bits(w.choose(tiny, w.mul(x, 2.0**lift), x))
    n = _exponent(w, x, bits)
    power = w.integer("shl", n, form.mantissa)
    m = w.from_bits(w.integer("sub", bits, power))
    count = w.as_float(n)
    return w.choose(tiny, w.sub(count, lift), count), w.sub(m, 1.0)


def _exponent(w: Writer, x: Val, bits: Val) -> Val:
    """n of a normal positive x, as an integer. Bits of positive floats are in the order of the
    numbers: less those of sqrt(1/2), the exponent field is n, rounded so that x / 2^n lies between
    sqrt(1/2) and sqrt(2)."""
    root_half = w.bits(w.like(math.sqrt(0.5), x))
    return w.integer("ashr", w.integer("sub", bits, root_half), w.form(x).mantissa)


def _combine_parts(w: Writer, n: Val, f: Val, tail: Val) -> Val:
    """n ln 2 + ln(1 + f), where `tail` has what n times the upper part of ln 2 leaves out."""
    half_square = w.mul(w.mul(f, 0.5), f)
    s = w.div(f, w.add(f, 2.0))
    square = w.mul(s, s)
    rest = w.mul(square, w.poly(_SERIES[f.scalar], square))
    small = w.fma(s, w.add(half_square, rest), tail)
    high = w.mul(n, LN2_HIGH[f.scalar])
    return w.sub(high, w.sub(w.sub(half_square, small), f))


def _choose_edges(w: Writer, result: Val, x: Val) -> Val:
    result = w.choose(w.test("oeq", x, math.inf), x, result)
    result = w.choose(w.test("oeq", x, 0.0), -math.inf, result)
    return w.choose(w.test("ult", x, 0.0), math.nan, result)
