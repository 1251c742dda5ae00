"""Plans for kernels with fused stages: how many rows a piece computes, and how many rows the ring
buffers hold.

A plan calls axes and stages by their place: the axes of the results are `i0`, `i1`, ..., the stages
`s0`, `s1`, ..., and what comes after them `body`. With `i0` the axis that slides, a stage is
computed at a row, `i0`, as late as can be, or at a strip, `i0.o`: all its rows before the results.

`tile` has the rows of a strip, and may have columns too, along another axis of the rows: a piece
then computes so many columns of the results, and of each stage those and the halo around them.
One tile as long as rows is whole rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from weft.foundation.errors import InternalError
from weft.plan.blocks import SCRATCH_BYTES
from weft.plan.ir import Header, LocalEdge, StagedPlan
from weft.region.form import Staged
from weft.region.forms.cuts import cut_of
from weft.region.forms.rings import Held, Tiles, cut_rows
from weft.region.forms.staged import columns_along
from weft.region.ir import Kernel, Read, form_of
from weft.target.target import Target

BODY: Final = "body"
RING: Final = "smem_ring"
NARROW: Final = 4
"""Lanes of vectors that are not halved again."""
_MOST_BENDS: Final = 8
"""Tiles near the ends of rows that begin otherwise than those between, at most."""


def staged_form(kernel: Kernel) -> Staged:
    form = form_of(kernel)
    if not isinstance(form, Staged):
        raise InternalError(f"kernel {kernel.name} has no stages")
    return form


def staged_plan(kernel: Kernel, vector: int, target: Target, header: Header) -> StagedPlan:
    """The plan of a kernel with stages, where nobody says more. Each step of a window takes up so
    many vectors at a time."""
    names, cut = axis_names(kernel), cut_of(kernel, staged_form(kernel), target)
    edges = tuple(LocalEdge(*pair, RING, depth) for pair, depth in edges_of(kernel))
    slide = names[staged_form(kernel).slide]
    unroll = 4 if any(found.reduce for part in kernel.parts for found in part.axes) else 2
    tile = {slide: cut.rows} | ({names[cut.axis]: cut.columns} if cut.axis else {})
    return StagedPlan(header, vector, unroll, tile, slide, edges)


def staged_plans(first: StagedPlan) -> Iterator[StagedPlan]:
    """Plans around a first one: shorter and longer strips, narrower and wider tiles, other vectors
    of a row."""
    rows = first.tile[first.slide]
    for factor, unroll in ((1, 4), (1, 1), (0.5, 2), (2, 2), (4, 2), (0.5, 4), (2, 4)):
        tile = {**first.tile, first.slide: max(1, round(rows * factor))}
        yield replace(first, tile=tile, unroll=unroll)
    for name in first.tile.keys() - {first.slide}:
        for width in (first.tile[name] // 2, 2 * first.tile[name]):
            yield replace(first, tile={**first.tile, name: max(1, width)})


def axis_names(kernel: Kernel) -> dict[str, str]:
    """The axes of the results by the names that plans have for them."""
    outer = (found.name for found in kernel.axes if not found.reduce)
    return {name: f"i{number}" for number, name in enumerate(outer)}


def edges_of(kernel: Kernel) -> Iterator[tuple[tuple[str, str], int]]:
    """Who reads which stage, and the rows of it that are alive."""
    places = {stage.name: f"s{number}" for number, stage in enumerate(kernel.stages)}
    depths = {ring.local: ring.depth for ring in staged_form(kernel).rings}
    for stage in kernel.stages:
        for number, part in enumerate(kernel.parts):
            if any(isinstance(x.expr, Read) and x.expr.tensor == stage.name for x in part.body):
                to = f"s{number}" if number < len(kernel.stages) else BODY
                yield (places[stage.name], to), depths[stage.name]


def strip_of(kernel: Kernel, plan: StagedPlan) -> int:
    """Rows of the results that a piece computes."""
    return min(plan.tile[plan.slide], kernel.sizes[staged_form(kernel).slide])


def depths_of(kernel: Kernel, plan: StagedPlan) -> list[int]:
    """Rows that the ring of each stage holds: what its edges say, or the fewest."""
    given = {edge.source: edge.depth for edge in plan.local_edges if edge.depth is not None}
    least = least_depths(kernel, plan)
    return [given.get(f"s{number}", depth) for number, depth in enumerate(least)]


def least_depths(kernel: Kernel, plan: StagedPlan) -> list[int]:
    """Rows of each stage that are live at a time: those that a step of the results has left to
    read, or all of a strip's."""
    rings, strip, early = staged_form(kernel).rings, strip_of(kernel, plan), first_stages(plan)
    return [
        strip + ring.high - ring.low if number in early else ring.depth
        for number, ring in enumerate(rings)
    ]


