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
_AS_WRITTEN: Final = "nounwind noinline optnone cold"
"""Functions that are seldom called: LLVM writes them down without a look for anything better, which
takes it longer than all the rest of a kernel."""

_WORDS: Final = ", ".join(f"i64 {word - (word >> 63 << 64)}" for word in TWO_OVER_PI)

_REDUCE_LARGE: Final = f"""
@two_over_pi = internal unnamed_addr constant [{len(TWO_OVER_PI)} x i64] [{_WORDS}]

; For a finite x of 2^20 or more, the nearest multiple of pi/2 modulo 4, and the rest as two numbers
; in units of pi/2: they are stored in a place, and one and two rows after it. x = m 2^e; the window
; begins at the bit of 2/pi whose weight is 2^(1 - e). In words of 64 bits, and the products of 128
; bits alone in a block: LLVM writes down at once what machines have instructions for, and looks for
; ways to express all that comes before anything else in a block.
define internal void @reduce_large(double %x, ptr %place, i64 %row) {_AS_WRITTEN} {{
  %bits = bitcast double %x to i64
  %biased = lshr i64 %bits, 52
  %exponent = and i64 %biased, 2047
  %fraction = and i64 %bits, 4503599627370495
  %m = or i64 %fraction, 4503599627370496
  %first = sub i64 %exponent, {1075 - 62}
  %word = lshr i64 %first, 6
  %shift = and i64 %first, 63
  %other.shift = sub i64 63, %shift
  %at0 = getelementptr inbounds i64, ptr @two_over_pi, i64 %word
  %at1 = getelementptr inbounds i64, ptr %at0, i64 1
  %at2 = getelementptr inbounds i64, ptr %at0, i64 2
  %at3 = getelementptr inbounds i64, ptr %at0, i64 3
  %w0 = load i64, ptr %at0, align 8
  %w1 = load i64, ptr %at1, align 8
  %w2 = load i64, ptr %at2, align 8
  %w3 = load i64, ptr %at3, align 8
  %w0.left = shl i64 %w0, %shift
  %w1.left = shl i64 %w1, %shift
  %w2.left = shl i64 %w2, %shift
  %w1.half = lshr i64 %w1, 1
  %w2.half = lshr i64 %w2, 1
  %w3.half = lshr i64 %w3, 1
  %w1.right = lshr i64 %w1.half, %other.shift
  %w2.right = lshr i64 %w2.half, %other.shift
  %w3.right = lshr i64 %w3.half, %other.shift
  %t0 = or i64 %w0.left, %w1.right
  %t1 = or i64 %w1.left, %w2.right
  %t2 = or i64 %w2.left, %w3.right
  br label %products
products:
  %wide = zext i64 %m to i128
  %wide1 = zext i64 %t1 to i128
  %wide2 = zext i64 %t2 to i128
  %p1 = mul i128 %wide, %wide1
  %p2 = mul i128 %wide, %wide2
  %p1.upper = lshr i128 %p1, 64
  %p2.upper = lshr i128 %p2, 64
  %p1.low = trunc i128 %p1 to i64
  %p1.high = trunc i128 %p1.upper to i64
  %p2.high = trunc i128 %p2.upper to i64
  br label %sums
sums:
  %p0 = mul i64 %m, %t0
  %low.turns = add i64 %p1.low, %p2.high
  %carries = icmp ult i64 %low.turns, %p1.low
  %carry = zext i1 %carries to i64
  %sum = add i64 %p0, %p1.high
  %turns = add i64 %sum, %carry
  %rounded = add i64 %turns, {1 << 61}
  %quadrant = lshr i64 %rounded, 62
  %nearest = shl i64 %quadrant, 62
  %rest = sub i64 %turns, %nearest
  %below = ashr i64 %rest, 63
  %rest.flipped = xor i64 %rest, %below
  %low.flipped = xor i64 %low.turns, %below
  %low.size = sub i64 %low.flipped, %below
  %wraps = icmp ult i64 %low.size, %low.flipped
  %wrap = zext i1 %wraps to i64
  %size = add i64 %rest.flipped, %wrap
  %is.tiny = icmp eq i64 %size, 0
  %leading = select i1 %is.tiny, i64 %low.size, i64 %size
  %following = select i1 %is.tiny, i64 0, i64 %low.size
  %skipped = select i1 %is.tiny, i64 64, i64 0
  %counted = call i64 @llvm.ctlz.i64(i64 %leading, i1 false)
  %inside = and i64 %counted, 63
  %outside = sub i64 63, %inside
  %leading.left = shl i64 %leading, %inside
  %following.half = lshr i64 %following, 1
  %following.right = lshr i64 %following.half, %outside
  %normal = or i64 %leading.left, %following.right
  %normal.low = shl i64 %following, %inside
  %upper = lshr i64 %normal, 11
  %lower.left = shl i64 %normal, 53
  %lower.right = lshr i64 %normal.low, 11
  %lower = or i64 %lower.left, %lower.right
  %upper.float = sitofp i64 %upper to double
  %lower.float = uitofp i64 %lower to double
  %lower.scaled = fmul double %lower.float, {number(2.0**-64, "double").text}
  %zeros = add i64 %inside, %skipped
  %scale.biased = sub i64 {1023 + 75 - 126}, %zeros
  %scale.bits = shl i64 %scale.biased, 52
  %sign = xor i64 %bits, %below
  %sign.bit = and i64 %sign, {-(1 << 63)}
  %scale.signed = or i64 %scale.bits, %sign.bit
  %scale = bitcast i64 %scale.signed to double
  %high = fmul double %upper.float, %scale
  %low = fmul double %lower.scaled, %scale
  %negative = ashr i64 %bits, 63
  %quadrant.flipped = xor i64 %quadrant, %negative
  %quadrant.signed = sub i64 %quadrant.flipped, %negative
  store i64 %quadrant.signed, ptr %place, align 8
  %high.place = getelementptr inbounds double, ptr %place, i64 %row
  store double %high, ptr %high.place, align 8
  %low.place = getelementptr inbounds double, ptr %high.place, i64 %row
  store double %low, ptr %low.place, align 8
  ret void
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
    w = Writer(code)
    lanes = Val("%lanes", "i64")

    def body(lane: Val) -> None:
        here = code.pointer("%table", "double", lane)
        x = code.load("double", here, 1, 8)
        code.line(f"call void @reduce_large({x}, ptr {here}, {lanes})")
        places = [code.pointer(here, "double", lanes)]
        places.append(code.pointer(places[0], "double", lanes))
        high, low = (code.load("double", place, 1, 8) for place in places)
        turned, lost = w.two_product(high, math.pi / 2)
        lost = w.add(lost, w.fma(high, 6.123233995736766e-17, w.mul(low, math.pi / 2)))
        for value, place in zip(w.quick_two_sum(turned, lost), places, strict=True):
            code.store(value, place, 8)

    code.loop(number(0, "i64"), lanes, 1, body)
    around.declared.update(code.declared)
    around.declared["llvm.ctlz.i64"] = "declare i64 @llvm.ctlz.i64(i64, i1)"
    lines = code.text()
    head = f"define internal void @{_LARGE_ANGLES}(ptr %table, i64 %lanes) {_AS_WRITTEN}"
    return f"{head} {{\nentry:\n{lines}\n  ret void\n}}"
