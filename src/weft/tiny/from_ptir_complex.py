"""From PTIR to Tiny: complex values, which are pairs of real ones.

A complex tensor in memory is a float tensor with one more axis, of size 2: its real and imaginary
parts lie next to each other. Inside a graph a complex value is a `Pair` of values of the part's
dtype. Ops that are linear, or only place elements, are carried out on each part; the others have a
row here, or stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final, TypeAlias

from weft.foundation import numeric
from weft.foundation.dtypes import F64, I1, DType
from weft.foundation.records import dataclass
from weft.foundation.scalar import Fn
from weft.ptir.literal import ScalarLiteral, ScalarTag
from weft.ptir.op import Op
from weft.ptir.ops import (
    collective,
    complex_parts,
    contraction,
    elementwise,
    indexing,
    movement,
    reduction,
    scheduling,
    window,
)
from weft.ptir.ops import functions as fns
from weft.ptir.types import TensorType, TupleType, ValueType
from weft.tiny import build
from weft.tiny.from_ptir_elementwise import is_finite, is_infinite, is_nan
from weft.tiny.from_ptir_movement import REDUCE
from weft.tiny.from_ptir_row import Rows
from weft.tiny.ir import Binary, Iota, Unary, Value, Where

PART: Final = complex_parts.PART


@dataclass(frozen=True)
class Pair:
    """The real and the imaginary part of a complex value."""

    real: Value
    imag: Value

    @property
    def parts(self) -> tuple[Value, Value]:
        return self.real, self.imag


Part: TypeAlias = "Value | Pair"
ComplexRow: TypeAlias = "Callable[[Any, Sequence[Any], TensorType], Part | None]"
"""Builds a result from operands, pairs among them; None where the op stays whole."""


def pair_from_axis(x: Value) -> Pair:
    """The pair that a value with a last axis of size 2 holds."""
    shape = x.shape[:-1]
    start, size = [0] * len(x.shape), (*shape, 1)
    sides = []
    for k in (0, 1):
        start[-1] = k
        sides.append(build.reshape(build.shrink(x, start, size), shape))
    return Pair(*sides)


def axis_from_pair(pair: Pair) -> Value:
    """The value with a last axis of size 2 that holds a pair."""
    real, imag = (build.reshape(part, (*part.shape, 1)) for part in pair.parts)
    return build.concat([real, imag], len(real.shape) - 1)


def stored_type(kind: TensorType) -> TensorType:
    """The type of a tensor as graphs have it."""
    if not kind.dtype.is_complex:
        return kind
    return TensorType(PART[kind.dtype], (*kind.shape, 2))


def lower_complex(op: Op, args: Sequence[Part], output: ValueType, rows: Rows) -> Part | None:
    """An op with complex operands or results; None where it stays whole."""
    if isinstance(output, TupleType):
        return None
    if type(op) in COMPLEX_ROWS:
        return COMPLEX_ROWS[type(op)](op, args, output)
    return _by_parts(op, args, output, rows) if type(op) in _LINEAR else None


# -- part by part --------------------------------------------------------------------------------

_LINEAR: Final = frozenset(
    {
        movement.Reshape, movement.Transpose, movement.BroadcastTo, movement.Slice,
        movement.Concat, movement.Pad, movement.Tile, elementwise.Select, indexing.DynamicSlice,
        indexing.DynamicUpdateSlice, indexing.Take, indexing.Gather, indexing.ScatterAdd,
        indexing.ScatterReduce, window.ExtractPatches, window.ReduceWindow,
        reduction.SegmentReduce, reduction.CumulativeSum,
    }
)  # fmt: skip
"""Ops that complex values go through part by part; those with a kind are sums."""


def _by_parts(op: Op, args: Sequence[Part], output: TensorType, rows: Rows) -> Pair | None:
    row = rows[type(op)]
    if isinstance(row, str):
        return None
    kind = output.with_dtype(PART[output.dtype])
    found: list[Value] = []
    for side in (0, 1):
        values = [arg.parts[side] if isinstance(arg, Pair) else arg for arg in args]
        made = row(_on_part(op, side), values, kind)
        if made is None or isinstance(made, tuple):
            return None
        found.append(made)
    return Pair(*found)


def _on_part(op: Op, side: int) -> Op:
    """The op on one part: with real dtypes and fillings."""
    changed: dict[str, Any] = {}
    for name in (f.name for f in fields(op)):
        value = getattr(op, name)
        if isinstance(value, DType) and value.is_complex:
            changed[name] = PART[value]
        if isinstance(value, ScalarLiteral) and value.tag == ScalarTag.COMPLEX:
            number = complex(value.value)
            changed[name] = ScalarLiteral(ScalarTag.FLOAT, (number.real, number.imag)[side])
    return replace(op, **changed) if changed else op


# -- rows ----------------------------------------------------------------------------------------


def _as_pair(x: Part) -> Pair:
    if isinstance(x, Pair):
        return x
    return Pair(x, build.splat(0, x.dtype, x.shape))


def _cast_pair(pair: Pair, dtype: DType) -> Pair:
    return Pair(*(build.cast(part, dtype) for part in pair.parts))


def _unary(
    op: elementwise.ElementwiseUnary, args: Sequence[Any], output: TensorType
) -> Part | None:
    (x,) = args
    match op.fn:
        case elementwise.UnaryFn.NEG:
            return Pair(*(Unary(Fn.NEG, part) for part in x.parts))
        case elementwise.UnaryFn.ABS:
            return _as_pair(Binary(Fn.HYPOT, x.real, x.imag))
        case elementwise.UnaryFn.RECIPROCAL:
            one = build.splat(1, x.real.dtype, x.real.shape)
            return _divide_pairs(_as_pair(one), x)
    return None


def _binary(
    op: elementwise.ElementwiseBinary, args: Sequence[Any], output: TensorType
) -> Part | None:
    lhs, rhs = args
    match op.fn:
        case elementwise.BinaryFn.ADD | elementwise.BinaryFn.SUB:
            fn = Fn.ADD if op.fn is elementwise.BinaryFn.ADD else Fn.SUB
            sides = zip(lhs.parts, rhs.parts, strict=True)
            return Pair(*(Binary(fn, a, b) for a, b in sides))
        case elementwise.BinaryFn.MUL:
            return _multiply_pairs(lhs, rhs)
        case elementwise.BinaryFn.DIV:
            return _divide_pairs(lhs, rhs)
    return None


def _multiply_pairs(lhs: Pair, rhs: Pair) -> Pair:
    real = Binary(Fn.SUB, _multiply(lhs.real, rhs.real), _multiply(lhs.imag, rhs.imag))
    imag = Binary(Fn.ADD, _multiply(lhs.real, rhs.imag), _multiply(lhs.imag, rhs.real))
    return Pair(real, imag)


def _multiply(a: Value, b: Value) -> Value:
    return Binary(Fn.MUL, a, b)


def _divide_pairs(lhs: Pair, rhs: Pair) -> Pair:
    """Smith's way, which neither overflows nor vanishes in between, in f64: the smaller part of the
    divisor over the larger one first. By zero both parts are divided by it."""
    dtype = lhs.real.dtype
    a, b = _cast_pair(lhs, F64), _cast_pair(rhs, F64)
    sizes = [Unary(Fn.ABS, part) for part in b.parts]
    upright = Binary(Fn.LT, sizes[0], sizes[1])
    large, small = Where(upright, b.imag, b.real), Where(upright, b.real, b.imag)
    ratio = Binary(Fn.DIV, small, large)
    scale = Binary(Fn.ADD, large, _multiply(small, ratio))
    first, second = Where(upright, a.imag, a.real), Where(upright, a.real, a.imag)
    real = Binary(Fn.DIV, Binary(Fn.ADD, first, _multiply(second, ratio)), scale)
    turned = Binary(Fn.DIV, Binary(Fn.SUB, second, _multiply(first, ratio)), scale)
    imag = Where(upright, Unary(Fn.NEG, turned), turned)
    zero = build.binary(Fn.EQ, Binary(Fn.MAX, *sizes), 0.0)
    by_zero = [Binary(Fn.DIV, part, sizes[0]) for part in a.parts]
    found = Pair(Where(zero, by_zero[0], real), Where(zero, by_zero[1], imag))
    return _cast_pair(found, dtype)


def _compare(op: elementwise.Compare, args: Sequence[Any], output: TensorType) -> Value:
    lhs, rhs = args
    equal = op.op is elementwise.CompareFn.EQUAL
    sides = zip(lhs.parts, rhs.parts, strict=True)
    real, imag = (Binary(Fn.EQ if equal else Fn.NE, a, b) for a, b in sides)
    return Binary(Fn.MIN if equal else Fn.MAX, real, imag)


def _cast(op: elementwise.Cast, args: Sequence[Any], output: TensorType) -> Part:
    return _convert_part(args[0], op.dtype)


def _convert_part(x: Part, dtype: DType) -> Part:
    """PTIR's cast: of a complex value to another class it takes the real part, but for i1."""
    if dtype.is_complex:
        if isinstance(x, Pair):
            return _cast_pair(x, PART[dtype])
        return _as_pair(build.cast(x, PART[dtype]))
    if not isinstance(x, Pair):
        return build.cast(x, dtype)
    if dtype is I1:
        return Binary(Fn.MAX, *(build.cast(part, I1) for part in x.parts))
    return build.cast(x.real, dtype)


