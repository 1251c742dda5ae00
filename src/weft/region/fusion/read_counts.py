"""How often an inlined block would be computed: at how many places of a kernel it is read.

The places of a block are its indices, in the axes of the kernel's root, on all ways from the root:
a sum of three slices reads its operand at `i`, `i + 1` and `i + 2`. Read at one place a block is
computed where it is read, and no work is done twice; at three it is computed three times, or once
if it is kept. Places that never meet, `2*i` and `2*i + 1`, do no work twice either: Poly Core says
whether they do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from weft.foundation.index_expr import Expr, Index, axes_of, axis, params_of, substitute
from weft.poly.core import LoopAxis, Read, Statement, can_compute_at
from weft.poly_view.ir import IndexParam, PolyBlock

MANY: Final = 64
"""Places that are not told apart any more."""


def places_of(
    blocks: Mapping[str, PolyBlock], order: Mapping[str, int], root: str, inside: Collection[str]
) -> dict[str, set[Index]]:
    """The places of every block that a kernel with this root inlines. `order` numbers every block
    after what it reads."""
    found: dict[str, set[Index]] = {root: {_own_index(blocks[root])}}
    for name in sorted({root, *inside}, key=order.__getitem__, reverse=True):
        block = blocks[name]
        for place in found.get(name, ()):
            known = _axes_at(block, place)
            for access in block.accesses:
                here = found.setdefault(access.tensor, set())
                if len(here) < MANY:
                    here.add(tuple(substitute(expr, known) for expr in access.map))
    return found


def meet(
    places: Collection[Index], block: PolyBlock, root: PolyBlock, params: Mapping[str, IndexParam]
) -> bool:
    """Whether points of a root read the same elements of a block, at several places. Where data
    says which, they may."""
    if not 1 < len(places) < MANY:
        return len(places) >= MANY
    outer = tuple(LoopAxis(found.name, found.size) for found in root.axes if not found.reduce)
    names = {*params, *(found.name for found in outer)}
    used = {name for at in places for expr in at for name in (*axes_of(expr), *params_of(expr))}
    if not used <= names:
        return True
    known = tuple((param.name, param.low, param.high) for param in params.values())
    size = block.dtype.storage_bytes
    reads = tuple(Read(block.name, place) for place in places)
    made = Statement(
        block.name, tuple(LoopAxis(f"d{n}", s) for n, s in enumerate(block.shape)), (), size
    )
    allowed = can_compute_at(made, Statement(root.name, outer, reads, size, known))
    # Neighbouring points need an element in common: with a tile of one point a halo is what two of
    # them read.
    return bool(allowed.halo.per_axis)


def _own_index(block: PolyBlock) -> Index:
    return tuple(axis(found.name) for found in block.axes if not found.reduce)


def _axes_at(block: PolyBlock, place: Index) -> dict[str, Expr]:
    """The axes of a block that is read at a place; those it reduces are its own."""
    outer = [found.name for found in block.axes if not found.reduce]
    own = {found.name: axis(f"{found.name}.{block.name}") for found in block.axes if found.reduce}
    return {**dict(zip(outer, place, strict=True)), **own}
