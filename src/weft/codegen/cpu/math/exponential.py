"""exp, and functions computed from it: exp2, expm1, tanh, sinh, cosh.

e^x = 2^n e^r with x = n ln 2 + r, ln 2 in two parts. Adding 1.5 * 2^mantissa to x log2 e leaves n
in the low bits of the sum, from where it goes straight into an exponent. What would leave the
normal numbers is computed again in a branch that is skipped where no lane needs it. Polynomials
interpolate at Chebyshev nodes, computed with 60 digits.
"""

from __future__ import annotations

import math
from typing import Final

from weft.codegen.cpu.code import Val, number
from weft.codegen.cpu.math.writer import Pair, Writer

# 15 and 32 significant bits: n, of at most 8 and 11, times it is exact, so that x - n LN2_HIGH has
# no rounding but that of the difference.
LN2_HIGH: Final = {"float": 0.693145751953125, "double": 0.6931471803691238}
LN2_LOW: Final = {"float": 1.4286068203094173e-06, "double": 1.9082149292705877e-10}


_EXP: Final = {
    "float": (1.0, 1.0000000377388714, 0.5000000047146057, 0.16666415414041177,
              0.04166635277111221, 0.008375134774624326, 0.0013941118895837),
    "double": (1.0, 1.0, 0.5, 0.16666666666666702, 0.04166666666666669, 0.008333333333309509,
               0.0013888888888871874, 0.00019841269909257902, 2.480158735013993e-05,
               2.755722492065214e-06, 2.7557251877225084e-07, 2.511488209588034e-08,
               2.092158893897149e-09),
}  # fmt: skip
"""e^r in r."""
_EXPM1: Final = {
    "float": (0.5, 0.16666576989698775, 0.041666554617204574, 0.008363179052722578,
              0.0013926183587713494),
    "double": (0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333325544,
               0.0013888888888883327, 0.00019841269876864356, 2.4801587327007187e-05,
               2.755725283351691e-06, 2.75572718102198e-07, 2.5106274733573296e-08,
               2.0915442297780116e-09),
}  # fmt: skip
"""(e^r - 1 - r) / r^2 in r."""
_NORMAL: Final = {"float": 87.3, "double": 708.3}
"""For |x| up to here e^x is a normal number."""
_VANISHES: Final = {"float": -104.0, "double": -746.0}
"""Below this e^x rounds to 0."""
_ENDLESS: Final = {"float": 89.5, "double": 711.0}
"""Above this half of e^x is infinite."""
# e^-104 is about 2^-150, half of the least f32: 2^-70 when it is lifted. 2^47 numbers of e^0 = 1
# are still finite then (for doubles 2^-916, and 2^863 of them).
LIFT: Final = {"float": 80, "double": 160}
"""Numbers that make up a sum of exponentials are this many powers of two too large: the least of
them, their sums, and what a quotient of them lacks are normal numbers then."""
LEAST: Final = {"float": 2.0**-125, "double": 2.0**-1021}
"""From here on numbers are normal, also those that are off by some units in the last place."""
# 2^-110 over 10^4 is 2^-123.3.
FLOOR: Final = {"float": 2.0**-110, "double": 2.0**-1000}
"""The least weight of an attention: over a sum of some ten thousand still a normal number."""
_TANH: Final = {
    "float": (-0.33333301915198077, 0.13326107252863112, -0.051485448711987375),
    "double": (-0.3333333333333333, 0.13333333333331834, -0.05396825396423038,
               0.021869488124574628, -0.008863214820781482, 0.0035915606689679597,
               -0.0014471783415732035, 0.0005203803449704573),
}  # fmt: skip
"""(tanh x - x) / x^3 in x^2, for |x| up to `_TANH_NEAR`."""
_SINH: Final = (0.1666666716337204, 0.008333311416208744, 0.00019842575420625508,
                2.784693151625106e-06)  # fmt: skip
"""(sinh x / x - 1) / x^2 in x^2 up to 1, for floats."""
_INFINITE: Final = {"float": 88.73, "double": 709.79}
"""A number whose e^x is more than any finite one."""
_TANH_NEAR: Final = 0.28
_TANH_ONE: Final = {"float": 9.1, "double": 20.0}
"""From here on tanh is 1."""


