"""pow, hypot and fmod. Floats are handed in as doubles to pow and fmod."""

from __future__ import annotations

import math
from typing import Final

from weft.codegen.cpu.code import Code, Val, number
from weft.codegen.cpu.math.exponential import exp
from weft.codegen.cpu.math.logarithm import exponent_and_rest, log_anywhere
from weft.codegen.cpu.math.writer import Pair, Writer

# (atanh(s) / s - 1 - s^2 / 3) / s^4 in s^2.
_SERIES: Final = (
    0.2, 0.14285714285714685, 0.11111111110826383, 0.09090909168049924, 0.0769229744350359,
    0.0666740439940617, 0.05853063232281699, 0.058621635304233734,
)  # fmt: skip
_THIRD: Final = (0.3333333333333333, 1.850371707708594e-17)
_LN2: Final = (0.6931471805599453, 2.3190468138462996e-17)
# log2((1 + s) / (1 - s)) / s in s^2, to 3e-14 of itself; 2^r in r, to 1e-10.
_LOG2: Final = (
    2.885390081777851, 0.9617966941122649, 0.5770779426603044, 0.41220922406110433,
    0.31990680380701336, 0.28288502340748234,
)  # fmt: skip
_EXP2: Final = (
    1.0, 0.6931471805599453, 0.24022650922288757, 0.055504108839096185,
    0.009618056678524637, 0.001333350238616277, 0.0001546144469856913, 1.5297323760701075e-05,
)  # fmt: skip
_NORMAL: Final = 1000.0
"""For |t| up to here 2^t is a normal double."""
_ENDLESS: Final = 0x7FF0 << 48
"""The bits of infinity."""
_MOST: Final = 1500.0
"""Beyond e^1500 and e^-1500 everything is infinite or zero."""


def power(w: Writer, x: Val, y: Val, short: bool = False) -> Val:
    """e^(y ln |x|) with the logarithm, and the product, as sums of two numbers; then the sign, and
    the cases that IEEE 754 lists. For floats single doubles will do."""
    if short:
        return _power_of_floats(w, x, y)
    size = w.abs(x)
    high, low = _scale_pair(w, _log_pair(w, size), y)
    held = w.code.intrinsic("llvm.maxnum", high, w.like(-_MOST, x))
    grown = exp(w, w.code.intrinsic("llvm.minnum", held, w.like(_MOST, x)))
    grown = w.choose(w.test("olt", w.abs(high), _MOST), w.fma(grown, low, grown), grown)
    grown = w.choose(w.test("olt", grown, math.inf), grown, w.like(math.inf, x))
    return _listed_cases(w, x, y, size, grown)


def _power_of_floats(w: Writer, x: Val, y: Val) -> Val:
    """2^(y log2 x) with the digits that a float needs, for positive numbers, none of which is a
    subnormal double; all others are computed in a branch that is skipped where no lane needs it."""
    bits = w.bits(x)
    n = w.integer("ashr", w.integer("sub", bits, w.bits(w.like(math.sqrt(0.5), x))), 52)
    m = w.from_bits(w.integer("sub", bits, w.integer("shl", n, 52)))
    s = w.div(w.sub(m, 1.0), w.add(m, 1.0))
    t = w.mul(y, w.fma(s, w.poly(_LOG2, w.mul(s, s)), w.as_float(n)))
    magic = 1.5 * 2.0 ** w.form(x).mantissa
    shifted = w.exact_add(t, magic)
    r = w.exact_sub(t, w.exact_sub(shifted, magic))
    usual = w.scale_normal(w.poly(_EXP2, r), w.bits(shifted))
    # Of the bits without those of 0, numbers that are positive and finite are the least.
    before = w.integer("sub", bits, 1)
    endless = w.code.compare("icmp uge", before, number(_ENDLESS - 1, "i64", x.lanes))
    other = w.either(endless, w.test("ugt", w.abs(t), _NORMAL))

    def listed() -> list[Val]:
        found = w.code.function("listed_power", _listed_power, x, y, rare=True)
        return [w.choose(other, found, usual)]

    return w.code.rarely(other, [usual], listed)[0]


