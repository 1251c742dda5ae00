"""Padding rules of ops that move elements: the real ones must stay in front."""

from __future__ import annotations

from weft.foundation.axes import normalise_axis
from weft.ptir.op_rules import op_as
from weft.ptir.ops.custom import CustomGradient
from weft.ptir.ops.movement import BroadcastTo, Concat, Iota, Pad, Reshape, Slice, Tile, Transpose
from weft.ptir.ops.random import (
    PhiloxBits,
    PhiloxNormal,
    PhiloxUniform,
    RngNormal,
    RngUniform,
)
from weft.ptir.ops.scheduling import Barrier
from weft.ptir.ops.tuples import MakeTuple
from weft.ptir.padding.rules import Padding, pads
from weft.ptir.term import Term
from weft.ptir.types import Dim


@pads(BroadcastTo, Iota, MakeTuple, Barrier, Transpose, CustomGradient)
def as_it_is(p: Padding) -> Term:
    """Every real element of the result comes from real elements at the same index of the axis."""
    return p.replay()


@pads(Slice)
def slice_(p: Padding) -> Term:
    """The window has a fixed size, and a size for which it does not fit is rejected before."""
    return p.replay()


@pads(Reshape)
def reshape(p: Padding) -> Term:
    """Between axes that stay, a padded axis must be the slowest one before and after: then the real
    elements are those in front in row-major order."""
    old, new = _find_changed_dims(p.operands[0].shape, p.result.shape)
    for dims in (old, new):
        if any(map(p.is_padded, dims[1:])):
            p.refuse("joins or splits axes of which a padded one is not the first", *old, *new)
    if [*map(p.is_padded, old[:1])] != [*map(p.is_padded, new[:1])]:
        p.refuse("turns a padded axis into one of fixed size, or back", *old, *new)
    return p.replay()


def _find_changed_dims(old: tuple[Dim, ...], new: tuple[Dim, ...]) -> tuple[list[Dim], list[Dim]]:
    """The dims before and after without those of size 1, and without what both begin and end
    with."""
    before, after = [d for d in old if d != 1], [d for d in new if d != 1]
    # Equal dims at both ends count the same elements before and after: only what lies between them
    # is taken apart or joined.
    while before and after and before[0] == after[0]:
        del before[0], after[0]
    while before and after and before[-1] == after[-1]:
        del before[-1], after[-1]
    return before, after


@pads(Concat)
def concat(p: Padding) -> Term:
    """Along the joined axis only the last operand may be padded: nothing comes behind it."""
    shapes = [term.shape for term in p.operands]
    joined = normalise_axis(op_as(p, Concat).axis, len(shapes[0]))
    for axis, dims in enumerate(zip(*shapes, strict=True)):
        if axis != joined:
            p.require_same(*dims)
    for index in range(len(shapes) - 1):
        p.require_whole(index, [joined], "puts something behind")
    return p.replay()


@pads(Pad)
def pad(p: Padding) -> Term:
    """What is without meaning becomes padding, so that all that follows the real elements is."""
    op = op_as(p, Pad)
    # Padding in front moves the real elements and those without meaning alike, and the real ones
    # stay before them. Without padding behind or between, nothing of the result has to be padding
    # there.
    axes = [a for a in p.axes(0) if op.high[a] or op.interior[a]]
    return p.replay(p.masked(0, op.pad_value.fill(p.operands[0].dtype), axes))


@pads(Tile)
def tile(p: Padding) -> Term:
    repeats = op_as(p, Tile).repeats
    p.require_whole(0, [a for a, count in enumerate(repeats) if count != 1], "repeats")
    return p.replay()


@pads(RngUniform, RngNormal, PhiloxBits, PhiloxUniform, PhiloxNormal)
def draw(p: Padding) -> Term:
    """Elements are numbered in row-major order: those in front keep their numbers."""
    axes = p.padded_axes(p.result.shape)
    if axes != [0]:
        dims = [p.result.shape[axis] for axis in axes if axis]
        p.refuse(f"numbers its elements along {', '.join(map(str, dims))}", *dims)
    return p.replay()
