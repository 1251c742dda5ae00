"""Elementwise kernels over odd rows, as one long row."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import pytest

from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.ptir import Builder, Program, Value
from weft.region.ir import Kernel, Module
from weft.target.known import target_named
from weft.testing.compare import compare

Build = Callable[[Builder, Value], Value]


def program(shape: tuple[int, ...], build: Build) -> Program:
    b = Builder()
    return b.build(build(b, b.param("f32", list(shape))))


def kernels(shape: tuple[int, ...], build: Build, target: str = "sm90") -> tuple[Kernel, ...]:
    made = program(shape, build)
    found = Compilation(made, target_named(target), make_signature(made))
    module: Module = run_pipeline(found, until="region")["region"]
    return module.kernels


@pytest.mark.parametrize("shape", [(8, 33), (4, 5, 7), (2, 2, 1, 9)])
def test_rows_that_no_vector_divides_are_one(shape: tuple[int, ...]) -> None:
    (kernel,) = kernels(shape, lambda b, x: b.exp(x) * x)
    assert [axis.size for axis in kernel.axes] == [prod(shape)]


def test_what_is_drawn_goes_along() -> None:
    (kernel,) = kernels((8, 33), lambda b, x: x + b.rng_uniform(shape=x.shape, dtype="f32"))
    assert [axis.size for axis in kernel.axes] == [8 * 33]


def padded(b: Builder, x: Value) -> Value:
    return b.emit("pad", x, low=[0, 1], high=[0, 1], interior=[0, 0], pad_value=0.0)


KEPT: dict[str, tuple[tuple[int, ...], Build]] = {
    "whole vectors": ((8, 32), lambda b, x: b.exp(x)),
    "nothing": ((3, 0), lambda b, x: b.exp(x)),
    "no wider for it": ((7, 33), lambda b, x: b.exp(x)),
    "a row for all": ((8, 33), lambda b, x: x + b.broadcast_to(b.param("f32", [33]), x.shape)),
    "a number a row": ((8, 33), lambda b, x: x * b.broadcast_to(b.param("f32", [8, 1]), x.shape)),
    "padded rows": ((8, 31), lambda b, x: padded(b, x)),
    "turned": ((33, 8), lambda b, x: b.transpose(x, [1, 0])),
}


@pytest.mark.parametrize("name", KEPT)
def test_axes_that_memory_does_not_go_along_stay(name: str) -> None:
    (kernel,) = kernels(*KEPT[name])
    assert len(kernel.axes) == 2


SOME: dict[str, tuple[tuple[int, ...], Build]] = {
    "plain": ((8, 33), lambda b, x: b.exp(x) * x),
    "one vector in all": ((4, 1, 3), lambda b, x: x + x),
    "drawn": ((8, 33), lambda b, x: x + b.rng_uniform(shape=x.shape, dtype="f32")),
    "counted": ((12, 11), lambda b, x: x + b.cast(b.iota("si32", [12, 11], axis=1), "f32")),
    "within a batch": ((3, 4, 5), lambda b, x: x + b.broadcast_to(b.param("f32", [4, 5]), x.shape)),
}


@pytest.mark.parametrize("name", SOME)
def test_results_are_the_references(name: str) -> None:
    shape, build = SOME[name]
    made = program(shape, build)
    report = compare(made, inputs_for(made), InterpretedGpu("sm90"))
    assert report.agrees, report


def group_norm(b: Builder, x: Value) -> Value:
    """Of images, less the sum of each group of channels, over its size."""
    images, groups, *_ = x.shape
    axes = list(range(2, len(x.shape)))

    def spread(value: Value) -> Value:
        kept = b.reshape(value, [images, groups, *(1 for _ in axes)])
        return b.broadcast_to(kept, list(x.shape))

    left = x - spread(b.reduce_sum(x, axes))
    return left / spread(b.sqrt(b.reduce_sum(left * left, axes)))


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((2, 4, 8, 28, 28), [2, 4, 8, 28 * 28]),
        ((2, 4, 7, 7), [2, 4, 49]),
        ((2, 4, 3, 28, 32), [2, 4, 3, 28, 32]),
    ],
)
def test_rows_of_a_norm_that_fill_no_vector_of_a_cpu_are_one(
    shape: tuple[int, ...], axes: list[int]
) -> None:
    (kernel,) = kernels(shape, group_norm, "cpu")
    assert [axis.size for axis in kernel.axes] == axes


def test_reductions_over_the_last_axis_alone_stay() -> None:
    (kernel,) = kernels((4, 6, 28), lambda b, x: b.reduce_max(x, [2]), "cpu")
    assert [axis.size for axis in kernel.axes][-1] == 28
