"""Occupancy and efficiency of a kernel on a GPU (document 2, sections 5 and 6), by which the
estimate of its time is divided. A CPU's loops say more (`codegen.cpu.price`).
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.foundation.records import dataclass
from weft.plan.gpu_price import plan_seconds
from weft.plan.ir import MmaPlan, Plan
from weft.plan.verify import threads_of_accumulators, threads_of_block
from weft.region.cost import kernel_work
from weft.region.forms.multiplied import operand_bytes
from weft.region.ir import Kernel, Tensor
from weft.target import roofline
from weft.target.roofline import Usage, Work
from weft.target.target import Target


@dataclass(frozen=True)
class Estimate:
    """What a kernel does, how it uses its machine, and the seconds that should take."""

    work: Work
    usage: Usage
    seconds: float


def estimate(kernel: Kernel, tensors: Mapping[str, Tensor], plan: Plan, target: Target) -> Estimate:
    """The time of a kernel on a GPU: by what is known of plans of its kind, or by document 2."""
    work = kernel_work(kernel, tensors, target)
    usage = _usage(plan, target, operand_bytes(kernel) if kernel.roles is not None else 2)
    seconds = plan_seconds(kernel, tensors, plan, target)
    if seconds is None:
        seconds = roofline.time_estimate(target, work, usage)
    return Estimate(work, usage, seconds + target.rates.launch_seconds)


def _usage(plan: Plan, target: Target, element_bytes: int) -> Usage:
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
