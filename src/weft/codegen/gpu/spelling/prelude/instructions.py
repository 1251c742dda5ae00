"""CUDA device functions: types, and one function per machine instruction.

No header is included, so that NVRTC needs none. Each function wraps one instruction in inline PTX;
what may not move across it is said by its clobbers. `mbarrier.arrive` has no `.release` at cluster
scope: that would put a memory barrier for the whole device into every step of a matrix product.
"""

from __future__ import annotations

from typing import Final

COMMON: Final = r"""
typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
struct alignas(64) TensorMap { u64 words[16]; };
#define INLINE static __device__ __forceinline__
#define INLINE_MEMBER __device__ __forceinline__

// The same number; the compiler does not know that it is.
INLINE int as_unknown(int x) { asm("" : "+r"(x)); return x; }
INLINE float max_nan(float a, float b) {
  float r; asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r;
}
INLINE float min_nan(float a, float b) {
  float r; asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r;
}
// 2^x within 2 ulp; below 2^-126 it is 0.
INLINE float loose_exp2(float x) {
  float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r;
}
// x * Phi(x) = max(x, 0) - t * Phi(-t) with t = |x|, and Phi(-t) = 2^p(t): p is a minimax fit of
// log2 of the normal tail, weighted by what it contributes. Within 3 ulp for x > -1; below, the
// relative error stays under 5e-6 down to x = -5.5. gelu(-inf) is its limit, 0.
INLINE float gelu(float x) {
  const float t = fminf(fabsf(x), 16.0f);
  float p = -0x1.082e20p-25f;
  p = fmaf(p, t, 0x1.dd5c8ap-21f);
  p = fmaf(p, t, -0x1.7438bcp-17f);
  p = fmaf(p, t, 0x1.3efc76p-14f);
  p = fmaf(p, t, -0x1.1fce46p-12f);
  p = fmaf(p, t, -0x1.3287a0p-16f);
  p = fmaf(p, t, 0x1.c94c32p-8f);
  p = fmaf(p, t, -0x1.add080p-5f);
  p = fmaf(p, t, -0x1.d63b48p-2f);
  p = fmaf(p, t, -0x1.26aedap+0f);
  p = fmaf(p, t, -1.0f);
  return fmaf(-t, loose_exp2(p), max_nan(x, 0.0f));
}
// Within 2 ulp; a divisor below 2^-128 counts as 0.
INLINE float loose_quotient(float a, float b) {
  float r; asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(b)); return a * r;
}
INLINE float silu(float x) { return loose_quotient(x, 1.0f + expf(-x)); }

// For numbers that are rounded to 16 bits in the end. The relative error of the gelu stays under
// 2e-5 down to x = -5, 5e-5 down to -5.5, 0.1 down to -9.
INLINE float loose_gelu(float x) {
  const float t = fminf(fabsf(x), 16.0f);
  float p = -0x1.652fb6p-20f;
  p = fmaf(p, t, 0x1.b0681cp-15f);
  p = fmaf(p, t, -0x1.bea35ap-11f);
  p = fmaf(p, t, 0x1.0ccbe0p-7f);
  p = fmaf(p, t, -0x1.b5129ep-5f);
  p = fmaf(p, t, -0x1.d60d8ep-2f);
  p = fmaf(p, t, -0x1.26aba4p+0f);
  p = fmaf(p, t, -1.0f);
  return fmaf(-t, loose_exp2(p), max_nan(x, 0.0f));
}
INLINE float loose_exp(float x) { return loose_exp2(x * 0x1.715476p+0f); }
// a / b, of which what depends on b alone is one reciprocal for many a: a remainder corrects the
// product with it. Powers of two keep the reciprocal normal; those of 0 and infinity are right as
// they are. The quotient is correctly rounded, but for one in the last place where a or the
// quotient is below 2^-100. By this sign of the remainder a zero by a positive b keeps its own.
INLINE float shared_quotient(float a, float b) {
  const float size = fabsf(b);
  const float scale = size > 0x1p100f ? 0x1p-64f : size < 0x1p-100f ? 0x1p64f : 1.0f;
  float r; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b * scale));
  const float error = fmaf(-b * scale, r, 1.0f);
  const bool whole = fabsf(error) < 1.0f;
  r = whole ? fmaf(r, error, r) : r;
  const float below = whole ? b * scale : 0.0f, above = a * scale, q = above * r;
  const float better = fmaf(-fmaf(q, below, -above), r, q);
  return fabsf(q) < __int_as_float(0x7f800000) ? better : q;
}
// The same by a number b between 2^-100 and 2^100, whose reciprocal r is known.
INLINE float known_quotient(float a, float b, float r) {
  const float q = a * r, better = fmaf(-fmaf(q, b, -a), r, q);
  return fabsf(q) < __int_as_float(0x7f800000) ? better : q;
}
// a / b and sqrt(x) of numbers of bf16, to be rounded to bf16. What is off by two in a float's last
// place rounds as the right number does: no quotient or root of eight bits is nearer than 2^-18
// of itself to the middle of two numbers of bf16. Quotients below 2^-126 may be off by one in the
// last place. Nothing branches, where a division does for every 0.
INLINE float bf16_quotient(float a, float b) {
  const float size = fabsf(b);
  const float scale = size > 0x1p100f ? 0x1p-64f : size < 0x1p-100f ? 0x1p64f : 1.0f;
  float r; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b * scale));
  return a * scale * r;
}
INLINE float bf16_root(float x) {
  float r; asm("sqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(x)); return r;
}
INLINE float loose_rsqrt(float x) {
  float r; asm("rsqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(x)); return r;
}
// a / (1 + p), p not negative, as (a / 4) / (p / 4 + 1 / 4), whose reciprocal is never subnormal.
INLINE float loose_share(float a, float p) {
  float r; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(fmaf(p, 0.25f, 0.25f)));
  return a * 0.25f * r;
}
INLINE float loose_tanh(float x) {
  float r; asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(x)); return r;
}

INLINE float widen_bf16(u16 h) { return __uint_as_float((u32)h << 16); }
INLINE float widen_f16(u16 h) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(h)); return r; }
INLINE u32 pack_bf16(float low, float high) {
  u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r;
}
INLINE u32 pack_f16(float low, float high) {
  u32 r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r;
}
// The machine rounds two numbers at four times the rate of one: single ones go with a zero. A bf16
// above it is a float as it stands.
INLINE u16 narrow_bf16(float x) { return (u16)pack_bf16(x, 0.0f); }
INLINE u16 narrow_f16(float x) { return (u16)pack_f16(x, 0.0f); }
INLINE float round_bf16(float x) { return __uint_as_float(pack_bf16(0.0f, x)); }
INLINE float round_f16(float x) { return widen_f16(narrow_f16(x)); }
template <class T> INLINE T fetch(const T* p, bool constant) { return constant ? __ldg(p) : *p; }
INLINE bool fetch(const bool* p, bool constant) {
  return fetch((const u8*)p, constant) != 0;
}
INLINE void store_shared_v2(u32 address, u32 a, u32 b) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" :: "r"(address), "r"(a), "r"(b) : "memory");
}
INLINE void load_shared_pair(float& a, float& b, u32 address) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(a), "=f"(b) : "r"(address));
}
INLINE u32 load_shared_4(u32 address) {
  u32 x; asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory"); return x;
}
// What was staged, behind a barrier: ordered among such loads and stores, but free to move among
// accesses of memory.
INLINE u32 load_staged(u32 address) {
  u32 x; asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address)); return x;
}
INLINE u32 load_staged_2(u32 address) {
  u16 x; asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(address)); return x;
}
INLINE u32 load_staged_1(u32 address) {
  u32 x; asm volatile("ld.shared.u8 %0, [%1];" : "=r"(x) : "r"(address)); return x;
}
// Without branches, so that pieces that follow one another are on their way together.
INLINE void store_word_if(char* target, u32 x, bool holds) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.global.b32 [%0], %1;\n}\n"
               :: "l"(target), "r"(x), "r"((int)holds));
}
INLINE void store_half_if(char* target, u32 x, bool holds) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.global.b16 [%0], %1;\n}\n"
               :: "l"(target), "h"((u16)x), "r"((int)holds));
}
// A piece of a row of 16-bit elements, two of them in a lane. Where the row begins in the middle of
// a word, each lane stores its second element with its neighbour's first.
INLINE void store_row_2(char* row, u32 word, int place, int count) {
  const u32 next = __shfl_down_sync(0xffffffffu, word, 1);
  const bool odd = (u64)row & 2;
  const int first = 2 * place + odd;
  const u32 pair = odd ? __funnelshift_r(word, next, 16) : word;
  store_word_if(row + 2 * first, pair, first + 1 < count);
  store_half_if(row + 2 * first, pair, first + 1 == count);
  store_half_if(row, word, odd && place == 0 && count > 0);
}
INLINE void store_row_4(char* row, u32 word, int place, int count) {
  store_word_if(row + 4 * place, word, place < count);
}
INLINE void store_row_vector(char* target, u32 staged, bool holds) {
  u32 x, y, z, w;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(staged));
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
               "@p st.global.v4.b32 [%0], {%1, %2, %3, %4};\n}\n"
               :: "l"(target), "r"(x), "r"(y), "r"(z), "r"(w), "r"((int)holds));
}
// From here on a pointer or place is a number of its own: those near it are not computed one by
// one, nor before the loop that comes first, where they would take registers from others.
template <class T> INLINE void pin(T*& pointer) { asm volatile("" : "+l"(pointer)); }
INLINE void pin(u32& address) { asm volatile("" : "+r"(address)); }
INLINE void pin(int& place) { asm volatile("" : "+r"(place)); }
template <int First, int Clear, int Count>
INLINE void add_registers(float (&total)[Count], float (&part)[Count]) {
  #pragma unroll
  for (int i = 0; i < Count; ++i) {
    total[i] = First ? part[i] : total[i] + part[i];
    if (Clear) part[i] = 0.0f;
  }
}
INLINE void named_barrier(int number, int threads) {
  asm volatile("bar.sync %0, %1;" :: "r"(number), "r"(threads) : "memory");
}
"""

