"""NVIDIA H200 (SM90): TMA, mbarrier, wgmma. Rates are what kernels were measured to reach.

bf16 is the rate of large contractions on random data, under the power cap (the data sheet says
989.5e12); bandwidth is that of a device copy (the data sheet says 4.8e12).
"""

from __future__ import annotations

from typing import Final

from weft.target.target import Kind, Limits, Rates, Target

SM90: Final = Target(
    "sm90",
    Kind.GPU,
    frozenset({
        "cp.async", "ldmatrix", "mma.sync", "tma", "mbarrier", "wgmma", "cluster", "griddepcontrol",
    }),
    Limits(
        units=132,
        vector_bits=128,
        shared_bytes_per_block=232_448,
        shared_bytes_per_unit=233_472,
        registers_per_unit=65_536,
        registers_per_thread=255,
        warps_per_unit=64,
        blocks_per_unit=32,
        threads_per_block=1024,
        cache_bytes=(262_144, 60 << 20),
        clusters=((2, 66), (4, 30), (8, 15), (16, 7)),
    ),
    Rates(
        matrix_flops={
            "bf16": 780e12, "f16": 780e12, "fp8_e4m3": 1500e12, "fp8_e5m2": 1500e12,
            "f32": 51e12, "f64": 60e12, "si8": 1500e12, "ui8": 1500e12,
        },
        vector_flops={"f32": 60e12, "f64": 30e12, "si32": 30e12, "si64": 8e12},
        bandwidth=4.3e12,
        launch_seconds=2e-6,
    ),
)  # fmt: skip
