"""Reading and writing at indices: always in range, from data, counting, or clamped values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from weft.foundation.dtypes import ANY, INDICES, NUMBERS, DType
from weft.ptir.ops import indexing
from weft.ptir.ops.indexing import ScatterFn
from weft.ptir.ops.movement import Iota
from weft.ptir.types import Dim, Shape, Symbol
from weft.testing.draft import Item
from weft.testing.facts import Facts, Want, default_accumulator, join, limit, sum_facts, within
from weft.testing.generator import Generator, Skip
from weft.testing.generators.registry import generates


def indices(g: Generator, shape: Shape, positions: int, dtypes: Iterable[DType] = INDICES) -> Item:
    """Indices of this shape, each in [0, positions)."""
    dtype = g.dtype(dtypes)
    if not positions:
        if 0 not in g.draft.sizes(shape):
            raise Skip
        return g.given(dtype, shape, lambda n: g.data.array(dtype, n, Facts(0, 0)), Facts(0, 0))
    want = Want(0, positions - 1)
    found = [i for i in g.draft.candidates if i.dtype is dtype and i.shape == shape]
    if found and g.choices.chance(0.6):
        fitted = g.fit(g.choices.choose(found), want)
        if fitted is not None:
            return fitted
    axes = [axis for axis, n in enumerate(g.draft.sizes(shape)) if n <= positions]
    if axes and g.allows("iota") and g.choices.chance(0.25):
        axis = g.choices.choose(axes)
        last = max(g.draft.size(shape[axis]) - 1, 0)
        return g.emit(Iota(shape, dtype, axis), facts=Facts(0, last))
    facts = Facts(0, positions - 1, zeros=True)
    return g.given(dtype, shape, lambda n: g.data.array(dtype, n, facts), facts)


def _draw_indexed(g: Generator, dtypes: Iterable[DType], want: Want | None = None) -> Item:
    """A value with at least one axis."""
    return g.pick(
        dtypes, want or Want(special=True), lambda item: item.rank > 0, lambda: g.shape(1, 3)
    )


@generates(indexing.Take, weight=3)
def take(g: Generator) -> None:
    x = _draw_indexed(g, ANY)
    shape = g.shape(0, 2) if x.sizes[0] else (0,)
    g.emit(indexing.Take(), x, indices(g, shape, x.sizes[0]), facts=x.facts)


def _draw_axis(g: Generator, x: Item) -> tuple[int, int]:
    axis = g.choices.integer(0, x.rank - 1)
    return axis, axis - x.rank if g.choices.chance(0.4) else axis


def _other_extent(g: Generator, x: Item, axis: int) -> Shape:
    """The shape of `x` with any extent along one axis."""
    extent: Dim = g.dim() if x.sizes[axis] else 0
    return (*x.shape[:axis], extent, *x.shape[axis + 1 :])


@generates(indexing.Gather, weight=3)
def gather(g: Generator) -> None:
    x = _draw_indexed(g, ANY)
    axis, written = _draw_axis(g, x)
    found = indices(g, _other_extent(g, x, axis), x.sizes[axis])
    g.emit(indexing.Gather(written), x, found, facts=x.facts)


@generates(indexing.ScatterReduce, weight=3)
def scatter_reduce(g: Generator) -> None:
    fn = g.choices.choose(list(ScatterFn))
    probe = indexing.ScatterReduce(0, fn)
    dtype = g.dtype(probe.dtype_table["x"])
    want = Want(special=True)
    if fn is ScatterFn.ADD:
        want = within(_summand(dtype))
    x = _draw_indexed(g, {dtype}, want)
    axis, written = _draw_axis(g, x)
    where = indices(g, _other_extent(g, x, axis), x.sizes[axis])
    updates = g.like(where, want, dtype=dtype)
    facts = join(x.facts, updates.facts)
    if fn is ScatterFn.ADD:
        facts = sum_facts(dtype, default_accumulator(dtype), facts, 1 + where.sizes[axis])
    g.emit(indexing.ScatterReduce(written, fn), x, where, updates, facts=facts)


def _summand(dtype: DType) -> float:
    return math.inf if dtype.is_integer else limit(dtype) / 64


# -- scatters with windows -----------------------------------------------------------------------


@generates(indexing.ScatterAdd, weight=3)
def scatter_add(g: Generator) -> None:
    dtype = g.dtype(NUMBERS)
    x = _draw_indexed(g, {dtype}, within(_summand(dtype)))
    scattered = g.choices.sample(range(x.rank), g.choices.integer(1, min(x.rank, 2)))
    inserted = sorted(scattered if g.choices.chance(0.5) else g.choices.subset(scattered))
    kept = [axis for axis in range(x.rank) if axis not in inserted]
    plain = [axis for axis in kept if axis not in scattered]
    window = kept if g.choices.chance(0.4) else plain
    extents = [_draw_extent(g, x, axis, axis in scattered) for axis in window]
    limits = [_window_starts(g, x, axis, window, extents) for axis in scattered]
    batch = g.shape(0, 2)
    if min(limits) == 0:
        batch = (0,)
    vector, shape = _vectors(g, batch, len(scattered))
    where = indices(g, shape, min(limits))
    places, shape = _interleave_axes(g, batch, extents)
    updates = g.pick({dtype}, within(_summand(dtype)), lambda i: i.shape == shape, lambda: shape)
    op = indexing.ScatterAdd(tuple(places), tuple(inserted), tuple(scattered), vector)
    count = 1 + math.prod(g.draft.sizes(batch))
    facts = sum_facts(dtype, default_accumulator(dtype), join(x.facts, updates.facts), count)
    if facts.bound > limit(dtype) and not dtype.is_integer:
        raise Skip
    g.emit(op, x, where, updates, facts=facts)


def _draw_extent(g: Generator, x: Item, axis: int, indexed: bool) -> Dim:
    """The extent of a window on one axis of `x`."""
    dim, size = x.shape[axis], x.sizes[axis]
    if g.choices.chance(0.5) and not indexed:
        return dim
    if isinstance(dim, Symbol) and not indexed:
        return dim
    return g.choices.integer(min(size, 1), size)


def _window_starts(
    g: Generator, x: Item, axis: int, window: Sequence[int], extents: Sequence[Dim]
) -> int:
    """At how many places on an indexed axis a window may begin."""
    size = g.draft.size(extents[window.index(axis)]) if axis in window else 1
    return max(x.sizes[axis] - size + 1, 0)


def _vectors(g: Generator, batch: Shape, length: int) -> tuple[int | None, Shape]:
    """Where the index vectors lie, and the shape of the indices; a vector of one may be implied."""
    if length == 1 and g.choices.chance(0.5):
        return g.choices.choose((None, len(batch))), batch
    place = g.choices.integer(0, len(batch))
    return place, (*batch[:place], length, *batch[place:])


def _interleave_axes(g: Generator, batch: Shape, extents: Sequence[Dim]) -> tuple[list[int], Shape]:
    """Which axes of the updates are window axes, and the shape of the updates."""
    rank = len(batch) + len(extents)
    places = sorted(g.choices.sample(range(rank), len(extents)))
    batches, windows = iter(batch), iter(extents)
    return places, tuple(next(windows if axis in places else batches) for axis in range(rank))


# -- windows at run-time positions ---------------------------------------------------------------


def _draw_start(g: Generator, x: Item) -> Item:
    """The start of a dynamic slice: mostly inside, now and then out of range, which is clamped."""
    dtypes = INDICES
    if g.choices.chance(0.3):
        return g.pick(dtypes, ok=lambda item: item.shape == (x.rank,), shape=lambda: (x.rank,))
    return indices(g, (x.rank,), max(x.sizes, default=0) or 1, dtypes)


def _draw_part(g: Generator, size: int) -> int:
    return size if g.choices.chance(0.3) else g.choices.integer(min(size, 1), size)


@generates(indexing.DynamicSlice, weight=3)
def dynamic_slice(g: Generator) -> None:
    x = g.pick(ANY)
    sizes = tuple(_draw_part(g, n) for n in x.sizes)
    g.emit(indexing.DynamicSlice(sizes), x, _draw_start(g, x), facts=x.facts)


@generates(indexing.DynamicUpdateSlice, weight=3)
def dynamic_update_slice(g: Generator) -> None:
    x = g.pick(ANY)
    sizes = tuple(_draw_part(g, n) for n in x.sizes)
    update = g.of_type(x.type.with_shape(sizes))
    facts = join(x.facts, update.facts)
    g.emit(indexing.DynamicUpdateSlice(sizes), x, update, _draw_start(g, x), facts=facts)