THREADS: Final = r"""
INLINE u32 exchange(u32 x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
INLINE u64 exchange(u64 x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
INLINE u32 further_on(u32 x, int count) { return __shfl_down_sync(0xffffffffu, x, count); }
INLINE u64 further_on(u64 x, int count) { return __shfl_down_sync(0xffffffffu, x, count); }
INLINE void store_shared(u32 address, u32 x) {
  asm volatile("st.shared.b32 [%0], %1;" :: "r"(address), "r"(x) : "memory");
}
INLINE void store_shared(u32 address, u64 x) {
  asm volatile("st.shared.b64 [%0], %1;" :: "r"(address), "l"(x) : "memory");
}
INLINE void count_shared(u32 address) {
  asm volatile("red.shared.add.u32 [%0], 1;" :: "r"(address) : "memory");
}
INLINE u64 load_shared_8(u32 address) {
  u64 x; asm volatile("ld.shared.b64 %0, [%1];" : "=l"(x) : "r"(address) : "memory"); return x;
}
INLINE void load_shared_words(u32 (&w)[1], u32 address) { w[0] = load_shared_4(address); }
INLINE void load_shared_words(u32 (&w)[2], u32 address) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(w[0]), "=r"(w[1]) : "r"(address) : "memory");
}
INLINE void load_shared_words(u32 (&w)[4], u32 address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(address) : "memory");
}
INLINE void fetch_words(u32 (&w)[1], const char* p, bool constant) {
  w[0] = fetch((const u32*)p, constant);
}
INLINE void fetch_words(u32 (&w)[2], const char* p, bool constant) {
  const uint2 q = fetch((const uint2*)p, constant);
  w[0] = q.x; w[1] = q.y;
}
INLINE void fetch_words(u32 (&w)[4], const char* p, bool constant) {
  const uint4 q = fetch((const uint4*)p, constant);
  w[0] = q.x; w[1] = q.y; w[2] = q.z; w[3] = q.w;
}
INLINE void fetch_words_once(u32 (&w)[1], const char* p) {
  asm("ld.global.nc.L1::no_allocate.b32 %0, [%1];" : "=r"(w[0]) : "l"(p));
}
INLINE void fetch_words_once(u32 (&w)[2], const char* p) {
  asm("ld.global.nc.L1::no_allocate.v2.b32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "l"(p));
}
INLINE void fetch_words_once(u32 (&w)[4], const char* p) {
  asm("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
      : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(p));
}
INLINE u64 evict_last() {
  u64 policy; asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
INLINE void fetch_words_lasting(u32 (&w)[1], const char* p) {
  asm("ld.global.nc.L2::cache_hint.b32 %0, [%1], %2;" : "=r"(w[0]) : "l"(p), "l"(evict_last()));
}
INLINE void fetch_words_lasting(u32 (&w)[2], const char* p) {
  asm("ld.global.nc.L2::cache_hint.v2.b32 {%0, %1}, [%2], %3;"
      : "=r"(w[0]), "=r"(w[1]) : "l"(p), "l"(evict_last()));
}
INLINE void fetch_words_lasting(u32 (&w)[4], const char* p) {
  asm("ld.global.nc.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
      : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(p), "l"(evict_last()));
}
INLINE void put_words(const u32 (&w)[1], char* p) { *(u32*)p = w[0]; }
INLINE void put_words(const u32 (&w)[2], char* p) { *(uint2*)p = make_uint2(w[0], w[1]); }
INLINE void put_words(const u32 (&w)[4], char* p) {
  *(uint4*)p = make_uint4(w[0], w[1], w[2], w[3]);
}
INLINE void put_words_passing(const u32 (&w)[1], char* p) { __stcs((u32*)p, w[0]); }
INLINE void put_words_passing(const u32 (&w)[2], char* p) {
  __stcs((uint2*)p, make_uint2(w[0], w[1]));
}
INLINE void put_words_passing(const u32 (&w)[4], char* p) {
  __stcs((uint4*)p, make_uint4(w[0], w[1], w[2], w[3]));
}
// The least of all reports is kept; the word is 0 where there is none.
INLINE void report(u64* error, u64 check, u64 element) {
  atomicMax(error, ~(check << 40 | element));
}
"""

