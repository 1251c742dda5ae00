"""sin, cos, tan and their inverses for machines that have fused multiply-adds.

Such an instruction takes a multiple of pi/2 away with a single rounding, so that three parts of it
do for angles up to 2^20; larger ones go the way that needs no such instruction, in a branch that is
skipped where no lane needs it. Tiny arguments are not multiplied, as subnormal products take 150
cycles on x86-64. sin and cos are written for both formats, the others for floats. Polynomials are
fitted for the least relative error of the function, one coefficient after the other rounded to its
format.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from weft.codegen.cpu.code import Code, Val, number
from weft.codegen.cpu.math import trigonometric
from weft.codegen.cpu.math.writer import Pair, Writer
from weft.foundation.trigonometry import COSINE, SINE

_HALF_PI: Final = {
    "float": (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
    "double": (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
}
"""pi/2 as a sum of three numbers."""
_LARGE: Final = 2.0**20
_TINY: Final = {"float": 2.0**-12, "double": 2.0**-27}
"""Up to here sin, tan, asin and atan are their argument, and cos is 1."""
_SIN: Final = {
    "float": (-0.16666652262210846, 0.008332000114023685, -0.0001949283469002694),
    "double": SINE,
}
"""(sin r / r - 1) / r^2 in r^2, a little beyond pi/4."""
_COS: Final = {
    "float": (0.04166664183139801, -0.0013887115055695176, 2.4409313482465222e-05),
    "double": COSINE,
}
"""(cos r - 1 + r^2 / 2) / r^4 in r^2, a little beyond pi/4."""
_TAN: Final = (0.3333336412906647, 0.13332170248031616, 0.05411549285054207, 0.020997274667024612,
               0.011567816138267517, -0.0008289241814054549, 0.004824149888008833)  # fmt: skip
"""(tan r / r - 1) / r^2 in r^2, a little beyond pi/4."""
_ATAN: Final = (-0.33333298563957214, 0.1999852955341339, -0.1426401436328888, 0.10950860381126404,
                -0.08399202674627304, 0.05787872523069382, -0.031093332916498184,
                0.010866133496165276, -0.0017821069341152906)  # fmt: skip
"""(atan t / t - 1) / t^2 in t^2, up to 1."""
_ASIN: Final = (0.16666752099990845, 0.074953094124794, 0.04546915367245674, 0.024184690788388252,
                0.04215862601995468)  # fmt: skip
"""(asin t / t - 1) / t^2 in t^2, up to 1/2."""
_FAR: Final = 2.0**30
"""From here on atan of a float is pi/2."""


def sin(w: Writer, x: Val) -> Val:
    size = w.abs(x)
    quarters, n, first = _less_quarters(w, size)
    sign = w.integer("xor", w.bits(x), _upward(w, quarters))
    found = _after_quarters(w, quarters, _rest(w, n, first), sign)
    found = w.choose(w.test("ole", size, _TINY[x.scalar]), x, found)
    return _unless_large(w, size, found, trigonometric.sin, x)


def cos(w: Writer, x: Val) -> Val:
    size = w.abs(x)
    quarters, n, first = _less_quarters(w, size)
    quarters, r = w.integer("add", quarters, 1), _rest(w, n, first)
    return _unless_large(
        w, size, _after_quarters(w, quarters, r, _upward(w, quarters)), trigonometric.cos, x
    )


def tan(w: Writer, x: Val) -> Val:
    """The tangent of the rest of |x|, or -1 over it, put right by what its rounding took away."""
    size = w.abs(x)
    quarters, n, first = _less_quarters(w, size)
    r, low = _rest_pair(w, n, first)
    square = w.mul(r, r)
    cubic = w.fma(w.mul(square, r), w.poly(_TAN, square), low)
    slope, lost = w.quick_two_sum(r, cubic)
    over = w.div(-1.0, slope)
    off = w.exact_fma(over, lost, w.exact_fma(over, slope, 1.0))
    found = w.choose(_bit(w, quarters, 1), w.fma(over, off, over), slope)
    found = w.choose(w.test("ole", size, _TINY[x.scalar]), x, _turn(w, found, w.bits(x)))
    return _unless_large(w, size, found, trigonometric.tan, x)


def _less_quarters(w: Writer, size: Val) -> tuple[Val, Val, Val]:
    """Of an angle, at least `_TINY` and at most `_LARGE`, the number of quarter turns, once as bits
    below others and once as a float, and the angle without the upper part of them, exactly."""
    held = w.code.intrinsic("llvm.maxnum", size, w.like(_TINY[size.scalar], size))
    magic = 1.5 * 2.0 ** w.form(size).mantissa
    shifted = w.exact_fma(held, 2 / math.pi, magic)
    n = w.exact_sub(shifted, magic)
    return w.bits(shifted), n, w.exact_fma(n, -_HALF_PI[size.scalar][0], held)


def _rest(w: Writer, n: Val, first: Val) -> Val:
    _, second, third = _HALF_PI[n.scalar]
    return w.exact_fma(n, -third, w.exact_fma(n, -second, first))


def _rest_pair(w: Writer, n: Val, first: Val) -> Pair:
    """The same with what rounding takes away."""
    _, second, third = _HALF_PI[n.scalar]
    part = w.exact_mul(n, -second)
    r, low = w.two_sum(first, part)
    left = w.exact_add(low, w.exact_fma(n, -second, w.neg(part)))
    return r, w.exact_fma(n, -third, left)


def _after_quarters(w: Writer, quarters: Val, r: Val, sign: Val) -> Val:
    """The sine of r, or its cosine after an odd number of quarter turns, with a sign."""
    square = w.mul(r, r)
    sine = w.fma(w.mul(r, square), w.poly(_SIN[r.scalar], square), r)
    cosine = w.fma(square, w.fma(square, w.poly(_COS[r.scalar], square), -0.5), 1.0)
    return _turn(w, w.choose(_bit(w, quarters, 1), cosine, sine), sign)


def _bit(w: Writer, n: Val, bit: int) -> Val:
    return w.code.compare("icmp ne", w.integer("and", n, bit), number(0, n.scalar, n.lanes))


def _upward(w: Writer, n: Val) -> Val:
    """The second bit of a number as the highest one: after a half turn signs are changed."""
    return w.integer("shl", n, _last_bit(n) - 1)


def _last_bit(bits: Val) -> int:
    return int(bits.scalar[1:]) - 1


def _turn(w: Writer, value: Val, sign: Val) -> Val:
    """A value, negated where the highest of some bits is set."""
    flip = w.integer("and", sign, -1 << _last_bit(sign))
    return w.from_bits(w.integer("xor", w.bits(value), flip))


def atan(w: Writer, x: Val) -> Val:
    """Beyond 1, pi/2 less the angle whose tangent is 1 / |x|."""
    size = w.abs(x)
    held = w.choose(w.test("olt", size, _TINY["float"]), _TINY["float"], size)
    held = w.choose(w.test("ogt", held, _FAR), _FAR, held)
    steep = w.test("ogt", size, 1.0)
    t = w.choose(steep, w.div(-1.0, held), held)
    high, low = (w.choose(steep, part, w.like(0.0, x)) for part in _HALF_PI["float"][:2])
    found = w.add(high, w.add(t, w.add(_atan_cubic(w, t), low)))
    return w.choose(w.test("ole", size, _TINY["float"]), x, w.copysign(found, x))


def atan2(w: Writer, y: Val, x: Val) -> Val:
    """The angle between the point and the nearer axis, added to that of the axis or taken away from
    it. Zeros on both sides are a ratio of nothing to something, infinities are equally long."""
    infinite = w.both(w.test("oeq", w.abs(x), math.inf), w.test("oeq", w.abs(y), math.inf))
    width, height = (w.choose(infinite, 1.0, w.abs(side)) for side in (x, y))
    steep, left = w.test("ogt", height, width), w.test("olt", w.copysign(1.0, x), 0.0)
    a, b = w.choose(steep, height, width), w.choose(steep, width, height)
    t = w.div(b, w.choose(w.test("oeq", a, 0.0), 1.0, a))
    # Of a tiny ratio the square would be subnormal.
    held = w.code.intrinsic("llvm.maxnum", t, w.like(_TINY["float"], t))
    cubic = w.choose(w.test("oeq", held, t), _atan_cubic(w, held), 0.0)
    turned = w.code.binary("xor", steep, left)
    t, cubic = (w.choose(turned, w.neg(part), part) for part in (t, cubic))
    high, low = (
        w.choose(steep, part, w.choose(left, 2 * part, w.like(0.0, x)))
        for part in _HALF_PI["float"][:2]
    )
    found = w.copysign(w.add(high, w.add(t, w.add(cubic, low))), y)
    return w.choose(w.either(w.is_nan(x), w.is_nan(y)), math.nan, found)


def _atan_cubic(w: Writer, t: Val) -> Val:
    square = w.mul(t, t)
    return w.mul(w.mul(t, square), w.poly(_ATAN, square))


def asin(w: Writer, x: Val) -> Val:
    """Beyond 1/2, pi/2 - 2 asin(sqrt((1 - |x|) / 2))."""
    size = w.abs(x)
    far, t, cubic = _asin_parts(w, size, _TINY["float"])
    high, low, _ = _HALF_PI["float"]
    twice = w.mul(t, -2.0)
    rest, lost = w.quick_two_sum(w.like(high, x), twice)
    beyond = w.add(rest, w.add(lost, w.fma(cubic, -2.0, low)))
    found = w.copysign(w.choose(far, beyond, w.add(t, cubic)), x)
    return w.choose(w.test("ole", size, _TINY["float"]), x, found)


def acos(w: Writer, x: Val) -> Val:
    """pi/2 less the arcsine up to 1/2, and twice that of sqrt((1 - |x|) / 2) beyond, or pi less
    it."""
    far, t, cubic = _asin_parts(w, w.abs(x), 2.0**-30)
    left = w.test("olt", x, 0.0)
    times = w.copysign(w.choose(far, 2.0, w.like(1.0, x)), w.choose(far, x, w.neg(x)))
    high, low = (
        w.choose(far, w.choose(left, 2 * part, w.like(0.0, x)), part)
        for part in _HALF_PI["float"][:2]
    )
    return w.add(w.fma(t, times, high), w.fma(cubic, times, low))


def _asin_parts(w: Writer, size: Val, least: float) -> tuple[Val, Val, Val]:
    """Whether a number is beyond 1/2, and t and asin(t) - t: of the number, or the least one that
    makes a difference, or of that root."""
    far = w.test("ogt", size, 0.5)
    held = w.choose(w.test("olt", size, least), least, size)
    square = w.choose(far, w.mul(w.sub(1.0, size), 0.5), w.mul(held, held))
    t = w.choose(far, w.sqrt(square), held)
    return far, t, w.mul(w.mul(t, square), w.poly(_ASIN, square))


def _unless_large(w: Writer, size: Val, usual: Val, function: Callable[..., Val], x: Val) -> Val:
    """What is known of angles that are not large, with the function of doubles for those that are,
    infinities and NaN."""
    large = w.test("ugt", size, _LARGE)

    def anywhere() -> list[Val]:
        found = w.code.function(f"large_{function.__name__}", _any_size(function), x, rare=True)
        return [w.choose(large, found, usual)]

    return w.code.rarely(large, [usual], anywhere)[0]


def _any_size(function: Callable[..., Val]) -> Callable[..., Val]:
    def body(code: Code, x: Val) -> Val:
        if x.scalar == "double":
            return function(Writer(code), x)
        found = function(Writer(code), code.convert("fpext", x, "double"), short=True)
        return code.convert("fptrunc", found, "float")

    return body
