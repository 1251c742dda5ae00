"""Plans for fused stages on a GPU: warps slide down strips of rows, which are kept in registers.
Where registers do not suffice, shared memory does (`plan.shared_slides`), and `local_edges` says
so.

vector        neighbouring columns of the results that each lane has
tile          rows of a strip, by the axis that slides, and columns of a block, by the last axis
unroll        steps that the compiler may interleave
local_edges   all in registers, as deep as rows are live
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Final

from weft.foundation.errors import InternalError
from weft.plan.ir import Header, LocalEdge, StagedPlan
from weft.plan.shared_slides import shared_plan, shared_plans, shared_refusals
from weft.plan.staged import RING, axis_names, edges_of, place_refusals, staged_form
from weft.region.cost import slide_operations
from weft.region.form import Staged
from weft.region.forms.shared_slides import SharedSlide, find_place, find_shared_slide
from weft.region.forms.slides import Slide, find_slide
from weft.region.ir import Kernel, Tensor, form_of
from weft.region.slide_price import WARPS, Shape, slide_shape
from weft.target.target import Target

REGISTERS: Final = "reg"
_UNROLL: Final = 6
"""Steps that are interleaved, at most."""
_BLOCKS: Final = 8
"""Of a unit, at least: fewer end at times that are far apart."""


def place_of(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: StagedPlan, target: Target
) -> Slide | SharedSlide | str:
    """Where a plan keeps rows: in registers or in shared memory, as its edges say."""
    buffers = _buffers(plan)
    if RING in buffers:
        return find_shared_slide(kernel, tensors, target)
    if REGISTERS in buffers:
        return find_slide(kernel, tensors)
    return find_place(kernel, tensors, target)


def _buffers(plan: StagedPlan) -> set[str]:
    return {edge.buffer for edge in plan.local_edges}


def slide_of(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Slide:
    found = find_slide(kernel, tensors)
    if isinstance(found, str):
        raise InternalError(f"kernel {kernel.name} has no place in registers: {found}")
    return found


def slide_plan(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, header: Header
) -> StagedPlan:
    """The plan of a kernel with stages, where nobody says more."""
    slide = find_place(kernel, tensors, target)
    if isinstance(slide, str):
        raise InternalError(f"kernel {kernel.name} has no place on a GPU: {slide}")
    if isinstance(slide, SharedSlide):
        return shared_plan(kernel, tensors, slide, target, header)
    shape = slide_shape(slide, slide_operations(slide, tensors, target), target)
    names, form = axis_names(kernel), staged_form(kernel)
    width = slide.width(shape.vector)
    warps = _warps(slide, shape, target)
    tile = {names[form.slide]: shape.rows, names[slide.columns[-1]]: warps * width}
    edges = tuple(LocalEdge(*pair, REGISTERS, depth) for pair, depth in edges_of(kernel))
    deepest = max(ring.depth for ring in slide.rings)
    unroll = min(_UNROLL, max(3, deepest))
    return StagedPlan(header, shape.vector, unroll, tile, names[form.slide], edges)


def _warps(slide: Slide, shape: Shape, target: Target) -> int:
    """Warps of a block: several where there are so many that units have as many of them."""
    sizes, form = slide.kernel.sizes, slide.form
    tiles = -(-sizes[slide.columns[-1]] // slide.width(shape.vector))
    strips = -(-sizes[form.slide] // shape.rows)
    total = prod(sizes[name] for name in form.batch) * tiles * strips
    wanted = WARPS
    while wanted > 1 and (wanted > tiles or total < wanted * _BLOCKS * target.limits.units):
        wanted //= 2
    return wanted


def slide_plans(first: StagedPlan) -> Iterator[StagedPlan]:
    """Plans around a first one: shorter and longer strips."""
    if any(edge.buffer == RING for edge in first.local_edges):
        yield from shared_plans(first)
        return
    for factor, unroll in ((1, 1), (1, 6), (0.5, 3), (2, 3), (0.5, 6), (2, 6)):
        tile = {**first.tile, first.slide: max(1, round(first.tile[first.slide] * factor))}
        yield replace(first, tile=tile, unroll=unroll)


def warps_of(kernel: Kernel, plan: StagedPlan, slide: Slide) -> int:
    """Warps of a block."""
    columns = axis_names(kernel)[slide.columns[-1]]
    return plan.tile[columns] // slide.width(plan.vector)


def slide_refusals(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: StagedPlan, target: Target
) -> Iterator[str]:
    """Why a kernel cannot be carried out by a plan."""
    if not isinstance(form_of(kernel), Staged):
        yield "the kernel has no stages"
        return
    slide = place_of(kernel, tensors, plan, target)
    if isinstance(slide, str):
        where = "registers do not hold" if REGISTERS in _buffers(plan) else "a GPU does not hold"
        yield f"{where} its stages: {slide}"
        return
    names = axis_names(kernel)
    along, columns = names[slide.form.slide], names[slide.columns[-1]]
    if plan.slide != along:
        yield f"slide={plan.slide}, but the stages of this kernel slide along {along}"
    elif set(plan.tile) != {along, columns}:
        given = ", ".join(plan.tile) or "no axis"
        yield f"tile has a size for {given}; strips are cut along {along}, blocks along {columns}"
    elif isinstance(slide, SharedSlide):
        yield from shared_refusals(kernel, plan, slide, target)
    else:
        yield from _register_refusals(kernel, plan, slide)


def _register_refusals(kernel: Kernel, plan: StagedPlan, slide: Slide) -> Iterator[str]:
    columns = axis_names(kernel)[slide.columns[-1]]
    if plan.vector not in slide.vectors():
        some = ", ".join(map(str, slide.vectors()))
        yield f"vector={plan.vector}; lanes of this kernel may have {some} columns"
        return
    width = slide.width(plan.vector)
    if plan.tile[columns] % width or plan.tile[columns] // width > 32:
        yield f"tile {columns}={plan.tile[columns]}; a warp makes {width} columns, a block 32 warps"
    yield from place_refusals(kernel, plan)
    for found in plan.compute_at:
        if found.at != plan.slide:
            what = f"compute_at {found.stage} {found.at}"
            yield f"{what}: registers hold no strip; write {plan.slide}"
    yield from _edge_refusals(kernel, plan)


def _edge_refusals(kernel: Kernel, plan: StagedPlan) -> Iterator[str]:
    known = dict(edges_of(kernel))
    for edge in plan.local_edges:
        what = f"the edge {edge.source} to {edge.to}"
        alive = known.get((edge.source, edge.to))
        if alive is None:
            yield f"{what}: {edge.to} reads no stage {edge.source}"
        elif edge.buffer == "gmem":
            yield f"{what} goes through memory where the region has a kernel for {edge.source}"
        elif edge.buffer != REGISTERS:
            yield f"{what} is kept in {REGISTERS}, not in {edge.buffer}"
        elif edge.depth is not None and edge.depth != alive:
            yield f"{what} has depth {edge.depth}; registers hold the {alive} rows that are alive"
