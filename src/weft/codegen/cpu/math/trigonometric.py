"""sin, cos and tan of doubles of any size.

x = n pi/2 + r. Up to 2^20 the multiple of pi/2 is taken away in three parts of 33 bits, whose
products with n are exact. Beyond, x times 2/pi is taken modulo 4 in fixed point, with the 192 bits
of 2/pi that matter for the exponent of x (Payne and Hanek); that code is skipped by a branch where
no lane needs it. Both ways r is a sum of two numbers, good to the last bit of a result near zero.

Floats are handed in as doubles; shorter polynomials do for them.
"""

from __future__ import annotations

import math
from typing import Final

from weft.codegen.cpu.code import Code, Val, number
from weft.codegen.cpu.math.writer import Pair, Writer
from weft.foundation.trigonometry import COSINE, SINE, TWO_OVER_PI

# (sin r / r - 1) / r^2 and (cos r - 1 + r^2 / 2) / r^4 as polynomials in r^2.
_SIN: Final = {
    False: SINE,
    True: (-0.16666666663741367, 0.00833333183062943, -0.00019840063040804117,
           2.7246868722877944e-06),
}  # fmt: skip
_COS: Final = {
    False: COSINE,
    True: (0.04166666666422613, -0.0013888887635227975, 2.4800580601354642e-05,
           -2.7298407652795173e-07),
}  # fmt: skip
_HALF_PI: Final = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21)
"""Pieces of 33 bits."""
_HALF_PI_REST: Final = 8.4784276603689e-32
_LARGE: Final = 2.0**20
_LARGE_ANGLES: Final = "large_angles"

_WORDS: Final = ", ".join(f"i64 {word - (word >> 63 << 64)}" for word in TWO_OVER_PI)

_REDUCE_LARGE: Final = f"""
@two_over_pi = internal unnamed_addr constant [{len(TWO_OVER_PI)} x i64] [{_WORDS}]

; For a finite x of 2^20 or more: the nearest multiple of pi/2 modulo 4, and the rest as two numbers
; in units of pi/2. x = m 2^e; the window begins at the bit of 2/pi whose weight is 2^(1 - e).
define internal {{ double, double, i64 }} @reduce_large(double %x) nounwind {{
  %bits = bitcast double %x to i64
  %biased = lshr i64 %bits, 52
  %exponent = and i64 %biased, 2047
  %fraction = and i64 %bits, 4503599627370495
  %m = or i64 %fraction, 4503599627370496
  %place = sub i64 %exponent, {1075 - 62}
  %word = lshr i64 %place, 6
  %shift = and i64 %place, 63
  %at0 = getelementptr inbounds i64, ptr @two_over_pi, i64 %word
  %at1 = getelementptr inbounds i64, ptr %at0, i64 1
  %at2 = getelementptr inbounds i64, ptr %at0, i64 2
  %at3 = getelementptr inbounds i64, ptr %at0, i64 3
  %w0 = load i64, ptr %at0, align 8
  %w1 = load i64, ptr %at1, align 8
  %w2 = load i64, ptr %at2, align 8
  %w3 = load i64, ptr %at3, align 8
  %t0 = call i64 @llvm.fshl.i64(i64 %w0, i64 %w1, i64 %shift)
  %t1 = call i64 @llvm.fshl.i64(i64 %w1, i64 %w2, i64 %shift)
  %t2 = call i64 @llvm.fshl.i64(i64 %w2, i64 %w3, i64 %shift)
  %top = mul i64 %m, %t0
  %wide = zext i64 %m to i128
  %wide1 = zext i64 %t1 to i128
  %wide2 = zext i64 %t2 to i128
  %p1 = mul i128 %wide, %wide1
  %p2 = mul i128 %wide, %wide2
  %p2.high = lshr i128 %p2, 64
  %top.wide = zext i64 %top to i128
  %p0 = shl i128 %top.wide, 64
  %sum = add i128 %p0, %p1
  %turns = add i128 %sum, %p2.high
  %rounded = add i128 %turns, {1 << 125}
  %quadrant.wide = lshr i128 %rounded, 126
  %quadrant = trunc i128 %quadrant.wide to i64
  %nearest = shl i128 %quadrant.wide, 126
  %rest = sub i128 %turns, %nearest
  %below = icmp slt i128 %rest, 0
  %opposite = sub i128 0, %rest
  %size = select i1 %below, i128 %opposite, i128 %rest
  %zeros = call i128 @llvm.ctlz.i128(i128 %size, i1 false)
  %inside = and i128 %zeros, 127
  %normal = shl i128 %size, %inside
  %upper.wide = lshr i128 %normal, 75
  %upper = trunc i128 %upper.wide to i64
  %lower.wide = lshr i128 %normal, 11
  %lower = trunc i128 %lower.wide to i64
  %upper.float = uitofp i64 %upper to double
  %lower.float = uitofp i64 %lower to double
  %lower.scaled = fmul double %lower.float, {number(2.0**-64, "double").text}
  %zeros.low = trunc i128 %inside to i64
  %scale.biased = sub i64 {1023 + 75 - 126}, %zeros.low
  %scale.bits = shl i64 %scale.biased, 52
  %scale = bitcast i64 %scale.bits to double
  %high = fmul double %upper.float, %scale
  %low = fmul double %lower.scaled, %scale
  %negative = icmp slt i64 %bits, 0
  %flip = xor i1 %negative, %below
  %high.other = fneg double %high
  %low.other = fneg double %low
  %high.signed = select i1 %flip, double %high.other, double %high
  %low.signed = select i1 %flip, double %low.other, double %low
  %quadrant.other = sub i64 0, %quadrant
  %quadrant.signed = select i1 %negative, i64 %quadrant.other, i64 %quadrant
  %r0 = insertvalue {{ double, double, i64 }} poison, double %high.signed, 0
  %r1 = insertvalue {{ double, double, i64 }} %r0, double %low.signed, 1
  %r2 = insertvalue {{ double, double, i64 }} %r1, i64 %quadrant.signed, 2
  ret {{ double, double, i64 }} %r2
}}
"""