COMBINING: Final = r"""
INLINE void combine_add(u32* p, u32 x) { atomicAdd(p, x); }
INLINE void combine_add(int* p, int x) { atomicAdd(p, x); }
INLINE void combine_add(u64* p, u64 x) { atomicAdd(p, x); }
INLINE void combine_add(i64* p, i64 x) { atomicAdd((u64*)p, (u64)x); }
template <class T> INLINE void combine_max(T* p, T x) { atomicMax(p, x); }
template <class T> INLINE void combine_min(T* p, T x) { atomicMin(p, x); }
"""

ACROSS: Final = r"""
// The 16 bytes from `start` on, `count` of them and then zeros, out of the two lines they lie in.
INLINE void fetch_across(u32 (&w)[4], const char* p, i64 start, int count, bool constant) {
  const int inside = (int)start & 15;
  const uint4* line = (const uint4*)(p + (start - inside));
  uint4 a = {}, b = {};
  if (count > 0) a = fetch(line, constant);
  if (count > 16 - inside) b = fetch(line + 1, constant);
  u32 q[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  #pragma unroll
  for (int i = 0; i < 6; ++i) q[i] = inside & 8 ? q[i + 2] : q[i];
  #pragma unroll
  for (int i = 0; i < 5; ++i) q[i] = inside & 4 ? q[i + 1] : q[i];
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int left = count - 4 * i;
    const u32 kept = left >= 4 ? ~0u : left > 0 ? (1u << (8 * left)) - 1 : 0;
    w[i] = __funnelshift_r(q[i], q[i + 1], (inside & 3) * 8) & kept;
  }
}
"""

