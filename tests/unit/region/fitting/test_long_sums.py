"""How many parts long sums on a GPU are cut into: one wave of blocks, or several where every part
is long anyway."""

from __future__ import annotations

import math

import pytest

from tests.gpu_programs import through_stages
from weft.ptir import Builder
from weft.region.ir import Kernel

CASES: dict[str, tuple[str, tuple[int, ...], int, int]] = {
    "very long": ("f32", (1 << 29,), 0, 4096),
    "very long and narrow": ("bf16", (1 << 29,), 0, 4096),
    "long": ("f32", (1 << 26,), 0, 512),
    "two very long rows": ("f32", (2, 1 << 28), 1, 2048),
    "columns of a large matrix": ("f32", (1 << 24, 64), 0, 512),
}


def kernels(dtype: str, shape: tuple[int, ...], axis: int) -> tuple[Kernel, ...]:
    b = Builder()
    program = b.build(b.reduce_sum(b.param(dtype, list(shape)), [axis]))
    made: tuple[Kernel, ...] = through_stages(program, "sm90")["region"].kernels
    return made


@pytest.mark.parametrize("name", CASES)
def test_parts(name: str) -> None:
    dtype, shape, axis, parts = CASES[name]
    first, second = kernels(dtype, shape, axis)
    of_result = math.prod(size for place, size in enumerate(shape) if place != axis)
    assert math.prod(second.sizes.values()) == parts * of_result
    assert math.prod(first.sizes.values()) == math.prod(shape)


def test_short_sums_stay_whole() -> None:
    assert len(kernels("f32", (256,), 0)) == 1
