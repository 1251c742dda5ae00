"""How well a kernel uses its machine under a plan: `occ` and the efficiency of document 2's
section 6, which its estimate of the time divides by.

On a GPU both follow from section 5's formulas. On a CPU the *units* are cores: occupancy is the
share of them that have a piece to work on, and efficiency is how much of a vector, and of the two
units that multiply, the inner loop keeps busy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.plan.ir import MmaPlan, Plan
from weft.plan.verify import threads_of_accumulators, threads_of_block
from weft.region.cost import kernel_work
from weft.region.forms.multiplied import operand_bytes
from weft.region.ir import Kernel, Tensor
from weft.target import roofline
from weft.target.roofline import Usage, Work
from weft.target.target import Kind, Target


@dataclass(frozen=True)
class Estimate:
    """What a kernel does, how it uses its machine, and the seconds that should take."""

    work: Work
    usage: Usage
    seconds: float


def estimate(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: Plan, target: Target, pieces: int
) -> Estimate:
    """The time of a kernel that is cut into so many pieces."""
    work = kernel_work(kernel, tensors, target)
    usage = usage_of(kernel, plan, target, pieces)
    seconds = roofline.time_estimate(target, work, usage) + target.rates.launch_seconds
    return Estimate(work, usage, seconds)


def usage_of(kernel: Kernel, plan: Plan, target: Target, pieces: int) -> Usage:
    """Occupancy and efficiency of a plan."""
    if target.kind is Kind.GPU:
        return _on_gpu(plan, target, operand_bytes(kernel) if kernel.roles is not None else 2)
    busy = roofline.quantisation(pieces, target.limits.units)
    return Usage(busy, _efficiency(kernel, plan, target))


def _on_gpu(plan: Plan, target: Target, element_bytes: int) -> Usage:
    if not isinstance(plan, MmaPlan):
        return roofline.FULL
    limits = target.limits
    shared = roofline.shared_bytes_per_block(plan.tile, element_bytes, plan.stages)
    workers = threads_of_accumulators(plan)
    held = roofline.accumulator_registers(plan.warp_tile, workers)
    threads = threads_of_block(plan) * workers // roofline.WARP
    blocks = roofline.blocks_per_unit(
        limits, shared, roofline.registers_per_thread(held), max(1, threads)
    )
    # One block of specialised warps keeps matrix units as busy as many small ones.
    busy = roofline.occupancy(limits, max(1, blocks), limits.warps_per_unit)
    return Usage(busy, roofline.pipeline_efficiency(plan.stages))


def _efficiency(kernel: Kernel, plan: Plan, target: Target) -> float:
    """The share of multiplications and additions among what the inner loop issues."""
    lanes = max(1, target.limits.vector_bits // 32)
    if not isinstance(plan, MmaPlan):
        width = getattr(plan, "vector", lanes)
        return min(1.0, max(1, width) / lanes)
    width = plan.vectorize.width if plan.vectorize else 1
    rows, vectors = plan.warp_tile[0], max(1, plan.warp_tile[1] // width)
    products = rows * vectors
    return min(1.0, width / lanes) * products / (products + rows / width + vectors)
