"""The partitioning rule of matrix products."""

from __future__ import annotations

from weft.ptir.op_rules import op_as
from weft.ptir.ops.contraction import DotGeneral
from weft.ptir.splitting.resharding import Layout, Part
from weft.ptir.splitting.rules import Splitting, splits


@splits(DotGeneral)
def dot_general(s: Splitting) -> Part:
    """Rows and columns stay split. Axes that both operands have are split in the same way, and the
    sum over one that is split is pending."""
    op = op_as(s, DotGeneral)
    lhs, rhs = s.settled(0), s.settled(1)
    left, right = list(lhs.layout), list(rhs.layout)
    both = (*zip(op.batch_lhs, op.batch_rhs, strict=True),
            *zip(op.contract_lhs, op.contract_rhs, strict=True))  # fmt: skip
    for a, b in both:
        (left[a],) = (right[b],) = s.fitting((left[a],), (right[b],))
    layouts: tuple[Layout, Layout] = tuple(left), tuple(right)
    for layout in layouts:
        s.once(layout, lhs.layout, rhs.layout)
    shared = {*op.batch_lhs, *op.contract_lhs}, {*op.batch_rhs, *op.contract_rhs}
    rows = [axes for d, axes in enumerate(left) if d not in shared[0]]
    columns = [axes for d, axes in enumerate(right) if d not in shared[1]]
    found = (*(left[d] for d in op.batch_lhs), *rows, *columns)
    pending = tuple(name for d in op.contract_lhs for name in left[d])
    s.once(found, lhs.layout, rhs.layout, pending=pending)
    term = s.at.tape.append(op, [s.own(lhs, layouts[0]), s.own(rhs, layouts[1])])
    return s.part(term, found, pending)
