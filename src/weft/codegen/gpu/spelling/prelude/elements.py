"""CUDA device functions: elementwise functions.

No function of C is an approximate one here. Formats that a machine does not convert are integer
code: one text serves all architectures.
"""

from __future__ import annotations

from typing import Final

from weft.foundation.philox import MULTIPLIERS, ROUNDS, WEYL

ELEMENTS: Final = r"""
template <class T> INLINE u32 bits(T x) { return (u32)x; }
INLINE u32 bits(float x) { return __float_as_uint(x); }
INLINE u64 bits(double x) { return (u64)__double_as_longlong(x); }
INLINE u64 bits(i64 x) { return (u64)x; }
INLINE u64 bits(u64 x) { return x; }
template <class T> struct Held { static INLINE_MEMBER T from(u64 x) { return (T)x; } };
template <> struct Held<float> {
  static INLINE_MEMBER float from(u64 x) { return __uint_as_float((u32)x); }
};
template <> struct Held<double> {
  static INLINE_MEMBER double from(u64 x) { return __longlong_as_double((i64)x); }
};
template <> struct Held<bool> { static INLINE_MEMBER bool from(u64 x) { return x != 0; } };
// Of two integers. ptxas 13.0 makes one instruction of three operands of two such ones, and loses
// the sign of an operand that is negated: with the highest bit flipped none is, and the order of
// signed numbers is that of unsigned ones.
#define FLIPPED(fn) "{ .reg .b32 x, y; xor.b32 x, %1, 0x80000000; xor.b32 y, %2, 0x80000000; " \
  fn " x, x, y; xor.b32 %0, x, 0x80000000; }"
INLINE int greater_of(int a, int b) {
  int r; asm(FLIPPED("max.u32") : "=r"(r) : "r"(a), "r"(b)); return r;
}
INLINE u32 greater_of(u32 a, u32 b) {
  u32 r; asm(FLIPPED("max.s32") : "=r"(r) : "r"(a), "r"(b)); return r;
}
INLINE int less_of(int a, int b) {
  int r; asm(FLIPPED("min.u32") : "=r"(r) : "r"(a), "r"(b)); return r;
}
INLINE u32 less_of(u32 a, u32 b) {
  u32 r; asm(FLIPPED("min.s32") : "=r"(r) : "r"(a), "r"(b)); return r;
}
template <class T> INLINE T greater_of(T a, T b) {
  if constexpr (sizeof(T) < 4) return (T)greater_of((int)a, (int)b);
  else return a > b ? a : b;
}
template <class T> INLINE T less_of(T a, T b) {
  if constexpr (sizeof(T) < 4) return (T)less_of((int)a, (int)b);
  else return a < b ? a : b;
}
INLINE double max_nan(double a, double b) { return a != a ? a : b != b ? b : fmax(a, b); }
INLINE double min_nan(double a, double b) { return a != a ? a : b != b ? b : fmin(a, b); }
INLINE double gelu(double x) { return 0.5 * x * (1.0 + erf(x * 0x1.6a09e667f3bcdp-1)); }
INLINE double silu(double x) { return x / (1.0 + exp(-x)); }
// Toward zero; the lowest value by -1 wraps. A divisor of 0 is reported elsewhere and counts as 1.
template <class T> INLINE T divide(T a, T b) {
  if (b == 0) return a;
  if (b == (T)-1 && (T)-1 < (T)0) return (T)(0 - (u64)a);
  return (T)(a / b);
}
// Rounded to odd: the last digit says whether anything was cut off.
INLINE float to_odd(double x) {
  const float cut = __double2float_rz(x);
  return (double)cut == x || x != x ? cut : __uint_as_float(__float_as_uint(cut) | 1);
}
INLINE double sticky(double cut, bool exact) {
  return exact ? cut : __longlong_as_double(__double_as_longlong(cut) | 1);
}
INLINE float to_odd(int x) { return to_odd((double)x); }
INLINE float to_odd(u32 x) { return to_odd((double)x); }
INLINE float to_odd(i64 x) {
  const double cut = __ll2double_rz(x);
  return to_odd(sticky(cut, __double2ll_rz(cut) == x));
}
INLINE float to_odd(u64 x) {
  const double cut = __ull2double_rz(x);
  return to_odd(sticky(cut, __double2ull_rz(cut) == x));
}
// Integers. A zero divisor, a negative exponent and a negative amount are reported elsewhere.
template <class T> INLINE T modulo(T a, T b) { return (T)((u64)a - (u64)divide(a, b) * (u64)b); }
template <class T> INLINE T power(T base, T exponent) {
  T result = 1;
  for (u64 rest = (u64)exponent; rest != 0; rest >>= 1) {
    if (rest & 1) result = (T)((u64)result * (u64)base);
    base = (T)((u64)base * (u64)base);
  }
  return result;
}
// Zeros, or copies of the sign, come in; an amount of the width or more leaves only those.
template <class T> INLINE T shift_left(T x, T amount) {
  return (u64)amount < 8 * sizeof(T) ? (T)((u64)x << (int)amount) : (T)0;
}
template <class T> INLINE T shift_right(T x, T amount) {
  if ((u64)amount < 8 * sizeof(T)) return (T)(x >> (int)amount);
  return x < (T)0 ? (T)-1 : (T)0;
}
// Floats.
INLINE float log1p_of_exp(float x) { return log1pf(expf(x)); }
INLINE double log1p_of_exp(double x) { return log1p(exp(x)); }
template <class T> INLINE T log_add_exp(T a, T b) {
  if (a == b) return a + (T)0x1.62e42fefa39efp-1;
  const T apart = a - b;
  if (apart > 0) return a + log1p_of_exp(-apart);
  return apart <= 0 ? b + log1p_of_exp(apart) : apart;
}
// The bits of the neighbour of x in the direction of y: bits count up away from zero.
template <class B, class T> INLINE B next_bits(B bits, B goal, T x, T y) {
  if (x != x) return bits;
  if (!(x < y || x > y)) return goal;
  if (x == 0) return (B)((goal & (B)1 << (8 * sizeof(B) - 1)) | 1);
  return (y > x) == (x > 0) ? (B)(bits + 1) : (B)(bits - 1);
}
"""