SM90: Final = r"""
INLINE void stmatrix_x4(u32 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :: "r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
INLINE void stmatrix_x2(u32 address, u32 a, u32 b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};"
               :: "r"(address), "r"(a), "r"(b) : "memory");
}
INLINE void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}
INLINE void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
INLINE void mbarrier_expect_tx(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(barrier), "r"(bytes) : "memory");
}
INLINE void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}
INLINE void mbarrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over_%=;\n"
      "bra again_%=;\n"
      "over_%=:\n}\n" :: "r"(barrier), "r"(parity) : "memory");
}
INLINE void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
}
INLINE void bulk_load(u32 target, const char* source, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      :: "r"(target), "l"(source), "r"(bytes), "r"(barrier) : "memory");
}
INLINE void tma_store(u32 source, const TensorMap& map, int c0, int c1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
               :: "l"(&map), "r"(source), "r"(c0), "r"(c1) : "memory");
}
INLINE void tma_store(u32 source, const TensorMap& map, int c0, int c1, int c2) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];"
               :: "l"(&map), "r"(source), "r"(c0), "r"(c1), "r"(c2) : "memory");
}
INLINE void tma_store(u32 source, const TensorMap& map, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
               :: "l"(&map), "r"(source), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}
INLINE void tma_store(u32 source, const TensorMap& map, int c0, int c1, int c2, int c3, int c4) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group "
               "[%0, {%2, %3, %4, %5, %6}], [%1];"
               :: "l"(&map), "r"(source), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4) : "memory");
}
INLINE void tma_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int Pending> INLINE void tma_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(Pending) : "memory");
}
INLINE void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
INLINE u64 descriptor(u32 address, u64 bits) { return bits | (u64)((address & 0x3ffff) >> 4); }
INLINE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
INLINE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending> INLINE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(Pending) : "memory");
}
template <int Count> INLINE void hold(float (&registers)[Count]) {
  #pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(registers[i]) :: "memory");
}
template <int Count> INLINE void hold(int (&registers)[Count]) {
  #pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+r"(registers[i]) :: "memory");
}
template <int Count> INLINE void hold(u32 (&registers)[Count]) {
  #pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+r"(registers[i]) :: "memory");
}
template <int Count> INLINE void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(Count));
}
template <int Count> INLINE void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(Count));
}
"""

