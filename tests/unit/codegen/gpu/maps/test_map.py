"""The map template on the dialect's interpreter: it agrees with playback for every vector, grain
and number of threads; and faults that were planted are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support import kernels
from tests.support.cases import each, one_in
from tests.support.gpu_faults import planted, with_bound
from tests.support.gpu_programs import through_stages
from tests.support.gpu_rows import dialect_kernel, error_of
from weft.codegen.gpu import ir
from weft.codegen.gpu.interp import Hazard, Timing
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.scalar import Lit
from weft.codegen.gpu.maps import map as elementwise
from weft.codegen.gpu.spelling.print import cuda
from weft.foundation.dtypes import BF16, SI8
from weft.foundation.index_expr import axis
from weft.plan.ir import Header, MapPlan
from weft.ptir import Builder
from weft.region.ir import Kernel, KernelAxis, Module, Output, Pattern, Tensor
from weft.target.sm90 import SM90

HEADER = Header("sm90", "")
PLANS = {
    "single": MapPlan(HEADER, 1, 1, 32, 32),
    "vectors": MapPlan(HEADER, 2, 1, 32, 64),
    "turns": MapPlan(HEADER, 2, 2, 32, 256),
    "more threads": MapPlan(HEADER, 1, 1, 96, 192),
}
MODULES: dict[str, Callable[[], Module]] = {
    "elementwise": lambda: kernels.elementwise(6, 10),
    "narrow": lambda: kernels.elementwise(7, 34, BF16),
    "whole grains": lambda: kernels.elementwise(8, 32),
    "window": lambda: kernels.shifted_window(70),
    "cache": kernels.cache_update,
    "mask": lambda: kernels.causal_mask(14),
}


@each("plan", PLANS)
@each("name", MODULES)
def test_maps_agree_with_playback(name: str, plan: str) -> None:
    module = MODULES[name]()
    made = dialect_kernel(module, PLANS[plan])
    for seed, timing in enumerate(Timing):
        assert error_of(module, made, timing, seed) == 0


@pytest.mark.parametrize("most", one_in(3, [11, 40, 64]))
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", ["elementwise", "whole grains", "cache", "mask"])
def test_blocks_number_what_threads_cannot_count(
    name: str, plan: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = MODULES[name]()
    usual = dialect_kernel(module, PLANS[plan])
    monkeypatch.setattr(elementwise, "MAX_POINTS", most)
    made = dialect_kernel(module, PLANS[plan])
    assert made.grid >= usual.grid
    assert error_of(module, made) == 0


def test_more_points_than_32_bits_count() -> None:
    b = Builder()
    x = b.param("f32", [3, 70_000, 70_000])
    y = b.reduce_sum(b.param("f32", [50_000, 80_000]), axes=[1])
    code = through_stages(b.build(b.exp(x), y), "sm90")["gpu"]
    assert code.hosted == {}
    blocks = -(-70_000 * 17_500 // 128)
    assert {kernel.grid for kernel in code.kernels.values()} == {3 * blocks, 50_000}


def many_axes(rank: int = 12) -> Module:
    """`a + a` of 8-bit integers over many axes."""
    axes = tuple(KernelAxis(f"x{n}", 2 if n in (0, 8) else 1) for n in range(rank))
    names = [found.name for found in axes]
    body = kernels.Rows(names)
    a = body.plain("a", SI8, *names)
    result = body.binary("add", a, a)
    index = tuple(axis(name) for name in names)
    outputs = (Output("y", result, index),)
    kernel = Kernel("many", Pattern.MAP, axes, tuple(body.lets), outputs)
    shape = tuple(found.size for found in axes)
    return kernels.module_of(
        kernel, tensors=[Tensor("a", SI8, shape, "input"), Tensor("y", SI8, shape, "output")]
    )


def test_no_variable_has_the_name_of_a_type() -> None:
    """The ninth axis of a kernel on 8-bit integers is not called `i8`."""
    kernel = dialect_kernel(many_axes(), PLANS["single"])
    assert "i8 v" in cuda(kernel)
    assert not any(isinstance(s, ir.Let) and s.name == "i8" for s in kernel.body)
    assert error_of(many_axes(), kernel) == 0


def source_of_padding(dtype: str) -> str:
    """The CUDA text of a kernel that only moves elements, 32 to a row."""
    b = Builder()
    low = [1, 0]
    fill = False if dtype == "i1" else 0
    padded = b.emit("pad", b.param(dtype, [6, 32]), low=low, high=low, pad_value=fill)
    (source,) = through_stages(b.build(padded), "sm90")["cu"].sources.values()
    return str(source.partition('extern "C"')[2])


@pytest.mark.parametrize("dtype", ["bf16", "f16", "fp8_e4m3", "si8", "si16"])
def test_narrow_elements_that_are_moved_stay_the_words_they_were(dtype: str) -> None:
    """Nothing is rounded again, and a number that is none keeps its bits."""
    assert "= {v1_w_[0], v1_w_[1]" in source_of_padding(dtype)


@pytest.mark.parametrize("dtype", ["i1", "si4"])
def test_bytes_that_mean_the_same_are_stored_as_one(dtype: str) -> None:
    """Any byte but 0 is true, and what is stored for it is 1."""
    text = source_of_padding(dtype)
    assert "_s1_[2] = {" in text
    assert "= {v1_w_[0]" not in text


def test_axes_of_powers_of_two_are_bits_of_a_points_number() -> None:
    kernel = cuda(dialect_kernel(kernels.elementwise(8, 32), PLANS["vectors"]))
    assert "int at0 = (point >> 4);" in kernel
    assert "int at1 = ((point & 15) * 2);" in kernel
    assert "(point % 5)" in cuda(dialect_kernel(POINTS, PLANS["vectors"]))


def test_elements_in_the_order_of_points_lie_where_the_point_says() -> None:
    """An operand and two results do, the row that all are multiplied with does not."""
    text = cuda(dialect_kernel(POINTS, PLANS["vectors"]))
    assert text.count(" + ((i64)point * 2) * 4") == 3
    assert text.count(" + (i64)at1 * 4") == 1


# -- planted faults --------------------------------------------------------------------------------

POINTS = kernels.elementwise(6, 10)


def caught(module: Module, broken: ir.Kernel) -> bool:
    try:
        return error_of(module, broken) > 1e-3
    except Hazard:
        return True


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("plan", PLANS)
def test_a_point_too_many_or_too_few_is_found(plan: str, by: int) -> None:
    kernel = dialect_kernel(POINTS, PLANS[plan])
    vectors = 60 // PLANS[plan].vector
    assert caught(POINTS, with_bound(kernel, "point", vectors, vectors + by))


def test_a_missing_turn_is_found() -> None:
    kernel = dialect_kernel(kernels.elementwise(16, 32), PLANS["turns"])

    def fewer(statement: ir.Stmt) -> ir.Stmt:
        if isinstance(statement, ir.For):
            return replace(statement, stop=statement.stop - 1)
        return statement

    assert caught(kernels.elementwise(16, 32), planted(kernel, fewer))


def test_a_block_too_few_is_found() -> None:
    kernel = dialect_kernel(POINTS, PLANS["single"])
    assert caught(POINTS, replace(kernel, grid=kernel.grid - 1))


def test_a_read_without_its_guard_is_found() -> None:
    module = kernels.shifted_window(70)

    def unguarded(statement: ir.Stmt) -> ir.Stmt:
        return (
            replace(statement, guard=Lit(1)) if isinstance(statement, ir.LoadElement) else statement
        )

    assert caught(module, planted(dialect_kernel(module, PLANS["single"]), unguarded))


def test_a_vector_that_is_not_aligned_is_found() -> None:
    kernel = dialect_kernel(POINTS, PLANS["vectors"])

    def moved(statement: ir.Stmt) -> ir.Stmt:
        if isinstance(statement, values.LoadVector):
            return replace(statement, offset=statement.offset + 1)
        return statement

    with pytest.raises(Hazard, match="a vector of 2 begins at no multiple of 2 elements"):
        error_of(POINTS, planted(kernel, moved))


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "plan", "message"),
    [
        (POINTS, MapPlan(HEADER, 4, 1, 32, 128), "a vector of 4 does not divide an axis of 10"),
        (
            POINTS,
            MapPlan(HEADER, 2, 1, 32, 100),
            "a grain of 100 is not a multiple of 64: 32 threads, 1 x 2 points each at a time",
        ),
        (
            kernels.softmax(4, 8),
            MapPlan(HEADER, 1, 1, 32, 32),
            "an elementwise plan cannot carry out a reduction",
        ),
    ],
)
def test_plans_that_are_refused(module: Module, plan: MapPlan, message: str) -> None:
    found = elementwise.accepts(module.kernels[0], module.tensors, plan, SM90)
    assert message in [finding.why for finding in found]
