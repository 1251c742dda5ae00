"""From PTIR to Tiny: ops that place elements, counters, and windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from weft.foundation import functions, numeric
from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import DType
from weft.ptir.literal import ScalarLiteral
from weft.ptir.ops import movement, window
from weft.ptir.types import TensorType
from weft.tiny import build
from weft.tiny.from_ptir_row import Rows
from weft.tiny.ir import Const, Iota, ReduceFn, Value

REDUCE: Final = {"sum": ReduceFn.SUM, "max": ReduceFn.MAX, "min": ReduceFn.MIN}


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


def _reduce_window(op: window.ReduceWindow, args: Sequence[Value], output: TensorType) -> Value:
    (x,) = args
    fn = REDUCE[str(op.reduce)]
    acc = op.accum_dtype or numeric.accumulator_dtype(x.dtype)
    if 0 in output.static_shape:
        return build.splat(0, x.dtype, output.shape)
    wide = acc if fn is ReduceFn.SUM else x.dtype
    fill = build.scalar(functions.identity(str(fn), wide), wide)
    spread = build.pad_between(build.cast(x, wide), [b - 1 for b in op.base_dilation], fill)
    low, high = ([pair[side] for pair in op.padding] for side in (0, 1))
    board = build.pad(spread, low, high, fill)
    view = build.windows(board, op.window_dims, op.strides, op.window_dilation)
    return build.cast(_over_windows(fn, view, output.rank, wide), output.dtype)


def _over_windows(fn: ReduceFn, view: Value, rank: int, acc: DType) -> Value:
    """The window axes, which follow the first `rank` ones, reduced. A narrow float rounds after
    each addition, so there one axis is summed after the other, as the op says."""
    if fn is not ReduceFn.SUM or not acc.is_float or acc.bits >= 32:
        return build.reduce(fn, view, range(rank, 2 * rank), acc)
    for _ in range(rank):
        view = build.reduce(fn, view, [rank], acc)
    return view


ROWS: Final[Rows] = {
    movement.Reshape: _reshape,
    movement.Transpose: _transpose,
    movement.BroadcastTo: _broadcast_to,
    movement.Slice: _slice,
    movement.Concat: _concat,
    movement.Pad: _pad,
    movement.Tile: _tile,
    movement.Iota: _iota,
    window.ExtractPatches: _extract_patches,
    window.ReduceWindow: _reduce_window,
}