CHAINS: Final = r"""
INLINE void admit_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
INLINE void await_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
"""

CLUSTERS: Final = r"""
INLINE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
INLINE void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
INLINE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
INLINE u32 in_block(u32 address, u32 block) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}
INLINE void mbarrier_arrive_there(u32 there) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(there) : "memory");
}
INLINE void send_cluster(u32 there, u32 x, u32 barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
               :: "r"(there), "r"(x), "r"(barrier) : "memory");
}
INLINE void send_cluster(u32 there, u64 x, u32 barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];"
               :: "r"(there), "l"(x), "r"(barrier) : "memory");
}
INLINE void store_cluster(u32 there, u32 x) {
  asm volatile("st.shared::cluster.b32 [%0], %1;" :: "r"(there), "r"(x) : "memory");
}
INLINE void store_cluster(u32 there, u64 x) {
  asm volatile("st.shared::cluster.b64 [%0], %1;" :: "r"(there), "l"(x) : "memory");
}
"""

SMALL: Final = r"""
// The leading digit of a float whose last digit is one, and small integers as its other digits; the
// digit is taken away again. A sum with -0 is the product itself.
INLINE u32 merged(u32 bits, u32 mask, u32 others) {
  // By name: with two constants the compiler makes two instructions of it.
  u32 r; asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(bits), "r"(mask), "r"(others));
  return r;
}
INLINE u32 pack_small_bf16(u32 pair, u32 mask, u32 back) {
  const u32 made = merged(pair, mask, 0x43004300u);
  u32 r; asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(made), "r"(0x3f803f80u), "r"(back));
  return r;
}
INLINE u32 pack_small_f16(u32 pair, u32 mask, u32 back) {
  const u32 made = merged(pair, mask, 0x64006400u);
  u32 r; asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(made), "r"(0x3c003c00u), "r"(back));
  return r;
}
// The digits of 8 bits below the sign, after 128; and 128, or 256 where there is a sign.
INLINE u32 pack_signed_bf16(u32 pair) {
  const u32 digits = merged(pair, 0x007f007fu, 0x43004300u);
  const u32 sign = merged(pair, 0x00800080u, 0x43004300u);
  u32 r; asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(sign), "r"(0xbf80bf80u), "r"(digits));
  return r;
}
INLINE u32 pack_signed_f16(u32 pair) {
  return pack_small_f16(pair ^ 0x00800080u, 0x00ff00ffu, 0xe480e480u);
}
INLINE u32 scale_pair_bf16(u32 pair, float factor) {
  const u32 by = pack_bf16(factor, factor), zero = 0x80008000u;
  u32 r; asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(pair), "r"(by), "r"(zero)); return r;
}
INLINE u32 scale_pair_f16(u32 pair, float factor) {
  const u32 by = pack_f16(factor, factor), zero = 0x80008000u;
  u32 r; asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(pair), "r"(by), "r"(zero)); return r;
}
"""
SM80: Final = r"""
INLINE void cp_async(u32 target, const void* source, bool guard) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(target), "l"(source), "r"(guard ? 16 : 0) : "memory");
}
template <int Count, i64 Step, class T>
INLINE void gather(u32 target, const T* source, int limit, bool constant) {
  const int width = 8 * sizeof(T);
  u32 words[4] = {};
  #pragma unroll
  for (int i = 0; i < Count; ++i) {
    const u64 found = i < limit ? fetch(source + i * Step, constant) : (T)0;
    words[i * width / 32] |= (u32)(found << i * width % 32);
    if (width == 64) words[i * 2 + 1] = (u32)(found >> 32);
  }
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
               :: "r"(target), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
INLINE void load_register(float& x, u32 address) {
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
}
INLINE void load_register(double& x, u32 address) {
  asm volatile("ld.shared.f64 %0, [%1];" : "=d"(x) : "r"(address) : "memory");
}
INLINE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Pending> INLINE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" :: "n"(Pending) : "memory");
}
INLINE void ldmatrix(u32& a, u32& b, u32& c, u32& d, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(address) : "memory");
}
INLINE void ldmatrix_transposed(u32& a, u32& b, u32& c, u32& d, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(address) : "memory");
}
"""

