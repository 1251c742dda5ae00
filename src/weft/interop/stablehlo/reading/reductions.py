"""Reductions and maps. Their bodies are regions on scalars, which run here on whole tensors: a
region that combines two elements combines every element with its neighbour, until one is left.
StableHLO leaves open how elements are grouped, but not their order, so this is its meaning for any
region; sums, extremes, products and logic have ops of their own in PTIR.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from weft.foundation.dtypes import I1, DType
from weft.interop.stablehlo.reading.control import captured
from weft.interop.stablehlo.reading.site import Lowering, Results, Site
from weft.interop.stablehlo.records import HloBlock
from weft.ptir.builder import BodyBuilder, Value

_KINDS: Final = {
    "add": "sum",
    "maximum": "max",
    "minimum": "min",
    "multiply": "prod",
    "and": "all",
    "or": "any",
}
_ON_BOOLEANS: Final = {"sum": "any", "max": "any", "prod": "all", "min": "all"}
COMBINE: Final = {
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


def is_identity(at: Site, index: int, kind: str) -> bool:
    """Whether an operand is a constant that changes nothing."""
    data = at.constant(index)
    if data is None:
        return False
    start = np.asarray(data.array.reshape(-1)[0])
    return bool(start == np.asarray(identity_of(kind, data.type.dtype)).astype(start.dtype))


def _lower_reduce(at: Site) -> Results:
    count = len(at.x) // 2
    axes = at.ints("dimensions")
    kind = kind_of(at.op.blocks[0], at.x[0].dtype) if count == 1 else ""
    if kind:
        return _named_reduce(at, kind, axes)
    return fold_region(at, at.op.blocks[0], at.x[:count], at.x[count:], axes)


def _named_reduce(at: Site, kind: str, axes: Sequence[int]) -> Value:
    x, start = at.x
    found = at.b.emit(f"reduce_{kind}", x, axes=axes) if axes else x
    if is_identity(at, 1, kind):
        return found
    return at.b.emit(COMBINE[kind], *at.aligned([found, start]))


Combine: TypeAlias = Callable[[Sequence[Value], Sequence[Value]], list[Value]]


def fold_region(
    at: Site, block: HloBlock, values: Sequence[Value], starts: Sequence[Value],
    axes: Sequence[int],
) -> list[Value]:  # fmt: skip
    """Reduce with any region."""
    shape = values[0].shape
    dims = tuple(size for axis, size in enumerate(shape) if axis not in axes)
    begin = [at.spread(start, dims) for start in starts]
    if 0 in shape:
        return begin
    if not values[0].tensor.is_static:
        return _one_by_one(at, block, values, begin, axes)

    def combine(left: Sequence[Value], right: Sequence[Value]) -> list[Value]:
        return run_on_tensors(at, block, [*left, *right])

    return combine(begin, folded_in_order(at, values, axes, combine))


def _one_by_one(
    at: Site, block: HloBlock, values: Sequence[Value], begin: Sequence[Value],
    axes: Sequence[int],
) -> list[Value]:  # fmt: skip
    """Elements taken in row by row, where only the run knows how many there are."""
    taken = captured(at, [block])
    outer = [at.env[number] for number in taken]
    order = [*sorted(axes), *(axis for axis in range(values[0].rank) if axis not in axes)]
    dims = begin[0].shape
    rows = [at.b.reshape(value.transpose(order), [-1, *dims]) for value in values]
    rows = [row.reshape(rows[0].shape) for row in rows]
    count = len(begin)

    def step(b: BodyBuilder, *given: Value) -> list[Value]:
        env = {**at.env, **dict(zip(taken, given[count:], strict=False))}
        inside = Site(at.reader, b, at.op, list(given), env)
        made = run_on_tensors(inside, block, [*given[:count], *given[count + len(taken) :]])
        return [*made, *given[count : count + len(taken)]]

    found = at.b.scan(step, [*begin, *outer], rows)
    return [found] if count + len(taken) == 1 else list(found)[:count]


def folded_in_order(
    at: Site, values: Sequence[Value], axes: Sequence[int], combine: Combine
) -> list[Value]:
    """Axes combined to one element: neighbours with each other, again and again, so that what came
    first is always on the left."""
    shape = at.static(values[0])
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    dims = [shape[axis] for axis in kept]
    count = math.prod(shape[axis] for axis in axes)
    order = [*sorted(axes), *kept]
    rows = [v.transpose(order).reshape([count, *dims]) for v in values]
    while count > 1:
        half = count // 2
        left, right = ([_every_other(at, v, half, side) for v in rows] for side in (0, 1))
        made = combine(left, right)
        if count % 2:
            last = [_slice_rows(at, v, count - 1, 1) for v in rows]
            made = [at.b.concat([a, b], 0) for a, b in zip(made, last, strict=True)]
        rows, count = made, half + count % 2
    return [v.reshape(dims) for v in rows]


def _every_other(at: Site, x: Value, half: int, side: int) -> Value:
    """Rows 0, 2, 4, ... or 1, 3, 5, ..., so many of them."""
    rest = at.static(x)[1:]
    pairs = _slice_rows(at, x, 0, 2 * half).reshape([half, 2, *rest])
    starts = [0, side, *(0 for _ in rest)]
    return at.sliced(pairs, starts, [half, 1, *rest]).reshape([half, *rest])


def _slice_rows(at: Site, x: Value, start: int, count: int) -> Value:
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


def _lower_map(at: Site) -> Results:
    return run_on_tensors(at, at.op.blocks[0], at.aligned(at.x))


REDUCTIONS: Final[Mapping[str, Lowering]] = {"reduce": _lower_reduce, "map": _lower_map}
