"""Poly Core: whether one computation may be fused into another, and how much of it a tile then
needs.

The functions take plain statements: a domain of named axes, reads (an index per read, in the
statement's axes) and the size of an element. In SSA anti and output dependences are empty and a
true dependence is a read, so no flow analysis is needed: everything here is a property of access
functions over a tile of the consumer.

    can_compute_at(producer, consumer, tile)  -> ComputeAt (ok, halo, spans, footprint, recompute)

A *tile* gives the size of a block of the consumer's axes; reduced axes always run whole, other axes
are 1 where the tile does not say. The *halo* of an axis of the producer is what neighbouring tiles
both need of it: 0 for a matrix product, `k - 1` for a window of k.

Fusion asks it whether a kernel would compute a block at several places, and stages along which axis
they follow their readers, and how far apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from math import ceil, prod

from weft.foundation.index_expr import (
    Axis,
    Expr,
    FloorDiv,
    Guard,
    Index,
    add,
    axes_of,
    axis,
    bounds,
    params_of,
    scale,
    substitute,
)
from weft.foundation.memo import memo
from weft.foundation.records import dataclass
from weft.poly.sets import Domain, IslBudget, Range, range_of


@dataclass(frozen=True)
class LoopAxis:
    """An axis of a statement: `0 <= name < size`."""

    name: str
    size: int
    reduce: bool = False


@dataclass(frozen=True)
class Read:
    """An element of another statement's result (or of an input), as a function of the axes."""

    source: str
    index: Index


@dataclass(frozen=True)
class Statement:
    """One value per point of the axes that are not reduced. Not `affine`: it cannot be cut."""

    name: str
    axes: tuple[LoopAxis, ...]
    reads: tuple[Read, ...]
    element_bytes: int
    params: tuple[Range, ...] = ()
    affine: bool = True
    pinned: bool = False
    """Writes into another tensor, so it cannot be computed piece by piece inside a consumer."""

    @property
    def outer(self) -> tuple[LoopAxis, ...]:
        """The axes of its result."""
        return tuple(a for a in self.axes if not a.reduce)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(a.size for a in self.outer)


@dataclass(frozen=True)
class Halo:
    """What a tile needs beyond its share: bytes, elements per axis of the producer, and how many
    of them lie before and after."""

    bytes: int = 0
    per_axis: Mapping[str, int] = field(default_factory=dict)
    sides: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Span:
    """What a tile needs along one axis of the producer: with `o` the first and `e` the last place
    of a tile along the axes that cut it, all from `step * o + low` to `step * e + high`. There are
    no steps where every tile needs the same, and `even` is false where tiles need what no step
    tells."""

    steps: Mapping[str, int]
    low: int
    high: int
    even: bool = True


@dataclass(frozen=True)
class ComputeAt:
    """Whether the producer may be computed inside the consumer's tile loop, and at what price.

    `recompute` is how often an element of the producer is computed on average; `spans` say, for
    each axis of the producer, how what is needed moves with the tile; `why` says what forbids it.
    """

    ok: bool
    halo: Halo = Halo()
    footprint_bytes: int = 0
    recompute: float = 1.0
    spans: Mapping[str, Span] = field(default_factory=dict)
    why: str = ""


# -- footprints ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reach:
    """What one axis of the producer contributes: how many elements a tile needs, how many of them
    neighbouring tiles need as well, and how many of those lie before."""

    extent: int
    shared: int
    before: int
    span: Span


@memo(1 << 14)
def _reach_of_hull(
    exprs: tuple[Expr, ...],
    axes: tuple[LoopAxis, ...],
    params: tuple[Range, ...],
    tile: tuple[tuple[str, int], ...],
    size: int,
) -> _Reach:
    """The reach of the hull of several indices along an axis of `size` elements."""
    sizes = dict(tile)
    steps = [_axis_steps(expr, sizes) for expr in exprs]
    # An index that divides an axis of the tile, or two that move apart, have no hull that moves
    # evenly: each tile is measured, and neighbours share what is beyond an even part.
    if steps[0] is None or any(found != steps[0] for found in steps):
        extent = max(
            _exact_extent(one, other, axes, params, tile) for one in exprs for other in exprs
        )
        share = min(size, max(1, ceil(size * prod(sizes.values()) / _cut_points(axes, sizes))))
        span = Span({}, 0, size - 1, even=False)
        return _Reach(min(extent, size), max(0, min(extent, size) - share), 0, span)
    step = steps[0]
    rests = [add(expr, *(scale(axis(name), -f) for name, f in step.items())) for expr in exprs]
    ranges = {a.name: (0, a.size - 1) for a in axes}
    ranges.update((name, (low, high)) for name, low, high in params)
    # Every index is the same step along the tile and a rest: the tile moves the hull over sum of
    # |step| (size - 1) elements, and at any place of it the rests lie `spread` apart at most.
    ends = [bounds(rest, ranges) for rest in rests]
    low, high = min(first for first, _ in ends), max(last for _, last in ends)
    if any(params_of(rest) for rest in rests):
        spread = max(_largest_distance(one, other, ranges) for one in rests for other in rests)
    else:
        spread = high - low
    core = sum(abs(f) * (sizes[name] - 1) for name, f in step.items()) + 1
    extent = min(core + spread, size)
    span = Span(step, low, high)
    if not step:
        return _Reach(extent, 0, 0, span)
    # The next tile along an axis begins step * size further; of step * (size - 1) + 1 + spread
    # elements spread + 1 - step are in both. Of several axes the one with the least step has the
    # most in common.
    shared = max(0, spread + 1 - min(map(abs, step.values()))) if spread else 0
    return _Reach(extent, shared, max(0, min(shared, -low)), span)


