"""Products stored in the order in which they are read, on CPUs.

    v[place, filter] = sum over k of image[place, k] filters[filter, k]
    y[filter, place] = tanh(v[place, filter])    ->    v is stored as v[filter, place]

A vector holds neighbours along the last axis of what a kernel makes. Where those of an operand lie
apart, each is a load by itself; a product may have its results in either order, and takes as long.
It is turned where everything that reads it goes through it with its two sides exchanged.
"""

from __future__ import annotations

from weft.foundation.index_expr import axes_of, params_of
from weft.poly_view.ir import Access, BlockKind, PolyBlock, Scop
from weft.region.writing.layouts import COUNTED, Readers, fixed_blocks, readers_of, turn_axes
from weft.target.target import Kind, Target


def with_products_as_read(scop: Scop, target: Target) -> Scop:
    """The view with such products, and what is made of one alone element by element, turned."""
    if target.kind is not Kind.CPU:
        return scop
    fixed, readers = fixed_blocks(scop), readers_of(scop)
    orders: dict[str, tuple[int, ...]] = {}
    for block in scop.blocks:
        order = _exchange_sides(block)
        if order is None:
            continue
        chain = _made_of_it_alone(block, readers)
        found = {_reading_order(*read) for read in readers.get(chain[-1].name, ())}
        if found == {order} and all(each.name not in fixed for each in chain):
            orders.update({each.name: order for each in chain})
    return turn_axes(scop, orders) if orders else scop


def _exchange_sides(block: PolyBlock) -> tuple[int, ...] | None:
    """The axes of a product's result with those that only one operand has behind those that only
    the other one has."""
    if block.kind is not BlockKind.CONTRACTION or block.attrs is None:
        return None
    attrs, names = block.attrs, block.out_names
    for first, second in ((attrs.lhs_idx, attrs.rhs_idx), (attrs.rhs_idx, attrs.lhs_idx)):
        if first and second and (*attrs.batch_idx, *first, *second) == names:
            return tuple(map(names.index, (*attrs.batch_idx, *second, *first)))
    return None


def _made_of_it_alone(block: PolyBlock, readers: Readers) -> list[PolyBlock]:
    """A block, and what follows it element by element in its own order, each read by the next one
    alone."""
    chain = [block]
    while len(found := readers.get(chain[-1].name, [])) == 1:
        reader, access = found[0]
        places = [expr.single_axis for expr in access.map]
        names = tuple(place.name for place in places if place is not None)
        plain = reader.kind is BlockKind.EWISE and reader.fn not in COUNTED and not reader.selected
        if not plain or access.guards or names != reader.out_names:
            break
        if reader.shape != block.shape:
            break
        chain.append(reader)
    return chain


def _reading_order(reader: PolyBlock, access: Access) -> tuple[int, ...] | None:
    """The axes of a tensor in the order in which a block goes through them, element by element or
    by windows; None where that cannot be said."""
    if reader.kind not in (BlockKind.EWISE, BlockKind.MOVEMENT, BlockKind.REDUCE):
        return None
    places = {axis.name: number for number, axis in enumerate(reader.axes)}
    outer = {axis.name for axis in reader.out_axes}
    found = list[int]()
    for expr in access.map:
        names = axes_of(expr)
        here = [places[name] for name in (names & outer or names)]
        if len(here) != 1 or params_of(expr):
            return None
        found += here
    if len(set(found)) != len(found):
        return None
    return tuple(sorted(range(len(found)), key=found.__getitem__))
