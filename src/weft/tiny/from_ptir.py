"""From PTIR to Tiny: one row per op class, in `ROWS`.

A row is a function that builds the op from Tiny values, or the reason why the op stays whole
(`Opaque`). The program is static and verified. Inputs are named in0, in1, ... in the order of the
flattened parameters, results out0, out1, ...; a literal of one repeated element is a constant that
is expanded, and any other literal an input with data of its own (const0, const1, ...).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.foundation import functions, numeric
from weft.foundation.axes import normalise_axis
from weft.foundation.dims import static
from weft.foundation.dtypes import F32, F64, FP8_E4M3, I1, as_dtype
from weft.foundation.errors import InternalError, Unimplemented, UserError
from weft.ptir.ir import ElementRef, Instruction, Operand, Program
from weft.ptir.literal import ScalarLiteral, TensorLiteral
from weft.ptir.op import EvalContext, Op, RegionSignature
from weft.ptir.ops import (
    bits,
    complex_parts,
    constant,
    contraction,
    control,
    elementwise,
    indexing,
    linear_algebra,
    movement,
    normalisation,
    ordering,
    quantisation,
    random,
    reduction,
    tuples,
    window,
)
from weft.ptir.ops import functions as fns
from weft.ptir.specialise import is_static
from weft.ptir.types import Symbol, TensorType, TupleType, ValueType, leaves
from weft.tiny import build
from weft.tiny.ir import (
    Binary,
    Const,
    DynamicShrink,
    DynamicUpdate,
    Fn,
    Graph,
    Input,
    Iota,
    Opaque,
    ReduceFn,
    Unary,
    Value,
    Where,
    operands,
)

Array: TypeAlias = NDArray[Any]
Tree: TypeAlias = "Value | tuple[Tree, ...]"
"""What a PTIR value becomes: a Tiny value, or a tuple of them for a tuple."""
Row: TypeAlias = "Callable[[Any, Sequence[Value], TensorType], Value | None] | str"
"""Builds the result of an op from its operands, or None where this very op stays whole; a string
is the reason why it always does."""


def lower_program(program: Program) -> Graph:
    """The entry function of a static program as a Tiny graph."""
    if not is_static(program):
        raise UserError("only a program without dynamic dims can be lowered; specialise it first")
    return _Lowering(program).run()


@dataclass
class _Lowering:
    program: Program
    values: dict[int, Tree] = field(default_factory=dict)
    inputs: list[Input] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    literals: dict[TensorLiteral, Value] = field(default_factory=dict)
    origin: dict[Value, tuple[int, ...]] = field(default_factory=dict)

    def run(self) -> Graph:
        main = self.program.main
        for value_id, kind in zip(main.parameter_ids, main.parameters, strict=True):
            self.values[value_id] = self._parameter(kind)
        for instruction in main.body:
            result = self._instruction(instruction)
            self.values[instruction.id] = result
            self._note(result, instruction.id)
        results = [v for value_id in main.result_ids for v in _flat(self.values[value_id])]
        outputs = tuple((f"out{n}", value) for n, value in enumerate(results))
        graph = Graph(tuple(self.inputs), outputs, self.origin)
        used = {v.name for v in graph.values if isinstance(v, Input)}
        return replace(graph, constants={n: a for n, a in self.constants.items() if n in used})

    def _parameter(self, kind: ValueType) -> Tree:
        if isinstance(kind, TupleType):
            return tuple(self._parameter(element) for element in kind.elements)
        made = Input(f"in{len(self.inputs)}", kind.dtype, kind.shape)
        self.inputs.append(made)
        return made

    def _instruction(self, instruction: Instruction) -> Tree:
        op, output = instruction.op, instruction.output
        args = [v for operand in instruction.operands for v in _flat(self._operand(operand))]
        if isinstance(op, constant.Constant):
            return self._literal(op.value)
        if isinstance(op, tuples.MakeTuple):
            return tuple(self._operand(operand) for operand in instruction.operands)
        row = ROWS.get(type(op), "Tiny has no row for it")
        if not isinstance(row, str) and isinstance(output, TensorType):
            made = row(op, args, output)
            if made is not None:
                _check(made, output, instruction)
                return made
        results = [
            Opaque(op, tuple(args), n, kind.dtype, kind.shape)
            for n, kind in enumerate(leaves(output))
        ]
        return _nested(output, results)

    def _operand(self, operand: Operand) -> Tree:
        if isinstance(operand, TensorLiteral):
            return self._literal(operand)
        found = self.values[operand.id]
        if isinstance(operand, ElementRef):
            if not isinstance(found, tuple):
                raise InternalError(f"{operand} is not an element of a tuple")
            return found[operand.index]
        return found

    def _literal(self, value: TensorLiteral) -> Value:
        kind = value.type
        if kind.size == 0:
            return build.splat(0, kind.dtype, kind.shape)
        if value.is_splat:
            first = build.scalar(value.array.reshape(-1)[:1].reshape(()), kind.dtype)
            return build.expand(first, kind.shape)
        if value not in self.literals:
            name = f"const{len(self.constants)}"
            self.constants[name] = value.array
            self.literals[value] = Input(name, kind.dtype, kind.shape)
        return self.literals[value]

    def _note(self, result: Tree, value_id: int) -> None:
        """Every node that this instruction brought into the graph has it as its origin."""
        for top in _flat(result):
            if top in self.origin:
                self.origin[top] = tuple(dict.fromkeys((*self.origin[top], value_id)))
        stack = [value for value in _flat(result) if value not in self.origin]
        while stack:
            value = stack.pop()
            if value not in self.origin and not isinstance(value, Input):
                self.origin[value] = (value_id,)
                stack.extend(operands(value))


def _flat(tree: Tree) -> list[Value]:
    if not isinstance(tree, tuple):
        return [tree]
    return [value for element in tree for value in _flat(element)]


def _nested(kind: ValueType, results: list[Opaque]) -> Tree:
    """Results, taken from the front of the list, in the shape of a type."""
    if isinstance(kind, TupleType):
        return tuple(_nested(element, results) for element in kind.elements)
    return results.pop(0)


def _check(made: Value, output: TensorType, instruction: Instruction) -> None:
    if made.dtype is not output.dtype or made.shape != output.shape:
        raise InternalError(
            f"{instruction.summary} became {made.dtype}{list(made.shape)}, declared as {output}"
        )


# -- rows ----------------------------------------------------------------------------------------

_UNARY: Final = {
    elementwise.UnaryFn.NEG: Fn.NEG,
    elementwise.UnaryFn.ABS: Fn.ABS,
    elementwise.UnaryFn.EXP: Fn.EXP,
    elementwise.UnaryFn.LOG: Fn.LOG,
    elementwise.UnaryFn.TANH: Fn.TANH,
    elementwise.UnaryFn.ERF: Fn.ERF,
    elementwise.UnaryFn.RSQRT: Fn.RSQRT,
    elementwise.UnaryFn.RECIPROCAL: Fn.RECIP,
}
_BINARY: Final = {
    elementwise.BinaryFn.ADD: Fn.ADD,
    elementwise.BinaryFn.SUB: Fn.SUB,
    elementwise.BinaryFn.MUL: Fn.MUL,
    elementwise.BinaryFn.DIV: Fn.DIV,
    elementwise.BinaryFn.MAXIMUM: Fn.MAX,
    elementwise.BinaryFn.MINIMUM: Fn.MIN,
}
_COMPARE: Final = {
    elementwise.CompareFn.LESS: Fn.LT,
    elementwise.CompareFn.LESS_EQUAL: Fn.LE,
    elementwise.CompareFn.EQUAL: Fn.EQ,
    elementwise.CompareFn.GREATER_EQUAL: Fn.GE,
    elementwise.CompareFn.GREATER: Fn.GT,
    elementwise.CompareFn.NOT_EQUAL: Fn.NE,
}
_REDUCE: Final = {"sum": ReduceFn.SUM, "max": ReduceFn.MAX, "min": ReduceFn.MIN}


def _unary(fn: Fn) -> Row:
    """A function of Tiny; complex operands stay with the op."""

    def row(op: Op, args: Sequence[Value], output: TensorType) -> Value | None:
        return None if args[0].dtype.is_complex else Unary(fn, args[0])

    return row


def _logic(fn: Fn) -> Row:
    """Bitwise logic on i1 in terms of its order: and is min, or is max, xor is ne."""

    def row(op: Op, args: Sequence[Value], output: TensorType) -> Value | None:
        return Binary(fn, args[0], args[1]) if args[0].dtype is I1 else None

    return row


def _elementwise_unary(
    op: elementwise.ElementwiseUnary, args: Sequence[Value], output: TensorType
) -> Value:
    return Unary(_UNARY[op.fn], args[0])


def _elementwise_binary(
    op: elementwise.ElementwiseBinary, args: Sequence[Value], output: TensorType
) -> Value:
    return Binary(_BINARY[op.fn], args[0], args[1])


def _compare(op: elementwise.Compare, args: Sequence[Value], output: TensorType) -> Value:
    return Binary(_COMPARE[op.op], args[0], args[1])


def _select(op: elementwise.Select, args: Sequence[Value], output: TensorType) -> Value:
    return Where(args[0], args[1], args[2])


def _cast(op: elementwise.Cast, args: Sequence[Value], output: TensorType) -> Value:
    return build.cast(args[0], op.dtype)


def _same(op: Op, args: Sequence[Value], output: TensorType) -> Value:
    return args[0]


def _clamp(op: elementwise.Clamp, args: Sequence[Value], output: TensorType) -> Value:
    x, low, high = args
    return Binary(Fn.MIN, Binary(Fn.MAX, x, low), high)


def _is_nan(op: Op, args: Sequence[Value], output: TensorType) -> Value | None:
    (x,) = args
    return None if x.dtype.is_complex else Binary(Fn.NE, x, x)


def _is_finite(op: Op, args: Sequence[Value], output: TensorType) -> Value | None:
    (x,) = args
    if x.dtype.is_complex:
        return None
    return build.binary(Fn.EQ, Binary(Fn.SUB, x, x), 0.0)


def _is_inf(op: Op, args: Sequence[Value], output: TensorType) -> Value | None:
    (x,) = args
    if x.dtype.is_complex:
        return None
    if x.dtype is FP8_E4M3:
        return build.splat(False, I1, x.shape)
    return build.binary(Fn.EQ, Unary(Fn.ABS, x), math.inf)


def _sign(op: Op, args: Sequence[Value], output: TensorType) -> Value | None:
    (x,) = args
    if x.dtype.is_complex:
        return None
    one = build.splat(1, x.dtype, x.shape)
    positive = build.binary(Fn.GT, x, _zero(x))
    if x.dtype.is_integer and not x.dtype.is_signed:
        return Where(positive, one, x)
    below = Where(build.binary(Fn.LT, x, _zero(x)), build.splat(-1, x.dtype, x.shape), x)
    return Where(positive, one, below)


def _zero(x: Value) -> Value:
    return build.splat(0, x.dtype, x.shape)


def _reshape(op: movement.Reshape, args: Sequence[Value], output: TensorType) -> Value:
    return build.reshape(args[0], output.shape)


def _transpose(op: movement.Transpose, args: Sequence[Value], output: TensorType) -> Value:
    return build.permute(args[0], op.perm)


def _broadcast_to(op: movement.BroadcastTo, args: Sequence[Value], output: TensorType) -> Value:
    return build.expand(args[0], output.shape)


def _slice(op: movement.Slice, args: Sequence[Value], output: TensorType) -> Value:
    return build.shrink(args[0], op.starts, op.sizes)


def _concat(op: movement.Concat, args: Sequence[Value], output: TensorType) -> Value:
    return build.concat(args, normalise_axis(op.axis, output.rank))


def _fill(value: ScalarLiteral, x: Value) -> Const:
    return build.scalar(value.fill(x.dtype), x.dtype)


def _pad(op: movement.Pad, args: Sequence[Value], output: TensorType) -> Value:
    (x,) = args
    fill = _fill(op.pad_value, x)
    spread = build.pad_between(x, op.interior, fill) if any(op.interior) else x
    return build.pad(spread, op.low, op.high, fill)


def _tile(op: movement.Tile, args: Sequence[Value], output: TensorType) -> Value:
    return build.tile(args[0], op.repeats)


def _iota(op: movement.Iota, args: Sequence[Value], output: TensorType) -> Value:
    return Iota(op.dtype, output.shape, op.axis)


def _dot_general(op: contraction.DotGeneral, args: Sequence[Value], output: TensorType) -> Value:
    lhs, rhs = args
    acc = op.accum_dtype or numeric.dot_accumulator_dtype(lhs.dtype)
    batch, contract = (op.batch_lhs, op.batch_rhs), (op.contract_lhs, op.contract_rhs)
    return build.cast(build.product(lhs, rhs, batch, contract, acc), output.dtype)


def _reduce(op: reduction.Reduce, args: Sequence[Value], output: TensorType) -> Value:
    (x,) = args
    fn = _REDUCE[str(op.kind)]
    # Maximum and minimum are exact in any dtype, and what they give of nothing belongs to x's own.
    acc = x.dtype if fn is not ReduceFn.SUM else op.accum_dtype
    total = build.reduce(fn, x, op.axes, acc or numeric.accumulator_dtype(x.dtype))
    return build.reshape(build.cast(total, output.dtype), output.shape)


def _reduce_prod(op: reduction.ReduceProd, args: Sequence[Value], output: TensorType) -> Value:
    (x,) = args
    acc = op.accum_dtype or numeric.accumulator_dtype(x.dtype)
    total = build.reduce(ReduceFn.PROD, x, op.axes, acc)
    return build.reshape(build.cast(total, output.dtype), output.shape)


def _logical(fn: ReduceFn) -> Row:
    def row(
        op: reduction.ReduceAny | reduction.ReduceAll, args: Sequence[Value], output: TensorType
    ) -> Value:
        return build.reshape(build.reduce(fn, args[0], op.axes, I1), output.shape)

    return row


def _layer_norm(op: normalisation.LayerNorm, args: Sequence[Value], output: TensorType) -> Value:
    wide = F64 if output.dtype is F64 else F32
    x, gamma, beta = (build.cast(a, wide) for a in args)
    along = normalise_axis(op.feature_axis, output.rank)
    return build.cast(build.layer_norm(x, gamma, beta, op.epsilon, along), output.dtype)


def _starts(start: Value, rank: int) -> tuple[Value, ...]:
    return tuple(build.element(start, [k]) for k in range(rank))


def _dynamic_slice(op: indexing.DynamicSlice, args: Sequence[Value], output: TensorType) -> Value:
    x, start = args
    starts = _starts(start, output.rank)
    known = [int(s.value.real) for s in starts if isinstance(s, Const)]
    if len(known) == len(starts):
        bounds = zip(known, x.shape, op.sizes, strict=True)
        return build.shrink(x, [min(max(s, 0), static(d) - n) for s, d, n in bounds], op.sizes)
    return DynamicShrink(x, starts, op.sizes)


def _dynamic_update_slice(
    op: indexing.DynamicUpdateSlice, args: Sequence[Value], output: TensorType
) -> Value:
    x, update, start = args
    return DynamicUpdate(x, update, _starts(start, output.rank))


def _extract_patches(op: window.ExtractPatches, args: Sequence[Value], output: TensorType) -> Value:
    (x,) = args
    rank, inner = len(x.shape), len(op.window)
    low = (0, *(pair[0] for pair in op.padding), 0)
    high = (0, *(pair[1] for pair in op.padding), 0)
    if 0 in output.static_shape:
        return build.splat(0, x.dtype, output.shape)
    board = build.pad(x, low, high, _fill(op.pad_value, x))
    all_windows = build.windows(
        board, (1, *op.window, 1), (1, *op.strides, 1), (1, *op.dilation, 1)
    )
    # (n, places..., c, 1, window..., 1) -> (n, places..., window..., c)
    order = [*range(rank - 1), rank, *range(rank + 1, rank + 1 + inner), rank - 1, 2 * rank - 1]
    return build.reshape(build.permute(all_windows, order), output.shape)


def _reduce_window(
    op: window.ReduceWindow, args: Sequence[Value], output: TensorType
) -> Value | None:
    (x,) = args
    fn = _REDUCE[str(op.reduce)]
    acc = op.accum_dtype or numeric.accumulator_dtype(x.dtype)
    if fn is ReduceFn.SUM and acc.is_float and acc.bits < 32:
        # The op rounds after each addition, axis by axis: an order that a reduction has not.
        return None
    if 0 in output.static_shape:
        return build.splat(0, x.dtype, output.shape)
    wide = acc if fn is ReduceFn.SUM else x.dtype
    fill = build.scalar(functions.identity(str(fn), wide), wide)
    spread = build.pad_between(build.cast(x, wide), [b - 1 for b in op.base_dilation], fill)
    low, high = ([pair[side] for pair in op.padding] for side in (0, 1))
    board = build.pad(spread, low, high, fill)
    view = build.windows(board, op.window_dims, op.strides, op.window_dilation)
    rank = output.rank
    return build.cast(build.reduce(fn, view, range(rank, 2 * rank), wide), output.dtype)


_LIBRARY: Final = "Tiny has no such function; it is computed whole"
_ROWS: Final[Mapping[type[Op], Row]] = {
    constant.Constant: "the lowering makes it a constant or an input before it looks here",
    constant.CustomCall: "a kernel that only some backends know",
    elementwise.ElementwiseUnary: _elementwise_unary,
    elementwise.ElementwiseBinary: _elementwise_binary,
    elementwise.Compare: _compare,
    elementwise.Select: _select,
    elementwise.Cast: _cast,
    elementwise.StopGradient: _same,
    elementwise.Clamp: _clamp,
    movement.Reshape: _reshape,
    movement.Transpose: _transpose,
    movement.BroadcastTo: _broadcast_to,
    movement.Slice: _slice,
    movement.Concat: _concat,
    movement.Pad: _pad,
    movement.Tile: _tile,
    movement.Iota: _iota,
    contraction.DotGeneral: _dot_general,
    reduction.Reduce: _reduce,
    reduction.ReduceProd: _reduce_prod,
    reduction.ReduceAny: _logical(ReduceFn.MAX),
    reduction.ReduceAll: _logical(ReduceFn.MIN),
    reduction.ArgMax: "a fold over (value, position), which Tiny does not have",
    reduction.ArgMin: "a fold over (value, position), which Tiny does not have",
    reduction.SegmentReduce: "rows go to places that the data names",
    reduction.CumulativeSum: "each element depends on the one before",
    reduction.CumulativeProd: "each element depends on the one before",
    reduction.CumulativeMax: "each element depends on the one before",
    reduction.CumulativeMin: "each element depends on the one before",
    normalisation.LayerNorm: _layer_norm,
    indexing.Take: "reads places that the data names",
    indexing.Gather: "reads places that the data names",
    indexing.ScatterAdd: "writes places that the data names",
    indexing.ScatterReduce: "writes places that the data names",
    indexing.DynamicSlice: _dynamic_slice,
    indexing.DynamicUpdateSlice: _dynamic_update_slice,
    window.ExtractPatches: _extract_patches,
    window.ReduceWindow: _reduce_window,
    random.RngUniform: "draws from a stream of the run",
    random.RngNormal: "draws from a stream of the run",
    random.RngState: "draws from a stream of the run",
    random.PhiloxUniform: "works on the bits of integers",
    random.PhiloxNormal: "works on the bits of integers",
    ordering.TopK: "sorts",
    ordering.Sort: "sorts",
    ordering.Argsort: "sorts",
    ordering.Searchsorted: "searches by data",
    quantisation.Quantize: "rounds halves to even, which no function of Tiny does",
    quantisation.Dequantize: "subtracts zero points beyond the range of their dtype",
    quantisation.Requantize: "rounds halves to even, which no function of Tiny does",
    tuples.MakeTuple: "the lowering takes it apart before it looks here",
    control.Cond: "control flow",
    control.While: "control flow",
    control.Scan: "control flow",
    fns.Sqrt: _unary(Fn.SQRT),
    fns.Floor: _unary(Fn.FLOOR),
    fns.Ceil: _unary(Fn.CEIL),
    fns.Trunc: _unary(Fn.TRUNC),
    fns.Sin: _unary(Fn.SIN),
    fns.Cos: _unary(Fn.COS),
    fns.Exp2: _unary(Fn.EXP2),
    fns.Log2: _unary(Fn.LOG2),
    fns.Sign: _sign,
    fns.IsNan: _is_nan,
    fns.IsInf: _is_inf,
    fns.IsFinite: _is_finite,
    bits.BitwiseNot: _unary(Fn.NOT),
    bits.BitwiseAnd: _logic(Fn.MIN),
    bits.BitwiseOr: _logic(Fn.MAX),
    bits.BitwiseXor: _logic(Fn.NE),
    bits.ShiftLeft: "Tiny has no shifts",
    bits.ShiftRight: "Tiny has no shifts",
}
_WHOLE: Final = (
    *(fns.Round, fns.Tan, fns.Asin, fns.Acos, fns.Atan, fns.Sinh, fns.Cosh, fns.Asinh, fns.Acosh),
    *(fns.Atanh, fns.Expm1, fns.Log1p, fns.Log10, fns.Signbit, fns.Atan2, fns.Pow, fns.Fmod),
    *(fns.Copysign, fns.Nextafter, fns.Hypot, fns.Logaddexp),
    *(complex_parts.Real, complex_parts.Imag, complex_parts.Conj, complex_parts.Complex),
    *(linear_algebra.Cholesky, linear_algebra.Qr, linear_algebra.Eigh, linear_algebra.Svd),
    *(linear_algebra.Lu, linear_algebra.TriangularSolve),
)
ROWS: Final[Mapping[type[Op], Row]] = {**_ROWS, **dict.fromkeys(_WHOLE, _LIBRARY)}
"""Every op class of PTIR: how it is built from Tiny values, or why it stays whole."""


# -- the meaning of what stays whole -------------------------------------------------------------


class _NoRegions:
    """The scope in which the result type of a whole op is found: it has no regions or symbols."""

    def region(self, region_id: int) -> RegionSignature:
        raise Unimplemented("control flow", "a Tiny graph has no regions")

    def is_bound(self, symbol: Symbol) -> bool:
        return True


def evaluate_opaque(value: Opaque, args: Sequence[Array]) -> Array:
    """One result of an op that stayed whole, by its PTIR reference meaning."""
    op = value.op
    if not isinstance(op, Op):
        raise InternalError(f"{op!r} is not a PTIR op")
    if op.random or op.regions:
        raise Unimplemented(op.mnemonic, "it needs the run around it, not just its operands")
    types = [TensorType(as_dtype(a.dtype), tuple(a.shape)) for a in args]
    output = op.result_type(types, _NoRegions())
    with np.errstate(**functions.QUIET):
        result = op.evaluate(EvalContext(output, 0, lambda stream: 0), *args)
    for number in _path(output, value.result):
        result = result[number]
    if not isinstance(result, np.ndarray):
        raise InternalError(f"{op.mnemonic} has no result {value.result}")
    return result


def _path(kind: ValueType, leaf: int) -> list[int]:
    """The element indices that lead to the n-th leaf of a type."""
    if not isinstance(kind, TupleType):
        return []
    for number, element in enumerate(kind.elements):
        count = sum(1 for _ in leaves(element))
        if leaf < count:
            return [number, *_path(element, leaf)]
        leaf -= count
    raise InternalError(f"{kind} has no leaf {leaf}")


def opaque_name(value: Opaque) -> str:
    """The name of an op that stayed whole, and why, for reports."""
    op = value.op
    if not isinstance(op, Op):
        return str(op)
    row = ROWS.get(type(op))
    return f"{op.mnemonic}: {row}" if isinstance(row, str) else op.mnemonic
