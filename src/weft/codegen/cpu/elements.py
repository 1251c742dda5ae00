"""Functions of elements as LLVM code, and dtypes as LLVM types.

A dtype has a storage type in memory and a compute type in registers: f16 and bf16 are stored as
16-bit integers and computed in f32, rounded back after every function as the reference does; i1 is
stored as a byte. Conversions are integer code, so that no target needs a library for them.
"""

from __future__ import annotations

import math

from weft.codegen.cpu import math as elementary
from weft.codegen.cpu.code import Code, Val, number
from weft.foundation.dtypes import BF16, F16, F32, F64, I1, DType
from weft.foundation.errors import Unimplemented

_COMPUTE = {F16: "float", BF16: "float", F32: "float", F64: "double", I1: "i1"}
_STORAGE = {F16: "i16", BF16: "i16", F32: "float", F64: "double", I1: "i8"}
_PREDICATES = {
    "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"),
    "eq": ("oeq", "eq", "eq"),
    "ge": ("oge", "sge", "uge"),
    "gt": ("ogt", "sgt", "ugt"),
    "ne": ("une", "ne", "ne"),
}
_FLOAT_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INTEGER_OPS = {"add": "add", "sub": "sub", "mul": "mul"}
FUNCTIONS = frozenset(
    {"neg", "abs", "sqrt", "rsqrt", "recip", "relu", "gelu", "silu", "not", "max", "min", "div"}
    | {"cast", "select", "const", "index"}
    | elementary.FUNCTIONS
    | set(_INTEGER_OPS)
    | set(_PREDICATES)
)
"""What this code generator can compute."""


def supported(dtype: DType) -> bool:
    """Whether values of this dtype can be held in registers here."""
    return dtype in _COMPUTE or (dtype.is_integer and dtype.bits >= 8)


def compute_type(dtype: DType) -> str:
    if not supported(dtype):
        raise Unimplemented(f"dtype {dtype}", "the CPU code generator has no registers for it")
    return _COMPUTE.get(dtype) or f"i{dtype.bits}"


def storage_type(dtype: DType) -> str:
    return _STORAGE.get(dtype) or f"i{dtype.bits}"


