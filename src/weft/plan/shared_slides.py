"""Plans for fused stages on a GPU: blocks slide down strips of rows, which are kept in shared
memory.

vector        neighbouring columns of the results that each thread has
tile          rows of a strip, by the axis that slides, and columns of a block, by the last axis
unroll        rows that a step makes
local_edges   all in rings, of the rows that are alive and those that a step makes beside the first
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from weft.plan.ir import Header, LocalEdge, StagedPlan
from weft.plan.staged import RING, axis_names, edges_of, place_refusals, ring_refusals
from weft.region.cost import slide_operations
from weft.region.forms.shared_slides import MOST_THREADS, SharedSlide
from weft.region.ir import Kernel, Tensor
from weft.region.shared_price import shared_shape
from weft.target.target import Target

MOST_ROWS: Final = 8
"""That a step makes: each is written out."""


def shared_plan(
    kernel: Kernel,
    tensors: Mapping[str, Tensor],
    slide: SharedSlide,
    target: Target,
    header: Header,
) -> StagedPlan:
    """The plan of a kernel with stages, where nobody says more."""
    shape = shared_shape(slide, slide_operations(slide, tensors, target), target)
    names = axis_names(kernel)
    along = names[slide.form.slide]
    tile = {along: shape.rows, names[slide.columns[-1]]: shape.cut.columns}
    depths = _depths_of_stages(slide, slide.depths(shape.cut.rows))
    edges = tuple(LocalEdge(*pair, RING, depths[pair[0]]) for pair, _ in edges_of(kernel))
    return StagedPlan(header, shape.cut.vector, shape.cut.rows, tile, along, edges)


def _depths_of_stages(slide: SharedSlide, depths: Sequence[int]) -> dict[str, int]:
    """Rows of the rings of stages, by their names in plans: copies have none."""
    own = depths[slide.copies :]
    return {f"s{number}": depth for number, depth in enumerate(own)}


def shared_plans(first: StagedPlan) -> Iterator[StagedPlan]:
    """Plans around a first one: shorter and longer strips, fewer and more rows of a step."""
    for factor, rows in ((0.5, 1), (2, 1), (1, 0.5), (1, 2), (0.5, 2), (2, 0.5)):
        step = max(1, min(MOST_ROWS, round(first.unroll * rows)))
        tile = {**first.tile, first.slide: max(1, round(first.tile[first.slide] * factor))}
        edges = tuple(replace(edge, depth=None) for edge in first.local_edges)
        yield replace(first, unroll=step, tile=tile, local_edges=edges)


def columns_of_block(kernel: Kernel, plan: StagedPlan, slide: SharedSlide) -> int:
    return plan.tile[axis_names(kernel)[slide.columns[-1]]]


def ring_depths(kernel: Kernel, plan: StagedPlan, slide: SharedSlide) -> list[int]:
    """Rows that the ring of each stage and of each copy holds: what its edges say, or the
    fewest."""
    least = slide.depths(plan.unroll)
    given = {edge.source: edge.depth for edge in plan.local_edges if edge.depth is not None}
    own = _depths_of_stages(slide, least)
    return [*least[: slide.copies], *(given.get(name, depth) for name, depth in own.items())]


def shared_refusals(
    kernel: Kernel, plan: StagedPlan, slide: SharedSlide, target: Target
) -> Iterator[str]:
    """Why blocks cannot carry out a kernel by a plan that keeps rows in shared memory, and says
    the right axes."""
    columns = axis_names(kernel)[slide.columns[-1]]
    if plan.vector not in slide.vectors:
        some = ", ".join(map(str, slide.vectors))
        yield f"vector={plan.vector}; threads of this kernel may have {some} columns"
        return
    if plan.unroll > MOST_ROWS:
        yield f"unroll={plan.unroll}; a step makes {MOST_ROWS} rows at most"
    size = plan.tile[columns]
    threads = slide.threads(plan.vector, size)
    if size % plan.vector:
        yield f"tile {columns}={size} is not a whole number of vectors of {plan.vector}"
    elif threads > MOST_THREADS:
        what = f"tile {columns}={size} takes {threads} threads of a block"
        yield f"{what}; {MOST_THREADS} is the most"
    yield from place_refusals(kernel, plan)
    for found in plan.compute_at:
        if found.at != plan.slide:
            yield f"compute_at {found.stage} {found.at}: rings hold no strip; write {plan.slide}"
    least = _depths_of_stages(slide, slide.depths(plan.unroll))
    edges = list(ring_refusals(kernel, plan, least, needed="live or computed"))
    yield from edges
    held = slide.bytes(plan.vector, size, ring_depths(kernel, plan, slide))
    if not edges and held > target.limits.shared_bytes_per_block:
        most = target.limits.shared_bytes_per_block
        yield f"its rings take {held:,} bytes of a block; {most:,} is the most"