FORMATS: Final = r"""
INLINE i8 round_si4(i8 x) { return (i8)((i8)(x << 4) >> 4); }
INLINE u8 round_ui4(u8 x) { return x & 15; }
INLINE i8 widen_si4(u8 x) { return round_si4((i8)x); }
INLINE u8 widen_ui4(u8 x) { return round_ui4(x); }
INLINE u8 narrow_si4(i8 x) { return (u8)x & 15; }
INLINE u8 narrow_ui4(u8 x) { return x & 15; }
// An f16 has the exponents of e5m2, and 2^8 times less for the bits of e4m3.
INLINE float with_sign(float x, u32 sign) {
  return __uint_as_float(__float_as_uint(x) | (sign & 0x80) << 24);
}
INLINE float widen_fp8_e5m2(u8 h) { return with_sign(widen_f16((u16)((h & 0x7f) << 8)), h); }
INLINE float widen_fp8_e4m3(u8 h) {
#if __CUDA_ARCH__ >= 890
  u32 pair;  // The instruction gives every not-a-number the same sign.
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((u16)h));
  return with_sign(widen_f16((u16)pair), h);
#else
  const u32 size = h & 0x7f;
  const float x = widen_f16((u16)(size << 7)) * 256.0f;
  return with_sign(size == 0x7f ? __int_as_float(0x7fffffff) : x, h);
#endif
}
// To nearest even: below the least exponent by an addition that has the last digit where it is
// wanted, above it on the bits. What is too large becomes `infinity`, or what stands for it.
template <int Fraction, int Bias, u32 Infinity, u32 Nan> INLINE u8 narrow_tiny(float x) {
  const u32 all = __float_as_uint(x), size = all & 0x7fffffff, sign = all >> 24 & 0x80;
  if (size > 0x7f800000) return (u8)(sign | Nan);
  if (size < (u32)(128 - Bias) << 23) {
    const u32 magic = (u32)(127 + 24 - Bias - Fraction) << 23;
    const float moved = __uint_as_float(size) + __uint_as_float(magic);
    return (u8)(sign | (__float_as_uint(moved) - magic));
  }
  const int cut = 23 - Fraction;
  const u32 near = size + ((1u << (cut - 1)) - 1) + (size >> cut & 1);
  const u32 kept = (near - ((u32)(127 - Bias) << 23)) >> cut;
  return (u8)(sign | (kept < Infinity ? kept : Infinity));
}
INLINE u8 narrow_fp8_e5m2(float x) { return narrow_tiny<2, 15, 0x7c, 0x7e>(x); }
INLINE u8 narrow_fp8_e4m3(float x) { return narrow_tiny<3, 7, 0x7f, 0x7f>(x); }
INLINE float round_fp8_e5m2(float x) { return widen_fp8_e5m2(narrow_fp8_e5m2(x)); }
INLINE float round_fp8_e4m3(float x) { return widen_fp8_e4m3(narrow_fp8_e4m3(x)); }
"""


