"""How many threads share a row, how many blocks a unit should hold, how many elements a thread of a
map takes: the choices that keep memory busy, each as it was measured to be best."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import pytest

from tests.support import kernels
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu import ir
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.spelling.print import cuda
from weft.driver.stages.compilation import Compilation
from weft.foundation.dtypes import BF16, F32, DType
from weft.plan.from_region import plan_kernel
from weft.plan.ir import MapPlan, RowPlan
from weft.plan.rows import resident_blocks
from weft.ptir import Builder, Value
from weft.region.ir import Module
from weft.target.sm90 import SM90

Rows = Callable[[int, int, DType], Module]


def row_plan(module: Module) -> RowPlan:
    (kernel,) = module.kernels
    plan = plan_kernel(kernel, module.tensors, SM90)
    assert isinstance(plan, RowPlan)
    return plan


def norm(rows: int, columns: int, dtype: DType) -> Module:
    """A layer norm whose weights have the dtype of its rows."""
    b = Builder()
    x, scale, shift = (b.param(dtype.name, shape) for shape in ([rows, columns], *[[columns]] * 2))
    result = b.layer_norm(x, scale, shift, epsilon=1e-5, feature_axis=1)
    found = through_stages(b.build(result), "sm90")["region"]
    assert isinstance(found, Module)
    return found


STREAMS: dict[tuple[Rows, int, int, DType], tuple[int, int]] = {
    (kernels.softmax, 131_072, 1024, F32): (128, 1),
    (kernels.softmax, 131_072, 1024, BF16): (64, 2),
    (kernels.softmax, 32_768, 4096, F32): (256, 1),
    (kernels.softmax, 32_768, 4096, BF16): (128, 1),
    (kernels.layer_norm, 8192, 12_288, F32): (512, 1),
    # A vector a thread.
    (kernels.softmax, 1_048_576, 64, BF16): (8, 16),
    (kernels.softmax, 1_048_576, 64, F32): (16, 8),
    # A row with two weights is better a single warp's.
    (norm, 131_072, 1024, BF16): (32, 4),
    (norm, 131_072, 1024, F32): (128, 1),
}


@pytest.mark.parametrize(("case", "form"), STREAMS.items())
def test_a_stream_of_rows_comes_in_blocks_of_few_bytes(
    case: tuple[Rows, int, int, DType], form: tuple[int, int]
) -> None:
    build, rows, columns, dtype = case
    plan = row_plan(build(rows, columns, dtype))
    assert (plan.threads, plan.rows_per_block, plan.rows_per_thread) == (*form, 1)


def test_few_rows_are_a_warp_s_in_small_blocks() -> None:
    """Blocks that all run at once wait for their warps, not for memory."""
    plan = row_plan(kernels.softmax(4096, 1024))
    assert (plan.threads, plan.rows_per_block, plan.rows_per_thread) == (32, 2, 1)


@pytest.mark.parametrize(("dtype", "form"), [(F32, (16, 8, 2)), (BF16, (8, 16, 2))])
def test_rows_between_few_and_a_steady_stream_come_two_to_a_thread(
    dtype: DType, form: tuple[int, int, int]
) -> None:
    plan = row_plan(norm(65_536, 256, dtype))
    assert (plan.threads, plan.rows_per_block, plan.rows_per_thread) == form


def test_long_rows_that_are_only_added_up_leave_room_for_another_block() -> None:
    b = Builder()
    program = b.build(b.reduce_sum(b.param("bf16", [4096, 65_536]), [1]))
    (plan,) = through_stages(program, "sm90")["plan"].plans.values()
    assert (plan.threads, plan.keep_row, plan.accumulators) == (512, True, 1)


@pytest.mark.parametrize(("name", "partial"), [("reduce_sum", 4), ("reduce_max", 1)])
def test_short_sums_of_several_warps_have_partial_results(name: str, partial: int) -> None:
    b = Builder()
    program = b.build(getattr(b, name)(b.param("bf16", [8192, 12_288]), [1]))
    (plan,) = through_stages(program, "sm90")["plan"].plans.values()
    assert (plan.threads, plan.accumulators) == (512, partial)


def test_a_unit_short_of_registers_takes_smaller_blocks() -> None:
    """Two blocks with rows of 24 KB leave memory idle while one of them computes."""
    assert row_plan(kernels.softmax(8192, 12_288, BF16)).threads == 256


RESIDENT: dict[tuple[Rows, int, int, DType], int] = {
    (kernels.softmax, 8192, 12_288, BF16): 3,
    (kernels.softmax, 8192, 12_288, F32): 2,
    # All 2048 blocks at once, sixteen to a unit.
    (kernels.softmax, 4096, 1000, BF16): 16,
    # As many as are wanted find room without being asked for.
    (kernels.softmax, 131_072, 1024, F32): 1,
    (kernels.softmax, 32_768, 4096, F32): 1,
}


@pytest.mark.parametrize(("case", "blocks"), RESIDENT.items())
def test_registers_are_left_for_blocks_that_keep_memory_busy(
    case: tuple[Rows, int, int, DType], blocks: int
) -> None:
    build, rows, columns, dtype = case
    module = build(rows, columns, dtype)
    plan = row_plan(module)
    assert resident_blocks(module.kernels[0], plan, SM90) == blocks
    threads = plan.threads * plan.rows_per_block
    assert SM90.limits.registers_per_unit // (max(blocks, 1) * threads) >= 64


@pytest.mark.parametrize(
    ("rows", "columns", "form"),
    [(16_384, 128_256, (1024, 1)), (8192, 50_304, (512, 1)), (264, 128_256, (512, 8))],
)
def test_many_long_rows_have_a_block_each_and_few_a_cluster(
    rows: int, columns: int, form: tuple[int, int]
) -> None:
    b = Builder()
    program = b.build(b.softmax(b.param("bf16", [rows, columns])))
    (plan,) = through_stages(program, "sm90")["plan"].plans.values()
    assert (plan.threads, plan.blocks_per_row) == form


@pytest.mark.parametrize("columns", [65_536, 1 << 20])
def test_rows_of_clusters_and_rows_read_again_ask_for_nothing(columns: int) -> None:
    module = kernels.softmax(4096, columns)
    assert resident_blocks(module.kernels[0], row_plan(module), SM90) == 1


# -- programs --------------------------------------------------------------------------------------

Build = Callable[[Builder, Value], Value]


def compiled(dtype: str, shape: tuple[int, ...], build: Build) -> Compilation:
    builder = Builder("small")
    program = builder.build(build(builder, builder.param(dtype, list(shape))))
    return through_stages(program, "sm90")


def loads(dtype: str, shape: tuple[int, ...], build: Build) -> list[values.LoadVector]:
    (kernel,) = compiled(dtype, shape, build)["gpu"].kernels.values()
    return [found for found in ir.walk(kernel.body) if isinstance(found, values.LoadVector)]


@pytest.mark.parametrize("columns", [64, 1024])
def test_rows_that_only_a_reduction_needs_bypass_the_cache(columns: int) -> None:
    found = loads("bf16", (4096, columns), lambda b, x: b.reduce_sum(x, [1]))
    assert found
    assert all(load.once for load in found)


@pytest.mark.parametrize(("rows", "lasting"), [(4096, False), (65_536, False), (131_072, True)])
def test_rows_whose_results_are_stored_stay_in_the_shared_cache(rows: int, lasting: bool) -> None:
    """Where they are so many that nothing of them would be left for the next kernel anyway."""
    found = loads("bf16", (rows, 1024), lambda b, x: b.softmax(x))
    assert found
    assert {(load.once, load.lasting) for load in found} == {(False, lasting)}


MAPS: dict[str, tuple[str, tuple[int, ...], Build, tuple[int, int, int]]] = {
    # Results in vectors of 16 bytes, for which wider operands are read by several accesses.
    "narrowing": ("f32", (65_536, 1024), lambda b, x: b.cast(x, "bf16"), (8, 1, 128)),
    "widening": ("bf16", (65_536, 1024), lambda b, x: b.cast(x, "f32"), (4, 1, 128)),
    "large": ("bf16", (65_536, 1024), lambda b, x: x + x, (8, 1, 128)),
    # Two vectors a thread where others beside those of the stream are waited for.
    "scaled": ("f32", (65_536, 1024), lambda b, x: scaled(b, x), (4, 2, 128)),
    "gathered": ("f32", (65_536, 1024), lambda b, x: chosen(b, x, 8192), (4, 2, 128)),
    "few": ("f32", (1024, 1024), lambda b, x: scaled(b, x), (4, 1, 128)),
    "dropped": ("bf16", (65_536, 1024), lambda b, x: dropped(b, x), (8, 2, 128)),
    # Several where each moves few bytes, if enough blocks are left.
    "odd": ("f32", (65_537, 1023), lambda b, x: b.exp(x), (1, 4, 128)),
    "narrow and odd": ("bf16", (65_537, 1022), lambda b, x: b.exp(x), (2, 4, 128)),
    "odd rows, joined": ("bf16", (65_536, 1023), lambda b, x: b.exp(x), (8, 1, 128)),
    "few and odd": ("f32", (129, 1023), lambda b, x: b.exp(x), (1, 1, 128)),
}


def scaled(b: Builder, x: Value) -> Value:
    """Each column by a number of its own."""
    return x * b.broadcast_to(b.param("f32", [1024]), x.shape)


def dropped(b: Builder, x: Value) -> Value:
    drawn = b.rng_uniform(shape=x.shape, dtype="f32")
    return b.select(b.compare(drawn, 0.1, "greater"), x, 0.0)


def chosen(b: Builder, x: Value, count: int) -> Value:
    """So many rows of x."""
    return b.take(x, b.param("si32", [count]))


@pytest.mark.parametrize("name", MAPS)
def test_maps(name: str) -> None:
    dtype, shape, build, form = MAPS[name]
    (plan,) = compiled(dtype, shape, build)["plan"].plans.values()
    assert isinstance(plan, MapPlan)
    assert (plan.vector, plan.unroll, plan.threads) == form
    assert plan.grain == prod(form)


def joined(b: Builder, x: Value) -> Value:
    return b.concat([x, b.param("f32", x.shape)], axis=1)


LASTING: dict[str, tuple[int, Build, set[bool]]] = {
    "a copy": (65_536, lambda b, x: b.stop_gradient(x), {True}),
    "two halves of the result": (32_768, joined, {True}),
    "beside what all rows share": (65_536, scaled, {True, False}),
    "not much more than the cache": (32_768, lambda b, x: b.stop_gradient(x), {False}),
    "more stored than read": (65_536, lambda b, x: b.cast(x, "f64"), {True}),
    "a transpose": (65_536, lambda b, x: b.transpose(x, [1, 0]), {True}),
    "rows that may come again": (65_536, lambda b, x: chosen(b, x, 65_536), {False}),
}


@pytest.mark.parametrize("name", LASTING)
def test_streams_of_many_times_the_cache_last(name: str) -> None:
    rows, build, lasting = LASTING[name]
    assert {found.lasting for found in loads("f32", (rows, 1024), build)} == lasting


@pytest.mark.parametrize(("count", "passing"), [(65_536, True), (8192, False)])
def test_many_gathered_rows_leave_the_cache_to_those_they_are_from(
    count: int, passing: bool
) -> None:
    code = compiled("f32", (50_000, 1024), lambda b, x: chosen(b, x, count))["gpu"]
    (kernel,) = code.kernels.values()
    stores = [found for found in ir.walk(kernel.body) if isinstance(found, values.StoreVector)]
    assert {found.passing for found in stores} == {passing}
    assert ("put_words_passing(v" in cuda(kernel)) == passing