def exp(w: Writer, x: Val) -> Val:
    usual = inner_exp(w, x)
    beyond = w.test("ugt", w.abs(x), _NORMAL[x.scalar])
    return w.code.rarely(beyond, [usual], lambda: [_exp_anywhere(w, x)])[0]


def inner_exp(w: Writer, x: Val) -> Val:
    """e^x where |x| is known to be at most `_NORMAL`."""
    n, r = _power_and_rest(w, x)
    return w.scale_normal(w.poly(_EXP[x.scalar], r), n)


def exp_lifted(w: Writer, x: Val) -> Val:
    """e^x for x <= 0, times 2^LIFT: no branch, as nothing is infinite, and nothing is subnormal."""
    lowest = w.like(_VANISHES[x.scalar], x)
    n, r = _power_and_rest(w, w.code.intrinsic("llvm.maximum", x, lowest))
    lifted = w.mul(w.poly(_EXP[x.scalar], r), w.scale_normal(w.like(2.0 ** LIFT[x.scalar], x), n))
    # What is held at the bound would be 2^-70, and not the 0 that it is to be.
    return w.choose(w.code.compare("fcmp ole", x, lowest), 0.0, lifted)


def exp_lifted_by_scaling(w: Writer, x: Val) -> Val:
    """The same numbers, in registers of AVX-512: one instruction scales by a power of two, and
    leaves out what vanishes."""
    return _scaled_by_instruction(w, x, x, LIFT[x.scalar])


def exp_floored(w: Writer, x: Val) -> Val:
    """e^x for x <= 0, where `FLOOR` stands for what is less: no branch, and nothing is subnormal.
    What vanishes is 0."""
    floor = w.like(math.log(FLOOR[x.scalar]), x)
    n, r = _power_and_rest(w, w.code.intrinsic("llvm.maximum", x, floor))
    found = w.mul(w.poly(_EXP[x.scalar], r), w.scale_normal(w.like(1.0, x), n))
    return w.choose(w.test("ole", x, _VANISHES[x.scalar]), 0.0, found)


def exp_floored_by_scaling(w: Writer, x: Val) -> Val:
    """The same numbers, in registers of AVX-512."""
    floor = w.like(math.log(FLOOR[x.scalar]), x)
    return _scaled_by_instruction(w, x, w.choose(w.test("ogt", floor, x), floor, x), 0)


def lowered(w: Writer, x: Val) -> Val:
    """x / 2^LIFT for an x of 0 up to 2^LIFT, see `_lowered_anywhere`; what is not needed for normal
    numbers is skipped where no lane needs it."""
    usual = _lowered_normal(w, x)
    beyond = w.test("ult", x, _least_lifted(w, x))
    return w.code.rarely(
        beyond, [usual], lambda: [w.choose(w.is_nan(x), x, _lowered_anywhere(w, x))]
    )[0]


def _least_lifted(w: Writer, x: Val) -> float:
    return 2.0 ** (LIFT[x.scalar] + 1 - w.form(x).bias)


def _lowered_normal(w: Writer, x: Val) -> Val:
    return w.from_bits(w.integer("sub", w.bits(x), LIFT[x.scalar] << w.form(x).mantissa))


def _lowered_anywhere(w: Writer, x: Val) -> Val:
    """x / 2^LIFT for any x of 0 or more: what becomes subnormal is rounded by an addition whose
    last place is that of subnormal numbers. x86-64 takes 150 cycles for a product that underflows,
    or for a factor that is subnormal."""
    least, bits = _least_lifted(w, x), LIFT[x.scalar] + 1 << w.form(x).mantissa
    # `least` is 2^(LIFT + 1 - bias): a place of its last bit is that of a subnormal number, lifted,
    # to which the addition rounds x. The sum's exponent is LIFT + 1 too large, and without that its
    # bits are those of the subnormal number: for f32, 2^-46 has places of 2^-69, and 2^-149 is
    # 2^-69 / 2^80.
    small = w.from_bits(w.integer("sub", w.bits(w.exact_add(x, least)), bits))
    return w.choose(w.test("olt", x, least), small, _lowered_normal(w, x))