def _listed_power(code: Code, x: Val, y: Val) -> Val:
    w = Writer(code)
    size = w.abs(x)
    return _listed_cases(w, x, y, size, exp(w, w.mul(y, log_anywhere(w, size))))


def _log_pair(w: Writer, size: Val) -> Pair:
    """ln |x| to about 65 bits: n ln 2 + 2 (s + s^3 / 3 + s^5 Q(s^2)), s = f / (2 + f)."""
    n, f = exponent_and_rest(w, size)
    bottom, bottom_low = w.two_sum(f, 2.0)
    s = w.div(f, bottom)
    back, back_low = w.two_product(s, bottom)
    # What s leaves of the division: f - s (2 + f), with both products and sums exact to two
    # numbers.
    rest = w.sub(w.sub(w.sub(f, back), back_low), w.mul(s, bottom_low))
    s_low = w.div(rest, bottom)
    z, z_low = w.two_product(s, s)
    z_low = w.fma(w.add(s, s), s_low, z_low)
    third, third_low = w.two_product(z, _THIRD[0])
    third_low = w.add(third_low, w.fma(z, _THIRD[1], w.mul(z_low, _THIRD[0])))
    third_low = w.fma(w.mul(z, z), w.poly(_SERIES, z), third_low)
    third, third_low = w.quick_two_sum(third, third_low)
    more, more_low = w.two_product(s, third)
    more_low = w.add(more_low, w.fma(s, third_low, w.mul(s_low, third)))
    total, total_low = w.quick_two_sum(s, more)
    total_low = w.add(total_low, w.add(s_low, more_low))
    shift, shift_low = w.two_product(n, _LN2[0])
    shift_low = w.fma(n, _LN2[1], shift_low)
    high, low = w.two_sum(shift, w.add(total, total))
    low = w.add(low, w.fma(total_low, 2.0, shift_low))
    return w.quick_two_sum(high, low)


def _scale_pair(w: Writer, pair: Pair, y: Val) -> Pair:
    """A pair times a number. Where y is so large that its halves overflow, so does the result."""
    held = w.code.intrinsic("llvm.minnum", w.abs(y), w.like(2.0**100, y))
    held = w.copysign(held, y)
    high, low = w.two_product(pair[0], held)
    return w.quick_two_sum(high, w.fma(pair[1], held, low))


def _listed_cases(w: Writer, x: Val, y: Val, size: Val, grown: Val) -> Val:
    whole, odd = _parity(w, y)
    positive = w.test("ogt", y, 0.0)
    endless = w.either(w.test("oeq", size, math.inf), w.test("oeq", size, 0.0))
    upward = w.code.binary("xor", w.test("oeq", size, 0.0), positive)
    grown = w.choose(endless, w.choose(upward, math.inf, w.like(0.0, x)), grown)
    bigger, one = w.test("ogt", size, 1.0), w.test("oeq", size, 1.0)
    endless_y = w.test("oeq", w.abs(y), math.inf)
    rising = w.code.binary("xor", w.code.binary("xor", bigger, positive), w.test("oeq", x, x))
    limit = w.choose(one, 1.0, w.choose(rising, math.inf, w.like(0.0, x)))
    grown = w.choose(endless_y, limit, grown)
    negative = w.test("olt", w.copysign(1.0, x), 0.0)
    grown = w.choose(w.both(negative, odd), w.neg(grown), grown)
    below = w.test("olt", x, 0.0)
    finite = w.test("olt", size, math.inf)
    outside = w.both(w.both(below, finite), w.code.binary("xor", whole, w.test("oeq", y, y)))
    grown = w.choose(outside, math.nan, grown)
    grown = w.choose(w.either(w.is_nan(x), w.is_nan(y)), math.nan, grown)
    always = w.either(w.test("oeq", x, 1.0), w.test("oeq", y, 0.0))
    return w.choose(always, 1.0, grown)


