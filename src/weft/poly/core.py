"""Poly Core: what may be computed where, how much more is then read, and what buffer an edge needs.

The functions take plain statements: a domain of named axes, reads (an index per read, in the
statement's axes) and the size of an element. In SSA anti and output dependences are empty and a
true dependence is a read, so no flow analysis is needed: everything here is a property of access
functions over a tile of the consumer.

    analyze(statements)                          -> Analysis
    can_compute_at(producer, consumer, tile)     -> ComputeAt (ok, halo, recompute)
    min_buffer_for_edge(producer, consumer, ...) -> MinBuffer (reg | smem_ring | gmem)
    make_fusable_groups(statements)              -> names that may share a kernel

A *tile* gives the size of a block of the consumer's axes; reduced axes always run whole, other axes
are 1 where the tile does not say. The *halo* of an axis of the producer is what neighbouring tiles
both need of it: 0 for a matrix product, `k - 1` for a window of k.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Final

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
    scale,
    substitute,
)
from weft.foundation.memo import memo
from weft.poly.sets import Domain, IslBudget, Range, range_of

SHARED_BYTES: Final = 48 << 10
"""Shared memory that an edge may take where the caller does not say."""
_BANK_ROW: Final = 128
"""Bytes after which shared-memory banks repeat."""


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
    guards: tuple[Guard, ...] = ()


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
    def shape(self) -> tuple[int, ...]:
        return tuple(a.size for a in self.axes if not a.reduce)


@dataclass(frozen=True)
class Halo:
    """What a tile needs beyond its share: bytes, elements per axis of the producer, and how many
    of them lie before and after."""

    bytes: int = 0
    per_axis: Mapping[str, int] = field(default_factory=dict)
    sides: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class ComputeAt:
    """Whether the producer may be computed inside the consumer's tile loop, and at what price.

    `recompute` is how often an element of the producer is computed on average; `why` says what
    forbids it.
    """

    ok: bool
    halo: Halo = Halo()
    footprint_bytes: int = 0
    recompute: float = 1.0
    why: str = ""


@dataclass(frozen=True)
class MinBuffer:
    """The smallest kind of memory that carries an edge."""

    buffer: str
    depth: int | None = None
    bytes: int | None = None
    bank_conflict: bool = False
    """Rows of the buffer begin in the same bank: the template has to swizzle or pad them."""


@dataclass(frozen=True)
class Analysis:
    """Facts about statements taken together."""

    parallel: dict[str, tuple[str, ...]]
    reductions: dict[str, tuple[str, ...]]
    tails: dict[str, tuple[str, ...]]
    true_dependences: tuple[tuple[str, str, int], ...]
    affine: bool
    barriers: tuple[tuple[str, str], ...]
    """Edges whose data passes between threads: a wait is needed between producer and consumer."""


# -- footprints ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reach:
    """What one axis of the producer contributes: how many elements a tile needs, how many of them
    neighbouring tiles need as well, and how many of those lie before."""

    extent: int
    shared: int
    before: int


@memo(1 << 14)
def _reach(
    exprs: tuple[Expr, ...],
    axes: tuple[LoopAxis, ...],
    params: tuple[Range, ...],
    tile: tuple[tuple[str, int], ...],
    size: int,
) -> _Reach:
    """The reach of the hull of several indices along an axis of `size` elements."""
    sizes = dict(tile)
    steps = [_steps(expr, sizes) for expr in exprs]
    if steps[0] is None or any(found != steps[0] for found in steps):
        extent = max(
            _exact_extent(one, other, axes, params, tile) for one in exprs for other in exprs
        )
        share = min(size, max(1, ceil(size * prod(sizes.values()) / _tiled_points(axes))))
        return _Reach(min(extent, size), max(0, min(extent, size) - share), 0)
    step = steps[0]
    rests = [add(expr, *(scale(axis(name), -f) for name, f in step.items())) for expr in exprs]
    ranges = {a.name: (0, a.size - 1) for a in axes}
    ranges.update((name, (low, high)) for name, low, high in params)
    spread = max(_apart(one, other, ranges) for one in rests for other in rests)
    core = sum(abs(f) * (sizes[name] - 1) for name, f in step.items()) + 1
    extent = min(core + spread, size)
    if not step:
        return _Reach(extent, 0, 0)
    shared = max(0, spread + 1 - min(map(abs, step.values()))) if spread else 0
    low = min(bounds(rest, ranges)[0] for rest in rests)
    return _Reach(extent, shared, max(0, min(shared, -low)))


def _steps(expr: Expr, sizes: Mapping[str, int]) -> dict[str, int] | None:
    """How far an index moves with each axis of a tile; None where it does not move evenly."""
    if any(isinstance(t, FloorDiv) and axes_of(t.value) & sizes.keys() for t, _ in expr.terms):
        return None
    return {t.name: f for t, f in expr.terms if isinstance(t, Axis) and t.name in sizes}


def _apart(one: Expr, other: Expr, ranges: Mapping[str, tuple[int, int]]) -> int:
    """How far one index lies beyond another at most, each at any point of its axes. Params are the
    same for all points of a tile, and spread nothing."""
    twin = {name: f"{name}.y" for name in axes_of(other)}
    moved = substitute(other, {name: axis(new) for name, new in twin.items()})
    both = {**ranges, **{new: ranges[name] for name, new in twin.items()}}
    return bounds(add(one, scale(moved, -1)), both)[1]


def _tiled_points(axes: Sequence[LoopAxis]) -> int:
    return max(1, prod(a.size for a in axes if not a.reduce))


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
    wanted = tile or {}
    return tuple(
        (a.name, max(1, min(a.size, wanted.get(a.name, 1)))) for a in consumer.axes if not a.reduce
    )


def _reaches(
    producer: Statement, consumer: Statement, tile: tuple[tuple[str, int], ...]
) -> list[_Reach]:
    """The reach along each axis of the producer, of the hull of all reads."""
    indices = [read.index for read in _reads_of(producer, consumer)]
    return [
        _reach(tuple(dict.fromkeys(exprs)), consumer.axes, consumer.params, tile, size)
        for exprs, size in zip(zip(*indices, strict=True), producer.shape, strict=True)
    ]


def _reads_of(producer: Statement, consumer: Statement) -> Iterator[Read]:
    return (read for read in consumer.reads if read.source == producer.name)


# -- the questions of section 1.6 ----------------------------------------------------------------


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
    reaches = _reaches(producer, consumer, block)
    names = [a.name for a in producer.axes if not a.reduce]
    footprint = prod(r.extent for r in reaches)
    share = prod(max(1, r.extent - r.shared) for r in reaches)
    shared = {name: r for name, r in zip(names, reaches, strict=True) if r.shared}
    halo = Halo(
        (footprint - share) * producer.element_bytes,
        {name: r.shared for name, r in shared.items()},
        {name: (r.before, r.shared - r.before) for name, r in shared.items()},
    )
    tiles = prod(
        ceil(a.size / n)
        for a, (_, n) in zip((a for a in consumer.axes if not a.reduce), block, strict=True)
    )
    total = max(1, prod(producer.shape))
    return ComputeAt(True, halo, footprint * producer.element_bytes, tiles * footprint / total)


def min_buffer_for_edge(
    producer: Statement,
    consumer: Statement,
    tile: Mapping[str, int] | None = None,
    *,
    limit: int = SHARED_BYTES,
    depth: int = 2,
) -> MinBuffer:
    """The smallest buffer that carries the producer's values to the consumer.

    A register, where every point of the consumer reads one element, at its own place; a ring in
    shared memory, where a tile's footprint fits `limit` bytes `depth` times; else global memory.
    """
    allowed = can_compute_at(producer, consumer, tile)
    if not allowed.ok:
        return MinBuffer("gmem")
    reads = list(_reads_of(producer, consumer))
    alike = len({read.index for read in reads}) == 1
    if alike and all(_passes_in_register(producer, consumer, read) for read in reads):
        return MinBuffer("reg")
    total = allowed.footprint_bytes * depth
    if total > limit:
        return MinBuffer("gmem")
    reaches = _reaches(producer, consumer, _tile_of(consumer, tile))
    row = reaches[-1].extent * producer.element_bytes if reaches else 0
    conflict = len(reaches) > 1 and row % _BANK_ROW == 0
    return MinBuffer("smem_ring", depth, total, conflict)


def _passes_in_register(producer: Statement, consumer: Statement, read: Read) -> bool:
    """Each axis of the producer is one axis of the consumer, all different; what a producer has
    summed up is read at axes over which the consumer does not sum."""
    names = [e.single_axis.name if e.single_axis else "" for e in read.index]
    known = {a.name: a for a in consumer.axes}
    if read.guards or len(set(names)) != len(names) or not all(n in known for n in names):
        return False
    summed = any(a.reduce for a in producer.axes)
    whole = all(known[n].size == d for n, d in zip(names, producer.shape, strict=True))
    return whole and not (summed and any(known[n].reduce for n in names))


def analyze(
    statements: Sequence[Statement], tile: Mapping[str, Mapping[str, int]] | None = None
) -> Analysis:
    """Parallel, reduced and tail axes, dependences and barriers of statements taken together.

    `tile` gives the tile of each statement by name; an axis has a tail where its size is not a
    multiple of its tile.
    """
    tiles = tile or {}
    by_name = {s.name: s for s in statements}
    dependences = tuple(
        (read.source, s.name, number)
        for s in statements
        for number, read in enumerate(s.reads)
        if read.source in by_name
    )
    return Analysis(
        {s.name: tuple(a.name for a in s.axes if not a.reduce) for s in statements},
        {s.name: tuple(a.name for a in s.axes if a.reduce) for s in statements},
        {s.name: _tails(s, tiles.get(s.name, {})) for s in statements},
        dependences,
        all(s.affine for s in statements),
        tuple(
            dict.fromkeys(
                (source, to)
                for source, to, _ in dependences
                if min_buffer_for_edge(by_name[source], by_name[to], tiles.get(to)).buffer != "reg"
            )
        ),
    )


def _tails(statement: Statement, tile: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(a.name for a in statement.axes if a.name in tile and a.size % tile[a.name])


def make_fusable_groups(statements: Sequence[Statement]) -> list[list[str]]:
    """Statements that edges connect along which the producer may be computed in the consumer."""
    by_name = {s.name: s for s in statements}
    parents = {name: name for name in by_name}

    def find(name: str) -> str:
        while parents[name] != name:
            parents[name] = parents[parents[name]]
            name = parents[name]
        return name

    for statement in statements:
        for source in dict.fromkeys(read.source for read in statement.reads):
            if source in by_name and can_compute_at(by_name[source], statement).ok:
                parents[find(statement.name)] = find(source)
    groups: dict[str, list[str]] = {}
    for name in by_name:
        groups.setdefault(find(name), []).append(name)
    return list(groups.values())