def sin(w: Writer, x: Val, short: bool = False) -> Val:
    quadrant, r = _reduce_argument(w, x, short)
    result = _turn_quarters(w, quadrant, _sin(w, r, short), _cos(w, r, short))
    # r of a tiny x is x, but a zero loses its sign on the way.
    return _nan_unless_finite(w, x, w.choose(w.test("oeq", x, 0.0), x, result))


def cos(w: Writer, x: Val, short: bool = False) -> Val:
    quadrant, r = _reduce_argument(w, x, short)
    return _nan_unless_finite(
        w, x, _turn_quarters(w, w.integer("add", quadrant, 1), _sin(w, r, short), _cos(w, r, short))
    )


def tan(w: Writer, x: Val, short: bool = False) -> Val:
    quadrant, r = _reduce_argument(w, x, short)
    s, c = _sin(w, r, short), _cos(w, r, short)
    odd = _bit(w, quadrant, 1)
    result = w.div(w.choose(odd, w.neg(c), s), w.choose(odd, s, c))
    return _nan_unless_finite(w, x, w.choose(w.test("oeq", x, 0.0), x, result))


def _nan_unless_finite(w: Writer, x: Val, result: Val) -> Val:
    return w.choose(w.test("olt", w.abs(x), math.inf), result, math.nan)


def _bit(w: Writer, quadrant: Val, bit: int) -> Val:
    """Whether a bit of the number of quarter turns is set."""
    return w.code.compare(
        "icmp ne", w.integer("and", quadrant, bit), number(0, "i64", quadrant.lanes)
    )


def _turn_quarters(w: Writer, quadrant: Val, s: Val, c: Val) -> Val:
    """The sine after some quarter turns, from sine and cosine before them."""
    size = w.choose(_bit(w, quadrant, 1), c, s)
    return w.choose(_bit(w, quadrant, 2), w.neg(size), size)


def _sin(w: Writer, r: Pair, short: bool) -> Val:
    high, low = r
    square = w.mul(high, high)
    cubic = w.mul(w.mul(high, square), w.poly(_SIN[short], square))
    return w.add(high, w.add(cubic, w.fma(w.mul(square, -0.5), low, low)))


def _cos(w: Writer, r: Pair, short: bool) -> Val:
    high, low = r
    square = w.mul(high, high)
    half = w.mul(square, 0.5)
    near = w.exact_sub(1.0, half)
    lost = w.exact_sub(w.exact_sub(1.0, near), half)
    rest = w.fma(w.mul(square, square), w.poly(_COS[short], square), lost)
    return w.add(near, w.sub(rest, w.mul(high, low)))


