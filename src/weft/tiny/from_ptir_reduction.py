"""From PTIR to Tiny: sums, products, extremes and their positions, norms, running reductions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from weft.foundation import functions, numeric
from weft.foundation.axes import normalise_axis
from weft.foundation.dims import static
from weft.foundation.dtypes import F32, F64, I1, SI32, SI64
from weft.foundation.scalar import Fn
from weft.foundation.whole_ops import Running, Scatter
from weft.ptir.ops import contraction, normalisation, reduction
from weft.ptir.types import TensorType
from weft.tiny import build
from weft.tiny.from_ptir_elementwise import is_nan
from weft.tiny.from_ptir_movement import REDUCE
from weft.tiny.from_ptir_row import Row, Rows
from weft.tiny.ir import Binary, Iota, Opaque, ReduceFn, Rule, Value, Where


def _dot_general(op: contraction.DotGeneral, args: Sequence[Value], output: TensorType) -> Value:
    lhs, rhs = args
    acc = op.accum_dtype or numeric.dot_accumulator_dtype(lhs.dtype)
    batch, contract = (op.batch_lhs, op.batch_rhs), (op.contract_lhs, op.contract_rhs)
    return build.cast(build.product(lhs, rhs, batch, contract, acc), output.dtype)


def _reduce(op: reduction.Reduce, args: Sequence[Value], output: TensorType) -> Value:
    (x,) = args
    fn = REDUCE[str(op.kind)]
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


def _lower_position(fn: ReduceFn) -> Row:
    """The first position at which an element is the extreme one; NaN counts as that."""

    def row(
        op: reduction.ArgMax | reduction.ArgMin, args: Sequence[Value], output: TensorType
    ) -> Value:
        (x,) = args
        along = normalise_axis(op.axis, len(x.shape))
        best = build.reduce(fn, x, [along], x.dtype)
        spread = build.expand(build.keep_dims(best, x.shape, [along]), x.shape)
        found: Value = Binary(Fn.EQ, x, spread)
        if x.dtype.is_float:
            found = Binary(Fn.MAX, found, is_nan(x))
        counter = SI32 if static(x.shape[along]) <= SI32.highest else SI64
        places = Iota(counter, x.shape, along)
        beyond = build.splat(int(counter.highest), counter, x.shape)
        first = build.reduce(ReduceFn.MIN, Where(found, places, beyond), [along], counter)
        return build.reshape(build.cast(first, output.dtype), output.shape)

    return row


def _layer_norm(op: normalisation.LayerNorm, args: Sequence[Value], output: TensorType) -> Value:
    wide = F64 if output.dtype is F64 else F32
    x, gamma, beta = (build.cast(a, wide) for a in args)
    along = normalise_axis(op.feature_axis, output.rank)
    return build.cast(build.layer_norm(x, gamma, beta, op.epsilon, along), output.dtype)


def _lower_running(fn: ReduceFn) -> Row:
    """A running reduction, in f32 for narrow floats, each result rounded once."""

    def row(op: reduction.CumulativeSum, args: Sequence[Value], output: TensorType) -> Value:
        (x,) = args
        along = normalise_axis(op.axis, len(x.shape))
        sizes = output.static_shape
        outer, inner = prod(sizes[:along]), prod(sizes[along + 1 :])
        whole = Running(str(fn), outer, sizes[along], inner, op.reverse)
        wide = build.cast(x, numeric.compute_dtype(x.dtype) if x.dtype.is_float else x.dtype)
        return build.cast(Opaque(whole, (wide,), 0, wide.dtype, wide.shape), x.dtype)

    return row


def _segment_reduce(
    op: reduction.SegmentReduce, args: Sequence[Value], output: TensorType
) -> Value | None:
    """Rows combined, one after the other, into rows that begin as the identity."""
    data, ids = args
    fn = REDUCE[str(op.kind)]
    acc = op.accum_dtype or numeric.accumulator_dtype(data.dtype)
    if op.num_segments == 0:
        return None
    if output.dtype is data.dtype and acc is numeric.accumulator_dtype(data.dtype):
        # The rows are combined in that dtype by themselves, and rounded once.
        acc = data.dtype
    start = build.scalar(functions.identity(str(fn), data.dtype), data.dtype)
    rows = build.expand(build.cast(start, acc), output.shape)
    if 0 in output.static_shape or 0 in data.shape:
        return build.cast(rows, output.dtype)
    where = build.check(ids, Rule.INSIDE, "ScatterIndexOutOfBounds", op.num_segments)
    width = prod(output.static_shape[1:])
    name = "add" if fn is ReduceFn.SUM else str(fn)
    whole = Scatter(name, 1, op.num_segments, width, static(ids.shape[0]))
    values = (rows, where, build.cast(data, acc))
    return build.cast(Opaque(whole, values, 0, acc, output.shape, base=0), output.dtype)


ROWS: Final[Rows] = {
    contraction.DotGeneral: _dot_general,
    reduction.Reduce: _reduce,
    reduction.ReduceProd: _reduce_prod,
    reduction.ReduceAny: _logical(ReduceFn.MAX),
    reduction.ReduceAll: _logical(ReduceFn.MIN),
    reduction.ArgMax: _lower_position(ReduceFn.MAX),
    reduction.ArgMin: _lower_position(ReduceFn.MIN),
    reduction.SegmentReduce: _segment_reduce,
    reduction.CumulativeSum: _lower_running(ReduceFn.SUM),
    reduction.CumulativeProd: _lower_running(ReduceFn.PROD),
    reduction.CumulativeMax: _lower_running(ReduceFn.MAX),
    reduction.CumulativeMin: _lower_running(ReduceFn.MIN),
    normalisation.LayerNorm: _layer_norm,
}
