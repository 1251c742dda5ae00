"""Gradients of products and convolutions by a cotangent that is one number for all: what is summed
is summed once, and agrees with the reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import pytest

import weft
from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from weft import Tensor, functional
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.ptir import Program
from weft.region.writing.repeated_sums import with_single_sums
from weft.target.known import target_named
from weft.testing.compare import compare

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def multiplied(x: Tensor, w: Tensor) -> Tensor:
    found: Tensor = (x @ w).sum()
    return found


def convolved(x: Tensor, w: Tensor) -> Tensor:
    found: Tensor = functional.conv2d(x, w, padding=1, stride=2).astype("f32").mean()
    return found


CASES: dict[str, tuple[Loss, tuple[int, ...], tuple[int, ...]]] = {
    "product": (multiplied, (24, 40), (40, 48)),
    "product of matrices": (multiplied, (3, 24, 40), (3, 40, 16)),
    "convolution": (convolved, (2, 16, 5, 6), (8, 16, 3, 3)),
}


def gradients(name: str, dtype: str = "bf16") -> Program:
    loss, first, second = CASES[name]
    x, w = weft.zeros(first, dtype=dtype), weft.zeros(second, dtype=dtype)
    found: Program = weft.jit(weft.grad(loss, argnums=(0, 1))).program(x, w)
    return found


def compiled(program: Program, target: str = "sm90") -> Compilation:
    made = Compilation(program, target_named(target), make_signature(program))
    return run_pipeline(made, "region")


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_sums_are_computed_once(dtype: str) -> None:
    module = compiled(gradients("product", dtype))["region"]
    points = [math.prod(axis.size for axis in kernel.axes) for kernel in module.kernels]
    assert max(points) <= 40 * 48


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", ["sm80", "sm90"])
def test_gradients_agree(name: str, target: str) -> None:
    program = gradients(name)
    report = compare(program, inputs_for(program, 3), InterpretedGpu(target))
    assert report.agrees, str(report)


def test_sums_that_depend_on_all_their_axes_stay_as_they_are() -> None:
    def softmax(x: Tensor) -> Tensor:
        return functional.softmax(x, -1)

    view = compiled(weft.jit(softmax).program(weft.zeros((8, 64), dtype="f32")))["poly_view"]
    assert with_single_sums(view, target_named("sm90")) is view


def test_places_of_counters_are_kept() -> None:
    """A number that depends on where it is computed is not the same at all places."""

    def counted(x: Tensor) -> Tensor:
        rows = weft.arange(8, dtype="f32")[:, None, None]
        found: Tensor = (weft.broadcast_to(rows, (8, 4, 16)) * x).sum(-1)
        return found

    program = weft.jit(counted).program(weft.zeros((16,), dtype="f32"))
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_axes_without_elements_stay() -> None:
    program = weft.jit(multiplied).program(*(weft.zeros(s, dtype="f32") for s in ((0, 8), (8, 4))))
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm80"))
    assert report.agrees, str(report)
