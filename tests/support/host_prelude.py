"""Functions of the CUDA prelude, compiled for the host."""

from __future__ import annotations

import ctypes
import shutil
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

COMPILER = shutil.which("c++")

SHIM = r"""
#include <cmath>
#include <cstring>
typedef signed char i8; typedef unsigned char u8; typedef short i16; typedef unsigned short u16;
typedef unsigned int u32; typedef unsigned long long u64; typedef long long i64;
#define INLINE static inline
#define INLINE_MEMBER inline
template <class T, class F> T same_bits(F x) { T y; memcpy(&y, &x, sizeof y); return y; }
INLINE float __uint_as_float(u32 x) { return same_bits<float>(x); }
INLINE float __int_as_float(int x) { return same_bits<float>(x); }
INLINE u32 __float_as_uint(float x) { return same_bits<u32>(x); }
INLINE double __longlong_as_double(i64 x) { return same_bits<double>(x); }
INLINE i64 __double_as_longlong(double x) { return same_bits<i64>(x); }
// Not under test: they are instructions of the machine.
float __double2float_rz(double); double __ll2double_rz(i64); double __ull2double_rz(u64);
i64 __double2ll_rz(double); u64 __double2ull_rz(double);
INLINE float widen_f16(u16 h) {
  const int e = h >> 10 & 31, f = h & 1023;
  const float x = e == 31 ? (f ? NAN : INFINITY) : e ? ldexpf(1024 + f, e - 25) : ldexpf(f, -24);
  return h >> 15 ? -x : x;
}
struct uint4 { u32 x, y, z, w; };
template <class T> T fetch(const T* p, bool) { return *p; }
INLINE u32 __funnelshift_r(u32 low, u32 high, u32 count) {
  return ((u64)high << 32 | low) >> (count & 31);
}
"""


def apply(library: ctypes.CDLL, name: str, out: Any, *given: Array) -> Array:
    arrays = [np.ascontiguousarray(array) for array in given]
    result = np.empty(arrays[0].shape, out)
    places = [ctypes.c_void_p(array.ctypes.data) for array in (*arrays, result)]
    getattr(library, f"run_{name}")(*places, ctypes.c_long(result.size))
    return result


RECIPROCAL = r"""
// Off by up to one in the last place, this way or that.
INLINE float reciprocal(float x) {
  const float r = 1.0f / x;
  if (r == 0.0f || isinf(r)) return r;
  return same_bits<float>(same_bits<u32>(r) + same_bits<u32>(x) % 3 - 1);
}
"""