def _reduce_argument(w: Writer, x: Val, short: bool) -> tuple[Val, Pair]:
    """The number of quarter turns modulo 4, and the rest."""
    large = w.test("uge", w.abs(x), _LARGE)
    held = w.choose(large, 0.0, x)
    n = w.nearest(w.mul(held, 2.0 / math.pi))
    high = w.exact_sub(held, w.exact_mul(n, _HALF_PI[0]))
    if short:
        # A float has 24 bits: one more product leaves more than 24 right, also near zero.
        high, low = w.fma(n, -(_HALF_PI[1] + _HALF_PI[2]), high), w.like(0.0, x)
    else:
        high, low = _exact_rest(w, n, high)
    usual = (w.whole(n), high, low)
    quadrant, high, low = w.code.rarely(large, usual, lambda: _reduced_large(w, x, large, usual))
    return quadrant, (high, low)


def _exact_rest(w: Writer, n: Val, high: Val) -> Pair:
    """What is left when the further parts of n pi/2 are taken away."""
    low = w.like(0.0, high)
    for part in _HALF_PI[1:]:
        high, lost = w.two_sum(high, w.neg(w.exact_mul(n, part)))
        low = w.exact_add(low, lost)
    low = w.exact_sub(low, w.exact_mul(n, _HALF_PI_REST))
    return w.quick_two_sum(high, low)


def _reduced_large(
    w: Writer, x: Val, large: Val, usual: tuple[Val, Val, Val]
) -> tuple[Val, Val, Val]:
    """The same with the large lanes reduced one by one, by a function that finds them in memory and
    leaves what it finds there: it is seldom called, and is written once for all numbers of
    lanes."""
    code = w.code
    if _LARGE_ANGLES not in code.functions:
        code.functions.setdefault("reduce_large", _REDUCE_LARGE)
        code.functions[_LARGE_ANGLES] = _large_angles(code)
    # The function wants finite numbers; what it says of others is not used.
    safe = w.choose(w.test("olt", w.abs(x), math.inf), w.choose(large, x, _LARGE), _LARGE)
    table, size = code.alloca("double", 3 * x.lanes), 8 * x.lanes
    code.store(safe, table, 8)
    code.line(f"call void @{_LARGE_ANGLES}(ptr {table}, i64 {x.lanes})")
    places = (code.pointer(table, "i8", number(n * size, "i64")) for n in range(3))
    kinds = zip(("i64", "double", "double"), places, usual, strict=True)
    first, second, third = (
        code.select(large, code.load(kind, place, x.lanes, 8), before)
        for kind, place, before in kinds
    )
    return first, second, third


def _large_angles(around: Code) -> str:
    """A function of a table's first `lanes` doubles, finite and of 2^20 or more. Their quarter
    turns come in their place, and the two numbers of what is left in the two rows below."""
    code = Code()
    w, kind = Writer(code), "{ double, double, i64 }"
    lanes = Val("%lanes", "i64")

    def body(lane: Val) -> None:
        here = code.pointer("%table", "double", lane)
        x = code.load("double", here, 1, 8)
        made = code.result(f"call {kind} @reduce_large({x})", "i64").text
        high, low, quadrant = (
            code.assign(f"extractvalue {kind} {made}, {place}", scalar)
            for place, scalar in enumerate(("double", "double", "i64"))
        )
        turned, lost = w.two_product(high, math.pi / 2)
        lost = w.add(lost, w.fma(high, 6.123233995736766e-17, w.mul(low, math.pi / 2)))
        turned, lost = w.quick_two_sum(turned, lost)
        code.store(quadrant, here, 8)
        for value in (turned, lost):
            here = code.pointer(here, "double", lanes)
            code.store(value, here, 8)

    code.loop(number(0, "i64"), lanes, 1, body)
    around.declared.update(code.declared)
    around.declared["llvm.fshl.i64"] = "declare i64 @llvm.fshl.i64(i64, i64, i64)"
    around.declared["llvm.ctlz.i128"] = "declare i128 @llvm.ctlz.i128(i128, i1)"
    lines = code.text()
    head = f"define internal void @{_LARGE_ANGLES}(ptr %table, i64 %lanes) nounwind noinline cold"
    return f"{head} {{\nentry:\n{lines}\n  ret void\n}}"
