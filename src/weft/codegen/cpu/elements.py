"""Functions of elements as LLVM code."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from weft.codegen.cpu import math as elementary
from weft.codegen.cpu.code import Code, Val, number
from weft.codegen.cpu.formats import Formats, storage_type
from weft.foundation.dtypes import I1, DType
from weft.foundation.errors import Unimplemented

_PREDICATES = {
    "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"),
    "eq": ("oeq", "eq", "eq"),
    "ge": ("oge", "sge", "uge"),
    "gt": ("ogt", "sgt", "ugt"),
    "ne": ("une", "ne", "ne"),
}
_FLOAT_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INTEGER_OPS = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_LOGIC = {"max": "or", "min": "and", "or": "or", "and": "and", "xor": "xor"}
FUNCTIONS = frozenset(
    {"neg", "abs", "sqrt", "rsqrt", "recip", "relu", "gelu", "silu", "not", "max", "min", "div"}
    | {"exp_nonpositive", "share", "word", "dot", "cut"}
    | {"cast", "select", "const", "index", "copysign", "nextafter", "shift_left", "shift_right"}
    | elementary.FUNCTIONS
    | set(_INTEGER_OPS)
    | set(_PREDICATES)
)
"""What this code generator can compute."""


class Elements:
    """Functions of elements, written into a `Code`."""

    def __init__(self, code: Code, features: frozenset[str] = frozenset()) -> None:
        self.code = code
        self.has_dots = "asimddp" in features
        self.features = features
        self.has_fma = "fma" in features or "asimd" in features
        self.formats = Formats(code, features)

    def apply(self, fn: str, args: list[Val], source: DType, target: DType) -> Val:
        """`fn` of values that all have the dtype `source` (but for a select's predicate)."""
        if fn == "cast":
            return self.formats.cast(args[0], source, target)
        if fn == "select":
            return self.code.select(*args)
        if fn in _PREDICATES:
            return self._compare(fn, args, source)
        if fn == "nextafter":
            start, goal = self.code.level(*args)
            return self._nextafter(start, goal, source)
        if fn == "cut":
            return self.formats.cut(args[0])
        if fn == "word":
            return self._word(self.code.level(*args))
        if source.is_float:
            return self.formats.rounded(self._float(fn, args), target)
        if source is I1:
            return self._boolean(fn, args)
        return self.formats.rounded(self._integer(fn, self.code.level(*args), source), target)

    def _word(self, parts: Sequence[Val]) -> Val:
        """Bytes, or the upper halves of two floats, as one number, the first the lowest."""
        code = self.code
        if parts[0].scalar == "float":
            low, high = (code.convert("bitcast", part, "i32") for part in parts)
            lanes = low.lanes
            low = code.binary("lshr", low, number(16, "i32", lanes))
            return code.binary("or", low, code.binary("and", high, number(-65536, "i32", lanes)))
        wide = [code.convert("zext", part, "i32") for part in parts]
        total = wide[0]
        for place, part in enumerate(wide[1:], 1):
            moved = code.binary("shl", part, number(8 * place, "i32", part.lanes))
            total = code.binary("or", total, moved)
        return total

    def dot(self, args: Sequence[Val], signs: Sequence[bool]) -> Val:
        """A number and the products of the bytes of two words, signed or not, added up: by an
        instruction where the machine has one, else byte by byte."""
        code = self.code
        total, a, b = code.level(*args)
        if self.has_dots and total.lanes == 4:
            return self._dot_by_instruction(total, (a, b), signs)
        shifts = ["ashr" if signed else "lshr" for signed in signs]
        for place in range(4):
            up, down = (number(n, "i32", total.lanes) for n in (24 - 8 * place, 24))
            x, y = (
                code.binary(right, code.binary("shl", side, up), down)
                for right, side in zip(shifts, (a, b), strict=True)
            )
            total = code.binary("add", total, code.binary("mul", x, y))
        return total

    def _dot_by_instruction(self, total: Val, sides: tuple[Val, Val], signs: Sequence[bool]) -> Val:
        """The instruction takes bytes that are all signed, or none. Where A's bytes are not as B's,
        they are moved by 128 to be so, and 128 times the bytes of B make up for it: a sum that all
        rows share."""
        code, (a, b) = self.code, sides
        a_signed, b_signed = signs
        name = f"llvm.aarch64.neon.{'s' if b_signed else 'u'}dot"
        if a_signed is not b_signed:
            flip, half, zero = (number(n, "i32", 4) for n in (0x80808080, 0x40404040, 0))
            moved = code.binary("shl", code.dot(name, zero, b, half), number(1, "i32", 4))
            total = code.binary("add" if b_signed else "sub", total, moved)
            a = code.binary("xor", a, flip)
        # The rows' side last: the instruction takes one word of it for all lanes.
        return code.dot(name, total, b, a)

    def _compare(self, fn: str, args: list[Val], dtype: DType) -> Val:
        ordered, signed, unsigned = _PREDICATES[fn]
        if dtype.is_float:
            return self.code.compare(f"fcmp {ordered}", *args)
        return self.code.compare(f"icmp {signed if dtype.is_signed else unsigned}", *args)

    def _float(self, fn: str, args: list[Val]) -> Val:
        code, x = self.code, args[0]
        one = number(1.0, x.scalar, x.lanes)
        if fn == "div" and self.has_fma and args[1].lanes == 1 < x.lanes and x.scalar == "float":
            return self._shared_quotient(*args)
        if fn in _FLOAT_OPS:
            return code.binary(_FLOAT_OPS[fn], *args)
        match fn:
            case "max" | "min":
                return self._extreme(fn, *code.level(*args))
            case "neg":
                return code.assign(f"fneg {x}", x.scalar, x.lanes)
            case "abs":
                return code.intrinsic("llvm.fabs", x)
            case "copysign":
                return code.intrinsic("llvm.copysign", *args)
            case "sqrt":
                return code.intrinsic("llvm.sqrt", x)
            case "recip":
                return code.binary("fdiv", one, x)
            case "share":
                return self._share(*code.level(*args))
            case "exp_nonpositive":
                return self._lower_exponent(self._float("exp_lifted", args))
            case "rsqrt":
                return code.binary("fdiv", one, code.intrinsic("llvm.sqrt", x))
            case _ if fn in elementary.FUNCTIONS:
                fills = self._fills("avx512f", x)
                return elementary.apply(code, fn, *args, fills=fills, fused=self.has_fma)
            case "relu":
                return code.intrinsic("llvm.maximum", x, number(0.0, x.scalar, x.lanes))
            case "silu":
                grown = self._float("exp", [code.assign(f"fneg {x}", x.scalar, x.lanes)])
                return code.binary("fdiv", x, code.binary("fadd", one, grown))
            case "gelu":
                # As its gradient is spelled, so that both share the erf.
                half = code.binary("fmul", x, number(0.5, x.scalar, x.lanes))
                scaled = self._float("div", [x, number(math.sqrt(2.0), x.scalar)])
                bell = code.binary("fadd", self._float("erf", [scaled]), one)
                return code.binary("fmul", half, bell)
        raise Unimplemented(fn, "the CPU code generator does not have this function of floats")

    def _fills(self, feature: str, x: Val) -> bool:
        """Whether floats fill a register of AVX-512, and the processor has instructions for it."""
        return feature in self.features and x.lanes == (16 if x.scalar == "float" else 8)

    def _extreme(self, fn: str, x: Val, y: Val) -> Val:
        """The greater or smaller one, or NaN where one is; 0 is greater than -0. AVX-512 has an
        instruction that knows zeros but prefers numbers, for registers of any width; LLVM, which
        has none for variables, writes six. It knows which two are enough beside a constant."""
        code, full = self.code, 4 if x.scalar == "float" else 2
        variable = all(each.text.startswith("%") for each in (x, y))
        fits = x.lanes in (1, full, 2 * full, 4 * full)
        if not (variable and fits and "avx512dq" in self.features):
            return code.intrinsic(f"llvm.{fn}imum", x, y)
        sides = [code.gather_lanes([each], full) for each in (x, y)] if x.lanes == 1 else [x, y]
        found = code.instruction("range", sides, None, 5 if fn == "max" else 4)
        number_there = code.lane(found, 0) if x.lanes == 1 else found
        unordered = code.compare("fcmp uno", x, y)
        return code.select(unordered, code.binary("fadd", x, y), number_there)

    def _shared_quotient(self, part: Val, total: Val) -> Val:
        """part / total for a vector of parts that share a total, as those of a norm's row do: the
        reciprocal is computed once for all vectors, and the remainder corrects the product with it
        (Markstein). All is computed for a positive total and with the other sign, which zeros keep
        then, and what is not finite has no remainder. The quotient is correctly rounded, but for
        one in the last place where a part or the quotient is below 2^-100. A total that is 0, or
        whose reciprocal is no normal number, divides every vector."""
        code, lanes = self.code, part.lanes
        size = code.intrinsic("llvm.fabs", total)
        small = code.compare("fcmp ult", size, number(2.0**-126, total.scalar))
        large = code.compare("fcmp ugt", size, number(2.0**126, total.scalar))
        reciprocal = code.binary("fdiv", number(-1.0, total.scalar), size)
        backward, below = code.spread(reciprocal, lanes), code.spread(size, lanes)
        rough = code.assign(f"fmul {part}, {backward.text}", part.scalar, lanes)
        rest = code.intrinsic("llvm.fma", rough, below, part)
        most = number(2.0**126, part.scalar, lanes)
        least = number(-(2.0**126), part.scalar, lanes)
        rest = code.select(code.compare("fcmp olt", rest, most), rest, most)
        rest = code.select(code.compare("fcmp ogt", rest, least), rest, least)
        better = code.intrinsic("llvm.fma", rest, backward, rough)

        def divided() -> list[Val]:
            return [code.binary("fdiv", code.assign(f"fneg {part}", part.scalar, lanes), size)]

        known = _known_float(total)
        if known is None or not 2.0**-126 <= abs(known) <= 2.0**126:
            better = code.rarely(code.binary("or", small, large), [better], divided)[0]
        # A positive total takes the sign back that all was computed with, a negative one keeps it.
        bits = code.convert("bitcast", total, "i32")
        sign = code.binary(
            "and", code.binary("xor", bits, number(-1, "i32")), number(1 << 31, "i32")
        )
        turned = code.binary("xor", code.convert("bitcast", better, "i32"), sign)
        return code.convert("bitcast", turned, part.scalar)

    def _share(self, part: Val, total: Val) -> Val:
        """part / total for a total of 1 or more and a lifted part of it, where many parts share a
        total: the reciprocal is computed once for all, and what the product with it lacks is added,
        which rounds the quotient as a division would (Markstein). Without fused multiply-adds the
        last bit may differ. Where a quotient is subnormal it is made of a lifted one."""
        code, lift = self.code, 2.0 ** elementary.LIFT[part.scalar]

        def divided(total: Val) -> Val:
            one = number(1.0, total.scalar, total.lanes)
            reciprocal = code.binary("fdiv", one, total)
            rough = code.assign(f"fmul {part}, {reciprocal.text}", part.scalar, part.lanes)
            minus = code.assign(f"fneg {rough}", part.scalar, part.lanes)
            rest = code.intrinsic("llvm.fmuladd", minus, total, part)
            return code.intrinsic("llvm.fmuladd", rest, reciprocal, rough)

        # The part is 2^LIFT times itself: over a total raised as much the factor goes out exactly.
        raised = code.binary("fmul", total, number(lift, total.scalar, total.lanes))
        if "asimd" in self.features:
            return divided(raised)
        least = number(elementary.LEAST[part.scalar], total.scalar, total.lanes)
        subnormal = code.compare("fcmp ult", part, code.binary("fmul", raised, least))
        return code.unless(
            subnormal, lambda: divided(raised), lambda: self._lower_exponent(divided(total))
        )

    def _lower_exponent(self, x: Val) -> Val:
        """A lifted number as it is. Only x86-64 takes its time for subnormal ones."""
        if "asimd" not in self.features:
            return elementary.apply(self.code, "lowered", x)
        down = number(2.0 ** -elementary.LIFT[x.scalar], x.scalar, x.lanes)
        return self.code.binary("fmul", x, down)

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
            case "relu":
                return code.intrinsic(f"llvm.{prefix}max", x, number(0, x.scalar, x.lanes))
            case "div":
                return self._divide(x, args[1], dtype)
            case "fmod":
                whole = code.binary("mul", self._divide(x, args[1], dtype), args[1])
                return code.binary("sub", x, whole)
            case "shift_left" | "shift_right":
                return self._shift(fn, x, args[1], dtype)
            case "pow":
                return code.function("power", _integer_power, *args)
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

    def _shift(self, fn: str, x: Val, amount: Val, dtype: DType) -> Val:
        """Zeros, or copies of the sign, come in; an amount of the width or more leaves only
        those."""
        code, last = self.code, int(x.scalar[1:]) - 1
        inside = code.intrinsic("llvm.umin", amount, number(last, x.scalar, x.lanes))
        if fn == "shift_right" and dtype.is_signed:
            return code.binary("ashr", x, inside)
        shifted = code.binary("lshr" if fn == "shift_right" else "shl", x, inside)
        beyond = code.compare("icmp ugt", amount, number(last, x.scalar, x.lanes))
        return code.select(beyond, number(0, x.scalar, x.lanes), shifted)

    def _nextafter(self, start: Val, goal: Val, dtype: DType) -> Val:
        """One step of the stored bits, which count up away from zero."""
        code, lanes = self.code, start.lanes
        scalar = {"float": "i32", "double": "i64"}.get(storage_type(dtype), storage_type(dtype))

        def pattern(value: Val) -> Val:
            stored = self.formats.to_storage(value, dtype)
            return stored if stored.scalar == scalar else code.convert("bitcast", stored, scalar)

        bits, goal_bits = pattern(start), pattern(goal)
        one, zero = number(1, scalar, lanes), number(0.0, start.scalar, lanes)
        up = code.compare("fcmp ogt", goal, start)
        away = code.compare("icmp eq", up, code.compare("fcmp ogt", start, zero))
        step = code.select(away, code.binary("add", bits, one), code.binary("sub", bits, one))
        sign = number(1 << (int(scalar[1:]) - 1), scalar, lanes)
        least = code.binary("or", code.binary("and", goal_bits, sign), one)
        step = code.select(code.compare("fcmp oeq", start, zero), least, step)
        arrived = code.compare("fcmp ueq", start, goal)
        step = code.select(arrived, goal_bits, step)
        step = code.select(code.compare("fcmp uno", start, start), bits, step)
        if scalar != storage_type(dtype):
            step = code.convert("bitcast", step, storage_type(dtype))
        return self.formats.from_storage(step, dtype)

    def _boolean(self, fn: str, args: list[Val]) -> Val:
        code = self.code
        if fn in _LOGIC:
            return code.binary(_LOGIC[fn], *args)
        if fn == "not":
            return code.binary("xor", args[0], number(True, "i1", args[0].lanes))
        raise Unimplemented(fn, "the CPU code generator does not have this function of i1")


def _integer_power(code: Code, base: Val, exponent: Val) -> Val:
    """Squares multiplied where the exponent has a bit; everything wraps."""
    one = number(1, base.scalar, base.lanes)
    result = one
    for bit in range(int(base.scalar[1:])):
        wanted = code.compare(
            "icmp ne",
            code.binary("and", exponent, number(1 << bit, base.scalar, base.lanes)),
            number(0, base.scalar, base.lanes),
        )
        result = code.select(wanted, code.binary("mul", result, base), result)
        base = code.binary("mul", base, base)
    return result


def _known_float(value: Val) -> float | None:
    """What a single float is that is a constant."""
    if not value.text.startswith("0x"):
        return None
    return float(struct.unpack("<d", struct.pack("<Q", int(value.text, 16)))[0])
