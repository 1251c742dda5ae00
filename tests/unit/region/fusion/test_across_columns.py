"""Contractions by scalar multiply-adds that store their results across their columns."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft
from tests.support.gpu_interpreted import InterpretedExecutable
from weft import functional
from weft.driver.pipeline import run_pipeline
from weft.driver.reference import ReferenceBackend
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import DEFAULT_LEVEL, EXACT_LEVEL, Compilation
from weft.ptir import Program
from weft.region.cost import kernel_seconds
from weft.region.ir import Module
from weft.region.verify import verify
from weft.target.known import target_named


def convolutions(x: Any, w: Any, v: Any) -> Any:
    inner = functional.relu(functional.conv2d(x, w, padding=1))
    return functional.conv2d(inner, v, padding=1)


def shapes_of(size: int, channels: int = 32) -> list[tuple[int, ...]]:
    return [(2, channels, size, size), *[(channels, channels, 3, 3)] * 2]


def program_of(size: int, dtype: str = "f32", channels: int = 32) -> Program:
    given = [weft.zeros(shape, dtype=dtype) for shape in shapes_of(size, channels)]
    made: Program = weft.jit(convolutions).program(*given)
    return made


def compiled(program: Program, level: int, until: str | None = "region") -> Compilation:
    made = Compilation(program, target_named("sm90"), make_signature(program), {}, level)
    return run_pipeline(made, until)


def seconds(module: Module) -> float:
    target = target_named("sm90")
    return sum(kernel_seconds(kernel, module.tensors, target) for kernel in module.kernels)


def test_it_spares_kernels_that_turn_results_where_that_takes_less_time() -> None:
    program = program_of(112)
    greedy, best = (compiled(program, n)["region"] for n in (DEFAULT_LEVEL, EXACT_LEVEL))
    assert len(greedy.kernels) == 4
    assert [kernel.roles is not None for kernel in best.kernels] == [True, True]
    assert seconds(best) < 0.9 * seconds(greedy)
    verify(best)


def test_matrix_units_store_their_columns() -> None:
    """Of f16, whose products they make, exact fusion chooses what greedy does."""
    program = program_of(112, "f16")
    greedy, best = (compiled(program, n)["region"] for n in (DEFAULT_LEVEL, EXACT_LEVEL))
    assert [k.name for k in best.kernels] == [k.name for k in greedy.kernels]


def test_results_are_those_of_the_reference() -> None:
    """Tiles of 32 places and of 32 channels, the last of which are not full."""
    program = program_of(6, channels=16)
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes_of(6, 16)]
    made = compiled(program, EXACT_LEVEL, None)
    assert len(made["region"].kernels) == 2
    assert [kernel.grid for kernel in made["gpu"].kernels.values()] == [3, 3]
    (result,) = InterpretedExecutable(made).execute(inputs)
    (meant,) = ReferenceBackend().compile(program).execute(inputs)
    np.testing.assert_allclose(result, meant, rtol=1e-4, atol=1e-3)