def _test_parts(test: Callable[[Value], Value], combine: Fn) -> ComplexRow:
    """A test of either part, or of both."""
    return lambda op, args, output: Binary(combine, *(test(part) for part in args[0].parts))


def _dot_general(op: contraction.DotGeneral, args: Sequence[Any], output: TensorType) -> Part:
    lhs, rhs = args
    batch, contract = (op.batch_lhs, op.batch_rhs), (op.contract_lhs, op.contract_rhs)

    def dot(a: Value, b: Value) -> Value:
        default = numeric.dot_accumulator_dtype(a.dtype)
        accum = op.accum_dtype or default
        return build.product(a, b, batch, contract, PART.get(accum, accum))

    if not isinstance(lhs, Pair):
        return _convert_part(dot(lhs, rhs), output.dtype)
    real = Binary(Fn.SUB, dot(lhs.real, rhs.real), dot(lhs.imag, rhs.imag))
    imag = Binary(Fn.ADD, dot(lhs.real, rhs.imag), dot(lhs.imag, rhs.real))
    return _convert_part(Pair(real, imag), output.dtype)


def _reduce(op: reduction.Reduce, args: Sequence[Any], output: TensorType) -> Part | None:
    """A sum, part by part; only the operand, or only the result, may be complex."""
    (x,) = args

    def total(part: Value) -> Value:
        accum = op.accum_dtype or numeric.accumulator_dtype(part.dtype)
        summed = build.reduce(REDUCE[str(op.kind)], part, op.axes, PART.get(accum, accum))
        return build.reshape(summed, output.shape)

    if isinstance(x, Pair):
        return _convert_part(Pair(total(x.real), total(x.imag)), output.dtype)
    if str(op.kind) != "sum":
        return None
    return _convert_part(total(x), output.dtype)


