"""Reductions, windows and maps. Their bodies are regions on scalars, which run here on whole
tensors: a region that combines two elements combines two halves of a tensor, one after the other,
until one element is left. StableHLO leaves the order open, so this is its meaning for any region;
sums, extremes, products and logic have ops of their own in PTIR.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from weft.foundation.dtypes import I1, DType
from weft.interop.stablehlo.reading.shapes import broadcast_in_dim, pad
from weft.interop.stablehlo.reading.site import Lowering, Results, Site
from weft.interop.stablehlo.records import HloBlock
from weft.ptir.builder import Value

_KINDS: Final = {
    "add": "sum",
    "maximum": "max",
    "minimum": "min",
    "multiply": "prod",
    "and": "all",
    "or": "any",
}
_ON_BOOLEANS: Final = {"sum": "any", "max": "any", "prod": "all", "min": "all"}
_COMBINE: Final = {
    "sum": "add",
    "max": "maximum",
    "min": "minimum",
    "prod": "mul",
    "all": "bitwise_and",
    "any": "bitwise_or",
}


def kind_of(block: HloBlock, dtype: DType) -> str:
    """What a region that combines two scalars computes: sum, max, min, prod, all, any; or
    nothing that has a name."""
    if len(block.ops) != 1 or block.returned != block.ops[0].results:
        return ""
    op = block.ops[0]
    if len(block.arguments) != 2 or sorted(op.operands) != sorted(block.arguments):
        return ""
    kind = _KINDS.get(op.name, "")
    if dtype is I1:
        return _ON_BOOLEANS.get(kind, kind)
    return "" if kind in ("all", "any") else kind


def identity_of(kind: str, dtype: DType) -> Any:
    """What changes nothing."""
    match kind:
        case "sum" | "any":
            return 0
        case "prod" | "all":
            return 1
        case "max":
            return dtype.lowest
    return dtype.highest


def _is_identity(at: Site, index: int, kind: str) -> bool:
    data = at.constant(index)
    if data is None:
        return False
    start = np.asarray(data.array.reshape(-1)[0])
    return bool(start == np.asarray(identity_of(kind, data.type.dtype)).astype(start.dtype))


def _reduce(at: Site) -> Results:
    count = len(at.x) // 2
    axes = at.ints("dimensions")
    kind = kind_of(at.op.blocks[0], at.x[0].dtype) if count == 1 else ""
    if kind:
        return _named_reduce(at, kind, axes)
    return _fold(at, at.op.blocks[0], at.x[:count], at.x[count:], axes)


def _named_reduce(at: Site, kind: str, axes: Sequence[int]) -> Value:
    x, start = at.x
    found = at.b.emit(f"reduce_{kind}", x, axes=axes) if axes else x
    if _is_identity(at, 1, kind):
        return found
    return at.b.emit(_COMBINE[kind], *at.aligned([found, start]))


Combine = Callable[[Sequence[Value], Sequence[Value]], list[Value]]


def _fold(
    at: Site, block: HloBlock, values: Sequence[Value], starts: Sequence[Value],
    axes: Sequence[int],
) -> list[Value]:  # fmt: skip
    """Reduce with any region. The axes come first, as one."""
    rank = values[0].rank
    kept = [axis for axis in range(rank) if axis not in axes]
    shape = at.static(values[0])
    count = math.prod(shape[axis] for axis in axes)
    dims = [shape[axis] for axis in kept]
    flat = [at.reshaped(at.transposed(v, [*axes, *kept]), [count, *dims]) for v in values]

    def combine(left: Sequence[Value], right: Sequence[Value]) -> list[Value]:
        return run_on_tensors(at, block, [*left, *right])

    begin = [at.spread(start, tuple(dims)) for start in starts]
    if not count:
        return begin
    whole = [at.reshaped(v, dims) for v in _halved(at, flat, count, combine)]
    return combine(begin, whole)


def _halved(at: Site, values: list[Value], count: int, combine: Combine) -> list[Value]:
    """The first axis combined to one element: its halves with each other, again and again."""
    while count > 1:
        half = count // 2
        parts = [[_rows(at, v, start, half) for v in values] for start in (0, half)]
        made = combine(*parts)
        if count % 2:
            last = [_rows(at, v, count - 1, 1) for v in values]
            made = [at.b.concat([a, b], 0) for a, b in zip(made, last, strict=True)]
        values, count = made, half + count % 2
    return values


def _rows(at: Site, x: Value, start: int, count: int) -> Value:
    rest = at.static(x)[1:]
    return at.sliced(x, [start, *(0 for _ in rest)], [count, *rest])


def run_on_tensors(at: Site, block: HloBlock, args: Sequence[Value]) -> list[Value]:
    """A region on scalars, run on tensors of one shape. Scalars that it makes or takes from
    outside are repeated."""
    for op in block.ops:
        if op.blocks:
            at.refuse(f"its region holds {op.name}, which has regions itself")
    found = at.reader.inline(at.b, block, args, at.env)
    shape = args[0].shape
    return [at.spread(value, shape) for value in found]


def _map(at: Site) -> Results:
    return run_on_tensors(at, at.op.blocks[0], at.aligned(at.x))


# -- windows -------------------------------------------------------------------------------------


def _reduce_window(at: Site) -> Results:
    count = len(at.x) // 2
    kind = kind_of(at.op.blocks[0], at.x[0].dtype) if count == 1 else ""
    if kind in ("sum", "max", "min", "any", "all"):
        return _named_window(at, kind)
    return _window_fold(at, count)


def _named_window(at: Site, kind: str) -> Value:
    x, start = at.x
    rank = x.rank
    ones = (1,) * rank
    padding = at.pairs("padding", rank)
    wanted = {"any": "max", "all": "min"}.get(kind, kind)
    inside = [(max(a, 0), max(b, 0)) for a, b in padding]
    base = at.ints("base_dilations", ones)
    x = _cut(at, x, padding, base)
    found = at.b.emit(
        "reduce_window",
        x,
        window_dims=at.ints("window_dimensions"),
        strides=at.ints("window_strides", ones),
        padding=inside,
        base_dilation=base if x is at.x[0] else ones,
        window_dilation=at.ints("window_dilations", ones),
        reduce=wanted,
    )
    if _is_identity(at, 1, kind):
        return found
    return at.b.emit(_COMBINE[kind], *at.aligned([found, start]))


def _cut(at: Site, x: Value, padding: Sequence[tuple[int, int]], base: Sequence[int]) -> Value:
    """Negative padding takes elements away, after they have been spread out."""
    if all(low >= 0 and high >= 0 for low, high in padding):
        return x
    if any(step > 1 for step in base):
        at.refuse("it has negative padding and dilates its operand")
    low, high = ([min(pair[i], 0) for pair in padding] for i in range(2))
    return pad(at, x, at.b.literal(0, x.dtype), low, high, [0] * x.rank)


def _window_fold(at: Site, count: int) -> list[Value]:
    """Any region: all windows as an axis of their own, which is then reduced."""
    starts = at.x[count:]
    patches = [_windows(at, x, start) for x, start in zip(at.x, starts, strict=False)]
    return _fold(at, at.op.blocks[0], patches, starts, [patches[0].rank - 1])


def _windows(at: Site, x: Value, start: Value) -> Value:
    rank, ones = x.rank, (1,) * x.rank
    padding = at.pairs("padding", rank)
    base = [step - 1 for step in at.ints("base_dilations", ones)]
    low, high = ([pair[i] for pair in padding] for i in range(2))
    board = pad(at, x, start, low, high, base)
    return _patches(at, board, ones)


def _patches(at: Site, board: Value, ones: tuple[int, ...]) -> Value:
    found = at.b.emit(
        "extract_patches",
        at.reshaped(board, [1, *board.shape, 1]),
        window=at.ints("window_dimensions"),
        strides=at.ints("window_strides", ones),
        dilation=at.ints("window_dilations", ones),
        padding=[(0, 0)] * board.rank,
        pad_value=0,
    )
    return at.reshaped(found, found.shape[1:])


# -- normalisation -------------------------------------------------------------------------------


def _along_feature(at: Site, x: Value, model: Value) -> Value:
    return broadcast_in_dim(at, x, [int(at.attr("feature_index"))], model.shape)


def _batch_norm_inference(at: Site) -> Value:
    x, scale, offset, mean, variance = at.x
    epsilon = float(at.attr("epsilon"))
    deviation = at.b.emit("sqrt", variance + epsilon)
    scale, offset, mean, deviation = (
        _along_feature(at, v, x) for v in (scale, offset, mean, deviation)
    )
    return (x - mean) / deviation * scale + offset


def _batch_norm_training(at: Site) -> list[Value]:
    x, scale, offset = at.x
    axes = [axis for axis in range(x.rank) if axis != int(at.attr("feature_index"))]
    count = math.prod(at.static(x)[axis] for axis in axes)
    mean = at.b.reduce_sum(x, axes) / float(count)
    centred = x - _along_feature(at, mean, x)
    variance = at.b.reduce_sum(centred * centred, axes) / float(count)
    deviation = at.b.emit("sqrt", variance + float(at.attr("epsilon")))
    scale, offset, deviation = (_along_feature(at, v, x) for v in (scale, offset, deviation))
    return [centred / deviation * scale + offset, mean, variance]


REDUCTIONS: Final[Mapping[str, Lowering]] = {
    "reduce": _reduce,
    "reduce_window": _reduce_window,
    "map": _map,
    "batch_norm_inference": _batch_norm_inference,
    "batch_norm_training": _batch_norm_training,
}
