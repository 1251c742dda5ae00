"""From PTIR to Tiny, element by element: functions, comparisons, casts, bits, quantisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from weft.foundation.dtypes import F32, F64, FP8_E4M3, I1, SI32, SI64, DType
from weft.foundation.numeric import wide_dtype
from weft.foundation.scalar import Fn
from weft.ptir.op import Op
from weft.ptir.ops import bits, elementwise, quantisation, scheduling
from weft.ptir.ops import functions as fns
from weft.ptir.types import TensorType
from weft.tiny import build, spelled_out
from weft.tiny.from_ptir_row import Row, Rows
from weft.tiny.ir import Binary, Rule, Unary, Value, Where
from weft.tiny.spelled_out import known_number

_INTEGER_EXPONENTS: Final = range(65)
_MULTIPLIED_WIDER: Final = range(3, 9)
"""Exponents whose powers are a few products in a wider format: there is no logarithm, and a
negative number is like others."""


def _unary(fn: Fn) -> Row:
    return lambda op, args, output: Unary(fn, args[0])


def _binary(fn: Fn) -> Row:
    return lambda op, args, output: Binary(fn, args[0], args[1])


def _elementwise_unary(
    op: elementwise.ElementwiseUnary, args: Sequence[Value], output: TensorType
) -> Value:
    return Unary(elementwise.SCALARS[op.fn], args[0])


def _elementwise_binary(
    op: elementwise.ElementwiseBinary, args: Sequence[Value], output: TensorType
) -> Value:
    if op.fn is elementwise.BinaryFn.DIV:
        return Binary(Fn.DIV, args[0], divisor(args[1]))
    if op.fn is elementwise.BinaryFn.MUL:
        return spelled_out.multiply(*args)
    return Binary(elementwise.SCALARS[op.fn], args[0], args[1])


def divisor(x: Value) -> Value:
    """An operand that must not be zero, where it is an integer and not known to be another."""
    return _check_elements(x, Rule.NONZERO, "IntegerDivideByZero", lambda number: number != 0)


def _not_negative(x: Value, code: str) -> Value:
    if not x.dtype.is_signed:
        return x
    return _check_elements(x, Rule.NONNEGATIVE, code, lambda number: number >= 0)


def _check_elements(x: Value, rule: Rule, code: str, keeps: Callable[[int], bool]) -> Value:
    if not x.dtype.is_integer:
        return x
    known = known_number(x)
    return x if known is not None and keeps(int(known.real)) else build.check(x, rule, code)


def _fmod(op: fns.Fmod, args: Sequence[Value], output: TensorType) -> Value:
    return Binary(Fn.FMOD, args[0], divisor(args[1]))


def _pow(op: fns.Pow, args: Sequence[Value], output: TensorType) -> Value:
    base, exponent = args
    known = known_number(exponent)
    if known == -1 and base.dtype.is_float:
        return Binary(Fn.DIV, build.splat(1, base.dtype, base.shape), base)
    if known is not None:
        whole, wide = known.real, _wider(base.dtype)
        if known in _multiplied_out(base.dtype):
            return _product_of_squares(base, int(whole))
        if wide is not None and known in _MULTIPLIED_WIDER:
            return build.cast(_product_of_squares(build.cast(base, wide), int(whole)), base.dtype)
    return Binary(Fn.POW, base, _not_negative(exponent, "InvalidExponent"))


def _multiplied_out(dtype: DType) -> Sequence[int]:
    """Exponents whose powers are a few products: every one of an integer, which wraps in any order;
    of a float where the products round no more than a power may. A narrow float would be rounded
    after each."""
    if dtype.is_integer:
        return _INTEGER_EXPONENTS
    if not dtype.is_float:
        return ()
    return (2, 3) if dtype.bits >= F32.bits else (2,)


def _wider(dtype: DType) -> DType | None:
    """The float format in which products of such numbers lose next to nothing."""
    if not dtype.is_float or dtype is F64:
        return None
    return F64 if dtype is F32 else F32


def _product_of_squares(base: Value, exponent: int) -> Value:
    """x to a whole power: the product of those of x, x^2, x^4, ... whose bit the exponent has."""
    product, square = None, base
    while exponent:
        if exponent & 1:
            product = square if product is None else Binary(Fn.MUL, product, square)
        exponent >>= 1
        square = Binary(Fn.MUL, square, square) if exponent else square
    return build.splat(1, base.dtype, base.shape) if product is None else product


def _shift(fn: Fn) -> Row:
    def row(op: Op, args: Sequence[Value], output: TensorType) -> Value:
        return Binary(fn, args[0], _not_negative(args[1], "InvalidShift"))

    return row


def _logic(fn: Fn, on_truth: Fn) -> Row:
    """Bitwise logic; on i1 in terms of its order: and is min, or is max, xor is ne."""

    def row(op: Op, args: Sequence[Value], output: TensorType) -> Value:
        return Binary(on_truth if args[0].dtype is I1 else fn, args[0], args[1])

    return row


def _compare(op: elementwise.Compare, args: Sequence[Value], output: TensorType) -> Value:
    return Binary(elementwise.SCALARS[op.op], args[0], args[1])


def _select(op: elementwise.Select, args: Sequence[Value], output: TensorType) -> Value:
    return spelled_out.choice(*args)


def _cast(op: elementwise.Cast, args: Sequence[Value], output: TensorType) -> Value:
    return build.cast(args[0], op.dtype)


def _first_operand(op: Op, args: Sequence[Value], output: TensorType) -> Value:
    return args[0]


def _barrier(op: scheduling.Barrier, args: Sequence[Value], output: TensorType) -> Value:
    return build.barrier(args[0], args[1])


def _clamp(op: elementwise.Clamp, args: Sequence[Value], output: TensorType) -> Value:
    x, low, high = args
    if known_number(low) != x.dtype.lowest:
        x = Binary(Fn.MAX, x, low)
    return x if known_number(high) == x.dtype.highest else Binary(Fn.MIN, x, high)


# -- tests ---------------------------------------------------------------------------------------


def _test_row(test: Callable[[Value], Value]) -> Row:
    return lambda op, args, output: test(args[0])


def is_nan(x: Value) -> Value:
    return Binary(Fn.NE, x, x)


def is_finite(x: Value) -> Value:
    # Inf - Inf is NaN, as NaN - NaN is.
    return build.binary(Fn.EQ, Binary(Fn.SUB, x, x), 0.0)


def is_infinite(x: Value) -> Value:
    if x.dtype is FP8_E4M3:
        # This dtype has no infinities.
        return build.splat(False, I1, x.shape)
    return build.binary(Fn.EQ, Unary(Fn.ABS, x), math.inf)


def _signbit(op: Op, args: Sequence[Value], output: TensorType) -> Value:
    (x,) = args
    # No comparison with x tells -0 from 0, nor the sign of a NaN.
    return build.binary(Fn.LT, Binary(Fn.COPYSIGN, build.splat(1, x.dtype, x.shape), x), 0.0)


def _sign(op: Op, args: Sequence[Value], output: TensorType) -> Value:
    (x,) = args
    zero, one = (build.splat(number, x.dtype, x.shape) for number in (0, 1))
    positive = Binary(Fn.GT, x, zero)
    if x.dtype.is_integer and not x.dtype.is_signed:
        return Where(positive, one, x)
    # What is neither above nor below 0 is 0, -0 or NaN, and its own sign.
    below = Where(Binary(Fn.LT, x, zero), build.splat(-1, x.dtype, x.shape), x)
    return Where(positive, one, below)


# -- quantisation --------------------------------------------------------------------------------


def _spread_parameter(parameter: Value, x: Value, axis: int | None) -> Value:
    """A scale or zero point over the whole of `x`."""
    if axis is not None and parameter.shape:
        column = [dim if k == axis else 1 for k, dim in enumerate(x.shape)]
        parameter = build.reshape(parameter, column)
    return build.expand(parameter, x.shape)


def _quantise_quotient(quotient: Value, zero_point: Value | None, dtype: DType) -> Value:
    steps = Unary(Fn.ROUND, quotient) if dtype.is_integer else quotient
    if zero_point is not None:
        steps = Binary(Fn.ADD, steps, build.cast(zero_point, steps.dtype))
    if most := quantisation.LARGEST.get(dtype):
        steps = build.binary(Fn.MIN, build.binary(Fn.MAX, steps, -most), most)
    return build.cast(steps, dtype)


def _dequantise_steps(x: Value, scale: Value, zero_point: Value | None) -> Value:
    """Integers of up to 16 bits are subtracted in 32, others in 64, which is exact."""
    wide = SI32 if x.dtype.bits <= 16 else SI64
    wide = scale.dtype if x.dtype.is_float else wide
    steps = build.cast(x, wide)
    if zero_point is not None:
        steps = Binary(Fn.SUB, steps, build.cast(zero_point, wide))
    return Binary(Fn.MUL, build.cast(steps, scale.dtype), scale)


def _quantize(op: quantisation.Quantize, args: Sequence[Value], output: TensorType) -> Value:
    x, *parameters = args
    scale, *rest = (_spread_parameter(p, x, op.axis) for p in parameters)
    quotient = build.cast(Binary(Fn.DIV, x, scale), wide_dtype(x.dtype))
    return _quantise_quotient(quotient, rest[0] if rest else None, op.output_dtype)


def _dequantize(op: quantisation.Dequantize, args: Sequence[Value], output: TensorType) -> Value:
    x, scale, *rest = args
    wide = F64 if F64 in (output.dtype, scale.dtype) else F32
    scale, *rest = (_spread_parameter(p, x, op.axis) for p in (build.cast(scale, wide), *rest))
    return build.cast(_dequantise_steps(x, scale, rest[0] if rest else None), output.dtype)


def _requantize(op: quantisation.Requantize, args: Sequence[Value], output: TensorType) -> Value:
    q, in_scale, in_zero, out_scale, out_zero = args
    wide = wide_dtype(in_scale.dtype)
    scales = (build.cast(scale, wide) for scale in (in_scale, out_scale))
    before, after = (_spread_parameter(scale, q, op.axis) for scale in scales)
    real = _dequantise_steps(q, before, _spread_parameter(in_zero, q, op.axis))
    quotient = Binary(Fn.DIV, real, after)
    return _quantise_quotient(quotient, _spread_parameter(out_zero, q, op.axis), op.output_dtype)


def _classes_of_tiny(kind: type[fns.ScalarOp]) -> Iterator[type[fns.ScalarOp]]:
    """Functions that Tiny has as well."""
    return (cls for cls in kind.__subclasses__() if hasattr(cls, "scalar"))


ROWS: Final[Rows] = {
    elementwise.ElementwiseUnary: _elementwise_unary,
    elementwise.ElementwiseBinary: _elementwise_binary,
    elementwise.Compare: _compare,
    elementwise.Select: _select,
    elementwise.Cast: _cast,
    elementwise.StopGradient: _first_operand,
    scheduling.Barrier: _barrier,
    elementwise.Clamp: _clamp,
    **{cls: _unary(cls.scalar) for cls in _classes_of_tiny(fns.UnaryFunction)},
    **{cls: _binary(cls.scalar) for cls in _classes_of_tiny(fns.BinaryFunction)},
    fns.Sign: _sign,
    fns.Signbit: _signbit,
    fns.IsNan: _test_row(is_nan),
    fns.IsInf: _test_row(is_infinite),
    fns.IsFinite: _test_row(is_finite),
    fns.Pow: _pow,
    fns.Fmod: _fmod,
    bits.BitwiseAnd: _logic(Fn.AND, Fn.MIN),
    bits.BitwiseOr: _logic(Fn.OR, Fn.MAX),
    bits.BitwiseXor: _logic(Fn.XOR, Fn.NE),
    bits.ShiftLeft: _shift(Fn.SHIFT_LEFT),
    bits.ShiftRight: _shift(Fn.SHIFT_RIGHT),
    quantisation.Quantize: _quantize,
    quantisation.Dequantize: _dequantize,
    quantisation.Requantize: _requantize,
}
