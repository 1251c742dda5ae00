"""Long reductions of lengths without divisors, and few long rows, on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.support.example_inputs import inputs_for
from tests.support.long_rows import argmax, layer_norm, softmax, softmax_between, summed
from weft.driver.compile import compile_program
from weft.driver.cuda import CudaBackend
from weft.ptir import Builder, Program
from weft.runtime.cuda.driver import compute_capability
from weft.testing.compare import compare

pytestmark = pytest.mark.skipif(
    compute_capability() != (9, 0), reason="these programs are for an SM90 GPU"
)

PRIME = 1_000_003


def largest() -> Program:
    b = Builder()
    return b.build(b.reduce_max(b.param("f32", [PRIME]), [0]))


def few_rows() -> Program:
    b = Builder()
    return b.build(b.matmul(b.param("f32", [4, 100_003]), b.param("f32", [100_003, 256])))


def odd_vocabulary() -> Program:
    """Rows between products that have room, on a device that checks what lies there."""
    return softmax_between(1037, rows=4096)


CASES: dict[str, Callable[[], Program]] = {
    "sum": lambda: summed("f32", (PRIME,), 0),
    "sum of integers": lambda: summed("si32", (PRIME,), 0),
    "columns": lambda: summed("bf16", (PRIME, 3), 0),
    "both axes": lambda: summed("bf16", (PRIME, 3), 0, 1),
    "max": largest,
    "argmax": lambda: argmax(PRIME),
    "argmax of two rows": lambda: argmax(2, 1_000_000),
    "softmax": lambda: softmax(2, PRIME),
    "softmax in levels": lambda: softmax(2, 300_007),
    "layer norm": lambda: layer_norm(2, PRIME),
    "few rows": few_rows,
    "rows with room": odd_vocabulary,
}


@pytest.mark.parametrize("name", CASES)
def test_long_reductions_agree(name: str) -> None:
    program = CASES[name]()
    report = compare(program, inputs_for(program, 1), CudaBackend("sm90"))
    assert report.agrees, str(report)


def test_a_very_long_sum_is_exact() -> None:
    """Of small integers, which f32 adds without rounding."""
    executable = compile_program(summed("f32", (100_000_007,), 0), "sm90")
    x = np.random.default_rng(2).integers(-1, 2, 100_000_007).astype(np.float32)
    assert executable.run([x])[0] == x.sum(dtype=np.float64)
