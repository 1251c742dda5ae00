"""Ops that place elements, and constants."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.foundation.dtypes import ANY, NUMBERS
from weft.ptir.literal import from_array, scalar_literal
from weft.ptir.ops.constant import Constant
from weft.ptir.ops.movement import (
    BroadcastTo,
    Concat,
    Iota,
    Pad,
    Reshape,
    Slice,
    Tile,
    Transpose,
)
from weft.ptir.schema import INFER, Infer
from weft.ptir.types import Dim, Shape, Symbol
from weft.testing.draft import Item
from weft.testing.facts import Facts, Number, join, settle
from weft.testing.generator import Generator, Skip, grid
from weft.testing.generators.registry import generates

NewShape = Sequence[Dim | Infer]


@generates(Constant)
def constant(g: Generator) -> None:
    dtype = g.dtype(ANY)
    sizes = [g.choices.choose((1, 2, 3, 0)) for _ in range(g.choices.integer(0, 3))]
    facts = g.invent(dtype)
    g.emit(Constant(from_array(g.data.array(dtype, sizes, facts))), facts=facts)


@generates(Iota, weight=3)
def iota(g: Generator) -> None:
    dtype = g.dtype(NUMBERS)
    shape = g.shape(1, 3)
    axis = g.choices.integer(0, len(shape) - 1)
    last = max(g.draft.size(shape[axis]) - 1, 0)
    if last > dtype.highest:
        raise Skip
    facts = settle(dtype, 0, last, 1.0)
    g.emit(Iota(shape, dtype, axis), facts=facts)


# -- shapes --------------------------------------------------------------------------------------


@generates(Reshape, weight=4)
def reshape(g: Generator) -> None:
    reshape_of(g, g.pick(ANY))


def reshape_of(g: Generator, x: Item) -> Item:
    makers = (_with_ones, _merge_axes, _split_axis, _flatten_shape)
    new_shape = g.choices.choose(makers)(g, x)
    return g.emit(Reshape(tuple(new_shape)), x, facts=x.facts)


def _with_ones(g: Generator, x: Item) -> NewShape:
    """Axes of size 1 dropped, or put in at random places."""
    kept: list[Dim] = [dim for dim in x.shape if dim != 1 or g.choices.chance(0.5)]
    for _ in range(g.choices.integer(0, 2)):
        kept.insert(g.choices.integer(0, len(kept)), 1)
    return kept


def _merge_axes(g: Generator, x: Item) -> NewShape:
    """Two neighbouring axes as one."""
    if x.rank < 2:
        return x.shape
    at = g.choices.integer(0, x.rank - 2)
    first, second = x.shape[at], x.shape[at + 1]
    rest = (*x.shape[:at], *x.shape[at + 2 :])
    if isinstance(first, int) and isinstance(second, int):
        return (*x.shape[:at], first * second, *x.shape[at + 2 :])
    if 0 in g.draft.sizes(rest):
        return x.shape
    return (*x.shape[:at], INFER, *x.shape[at + 2 :])


def _split_axis(g: Generator, x: Item) -> NewShape:
    """One axis as two."""
    places = [i for i, dim in enumerate(x.shape) if isinstance(dim, int) and dim > 1]
    if not places:
        return x.shape
    at = g.choices.choose(places)
    size = g.draft.size(x.shape[at])
    factor = g.choices.choose([n for n in range(1, size + 1) if size % n == 0])
    pair = [factor, size // factor]
    return (*x.shape[:at], *pair, *x.shape[at + 1 :])


def _flatten_shape(g: Generator, x: Item) -> NewShape:
    """One axis, or random factors of a static number of elements."""
    if any(isinstance(dim, Symbol) for dim in x.shape) or 0 in x.sizes:
        return [INFER] if 0 not in x.sizes else x.shape
    factors: list[Dim | Infer] = []
    rest = math.prod(x.sizes)
    for _ in range(g.choices.integer(0, 2)):
        factor = g.choices.choose([n for n in range(1, min(rest, 16) + 1) if rest % n == 0])
        factors.append(factor)
        rest //= factor
    return [*factors, INFER if g.choices.chance(0.4) else rest]


@generates(Transpose, weight=4)
def transpose(g: Generator) -> None:
    transpose_of(g, g.pick(ANY))


def transpose_of(g: Generator, x: Item) -> Item:
    perm = g.choices.shuffled(range(x.rank))
    return g.emit(Transpose(tuple(perm)), x, facts=x.facts)


@generates(BroadcastTo, weight=4)
def broadcast_to(g: Generator) -> None:
    broadcast_of(g, g.pick(ANY))


def broadcast_of(g: Generator, x: Item) -> Item:
    shape: list[Dim] = [g.dim() if dim == 1 else dim for dim in x.shape]
    for _ in range(g.choices.integer(0, 2)):
        shape.insert(0, g.dim())
    return g.emit(BroadcastTo(tuple(shape)), x, facts=x.facts)


# -- pieces --------------------------------------------------------------------------------------


@generates(Slice, weight=4)
def slice_(g: Generator) -> None:
    slice_of(g, g.pick(ANY))


def slice_of(g: Generator, x: Item) -> Item:
    sizes = [_piece(g, n) for n in x.sizes]
    starts = [g.choices.integer(0, n - size) for n, size in zip(x.sizes, sizes, strict=True)]
    return g.emit(Slice(tuple(starts), tuple(sizes)), x, facts=x.facts)


def _piece(g: Generator, size: int) -> int:
    if g.choices.chance(0.4):
        return size
    return g.choices.integer(0 if g.choices.chance(0.05) else min(size, 1), size)


@generates(Concat, weight=4)
def concat(g: Generator) -> None:
    first = g.pick(ANY, ok=lambda item: item.rank > 0, shape=lambda: g.shape(1))
    axis = g.choices.integer(0, first.rank - 1)
    parts = [first]
    for _ in range(g.choices.integer(0, 2)):
        parts.append(_pick_neighbour(g, first, axis))
    signed = axis - first.rank if g.choices.chance(0.3) else axis
    g.emit(Concat(signed), *parts, facts=join(*(x.facts for x in parts)))


def _pick_neighbour(g: Generator, first: Item, axis: int) -> Item:
    """A value that fits next to `first` along an axis."""

    def fits(item: Item) -> bool:
        rest = [d for a, d in enumerate(item.shape) if a != axis]
        wanted = [d for a, d in enumerate(first.shape) if a != axis]
        return item.rank == first.rank and rest == wanted

    def shape() -> Shape:
        return (*first.shape[:axis], g.dim(), *first.shape[axis + 1 :])

    return g.pick({first.dtype}, ok=fits, shape=shape)


@generates(Pad, weight=4)
def pad(g: Generator) -> None:
    pad_of(g, g.pick(ANY))


def pad_of(g: Generator, x: Item) -> Item:
    low, high, interior = (_amounts(g, x.rank) for _ in range(3))
    value, facts = pad_value(g, x)
    return g.emit(Pad(low, high, interior, scalar_literal(value, x.dtype)), x, facts=facts)


def _amounts(g: Generator, rank: int) -> tuple[int, ...]:
    return tuple(g.choices.choose((0, 0, 1, 2)) for _ in range(rank))


def pad_value(g: Generator, x: Item) -> tuple[Number, Facts]:
    """A number of the dtype of `x`, and the facts of `x` with it."""
    choices: list[Number] = [0, 1] if not x.dtype.is_signed else [0, 1, -1]
    if x.dtype.is_float or x.dtype.is_complex:
        choices = [0.0, 1.0, -0.5]
    value = g.choices.choose(choices)
    around = Facts(value, value, grid(value), zeros=True)
    facts = join(x.facts, around)
    # The imaginary part of a real padding value is zero.
    return value, join(facts, Facts(0, 0, facts.step)) if x.dtype.is_complex else facts


@generates(Tile)
def tile(g: Generator) -> None:
    tile_of(g, g.pick(ANY))


def tile_of(g: Generator, x: Item) -> Item:
    repeats = tuple(g.choices.choose((1, 1, 2, 3)) for _ in range(x.rank))
    if x.rank and g.choices.chance(0.03):
        repeats = (0, *repeats[1:])
    return g.emit(Tile(repeats), x, facts=x.facts)
