"""How stored values lie in memory, where their own order would suit nobody.

Matrix units want the contracted axes of an operand to follow one another. A value that a
contraction sums over two axes which do not (the heads and the depth of an attention's result, with
the sequence between them) is stored with them together, innermost:

    (head, row, depth), summed over head and depth   ->   stored as (row, head, depth)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from weft.foundation.dims import static
from weft.poly_view.ir import Access, BlockKind, PolyBlock
from weft.region.writing.emit import makes_up


@dataclass(frozen=True)
class Layout:
    """An order of atoms; the last `together` of them are one axis of the tensor."""

    order: tuple[int, ...]
    together: int

    def shape(self, block: PolyBlock) -> tuple[int, ...]:
        """Of the tensor. Atoms of one axis of the value that follow one another are one axis too,
        as in tensors without a layout: kernels that hand it on see the same axes."""
        kept, dims = len(self.order) - self.together, dims_of(block)
        sizes: list[int] = []
        for number, place in enumerate(self.order):
            before = self.order[number - 1] if 0 < number < kept else None
            follows = before is not None and place == before + 1 and dims[place] == dims[before]
            if follows or number > kept:
                sizes[-1] *= block.shape[place]
            else:
                sizes.append(block.shape[place])
        return tuple(sizes)


def dims_of(block: PolyBlock) -> list[int]:
    """Which axis of a block's value each of its atoms is part of; each is one where that is not so
    simple."""
    sizes = tuple(static(size) for size in block.value.shape)
    if not makes_up(sizes, block.shape):
        return list(range(len(block.shape)))
    dims: list[int] = []
    for number, size in enumerate(sizes):
        extent = 1
        while extent != size:
            extent *= block.shape[len(dims)]
            dims.append(number)
    return [*dims, *range(len(sizes), len(sizes) + len(block.shape) - len(dims))]


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
                layout = _find_layout(block, access)
                if layout is not None:
                    found.setdefault(access.tensor, layout)
    return found


def _find_layout(block: PolyBlock, access: Access) -> Layout | None:
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
