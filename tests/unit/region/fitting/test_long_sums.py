"""How many parts long sums on a GPU are cut into: one wave of blocks, or several where every part
is long anyway; with little left over where no divisor of the length is near."""

from __future__ import annotations

import math

import pytest

from tests.gpu_programs import through_stages
from weft.codegen.gpu.ir.kernel import walk
from weft.codegen.gpu.ir.values import LoadVector
from weft.ptir import Builder
from weft.region.ir import Kernel

CASES: dict[str, tuple[str, tuple[int, ...], int, int]] = {
    "very long": ("f32", (1 << 29,), 0, 4096),
    "very long and narrow": ("bf16", (1 << 29,), 0, 4096),
    "long": ("f32", (1 << 26,), 0, 512),
    "two very long rows": ("f32", (2, 1 << 28), 1, 2048),
    "columns of a large matrix": ("f32", (1 << 24, 64), 0, 512),
}


LEFT_OVER: dict[str, tuple[str, tuple[int, ...], int, tuple[int, int, int]]] = {
    "prime": ("f32", (100_000_007,), 0, (500, 200_000, 7)),
    "a power of two and one": ("f32", (268_435_457,), 0, (4096, 65_536, 1)),
    "odd divisors": ("f32", (3**17,), 0, (510, 253_216, 3)),
    "columns": ("bf16", (1_000_003, 3), 0, (500, 2000, 3)),
    "two rows": ("f32", (2, 1_000_003), 1, (250, 4000, 3)),
}
"""With the parts, the length of each and what is left over."""


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


@pytest.mark.parametrize("name", LEFT_OVER)
def test_parts_that_leave_something_over(name: str) -> None:
    dtype, shape, axis, (parts, length, left) = LEFT_OVER[name]
    assert parts * length + left == shape[axis]
    first, second = kernels(dtype, shape, axis)
    of_result = math.prod(size for place, size in enumerate(shape) if place != axis)
    assert first.sizes["part"] == parts
    assert math.prod(first.sizes.values()) == parts * length * of_result
    assert math.prod(second.sizes.values()) == (parts + left) * of_result


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_parts_are_read_in_whole_vectors(dtype: str) -> None:
    """All of them begin where vectors do, whatever the length of the sum."""
    b = Builder()
    program = b.build(b.reduce_sum(b.param(dtype, [100_000_007]), [0]))
    code = through_stages(program, "sm90")["gpu"]
    found = code.kernels[code.launches["row0_parts"].symbol]
    loads = [s for s in walk(found.body) if isinstance(s, LoadVector)]
    assert found.grid == 500
    assert {len(load.names) * load.dtype.storage_bytes for load in loads} == {16}


def test_short_sums_stay_whole() -> None:
    assert len(kernels("f32", (256,), 0)) == 1


def test_a_sum_of_no_elements_side_by_side_is_not_cut() -> None:
    """Nothing is stored along an axis of size 0."""
    b = Builder("nothing")
    x = b.param("f32", [3, 0, 5000, 19])
    made = through_stages(b.build(b.reduce_sum(x, [2, 3])), "sm90")["region"].kernels
    assert len(made) <= 1
