"""Products of groups of rows and their gradients through every stage down to the GPU dialect,
interpreted, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.gpu_interpreted import InterpretedGpu
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.generators import pipeline
from weft.foundation.dtypes import BY_NAME
from weft.ptir import Builder, Program
from weft.ptir.gradient import vjp
from weft.target.known import target_named

Array = NDArray[Any]
GPU = InterpretedGpu("sm90")


def program_of(dtype: str, rows: int, depth: int, columns: int, groups: int) -> Program:
    b = Builder()
    x, w = b.param(dtype, [rows, depth]), b.param(dtype, [groups, depth, columns])
    made = b.emit("weft.grouped_matmul", x, w, b.param("si32", [groups]))
    return b.build(made)


def ops_of(program: Program) -> list[str]:
    """The names of the ops that the kernels carry whole."""
    compilation = Compilation(program, target_named("sm90"), make_signature(program))
    pipeline().run_pipeline(compilation, "region")
    calls = [kernel.opaque for kernel in compilation["region"].kernels]
    return [str(getattr(call.op, "name", "")) for call in calls if call is not None]


def test_narrow_floats_have_kernels_of_their_own_forward_and_back() -> None:
    forward = program_of("bf16", 300, 64, 128, 3)
    assert ops_of(forward) == ["group_tiles", "grouped_tiles"]
    found = ops_of(vjp(forward, (0, 1)))
    assert found.count("grouped_tiles") == 2
    assert found.count("outer_tiles") == 1


@pytest.mark.parametrize(
    ("dtype", "sizes"), [("f32", (300, 64, 128, 3)), ("bf16", (300, 60, 128, 3))]
)
def test_what_the_copy_engine_cannot_read_is_taken_apart(dtype: str, sizes: Any) -> None:
    assert "grouped_tiles" not in ops_of(program_of(dtype, *sizes))


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_results_and_gradients_agree_with_the_reference(dtype: str) -> None:
    program = vjp(program_of(dtype, 150, 16, 24, 3), (0, 1))
    rng = np.random.default_rng(3)
    kinds = [(150, 16), (3, 16, 24), (150, 24)]
    x, w, g = (rng.integers(-3, 4, kind).astype(BY_NAME[dtype].numpy) for kind in kinds)
    given = [x, w, np.array([70, 70, 140], np.int32), g]
    wanted = weft.run(program, given, backend="reference")
    for got, want in zip(weft.run(program, given, backend=GPU), wanted, strict=True):
        np.testing.assert_array_equal(got, want)
