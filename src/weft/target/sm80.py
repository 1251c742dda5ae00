"""NVIDIA A100 (SM80), by its data sheet: cp.async, ldmatrix, mma.sync."""

from __future__ import annotations

from typing import Final

from weft.target.target import Kind, Limits, Rates, Target

SM80: Final = Target(
    "sm80",
    Kind.GPU,
    frozenset({"cp.async", "ldmatrix", "mma.sync"}),
    Limits(
        units=108,
        vector_bits=128,
        shared_bytes_per_block=166_912,
        shared_bytes_per_unit=167_936,
        registers_per_unit=65_536,
        registers_per_thread=255,
        warps_per_unit=64,
        blocks_per_unit=32,
        threads_per_block=1024,
        cache_bytes=(196_608, 40 << 20),
    ),
    Rates(
        matrix_flops={
            "bf16": 312e12, "f16": 312e12, "f32": 19.5e12, "f64": 19.5e12,
            "si8": 624e12, "ui8": 624e12,
        },
        vector_flops={"f32": 19.5e12, "f64": 9.7e12, "si32": 19.5e12, "si64": 4.9e12},
        bandwidth=1.94e12,
        launch_seconds=2.5e-6,
    ),
)  # fmt: skip