PARTS_OF_PIECES: Final = r"""
template <int Bytes> INLINE void cp_async_part(u32 target, const void* source, bool guard) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
               :: "r"(target), "l"(source), "n"(Bytes), "r"(guard ? Bytes : 0) : "memory");
}
"""

_LEAVES_FIRST: Final = "0x12f0000000000000"
"""The cache policy of data that leave first."""


def tma_load(rank: int, blocks: int, *, once: bool, window: bool = False) -> str:
    """The function that copies a box of a tensor, or a tap of the `window`s of an image, into so
    many blocks of a cluster."""
    taps = rank - 2 if window else 0
    names = [f"int c{i}" for i in range(rank)] + [f"int t{i}" for i in range(taps)]
    places = ", ".join(f"%{3 + i}" for i in range(rank))
    given = ['"r"(target)', '"l"(&map)', '"r"(barrier)', *(f'"r"(c{i})' for i in range(rank))]
    kind, rest = "", ""
    if window:
        rest = f", {{{', '.join(f'%{len(given) + i}' for i in range(taps))}}}"
        given += [f'"h"((u16)t{i})' for i in range(taps)]
    if blocks > 1:
        kind, rest = ".multicast::cluster", f"{rest}, %{len(given)}"
        given.append(f'"h"((u16){(1 << blocks) - 1})')
    if once:
        kind, rest = f"{kind}.L2::cache_hint", f"{rest}, %{len(given)}"
        given.append(f'"l"({_LEAVES_FIRST}ull)')
    name, mode = tma_load_name(blocks, once=once, window=window), "im2col" if window else "tile"
    head = f"{name}(u32 target, const TensorMap& map, u32 barrier"
    return f"""
INLINE void {head}, {", ".join(names)}) {{
  asm volatile(
      "cp.async.bulk.tensor.{rank}d.shared::cluster.global.{mode}.mbarrier::complete_tx::bytes"
      "{kind} [%0], [%1, {{{places}}}], [%2]{rest};"
      :: {", ".join(given)} : "memory");
}}
"""


def tma_load_name(blocks: int, *, once: bool, window: bool = False) -> str:
    kinds = (("_window", window), ("_everywhere", blocks > 1), ("_once", once))
    return "tma_load" + "".join(word for word, is_so in kinds if is_so)