def _first_operand(op: Op, args: Sequence[Any], output: TensorType) -> Part:
    found: Part = args[0]
    return found


def _barrier(op: scheduling.Barrier, args: Sequence[Any], output: TensorType) -> Part:
    x, after = args
    first = after.real if isinstance(after, Pair) else after
    if not isinstance(x, Pair):
        return build.barrier(x, first)
    return Pair(build.barrier(x.real, first), build.barrier(x.imag, first))


def _real(op: Op, args: Sequence[Any], output: TensorType) -> Value:
    real: Value = args[0].real
    return real


def _imag(op: Op, args: Sequence[Any], output: TensorType) -> Value:
    imag: Value = args[0].imag
    return imag


def _conj(op: Op, args: Sequence[Any], output: TensorType) -> Pair:
    return Pair(args[0].real, Unary(Fn.NEG, args[0].imag))


def _complex(op: Op, args: Sequence[Any], output: TensorType) -> Pair:
    return Pair(args[0], args[1])


def _iota(op: movement.Iota, args: Sequence[Any], output: TensorType) -> Pair:
    return _as_pair(Iota(PART[op.dtype], output.shape, op.axis))


COMPLEX_ROWS: Final[Mapping[type[Op], ComplexRow]] = {
    elementwise.ElementwiseUnary: _unary,
    elementwise.ElementwiseBinary: _binary,
    elementwise.Compare: _compare,
    elementwise.Cast: _cast,
    elementwise.StopGradient: _first_operand,
    collective.MarkVarying: _first_operand,
    collective.AssertSame: _first_operand,
    collective.Reshard: _first_operand,
    scheduling.Barrier: _barrier,
    fns.IsNan: _test_parts(is_nan, Fn.MAX),
    fns.IsInf: _test_parts(is_infinite, Fn.MAX),
    fns.IsFinite: _test_parts(is_finite, Fn.MIN),
    contraction.DotGeneral: _dot_general,
    reduction.Reduce: _reduce,
    complex_parts.Real: _real,
    complex_parts.Imag: _imag,
    complex_parts.Conj: _conj,
    complex_parts.Complex: _complex,
    movement.Iota: _iota,
}
