"""How stored values lie in memory, where their own order would suit nobody.

Matrix units want the contracted axes of an operand to follow one another. A value that a
contraction sums over two axes which do not (the heads and the depth of an attention's result, with
the sequence between them) is stored with them together, innermost:

    (head, row, depth), summed over head and depth   ->   stored as (row, head, depth)
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from weft.poly_view.ir import Access, BlockKind, PolyBlock


@dataclass(frozen=True)
class Layout:
    """An order of atoms; the last `together` of them are one axis of the tensor."""

    order: tuple[int, ...]
    together: int

    def shape(self, atoms: tuple[int, ...]) -> tuple[int, ...]:
        sizes = [atoms[place] for place in self.order]
        kept = len(sizes) - self.together
        return (*sizes[:kept], math.prod(sizes[kept:]))


def contraction_layouts(
    blocks: Mapping[str, PolyBlock], fixed: Collection[str]
) -> dict[str, Layout]:
    """Layouts for blocks that a contraction reads with its summed axes apart; the first contraction
    that asks decides. Blocks in `fixed` stay as they are."""
    found: dict[str, Layout] = {}
    for block in blocks.values():
        if block.kind is not BlockKind.CONTRACTION:
            continue
        for access in block.accesses:
            if access.tensor in blocks and access.tensor not in fixed:
                layout = _layout(block, access)
                if layout is not None:
                    found.setdefault(access.tensor, layout)
    return found


def _layout(block: PolyBlock, access: Access) -> Layout | None:
    axes = [expr.single_axis for expr in access.map]
    if None in axes or access.guards:
        return None
    names = [axis.name for axis in axes if axis is not None]
    summed = [axis.name for axis in block.reduce_axes if axis.name in names]
    if len(set(names)) != len(names) or len(summed) < 2:
        return None
    places = [names.index(name) for name in summed]
    if places == list(range(places[0], places[0] + len(places))):
        return None
    others = [place for place in range(len(names)) if place not in places]
    return Layout((*others, *places), len(places))
