"""What kernels, mostly those of a GPU, are spared: numbers that every thread would compute, tensors
read at many places, padded tensors beside matrix units, and factors of channels read for every
pixel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import weft
import weft.functional as F
from tests.support.gpu_programs import TARGETS
from weft.driver import pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.foundation.dtypes import UI8
from weft.region.ir import Kernel, Module, Read
from weft.target.known import target_named

BF16 = weft.bfloat16


def module_of(function: Callable[..., Any], target: str, *args: Any) -> Module:
    program = weft.jit(function).program(*args)
    compilation = Compilation(program, target_named(target), make_signature(program))
    found: Module = pipeline.run_pipeline(compilation, "region")["region"]
    return found


def functions(kernel: Kernel) -> set[str]:
    return {getattr(let.expr, "fn", "") for let in kernel.body}


def reads(kernel: Kernel) -> list[Read]:
    return [let.expr for let in kernel.body if isinstance(let.expr, Read)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [64, 4096])
def test_a_number_that_takes_long_is_computed_once(target: str, rows: int) -> None:
    """Written for every result of a thread, two powers took NVRTC 100 s."""

    def updated(x: Any, slope: Any, weight: Any, step: Any) -> Any:
        return weight - x.T @ slope / (1 - 0.9**step).astype(BF16)

    x, weight = weft.zeros((64, rows), dtype=BF16), weft.zeros((rows, 256), dtype=BF16)
    found = module_of(updated, target, x, weft.zeros((64, 256), dtype=BF16), weight, weft.ones(()))
    with_powers = [kernel for kernel in found.kernels if "pow" in functions(kernel)]
    assert len(with_powers) == 1
    assert (with_powers[0].roles is None) == (rows == 4096)
    assert (
        "it is a single number, which every thread would compute again" in found.stored.values()
    ) == (rows == 4096)


@pytest.mark.parametrize("rows", [4, 256])
def test_a_number_for_many_elements_is_computed_once_on_cpus_too(rows: int) -> None:
    """Every vector of the maps would compute it, and every kernel have its code."""

    def updated(weights: Any, slopes: Any, step: Any) -> Any:
        rate = 1 - 0.9**step
        return [w - s / rate for w, s in zip(weights, slopes, strict=True)]

    weights = [weft.zeros((rows, 256)), weft.zeros((2 * rows, 256))]
    found = module_of(updated, "cpu", weights, weights, weft.ones(()))
    with_powers = [kernel for kernel in found.kernels if "pow" in functions(kernel)]
    points = [axis.size for kernel in with_powers for axis in kernel.axes]
    assert all(size == 1 for size in points) == (rows == 256)
    assert len(with_powers) == 1 or rows == 4


@pytest.mark.parametrize("target", TARGETS)
def test_the_results_of_matrix_units_meet_no_padded_tensor(target: str) -> None:
    """A kernel that reads one multiplies and adds without them, eight times slower."""

    def ended(x: Any, weight: Any, few: Any) -> Any:
        return x @ weight + F.pad(few, [(0, 8), (0, 0)])

    few = weft.zeros((2040, 1024), dtype=BF16)
    x, weight = weft.zeros((2048, 512), dtype=BF16), weft.zeros((512, 1024), dtype=BF16)
    found = module_of(ended, target, x, weight, few)
    (product,) = (kernel for kernel in found.kernels if kernel.roles is not None)
    assert not any(product.open_guards(read) for read in reads(product))


def test_a_pools_gradient_reads_one_slope_and_bytes() -> None:
    """The sum of two slopes is made once, not at each of nine places, and the places are bytes."""

    def back(x: Any, one: Any, other: Any) -> Any:
        _, pull = weft.vjp(lambda x: F.max_pool2d(x, 3, 2, 1), x)
        return pull(one + other)

    image = weft.zeros((16, 64, 112, 112), dtype=BF16)
    slope = weft.zeros((16, 64, 56, 56), dtype=BF16)
    found = module_of(back, "sm90", image, slope, slope)
    last = found.kernels[-1]
    dtypes = [found.tensors[name].dtype for name in last.inputs]
    assert len(last.inputs) == 2
    assert UI8 in dtypes


@pytest.mark.parametrize("target", [*TARGETS, "cpu"])
def test_factors_of_channels_are_read_without_the_guards_of_pixels(target: str) -> None:
    def pooled(x: Any, factor: Any) -> Any:
        return F.max_pool2d(F.relu(x * factor[None, :, None, None]), 3, 2, 1)

    found = module_of(pooled, target, weft.zeros((4, 64, 32, 32)), weft.zeros((64,)))
    every = [read for kernel in found.kernels for read in reads(kernel)]
    assert any(len(read.index) == 1 for read in every)
    assert not any(read.guards for read in every if len(read.index) == 1)


def updated_by_adam(x: Any, slope: Any, weight: Any, m: Any, v: Any) -> Any:
    total = x.T @ slope
    m, v = 0.9 * m + 0.1 * total, 0.999 * v + 0.001 * total * total
    return weight - 1e-3 * m / 0.1 / (weft.sqrt(v / 0.001) + 1e-8), m, v


def test_an_optimiser_is_not_written_behind_each_result_of_a_product() -> None:
    """Three results with quotients and roots: the compiler took 80 s for it."""
    state = [weft.zeros((4096, 768), dtype=BF16) for _ in range(3)]
    x, slope = weft.zeros((8192, 4096), dtype=BF16), weft.zeros((8192, 768), dtype=BF16)
    found = module_of(updated_by_adam, "sm90", x, slope, *state)
    (product,) = (kernel for kernel in found.kernels if kernel.roles is not None)
    assert "sqrt" not in functions(product)


@pytest.mark.parametrize("columns", [768, 770])
def test_the_slope_of_a_turned_matrix_is_made_as_its_optimiser_reads_it(columns: int) -> None:
    """Otherwise every step turns it, through shared memory; not where its rows are no whole
    lines."""

    def stepped(x: Any, slope: Any, weight: Any) -> Any:
        _, pull = weft.vjp(lambda weight: x @ weight.T, weight)
        (found,) = pull(slope)
        return weight - weft.sin(weft.cos(found) / weft.exp(weft.tan(found)))

    x, slope = weft.zeros((4096, columns), dtype=BF16), weft.zeros((4096, 3072), dtype=BF16)
    found = module_of(stepped, "sm90", x, slope, weft.zeros((3072, columns), dtype=BF16))
    (product,) = (kernel for kernel in found.kernels if kernel.roles is not None)
    shape = found.tensors[product.outputs[0].tensor].shape
    assert shape == ((3072, 768) if columns == 768 else (770, 3072))