def philox() -> str:
    """Philox4x32-10: the same bits as `foundation.philox`."""
    even, odd = (f"{number:#x}u" for number in MULTIPLIERS)
    first, second = (f"{number:#x}u" for number in WEYL)
    return f"""
INLINE void philox_block(u32 (&words)[4], u64 seed, u64 offset, u64 block) {{
  u32 a = (u32)block, b = (u32)(block >> 32), c = (u32)offset, d = (u32)(offset >> 32);
  u32 low = (u32)seed, high = (u32)(seed >> 32);
  #pragma unroll
  for (int turn = 0; turn < {ROUNDS}; ++turn) {{
    const u64 even = (u64)a * {even}, odd = (u64)c * {odd};
    a = (u32)(odd >> 32) ^ b ^ low;
    b = (u32)odd;
    c = (u32)(even >> 32) ^ d ^ high;
    d = (u32)even;
    low += {first};
    high += {second};
  }}
  words[0] = a; words[1] = b; words[2] = c; words[3] = d;
}}
INLINE u32 philox_word(u64 seed, u64 offset, u64 element) {{
  u32 words[4];
  philox_block(words, seed, offset, element >> 2);
  const u32 which = element & 3;
  const u32 low = which & 1 ? words[1] : words[0], high = which & 1 ? words[3] : words[2];
  return which & 2 ? high : low;
}}
"""


def _rounds(unroll: str) -> str:
    """The rounds of Philox for `N` blocks side by side, whose words are `words`, with the keys
    `low` and `high`."""
    even, odd = (f"{number:#x}u" for number in MULTIPLIERS)
    first, second = (f"{number:#x}u" for number in WEYL)
    return f"""  #pragma {unroll}
  for (int turn = 0; turn < {ROUNDS}; ++turn) {{
    #pragma unroll
    for (int i = 0; i < N; ++i) {{
      const u64 even = (u64)words[i][0] * {even}, odd = (u64)words[i][2] * {odd};
      words[i][0] = (u32)(odd >> 32) ^ words[i][1] ^ low;
      words[i][1] = (u32)odd;
      words[i][2] = (u32)(even >> 32) ^ words[i][3] ^ high;
      words[i][3] = (u32)even;
    }}
    low += {first};
    high += {second};
  }}"""


# Four words come of one block of Philox, which costs the same for one word as for four: lanes whose
# elements share blocks make one each, and trade bits.
_DRAW_TOGETHER: Final = r"""template <int Groups, bool Down, bool Narrow>
INLINE void draw_together(u32* bits, u64 seed, u64 offset, u64 block, u64 step, u32 least,
                          u32 own) {
  constexpr int N = Groups % 4 ? Groups % 2 ? 1 : 2 : 4;
  #pragma unroll
  for (int first = 0; first < Groups; first += 8) {
    const int last = first + 8 < Groups ? first + 8 : Groups;
    u32 made = 0;
    #pragma unroll 1
    for (int g = first; g < last; g += N) {
      u32 words[N][4];
      u64 blocks[N];
      #pragma unroll
      for (int i = 0; i < N; ++i) blocks[i] = block + (g + i) * step;
      draw_blocks<N, Narrow>(words, seed, offset, blocks);
      made >>= 4 * N;
      #pragma unroll
      for (int i = 0; i < 4 * N; ++i)
        made |= words[i / 4][i % 4] >= least ? 1u << (32 - 4 * N + i) : 0u;
    }
    made >>= 4 * (8 - (last - first));
    if (Down) {
      made = swap_bits<4, 1, 0x55555555u>(made, own & 1);
      made = swap_bits<8, 2, 0x33333333u>(made, own >> 1);
    } else {
      made = swap_bits<1, 2, 0x33333333u>(made, own);
    }
    bits[first / 8] = made;
  }
}
"""
"""Bits that a lane makes for others too, of blocks that lanes share."""

