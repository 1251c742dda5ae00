"""How many parts long sums are cut into: on a GPU one wave of blocks, or several where every part
is long anyway; with little left over where no divisor of the length is near; on a CPU enough for
its threads."""

from __future__ import annotations

import math

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from tests.support.gpu_machine import MachineBackend, machine
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu.ir.kernel import walk
from weft.codegen.gpu.ir.values import LoadVector
from weft.foundation.dtypes import BF16
from weft.foundation.errors import SpecViolation
from weft.ptir import Builder, Program
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


def kernels(
    dtype: str, shape: tuple[int, ...], axis: int, target: str = "sm90"
) -> tuple[Kernel, ...]:
    b = Builder()
    program = b.build(b.reduce_sum(b.param(dtype, list(shape)), [axis]))
    made: tuple[Kernel, ...] = through_stages(program, target)["region"].kernels
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


def looked_up(rows: int, columns: int, table: int = 50) -> Program:
    """The gradient of a norm's weights behind an embedding: a sum over the rows of a table that
    were looked up, with statistics of each."""
    b = Builder("looked_up")
    x, ids = b.param("bf16", [rows, columns]), b.param("si64", [rows])
    words, mean, size = b.param("bf16", [table, columns]), *(b.param("f32", [rows]) for _ in "ab")
    found = b.cast(b.take(words, ids), "f32")
    mean, size = (b.broadcast_to(b.reshape(v, [rows, 1]), [rows, columns]) for v in (mean, size))
    return b.build(b.reduce_sum((found - mean) * size * b.cast(x, "f32"), [0]))


def test_sums_of_what_is_looked_up_are_cut() -> None:
    """Columns side by side, however many statistics are read along them."""
    stages = through_stages(looked_up(4096, 256), "sm90")
    first, _ = stages["region"].kernels
    assert first.sizes["part"] == 16
    assert stages["plan"].of(first.name).across


def test_parts_of_what_is_looked_up_leave_nothing_over() -> None:
    made = through_stages(looked_up(4099, 256), "sm90")["region"].kernels
    assert len(made) == 1


@pytest.mark.parametrize("wrong", one_in(2, [None, 4000]))
def test_parts_of_what_is_looked_up_agree(wrong: int | None) -> None:
    """Also on which place is wrong, if one is."""
    program, rng = looked_up(4096, 64), np.random.default_rng(0)
    ids = rng.integers(0, 50, 4096)
    if wrong is not None:
        ids[wrong] = 50
    x, words = (rng.standard_normal(shape).astype(BF16.numpy) for shape in ((4096, 64), (50, 64)))
    mean, size = rng.standard_normal((2, 4096)).astype(np.float32)
    inputs = [x, ids, words, mean, size]
    with machine() as gpu:
        if wrong is None:
            (got,) = weft.run(program, inputs, backend=MachineBackend(gpu))
            (want,) = weft.run(program, inputs, backend="reference")
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
            return
        for backend in (MachineBackend(gpu), "reference"):
            with pytest.raises(SpecViolation, match=f"{wrong}") as told:
                weft.run(program, inputs, backend=backend)
            assert told.value.code == "GatherIndexOutOfBounds"


@pytest.mark.parametrize(
    ("dtype", "shape", "axis", "parts"),
    [
        ("f32", (1 << 22,), 0, 32),
        ("f32", (3, 1 << 20), 1, 8),
        ("f32", (1 << 19,), 0, 8),
        ("si8", (1 << 22,), 0, 16),
        ("f32", (4_000_037,), 0, 32),
    ],
)
def test_few_long_sums_have_parts_for_the_threads_of_a_cpu(
    dtype: str, shape: tuple[int, ...], axis: int, parts: int
) -> None:
    first, _ = kernels(dtype, shape, axis, "cpu")
    assert parts / 2 <= first.sizes["part"] <= parts * 1.25


@pytest.mark.parametrize(("shape", "axis"), [((1 << 17,), 0), ((64, 1 << 20), 1)])
def test_sums_that_are_short_or_many_stay_whole_on_a_cpu(shape: tuple[int, ...], axis: int) -> None:
    assert len(kernels("f32", shape, axis, "cpu")) == 1