def first_stages(plan: StagedPlan) -> frozenset[int]:
    """The stages whose rows are computed before those of any later stage."""
    strip = f"{plan.slide}.o"
    return frozenset(int(found.stage[1:]) for found in plan.compute_at if found.at == strip)


def tiles_of(kernel: Kernel, plan: StagedPlan) -> Tiles | None:
    """How rows are cut into tiles of columns; None where they are whole."""
    column = _cut_axis(kernel, plan)
    if column is None:
        return None
    found = columns_along(kernel, staged_form(kernel), column)
    if isinstance(found, str):
        raise InternalError(f"rows of kernel {kernel.name} are not cut along {column}: {found}")
    # Half a vector is the least that takes no longer than what is left of one.
    least = max(plan.vector // 2, min(plan.vector, NARROW))
    along = zip(kernel.parts, found.axes, strict=True)
    whole = [least if _along(part) == own else 1 for part, own in along]
    return cut_rows(kernel, found, plan.tile[axis_names(kernel)[column]], whole)


def _cut_axis(kernel: Kernel, plan: StagedPlan) -> str | None:
    """The axis of the results that is cut into tiles: one tile as long as rows is whole rows."""
    for own, name in axis_names(kernel).items():
        if name != plan.slide and plan.tile.get(name, kernel.sizes[own]) < kernel.sizes[own]:
            return own
    return None


def _along(part: Kernel) -> str:
    """The axis that lanes run along."""
    return next(found.name for found in reversed(part.axes) if not found.reduce)


def held_by(kernel: Kernel, plan: StagedPlan) -> list[Held]:
    """The rings of all stages."""
    tiles, form = tiles_of(kernel, plan), staged_form(kernel)
    parts = [None] * len(kernel.stages) if tiles is None else tiles.parts[:-1]
    rings = zip(kernel.stages, form.rings, depths_of(kernel, plan), parts, strict=True)
    return [Held(*found) for found in rings]


def staged_refusals(kernel: Kernel, plan: StagedPlan) -> Iterator[str]:
    """Why a kernel cannot be carried out by a plan."""
    form = form_of(kernel)
    if not isinstance(form, Staged):
        yield "the kernel has no stages"
        return
    slide = axis_names(kernel)[form.slide]
    if plan.slide != slide:
        yield f"slide={plan.slide}, but the stages of this kernel slide along {slide}"
        return
    refused = next(_cut_refusals(kernel, plan, form), None)
    if refused is not None:
        yield refused
        return
    places = list(place_refusals(kernel, plan))
    yield from places
    if not places:
        depths = enumerate(least_depths(kernel, plan))
        yield from ring_refusals(kernel, plan, {f"s{stage}": depth for stage, depth in depths})
        yield from _too_large(kernel, plan)


def _cut_refusals(kernel: Kernel, plan: StagedPlan, form: Staged) -> Iterator[str]:
    """Axes that strips and tiles are not cut along, and tiles that no whole vectors fill."""
    names = axis_names(kernel)
    slide, outside = names[form.slide], {form.slide, *form.batch}
    inside = {name: own for own, name in names.items() if own not in outside}
    columns = [name for name in plan.tile if name != slide]
    if slide not in plan.tile or len(columns) > 1 or not inside.keys() >= set(columns):
        given = ", ".join(plan.tile) or "no axis"
        yield (
            f"tile has a size for {given}; strips are cut along {slide}, and tiles of columns "
            f"along one axis of the rows, {' or '.join(inside)}, or not at all"
        )
        return
    for name in columns:
        found = columns_along(kernel, form, inside[name])
        if isinstance(found, str):
            yield f"tile has a size for {name}, but rows of this kernel are whole: {found}"
        elif _cut_axis(kernel, plan) is not None:
            yield from _width_refusals(kernel, plan, name)


def _width_refusals(kernel: Kernel, plan: StagedPlan, name: str) -> Iterator[str]:
    """Tiles whose results are no whole vectors, or which are too narrow."""
    size, step, tiles = plan.tile[name], plan.unroll * plan.vector, tiles_of(kernel, plan)
    assert tiles is not None
    if tiles.parts[-1].axis == _along(kernel.parts[-1]) and size % step:
        yield (
            f"tile {name}={size} is not a multiple of {step} columns, {plan.unroll} vectors of "
            f"{plan.vector}"
        )
    elif tiles.bends > _MOST_BENDS:
        yield f"tile {name}={size}: what stages need beside so few columns leaves the rows"


def place_refusals(kernel: Kernel, plan: StagedPlan) -> Iterator[str]:
    """Places where a stage cannot be computed, or is not kept."""
    row, strip = plan.slide, f"{plan.slide}.o"
    names = {f"s{number}" for number in range(len(kernel.stages))}
    for what, found in (("compute_at", plan.compute_at), ("store_at", plan.store_at)):
        for each in found:
            if each.stage not in names:
                yield f"{what} {each.stage} {each.at}: the stages are {', '.join(sorted(names))}"
            elif what == "store_at" and each.at != strip:
                yield f"{what} {each.stage} {each.at}: rings live as long as a strip, {strip}"
            elif each.at not in (row, strip):
                there = f"at a row, {row}, or at a strip, {strip}"
                yield f"{what} {each.stage} {each.at}: stages are computed {there}"
        if len({each.stage for each in found}) < len(found):
            yield f"{what} names a stage twice"
    known = all(each.stage in names for each in plan.compute_at)
    early = first_stages(plan) if known else frozenset()
    for (source, to), _ in edges_of(kernel):
        if to != BODY and int(to[1:]) in early and int(source[1:]) not in early:
            yield f"compute_at {to} {strip}: it reads {source}, which is computed at {row}"


def ring_refusals(
    kernel: Kernel, plan: StagedPlan, least_of: Mapping[str, int], needed: str = "live"
) -> Iterator[str]:
    """Why stages cannot be kept in rings as a plan says, which need so many rows at least."""
    known = {pair for pair, _ in edges_of(kernel)}
    depths: dict[str, int] = {}
    for edge in plan.local_edges:
        what = f"the edge {edge.source} to {edge.to}"
        if (edge.source, edge.to) not in known:
            yield f"{what}: {edge.to} reads no stage {edge.source}"
            continue
        least = least_of[edge.source]
        depth = edge.depth if edge.depth is not None else least
        if edge.buffer == "gmem":
            yield f"{what} goes through memory where the region has a kernel for {edge.source}"
        elif edge.buffer != RING:
            yield f"{what} is kept in a {RING}, as all stages are, not in {edge.buffer}"
        elif depth < least:
            yield f"{what} has depth {depth}; {least} rows are {needed} at a time"
        elif depths.setdefault(edge.source, depth) != depth:
            yield f"the edges of {edge.source} have the depths {depths[edge.source]} and {depth}"


def _too_large(kernel: Kernel, plan: StagedPlan) -> Iterator[str]:
    total = sum(held.bytes for held in held_by(kernel, plan))
    if total > SCRATCH_BYTES:
        yield f"its rings take {total:,} bytes of a thread; {SCRATCH_BYTES:,} is the most"
