"""Bitwise logic and shifts on integers, the logic also on i1; and the bits of numbers."""

from __future__ import annotations

from weft.foundation.dtypes import FLOATS, INTEGERS, DType
from weft.foundation.errors import SpecViolation
from weft.foundation.scalar import Fn
from weft.ptir.op import Array, EvalContext, Op, extension_op
from weft.ptir.ops.functions import BinaryFunction, UnaryFunction
from weft.ptir.schema import DTypeOf, attr
from weft.ptir.types import TensorType

_STORED = frozenset(dtype for dtype in INTEGERS | FLOATS if dtype.bits >= 8)


@extension_op("bitwise_and")
class BitwiseAnd(BinaryFunction):
    """The bits set in both operands; on i1 the logical and."""

    scalar = Fn.AND
    no_gradient = "integers have no derivative"


@extension_op("bitwise_or")
class BitwiseOr(BinaryFunction):
    """The bits set in either operand; on i1 the logical or."""

    scalar = Fn.OR
    no_gradient = "integers have no derivative"


@extension_op("bitwise_xor")
class BitwiseXor(BinaryFunction):
    """The bits set in exactly one operand; on i1 the logical exclusive or."""

    scalar = Fn.XOR
    no_gradient = "integers have no derivative"


@extension_op("bitwise_not")
class BitwiseNot(UnaryFunction):
    """Every bit of `x` flipped: `-x - 1` for signed, `highest - x` for unsigned integers; on i1 the
    logical not."""

    scalar = Fn.NOT
    no_gradient = "integers have no derivative"


@extension_op("shift_left")
class ShiftLeft(BinaryFunction):
    """`x` shifted toward its high bits, each element by its own `amount`, and filled with zeros.
    Bits beyond the end are lost, so an amount of the dtype's width or more gives 0. A negative
    amount is rejected when the program runs (InvalidShift)."""

    operands = ("x", "amount")
    scalar = Fn.SHIFT_LEFT
    no_gradient = "integers have no derivative"


@extension_op("shift_right")
class ShiftRight(BinaryFunction):
    """`x` shifted toward its low bits, each element by its own `amount`, and filled with copies of
    the sign bit for signed integers and zeros for unsigned ones, so an amount of the dtype's width
    or more gives -1 for negative values and 0 otherwise. A negative amount is rejected when the
    program runs (InvalidShift)."""

    operands = ("x", "amount")
    scalar = Fn.SHIFT_RIGHT
    no_gradient = "integers have no derivative"


@extension_op("bitcast")
class Bitcast(Op):
    """The bits of every element, interpreted as another dtype of the same width: floats as their
    IEEE patterns, integers in two's complement. A NaN of bf16, f16 or fp8 may become another NaN of
    the same sign; a NaN of f32 or f64 keeps its bits."""

    operands = ("x",)
    dtypes = {"x": _STORED, "dtype": _STORED}
    elementwise = True
    dtype_bound = True
    no_gradient = "bits have no derivative"

    dtype: DType = attr(DTypeOf())

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        if x.dtype.bits != self.dtype.bits:
            raise SpecViolation(
                "InvalidAttributeValue",
                f"an element of {x.dtype} has {x.dtype.bits} bits and one of {self.dtype} has "
                f"{self.dtype.bits}",
                "bitcast to a dtype of the same width",
            )
        return x.with_dtype(self.dtype)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        (x,) = args
        return x.view(self.dtype.numpy)
