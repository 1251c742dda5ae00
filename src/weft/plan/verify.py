"""The verifier of plans: ranges, divisibility, and resources of the target.

What depends on the kernel as well (strides, dtypes, epilogues) is for the templates' `accepts`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from weft.foundation.errors import Finding, SpecViolation
from weft.foundation.tally import counted
from weft.plan.images import IMAGE
from weft.plan.ir import AttentionPlan, LocalEdge, MapPlan, MmaPlan, Plan, RowPlan, StagedPlan
from weft.plan.slabs import has_slabs
from weft.plan.sum_parts import contradiction
from weft.plan.text import told
from weft.plan.unsaid import is_algorithm
from weft.target import roofline
from weft.target.matrix_atoms import FULL, PROMOTED, SPLIT
from weft.target.target import CLUSTERS, Kind, Target

SHARED: Final = "E2201 SharedMemoryOverrun"
REGISTERS: Final = "E2202 RegisterOverrun"
ALIGNMENT: Final = "E2203 AlignmentOverrun"
RANGE: Final = "E2204 PlanRange"
_VECTOR_BYTES: Final = 16
_PRECISIONS: Final = (FULL, PROMOTED, SPLIT)
_ARCHITECTURES: Final = ("codes", "cpu", "fma", "groups", "planes", "sm80", "sm90")
_WARPGROUPS: Final = ("planes", "sm90")
"""Templates whose sums are those of a warpgroup."""
_ROLES: Final = ("cooperative", "pingpong", "single")
_BUFFERS: Final = ("reg", "smem_ring", "gmem")


def verify(plan: Plan, target: Target, element_bytes: int = 2) -> None:
    """Raise with everything that is wrong with a plan for a target."""
    found = list(findings(plan, target, element_bytes))
    if found:
        raise SpecViolation.of(found)


def findings(plan: Plan, target: Target, element_bytes: int = 2) -> Iterator[Finding]:
    """Everything that is wrong. `element_bytes` is the size of the operands' elements."""
    if not plan.header.target:
        yield _plan_finding(RANGE, "the plan names no target", f"give it the target {target.name}")
    elif plan.header.target != target.name:
        yield _plan_finding(RANGE, f"the plan is for {plan.header.target}, not for {target.name}")
    match plan:
        case MmaPlan():
            yield from _mma_ranges(plan)
            yield from _mma_fields(plan)
            if not list(_mma_ranges(plan)):
                yield from _mma_alignment(plan, target, element_bytes)
                if target.kind is Kind.GPU:
                    yield from _mma_resources(plan, target, element_bytes)
        case MapPlan():
            yield from _positive(unroll=plan.unroll, grain=plan.grain, block=plan.block)
            yield from _vector_findings(plan.vector, element_bytes, target)
            yield from _threads(plan.threads, target)
        case RowPlan():
            yield from _positive(rows=plan.rows_per_block, accumulators=plan.accumulators)
            yield from _positive(rows_per_thread=plan.rows_per_thread)
            yield from _vector_findings(plan.vector, element_bytes, target)
            yield from _row_threads(plan, target)
            if plan.lines < 0 or (plan.lines and target.kind is Kind.GPU):
                yield _plan_finding(RANGE, f"lines is {plan.lines}; only a CPU sums lines together")
        case StagedPlan():
            yield from _positive(unroll=plan.unroll)
            yield from _positive(**{f"tile {name}": size for name, size in plan.tile.items()})
            yield from _vector_findings(plan.vector, element_bytes, target)
            for edge in plan.local_edges:
                if edge.buffer not in _BUFFERS:
                    yield _plan_finding(RANGE, f"an edge is kept in {edge.buffer}")
                yield from _positive(depth=1 if edge.depth is None else edge.depth)
        case AttentionPlan():
            yield from _positive(tile_q=plan.tile_q, tile_kv=plan.tile_kv)
            yield from _stages(plan.stages)
            yield from _algorithm("attention", plan.algo)


def _plan_finding(code: str, why: str, hint: str = "") -> Finding:
    return Finding(code, "", why, hint)


