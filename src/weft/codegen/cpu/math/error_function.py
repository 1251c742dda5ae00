"""erf: x plus x times an even polynomial up to 1; beyond, 1 less what is left. In single precision
that is e to the power of a polynomial, whose error times what is left is as small as it can be; in
double precision e^(-x^2) times a polynomial in (x - 2) / (x + 2). The others interpolate at
Chebyshev nodes, computed with 60 digits.

With fused multiply-adds floats have a shorter way: 1 - 2^p with p = log2(1 - erf |x|), a polynomial
without a constant. p is n + r, and 1 - 2^n - 2^n (2^r - 1) has small numbers as exact as p is. Its
polynomials are fitted for the least relative error of erf.
"""

from __future__ import annotations

import math
from typing import Final

from weft.codegen.cpu.code import Val
from weft.codegen.cpu.math.exponential import inner_exp
from weft.codegen.cpu.math.writer import Writer

_NEAR: Final = {
    "float": (0.1283791658483509, -0.37612626666720334, 0.11283594715160218, -0.026854212010626412,
              0.005189087423433974, -0.000801686428716587, 7.875875062685488e-05),
    "double": (0.1283791670955126, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792,
               0.0052239776248180145, -0.000854832698083379, 0.0001205533111164271,
               -1.4925595266831182e-05, 1.6461000484121368e-06, -1.6350312701054695e-07,
               1.4659775274047436e-08, -1.1372848856791674e-09, 5.957176147748911e-11),
}  # fmt: skip
_LOG_LEFT: Final = (
    -0.00035371326300115413, -1.1270400609208373, -0.6382256370945213, -0.10303740213611175,
    0.02180533340635839, -0.002939610810006676, 0.00018557433752263233,
)  # fmt: skip
"""log(1 - erf x) in x, from 1 to 4."""
_LEFT: Final = (
    0.25539567631050575, -0.4271858474139584, 0.24165819424246646, -0.07897858101573213,
    0.003732892404327764, 0.006997461739200444, -0.0008471432509203844, -0.000981977026567889,
    4.355560219515472e-05, 0.00017436116545392264, 2.7525480361206068e-05, -2.7579864674305787e-05,
    -1.396807230177146e-05, 1.392621183618803e-06, 3.789215643758464e-06, 1.1780775215625583e-06,
    -5.322696855655786e-07, -4.215301054238321e-07,
)  # fmt: skip
"""(1 - erf x) e^(x^2) in (x - 2) / (x + 2)."""
_ONE: Final = {"float": 4.0, "double": 6.0}
"""From here on erf is 1."""
_SLOPE: Final = -1.6279070377349854
_LOG2_LEFT: Final = (
    -0.9184474349021912, -0.14827926456928253, 0.02764166332781315, 0.00021094264229759574,
    -0.0023818672634661198, 0.0008988000336103141, -0.00016529169806744903, 1.280507513001794e-05,
)  # fmt: skip
"""(log2(1 - erf x) - slope x) / x^2 in x, up to 4."""
_EXP2: Final = (
    0.24022650718688965, 0.055503662675619125, 0.009618044830858707, 0.001338898204267025,
    0.00015499144501518458,
)  # fmt: skip
"""(2^r - 1 - r ln 2) / r^2 in r."""
_TINY: Final = 2.0**-12
"""Below this erf is a multiple of x, in single precision."""


def erf(w: Writer, x: Val) -> Val:
    size = w.abs(x)
    held = w.not_tiny(size)
    near = w.fma(x, w.poly(_NEAR[x.scalar], w.mul(held, held)), x)
    held = w.code.intrinsic("llvm.minnum", held, w.like(_ONE[x.scalar], x))
    far = w.copysign(w.sub(1.0, _erf_complement(w, held)), x)
    result = w.choose(w.test("olt", size, 1.0), near, far)
    return w.choose(w.is_nan(x), x, result)


def _erf_complement(w: Writer, x: Val) -> Val:
    """1 - erf x for an x from 1 to where erf is 1."""
    if x.scalar == "float":
        return inner_exp(w, w.poly(_LOG_LEFT, x))
    t = w.div(w.sub(x, 2.0), w.add(x, 2.0))
    return w.mul(w.poly(_LEFT, t), inner_exp(w, w.mul(x, w.neg(x))))


def fused_erf(w: Writer, x: Val) -> Val:
    size = w.abs(x)
    held = w.choose(w.test("olt", size, _TINY), _TINY, size)
    held = w.choose(w.test("ogt", held, _ONE["float"]), _ONE["float"], held)
    # The small part first: only the last sum rounds what is known of the result.
    power = w.fma(held, _SLOPE, w.mul(w.mul(held, held), w.poly(_LOG2_LEFT, held)))
    magic = 1.5 * 2.0 ** w.form(x).mantissa
    shifted = w.exact_add(power, magic)
    r = w.exact_sub(power, w.exact_sub(shifted, magic))
    grown = w.fma(r, math.log(2), w.mul(w.mul(r, r), w.poly(_EXP2, r)))
    scale = w.scale_normal(w.like(1.0, x), w.bits(shifted))
    found = w.copysign(w.sub(w.sub(1.0, scale), w.mul(scale, grown)), x)
    near = w.fma(x, 2 / math.sqrt(math.pi) - 1, x)
    return w.choose(w.test("olt", size, _TINY), near, found)
