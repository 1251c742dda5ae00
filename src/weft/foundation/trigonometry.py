"""Constants for sine and cosine: the digits of 2/pi for range reduction, and polynomials near zero.

Whoever computes a sine of any angle x takes away a multiple of pi/2 first. For a large x that is
done on the digits of 2/pi (Payne and Hanek): x = m 2^e, and of the product m 2^e 2/pi only what
lies below four counts, which begins with the digit of 2/pi whose weight is 2^(1 - e).
"""

from __future__ import annotations

from typing import Final

WORD: Final = 64
# The largest finite double has the exponent 2046, and its digits begin at 2046 - (1075 - 62) = 1033
# (`codegen.gpu.spelling.prelude.angles`). Three words from there on, read across the ends of words,
# end in word (1033 + 128) / 64 + 1 = 19.
LARGEST_WINDOW: Final = 20
"""Words that hold the digits for every double, a word of zeros before the point among them."""

SINE: Final = (
    -0.16666666666666666, 0.008333333333330827, -0.0001984126983657571, 2.755731600817155e-06,
    -2.5051112272573243e-08, 1.5916726193889336e-10,
)  # fmt: skip
"""(sin r / r - 1) / r^2 as a polynomial in r^2 for |r| <= pi/4, in f64."""
COSINE: Final = (
    0.041666666666666664, -0.0013888888888887322, 2.4801587298651292e-05, -2.755731721268659e-07,
    2.0876134024090145e-09, -1.1381754653662937e-11,
)  # fmt: skip
"""(cos r - 1 + r^2 / 2) / r^4, the same way."""


def two_over_pi(words: int) -> tuple[int, ...]:
    """A word of zeros, and then the digits of 2/pi after the point."""
    bits = WORD * words
    # 2^(2 bits + 1) over pi 2^bits is 2/pi in units of 2^-bits.
    digits = (1 << (2 * bits + 1)) // _pi(bits)
    kept = digits >> (bits - WORD * (words - 1))
    return tuple(kept >> WORD * n & ((1 << WORD) - 1) for n in reversed(range(words)))


def _pi(bits: int) -> int:
    """pi 2^bits, by pi / 4 = 4 atan 1/5 - atan 1/239; 64 further bits take the errors."""
    one = 1 << (bits + WORD)
    return 4 * (4 * _inverse_tangent(5, one) - _inverse_tangent(239, one)) >> WORD


def _inverse_tangent(x: int, one: int) -> int:
    """atan(1 / x) in units of `one`, by its series."""
    power = total = one // x
    n = 1
    while power:
        power //= -x * x
        n += 2
        total += power // n
    return total


TWO_OVER_PI: Final = two_over_pi(LARGEST_WINDOW)
