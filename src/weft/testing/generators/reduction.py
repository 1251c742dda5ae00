"""Reductions over axes and segments, running reductions, sorting and searching."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from weft.foundation.dtypes import (
    BOOL,
    FP8_E4M3,
    I1,
    INDICES,
    INTEGERS,
    NUMBERS,
    ORDERED,
    DType,
    in_order,
)
from weft.ptir.ops import ordering, reduction
from weft.ptir.ops.reduce_kind import DEFINED, ReduceKind
from weft.testing.data import Array
from weft.testing.draft import Item
from weft.testing.facts import (
    ANYTHING,
    BITS,
    EXACT,
    Facts,
    Want,
    accumulated,
    default_accumulator,
    limit,
    saturated,
    sum_facts,
    within,
)
from weft.testing.generator import Generator
from weft.testing.generators.indexing import indices
from weft.testing.generators.registry import generates


def accumulators(g: Generator, dtype: DType) -> DType | None:
    """Nothing, or an accumulator that the dtype may have."""
    if g.choices.chance(0.6):
        return None
    wider = {d for d in g.rules.dtypes if d.kind is dtype.kind and d.bits > dtype.bits}
    return g.choices.choose(in_order({dtype, *wider}))


def summand_bound(dtype: DType, count: int) -> float:
    """The magnitude of elements of which `count` are summed; integers may wrap."""
    if not (dtype.is_float or dtype.is_complex):
        return math.inf
    return 2.0 ** math.floor(math.log2(limit(dtype) / max(count, 1)))


def empty_extreme(dtype: DType, kind: ReduceKind, facts: Facts) -> Facts:
    """The facts when there may be nothing to take the maximum or minimum of."""
    if dtype.is_float and dtype is not FP8_E4M3:
        return replace(facts, special=True, zeros=False)
    end = int(dtype.lowest if kind is ReduceKind.MAX else dtype.highest)
    return Facts(min(facts.low, end), max(facts.high, end), facts.step, facts.special)


def axes_of(g: Generator, x: Item) -> tuple[int, ...]:
    if g.choices.chance(0.2):
        return tuple(range(x.rank))
    return tuple(g.choices.shuffled(g.choices.subset(range(x.rank))))


def _element_count(x: Item, axes: Sequence[int]) -> int:
    return math.prod(x.sizes[axis] for axis in axes)


@generates(reduction.Reduce, weight=6)
def reduce(g: Generator) -> None:
    kind = g.choices.choose([k for k in ReduceKind if g.allows(f"reduce_{k}")])
    if kind is ReduceKind.SUM:
        _generate_sum(g)
        return
    x = g.pick(DEFINED[kind])
    axes = axes_of(g, x)
    facts = x.facts if _element_count(x, axes) else empty_extreme(x.dtype, kind, x.facts)
    accum = None if x.dtype is I1 else accumulators(g, x.dtype)
    keepdims = g.choices.chance(0.4)
    g.emit(
        reduction.Reduce(kind, axes, keepdims, accum, None), x, facts=replace(facts, zeros=False)
    )


def _generate_sum(g: Generator) -> None:
    dtype = g.dtype(NUMBERS | BOOL)
    x = g.pick({dtype}, Want())
    axes = axes_of(g, x)
    count = _element_count(x, axes)
    fitted = g.fit(x, within(summand_bound(dtype, count)))
    x = fitted if fitted is not None else g.like(x, within(summand_bound(dtype, count)))
    accum = accumulators(g, dtype)
    if dtype is I1:
        accum = g.dtype(INTEGERS)
    inner = accum or default_accumulator(dtype)
    out = _draw_output_dtype(g, dtype, x.facts, inner, count)
    facts = sum_facts(out or dtype, inner, x.facts, count)
    keepdims = g.choices.chance(0.4)
    g.emit(reduction.Reduce(ReduceKind.SUM, axes, keepdims, accum, out), x, facts=facts)


def _draw_output_dtype(
    g: Generator, dtype: DType, facts: Facts, inner: DType, count: int
) -> DType | None:
    """Nothing, or another output dtype that holds the sums."""
    if g.choices.chance(0.7):
        return None
    sums = sum_facts(inner, inner, facts, count)
    same = [d for d in g.rules.dtypes if d.kind is inner.kind and limit(d) >= limit(dtype)]
    if dtype.is_integer or dtype is I1 or sums.exact:
        same += [d for d in g.rules.dtypes & ORDERED if limit(d) >= sums.bound]
    return g.choices.choose(in_order(set(same))) if same else None


@generates(reduction.ReduceProd)
def reduce_prod(g: Generator) -> None:
    dtype = g.dtype(NUMBERS)
    x = g.pick({dtype}, Want(), ok=lambda item: math.prod(item.sizes) <= 64, shape=lambda: (2, 3))
    axes = axes_of(g, x)
    count = _element_count(x, axes)
    x = _bounded_factors(g, x, count)
    accum = accumulators(g, dtype)
    g.emit(
        reduction.ReduceProd(axes, g.choices.chance(0.4), accum, None),
        x,
        facts=_product_facts(dtype, accum or default_accumulator(dtype), x.facts, count),
    )


def _bounded_factors(g: Generator, x: Item, count: int) -> Item:
    """`x`, or something like it of which `count` factors do not exceed the limit."""
    if x.dtype.is_integer:
        return x
    # The magnitude of a complex number is up to sqrt(2) times that of its parts.
    spare = 0.5 * count if x.dtype.is_complex else 0.0
    bound = 2.0 ** math.floor((math.log2(limit(x.dtype)) - spare) / max(count, 1))
    fitted = g.fit(x, within(min(bound, 8.0)))
    return fitted if fitted is not None else g.like(x, within(min(bound, 8.0)))


def _product_facts(dtype: DType, accum: DType, facts: Facts, count: int) -> Facts:
    """The facts of products of up to `count` elements."""
    if dtype.is_integer:
        wide = Facts(int(accum.lowest), int(accum.highest))
        return saturated(dtype, wide)
    factor = facts.bound * (1.5 if dtype.is_complex else 1.0)
    bound = max(factor**count, factor, 1.0)
    step = None
    if facts.step is not None:
        step = min(facts.step**count, facts.step, 1.0) if count <= 64 else None
    return accumulated(dtype, accum, -bound, bound, step)


@generates(reduction.ReduceAny, reduction.ReduceAll, weight=1)
def logical(g: Generator) -> None:
    classes = (reduction.ReduceAny, reduction.ReduceAll)
    cls = g.choices.choose([cls for cls in classes if g.allows(cls.name)])
    x = g.pick(BOOL)
    g.emit(cls(axes_of(g, x), g.choices.chance(0.4)), x, facts=BITS)


# -- along one axis ------------------------------------------------------------------------------


def along(g: Generator, dtypes: Iterable[DType], want: Want = ANYTHING) -> tuple[Item, int, int]:
    """A value with an axis that has elements; the axis as a number, and as it may be written."""
    x = g.pick(
        dtypes,
        want,
        ok=lambda item: any(item.sizes),
        shape=lambda: g.shape(1, 3, empty=False),
    )
    axis = g.choices.choose([a for a, n in enumerate(x.sizes) if n])
    return x, axis, axis - x.rank if g.choices.chance(0.4) else axis


@generates(reduction.ArgMax, reduction.ArgMin)
def position(g: Generator) -> None:
    classes = (reduction.ArgMax, reduction.ArgMin)
    cls = g.choices.choose([cls for cls in classes if g.allows(cls.name)])
    x, axis, written = along(g, ORDERED, EXACT)
    dtype = g.dtype(INDICES)
    facts = Facts(0, x.sizes[axis] - 1)
    g.emit(cls(written, g.choices.chance(0.4), dtype), x, facts=facts)


@generates(ordering.TopK)
def top_k(g: Generator) -> None:
    x, axis, written = along(g, ORDERED, EXACT)
    k = g.choices.integer(1 if g.choices.chance(0.95) else 0, x.sizes[axis])
    dtype = g.dtype(INDICES)
    facts = [replace(x.facts, zeros=False), Facts(0, x.sizes[axis] - 1)]
    g.emit_tuple(ordering.TopK(k, written, g.choices.chance(0.6), dtype), x, facts=facts)


@generates(ordering.Sort)
def sort(g: Generator) -> None:
    x, _, written = along(g, ORDERED, EXACT)
    facts = replace(x.facts, zeros=False)
    g.emit(ordering.Sort(written, g.choices.chance(0.5)), x, facts=facts)


@generates(ordering.Argsort)
def argsort(g: Generator) -> None:
    x, axis, written = along(g, ORDERED, EXACT)
    dtype = g.dtype(INDICES)
    op = ordering.Argsort(written, g.choices.chance(0.5), dtype)
    g.emit(op, x, facts=Facts(0, x.sizes[axis] - 1))


@generates(ordering.Searchsorted)
def searchsorted(g: Generator) -> None:
    values = g.pick(ORDERED, Want(exact=True))
    ascending = _draw_ascending(g, values.dtype)
    dtype = g.dtype(INDICES)
    side = g.choices.choose(list(ordering.Side))
    facts = Facts(0, ascending.sizes[0])
    g.emit(ordering.Searchsorted(side, dtype), ascending, values, facts=facts)


def _draw_ascending(g: Generator, dtype: DType) -> Item:
    """A sorted vector: sorted data, or a vector that is sorted in the program."""
    if g.allows("sort") and g.choices.chance(0.5):
        x = g.pick({dtype}, Want(exact=True), lambda i: i.rank == 1, lambda: g.shape(1, 1))
        return g.emit(ordering.Sort(0, False), x, facts=replace(x.facts, zeros=False))
    facts = g.invent(dtype, Want(exact=True))
    return g.given(
        dtype, (g.dim(),), lambda n: _sort_elements(g.data.array(dtype, n, facts)), facts
    )


def _sort_elements(array: Array) -> Array:
    """The elements in ascending order; NumPy cannot order every narrow type itself."""
    flat = array.reshape(-1)
    keys = flat if flat.dtype.kind in "iub" else flat.astype(np.float64)
    return flat[np.argsort(keys, kind="stable")].reshape(array.shape)


@generates(
    reduction.CumulativeSum,
    reduction.CumulativeProd,
    reduction.CumulativeMax,
    reduction.CumulativeMin,
)
def cumulative(g: Generator) -> None:
    classes = (
        reduction.CumulativeSum,
        reduction.CumulativeProd,
        reduction.CumulativeMax,
        reduction.CumulativeMin,
    )
    cls = g.choices.choose([cls for cls in classes if g.allows(cls.name)])
    x, axis, written = along(g, cls.dtypes["x"], Want())
    op = cls(written, g.choices.chance(0.4))
    if cls is reduction.CumulativeSum:
        want = within(summand_bound(x.dtype, x.sizes[axis]))
        fitted = g.fit(x, want)
        x = fitted if fitted is not None else g.like(x, want)
        g.emit(op, x, facts=_running_sum(x, x.sizes[axis]))
    elif cls is reduction.CumulativeProd:
        x = _bounded_factors(g, x, x.sizes[axis])
        wide = default_accumulator(x.dtype)
        g.emit(op, x, facts=_product_facts(x.dtype, wide, x.facts, x.sizes[axis]))
    else:
        g.emit(op, x, facts=replace(x.facts, zeros=False))


def _running_sum(x: Item, count: int) -> Facts:
    return sum_facts(x.dtype, default_accumulator(x.dtype), x.facts, count)


# -- segments ------------------------------------------------------------------------------------


@generates(reduction.SegmentReduce, weight=3)
def segment_reduce(g: Generator) -> None:
    kinds = [k for k in reduction.SegmentKind if g.allows(f"segment_{k}")]
    kind = g.choices.choose(kinds)
    adds = kind is reduction.SegmentKind.SUM
    dtype = g.dtype(NUMBERS | BOOL if adds else ORDERED)
    data = g.pick(
        {dtype}, ANYTHING if not adds else Want(), lambda i: i.rank > 0, lambda: g.shape(1)
    )
    rows = data.sizes[0]
    segments = g.choices.choose((1, 2, 3, 5, 8))
    ids, ascending, distinct = _draw_ids(g, data, segments)
    accum = None if dtype is I1 else accumulators(g, dtype)
    if adds:
        want = within(summand_bound(dtype, rows))
        fitted = g.fit(data, want)
        data = fitted if fitted is not None else g.like(data, want)
        if dtype is I1:
            accum = g.dtype(INTEGERS)
        facts = sum_facts(dtype, accum or default_accumulator(dtype), data.facts, rows)
    else:
        facts = empty_extreme(dtype, ReduceKind.MAX, replace(data.facts, zeros=False))
    op = reduction.SegmentReduce(kind, segments, accum, ascending, distinct)
    g.emit(op, data, ids, facts=facts)


def _draw_ids(g: Generator, data: Item, segments: int) -> tuple[Item, bool, bool]:
    """Segment ids for the rows of `data`, and whether to promise that they ascend, or differ."""
    rows = data.sizes[0]
    facts = Facts(0, segments - 1)
    dtype = g.dtype(INDICES)
    if g.choices.chance(0.3):
        ids = g.given(
            dtype, data.shape[:1], lambda n: _sort_elements(g.data.array(dtype, n, facts)), facts
        )
        return ids, not g.depth and g.choices.chance(0.7), False
    if rows <= segments and g.choices.chance(0.3):
        ids = g.given(
            dtype, data.shape[:1], lambda n: np.arange(math.prod(n)).reshape(n).astype(dtype.numpy),
            facts,
        )  # fmt: skip
        return ids, not g.depth, not g.depth
    return indices(g, data.shape[:1], segments, {dtype}), False, False