def _positive(**numbers: int) -> Iterator[Finding]:
    for name, value in numbers.items():
        if value < 1:
            yield _plan_finding(RANGE, f"{name} is {value}; it must be at least 1")


def _stages(stages: int) -> Iterator[Finding]:
    if stages < 2:
        yield _plan_finding(RANGE, f"stages is {stages}; loading and computing need two at least")


def _algorithm(key: str, value: str) -> Iterator[Finding]:
    if not is_algorithm(key, value):
        yield _plan_finding(RANGE, f"algo_choice.{key}={value} is not an algorithm")


def _vector_findings(width: int, element_bytes: int, target: Target) -> Iterator[Finding]:
    if width < 1 or width & (width - 1):
        yield _plan_finding(RANGE, f"a vector of {width} elements is not a power of two")
    elif target.kind is Kind.GPU and width * element_bytes > _VECTOR_BYTES:
        yield _plan_finding(
            ALIGNMENT,
            f"a vector of {width} elements of {element_bytes} bytes is over {_VECTOR_BYTES} bytes",
            f"use {_VECTOR_BYTES // element_bytes}",
        )


def _threads(threads: int, target: Target, what: str = "") -> Iterator[Finding]:
    """Threads of a block, which are `what`."""
    limit = target.limits.threads_per_block
    if target.kind is Kind.GPU and (threads % roofline.WARP or not 32 <= threads <= limit):
        yield _plan_finding(RANGE, f"{what or threads} threads are not whole warps up to {limit}")


def _row_threads(plan: RowPlan, target: Target) -> Iterator[Finding]:
    """Threads that share a row exchange partial results by halves."""
    if target.kind is not Kind.GPU or plan.rows_per_block < 1:
        return
    if plan.threads < 1 or plan.threads & (plan.threads - 1):
        yield _plan_finding(RANGE, f"{plan.threads} threads for a row are not a power of two")
    elif plan.blocks_per_row not in CLUSTERS:
        yield _plan_finding(
            RANGE, f"{plan.blocks_per_row} blocks for a row are not 1, 2, 4, 8 or 16"
        )
    elif plan.ring < 0:
        yield _plan_finding(RANGE, f"a ring of {plan.ring} vectors")
    else:
        rows = counted(plan.rows_per_block, "row")
        all_of_them = plan.threads * plan.rows_per_block
        yield from _threads(all_of_them, target, f"{rows} of {plan.threads}")


# -- contractions --------------------------------------------------------------------------------


def _mma_ranges(plan: MmaPlan) -> Iterator[Finding]:
    yield from _positive(
        **dict(zip(("tile m", "tile n", "tile k"), plan.tile, strict=True)),
        split_k=plan.split_k,
        consumers=plan.consumers,
        batch=plan.batch,
        store_buffers=plan.store_buffers,
    )
    yield from _positive(**{"cluster x": plan.cluster[0], "cluster y": plan.cluster[1]})
    yield from _stages(plan.stages)
    (rows, columns, _), (warp_rows, warp_columns) = plan.tile, plan.warp_tile
    if warp_rows < 1 or warp_columns < 1:
        yield _plan_finding(RANGE, f"warp_tile is {warp_rows}x{warp_columns}")
    elif not _has_lines(plan) and (rows % warp_rows or columns % warp_columns):
        yield _plan_finding(
            RANGE, f"warp_tile {warp_rows}x{warp_columns} does not divide tile {rows}x{columns}"
        )


def _has_lines(plan: MmaPlan) -> bool:
    """Whether a block is lines of an image, which end where they end."""
    return any(cached.where == IMAGE for cached in plan.cache)


