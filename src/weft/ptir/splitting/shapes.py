"""Partitioning rules of ops on whole axes: movement, reductions, sorting, windows. An op works
along axes that are not split; those that it leaves alone stay split as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Final

from weft.foundation.axes import normalise_axes, normalise_axis
from weft.ptir.op_rules import op_as
from weft.ptir.ops.collective import Reshard
from weft.ptir.ops.custom import CustomGradient
from weft.ptir.ops.movement import BroadcastTo, Concat, Pad, Reshape, Slice, Tile, Transpose
from weft.ptir.ops.ordering import Argsort, Sort
from weft.ptir.ops.reduce_kind import ReduceKind
from weft.ptir.ops.reduction import (
    ArgMax,
    ArgMin,
    CumulativeMax,
    CumulativeMin,
    CumulativeProd,
    CumulativeSum,
    Reduce,
    ReduceAll,
    ReduceAny,
    ReduceProd,
)
from weft.ptir.ops.scheduling import Barrier
from weft.ptir.ops.window import ExtractPatches, ReduceWindow
from weft.ptir.splitting.resharding import Axes, Layout, Part, layout_of
from weft.ptir.splitting.rules import WAITING, NotSplit, Splitting, splits

WAITING.update((Reshape, Transpose, Reduce, Reshard))


def untouched(layout: Layout, axes: Sequence[int], what: str) -> Layout:
    """The layout, where none of these axes is split."""
    for d in axes:
        if layout[d]:
            names = ", ".join(layout[d])
            raise NotSplit(f"it works along axis {d} of {what}, which is split over {names}")
    return layout


@splits(Reshape)
def reshape(s: Splitting) -> Part:
    """An axis that is split becomes the axis that begins at the same place: the leading one of
    those that it is taken apart into, or the one that it leads."""
    (x,) = s.operands
    new = s.output.static_shape
    old = tuple(extent(s, x, d) for d in range(x.term.rank))
    found: list[Axes] = [()] * len(new)
    for d, axes in enumerate(x.layout):
        if axes:
            found[_same_begin(s, old, new, d, axes)] = axes
    layout = tuple(found)
    return s.part(x.term.reshape(s.at.local(new, layout)), layout, x.pending, x.line)


def _same_begin(s: Splitting, old: Sequence[int], new: Sequence[int], d: int, axes: Axes) -> int:
    before, count = prod(old[:d]), s.at.count(axes)
    for at, size in enumerate(new):
        # With the same number of elements before it, a part of the one axis is the same row-major
        # stretch as a part of the other.
        if prod(new[:at]) == before and size > 1 and size % count == 0:
            return at
    raise NotSplit(
        f"axis {d} of {list(old)} is split over {', '.join(axes)}, and no axis of {list(new)} "
        "begins where it does"
    )


@splits(Transpose)
def transpose(s: Splitting) -> Part:
    (x,), perm = s.operands, op_as(s, Transpose).perm
    layout = tuple(x.layout[d] for d in perm)
    return s.part(x.term.transpose(perm), layout, x.pending, x.line)


@splits(BroadcastTo)
def broadcast_to(s: Splitting) -> Part:
    x = s.settled(0)
    layout = ((),) * (s.output.rank - x.term.rank) + x.layout
    return s.part(x.term.broadcast_to(s.at.local(s.output.static_shape, layout)), layout)


@splits(Reshard)
def reshard(s: Splitting) -> Part:
    """What the user asks for, with the exchanges that it takes."""
    named = {d: text.split(",") for d, text in enumerate(op_as(s, Reshard).axes) if text}
    split = s.at.mesh.checked(named, s.output.static_shape, "x")
    found = s.at.resharded(s.operands[0], layout_of(s.at.mesh, split, s.output.rank))
    return s.part(found.term, found.layout)


@splits(Slice)
def slice_(s: Splitting) -> Part:
    op, x = op_as(s, Slice), s.settled(0)
    changed = [d for d, n in enumerate(op.sizes) if n != extent(s, x, d)]
    untouched(x.layout, changed, "x")
    return s.part(x.term.slice(op.starts, s.at.local(op.sizes, x.layout)), x.layout)


def extent(s: Splitting, x: Part, d: int) -> int:
    """The size of an axis of the whole."""
    return x.term.tensor.static_shape[d] * s.at.count(x.layout[d])


@splits(Concat)
def concat(s: Splitting) -> Part:
    axis = normalise_axis(op_as(s, Concat).axis, s.output.rank)
    parts = [s.settled(index) for index in range(len(s.operands))]
    layout = untouched(s.fitting(*(part.layout for part in parts)), [axis], "x")
    return s.emit(s.op, [s.own(part, layout) for part in parts], layout)


@splits(Pad)
def pad(s: Splitting) -> Part:
    op, x = op_as(s, Pad), s.settled(0)
    around = zip(op.low, op.high, op.interior, strict=True)
    return s.emit(op, [x.term], untouched(x.layout, _list_marked(map(any, around)), "x"))


def _list_marked(flags: Iterable[bool]) -> list[int]:
    return [d for d, flag in enumerate(flags) if flag]


@splits(Tile)
def tile(s: Splitting) -> Part:
    op, x = op_as(s, Tile), s.settled(0)
    return s.emit(op, [x.term], untouched(x.layout, _list_marked(n != 1 for n in op.repeats), "x"))


_BETWEEN_RANKS: Final = {ReduceKind.SUM: "sum", ReduceKind.MAX: "max", ReduceKind.MIN: "min"}


@splits(Reduce, ReduceProd, ReduceAny, ReduceAll)
def reduce(s: Splitting) -> Part:
    """A sum over an axis that is split is pending; other reductions are made at once."""
    kind = getattr(s.op, "kind", None)
    x = s.operands[0] if kind is ReduceKind.SUM else s.settled(0)
    gone = normalise_axes(getattr(s.op, "axes", ()), x.term.rank)
    axes = tuple(name for d in gone for name in x.layout[d])
    kept = bool(getattr(s.op, "keepdims", False))
    left = [() if d in gone else names for d, names in enumerate(x.layout)]
    layout = tuple(names for d, names in enumerate(left) if kept or d not in gone)
    term = s.at.tape.append(s.op, [x.term])
    if kind is ReduceKind.SUM:
        s.once(layout, x.layout, pending=(*x.pending, *axes))
        return s.part(term, layout, (*x.pending, *axes), x.line if x.pending else "")
    fn = {ReduceProd: "prod", ReduceAny: "sum", ReduceAll: "prod"}.get(type(s.op), "")
    between = fn or _BETWEEN_RANKS[kind or ReduceKind.SUM]
    return s.part(s.at.reduced(term, axes, between, s.line) if axes else term, layout)


@splits(ArgMax, ArgMin)
def position(s: Splitting) -> Part:
    x = s.settled(0)
    axis = normalise_axis(getattr(s.op, "axis", 0), x.term.rank)
    untouched(x.layout, [axis], "x")
    kept = getattr(s.op, "keepdims", False)
    layout = x.layout if kept else (*x.layout[:axis], *x.layout[axis + 1 :])
    return s.emit(s.op, [x.term], layout)


@splits(CumulativeSum, CumulativeProd, CumulativeMax, CumulativeMin, Sort, Argsort)
def along_axis(s: Splitting) -> Part:
    x = s.settled(0)
    axis = normalise_axis(getattr(s.op, "axis", 0), x.term.rank)
    return s.emit(s.op, [x.term], untouched(x.layout, [axis], "x"))


@splits(ExtractPatches)
def extract_patches(s: Splitting) -> Part:
    x = s.settled(0)
    return s.emit(s.op, [x.term], untouched(x.layout, range(1, x.term.rank), "x"))


@splits(ReduceWindow)
def reduce_window(s: Splitting) -> Part:
    op, x = op_as(s, ReduceWindow), s.settled(0)
    each = zip(op.window_dims, op.strides, op.padding, op.base_dilation, strict=True)
    changed = _list_marked(one != (1, 1, (0, 0), 1) for one in each)
    return s.emit(op, [x.term], untouched(x.layout, changed, "x"))


@splits(Barrier)
def barrier(s: Splitting) -> Part:
    """It waits for the other operand, and reads nothing of it."""
    x = s.settled(0)
    return s.emit(s.op, [x.term, s.operands[1].term], x.layout)


@splits(CustomGradient)
def custom_gradient(s: Splitting) -> Part:
    """Its first operand: the gradient was taken before."""
    x = s.settled(0)
    return s.part(x.term, x.layout)
