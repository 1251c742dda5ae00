"""CUDA device functions: radix sort keys, and lanes that have the same digit."""

from typing import Final

KEYS: Final = r"""
// Keys: unsigned numbers of as many bits as the element has, in the order of the elements.
template <int Bits, class T> INLINE T key_mask() { return (T)-1 >> (8 * sizeof(T) - Bits); }
template <int Bits, class T> INLINE T reversed_key(T key) { return key ^ key_mask<Bits, T>(); }
template <int Bits, class T> INLINE T integer_key(T x) {
  return (x & key_mask<Bits, T>()) ^ (T)1 << (Bits - 1);
}
template <int Bits, class T> INLINE T float_key(T x, bool nan) {
  const T sign = (T)1 << (Bits - 1), all = key_mask<Bits, T>();
  if (x == sign) x = 0;
  return nan ? all : x & sign ? x ^ all : x | sign;
}
"""

ALIKE: Final = r"""
template <int Bits> INLINE void alike(int number, int& before, int& count) {
  u32 same = 0xffffffffu, lower;
  #pragma unroll
  for (int bit = 0; bit < Bits; ++bit) {
    u32 like;  // the lanes whose bit is like this one's
    asm volatile("{\n.reg .pred p;\n.reg .b32 t;\nand.b32 t, %1, %2;\nsetp.ne.b32 p, t, 0;\n"
                 "vote.sync.ballot.b32 %0, p, 0xffffffff;\n@!p not.b32 %0, %0;\n}\n"
                 : "=r"(like) : "r"(number), "r"(1 << bit));
    same &= like;
  }
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(lower));
  before = __popc(same & lower);
  count = __popc(same);
}
"""

SORTING: Final = KEYS + ALIKE