class Elements:
    """Functions of elements, written into a `Code`."""

    def __init__(self, code: Code) -> None:
        self.code = code

    # -- memory formats --------------------------------------------------------------------------

    def from_storage(self, value: Val, dtype: DType) -> Val:
        """A loaded value in its compute type."""
        if dtype is I1:
            return self.code.compare("icmp ne", value, number(0, "i8", value.lanes))
        if dtype is BF16:
            wide = self.code.convert("zext", value, "i32")
            bits = self.code.binary("shl", wide, number(16, "i32", value.lanes))
            return self.code.convert("bitcast", bits, "float")
        return self._from_half(value) if dtype is F16 else value

    def to_storage(self, value: Val, dtype: DType) -> Val:
        """A value, representable in `dtype`, as it is stored."""
        if dtype is I1:
            return self.code.convert("zext", value, "i8")
        if dtype is BF16:
            bits = self._bf16_bits(value)
            high = self.code.binary("lshr", bits, number(16, "i32", value.lanes))
            return self.code.convert("trunc", high, "i16")
        return self._to_half(value) if dtype is F16 else value

    def rounded(self, value: Val, dtype: DType) -> Val:
        """A computed value rounded to `dtype`, still in the compute type."""
        if dtype is BF16:
            return self.code.convert("bitcast", self._bf16_bits(value), "float")
        if dtype is F16:
            return self._from_half(self._to_half(value))
        return value

    def _bf16_bits(self, value: Val) -> Val:
        """The bits of a float rounded to nearest even at 16 bits; NaN stays NaN."""
        code, lanes = self.code, value.lanes
        bits = code.convert("bitcast", value, "i32")
        odd = code.binary("lshr", bits, number(16, "i32", lanes))
        odd = code.binary("and", odd, number(1, "i32", lanes))
        bias = code.binary("add", odd, number(0x7FFF, "i32", lanes))
        quiet = code.binary("or", bits, number(0x400000, "i32", lanes))
        nan = code.compare("fcmp uno", value, value)
        chosen = code.select(nan, quiet, code.binary("add", bits, bias))
        return code.binary("and", chosen, number(-65536, "i32", lanes))

    def _from_half(self, value: Val) -> Val:
        code, lanes = self.code, value.lanes
        wide = code.convert("zext", value, "i32")
        sign = code.binary("shl", code.binary("and", wide, number(0x8000, "i32", lanes)),
                           number(16, "i32", lanes))  # fmt: skip
        shifted = code.binary("shl", code.binary("and", wide, number(0x7FFF, "i32", lanes)),
                              number(13, "i32", lanes))  # fmt: skip
        scaled = code.binary(
            "fmul", code.convert("bitcast", shifted, "float"), number(2.0**112, "float", lanes)
        )
        special = code.compare("icmp uge", shifted, number(0x0F800000, "i32", lanes))
        infinite = code.binary("or", shifted, number(0x7F800000, "i32", lanes))
        bits = code.select(special, infinite, code.convert("bitcast", scaled, "i32"))
        return code.convert("bitcast", code.binary("or", bits, sign), "float")

    def _to_half(self, value: Val) -> Val:
        code, lanes = self.code, value.lanes

        def i32(constant: int) -> Val:
            return number(constant, "i32", lanes)

        bits = code.convert("bitcast", value, "i32")
        sign = code.binary("lshr", code.binary("and", bits, i32(-(1 << 31))), i32(16))
        size = code.binary("and", bits, i32(0x7FFFFFFF))
        odd = code.binary("and", code.binary("lshr", size, i32(13)), i32(1))
        normal = code.binary("add", size, code.binary("add", odd, i32(0xFFF - (112 << 23))))
        normal = code.binary("lshr", normal, i32(13))
        # Adding 0.5 puts the bits of a subnormal half where a float has its last ones.
        small = code.binary(
            "fadd", code.convert("bitcast", size, "float"), number(0.5, "float", lanes)
        )
        small = code.binary("sub", code.convert("bitcast", small, "i32"), i32(0x3F000000))
        result = code.select(code.compare("icmp ult", size, i32(113 << 23)), small, normal)
        result = code.select(code.compare("icmp uge", size, i32(0x477FF000)), i32(0x7C00), result)
        result = code.select(code.compare("icmp ugt", size, i32(0x7F800000)), i32(0x7E00), result)
        return code.convert("trunc", code.binary("or", result, sign), "i16")

    # -- functions -------------------------------------------------------------------------------

    def apply(self, fn: str, args: list[Val], source: DType, target: DType) -> Val:
        """`fn` of values that all have the dtype `source` (but for a select's predicate)."""
        if fn == "cast":
            return self.cast(args[0], source, target)
        if fn == "select":
            return self.code.select(*args)
        if fn in _PREDICATES:
            return self._compare(fn, args, source)
        if source.is_float:
            return self.rounded(self._float(fn, args), target)
        return self._boolean(fn, args) if source is I1 else self._integer(fn, args, source)

    def _compare(self, fn: str, args: list[Val], dtype: DType) -> Val:
        ordered, signed, unsigned = _PREDICATES[fn]
        if dtype.is_float:
            return self.code.compare(f"fcmp {ordered}", *args)
        return self.code.compare(f"icmp {signed if dtype.is_signed else unsigned}", *args)

    def _float(self, fn: str, args: list[Val]) -> Val:
        code, x = self.code, args[0]
        one = number(1.0, x.scalar, x.lanes)
        if fn in _FLOAT_OPS:
            return code.binary(_FLOAT_OPS[fn], *args)
        match fn:
            case "max" | "min":
                return code.intrinsic(f"llvm.{fn}imum", *args)
            case "neg":
                return code.assign(f"fneg {x}", x.scalar, x.lanes)
            case "abs":
                return code.intrinsic("llvm.fabs", x)
            case "sqrt":
                return code.intrinsic("llvm.sqrt", x)
            case "recip":
                return code.binary("fdiv", one, x)
            case "rsqrt":
                return code.binary("fdiv", one, code.intrinsic("llvm.sqrt", x))
            case _ if fn in elementary.FUNCTIONS:
                return elementary.apply(code, fn, *args)
            case "relu":
                return code.intrinsic("llvm.maximum", x, number(0.0, x.scalar, x.lanes))
            case "silu":
                grown = self._float("exp", [code.assign(f"fneg {x}", x.scalar, x.lanes)])
                return code.binary("fdiv", x, code.binary("fadd", one, grown))
            case "gelu":
                scaled = code.binary("fmul", x, number(math.sqrt(0.5), x.scalar, x.lanes))
                bell = code.binary("fadd", one, self._float("erf", [scaled]))
                half = code.binary("fmul", x, number(0.5, x.scalar, x.lanes))
                return code.binary("fmul", half, bell)
        raise Unimplemented(fn, "the CPU code generator does not have this function of floats")

    def _integer(self, fn: str, args: list[Val], dtype: DType) -> Val:
        code, x = self.code, args[0]
        prefix = "s" if dtype.is_signed else "u"
        if fn in _INTEGER_OPS:
            return code.binary(_INTEGER_OPS[fn], *args)
        match fn:
            case "max" | "min":
                return code.intrinsic(f"llvm.{prefix}{fn}", *args)
            case "neg":
                return code.binary("sub", number(0, x.scalar, x.lanes), x)
            case "abs" if not dtype.is_signed:
                return x
            case "abs":
                negative = code.compare("icmp slt", x, number(0, x.scalar, x.lanes))
                return code.select(negative, self._integer("neg", [x], dtype), x)
            case "not":
                return code.binary("xor", x, number(-1, x.scalar, x.lanes))
            case "div":
                return self._divide(x, args[1], dtype)
        raise Unimplemented(fn, "the CPU code generator does not have this function of integers")

    def _divide(self, x: Val, y: Val, dtype: DType) -> Val:
        """Toward zero; the lowest value by -1 wraps. A zero divisor was reported and counts as
        1."""
        code = self.code
        x, y = code.level(x, y)
        one = number(1, x.scalar, x.lanes)
        zero = code.compare("icmp eq", y, number(0, x.scalar, x.lanes))
        if not dtype.is_signed:
            return code.binary("udiv", x, code.select(zero, one, y))
        minus = code.compare("icmp eq", y, number(-1, x.scalar, x.lanes))
        special = code.binary("or", zero, minus)
        quotient = code.binary("sdiv", x, code.select(special, one, y))
        return code.select(minus, self._integer("neg", [x], dtype), quotient)

    def _boolean(self, fn: str, args: list[Val]) -> Val:
        code = self.code
        if fn in ("max", "min"):
            return code.binary("or" if fn == "max" else "and", *args)
        if fn == "not":
            return code.binary("xor", args[0], number(True, "i1", args[0].lanes))
        raise Unimplemented(fn, "the CPU code generator does not have this function of i1")

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
            if x.scalar != to:
                x = code.convert("fpext" if to == "double" else "fptrunc", x, to)
            return self._narrowed(x, source, target)
        if source.is_float:
            name = "llvm.fptosi.sat" if target.is_signed else "llvm.fptoui.sat"
            return code.intrinsic_to(name, x, to)
        if target.is_float:
            if source.bits > 24 and target in (F16, BF16):
                raise Unimplemented(f"cast {source} to {target}", "it needs a rounding to odd")
            return self.rounded(
                code.convert("sitofp" if source.is_signed else "uitofp", x, to), target
            )
        return self._saturate(x, source, target)

    def _narrowed(self, x: Val, source: DType, target: DType) -> Val:
        if source is F64 and target in (F16, BF16):
            raise Unimplemented(f"cast f64 to {target}", "it needs a rounding to odd")
        return self.rounded(x, target)

    def _saturate(self, x: Val, source: DType, target: DType) -> Val:
        code, prefix = self.code, "s" if source.is_signed else "u"
        low = max(int(source.lowest), int(target.lowest))
        high = min(int(source.highest), int(target.highest))
        if low > int(source.lowest):
            x = code.intrinsic(f"llvm.{prefix}max", x, number(low, x.scalar, x.lanes))
        if high < int(source.highest):
            x = code.intrinsic(f"llvm.{prefix}min", x, number(high, x.scalar, x.lanes))
        if target.bits == source.bits:
            return x
        op = "trunc" if target.bits < source.bits else "sext" if source.is_signed else "zext"
        return code.convert(op, x, compute_type(target))
