"""CUDA device functions: split-K partial sums that blocks pass on through global memory.

One thread of those that meet watches, passes or counts; the barrier at which they meet makes what
it has seen known to the others, and what they have written part of what it releases. Sums go past
the first cache, which other blocks do not see.
"""

from __future__ import annotations

from typing import Final

PARTS: Final = r"""
INLINE void put_line(u32* line, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("st.global.cg.v4.b32 [%0], {%1, %2, %3, %4};"
               :: "l"(line), "r"(a), "r"(b), "r"(c), "r"(d));
}
INLINE uint4 get_line(const u32* line) {
  uint4 q; asm volatile("ld.global.cg.v4.b32 {%0, %1, %2, %3}, [%4];"
                        : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w) : "l"(line));
  return q;
}
INLINE void keep_line(const float* x, u32* line) {
  put_line(line, __float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
           __float_as_uint(x[3]));
}
INLINE void keep_line(const int* x, u32* line) { put_line(line, x[0], x[1], x[2], x[3]); }
INLINE void keep_line(const double* x, u32* line) {
  put_line(line, __double2loint(x[0]), __double2hiint(x[0]), __double2loint(x[1]),
           __double2hiint(x[1]));
}
INLINE void take_line(float (&x)[4], const u32* line) {
  const uint4 q = get_line(line);
  x[0] = __uint_as_float(q.x); x[1] = __uint_as_float(q.y);
  x[2] = __uint_as_float(q.z); x[3] = __uint_as_float(q.w);
}
INLINE void take_line(int (&x)[4], const u32* line) {
  const uint4 q = get_line(line);
  x[0] = q.x; x[1] = q.y; x[2] = q.z; x[3] = q.w;
}
INLINE void take_line(double (&x)[2], const u32* line) {
  const uint4 q = get_line(line);
  x[0] = __hiloint2double(q.y, q.x); x[1] = __hiloint2double(q.w, q.z);
}
template <int Threads, class T, int Count>
INLINE void keep_sums(const T (&sums)[Count], u32* words, int member) {
  constexpr int each = 16 / sizeof(T);
  #pragma unroll
  for (int i = 0; i < Count / each; ++i)
    keep_line(sums + i * each, words + (i * Threads + member) * 4);
}
template <int Threads, class T, int Count>
INLINE void add_sums(T (&sums)[Count], const u32* words, int member) {
  constexpr int each = 16 / sizeof(T);
  #pragma unroll
  for (int i = 0; i < Count / each; ++i) {
    T kept[each];
    take_line(kept, words + (i * Threads + member) * 4);
    #pragma unroll
    for (int j = 0; j < each; ++j) sums[i * each + j] = kept[j] + sums[i * each + j];
  }
}
// -0 leaves what is added to it as it is. As many parts are asked for at once as registers are left
// for, which are none beside the sums of a large tile.
template <int Parts, int Threads, class T, int Count>
INLINE void gather_sums(T (&sums)[Count], const u32* words, i64 stride, int member) {
  constexpr int lines = Count * sizeof(T) / 16, at_once = lines < 32 ? 32 / lines : 1;
  #pragma unroll
  for (int i = 0; i < Count; ++i) sums[i] = (T)-0.0;
  #pragma unroll at_once
  for (int part = 0; part < Parts; ++part) add_sums<Threads>(sums, words + part * stride, member);
}
INLINE void await_turn(const u32* counter, u32 value, bool watches, int number, int threads) {
  u32 found = value;
  do {
    if (watches)
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(counter) : "memory");
  } while (found != value);
  __syncwarp();
  named_barrier(number, threads);
}
INLINE void pass_turn(u32* counter, u32 value, bool passes, int number, int threads) {
  named_barrier(number, threads);
  if (passes)
    asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(counter), "r"(value) : "memory");
  __syncwarp();
}
INLINE int count_off(u32* counter, u32 last, bool counts, int number, int threads) {
  named_barrier(number, threads);
  u32 found = ~last;
  if (counts)
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(found) : "l"(counter), "r"(last) : "memory");
  __syncwarp();
  int done = found == last;
  asm volatile("{\n.reg .pred p, q;\nsetp.ne.b32 p, %0, 0;\nbar.red.or.pred q, %1, %2, p;\n"
               "selp.b32 %0, 1, 0, q;\n}\n" : "+r"(done) : "r"(number), "r"(threads) : "memory");
  return done;
}
"""