def _parity(w: Writer, y: Val) -> tuple[Val, Val]:
    """Whether y is a whole number (infinities are), and whether it is an odd one."""
    size = w.abs(y)
    # From 2^53 on every double is whole, and even.
    small = w.test("olt", size, 2.0**53)
    held = w.choose(small, size, 0.0)
    number = w.whole(held)
    whole = w.test("oeq", w.as_float(number), held)
    odd = w.code.convert("trunc", number, "i1")
    return whole, w.both(w.both(small, whole), odd)


def hypot(w: Writer, x: Val, y: Val) -> Val:
    """The root of the sum of squares; where one might overflow or vanish, in a branch, both are
    scaled by a power of two."""
    a, b = w.abs(x), w.abs(y)
    larger, smaller = (w.code.intrinsic(f"llvm.{side}num", a, b) for side in ("max", "min"))
    most = 2.0 ** (w.form(x).bias // 2 - 4)
    # Whose square is nothing to that of the larger one, and is no subnormal number.
    held = w.code.intrinsic("llvm.maxnum", smaller, w.like(1 / most, x))
    usual = w.sqrt(w.fma(larger, larger, w.mul(held, held)))
    least = 2.0 ** (w.form(x).mantissa // 2 + 4) / most
    other = w.either(w.test("uge", a, most), w.test("uge", b, most))
    other = w.either(other, w.test("olt", larger, least))

    def scaled() -> list[Val]:
        found = w.code.function("scaled_hypot", _scaled_hypot, x, y, rare=True)
        return [w.choose(other, found, usual)]

    return w.code.rarely(other, [usual], scaled)[0]


def _scaled_hypot(code: Code, x: Val, y: Val) -> Val:
    """An infinite operand outweighs NaN."""
    w = Writer(code)
    a, b = w.abs(x), w.abs(y)
    larger, smaller = (w.code.intrinsic(f"llvm.{side}num", a, b) for side in ("max", "min"))
    quarter = w.form(x).bias // 4
    far = 2 * quarter + w.form(x).mantissa
    huge, tiny = w.test("ogt", larger, 2.0**quarter), w.test("olt", larger, 2.0**-quarter)
    factor = w.choose(huge, 2.0**-far, w.choose(tiny, 2.0**far, w.like(1.0, x)))
    back = w.choose(huge, 2.0**far, w.choose(tiny, 2.0**-far, w.like(1.0, x)))
    larger, smaller = w.mul(larger, factor), w.mul(smaller, factor)
    root = w.sqrt(w.fma(larger, larger, w.mul(smaller, smaller)))
    result = w.mul(root, back)
    result = w.choose(w.either(w.is_nan(x), w.is_nan(y)), math.nan, result)
    infinite = w.either(w.test("oeq", a, math.inf), w.test("oeq", b, math.inf))
    return w.choose(infinite, math.inf, result)


# Eleven bits: a remainder is below the significand of y, under 2^53, and shifted by 11 it still
# fits 64 bits. What is left lies below y, so it has y's exponent or less, and is exact.
_FMOD: Final = """
; |x| mod |y| for finite x and y != 0, exactly: the significand of x times 2^k modulo that of y,
; eleven bits of k at a time.
define internal double @remainder(double %x, double %y) nounwind {
entry:
  %xb = bitcast double %x to i64
  %yb = bitcast double %y to i64
  %smaller = icmp ult i64 %xb, %yb
  br i1 %smaller, label %same, label %prepare
same:
  ret double %x
prepare:
  %xe.raw = lshr i64 %xb, 52
  %ye.raw = lshr i64 %yb, 52
  %xf = and i64 %xb, 4503599627370495
  %yf = and i64 %yb, 4503599627370495
  %x.normal = icmp ne i64 %xe.raw, 0
  %y.normal = icmp ne i64 %ye.raw, 0
  %x.one = select i1 %x.normal, i64 4503599627370496, i64 0
  %y.one = select i1 %y.normal, i64 4503599627370496, i64 0
  %xm = or i64 %xf, %x.one
  %ym = or i64 %yf, %y.one
  %xe = select i1 %x.normal, i64 %xe.raw, i64 1
  %ye = select i1 %y.normal, i64 %ye.raw, i64 1
  %k.all = sub i64 %xe, %ye
  %first = urem i64 %xm, %ym
  br label %head
head:
  %k = phi i64 [ %k.all, %prepare ], [ %k.left, %step ]
  %r = phi i64 [ %first, %prepare ], [ %r.next, %step ]
  %done = icmp eq i64 %k, 0
  br i1 %done, label %finish, label %step
step:
  %many = icmp ugt i64 %k, 11
  %now = select i1 %many, i64 11, i64 %k
  %k.left = sub i64 %k, %now
  %shifted = shl i64 %r, %now
  %r.next = urem i64 %shifted, %ym
  br label %head
finish:
  %none = icmp eq i64 %r, 0
  br i1 %none, label %zero, label %pack
zero:
  ret double 0.0
pack:
  %zeros = call i64 @llvm.ctlz.i64(i64 %r, i1 true)
  %wanted = sub i64 %zeros, 11
  %room = sub i64 %ye, 1
  %fits = icmp ule i64 %wanted, %room
  %shift = select i1 %fits, i64 %wanted, i64 %room
  %m = shl i64 %r, %shift
  %e.normal = sub i64 %ye, %shift
  %has.one = icmp uge i64 %m, 4503599627370496
  %e = select i1 %has.one, i64 %e.normal, i64 0
  %f = and i64 %m, 4503599627370495
  %e.bits = shl i64 %e, 52
  %bits = or i64 %e.bits, %f
  %value = bitcast i64 %bits to double
  ret double %value
}
"""


def fmod(w: Writer, x: Val, y: Val, short: bool = False) -> Val:
    """x less the multiple of y that is nearest to it, and y more where that is below zero: both are
    exact while the quotient has few digits. Lanes whose quotient has many go step by step."""
    a, b = w.abs(x), w.abs(y)
    usual = w.both(w.test("olt", a, math.inf), w.test("ogt", b, 0.0))
    a, b = w.choose(usual, a, 0.0), w.choose(usual, b, 1.0)
    quotient = w.div(a, b)
    count = w.nearest(quotient)
    if short:
        # A double holds the product of 29 digits and those of a float.
        many = w.test("oge", quotient, 2.0**28)
        rest = w.exact_sub(a, w.exact_mul(count, b))
    else:
        many = w.either(w.test("oge", quotient, 2.0**50), w.test("oge", a, 2.0**1000))
        many = w.either(many, w.test("ole", b, 2.0**-900))
        product, lost = w.two_product(count, b)
        rest = w.exact_sub(w.exact_sub(a, product), lost)
    rest = w.choose(w.test("olt", rest, 0.0), w.exact_add(rest, b), rest)
    # Of an infinite y not even the multiple 0 is a number.
    rest = w.choose(w.test("olt", a, b), a, rest)

    def step_by_step() -> list[Val]:
        return [w.code.function("remainders", _remainders, a, b, rare=True)]

    result = w.code.rarely(many, [rest], step_by_step)[0]
    result = w.choose(usual, w.copysign(result, x), math.nan)
    return w.choose(w.is_nan(x), x, w.choose(w.is_nan(y), y, result))


def _remainders(code: Code, a: Val, b: Val) -> Val:
    """Lane by lane: each has its own number of steps."""
    code.functions.setdefault("remainder", _FMOD)
    code.declared["llvm.ctlz.i64"] = "declare i64 @llvm.ctlz.i64(i64, i1)"
    parts = [
        code.assign(f"call double @remainder({code.lane(a, lane)}, {code.lane(b, lane)})", "double")
        for lane in range(a.lanes)
    ]
    return code.gather_lanes(parts) if a.lanes > 1 else parts[0]
