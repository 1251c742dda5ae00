"""Partitioning rules of ops that read and write at indices: an indexed axis is not split."""

from __future__ import annotations

from weft.foundation.axes import normalise_axis
from weft.ptir.op_rules import op_as
from weft.ptir.ops.indexing import (
    DynamicSlice,
    DynamicUpdateSlice,
    Gather,
    ScatterAdd,
    ScatterReduce,
    Take,
)
from weft.ptir.splitting.resharding import Axes, Layout, Part
from weft.ptir.splitting.rules import NotSplit, Splitting, splits
from weft.ptir.splitting.shapes import extent, untouched
from weft.ptir.term import Term


@splits(Take)
def take(s: Splitting) -> Part:
    x, indices = s.settled(0), s.settled(1)
    untouched(x.layout, [0], "x")
    layout = s.once((*indices.layout, *x.layout[1:]), x.layout, indices.layout)
    return s.emit(s.op, [x.term, indices.term], layout)


@splits(Gather)
def gather(s: Splitting) -> Part:
    x, indices = s.settled(0), s.settled(1)
    axis = normalise_axis(op_as(s, Gather).axis, x.term.rank)
    untouched(x.layout, [axis], "x")
    layout = s.fitting(x.layout, indices.layout)
    read = _whole_along(layout, axis)
    return s.emit(s.op, [s.own(x, read), s.own(indices, layout)], layout)


def _whole_along(layout: Layout, axis: int) -> Layout:
    return (*layout[:axis], (), *layout[axis + 1 :])


@splits(ScatterReduce)
def scatter_reduce(s: Splitting) -> Part:
    parts = [s.settled(index) for index in range(3)]
    axis = normalise_axis(op_as(s, ScatterReduce).axis, s.output.rank)
    layout = untouched(s.fitting(*(part.layout for part in parts)), [axis], "x")
    return s.emit(s.op, [s.own(part, layout) for part in parts], layout)


@splits(ScatterAdd)
def scatter_add(s: Splitting) -> Part:
    """Updates that are split are added by the rank that has them, and the sum over ranks is
    pending; `x` is counted by the first of them."""
    op = op_as(s, ScatterAdd)
    x, indices, updates = (s.settled(index) for index in range(3))
    inserted = {*op.inserted_window_dims, *op.scatter_dims_to_operand_dims}
    window = [d for d in range(x.term.rank) if d not in inserted]
    if len(window) != len(op.update_window_dims):
        raise NotSplit("its windows begin at the indices")
    untouched(x.layout, sorted(inserted), "x")
    along = indices.term.rank if op.index_vector_dim is None else op.index_vector_dim
    untouched(indices.layout, [along] if along < indices.term.rank else [], "the indices")
    rows = [d for d in range(indices.term.rank) if d != along]
    spread = [d for d in range(updates.term.rank) if d not in op.update_window_dims]
    into, places, added = list(x.layout), list(indices.layout), list(updates.layout)
    for a, b in zip(window, op.update_window_dims, strict=True):
        if updates.layout[b] and extent(s, x, a) != extent(s, updates, b):
            raise NotSplit("its windows are smaller than x")
        (into[a],) = (added[b],) = s.fitting((into[a],), (added[b],))
    for a, b in zip(rows, spread, strict=True):
        (places[a],) = (added[b],) = s.fitting((places[a],), (added[b],))
    layout, pending = tuple(into), tuple(name for b in spread for name in added[b])
    s.once(layout, x.layout, updates.layout, pending=pending)
    first = _first_rank(s, s.own(x, layout), pending)
    terms = [first, s.own(indices, tuple(places)), s.own(updates, tuple(added))]
    return s.part(s.at.tape.append(op, terms), layout, pending)


def _first_rank(s: Splitting, x: Term, axes: Axes) -> Term:
    """A term on the first rank along some axes, and zeros on the others."""
    if not axes:
        return x
    place = s.at.tape.emit("mesh_rank", numbers=s.at.mesh.places(axes))
    return x.where(place.compare(0, "equal").broadcast_to(x.shape))


@splits(DynamicSlice)
def dynamic_slice(s: Splitting) -> Part:
    op, x = op_as(s, DynamicSlice), s.settled(0)
    return _split_window(s, x, [x], op.sizes)


@splits(DynamicUpdateSlice)
def dynamic_update_slice(s: Splitting) -> Part:
    op, x, update = op_as(s, DynamicUpdateSlice), s.settled(0), s.settled(1)
    return _split_window(s, x, [x, update], op.sizes)


def _split_window(s: Splitting, x: Part, given: list[Part], sizes: tuple[int, ...]) -> Part:
    """A window that begins anywhere, along axes that are not split."""
    start = s.settled(len(given))
    untouched(start.layout, [0], "start")
    layout = s.fitting(*(part.layout for part in given))
    untouched(layout, [d for d, n in enumerate(sizes) if n != extent(s, x, d)], "x")
    terms = [*(s.own(part, layout) for part in given), start.term]
    op = type(s.op)(s.at.local(sizes, layout))  # type: ignore[call-arg]
    return s.emit(op, terms, layout)