def _scaled_anywhere(w: Writer, value: Val, shifted: Val, more: int = 0) -> Val:
    """A value near 1 times 2^(n + more), by no product that underflows; n is in the low bits of
    `shifted`, which is n and 1.5 * 2^mantissa."""
    model = w.bits(value)
    small = w.test("olt", shifted, 1.5 * 2.0 ** w.form(value).mantissa + 8 - w.form(value).bias)
    # Where 2^n may be subnormal the number is made lifted and lowered then; elsewhere it is made an
    # eighth as large, and the product by 8 goes to infinity where it must.
    up, down = (number(k, model.scalar, value.lanes) for k in (LIFT[value.scalar], -3))
    moved = w.integer("add", w.bits(shifted), w.code.select(small, up, down))
    scaled = w.scale_normal(value, w.integer("add", moved, more) if more else moved)
    return w.choose(small, _lowered_anywhere(w, scaled), w.mul(scaled, 8.0))


def _scaled_by_instruction(w: Writer, x: Val, held: Val, lift: int) -> Val:
    """2^(lift + n) e^r for the n and r of `held`; 0 where e^x vanishes."""
    magic = 1.5 * 2.0 ** w.form(x).mantissa
    n = w.exact_sub(w.fma(held, math.log2(math.e), magic), magic)
    r = w.fma(n, -LN2_LOW[x.scalar], w.fma(n, -LN2_HIGH[x.scalar], held))
    stays = w.code.compare("fcmp ugt", x, w.like(_VANISHES[x.scalar], x))
    power = w.poly([c * 2.0**lift for c in _EXP[x.scalar]], r)
    return w.code.instruction("scalef", [power, n], stays)


def _power_and_rest(w: Writer, x: Val) -> Pair:
    """x = n ln 2 + r for a moderate x; of n the bits, with others above them."""
    magic = 1.5 * 2.0 ** w.form(x).mantissa
    shifted = w.fma(x, math.log2(math.e), magic)
    n = w.exact_sub(shifted, magic)
    r = w.fma(n, -LN2_LOW[x.scalar], w.fma(n, -LN2_HIGH[x.scalar], x))
    return w.bits(shifted), r


def _exp_anywhere(w: Writer, x: Val, more: int = 0) -> Val:
    """e^x 2^more for any x."""
    low, high = (w.like(bound, x) for bound in (_VANISHES[x.scalar], _ENDLESS[x.scalar]))
    held = w.code.intrinsic("llvm.minnum", w.code.intrinsic("llvm.maxnum", x, low), high)
    shifted, r = _power_and_rest(w, held)
    found = _scaled_anywhere(w, w.poly(_EXP[x.scalar], r), w.from_bits(shifted), more)
    return w.choose(w.is_nan(x), x, found)


def exp2(w: Writer, x: Val) -> Val:
    """x = n + r exactly, then 2^n times e^(r ln 2)."""
    form = w.form(x)

    def parts(x: Val) -> Pair:
        magic = 1.5 * 2.0**form.mantissa
        shifted = w.exact_add(x, magic)
        r = w.mul(w.exact_sub(x, w.exact_sub(shifted, magic)), math.log(2))
        return shifted, w.poly(_EXP[x.scalar], r)

    def anywhere() -> list[Val]:
        low, high = (w.like(n, x) for n in (-form.bias - form.mantissa - 4.0, form.bias + 2.0))
        held = w.code.intrinsic("llvm.minnum", w.code.intrinsic("llvm.maxnum", x, low), high)
        shifted, power = parts(held)
        return [w.choose(w.is_nan(x), x, _scaled_anywhere(w, power, shifted))]

    shifted, power = parts(x)
    usual = w.scale_normal(power, w.bits(shifted))
    beyond = w.test("ugt", w.abs(x), form.bias - 2.0)
    return w.code.rarely(beyond, [usual], anywhere)[0]


