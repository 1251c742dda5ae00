"""Rules of ops that read and write at indices that are data. An index without meaning becomes 0,
for one that is out of range is rejected when the program runs; and a padded axis is not indexed,
for there an index that is out of range would not be noticed."""

from __future__ import annotations

from weft.foundation.axes import normalise_axis
from weft.ptir.ops.indexing import Gather, ScatterAdd, ScatterReduce, Take
from weft.ptir.padding.rules import Padding, attributes, neutral, pads
from weft.ptir.term import Term


@pads(Take)
def take(p: Padding) -> Term:
    p.require_whole(0, [0], "looks up positions along")
    return p.replay(p.operands[0], p.masked(1, 0))


@pads(Gather)
def gather(p: Padding) -> Term:
    axis = _indexed_axis(p, attributes(p, Gather).axis)
    _require_aligned(p, axis, 1)
    return p.replay(p.operands[0], p.masked(1, 0))


@pads(ScatterReduce)
def scatter_reduce(p: Padding) -> Term:
    """A padded axis passes through: what is without meaning is written beside the real elements."""
    axis = _indexed_axis(p, attributes(p, ScatterReduce).axis)
    _require_aligned(p, axis, 2)
    for index in (1, 2):
        p.require_whole(index, [axis], "writes as many updates as")
    x, _, updates = p.operands
    return p.replay(x, p.masked(1, 0), updates)


@pads(ScatterAdd)
def scatter_add(p: Padding) -> Term:
    """Updates without meaning add nothing, at position 0."""
    x = p.operands[0]
    p.require_whole(0, range(x.rank), "writes into")
    return p.replay(x, p.masked(1, 0), p.masked(2, neutral(x.dtype)))


def _indexed_axis(p: Padding, axis: int) -> int:
    found = normalise_axis(axis, p.operands[0].rank)
    p.require_whole(0, [found], "looks up positions along")
    return found


def _require_aligned(p: Padding, axis: int, last: int) -> None:
    """All operands agree in the axes that are not indexed."""
    shapes = [term.shape for term in p.operands[: last + 1]]
    for d in range(len(shapes[0])):
        if d != axis:
            p.require_same(*(shape[d] for shape in shapes))
