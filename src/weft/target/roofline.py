"""The cost model: document 2's sections 5 and 6, formula by formula.

    smem_per_CTA  = (BM*BK + BK*BN) * sizeof(T) * stages + epilogue bytes
    regs_per_thr  = base + accumulators + epilogue
    cta_per_SM    = min(smem limit / smem, register limit / (regs * threads), block limit)
    occ           = min(1, cta_per_SM * warps_per_CTA / max warps)
    pipeline_eff  = 1 - 1/stages
    time          = max(FLOPs / (peak * occ * eff), Bytes / (bandwidth * occ))

What fusing saves is the time of the kernels without it less that of those with it. On a CPU, the
slower of computing and moving does not hide all of the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.foundation.records import dataclass
from weft.target.target import Limits, Target

BASE_REGISTERS = 40
"""Addresses, loop counters and fragments beside the accumulators."""
MOST_REGISTERS = 255
"""That an instruction can name."""
WARP = 32


def shared_bytes_per_block(
    tile: tuple[int, int, int], element_bytes: int, stages: int, epilogue_bytes: int = 0
) -> int:
    """`smem_per_CTA`."""
    rows, columns, depth = tile
    return (rows * depth + depth * columns) * element_bytes * stages + epilogue_bytes


def accumulator_registers(tile: tuple[int, int], threads: int) -> int:
    """32-bit accumulators each of `threads` threads holds for a tile."""
    return math.ceil(tile[0] * tile[1] / threads)


def registers_per_thread(accumulators: int, epilogue: int = 0, base: int = BASE_REGISTERS) -> int:
    """`regs_per_thr`."""
    return base + accumulators + epilogue


def registers_given(limits: Limits, threads: int) -> int:
    """Registers that each of so many threads of a unit has: they are given out in eights."""
    return min(MOST_REGISTERS, limits.registers_per_unit // max(1, threads) // 8 * 8)


def blocks_per_unit(limits: Limits, shared_bytes: int, registers: int, threads: int) -> int:
    """`cta_per_SM`: how many blocks one unit holds at a time; 0 where not even one fits."""
    # Blocks do not share what they were given: whatever runs out first is what limits them.
    by_shared = limits.shared_bytes_per_unit // shared_bytes if shared_bytes else 1 << 30
    by_registers = limits.registers_per_unit // (registers * threads)
    return min(by_shared, by_registers, limits.blocks_per_unit)


def occupancy(limits: Limits, blocks: int, warps_per_block: int) -> float:
    """`occ`."""
    return min(1.0, blocks * warps_per_block / limits.warps_per_unit)


def pipeline_efficiency(stages: int) -> float:
    """`pipeline_eff`."""
    return 1.0 - 1.0 / stages


@dataclass(frozen=True)
class Usage:
    """How well a kernel can use its machine: both numbers in (0, 1]."""

    occupancy: float = 1.0
    efficiency: float = 1.0


@dataclass(frozen=True)
class Work:
    """What a kernel does: operations by kind of unit, and bytes to and from memory."""

    matrix_seconds: float = 0.0
    """Operations of contractions, over the machine's rate for their dtype."""
    vector_seconds: float = 0.0
    bytes: int = 0
    operations: int = 0
    """All operations, of whatever unit: document 2's FLOPs."""

    def __add__(self, other: Work) -> Work:
        return Work(
            self.matrix_seconds + other.matrix_seconds,
            self.vector_seconds + other.vector_seconds,
            self.bytes + other.bytes,
            self.operations + other.operations,
        )


FULL = Usage()


def time_estimate(target: Target, work: Work, usage: Usage = FULL) -> float:
    """`time_est`: computing and moving, together."""
    computing = (work.matrix_seconds + work.vector_seconds) / (usage.occupancy * usage.efficiency)
    moving = work.bytes / (target.rates.bandwidth * usage.occupancy)
    return together(target, (computing, moving))


def together(target: Target, parts: Sequence[float]) -> float:
    """The time of what is done at once: that of the busiest part, and what it leaves to be seen of
    the others."""
    busiest = max(parts)
    # `seen` was measured on a CPU (`target/cpu.py`), and is 0 on a GPU, whose other warps go on.
    return busiest + target.rates.seen * (sum(parts) - busiest)


def waves(tiles: int, slots: int) -> int:
    """How often all slots are filled to run every tile."""
    return -(-tiles // slots)


def quantisation(tiles: int, slots: int) -> float:
    """The share of slots that have work, over all waves."""
    return tiles / (waves(tiles, slots) * slots) if tiles else 1.0
