"""Recognising matrix products and their axes: rows, columns, batch and depth.

Two reads under a `mul` under a `reduce(sum)` are a contraction when both depend on every reduced
axis and at least one other axis belongs to one of them alone. It is a convolution when an index
adds a reduced axis to another one (`h + kh`), and a matrix product otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.foundation.index_expr import Expr, axes_of
from weft.poly_view.ir import Access, ContractionAttrs, IterAxis


def recognise(axes: Sequence[IterAxis], lhs: Access, rhs: Access) -> ContractionAttrs | None:
    """The roles of the axes of a sum of products; None where it is not a contraction."""
    left, right = depends_on(lhs), depends_on(rhs)
    reduced = tuple(a.name for a in axes if a.reduce)
    out = tuple(a.name for a in axes if not a.reduce)
    # An axis that is summed over but is in one operand alone could be summed before the product; an
    # axis of the result that is in neither would repeat it.
    if not reduced or not (left & right).issuperset(reduced) or not (left | right).issuperset(out):
        return None
    rows = tuple(name for name in out if name not in right)
    columns = tuple(name for name in out if name not in left)
    if not rows and not columns:
        return None
    offsets = _offsets((*lhs.map, *rhs.map), reduced)
    return ContractionAttrs(
        "conv" if offsets else "matmul",
        tuple(name for name in out if name in left and name in right),
        rows,
        columns,
        out,
        reduced,
        offsets,
    )


def depends_on(access: Access) -> frozenset[str]:
    """The axes that decide which element is read, or whether one is."""
    exprs = (*access.map, *(guard.expr for guard in access.guards))
    return frozenset[str]().union(*(axes_of(e) for e in exprs))


def _offsets(exprs: Sequence[Expr], reduced: Sequence[str]) -> dict[str, str]:
    """For each axis that a reduced axis is added to, the whole expression."""
    found = {}
    for expr in exprs:
        axes = axes_of(expr)
        kept = sorted(axes.difference(reduced))
        if kept and axes.intersection(reduced):
            found.update(dict.fromkeys(kept, str(expr)))
    return found