def half_exp(w: Writer, x: Val) -> Val:
    """e^x / 2 for an x of 0 or more, also where e^x itself is beyond the format."""
    n, r = _power_and_rest(w, x)
    usual = w.scale_normal(w.poly(_EXP[x.scalar], r), w.integer("sub", n, 1))
    beyond = w.test("ugt", x, _NORMAL[x.scalar])
    return w.code.rarely(
        beyond, [usual], lambda: [w.choose(beyond, _exp_anywhere(w, x, -1), usual)]
    )[0]


def expm1(w: Writer, x: Val) -> Val:
    """2^n (e^r - 1) + (2^n - 1), computed with half of everything so that a power of 2 beyond the
    format is not needed. Below -40 the result is -1; the upper bound's is infinite."""
    held = w.code.intrinsic("llvm.maxnum", x, w.like(-40.0, x))
    held = w.code.intrinsic("llvm.minnum", held, w.like(_INFINITE[x.scalar], x))
    n = w.nearest(w.mul(held, math.log2(math.e)))
    r, lost = _reduced_pair(w, held, n)
    small = w.add(r, w.fma(w.mul(r, r), w.poly(_EXPM1[x.scalar], r), lost))
    half = w.power_of_two(w.whole(w.sub(n, 1.0)), x.scalar)
    large = w.fma(half, small, w.sub(half, 0.5))
    result = w.choose(w.test("oeq", n, 0.0), small, w.add(large, large))
    return w.choose(w.is_nan(x), x, w.copysign(result, x))


def tanh(w: Writer, x: Val) -> Val:
    """|x| plus |x|^3 times a polynomial near zero; elsewhere d / (d + 2) with d = e^(2|x|) - 1,
    which is 2^n (e^r - 1) + (2^n - 1)."""
    size = w.abs(x)
    held = w.not_tiny(size)
    square = w.mul(held, held)
    near = w.fma(size, w.mul(square, w.poly(_TANH[x.scalar], square)), size)
    held = w.code.intrinsic("llvm.minnum", held, w.like(_TANH_ONE[x.scalar], x))
    n, r = _power_and_rest(w, w.add(held, held))
    small = w.fma(w.mul(r, r), w.poly(_EXPM1[x.scalar], r), r)
    power = w.scale_normal(w.like(1.0, x), n)
    d = w.fma(power, small, w.sub(power, 1.0))
    far = w.div(d, w.add(d, 2.0))
    return w.copysign(w.choose(w.test("oge", size, _TANH_NEAR), far, near), x)


def sinh(w: Writer, x: Val) -> Val:
    """In double precision (d + d / (d + 1)) / 2 with d = e^|x| - 1, or e^|x| / 2 where the second
    part is nothing; in single precision e^|x| / 2 - e^-|x| / 2, but a polynomial near zero."""
    size = w.abs(x)
    half = half_exp(w, size)
    if x.scalar == "double":
        d = expm1(w, size)
        near = w.mul(w.add(d, w.div(d, w.add(d, 1.0))), 0.5)
        return w.copysign(w.choose(w.test("olt", size, 22.0), near, half), x)
    held = w.not_tiny(size)
    square = w.mul(held, held)
    near = w.fma(size, w.mul(square, w.poly(_SINH, square)), size)
    far = w.sub(half, w.div(0.25, half))
    return w.copysign(w.choose(w.test("olt", size, 1.0), near, far), x)


def cosh(w: Writer, x: Val) -> Val:
    """e^|x| / 2 + e^-|x| / 2."""
    size = w.abs(x)
    half = half_exp(w, size)
    return w.add(half, w.div(0.25, half))


def _reduced_pair(w: Writer, x: Val, n: Val) -> Pair:
    """r, and the part of it that one number cannot hold."""
    high = w.exact_sub(x, w.exact_mul(n, LN2_HIGH[x.scalar]))
    low = w.exact_mul(n, LN2_LOW[x.scalar])
    r = w.exact_sub(high, low)
    return r, w.exact_sub(w.exact_sub(high, r), low)
