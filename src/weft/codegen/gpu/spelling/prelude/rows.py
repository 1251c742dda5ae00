"""CUDA device functions: statements on the rows of an accumulator (`ir.rows`).

Element i of an accumulator lies in the upper of the thread's two rows where i % 4 < 2.
"""

from __future__ import annotations

from typing import Final

ROWS: Final = r"""
// Four independent chains: one alone waits for every maximum before the next.
template <int Count> INLINE void row_max(float (&x)[Count], float& upper, float& lower) {
  float a = x[0], b = x[1], c = x[2], d = x[3];
  #pragma unroll
  for (int i = 4; i < Count; i += 4) {
    a = max_nan(a, x[i]); b = max_nan(b, x[i + 1]);
    c = max_nan(c, x[i + 2]); d = max_nan(d, x[i + 3]);
  }
  upper = max_nan(a, b); lower = max_nan(c, d);
}
template <bool Early> INLINE float row_power(float x, float scale, float shift) {
  return loose_exp2(Early ? (x - shift) * scale : fmaf(x, scale, -shift));
}
template <bool Early, int Count>
INLINE void row_exp(float (&x)[Count], float scale, float upper_shift, float lower_shift,
                    float& upper, float& lower) {
  float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
  #pragma unroll
  for (int i = 0; i < Count; i += 4) {
    x[i] = row_power<Early>(x[i], scale, upper_shift); a += x[i];
    x[i + 1] = row_power<Early>(x[i + 1], scale, upper_shift); b += x[i + 1];
    x[i + 2] = row_power<Early>(x[i + 2], scale, lower_shift); c += x[i + 2];
    x[i + 3] = row_power<Early>(x[i + 3], scale, lower_shift); d += x[i + 3];
  }
  upper = a + b; lower = c + d;
}
template <int Count> INLINE void row_scale(float (&x)[Count], float upper, float lower) {
  #pragma unroll
  for (int i = 0; i < Count; ++i) x[i] *= i % 4 < 2 ? upper : lower;
}
"""
POOLS: Final = r"""
// Of a pair of columns one has its neighbour in the thread, the other in the next lane of the quad,
// or in the first lane and the next group: that lane sends what the group beside has.
template <int By, int Count>
INLINE void add_shifted(float (&total)[Count], float (&part)[Count], int lane) {
  const bool edge = (lane & 3) == (By > 0 ? 0 : 3);
  const int from = (lane & ~3) | ((lane + By) & 3);
  #pragma unroll
  for (int i = 0; i < Count; i += 2) {
    const int own = By > 0 ? i : i + 1, beside = own + 4 * By;
    const bool inside = beside >= 0 && beside < Count && beside / 32 == own / 32;
    float sent = edge ? (inside ? part[inside ? beside : 0] : 0.0f) : part[own];
    sent = __shfl_sync(0xffffffffu, sent, from);
    total[i] += By > 0 ? part[i + 1] : sent;
    total[i + 1] += By > 0 ? sent : part[i];
  }
}
INLINE float pool_pair(float (&x)[64], int i) {
  return max_nan(max_nan(x[i], x[i + 1]), max_nan(x[i + 32], x[i + 33]));
}
"""
ROW_SUMS: Final = r"""
template <int Count> INLINE void row_sum(float (&x)[Count], float& upper, float& lower) {
  float a = x[0], b = x[1], c = x[2], d = x[3];
  #pragma unroll
  for (int i = 4; i < Count; i += 4) {
    a += x[i]; b += x[i + 1]; c += x[i + 2]; d += x[i + 3];
  }
  upper = a + b; lower = c + d;
}
"""