_DRAW_APART: Final = r"""// Of a group every row with `Sides` blocks.
template <int Groups, int Sides, bool Narrow>
INLINE void draw_apart(u32* bits, u64 seed, u64 offset, u64 place, u64 rows, u64 columns,
                       u32 least) {
  #pragma unroll
  for (int first = 0; first < Groups; first += 8) {
    const int last = first + 8 < Groups ? first + 8 : Groups;
    u32 made = 0;
    #pragma unroll 1
    for (int g = first; g < last; ++g) {
      u32 words[2 * Sides][4];
      u64 places[2 * Sides], blocks[2 * Sides];
      #pragma unroll
      for (int i = 0; i < 2 * Sides; ++i) {
        places[i] = place + i / Sides * rows + (8 * g + i % Sides) * columns;
        blocks[i] = places[i] >> 2;
      }
      draw_blocks<2 * Sides, Narrow>(words, seed, offset, blocks);
      made >>= 4;
      #pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int from = Sides == 1 ? e / 2 : e, side = Sides == 1 ? e % 2 : 0;
        const u32 (&four)[4] = words[from];
        const u32 which = places[from] & 3;
        u32 low = four[side], high = four[2 + side];
        if (Sides == 2) { low = which & 1 ? four[1] : low; high = which & 1 ? four[3] : high; }
        made |= (which & 2 ? high : low) >= least ? 1u << (28 + e) : 0u;
      }
    }
    made >>= 4 * (8 - (last - first));
    bits[first / 8] = made;
  }
}
"""
"""Bits of blocks that no two lanes share."""


def draw_bits() -> str:
    """Bits of words that are large enough.

    Of a block that several lanes share, the four bits that one of them makes belong to all: to two
    lanes along a row (bit 1 of the place in a block is which lane, bit 0 which side), or to four
    rows (the place is which lane). `swap_bits` hands half of them to the other lane of a pair,
    which transposes a matrix of bits: lanes by places."""
    return f"""
template <int Lane, int Shift, u32 Mask> INLINE u32 swap_bits(u32 own, u32 upper) {{
  const u32 other = __shfl_xor_sync(0xffffffffu, own, Lane);
  const u32 moved = upper ? other >> Shift : other << Shift, taken = upper ? Mask : ~Mask;
  return (own & ~taken) | (moved & taken);
}}
template <int N, bool Narrow>
INLINE void draw_blocks(u32 (&words)[N][4], u64 seed, u64 offset, const u64 (&blocks)[N]) {{
  u32 low = (u32)seed, high = (u32)(seed >> 32);
  // Held here: the compiler would keep the keys of all rounds from one call to the next.
  asm volatile("" : "+r"(low), "+r"(high));
  #pragma unroll
  for (int i = 0; i < N; ++i) {{
    words[i][0] = (u32)blocks[i]; words[i][1] = Narrow ? 0u : (u32)(blocks[i] >> 32);
    words[i][2] = (u32)offset; words[i][3] = (u32)(offset >> 32);
  }}
{_rounds("unroll")}
}}
{_DRAW_TOGETHER}{_DRAW_APART}"""


def philox_side_by_side() -> str:
    """Several blocks of a stream at once, round by round: as many as keep the multipliers busy, and
    no more registers than these take."""
    return f"""
INLINE void pin(u64& place) {{ asm volatile("" : "+l"(place)); }}
template <int N>
INLINE void philox_blocks(u32 (&words)[N][4], u64 seed, u64 offset, const u64 (&elements)[N]) {{
  u32 low = (u32)seed, high = (u32)(seed >> 32);
  #pragma unroll
  for (int i = 0; i < N; ++i) {{
    const u64 block = elements[i] >> 2;
    words[i][0] = (u32)block; words[i][1] = (u32)(block >> 32);
    words[i][2] = (u32)offset; words[i][3] = (u32)(offset >> 32);
  }}
{_rounds("unroll 1")}
}}
INLINE u32 word_of(const u32 (&words)[4], u64 element) {{
  const u32 which = element & 3;
  const u32 low = which & 1 ? words[1] : words[0], high = which & 1 ? words[3] : words[2];
  return which & 2 ? high : low;
}}
"""
