"""log, and functions computed from it: log2, log10, log1p, the inverse hyperbolic functions,
logaddexp.

ln x = n ln 2 + ln(1 + f) with 1 + f between sqrt(1/2) and sqrt(2). In double precision
ln(1 + f) = f - f^2/2 + s (f^2/2 + s^2 P(s^2)), s = f / (2 + f), and in single precision it is
f + f^2 P(f); so are the logarithms to other bases, with numbers of their own. What is no positive
normal number is computed again in a branch that is skipped where no lane needs it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from weft.codegen.cpu.code import Code, Val, number
from weft.codegen.cpu.math.exponential import LN2_HIGH, LN2_LOW, exp
from weft.codegen.cpu.math.writer import FORMATS, Pair, Writer

# (2 atanh(s) / s - 2) / s^2 as a polynomial in s^2.
_SERIES: Final = (
    0.6666666666666666, 0.40000000000000885, 0.28571428570799784, 0.22222222392581045,
    0.18181795547521137, 0.15386244737621665, 0.13268638369266825, 0.13088034850927555,
)  # fmt: skip


@dataclass(frozen=True)
class _Base:
    """What a logarithm is computed with: its name; that of 2 in two parts, of which a number of up
    to eleven bits times the first is exact; that of e, and rounded to a float; and for floats
    (log(1 + f) - f log e) / f^2 in f."""

    name: str
    two_high: Mapping[str, float]
    two_low: Mapping[str, float]
    e: float
    e_high: float
    series: tuple[float, ...]


_E: Final = _Base(
    "log", LN2_HIGH, LN2_LOW, 1.0, 1.0,
    (-0.49999988079071045, 0.33333325386047363, -0.25001609325408936, 0.20001421868801117,
     -0.1660689413547516, 0.14190052449703217, -0.1327221840620041, 0.12883976101875305,
     -0.07541805505752563),
)  # fmt: skip
_TWO: Final = _Base(
    "log2", dict.fromkeys(FORMATS, 1.0), dict.fromkeys(FORMATS, 0.0), math.log2(math.e),
    1.4426950216293335,
    (-0.7213473320007324, 0.4808982312679291, -0.3606969714164734, 0.28855952620506287,
     -0.23958684504032135, 0.2047191858291626, -0.19147764146327972, 0.1858764886856079,
     -0.10880525410175323),
)  # fmt: skip
_TEN: Final = _Base(
    "log10", {"float": 0.301025390625, "double": 0.3010299950838089},
    {"float": 4.605038981195214e-06, "double": 5.801722962879576e-10},
    math.log10(math.e), 0.4342944920063019,
    (-0.21714718639850616, 0.14476478099822998, -0.10858089476823807, 0.08686520904302597,
     -0.07211267203092575, 0.06163537874817848, -0.0577675923705101, 0.05586234852671623,
     -0.03221166878938675),
)  # fmt: skip
_HUGE: Final = 2.0**28
"""From here on 1 + x^2 is x^2 in every format, for the inverse hyperbolic functions."""


def log(w: Writer, x: Val) -> Val:
    return _logarithm(w, x, _E)


def log2(w: Writer, x: Val) -> Val:
    return _logarithm(w, x, _TWO)


def log10(w: Writer, x: Val) -> Val:
    return _logarithm(w, x, _TEN)


def _logarithm(w: Writer, x: Val, base: _Base) -> Val:
    usual = inner_log(w, x, base)
    other = _is_listed(w, x)

    def listed() -> list[Val]:
        return [w.choose(other, w.code.function(f"listed_{base.name}", body, x, rare=True), usual)]

    def body(code: Code, x: Val) -> Val:
        return log_anywhere(Writer(code), x, base)

    return w.code.rarely(other, [usual], listed)[0]


def inner_log(w: Writer, x: Val, base: _Base = _E) -> Val:
    """The logarithm of a positive normal number."""
    bits = w.bits(x)
    exponent = _exponent(w, x, bits)
    m = w.from_bits(w.integer("sub", bits, w.integer("shl", exponent, w.form(x).mantissa)))
    return _combine(w, w.as_float(exponent), w.sub(m, 1.0), base)


def log_anywhere(w: Writer, x: Val, base: _Base = _E) -> Val:
    """The logarithm of any number, without a branch."""
    return _choose_edges(w, _combine(w, *exponent_and_rest(w, x), base), x)


def _is_listed(w: Writer, x: Val) -> Val:
    """Whether x is no positive normal number."""
    form = w.form(x)
    least, endless = 1 << form.mantissa, (2 * form.bias + 1) << form.mantissa
    above = w.integer("sub", w.bits(x), least)
    return w.code.compare("icmp uge", above, number(endless - least, above.scalar, above.lanes))


def log1p(w: Writer, x: Val) -> Val:
    """The logarithm of 1 + x = 2^n (1 + f): n is that of the rounded sum, and f = x / 2^n +
    (2^-n - 1), of which only the last sum rounds."""
    u = w.add(x, 1.0)
    exponent = _exponent(w, u, w.bits(u))
    power = w.integer("shl", exponent, w.form(x).mantissa)
    part = w.from_bits(w.integer("sub", w.bits(x), power))
    # Four times as much, as 2^-n has no normal number where x is largest.
    scale = w.from_bits(w.integer("sub", w.bits(w.like(4.0, x)), power))
    f = w.add(part, w.fma(scale, 0.25, -1.0))
    # Of what is tiny the square, which is computed in vain, would underflow: 150 cycles on x86-64.
    tiny = w.test("olt", w.abs(x), 2.0 ** (-w.form(x).mantissa - 2))
    usual = _combine(w, w.as_float(exponent), w.choose(tiny, 0.25, f), _E)
    usual = w.choose(tiny, x, usual)
    return w.code.rarely(_is_listed(w, u), [usual], lambda: [_choose_edges(w, usual, u)])[0]


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


def _combine(w: Writer, n: Val, f: Val, base: _Base) -> Val:
    """The logarithm of 2^n (1 + f)."""
    low = w.mul(n, base.two_low[f.scalar])
    if f.scalar == "double":
        return _combine_parts(w, n, f, low, base)
    square = w.mul(f, w.poly(base.series, f))
    lost = base.e - base.e_high
    tail = w.fma(f, w.add(square, lost) if lost else square, low)
    return w.fma(n, base.two_high[f.scalar], w.fma(f, base.e_high, tail))


def _combine_parts(w: Writer, n: Val, f: Val, low: Val, base: _Base) -> Val:
    """The same in double precision, with what n times the upper part of log 2 leaves out."""
    half_square = w.mul(w.mul(f, 0.5), f)
    s = w.div(f, w.add(f, 2.0))
    square = w.mul(s, s)
    rest = w.mul(square, w.poly(_SERIES, square))
    grown, high = w.add(half_square, rest), w.mul(n, base.two_high[f.scalar])
    if base is _E:
        return w.sub(high, w.sub(w.sub(half_square, w.fma(s, grown, low)), f))
    series = w.sub(f, w.sub(half_square, w.mul(s, grown)))
    return w.add(w.fma(series, base.e, low), high)


def _choose_edges(w: Writer, result: Val, x: Val) -> Val:
    result = w.choose(w.test("oeq", x, math.inf), x, result)
    result = w.choose(w.test("oeq", x, 0.0), -math.inf, result)
    return w.choose(w.test("ult", x, 0.0), math.nan, result)
