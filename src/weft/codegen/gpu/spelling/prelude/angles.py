"""CUDA device functions: sine, cosine and tangent of angles of any size.

x = n pi/2 + r. Up to 2^17, of doubles 2^20, the multiple of pi/2 is taken away in three parts, by
fused multiply-adds of which the first is exact. Beyond, x times 2/pi is taken modulo 4 in fixed
point, on the digits of 2/pi that count for the exponent of x (`foundation.trigonometry`). Those lie
in a table of the module, and every number on the way in a register of its own: the library's
functions keep them on a thread's stack, and give a frame to every kernel that calls one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from weft.foundation.trigonometry import COSINE, SINE, TWO_OVER_PI

FUNCTIONS: Final = frozenset({"sin", "cos", "tan"})
"""Functions of elements whose text this is."""
_SINE_F32: Final = (-0.16666655, 0.008332178, -0.00019517234)
_COSINE_F32: Final = (0.041666646, -0.0013887367, 2.443838e-05)
"""As those of `circle`, with the digits of f32."""


def _polynomial(name: str, kind: str, numbers: Sequence[float]) -> Iterator[str]:
    """A function of one number, by its coefficients from the lowest power up."""
    suffix = "f" if kind == "float" else ""
    *rest, highest = numbers
    yield f"INLINE {kind} {name}({kind} x) {{"
    yield f"  {kind} sum = {highest.hex()}{suffix};"
    yield from (f"  sum = fma(sum, x, {number.hex()}{suffix});" for number in reversed(rest))
    yield "  return sum;\n}"


# Where the digits begin. A float is m 2^E, with a whole m and E = (stored exponent) - 150. The
# digit of 2/pi with weight 2^-k adds m 2^(E - k) to the product: nothing modulo 4 as long as E - k
# is 2 or more, so k = E - 1 is the first that counts. In the table, where a word of zeros stands
# before the point, that digit has the number 63 + k = 62 + E = (stored exponent) - (150 - 62); for
# doubles 1075 stands in the place of 150. Times m the first word has its highest digit at 2^1: two
# digits before the point. Of doubles, whose m has 53 digits, a third word is needed, or an angle
# near a multiple of pi/2 would keep too few.
_REDUCED: Final = r"""
// The digits of 2/pi from a place on.
INLINE u64 digits_from(int place) {
  const u64* word = two_over_pi + (place >> 6);
  const int inside = place & 63;
  return __ldg(word) << inside | __ldg(word + 1) >> 1 >> (63 - inside);
}
// The quarter turns nearest to x, modulo 4, and the angle that is left. Fixed-point numbers have
// two digits before the point. What is not finite leaves a NaN.
INLINE int quarters(float x, float& rest) {
  const float size = fabsf(x);
  if (size >= 0x1p17f && size < __int_as_float(0x7f800000)) {
    const u32 all = __float_as_uint(size);
    const u64 m = (all & 0x7fffff) | 0x800000;
    const int place = (int)(all >> 23) - (150 - 62);
    const u64 turns = m * digits_from(place) + __umul64hi(m, digits_from(place + 64));
    const int n = (int)(turns + (1ull << 61) >> 62);
    rest = (float)((double)(i64)(turns - ((u64)n << 62)) * 0x1.921fb54442d18p-62);
    if (x < 0) rest = -rest;
    return x < 0 ? -n : n;
  }
  // The addition leaves the nearest whole number in the last digits. All parts of pi/2 have one
  // sign, so that products with a zero do, and the sums keep the sign of a zero.
  const float moved = fmaf(x, 0x1.45f306p-1f, 0x1.8p23f), n = moved - 0x1.8p23f;
  rest = fmaf(n, -0x1.846988p-48f, fmaf(n, -0x1.4442dp-24f, fmaf(n, -0x1.921fb4p+0f, x)));
  return (int)__float_as_uint(moved);
}
INLINE int quarters(double x, double& rest) {
  const double size = fabs(x);
  if (size >= 0x1p20 && size < __longlong_as_double(0x7ff0000000000000ll)) {
    const u64 all = (u64)__double_as_longlong(size);
    const u64 m = (all & 0xfffffffffffffull) | 1ull << 52;
    const int place = (int)(all >> 52) - (1075 - 62);
    const u64 second = digits_from(place + 64), third = __umul64hi(m, digits_from(place + 128));
    u64 low = m * second + third;
    u64 high = m * digits_from(place) + __umul64hi(m, second) + (low < third);
    const int n = (int)(high + (1ull << 61) >> 62);
    high -= (u64)n << 62;
    const bool below = high >> 63;
    if (below) {
      low = 0 - low;
      high = ~high + (low == 0);
    }
    const int zeros = __clzll((i64)high);  // at least 2; 64 where all digits are lower ones
    const u64 digits = high << (zeros & 63) | low >> (64 - zeros);
    const double unit = __longlong_as_double((i64)(1023 - 62 - zeros) << 52);
    const double upper = (double)(digits & ~0x7ffull) * unit;
    const double lower = (double)(digits & 0x7ff) * unit;
    rest = fma(lower, 0x1.921fb54442d18p+0, upper * 0x1.1a62633145c06p-54);
    rest = fma(upper, 0x1.921fb54442d18p+0, rest);
    if (below != x < 0) rest = -rest;
    return x < 0 ? -n : n;
  }
  const double moved = fma(x, 0x1.45f306dc9c883p-1, 0x1.8p52), n = moved - 0x1.8p52;
  rest = fma(n, -0x1.921fb54442d18p+0, x);
  rest = fma(n, -0x1.c1cd129024e08p-107, fma(n, -0x1.1a62633145c06p-54, rest));
  return (int)__double_as_longlong(moved);
}
"""

_TURNED: Final = r"""
// Of an angle up to pi/4. The cube of a zero is positive: so the sum with it keeps the zero's sign.
template <class T> INLINE T near_sine(T r) {
  const T square = r * r;
  return fma(fma(square, r, (T)0), sine_terms(square), r);
}
template <class T> INLINE T near_cosine(T r) {
  const T square = r * r;
  return fma(square, fma(square, cosine_terms(square), (T)-0.5), (T)1);
}
template <class T> INLINE T turned_sine(int n, T r) {
  const T size = n & 1 ? near_cosine(r) : near_sine(r);
  return n & 2 ? -size : size;
}
template <class T> INLINE T sine(T x) {
  T r;
  const int n = quarters(x, r);
  return turned_sine(n, r);
}
template <class T> INLINE T cosine(T x) {
  T r;
  const int n = quarters(x, r);
  return turned_sine(n + 1, r);
}
template <class T> INLINE T tangent(T x) {
  T r;
  const int n = quarters(x, r);
  const T s = near_sine(r), c = near_cosine(r);
  const T above = n & 1 ? -c : s, below = n & 1 ? s : c;
  return above / below;
}
"""

_WORDS: Final = ", ".join(f"{word:#x}ull" for word in TWO_OVER_PI)
_TABLE: Final = f"__device__ const u64 two_over_pi[{len(TWO_OVER_PI)}] = {{{_WORDS}}};"
ANGLES: Final = "\n".join(
    (
        *("", _TABLE),
        *_polynomial("sine_terms", "float", _SINE_F32),
        *_polynomial("cosine_terms", "float", _COSINE_F32),
        *_polynomial("sine_terms", "double", SINE),
        *_polynomial("cosine_terms", "double", COSINE),
        *(_REDUCED, _TURNED),
    )
)
"""The whole text."""