def _mma_fields(plan: MmaPlan) -> Iterator[Finding]:
    if plan.arch not in _ARCHITECTURES:
        yield _plan_finding(RANGE, f"arch={plan.arch} is not one of {', '.join(_ARCHITECTURES)}")
    if re.fullmatch(r"rows|hilbert|grouped:[1-9][0-9]{0,8}", plan.order) is None:
        yield _plan_finding(RANGE, f"order={plan.order} is not rows, grouped:N or hilbert")
    if plan.roles not in _ROLES:
        yield _plan_finding(RANGE, f"roles={plan.roles} is not one of {', '.join(_ROLES)}")
    if any(layout not in ("row", "col") for layout in plan.operand_layouts):
        yield _plan_finding(RANGE, f"{told(plan, 'operand_layouts')} are not row or col")
    if plan.in_flight not in (0, 1):
        yield _plan_finding(RANGE, f"in_flight is {plan.in_flight}; it is 0 or 1")
    if plan.precision not in _PRECISIONS:
        yield _plan_finding(
            RANGE, f"precision={plan.precision} is not one of {', '.join(_PRECISIONS)}"
        )
    for key, value in plan.algo_choice.items():
        yield from _algorithm(key, value)
    if why := contradiction(plan):
        yield _plan_finding(RANGE, why)
    yield from _edge_findings(plan.local_edges)


def _edge_findings(edges: Sequence[LocalEdge]) -> Iterator[Finding]:
    for edge in edges:
        name = f"the edge {edge.source} to {edge.to}"
        if edge.buffer not in _BUFFERS:
            yield _plan_finding(
                RANGE, f"{name} is kept in {edge.buffer}, not in {', '.join(_BUFFERS)}"
            )
        elif edge.depth is not None and (edge.buffer != "smem_ring" or edge.depth < 2):
            yield _plan_finding(
                RANGE, f"{name} has depth {edge.depth}; rings have one, of 2 at least"
            )


def _mma_alignment(plan: MmaPlan, target: Target, element_bytes: int) -> Iterator[Finding]:
    if plan.vectorize is None:
        return
    width = plan.vectorize.width
    yield from _vector_findings(width, element_bytes, target)
    axis = plan.vectorize.axis.partition(".")[0]
    tile = (*plan.warp_tile, plan.tile[2]) if _has_lines(plan) else plan.tile
    extents = dict(zip("mnk", tile, strict=True))
    if axis in extents and extents[axis] % max(width, 1):
        yield _plan_finding(
            ALIGNMENT,
            f"vectors of {width} do not divide the tile of {extents[axis]} along {axis}",
        )


def _mma_resources(plan: MmaPlan, target: Target, element_bytes: int) -> Iterator[Finding]:
    # Slabs of an image are counted by their template.
    tile = (0, *plan.tile[1:]) if has_slabs(plan) else plan.tile
    shared = roofline.shared_bytes_per_block(tile, element_bytes, plan.stages)
    limit = target.limits.shared_bytes_per_block
    if shared > limit and plan.arch != "codes":  # whose operands are not kept there
        yield _plan_finding(
            SHARED,
            f"{plan.stages} stages of a {'x'.join(map(str, plan.tile))} tile take {shared:,} bytes "
            f"of shared memory, over {limit:,}",
            "use fewer stages or a smaller tile",
        )
    workers = threads_of_accumulators(plan)
    needed = roofline.registers_per_thread(
        roofline.accumulator_registers(plan.warp_tile, workers), base=_base(plan)
    )
    if needed > target.limits.registers_per_thread:
        yield _plan_finding(
            REGISTERS,
            f"a warp tile of {plan.warp_tile[0]}x{plan.warp_tile[1]} takes about {needed} "
            f"registers a thread, over {target.limits.registers_per_thread}",
            "use a smaller warp_tile",
        )
    if plan.arch not in _WARPGROUPS:
        yield from _threads(threads_of_block(plan), target)


def threads_of_accumulators(plan: MmaPlan) -> int:
    """Threads that share one `warp_tile`: a warp, or on SM90 a warpgroup."""
    return 4 * roofline.WARP if plan.arch in _WARPGROUPS else roofline.WARP


def threads_of_block(plan: MmaPlan) -> int:
    """Threads of a block without specialised warps."""
    (rows, columns, _), (warp_rows, warp_columns) = plan.tile, plan.warp_tile
    return -(-rows // warp_rows) * (columns // warp_columns) * roofline.WARP


def _base(plan: MmaPlan) -> int:
    # Operands of wgmma come from shared memory: no fragments are held in registers.
    return 24 if plan.arch in _WARPGROUPS else roofline.BASE_REGISTERS
