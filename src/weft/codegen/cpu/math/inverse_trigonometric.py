"""asin, acos, atan and atan2 of doubles.

Each is a polynomial in a small argument plus a multiple of pi/4 in two parts. Floats are handed in
as doubles; shorter polynomials do for them.
"""

from __future__ import annotations

import math
from typing import Final

from weft.codegen.cpu.code import Val
from weft.codegen.cpu.math.writer import Writer

# (atan t / t - 1) / t^2 in t^2 up to tan(pi/8), and (asin t / t - 1) / t^2 in t^2 up to 1/2.
_ATAN: Final = {
    False: (-0.3333333333333333, 0.199999999999998, -0.14285714285659326, 0.11111111105106705,
            -0.09090908751076636, 0.0769229630497447, -0.06666423628069258, 0.058789145444006215,
            -0.052303478730160745, 0.04551108126325172, -0.034558092551413795,
            0.01627194475162406),
    True: (-0.33333333278951577, 0.19999977153974205, -0.14284145548273774, 0.11071260444313767,
           -0.08623896669600505, 0.05046128167603517),
}  # fmt: skip
_ASIN: Final = {
    False: (0.16666666666666666, 0.07500000000000118, 0.044642857142551895, 0.03038194447553234,
            0.02237215744350722, 0.017352816540325496, 0.01396378001220357, 0.011566459612121669,
            0.009621842970100282, 0.009319560794767446, 0.0030448799094556773,
            0.019554513336123378, -0.01924167174674304, 0.02961201126495512),
    True: (0.16666666686085643, 0.07499992404401838, 0.04464766388813485, 0.030269138728589183,
           0.023611817008891752, 0.010574415516912909, 0.030974540371355073),
}  # fmt: skip
_TAN_EIGHTH: Final = math.sqrt(2.0) - 1.0
_QUARTERS: Final = (
    (0.0, 0.0),
    (0.7853981633974483, 3.061616997868383e-17),
    (1.5707963267948966, 6.123233995736766e-17),
    (2.356194490192345, 9.184850993605148e-17),
    (3.141592653589793, 1.2246467991473532e-16),
)
"""0, 1, 2, 3 and 4 quarters of pi, in two parts."""


def atan(w: Writer, x: Val, short: bool = False) -> Val:
    return _angle(w, x, w.like(1.0, x), short)


def atan2(w: Writer, y: Val, x: Val, short: bool = False) -> Val:
    """Zeros on both sides are a ratio of nothing to something, infinities are equally long."""
    infinite = w.both(w.test("oeq", w.abs(x), math.inf), w.test("oeq", w.abs(y), math.inf))
    x_held = w.choose(infinite, w.copysign(1.0, x), x)
    y_held = w.choose(infinite, w.copysign(1.0, y), y)
    result = _angle(w, y_held, x_held, short)
    return w.choose(w.either(w.is_nan(x), w.is_nan(y)), math.nan, result)


def _angle(w: Writer, y: Val, x: Val, short: bool) -> Val:
    """The angle of a point: with a the larger and b the smaller of |x| and |y|, the angle between
    the point and the nearer axis is atan(b/a), which is pi/4 + atan((b - a) / (b + a))."""
    width, height = w.abs(x), w.abs(y)
    steep = w.test("ogt", height, width)
    a, b = w.choose(steep, height, width), w.choose(steep, width, height)
    # A quarter of both: b + a would overflow otherwise, and the angle is the same.
    shrink = w.choose(w.test("ogt", a, 2.0**1020), 0.25, w.like(1.0, x))
    a, b = w.mul(a, shrink), w.mul(b, shrink)
    # Both are 0 then, and 0 / 1 is the angle 0 that IEEE 754 wants, with its quarters added.
    a = w.choose(w.test("oeq", a, 0.0), 1.0, a)
    wide = w.test("ogt", b, w.mul(a, _TAN_EIGHTH))
    t = w.div(w.choose(wide, w.sub(b, a), b), w.choose(wide, w.add(b, a), a))
    # Mirrored at the diagonal where steep and at the vertical axis where x is negative.
    left = w.test("olt", w.copysign(1.0, x), 0.0)
    turned = w.code.binary("xor", steep, left)
    t = w.choose(turned, w.neg(t), t)
    high, low = (_quarters(w, t, part, wide, steep, left) for part in (0, 1))
    square = w.mul(t, t)
    cubic = w.mul(w.mul(t, square), w.poly(_ATAN[short], square))
    return w.copysign(w.add(high, w.add(t, w.add(cubic, low))), y)


def _quarters(w: Writer, t: Val, part: int, wide: Val, steep: Val, left: Val) -> Val:
    """What is added to atan(t): a number of quarters of pi."""
    right_half = w.choose(
        wide,
        _QUARTERS[1][part],
        w.choose(steep, _QUARTERS[2][part], w.like(_QUARTERS[0][part], t)),
    )
    left_half = w.choose(
        wide,
        _QUARTERS[3][part],
        w.choose(steep, _QUARTERS[2][part], w.like(_QUARTERS[4][part], t)),
    )
    return w.choose(left, left_half, right_half)


def asin(w: Writer, x: Val, short: bool = False) -> Val:
    """Beyond 1/2, pi/2 - 2 asin(sqrt((1 - |x|) / 2)), with the rounding of the root put right."""
    size = w.abs(x)
    root, upper, lost, series = _near_one(w, size, short)
    far = w.sub(w.mul(w.mul(root, series), 2.0), w.sub(_QUARTERS[2][1], w.mul(lost, 2.0)))
    far = w.sub(_QUARTERS[1][0], w.sub(far, w.sub(_QUARTERS[1][0], w.mul(upper, 2.0))))
    square = w.mul(x, x)
    near = w.fma(w.mul(x, square), w.poly(_ASIN[short], square), x)
    return w.choose(w.test("ole", size, 0.5), near, w.copysign(far, x))


def acos(w: Writer, x: Val, short: bool = False) -> Val:
    size = w.abs(x)
    root, upper, lost, series = _near_one(w, size, short)
    right = w.mul(w.add(upper, w.fma(root, series, lost)), 2.0)
    left = w.sub(w.mul(root, series), _QUARTERS[2][1])
    left = w.sub(_QUARTERS[4][0], w.mul(w.add(root, left), 2.0))
    square = w.mul(x, x)
    cubic = w.mul(w.mul(x, square), w.poly(_ASIN[short], square))
    near = w.sub(_QUARTERS[2][0], w.sub(x, w.sub(_QUARTERS[2][1], cubic)))
    far = w.choose(w.test("olt", x, 0.0), left, right)
    return w.choose(w.test("ole", size, 0.5), near, far)


def _near_one(w: Writer, size: Val, short: bool) -> tuple[Val, Val, Val, Val]:
    """The root s of z = (1 - |x|) / 2, its upper half, how much s^2 should be off that half, over
    2 s, and asin(s) / s - 1; all NaN beyond 1."""
    z = w.mul(w.sub(1.0, size), 0.5)
    root = w.sqrt(z)
    upper = w.upper(root)
    lost = w.div(w.sub(z, w.mul(upper, upper)), w.add(root, upper))
    lost = w.choose(w.test("oeq", root, 0.0), 0.0, lost)
    return root, upper, lost, w.mul(z, w.poly(_ASIN[short], z))
