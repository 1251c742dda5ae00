"""Plans around a first choice, for a tuner to try: document 2's small search space (section 6).

    tiles (3-4) x stages or register tiles (2) x vectors (3) x algorithms (few)   ->   10-20 points

Each list begins with the first choice and goes on with what differs from it in one or two fields,
the likeliest first. Whether a kernel takes a plan is for the templates to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from weft.plan.attention import gpu_attention_plans
from weft.plan.code_tiles import codes_plans
from weft.plan.group_tiles import group_plans
from weft.plan.ir import AttentionPlan, CacheRead, MapPlan, MmaPlan, Plan, RowPlan, StagedPlan
from weft.plan.multiply_adds import fma_plans, lighter_fma_plans
from weft.plan.slabs import SLAB_FORMS
from weft.plan.slides import slide_plans
from weft.plan.staged import staged_plans
from weft.plan.tensor_cores import (
    slab_plan,
    sm80_plan,
    sm90_contraction,
    sm90_forms,
    sm90_plan,
)
from weft.plan.verify import threads_of_accumulators
from weft.region.form import Problem
from weft.region.ir import Kernel, problem_of
from weft.target.matrix_time import cycles
from weft.target.roofline import accumulator_registers
from weft.target.target import Kind, Target

_PACKED = (CacheRead("B", "packed", "k", pingpong=False),)
_MOST_THREADS = 1024
"""Of a block."""


def candidates(kernel: Kernel, target: Target, first: Plan) -> list[Plan]:
    """The plans to try, without repetition."""
    found: Iterator[Plan] = iter(())
    match first:
        case MapPlan():
            found = _maps(first, target)
        case RowPlan():
            found = _row_candidates(first, target)
        case StagedPlan() if target.kind is Kind.GPU:
            found = slide_plans(first)
        case StagedPlan():
            found = staged_plans(first)
        case AttentionPlan() if target.kind is Kind.GPU:
            found = gpu_attention_plans(kernel, first)
        case AttentionPlan():
            found = _attentions(first)
        case MmaPlan(arch="fma"):
            found = fma_plans(kernel, first)
        case MmaPlan(arch="groups"):
            problem = problem_of(kernel)
            found = iter(()) if problem is None else group_plans(kernel, problem, first)
        case MmaPlan(arch="codes"):
            found = codes_plans(first)
        case MmaPlan(arch="planes"):
            found = (replace(first, stages=stages) for stages in (2, 3, 5))
        case MmaPlan() if target.kind is Kind.GPU:
            found = _matrix_units(kernel, target, first)
        case MmaPlan():
            found = _contractions(first)
    return list({repr(plan): plan for plan in (first, *found)}.values())


def lighter(kernel: Kernel, target: Target, first: Plan) -> Iterator[Plan]:
    """Plans for a GPU that hold less in each thread than the first: its own tiles by more warps,
    and the candidates that do."""
    if isinstance(first, MmaPlan) and first.arch == "fma":
        yield from lighter_fma_plans(first)
        return
    found = [*_more_warps(first), *candidates(kernel, target, first)]
    yield from (plan for plan in found if _held_by_thread(plan) < _held_by_thread(first))


def waiting(first: Plan) -> Iterator[Plan]:
    """The first plan with every group of matrix instructions waited for, which the compiler does
    anyway, and worse, where it cannot leave one in flight."""
    if isinstance(first, MmaPlan) and first.arch == "sm90" and first.in_flight:
        yield replace(first, in_flight=0)


def closer(first: Plan) -> Iterator[Plan]:
    """Plans for a GPU whose blocks take points that lie closer together in memory than those of the
    first, the fastest first: blocks of two axes, or more rows side by side, of fewer threads each.
    Longer runs of points would use more of each sector too, but take longer."""
    match first:
        case MapPlan(block=1):
            for block in (32, 64, 16):
                threads = min(128, block * block // 8)
                made = replace(first, block=block, grain=block * block, threads=threads)
                yield replace(made, unroll=1)
        case RowPlan(across=True):
            for threads, kept in product((128, 64, 32), (True, False)):
                along = replace(first, across=False, threads=threads, rows_per_block=8)
                along = replace(along, rows_per_thread=1)
                yield replace(along, keep_row=kept)
        case RowPlan(ring=0, blocks_per_row=1):
            # Rows that were kept are not read again: that would be more bytes, not fewer.
            for rows, fewer in product((8, 16, 4), (4, 2, 8, 1)):
                threads = first.threads // fewer
                if first.rows_per_block < rows <= _MOST_THREADS // max(1, threads):
                    several = replace(first, threads=threads, rows_per_block=rows)
                    yield replace(several, rows_per_thread=1)
            if not first.keep_row:
                yield replace(first, across=True, threads=8, rows_per_block=32)


def _more_warps(first: Plan) -> Iterator[Plan]:
    if isinstance(first, MmaPlan) and first.arch == "sm80":
        rows, columns = first.warp_tile
        for tile in ((rows, columns // 2), (rows // 2, columns // 2)):
            yield replace(first, warp_tile=tile)


def _held_by_thread(plan: Plan) -> float:
    """What a thread holds at a time, in some unit of the kind of plan."""
    match plan:
        case MmaPlan():
            return accumulator_registers(plan.warp_tile, threads_of_accumulators(plan))
        case MapPlan():
            return plan.grain / plan.threads
        case RowPlan():
            return plan.rows_per_block * plan.vector / plan.threads
    return 0.0


# -- elementwise kernels and rows ----------------------------------------------------------------


def _maps(first: MapPlan, target: Target) -> Iterator[MapPlan]:
    if target.kind is Kind.GPU:
        for threads, vector in product((128, 256, 512), (first.vector, 2 * first.vector, 1)):
            grain = threads * vector
            yield replace(first, threads=threads, vector=vector, grain=grain)
        return
    if first.block > 1:
        for block, unroll in product((16, 32, 64, 128), (first.unroll, 2 * first.unroll)):
            yield replace(first, block=block, unroll=unroll)
        return
    for vector, unroll in product((first.vector, 2 * first.vector, 4 * first.vector), (1, 2, 4, 8)):
        yield replace(first, vector=vector, unroll=unroll)


def _row_candidates(first: RowPlan, target: Target) -> Iterator[RowPlan]:
    if target.kind is Kind.GPU:
        for factor, vector in product((1, 2, 4), (first.vector, max(1, first.vector // 2))):
            threads = first.threads * factor
            kept = threads > 1 and (first.keep_row or first.threads == 1)
            for rows in {first.rows_per_block, max(1, first.rows_per_block // factor)}:
                made = replace(first, threads=threads, rows_per_block=rows, vector=vector)
                yield replace(made, keep_row=kept)
        return
    for kept, vector in product((first.keep_row, not first.keep_row), (1, 2)):
        for partial in (first.accumulators, 4, 8, 2, 1, 16):
            width = vector * first.vector
            yield replace(first, keep_row=kept, vector=width, accumulators=partial)


# -- contractions on a CPU -----------------------------------------------------------------------


def _contractions(first: MmaPlan) -> Iterator[MmaPlan]:
    """Blocks twice and half as large, other register tiles, packed and not."""
    axis = first.vectorize.axis.partition(".")[0] if first.vectorize else "n"
    lanes = first.vectorize.width if first.vectorize else 1
    if axis == "k":
        for columns in (1, 2, 4, 8):
            tile = (first.warp_tile[0], columns)
            yield replace(first, tile=(*tile, first.tile[2]), warp_tile=tile)
        return
    if len(first.cache) == 2:
        yield from _block_candidates(first)
        yield from _register_tiles(first, lanes)
        yield from _block_candidates(_halve_tile(first))
        return
    for rows, vectors in ((8, 3), (6, 4), (4, 4), (12, 2), (4, 2), (2, 4), (1, 4)):
        tile = (rows, vectors * lanes)
        whole = replace(first, tile=(*tile, first.tile[2]), warp_tile=tile, cache=())
        yield replace(whole, tile=(16 * rows, *whole.tile[1:]), cache=_PACKED)
        yield whole


def _block_candidates(first: MmaPlan) -> Iterator[MmaPlan]:
    rows, columns, depth = first.tile
    for m, n, k in (
        (1, 1, 2),
        (1, 2, 1),
        (2, 1, 1),
        (2, 2, 2),
        (1, 1, 0.5),
        (1, 0.5, 1),
        (0.5, 1, 1),
    ):
        yield _with_blocks(first, int(rows * m), int(columns * n), max(1, int(depth * k)))


def _register_tiles(first: MmaPlan, lanes: int) -> Iterator[MmaPlan]:
    for rows, vectors in ((6, 4), (12, 2), (4, 6), (4, 4), (6, 2)):
        made = replace(first, warp_tile=(rows, vectors * lanes))
        yield _with_blocks(made, *first.tile)


def _halve_tile(first: MmaPlan) -> MmaPlan:
    rows, columns, depth = first.tile
    return _with_blocks(first, rows // 2, columns // 2, depth)


def _with_blocks(plan: MmaPlan, rows: int, columns: int, depth: int) -> MmaPlan:
    """The plan with blocks of whole register tiles, about so large."""
    m, n = (
        max(1, round(size / step)) * step
        for size, step in zip((rows, columns), plan.warp_tile, strict=True)
    )
    return replace(plan, tile=(m, n, depth))


def _attentions(first: AttentionPlan) -> Iterator[AttentionPlan]:
    rows, columns = first.register_tile
    for queries, keys in product((1, 2, 0.5), repeat=2):
        yield replace(
            first,
            tile_q=max(1, round(first.tile_q * queries / columns)) * columns,
            tile_kv=max(1, round(first.tile_kv * keys / rows)) * rows,
        )
    for tile in ((4, columns), (rows, 2 * columns), (4, 2 * columns), (12, 2 * first.vector)):
        yield replace(
            first,
            register_tile=tile,
            tile_q=max(1, round(first.tile_q / tile[1])) * tile[1],
            tile_kv=max(1, round(first.tile_kv / tile[0])) * tile[0],
        )


# -- contractions on matrix units ----------------------------------------------------------------


def _matrix_units(kernel: Kernel, target: Target, first: MmaPlan) -> Iterator[MmaPlan]:
    """The forms that the model of their time has first, then orders and depths of the first."""
    problem = problem_of(kernel)
    if problem is None or first.arch not in ("sm80", "sm90"):
        return
    if first.arch == "sm90":
        yield from _sm90_forms(kernel, problem, target, first)
    else:
        base = sm80_plan(kernel, problem, target, first.header)
        for tile, stages in product(((128, 64), (128, 128), (64, 64)), (2, 3, 4)):
            made = replace(base, tile=(*tile, base.tile[2]), stages=stages)
            yield replace(made, algo_choice=first.algo_choice)
    for order in ("grouped:8", "hilbert", "rows"):
        yield replace(first, order=order)


def _sm90_forms(
    kernel: Kernel, problem: Problem, target: Target, first: MmaPlan
) -> Iterator[MmaPlan]:
    found = sm90_contraction(problem)
    forms = [form for form in sm90_forms(kernel) if found.suits(form)]
    made = [
        sm90_plan(kernel, problem, target, first.header, form)
        for form in sorted(forms, key=lambda form: cycles(form, found, target))[:10]
    ]
    slabs = (slab_plan(kernel, problem, target, first.header, form) for form in SLAB_FORMS)
    for plan in (*made, *filter(None, slabs)):
        yield replace(plan, algo_choice=first.algo_choice)
