"""The cost model of GPU kernels: the time of a kernel under a plan, in seconds.

A kernel is as fast as memory, or as its arithmetic, wherever threads are many enough to wait for
one another's data. Plans differ in how far they are from that:

- products and attention by tiles, for which their own models speak (`target.matrix_time`,
  `plan.attention`);
- multiply-adds of f32 by how often a tile reads what it multiplies from shared memory;
- maps and rows by what a unit has under way: a warp lives for about a microsecond, from its first
  address to its last store, and a unit has room for 64 of them; a block costs a unit about 80 ns,
  however small it is.

Lifetimes were read from the plans of 21 kernels on an H200 (`benchmarks/price.py --gpu`), of which
the larger of two times hides the other but for a fourth root.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from weft.foundation.errors import InternalError
from weft.plan.attention import attention_seconds
from weft.plan.group_tiles import group_seconds
from weft.plan.ir import AttentionPlan, MapPlan, MmaPlan, Plan, RowPlan, StagedPlan
from weft.plan.planes import planes_seconds
from weft.plan.rows import chunks_of, row_count, row_length, rows_together
from weft.plan.shared_slides import columns_of_block
from weft.plan.slides import place_of
from weft.plan.staged import strip_of
from weft.plan.tensor_cores import product_seconds
from weft.plan.walked_rows import as_rows
from weft.region.cost import kernel_work, slide_operations
from weft.region.forms.grouped import find_groups
from weft.region.forms.shared_slides import Cut, SharedSlide
from weft.region.ir import Fold, Kernel, Read, Reduce, Tensor, problem_of
from weft.region.shared_price import SharedShape, shared_seconds
from weft.region.slide_price import Shape, slide_seconds
from weft.target import roofline
from weft.target.target import Target

_BLOCK: Final = 80e-9
"""Seconds for which a unit takes in no other block."""
_START: Final = 0.2e-6
_READ: Final = 0.55e-6
"""Of the life of a warp of a map, what it begins with, and what each operand adds."""
_ROW: Final = 0.4e-6
_REDUCED: Final = 0.4e-6
_MET: Final = 0.4e-6
"""Of a row's: what it begins with, and what each reduction adds, within a warp and between
several."""
_SHARED: Final = 24.0
"""Rows and columns of a tile for which loads from shared memory take as long as multiplying."""
_SHARP: Final = 4
"""Times t of things that happen side by side take (sum of t^4)^(1/4) together: the largest where
one is much larger, and 2^(1/4) = 1.19 times as long where two are equal."""


def plan_seconds(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: Plan, target: Target
) -> float | None:
    """The time of a kernel under a plan, without its launch; None where nothing is known of it."""
    match plan:
        case MmaPlan(arch="sm90"):
            return product_seconds(kernel, plan, target)
        case MmaPlan(arch="sm80"):
            return None
        case MmaPlan(arch="codes"):
            return kernel_work(kernel, tensors, target).bytes / target.rates.bandwidth
        case MmaPlan(arch="planes"):
            return planes_seconds(kernel, tensors, target)
        case MmaPlan(arch="groups"):
            found = find_groups(kernel, problem_of(kernel))
            return (
                None if found is None else group_seconds(found, plan.tile, plan.warp_tile, target)
            )
        case MmaPlan():
            return _multiply_adds(kernel, tensors, plan, target)
        case AttentionPlan():
            return attention_seconds(kernel, plan, target)
        case MapPlan():
            return _map_seconds(kernel, tensors, plan, target)
        case RowPlan():
            return _row_seconds(kernel, tensors, plan, target)
        case StagedPlan():
            return _slide(kernel, tensors, plan, target)
    return None


def _multiply_adds(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: MmaPlan, target: Target
) -> float:
    assert kernel.roles is not None
    work, limits = kernel_work(kernel, tensors, target), target.limits
    sizes = [
        math.prod(kernel.sizes[name] for name in axes)
        for axes in (kernel.roles.m, kernel.roles.n, kernel.roles.k)
    ]
    rows, columns, _ = plan.tile
    over = math.prod(kernel.sizes.values()) // math.prod(sizes)
    tiles = over * -(-sizes[0] // rows) * -(-sizes[1] // columns)
    full = tiles * rows * columns / (over * sizes[0] * sizes[1])
    # A step of a tile loads rows + columns numbers for rows × columns products: 1 / rows + 1 /
    # columns for each.
    computing = work.matrix_seconds * full * (1 + _SHARED * (1 / rows + 1 / columns))
    # Units that have no tile in the last wave wait for those that have.
    computing /= roofline.quantisation(tiles, limits.units)
    return _overlap_seconds(computing, work.bytes / target.rates.bandwidth)


def _map_seconds(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: MapPlan, target: Target
) -> float:
    points = math.prod(kernel.sizes.values())
    blocks = -(-points // max(1, plan.grain))
    reads = sum(isinstance(let.expr, Read) for let in kernel.body)
    life = _START + _READ * max(1, reads)
    return _stream_seconds(kernel, tensors, target, blocks, plan.threads, life)


def _row_seconds(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: RowPlan, target: Target
) -> float:
    rows = as_rows(kernel) if plan.walks else kernel
    together = rows_together(plan) * (plan.vector if plan.across else 1)
    blocks = -(-row_count(rows) // together) * plan.blocks_per_row
    reductions = sum(isinstance(let.expr, Reduce | Fold) for let in kernel.body)
    each = _REDUCED + (_MET if plan.threads > roofline.WARP else 0)
    life = _ROW + each * max(1, reductions)
    if not plan.across:
        lanes = plan.threads * plan.blocks_per_row * plan.vector
        # Lanes that have nothing of the row live as long as the others.
        life *= chunks_of(rows, plan) * lanes / row_length(rows)
    threads = plan.threads * plan.rows_per_block
    return _stream_seconds(kernel, tensors, target, blocks, threads, life)


def _slide(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: StagedPlan, target: Target
) -> float:
    slide, rows = place_of(kernel, tensors, plan, target), strip_of(kernel, plan)
    if isinstance(slide, str):
        raise InternalError(f"kernel {kernel.name} has no place on a GPU: {slide}")
    each = slide_operations(slide, tensors, target)
    if isinstance(slide, SharedSlide):
        cut = Cut(plan.vector, plan.unroll, columns_of_block(kernel, plan, slide))
        computing = shared_seconds(slide, each, target, SharedShape(cut, rows))
    else:
        computing = slide_seconds(slide, each, target, Shape(plan.vector, rows))
    return _overlap_seconds(
        computing, kernel_work(kernel, tensors, target).bytes / target.rates.bandwidth
    )


def _stream_seconds(
    kernel: Kernel,
    tensors: Mapping[str, Tensor],
    target: Target,
    blocks: int,
    threads: int,
    life: float,
) -> float:
    """Blocks of threads that each live for so long."""
    work, limits = kernel_work(kernel, tensors, target), target.limits
    # Blocks come in waves of as many as there is room for, each as long as a life, one at least: a
    # unit whose warps all wait gains nothing from being half empty.
    on_a_unit = blocks / limits.units
    room = max(1, limits.warps_per_unit * roofline.WARP // threads)
    # A block comes when there is room for all of it, and stays until its last warp is done.
    life *= 1 + threads / (4 * limits.warps_per_unit * roofline.WARP)
    return _overlap_seconds(
        roofline.time_estimate(target, work),
        max(1.0, on_a_unit / room) * life,
        on_a_unit * _BLOCK,
    )


def _overlap_seconds(*times: float) -> float:
    """The largest of times that overlap, and more where others are close to it."""
    largest = max(times)
    if not largest:
        return 0.0
    return float(largest * sum((time / largest) ** _SHARP for time in times) ** (1 / _SHARP))
