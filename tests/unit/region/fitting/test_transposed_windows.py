"""Windows whose elements lie across their results are made as these lie, and turned after, or block
by block where they are small."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import through_stages
from weft import functional
from weft.ptir import Program
from weft.region.interp import run_kernel
from weft.region.ir import Module, Pattern
from weft.testing.compare import compare

SHAPE = (1, 68, 62, 32)
"""An image with its channels last."""


def planes(pool: Any) -> Any:
    """A function from an image with its channels last to planes of pooled channels."""
    return lambda x: pool(weft.permute_dims(x, (0, 3, 1, 2)))


def largest(x: Any) -> Any:
    return functional.max_pool2d(functional.relu(x), 2)


def mean(x: Any) -> Any:
    return functional.avg_pool2d(x, 3, stride=1, padding=1) * 2


def largest_of_many(x: Any) -> Any:
    return functional.max_pool2d(functional.relu(x), 4, stride=2)


def mean_of_many(x: Any) -> Any:
    return functional.avg_pool2d(x, 5, stride=1, padding=2) * 2


def program_of(function: Any, shape: tuple[int, ...] = SHAPE) -> Program:
    found: Program = weft.jit(function).program(weft.tensor(np.zeros(shape, np.float32)))
    return found


def kernels_of(program: Program, target: str) -> Module:
    found: Module = through_stages(program, target)["region"]
    return found


@pytest.mark.parametrize("pool", [largest_of_many, mean_of_many])
def test_windows_are_turned_once(pool: Any) -> None:
    program = program_of(planes(pool), (2, 68, 130, 32))
    module = kernels_of(program, "sm90")
    *_, windows, copy = module.kernels
    assert copy.name == f"{windows.name}_turned_copy"
    assert [found.size for found in windows.axes if not found.reduce][-1] == 32
    agrees_with_reference(program, module)


@pytest.mark.parametrize("pool", [largest, mean])
def test_windows_of_few_elements_are_one_kernel(pool: Any) -> None:
    program = program_of(planes(pool), (2, 68, 130, 32))
    module = kernels_of(program, "sm90")
    (kernel,) = module.kernels
    assert kernel.pattern is Pattern.MAP
    assert not any(found.reduce for found in kernel.axes)
    agrees_with_reference(program, module)


def agrees_with_reference(program: Program, module: Module) -> None:
    x = np.random.default_rng(1).standard_normal((2, 68, 130, 32)).astype(np.float32)
    arrays = dict(zip(module.inputs, [x], strict=True))
    for kernel in module.kernels:
        arrays |= run_kernel(kernel, module.tensors, arrays)
    (wanted,) = weft.run(program, [x], backend="reference")
    np.testing.assert_allclose(arrays[module.outputs[0]], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("pool", "shape"), one_in(2, [(largest, (1, 96, 70, 40)), (mean, (1, 44, 38, 40))], unpack=True)
)
def test_the_gpu_computes_the_same(pool: Any, shape: tuple[int, ...]) -> None:
    program = program_of(planes(pool), shape)
    assert len(kernels_of(program, "sm90").kernels) == 1
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    x[0, 3, 5], x[0, 40, 31, 7] = np.nan, -np.inf
    assert compare(program, [x], InterpretedGpu("sm90")).agrees


def test_small_windows_are_turned_in_a_tile_of_results() -> None:
    """Of the elements of a window one goes through shared memory, their greatest."""
    compilation = through_stages(program_of(planes(largest), (1, 128, 128, 64)), "sm90")
    (kernel,) = compilation["gpu"].kernels.values()
    assert len(kernel.tiles) == 1


@pytest.mark.parametrize(
    ("function", "shape", "target"),
    [
        (planes(largest_of_many), (1, 16, 16, 32), "sm90"),
        (planes(largest_of_many), (1, 256, 256, 4), "sm90"),
        (lambda x: largest_of_many(x), (1, 32, 128, 128), "sm90"),
        (planes(largest_of_many), (2, 68, 130, 32), "cpu"),
    ],
    ids=["few results", "few channels", "as they lie", "a CPU"],
)
def test_others_stay_one_kernel(function: Any, shape: tuple[int, ...], target: str) -> None:
    module = kernels_of(program_of(function, shape), target)
    assert not any(kernel.name.endswith("_turned_copy") for kernel in module.kernels)
