"""CUDA device functions: matrix instructions, one function for each shape and dtype in use."""

from __future__ import annotations

from typing import Final

from weft.codegen.gpu.ir.swizzle import Major
from weft.foundation.dtypes import (
    BF16,
    F16,
    F32,
    F64,
    FP8_E4M3,
    FP8_E5M2,
    SI8,
    UI8,
    DType,
)
from weft.foundation.records import dataclass

_PTX: Final = {
    BF16: "bf16", F16: "f16", SI8: "s8", UI8: "u8", FP8_E4M3: "e4m3", FP8_E5M2: "e5m2"
}  # fmt: skip
"""What PTX calls the dtypes of operands that come packed in words."""


@dataclass(frozen=True)
class Wgmma:
    """One shape, pair of dtypes and layout of a warpgroup's instruction; A without a layout lies in
    registers."""

    n: int
    a_dtype: DType
    b_dtype: DType
    a: Major | None
    b: Major

    @property
    def name(self) -> str:
        kinds = f"{_PTX[self.a_dtype]}_{_PTX[self.b_dtype]}"
        lies = "registers" if self.a is None else self.a.value
        return f"wgmma_{kinds}_n{self.n}_{lies}_{self.b.value}"

    def text(self) -> str:
        """The function."""
        count = self.n // 2
        integer = self.a_dtype.is_integer
        held, kept, total = ("int", "r", "s32") if integer else ("float", "f", "f32")
        registers = ", ".join(f"%{i}" for i in range(count))
        outputs = ", ".join(f'"+{kept}"(d[{i}])' for i in range(count))
        depth = 32 // self.a_dtype.storage_bytes
        kinds = f"{_PTX[self.a_dtype]}.{_PTX[self.b_dtype]}"
        shape = f"m64n{self.n}k{depth}.{total}.{kinds}"
        if self.a is None:
            parts, words = ", ".join(f"u32 a{i}" for i in range(4)), 4
            left = "{" + ", ".join(f"%{count + i}" for i in range(words)) + "}"
            given = ", ".join(f'"r"(a{i})' for i in range(words))
        else:
            parts, left, given, words = "u64 a", f"%{count}", '"l"(a)', 1
        return f"""
template <int Accumulate> INLINE void {self.name}({held} (&d)[{count}], {parts}, u64 b) {{
  asm volatile(
      "{{\\n.reg .pred keep;\\nsetp.ne.b32 keep, %{count + words + 1}, 0;\\n"
      "wgmma.mma_async.sync.aligned.{shape} "
      "{{{registers}}}, {left}, %{count + words}, keep{self.flags};\\n}}\\n"
      : {outputs}
      : {given}, "l"(b), "n"(Accumulate));
}}
"""

    @property
    def flags(self) -> str:
        """Signs of the operands, and whether they lie along rows and columns; integers have
        neither, and 8-bit floats no layouts."""
        if self.a_dtype.is_integer:
            return ""
        if self.a_dtype.storage_bytes == 1:
            return ", 1, 1"
        first = "" if self.a is None else f" {int(self.a is Major.MN)},"
        return f", 1, 1,{first} {int(self.b is Major.MN)}"


def mma_name(a: DType, b: DType) -> str:
    return f"mma_{a.name}" if a is b else f"mma_{a.name}_{b.name}"


def mma_sync(a: DType, b: DType) -> str:
    """The function for one pair of dtypes of a warp's instruction."""
    if a is F64:
        return _F64
    if a is F32:
        return _SPLIT
    held, kept, total = ("int", "r", "s32") if a.is_integer else ("float", "f", "f32")
    shape = f"m16n8k{32 // a.storage_bytes}"
    return f"""
INLINE void {mma_name(a, b)}({held}& d0, {held}& d1, {held}& d2, {held}& d3,
                       u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {{
  asm volatile("mma.sync.aligned.{shape}.row.col.{total}.{_PTX[a]}.{_PTX[b]}.{total} "
               "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
               : "+{kept}"(d0), "+{kept}"(d1), "+{kept}"(d2), "+{kept}"(d3)
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}}
"""


_F64: Final = r"""
// Sixteen rows at once where the machine has them, else eight and eight.
INLINE void mma_f64(double& d0, double& d1, double& d2, double& d3,
                    double a0, double a1, double b) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 "
               "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+d"(d0), "+d"(d1), "+d"(d2), "+d"(d3) : "d"(a0), "d"(a1), "d"(b));
#else
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
               : "+d"(d0), "+d"(d1) : "d"(a0), "d"(b));
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
               : "+d"(d2), "+d"(d3) : "d"(a1), "d"(b));
#endif
}
"""

# The product of both lower parts, at most 2^-22 of the whole, is left out; the other small ones are
# added before the large one.
_SPLIT: Final = r"""
// An f32 as the sum of two numbers of 11 bits, the upper one to nearest. What rounds to infinity
// has no lower part that is a number: such sums become NaN.
INLINE void mma_split(float x, u32& upper, u32& lower) {
  upper = (__float_as_uint(x) + 0x1000) & 0xffffe000;
  lower = __float_as_uint(x - __uint_as_float(upper));
}
INLINE void mma_tf32(float& d0, float& d1, float& d2, float& d3,
                     u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
INLINE void mma_f32(float& d0, float& d1, float& d2, float& d3,
                    float a0, float a1, float a2, float a3, float b0, float b1) {
  u32 a[4], b[2], c[4], d[2];
  mma_split(a0, a[0], c[0]); mma_split(a1, a[1], c[1]);
  mma_split(a2, a[2], c[2]); mma_split(a3, a[3], c[3]);
  mma_split(b0, b[0], d[0]); mma_split(b1, b[1], d[1]);
  mma_tf32(d0, d1, d2, d3, c[0], c[1], c[2], c[3], b[0], b[1]);
  mma_tf32(d0, d1, d2, d3, a[0], a[1], a[2], a[3], d[0], d[1]);
  mma_tf32(d0, d1, d2, d3, a[0], a[1], a[2], a[3], b[0], b[1]);
}
"""
