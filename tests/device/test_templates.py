"""Templates on a GPU that whole examples do not reach: reductions across rows and in parts,
transposes in blocks, gathers, matrix products of odd sizes, of few rows and in parts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.example_inputs import inputs_for
from tests.unit.codegen.gpu.maps import test_gather, test_runs, test_transposed
from tests.unit.codegen.gpu.rows import test_columns
from weft.driver.compile import compile_program
from weft.driver.cuda import CudaBackend
from weft.foundation.errors import SpecViolation
from weft.ptir import Builder, Program
from weft.runtime.cuda.driver import compute_capability
from weft.testing.compare import compare

pytestmark = pytest.mark.skipif(
    compute_capability() != (9, 0), reason="these programs are for an SM90 GPU"
)


def agree(program: Program, seed: int = 1) -> None:
    report = compare(program, inputs_for(program, seed), CudaBackend("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", test_columns.CASES)
def test_columns_agree(name: str, dtype: str) -> None:
    agree(test_columns.program(name, dtype))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "si8", "si64"])
@pytest.mark.parametrize("name", test_transposed.CASES)
def test_blocks_agree(name: str, dtype: str) -> None:
    agree(test_transposed.program(name, dtype))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "si8", "si64"])
@pytest.mark.parametrize("name", test_runs.CASES)
def test_runs_of_few_rows_agree(name: str, dtype: str) -> None:
    agree(test_runs.program(name, dtype))


@pytest.mark.parametrize("name", test_gather.CASES)
def test_gathers_agree(name: str) -> None:
    program = test_gather.program(test_gather.CASES[name], "f32", "si64")
    rng = np.random.default_rng(3)
    table = rng.standard_normal((test_gather.ROWS, test_gather.WIDTH)).astype(np.float32)
    places = rng.integers(0, test_gather.ROWS, test_gather.COUNT)
    report = compare(program, [table, places], CudaBackend("sm90"))
    assert report.agrees, str(report)


def test_places_that_are_not_there_are_reported() -> None:
    executable = compile_program(
        test_gather.program(test_gather.CASES["rows"], "f32", "si64"), "sm90"
    )
    table = np.ones((test_gather.ROWS, test_gather.WIDTH), np.float32)
    places = np.zeros(test_gather.COUNT, np.int64)
    assert (executable.run([table, places])[0] == 1).all()
    places[5], places[7] = -1, test_gather.ROWS
    with pytest.raises(SpecViolation, match=r"GatherIndexOutOfBounds.*at element 5 "):
        executable.run([table, places])


SHAPES = [(1, 1000, 512), (16, 264, 4096), (24, 40, 16384), (130, 136, 301), (129, 513, 1025)]


@pytest.mark.parametrize("epilogue", ["none", "silu", "gelu_tanh"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_agree(shape: tuple[int, int, int], epilogue: str) -> None:
    m, n, k = shape
    b = Builder()
    x, w = b.param("bf16", [m, k]), b.param("bf16", [n, k])
    y = b.dot_general(x, w, contract=([1], [1]), out_dtype="f32") * (k**-0.5)
    if epilogue == "silu":
        y = b.silu(y)
    elif epilogue == "gelu_tanh":
        y = 0.5 * y * (1.0 + b.tanh(0.8 * y))
    agree(b.build(b.cast(y, "bf16")))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("shape", [(280, 65_536), (64, 262_144)], ids=str)
def test_long_rows_through_a_ring_agree(shape: tuple[int, int], dtype: str) -> None:
    """Clusters that take one row after the other, the last of them fewer than the others."""
    b = Builder()
    x = b.param(dtype, list(shape))
    program = b.build(b.softmax(x, axis=1))
    executable = compile_program(program, "sm90")
    assert '"ring": 16' in executable.stages["plan"]
    (inputs,) = inputs_for(program, 1)
    powers = np.exp(inputs.astype(np.float64) - inputs.astype(np.float64).max(1, keepdims=True))
    exact = powers / powers.sum(1, keepdims=True)
    found = executable.run([inputs])[0].astype(np.float64)
    assert (np.abs(found / exact - 1) < {"f32": 2.0**-19, "bf16": 2.0**-7}[dtype]).all()
