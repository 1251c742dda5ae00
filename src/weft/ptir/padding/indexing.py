"""Rules of ops that read and write at indices that are data. An index without meaning becomes 0,
for one that is out of range is rejected when the program runs. Along a padded axis an index behind
the real elements becomes -1, so that it is rejected as well."""

from __future__ import annotations

from weft.foundation.axes import normalise_axis
from weft.ptir.op_rules import op_as
from weft.ptir.ops.indexing import Gather, ScatterAdd, ScatterReduce, Take
from weft.ptir.padding.rules import Padding, neutral, pads
from weft.ptir.term import Term
from weft.ptir.types import Symbol


@pads(Take)
def take(p: Padding) -> Term:
    return p.replay(p.operands[0], _masked_indices(p, 0))


@pads(Gather)
def gather(p: Padding) -> Term:
    axis = normalise_axis(op_as(p, Gather).axis, p.operands[0].rank)
    _require_aligned(p, axis, 1)
    return p.replay(p.operands[0], _masked_indices(p, axis))


def _masked_indices(p: Padding, axis: int) -> Term:
    """The indices into an axis: real ones that are out of range stay so."""
    found, extent = p.masked(1, 0), p.operands[0].shape[axis]
    if not isinstance(extent, Symbol) or not p.is_padded(extent):
        return found
    limit = p.sizes.of(extent).cast(found.dtype).broadcast_to(found.shape)
    return found.where(found.compare(limit, "less"), found.like(-1))


@pads(ScatterReduce)
def scatter_reduce(p: Padding) -> Term:
    """A padded axis passes through: what is without meaning is written beside the real elements."""
    axis = normalise_axis(op_as(p, ScatterReduce).axis, p.operands[0].rank)
    _require_aligned(p, axis, 2)
    p.require_whole(0, [axis], "writes at positions along")
    for index in (1, 2):
        p.require_whole(index, [axis], "writes as many updates as")
    x, _, updates = p.operands
    return p.replay(x, p.masked(1, 0), updates)


@pads(ScatterAdd)
def scatter_add(p: Padding) -> Term:
    """Updates without meaning add nothing, at position 0. An axis that a window covers from end to
    end passes through: there, what is without meaning is added beside the real elements."""
    x, _, updates = p.operands
    covered = _find_covered_axes(p)
    p.require_whole(0, [d for d in range(x.rank) if d not in covered.values()], "writes into")
    rest = [d for d in range(updates.rank) if d not in covered]
    return p.replay(x, p.masked(1, 0), p.masked(2, neutral(x.dtype), rest))


def _find_covered_axes(p: Padding) -> dict[int, int]:
    """The axes of the updates that run along a whole axis of x, always from its start."""
    op, (x, _, updates) = op_as(p, ScatterAdd), p.operands
    pairs = zip(op.update_window_dims, op.window_axes(x.rank), strict=True)
    indexed = op.scatter_dims_to_operand_dims
    # A window as long as its axis has one place where it fits, so its elements lie where x has
    # them.
    return {a: d for a, d in pairs if d not in indexed and updates.shape[a] == x.shape[d]}


def _require_aligned(p: Padding, axis: int, last: int) -> None:
    """All operands agree in the axes that are not indexed."""
    shapes = [term.shape for term in p.operands[: last + 1]]
    for d in range(len(shapes[0])):
        if d != axis:
            p.require_same(*(shape[d] for shape in shapes))
