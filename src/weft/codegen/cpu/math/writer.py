"""The vocabulary that elementary functions are written in: arithmetic on vectors of one float
format.

Operands may be Python numbers. Plain `add`, `sub` and `mul` may be contracted into fused
multiply-adds by LLVM, which only makes a polynomial better; what must round exactly as written, so
that a later line can recover the error, uses the `exact_` forms. No form calls a library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from weft.codegen.cpu.code import Code, Val, number

Operand: TypeAlias = Val | float
Pair: TypeAlias = tuple[Val, Val]
"""A number as an unevaluated sum: a part that is it, rounded, and what is left."""


@dataclass(frozen=True)
class Format:
    """What functions need to know of a float format."""

    integer: str
    mantissa: int
    bias: int


FORMATS: Final = {"float": Format("i32", 23, 127), "double": Format("i64", 52, 1023)}


class Writer:
    """Writes into a `Code`."""

    def __init__(self, code: Code) -> None:
        self.code = code

    # -- arithmetic ------------------------------------------------------------------------------

    def like(self, value: Operand, x: Val) -> Val:
        """A number in the format of x."""
        return value if isinstance(value, Val) else number(value, x.scalar, x.lanes)

    def _both(self, a: Operand, b: Operand) -> tuple[Val, Val]:
        model = a if isinstance(a, Val) else b
        if not isinstance(model, Val):
            raise TypeError("one of the operands must be a value")
        return self.like(a, model), self.like(b, model)

    def add(self, a: Operand, b: Operand) -> Val:
        return self.code.binary("fadd", *self._both(a, b))

    def sub(self, a: Operand, b: Operand) -> Val:
        return self.code.binary("fsub", *self._both(a, b))

    def mul(self, a: Operand, b: Operand) -> Val:
        return self.code.binary("fmul", *self._both(a, b))

    def div(self, a: Operand, b: Operand) -> Val:
        return self.code.binary("fdiv", *self._both(a, b))

    def neg(self, a: Val) -> Val:
        return self.code.assign(f"fneg {a}", a.scalar, a.lanes)

    def abs(self, a: Val) -> Val:
        return self.code.intrinsic("llvm.fabs", a)

    def sqrt(self, a: Val) -> Val:
        return self.code.intrinsic("llvm.sqrt", a)

    def copysign(self, size: Operand, sign: Val) -> Val:
        return self.code.intrinsic("llvm.copysign", self.like(size, sign), sign)

    def fma(self, a: Operand, b: Operand, c: Operand) -> Val:
        """`a * b + c`, rounded once or twice, whichever is faster."""
        model = next(x for x in (a, b, c) if isinstance(x, Val))
        return self.code.intrinsic("llvm.fmuladd", *(self.like(x, model) for x in (a, b, c)))

    def exact_fma(self, a: Operand, b: Operand, c: Operand) -> Val:
        """`a * b + c`, rounded once: for machines that have an instruction for it."""
        model = next(x for x in (a, b, c) if isinstance(x, Val))
        return self.code.intrinsic("llvm.fma", *(self.like(x, model) for x in (a, b, c)))

    def poly(self, coefficients: Sequence[float], t: Val) -> Val:
        """The polynomial with these coefficients, the constant one first: linear pairs, then Horner
        in the square. A pair may be overwritten by the sum it begins, a constant would have to be
        copied first."""
        pairs = [
            self.fma(t, pair[1], pair[0]) if len(pair) > 1 else self.like(pair[0], t)
            for pair in (coefficients[i : i + 2] for i in range(0, len(coefficients), 2))
        ]
        result = pairs[-1]
        square = self.mul(t, t) if len(pairs) > 1 else t
        for pair in reversed(pairs[:-1]):
            result = self.fma(result, square, pair)
        return result

    def not_tiny(self, size: Val) -> Val:
        """A number that is not negative, or for less, and for NaN, one whose square is less than
        half of the last place of 1: for polynomials to which it is nothing. x86-64 takes 150 cycles
        for a square that underflows."""
        least = 2.0 ** -(self.form(size).mantissa // 2 + 4)
        return self.code.intrinsic("llvm.maxnum", size, self.like(least, size))

    # -- tests and choices -----------------------------------------------------------------------

    def test(self, op: str, a: Operand, b: Operand) -> Val:
        """A comparison of floats by its LLVM name: olt, oge, une, uno."""
        return self.code.compare(f"fcmp {op}", *self._both(a, b))

    def is_nan(self, a: Val) -> Val:
        return self.test("uno", a, a)

    def choose(self, pred: Val, a: Operand, b: Operand) -> Val:
        return self.code.select(pred, *self._both(a, b))

    def either(self, a: Val, b: Val) -> Val:
        return self.code.binary("or", a, b)

    def both(self, a: Val, b: Val) -> Val:
        return self.code.binary("and", a, b)

    # -- bits ------------------------------------------------------------------------------------

    def form(self, x: Val) -> Format:
        return FORMATS[x.scalar]

    def bits(self, x: Val) -> Val:
        return self.code.convert("bitcast", x, self.form(x).integer)

    def from_bits(self, bits: Val) -> Val:
        scalar = "float" if bits.scalar == "i32" else "double"
        return self.code.convert("bitcast", bits, scalar)

    def integer(self, op: str, a: Val, b: Val | int) -> Val:
        """An operation on integers: add, sub, and, or, shl, ashr, ..."""
        other = b if isinstance(b, Val) else number(b, a.scalar, a.lanes)
        return self.code.binary(op, a, other)

    def whole(self, x: Val) -> Val:
        """A float without fraction as an integer of the same width."""
        return self.code.convert("fptosi", x, self.form(x).integer)

    def as_float(self, n: Val) -> Val:
        return self.code.convert("sitofp", n, "float" if n.scalar == "i32" else "double")

    def power_of_two(self, n: Val, scalar: str) -> Val:
        """2^n for an integer n within the exponents of normal numbers."""
        form = FORMATS[scalar]
        biased = self.integer("add", n, form.bias)
        return self.code.convert("bitcast", self.integer("shl", biased, form.mantissa), scalar)

    def nearest(self, x: Val) -> Val:
        """The whole number nearest to a moderate x: adding 1.5 * 2^mantissa rounds the rest off."""
        magic = 1.5 * 2.0 ** self.form(x).mantissa
        return self.sub(self.exact_add(x, magic), magic)

    def scale_normal(self, value: Val, n: Val) -> Val:
        """value times 2^n where both are normal; the bits of n above the exponent's count for
        nothing."""
        power = self.integer("shl", n, self.form(value).mantissa)
        return self.from_bits(self.integer("add", self.bits(value), power))

    # -- rounding errors -------------------------------------------------------------------------

    def _exact(self, op: str, a: Operand, b: Operand) -> Val:
        x, y = self.code.level(*self._both(a, b))
        return self.code.assign(f"{op} {x}, {y.text}", x.scalar, x.lanes)

    def exact_add(self, a: Operand, b: Operand) -> Val:
        return self._exact("fadd", a, b)

    def exact_sub(self, a: Operand, b: Operand) -> Val:
        return self._exact("fsub", a, b)

    def exact_mul(self, a: Operand, b: Operand) -> Val:
        return self._exact("fmul", a, b)

    def two_sum(self, a: Operand, b: Operand) -> Pair:
        """The rounded sum, and what rounding took away."""
        total = self.exact_add(a, b)
        part = self.exact_sub(total, a)
        lost = self.exact_sub(a, self.exact_sub(total, part))
        return total, self.exact_add(lost, self.exact_sub(b, part))

    def quick_two_sum(self, a: Val, b: Val) -> Pair:
        """The same where a is 0 or at least as large as b."""
        total = self.exact_add(a, b)
        return total, self.exact_sub(b, self.exact_sub(total, a))

    def upper(self, x: Val) -> Val:
        """x with the lower half of its significand cut off: products of two such are exact."""
        cut = -1 << (self.form(x).mantissa // 2 + 1)
        return self.from_bits(self.integer("and", self.bits(x), cut))

    def two_product(self, a: Val, b: Operand) -> Pair:
        """The rounded product, and what rounding took away."""
        b = self.like(b, a)
        total = self.exact_mul(a, b)
        a_high, b_high = self.upper(a), self.upper(b)
        a_low, b_low = self.exact_sub(a, a_high), self.exact_sub(b, b_high)
        lost = self.exact_sub(self.exact_mul(a_high, b_high), total)
        lost = self.exact_add(lost, self.exact_mul(a_high, b_low))
        lost = self.exact_add(lost, self.exact_mul(a_low, b_high))
        return total, self.exact_add(lost, self.exact_mul(a_low, b_low))