def _axis_steps(expr: Expr, sizes: Mapping[str, int]) -> dict[str, int] | None:
    """How far an index moves with each axis of a tile; None where it does not move evenly."""
    if any(isinstance(t, FloorDiv) and axes_of(t.value) & sizes.keys() for t, _ in expr.terms):
        return None
    return {t.name: f for t, f in expr.terms if isinstance(t, Axis) and t.name in sizes}


def _largest_distance(one: Expr, other: Expr, ranges: Mapping[str, tuple[int, int]]) -> int:
    """How far one index lies beyond another at most, each at any point of its axes. Params are the
    same for all points of a tile, and spread nothing."""
    twin = {name: f"{name}.y" for name in axes_of(other)}
    moved = substitute(other, {name: axis(new) for name, new in twin.items()})
    both = {**ranges, **{new: ranges[name] for name, new in twin.items()}}
    return bounds(add(one, scale(moved, -1)), both)[1]


def _cut_points(axes: Sequence[LoopAxis], tile: Mapping[str, int]) -> int:
    return max(1, prod(a.size for a in axes if a.name in tile))


def _exact_extent(
    first: Expr,
    second: Expr,
    axes: Sequence[LoopAxis],
    params: tuple[Range, ...],
    tile: tuple[tuple[str, int], ...],
) -> int:
    """How many elements lie from the second index to the first in one tile, by isl: two points of
    the tile are compared. Beyond the budget, any two points."""
    sizes = dict(tile)
    one: dict[str, Expr] = {}
    other: dict[str, Expr] = {}
    ranges: list[Range] = []
    guards = []
    for a in axes:
        for side, names in (("x", one), ("y", other)):
            ranges.append((f"{a.name}.{side}", 0, sizes.get(a.name, a.size) - 1))
            names[a.name] = axis(f"{a.name}.{side}")
        if a.name in sizes:
            origin = scale(axis(f"{a.name}.o"), sizes[a.name])
            ranges.append((f"{a.name}.o", 0, ceil(a.size / sizes[a.name]) - 1))
            one[a.name], other[a.name] = add(origin, one[a.name]), add(origin, other[a.name])
            guards += [Guard(one[a.name], a.size), Guard(other[a.name], a.size)]
    apart = add(substitute(first, one), scale(substitute(second, other), -1))
    try:
        found = range_of(Domain(tuple(ranges), params, tuple(guards)), apart)
    except IslBudget:
        whole = bounds(apart, {name: (low, high) for name, low, high in (*ranges, *params)})
        return whole[1] + 1
    return found[1] + 1 if found else 0


def _tile_of(consumer: Statement, tile: Mapping[str, int] | None) -> tuple[tuple[str, int], ...]:
    """The axes that a tile cuts. Those that it has whole are like reduced ones."""
    wanted = tile or {}
    cut = ((a, max(1, min(a.size, wanted.get(a.name, 1)))) for a in consumer.outer)
    return tuple((a.name, size) for a, size in cut if size < a.size or size == 1)


def _reaches_of_tile(
    producer: Statement, consumer: Statement, tile: tuple[tuple[str, int], ...]
) -> list[_Reach]:
    """The reach along each axis of the producer, of the hull of all reads."""
    indices = [read.index for read in _reads_of(producer, consumer)]
    return [
        _reach_of_hull(tuple(dict.fromkeys(exprs)), consumer.axes, consumer.params, tile, size)
        for exprs, size in zip(zip(*indices, strict=True), producer.shape, strict=True)
    ]


def _reads_of(producer: Statement, consumer: Statement) -> Iterator[Read]:
    return (read for read in consumer.reads if read.source == producer.name)


# -- the question --------------------------------------------------------------------------------


def can_compute_at(
    producer: Statement, consumer: Statement, tile: Mapping[str, int] | None = None
) -> ComputeAt:
    """Whether the producer may be computed inside a tile of the consumer, and its halo there."""
    if not any(True for _ in _reads_of(producer, consumer)):
        return ComputeAt(False, why=f"{consumer.name} does not read {producer.name}")
    for statement in (producer, consumer):
        if not statement.affine:
            return ComputeAt(False, why=f"{statement.name} is not affine")
    if producer.pinned:
        return ComputeAt(False, why=f"{producer.name} writes into another tensor")
    block = _tile_of(consumer, tile)
    names = [a.name for a in producer.outer]
    reaches = dict(zip(names, _reaches_of_tile(producer, consumer, block), strict=True))
    footprint = prod(r.extent for r in reaches.values())
    share = prod(max(1, r.extent - r.shared) for r in reaches.values())
    shared = {name: r for name, r in reaches.items() if r.shared}
    halo = Halo(
        (footprint - share) * producer.element_bytes,
        {name: r.shared for name, r in shared.items()},
        {name: (r.before, r.shared - r.before) for name, r in shared.items()},
    )
    sizes = {a.name: a.size for a in consumer.axes}
    tiles = prod(ceil(sizes[name] / size) for name, size in block)
    # All tiles make their footprint; without a halo that is every element once.
    recompute = tiles * footprint / max(1, prod(producer.shape))
    spans = {name: r.span for name, r in reaches.items()}
    return ComputeAt(True, halo, footprint * producer.element_bytes, recompute, spans)
