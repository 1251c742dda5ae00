"""Row reductions on a GPU: regular and irregular kernels, and choosing a `RowPlan`.

A row is a point of the axes that no reduction removes. Kernels whose reductions all run over the
same axes are *regular*: several threads can share a row. The others are computed by one thread per
row. A row is kept in registers where they hold every value that a later pass needs again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from weft.foundation.index_expr import coefficient, linear
from weft.plan.ir import Header, RowPlan
from weft.plan.row_costs import BLOCK, HALF_A_UNIT, RowCosts
from weft.plan.strips import strip_plan
from weft.region.forms.columns import side_by_side
from weft.region.forms.widths import length_with_room, tensors_along, vector_bytes
from weft.region.ir import (
    AxisIndex,
    Const,
    Fold,
    Kernel,
    Let,
    Read,
    Reduce,
    Tensor,
    form_of,
    operands,
    row_major,
)
from weft.region.row_reads import PIECE, longest_row, passes_before, piece_sums
from weft.target import roofline
from weft.target.target import Target

_BASE: Final = 36
"""Registers for addresses, row statistics and what is being computed."""
_SPARE: Final = 88
"""Registers of a thread up to which enough threads fit on a unit."""
_PER_REGISTER: Final = 0.005
"""What each register beyond these costs, in shares of reading a row."""
_SQUEEZED: Final = 24
"""Registers beside a kept row that a compiler makes do with when it is told to."""
_ENOUGH: Final = 64
"""Registers that no thread is asked to make do with fewer than."""
# A log softmax of 8192×12288 took 239 µs in f32 and 110 in bf16, and 192 and 95 with registers for
# so many blocks (H200, gpu-steps.md).
_BUSY_BYTES: Final = 28 << 10
"""Bytes of rows that are on their way to a unit, beside those of a block that computes, when memory
never waits."""
_TIGHT: Final = 32
"""Registers beside a kept row and what all rows share."""
_WARP: Final = 32
_LINE: Final = 8
"""Vectors of 16 bytes in a line of memory."""
_ACROSS: Final = 256
"""Threads of a block that takes vectors across rows."""
_NARROWEST: Final = 4
"""Vectors of 16 bytes, at least, that are read side by side where units would have none: memory is
read in pieces of 64 bytes."""
_WIDEST: Final = 8
"""Elements of a vector at most, however small they are."""
_MOST_KEPT: Final = 64
"""Elements of a row that a thread keeps at most: each is written out in the kernel. Twice as many
where it needs them once."""
# Layer norms of 512×262144, with their weights in registers: 423 µs before, 278 by clusters of 16
# in f32, 231 and 163 to 168 in bf16 (H200, gpu-steps.md).
_CLUSTERS: Final = (2, 4, 8, 16)
"""Blocks that may share a row, the fewest first: the first that hold one are taken."""
_ROWS_OF_A_TEAM: Final = 4
"""Rows of each cluster, at least, for which a ring pays: the first row finds nothing waiting."""
# A layer norm of 512×262144 in f32, whose weights have eight, went from 445 to 524 µs by a ring
# that read them again for every row (H200, gpu-steps.md).
_LITTLE_BYTES: Final = 2
"""Of weights, for each element of a row."""
_LEAST_PART: Final = 1 << 15
"""Bytes of a row that a block of a cluster has."""
_WAITING_BYTES: Final = 96 << 10
"""Bytes that a unit asks for ahead of time."""
_VECTOR_BYTES: Final = 16
_FEW: Final = 256
"""Threads for a long row, at least."""
_MANY_ROWS: Final = 8
"""Rows for each unit, from which on blocks for all of them keep it busy without a cluster."""
_TURNS_OF_LONG_ROWS: Final = 12
"""Of the threads of a row that is not kept, about."""
_IN_CLUSTER: Final = 32
"""Elements of a row that a thread of a cluster keeps, about."""
# sum_last of 8192×12288 in bf16 took 47.3 µs with one, and 46.4 (H200, gpu-steps.md).
_PARTIAL_SUMS: Final = 4
"""Partial sums of a thread, and vectors up to which it has as many."""
_PARTIAL_BYTES: Final = 8192
"""Shared memory for partial results and barriers of a block with a ring."""
_MANY: Final = 1024
"""Threads of a block that reads its row again."""
_SINGLE: Final = 128
"""Threads of a block in which each has a row of its own."""


def reduced_axes(kernel: Kernel) -> tuple[str, ...]:
    """The axes that some reduction of the kernel removes, in order."""
    return form_of(kernel).rows.reduced


def kept_axes(kernel: Kernel) -> tuple[str, ...]:
    """The axes that no reduction removes, in order."""
    reduced = reduced_axes(kernel)
    return tuple(axis.name for axis in kernel.axes if axis.name not in reduced)


def is_regular(kernel: Kernel) -> bool:
    """Whether all reductions run over the same axes, and results live over all or none of them."""
    return form_of(kernel).rows.regular


def row_vector_axis(kernel: Kernel) -> str | None:
    """The axis that vectors of a row run along."""
    reduced = reduced_axes(kernel)
    return reduced[-1] if reduced else None


def row_length(kernel: Kernel) -> int:
    return math.prod(kernel.sizes[name] for name in reduced_axes(kernel))


def row_count(kernel: Kernel) -> int:
    return math.prod(kernel.sizes.values()) // max(1, row_length(kernel))


def chunks_of(kernel: Kernel, plan: RowPlan) -> int:
    """Vectors of a row that each thread takes."""
    return -(-row_length(kernel) // (plan.threads * plan.blocks_per_row * plan.vector))


def row_registers(kernel: Kernel, plan: RowPlan, target: Target) -> tuple[int, int]:
    """Registers that keeping a row takes of each thread, about, and those it has."""
    elements = chunks_of(kernel, plan) * plan.vector
    each = plan.rows_per_thread * kept_registers(kernel)
    each += len(shared_reads(kernel)) if plan.rows_per_thread > 1 else 0
    needed = _BASE + elements * each + 2 * plan.vector
    threads = plan.threads * plan.rows_per_block
    return needed, roofline.registers_given(target.limits, threads)


def rows_together(plan: RowPlan) -> int:
    """Rows of a block."""
    return plan.rows_per_block * plan.rows_per_thread


def stores_rows(kernel: Kernel) -> bool:
    """Whether some result lives over whole rows."""
    reduced = set(reduced_axes(kernel))
    return any(reduced & set(kernel.let(output.value).axes) for output in kernel.outputs)


def resident_blocks(kernel: Kernel, plan: RowPlan, target: Target) -> int:
    """Blocks that the compiler is told to leave registers for: so many that memory never waits, or,
    if a unit has room for them, all that there are. One where it should see to it by itself."""
    if not plan.keep_row or plan.threads == 1 or plan.blocks_per_row > 1 or plan.ring:
        return 1
    limits, threads = target.limits, plan.threads * plan.rows_per_block
    room = min(_room(kernel, plan, target), limits.registers_per_unit // (_ENOUGH * threads))
    rows = rows_together(plan)
    busy = 1 + -(-_BUSY_BYTES // max(1, rows * _stream_bytes(kernel)))
    every = -(-row_count(kernel) // (rows * limits.units))
    wanted = max(min(room, busy), every if every <= room else 1)
    registers, _ = row_registers(kernel, plan, target)
    # A unit gives registers out in eights. Where they leave room for as many blocks as it is, the
    # compiler is told nothing.
    by_itself = limits.registers_per_unit // (-(-registers // 8) * 8 * threads)
    return wanted if wanted > by_itself else 1


def _room(kernel: Kernel, plan: RowPlan, target: Target) -> int:
    """Blocks with kept rows whose registers a unit has, as few as they take."""
    kept = chunks_of(kernel, plan) * plan.vector * kept_registers(kernel) * plan.rows_per_thread
    registers = -(-(_SQUEEZED + kept) // 8) * 8
    return target.limits.registers_per_unit // (registers * plan.threads * plan.rows_per_block)


def _starved_share(kernel: Kernel, plan: RowPlan, target: Target) -> float:
    """The share of what keeps memory busy that a unit, short of registers, has no room for."""
    threads = plan.threads * plan.rows_per_block
    room = _room(kernel, plan, target)
    if not stores_rows(kernel) or room * threads >= target.limits.warps_per_unit * _WARP:
        return 0.0
    ahead = (room - 1) * rows_together(plan) * _stream_bytes(kernel)
    return max(0.0, 1 - ahead / _BUSY_BYTES)


def ring_room(target: Target) -> int:
    """Bytes of shared memory that rows can wait in, beside partial results."""
    return target.limits.shared_bytes_per_block - _PARTIAL_BYTES


def teams(kernel: Kernel, plan: RowPlan, target: Target, ring_bytes: int) -> int:
    """Blocks, or clusters of them, that stay on the units, with a ring in each block."""
    registers, _ = row_registers(kernel, plan, target)
    shared = ring_bytes + _PARTIAL_BYTES
    blocks = roofline.blocks_per_unit(target.limits, shared, registers, plan.threads)
    return max(1, target.clusters(plan.blocks_per_row) * max(1, blocks))


def kept_registers(kernel: Kernel) -> int:
    """Registers that one element of a row takes between passes, at the worst moment.

    A value of the row is made in the pass that first needs it and kept until the last that does.
    """
    reduced = set(reduced_axes(kernel))
    passes = passes_before(kernel)
    final = max(passes.values(), default=0) + 1
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for output in kernel.outputs:
        first[output.value] = last[output.value] = final
    for let in reversed(kernel.body):
        own = isinstance(let.expr, Reduce | Fold)
        made = passes[let.name] if own else first.get(let.name, final)
        for name in operands(let):
            first[name] = min(first.get(name, made), made)
            last[name] = max(last.get(name, made), made)
    kept = [let for let in kernel.body if _is_kept(let, reduced)]
    return max(
        (
            sum(
                max(1, let.dtype.bits // 32)
                for let in kept
                if first.get(let.name, final) <= number < last.get(let.name, final)
            )
            for number in range(1, final)
        ),
        default=0,
    )


def _is_kept(let: Let, reduced: set[str]) -> bool:
    return bool(reduced & set(let.axes)) and not isinstance(let.expr, Const | AxisIndex)


def gpu_row_plan(
    kernel: Kernel,
    tensors: Mapping[str, Tensor],
    target: Target,
    header: Header,
    *,
    ring: bool = True,
) -> RowPlan:
    """How many threads share a row, and whether it stays in registers; `ring` where rows may wait
    in shared memory."""
    axis = row_vector_axis(kernel)
    if axis is None or not is_regular(kernel):
        return _single(kernel, tensors, header)
    strips = strip_plan(kernel, target, header)
    if strips is not None:
        return strips
    if not _suits_threads(kernel, tensors, target):
        plan = _plan_across_rows(kernel, tensors, target, header)
        return plan or _single(kernel, tensors, header)
    vector = _vector_along(kernel, tensors, axis, length_with_room(kernel, tensors, axis))
    pieces = bool(piece_sums(kernel))
    vector = max(vector, PIECE // _WARP) if pieces else vector
    vectors = -(-row_length(kernel) // vector)
    units, rows = target.limits.units, row_count(kernel)
    costs = RowCosts(vectors, rows / units, stores_rows(kernel), len(shared_reads(kernel)))
    every = [
        RowPlan(
            header,
            vector,
            costs.rows_together(1 << n, rows, units),
            1 << n,
            accumulators=1,
            keep_row=n > 0,
        )
        for n in range(11)
    ]
    kept = [plan for plan in every if _fits_registers(kernel, plan, target)]
    if kept:
        best = min(
            kept,
            key=lambda plan: (
                costs.total(plan.threads)
                + (_starved_share(kernel, plan, target) if rows > units else 0.0)
                + _PER_REGISTER * max(0, row_registers(kernel, plan, target)[0] - _SPARE)
            ),
        )
        best = replace(best, accumulators=_partial_sums(kernel, best, costs))
        return best if pieces else _with_more_rows(kernel, best, costs, target)
    if kept_registers(kernel):
        waiting = _through_ring(kernel, vector, target, header) if ring and not pieces else None
        if waiting is not None:
            return waiting
        # A cluster waits for itself at every reduction, which is slower than reading a row again
        # where there are rows enough for all units.
        if rows >= _MANY_ROWS * units:
            return RowPlan(header, vector, 1, _threads_of_long_row(vectors), 1, keep_row=False)
        # A layer norm of 4096×65536 in bf16 took 486 µs, and 337 read again from the cache; a
        # softmax in f32, whose rows do not stay there, 1051 so and 639 in a cluster.
        if _stay_in_cache(kernel, tensors, target):
            return RowPlan(header, vector, 1, _MANY, 1, keep_row=False)
        shared = _in_cluster(kernel, vector, target, header)
        if shared is not None:
            return shared
    threads = min(512, max(32, 1 << (-(-vectors // 2) - 1).bit_length()))
    return RowPlan(header, vector, max(1, BLOCK // threads), threads, 1, keep_row=False)


def _partial_sums(kernel: Kernel, plan: RowPlan, costs: RowCosts) -> int:
    """Partial results of a thread: several where a few vectors of each thread are added up and
    warps wait for the last of these sums."""
    reductions = [let.expr for let in kernel.body if isinstance(let.expr, Reduce | Fold)]
    sums = all(isinstance(found, Reduce) and found.fn == "sum" for found in reductions)
    short = plan.threads > _WARP and costs.turns(plan.threads) <= _PARTIAL_SUMS
    return min(_PARTIAL_SUMS, plan.vector) if sums and short and not costs.stored else 1


def _with_more_rows(kernel: Kernel, plan: RowPlan, costs: RowCosts, target: Target) -> RowPlan:
    """The plan with as many rows to a thread as pay and as its registers hold."""
    more = replace(plan, rows_per_thread=costs.rows_of_a_thread(plan.threads))
    whole = row_length(kernel) % plan.vector == 0
    return more if whole and plan.keep_row and _fits_registers(kernel, more, target) else plan


def _threads_of_long_row(vectors: int) -> int:
    """Threads for one of many rows that are too long to keep: as many as have turns enough to make
    up for what they do together at its end. 16384 rows of 128256 logits took 4.07 ms in the
    registers of eight blocks, and take 1.72 with 1024 threads and 1.95 with 256; with a gradient
    stored 6.57, 3.48 and 4.03. 8192 rows of 50304 take 0.45 with 1024 and 0.39 with 512 threads,
    with a gradient 0.79 and 0.70 (H200)."""
    most = max(1, vectors // _TURNS_OF_LONG_ROWS)
    return min(_MANY, max(_FEW, 1 << (most.bit_length() - 1)))


def _stay_in_cache(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> bool:
    """Whether rows that are read again are still in the second-level cache, which all units share:
    with blocks as large as they can be, two to a unit."""
    return 2 * target.limits.units * longest_row(kernel, tensors) <= target.limits.cache_bytes[-1]


def _in_cluster(kernel: Kernel, vector: int, target: Target, header: Header) -> RowPlan | None:
    """A row in the registers of as many blocks as can share it, if they hold it: with so few
    elements a thread that a unit has room for several blocks."""
    if target.blocks_per_row == 1:
        return None
    every = [
        RowPlan(header, vector, 1, 1 << n, accumulators=1, blocks_per_row=target.blocks_per_row)
        for n in range(_WARP.bit_length() - 1, 11)
    ]

    def distance(plan: RowPlan) -> float:
        return abs(math.log2(chunks_of(kernel, plan) * vector / _IN_CLUSTER))

    return min(
        (plan for plan in every if _fits_registers(kernel, plan, target)),
        key=distance,
        default=None,
    )


def _through_ring(kernel: Kernel, vector: int, target: Target, header: Header) -> RowPlan | None:
    """Rows one after the other to clusters of as few blocks as hold one, if the units have several
    rows each, and each block so much of one that its exchanges take no longer. What all rows share
    has to stay in registers too, or be little: read again for every row, it would cost what the
    ring saves. Clusters whose registers hold it with room to spare come first."""
    if not target.has("tma"):
        return None
    little = sum(let.dtype.storage_bytes for let in shared_reads(kernel)) <= _LITTLE_BYTES
    for tight in (False, True):
        for blocks in _CLUSTERS:
            plan = RowPlan(header, vector, 1, HALF_A_UNIT, accumulators=1, blocks_per_row=blocks)
            if little or holds_shared(kernel, plan, target, tight=tight):
                ring = _ring_of(kernel, plan, target)
                if ring:
                    return replace(plan, ring=ring)
    return None


def _ring_of(kernel: Kernel, plan: RowPlan, target: Target) -> int:
    """Pieces of rows that wait for a block, whole rows of them; 0 where they should not."""
    pieces = chunks_of(kernel, plan)
    whole = pieces * plan.threads * plan.blocks_per_row * plan.vector == row_length(kernel)
    many = row_count(kernel) >= _ROWS_OF_A_TEAM * target.clusters(plan.blocks_per_row)
    beside = len(shared_reads(kernel)) * plan.vector
    size = pieces * len(row_streams(kernel)) * plan.threads * _VECTOR_BYTES
    if (
        not whole
        or not many
        or size < _LEAST_PART
        or not _fits_registers(kernel, plan, target, beside)
    ):
        return 0
    return min(ring_room(target), _WAITING_BYTES + size - 1) // size * pieces


def shared_reads(kernel: Kernel) -> list[Let]:
    """What all rows read alike."""
    reduced = set(reduced_axes(kernel))
    reads = [let for let in kernel.body if isinstance(let.expr, Read)]
    return [let for let in reads if let.axes and set(let.axes) <= reduced]


def holds_shared(kernel: Kernel, plan: RowPlan, target: Target, *, tight: bool = True) -> bool:
    """Whether registers hold, beside a row, what all rows read alike; `tight` if just so."""
    needed, given = row_registers(kernel, plan, target)
    elements = chunks_of(kernel, plan) * plan.vector
    if tight:
        needed = _TIGHT + elements * kept_registers(kernel)
    return needed + len(shared_reads(kernel)) * elements <= given


def row_streams(kernel: Kernel) -> list[Let]:
    """Operands that a row brings along."""
    reduced = set(reduced_axes(kernel))
    reads = [let for let in kernel.body if isinstance(let.expr, Read)]
    return [let for let in reads if set(let.axes) & reduced and set(let.axes) - reduced]


def _stream_bytes(kernel: Kernel) -> int:
    """Bytes of one row of the operands that it brings along."""
    return row_length(kernel) * sum(let.dtype.storage_bytes for let in row_streams(kernel))


def _plan_across_rows(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, header: Header
) -> RowPlan | None:
    """Vectors across rows, with as many threads to a vector as fill a block; None where some
    reduction does not live over the axis that the rows lie along.

    A block takes as many vectors as a warp has lanes, or those that lie side by side, and fewer
    where units would have none. Of rows that are much longer than that it takes twice as many: so
    many more bytes of memory lie together."""
    kept = kept_axes(kernel)
    reductions = [let for let in kernel.body if isinstance(let.expr, Reduce | Fold)]
    if not kept or any(kept[-1] not in r.axes for r in reductions):
        return None
    vector = whole_part(kernel.sizes[kept[-1]], 16 // _widest_row(kernel, tensors))
    vectors, length = row_count(kernel) // vector, row_length(kernel)
    side = min(_WARP, 1 << max(0, vectors - 1).bit_length())
    threads = _ACROSS // side
    while threads > 1 and threads * 2 > length:
        threads //= 2
    together, units = _vectors_together(kernel, tensors, vector), target.limits.units
    strip = _strip(together)
    while side > _NARROWEST and 4 * threads <= length:
        if side <= strip and vectors >= side * units:
            break
        side, threads = side // 2, threads * 2
    if side == _WARP and together >= 4 * _WARP and threads > 1 and vectors >= 2 * _WARP * units:
        side, threads = 2 * side, threads // 2
    side = max(side, _WARP // threads)
    return RowPlan(header, vector, side, threads, accumulators=1, keep_row=False, across=True)


def _vectors_together(kernel: Kernel, tensors: Mapping[str, Tensor], vector: int) -> int:
    """Vectors of rows that lie side by side in memory."""
    strides = {name: row_major(tensors[name].shape) for name in kernel.inputs}
    return side_by_side(kernel, reduced_axes(kernel), strides) // vector


def _strip(together: int) -> int:
    """Vectors, at most a warp's, that whole rows of `together` are made of; at least a line, unless
    that is all there is."""
    strip = together & -together
    return min(_WARP, strip) if strip >= _LINE or strip == together > 0 else _WARP


def _fits_registers(kernel: Kernel, plan: RowPlan, target: Target, more: int = 0) -> bool:
    needed, given = row_registers(kernel, plan, target)
    most = _MOST_KEPT if kept_registers(kernel) else 2 * _MOST_KEPT
    elements = chunks_of(kernel, plan) * plan.vector * plan.rows_per_thread
    return needed + more <= given and elements <= most


def _single(kernel: Kernel, tensors: Mapping[str, Tensor], header: Header) -> RowPlan:
    axis = row_vector_axis(kernel)
    vector = _vector_along(kernel, tensors, axis, kernel.sizes[axis]) if axis is not None else 1
    return RowPlan(header, vector, _SINGLE, 1, accumulators=1, keep_row=False)


def _vector_along(kernel: Kernel, tensors: Mapping[str, Tensor], axis: str, extent: int) -> int:
    """Elements of one access along an axis: as many as all tensors allow, or, in a contraction,
    which reads its operands along different axes, as many as are worth unrolling."""
    width = 16 if kernel.roles is not None else vector_bytes(kernel, tensors)
    return whole_part(extent, vector_length(kernel, tensors, width, axis))


def vector_length(
    kernel: Kernel,
    tensors: Mapping[str, Tensor],
    width: int,
    axis: str | None,
    *,
    stored: bool = False,
) -> int:
    """Elements, along an axis, of the widest tensor, or of the widest that is `stored`, in an
    access of `width` bytes. Tensors that do not change along it do not count."""
    names = tensors_along(kernel, axis, stored=stored)
    sizes = [tensors[name].dtype.storage_bytes for name in names]
    return min(_WIDEST, max(1, width // max(sizes, default=4)))


def whole_part(extent: int, vector: int) -> int:
    """The largest half of a half of a vector that divides an extent."""
    while vector > 1 and extent % vector:
        vector //= 2
    return vector


def _widest_row(kernel: Kernel, tensors: Mapping[str, Tensor]) -> int:
    """Bytes of the widest element that is read at every point of a row."""
    reduced = set(reduced_axes(kernel))
    reads = [let for let in kernel.body if isinstance(let.expr, Read) and reduced & set(let.axes)]
    sizes = [let.dtype.storage_bytes for let in reads]
    return max(2, *sizes) if sizes else 4


def _suits_threads(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> bool:
    """Whether neighbouring threads should take neighbours in a row, and not neighbouring rows.

    They should where most of what is read is along the last axis of the row, and where rows alone
    are too few to fill the machine. Reads count by their elements: statistics of a sum over columns
    lie along it, but are few.
    """
    reduced = reduced_axes(kernel)
    along = across = 0
    outer = [axis.name for axis in kernel.axes if axis.name not in reduced and axis.size > 1]
    for let in kernel.body:
        if not isinstance(let.expr, Read) or not set(let.axes) & set(reduced):
            continue
        address = linear(let.expr.index, row_major(tensors[let.expr.tensor].shape))
        weight = math.prod(kernel.sizes[name] for name in let.axes)
        along += weight * (coefficient(address, reduced[-1]) == 1)
        # Lanes are neighbours: they ask for a line at once where the axis that they lie along is
        # the last one in memory.
        across += weight * (bool(outer) and coefficient(address, outer[-1]) == 1)
    enough = row_count(kernel) >= target.limits.units * _SINGLE
    if kernel.roles is not None:
        return along >= across and not enough and row_length(kernel) > 4 * _SINGLE
    return along > across or (along == across and not enough)
