"""Which loads are told to the memory ahead of time."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.codegen.cpu.text import parse_routines, print_routines
from weft.ptir import Builder, Program


def total(shape: tuple[int, ...], axis: int, dtype: str = "f32") -> Program:
    b = Builder("total")
    return b.build(b.reduce_sum(b.param(dtype, list(shape)), [axis]))


def test_rows_far_apart_are_prefetched_a_line_at_a_time() -> None:
    text = weft.compile(total((64, 4096), 0), "cpu").stages["cpu"]
    lines = [line.strip() for line in text.splitlines() if "prefetch" in line]
    (first, *more) = [int(line.rstrip("]").rpartition(" + ")[2]) for line in lines]
    assert first == 8 * 4096, "eight rows ahead"
    assert more == [first + 16 * n for n in range(1, len(lines))], "64 bytes apart"
    assert print_routines(parse_routines(text)) == text


@pytest.mark.parametrize("program", [total((64, 4096), 1), total((4096, 64), 0)])
def test_what_the_machine_foresees_is_left_to_it(program: Program) -> None:
    assert "prefetch" not in weft.compile(program, "cpu").stages["cpu"]


@pytest.mark.parametrize("shape", [(3, 4096), (40, 1030), (9, 700)])
@pytest.mark.parametrize("dtype", ["f32", "f64", "si32"])
def test_results_are_the_same(shape: tuple[int, int], dtype: str) -> None:
    x = (np.random.default_rng(0).standard_normal(shape) * 100).astype(
        {"f32": "f4", "f64": "f8", "si32": "i4"}[dtype]
    )
    (found,) = weft.compile(total(shape, 0, dtype), "cpu").run([x])
    np.testing.assert_allclose(found, x.astype("f8").sum(0), rtol=1e-5, atol=1e-3)
