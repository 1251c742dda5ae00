"""Dtypes as LLVM types, and conversions between them.

A dtype has a storage type in memory and a compute type in registers. Floats under 32 bits are
stored as integers and computed in f32, rounded back after every function as the reference does;
4-bit integers lie in the lower half of a byte and are computed in 8 bits; i1 is stored as a byte.
Conversions are integer code, so that no target needs a library for them; where a machine has
instructions for those of f16, these are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from weft.codegen.cpu.code import Code, Val, number
from weft.codegen.cpu.ir import Scalar
from weft.foundation.dtypes import (
    BF16,
    F16,
    F32,
    F64,
    FP8_E4M3,
    FP8_E5M2,
    I1,
    SI4,
    SI64,
    UI4,
    DType,
)
from weft.foundation.errors import InternalError, Unimplemented

HALF: Final = frozenset({"asimd", "f16c"})
"""Features with which a machine converts between f16 and f32 by itself."""
NIBBLES: Final = frozenset({SI4, UI4})


@dataclass(frozen=True)
class _Small:
    """A float format under 32 bits that is not the upper half of one: bits of the significand after
    the point, the bias of its exponent, and its patterns of infinity (or what stands for it) and
    NaN."""

    storage: str
    fraction: int
    bias: int
    infinity: int
    nan: int


_SMALL: Final = {
    F16: _Small("i16", 10, 15, 0x7C00, 0x7E00),
    FP8_E5M2: _Small("i8", 2, 15, 0x7C, 0x7E),
    FP8_E4M3: _Small("i8", 3, 7, 0x7F, 0x7F),
}
_COMPUTE: Final = {
    **dict.fromkeys((F16, BF16, FP8_E4M3, FP8_E5M2, F32), "float"),
    F64: "double",
    I1: "i1",
    **dict.fromkeys(NIBBLES, "i8"),
}
_STORAGE: Final = {
    **{dtype: small.storage for dtype, small in _SMALL.items()},
    BF16: "i16",
    F32: "float",
    F64: "double",
    I1: "i8",
    **dict.fromkeys(NIBBLES, "i8"),
}


def supported(dtype: DType) -> bool:
    """Whether values of this dtype can be held in registers here."""
    return not dtype.is_complex


def compute_type(dtype: DType) -> str:
    if not supported(dtype):
        raise Unimplemented(f"dtype {dtype}", "the CPU code generator has no registers for it")
    return _COMPUTE.get(dtype) or f"i{dtype.bits}"


def storage_type(dtype: DType) -> str:
    return _STORAGE.get(dtype) or f"i{dtype.bits}"


class Formats:
    """Conversions, written into a `Code`."""

    def __init__(self, code: Code, features: frozenset[str] = frozenset()) -> None:
        self.code = code
        self.has_half = bool(features & HALF)
        self.has_saturation = "asimd" in features
        """Whether a conversion to integers gives the nearest one there is, and 0 for NaN."""
        self.stored: dict[str, Val] = {}
        """Values of bf16 as they were loaded, ..."""
        self.bits: dict[str, Val] = {}
        """... and the bits of those that were rounded: neither is rounded again to be stored."""

    def _op(self, op: str, value: Val, constant: int) -> Val:
        return self.code.binary(op, value, number(constant, value.scalar, value.lanes))

    # -- memory ----------------------------------------------------------------------------------

    def from_storage(self, value: Val, dtype: DType) -> Val:
        """A loaded value in its compute type."""
        if dtype is I1:
            return self.code.compare("icmp ne", value, number(0, "i8", value.lanes))
        if dtype in NIBBLES:
            return self.wrapped(value, dtype)
        if dtype is BF16:
            wide = self.code.convert("zext", value, "i32")
            made = self.code.convert("bitcast", self._op("shl", wide, 16), "float")
            self.stored[made.text] = value
            return made
        if dtype is F16 and self.has_half:
            return self.code.convert("fpext", self.code.convert("bitcast", value, "half"), "float")
        return self._from_small(value, _SMALL[dtype]) if dtype in _SMALL else value

    def to_storage(self, value: Val, dtype: DType) -> Val:
        """A value, representable in `dtype`, as it is stored."""
        if dtype is I1:
            return self.code.convert("zext", value, "i8")
        if dtype in NIBBLES:
            return self._op("and", value, 15)
        if dtype is BF16:
            if value.text in self.stored:
                return self.stored[value.text]
            bits = self.bits.get(value.text) or self._bf16_bits(value)
            return self.code.convert("trunc", self._op("lshr", bits, 16), "i16")
        if dtype is F16 and self.has_half:
            return self._to_half(value)
        return self._to_small(value, _SMALL[dtype]) if dtype in _SMALL else value

    def _to_half(self, value: Val) -> Val:
        """Floats as halves. Of a single one LLVM is told that its bits are wanted: where it was
        rounded from a double, LLVM would call a function that nobody has."""
        if value.lanes == 1:
            name = "llvm.convert.to.fp16.f32"
            self.code.declared[name] = f"declare i16 @{name}(float)"
            return self.code.assign(f"call i16 @{name}({value})", "i16", 1)
        return self.code.convert("bitcast", self.code.convert("fptrunc", value, "half"), "i16")

    def rounded(self, value: Val, dtype: DType) -> Val:
        """A computed value rounded (or wrapped) to `dtype`, still in the compute type."""
        if dtype is BF16:
            return self._of_bits(self._bf16_bits(value))
        if dtype in _SMALL:
            return self.from_storage(self.to_storage(value, dtype), dtype)
        return self.wrapped(value, dtype) if dtype in NIBBLES else value

    def cut(self, value: Val) -> Val:
        """The number of bf16 that has the upper bits of a float; of NaN it is NaN."""
        bits = self._op("and", self.code.convert("bitcast", value, "i32"), -65536)
        if not self.has_half:
            # A machine that widens f16 by itself leaves no NaN whose upper bits are infinity's.
            nan = self.code.compare("fcmp uno", value, value)
            bits = self.code.select(nan, self._op("or", bits, 0x400000), bits)
        return self._of_bits(bits)

    def _of_bits(self, bits: Val) -> Val:
        made = self.code.convert("bitcast", bits, "float")
        self.bits[made.text] = bits
        return made

    def wrapped(self, value: Val, dtype: DType) -> Val:
        """The lower four bits of a byte, with the sign of a signed number spread."""
        if dtype is UI4:
            return self._op("and", value, 15)
        return self._op("ashr", self._op("shl", value, 4), 4)

    def _bf16_bits(self, value: Val) -> Val:
        """The bits of a float rounded to nearest even at 16 bits; NaN stays NaN."""
        code = self.code
        bits = code.convert("bitcast", value, "i32")
        odd = self._op("and", self._op("lshr", bits, 16), 1)
        bias = self._op("add", odd, 0x7FFF)
        quiet = self._op("or", bits, 0x400000)
        nan = code.compare("fcmp uno", value, value)
        return self._op("and", code.select(nan, quiet, code.binary("add", bits, bias)), -65536)

    def _from_small(self, value: Val, form: _Small) -> Val:
        """The significand moved to its place and the exponent set right by a product, which takes
        care of subnormal numbers; infinities and NaN keep their meaning."""
        code, lanes = self.code, value.lanes
        width = int(form.storage[1:])
        wide = code.convert("zext", value, "i32")
        sign = self._op("shl", self._op("and", wide, 1 << (width - 1)), 32 - width)
        size = self._op("and", wide, (1 << (width - 1)) - 1)
        moved = self._op("shl", size, 23 - form.fraction)
        scaled = code.binary(
            "fmul",
            code.convert("bitcast", moved, "float"),
            number(2.0 ** (127 - form.bias), "float", lanes),
        )
        least = number(form.infinity, "i32", lanes)
        endless = self._op("or", moved, 0x7F800000)
        if form.infinity == form.nan:
            endless = number(0x7FC00000, "i32", lanes)
        special = code.compare("icmp uge", size, least)
        bits = code.select(special, endless, code.convert("bitcast", scaled, "i32"))
        return code.convert("bitcast", code.binary("or", bits, sign), "float")

    def _to_small(self, value: Val, form: _Small) -> Val:
        """Nearest even; what is too large becomes infinity, or what stands for it."""
        code, lanes = self.code, value.lanes
        width, drop = int(form.storage[1:]), 23 - form.fraction

        def i32(constant: int) -> Val:
            return number(constant, "i32", lanes)

        bits = code.convert("bitcast", value, "i32")
        sign = self._op("lshr", self._op("and", bits, -(1 << 31)), 32 - width)
        size = self._op("and", bits, 0x7FFFFFFF)
        odd = self._op("and", self._op("lshr", size, drop), 1)
        shift = (1 << (drop - 1)) - 1 - ((127 - form.bias) << 23)
        normal = self._op("lshr", code.binary("add", size, self._op("add", odd, shift)), drop)
        # Adding a power of two puts the bits of a subnormal number where a float has its last ones.
        magic = 2.0 ** (24 - form.fraction - form.bias)
        small = code.binary(
            "fadd", code.convert("bitcast", size, "float"), number(magic, "float", lanes)
        )
        anchor = code.convert("bitcast", number(magic, "float", lanes), "i32")
        small = code.binary("sub", code.convert("bitcast", small, "i32"), anchor)
        least = i32((128 - form.bias) << 23)
        result = code.select(code.compare("icmp ult", size, least), small, normal)
        result = code.intrinsic("llvm.umin", result, i32(form.infinity))
        nan = code.compare("icmp ugt", size, i32(0x7F800000))
        result = code.select(nan, i32(form.nan), result)
        return code.convert("trunc", code.binary("or", result, sign), form.storage)

    # -- casts -----------------------------------------------------------------------------------

    def cast(self, x: Val, source: DType, target: DType) -> Val:
        """PTIR's cast."""
        code, to = self.code, compute_type(target)
        if source is target:
            return x
        if target is I1:
            zero = number(0, x.scalar, x.lanes)
            return code.compare("fcmp une" if source.is_float else "icmp ne", x, zero)
        if source is I1:
            wide = code.convert("zext", x, "i32" if target.is_float else to)
            return code.convert("uitofp", wide, to) if target.is_float else wide
        if source.is_float and target.is_float:
            return self._between_floats(x, source, target)
        if source.is_float:
            return self._to_integer(x, target)
        if target.is_float:
            return self._from_integer(x, source, target)
        return self._saturate(x, source, target)

    def _between_floats(self, x: Val, source: DType, target: DType) -> Val:
        if target is F64:
            return self.code.convert("fpext", x, "double")
        if source is F64:
            x = self._to_odd(x) if target is not F32 else self.code.convert("fptrunc", x, "float")
        return self.rounded(x, target)

    def _to_odd(self, x: Val) -> Val:
        """A double as a float whose last bit is set where something was cut off: rounding that
        further down gives what rounding the double would."""
        code = self.code
        near = code.convert("fptrunc", x, "float")
        back = code.convert("fpext", near, "double")
        inexact = code.compare("fcmp one", back, x)
        sizes = (code.intrinsic("llvm.fabs", value) for value in (back, x))
        away = code.compare("fcmp ogt", *sizes)
        bits = code.convert("bitcast", near, "i32")
        bits = code.binary("sub", bits, code.convert("zext", away, "i32"))
        bits = code.binary("or", bits, code.convert("zext", inexact, "i32"))
        return code.convert("bitcast", bits, "float")

    def _to_integer(self, x: Val, target: DType) -> Val:
        if x.lanes > 1 and not self.has_saturation:
            whole = self._vector_to_integer(x, compute_type(target), target.is_signed)
        else:
            name = "llvm.fptosi.sat" if target.is_signed else "llvm.fptoui.sat"
            whole = self.code.intrinsic_to(name, x, compute_type(target))
        return self._clamp(whole, target, target) if target in NIBBLES else whole

    def _vector_to_integer(self, x: Val, to: str, is_signed: bool) -> Val:
        """A vector of floats as integers where no instruction saturates: LLVM takes vectors apart
        then. Nothing that an integer cannot hold is converted; it is chosen before, or after where
        the highest integer is no float."""
        code = self.code
        bits = int(to[1:]) - is_signed
        low = number(-(2.0**bits) if is_signed else 0.0, x.scalar, x.lanes)
        beyond = number(2.0**bits, x.scalar, x.lanes)
        highest = number((1 << bits) - 1, to, x.lanes)
        fits = bits <= (24 if x.scalar == "float" else 53)
        inside = code.select(code.compare("fcmp ogt", x, low), x, low)
        if fits:
            most = number(2.0**bits - 1, x.scalar, x.lanes)
            inside = code.select(code.compare("fcmp olt", inside, most), inside, most)
        else:
            over = code.compare("fcmp oge", x, beyond)
            inside = code.select(over, low, inside)
        whole = code.convert("fptosi" if is_signed else "fptoui", inside, to)
        if not fits:
            whole = code.select(over, highest, whole)
        if is_signed:
            nan = code.compare("fcmp uno", x, x)
            whole = code.select(nan, number(0, to, x.lanes), whole)
        return whole

    def _from_integer(self, x: Val, source: DType, target: DType) -> Val:
        code, op = self.code, "sitofp" if source.is_signed else "uitofp"
        if source.bits <= 16 or target.bits >= 32:
            return self.rounded(code.convert(op, x, compute_type(target)), target)
        if source.bits == 64:
            x = self._sticky(x, source)
        return self.rounded(self._to_odd(code.convert(op, x, "double")), target)

    def _sticky(self, x: Val, source: DType) -> Val:
        """Numbers beyond 53 bits with their last twelve bits replaced by one that says whether they
        were all zero: as a double it is then exact, and rounds the same further down."""
        code = self.code
        rest = code.compare("icmp ne", self._op("and", x, 0xFFF), number(0, "i64", x.lanes))
        mark = self._op("shl", code.convert("zext", rest, "i64"), 11)
        marked = code.binary("or", self._op("and", x, -0x1000), mark)
        size = x
        if source is SI64:
            negative = code.compare("icmp slt", x, number(0, "i64", x.lanes))
            size = code.select(negative, code.binary("sub", number(0, "i64", x.lanes), x), x)
        large = code.compare("icmp uge", size, number(1 << 53, "i64", x.lanes))
        return code.select(large, marked, x)

    def _saturate(self, x: Val, source: DType, target: DType) -> Val:
        x = self._clamp(x, source, target)
        have, wanted = int(x.scalar[1:]), int(compute_type(target)[1:])
        if have == wanted:
            return x
        op = "trunc" if wanted < have else "sext" if source.is_signed else "zext"
        return self.code.convert(op, x, compute_type(target))

    def _clamp(self, x: Val, source: DType, target: DType) -> Val:
        """x brought into the range of `target`, in the compute type of `source`."""
        code, prefix = self.code, "s" if source.is_signed else "u"
        bits = int(x.scalar[1:])
        lowest, highest = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        if not source.is_signed:
            lowest, highest = 0, (1 << bits) - 1
        low, high = max(lowest, int(target.lowest)), min(highest, int(target.highest))
        if low > lowest:
            x = code.intrinsic(f"llvm.{prefix}max", x, number(low, x.scalar, x.lanes))
        if high < highest:
            x = code.intrinsic(f"llvm.{prefix}min", x, number(high, x.scalar, x.lanes))
        return x


def number_of(value: Scalar | None, dtype: DType, lanes: int = 1) -> Val:
    """A constant in the compute type of a dtype; nothing is 0."""
    if isinstance(value, complex):
        raise InternalError(f"{value} is not a number of {dtype}")
    return number(0 if value is None else value, compute_type(dtype), lanes)
