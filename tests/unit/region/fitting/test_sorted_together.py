"""Scatters that are alike: which are sorted by the same kernels, and where these stand."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.support.gpu_programs import through_stages
from weft.driver.stages.opaque import run_opaque
from weft.foundation.radix_sort import Starts
from weft.ptir import Builder, Program, Value
from weft.region.fitting import gathers_and_scatters
from weft.region.interp import run_module
from weft.region.ir import Module

COUNT, ROWS = 1100, 40


def counted(b: Builder, at: Value, rows: int = ROWS) -> Value:
    """How many places are each row."""
    ones = b.full([at.shape[0]], 1.0, "f32")
    return b.scatter_reduce(b.full([rows], 0.0, "f32"), at, ones, axis=0, reduce="add")


def in_a_chain() -> Program:
    """Two that could be sorted together, and one at places that the first one says."""
    b = Builder()
    first, second = b.param("si32", [COUNT]), b.param("si32", [COUNT])
    one = counted(b, first)
    spread = b.reshape(b.broadcast_to(b.reshape(one, [ROWS, 1]), [ROWS, 30]), [ROWS * 30])
    late = b.cast(b.slice(spread, [0], [COUNT]), "si32")
    late = b.emit("minimum", late, ROWS - 1)
    assert isinstance(late, Value)
    doubled = b.emit("minimum", second + second, ROWS - 1)
    assert isinstance(doubled, Value)
    return b.build(one, counted(b, late), counted(b, doubled))


def rows_sorted(module: Module) -> list[int]:
    ops = [kernel.opaque.op for kernel in module.kernels if kernel.opaque is not None]
    return sorted(op.outer for op in ops if isinstance(op, Starts))


def test_places_that_another_scatter_says_are_sorted_after_it() -> None:
    program = in_a_chain()
    module = through_stages(program, "sm90")["region"]
    assert rows_sorted(module) == [1, 2]
    rng = np.random.default_rng(0)
    given = [rng.integers(0, ROWS, COUNT).astype(np.int32) for _ in range(2)]
    named = dict(zip(module.inputs, given, strict=True))
    made = run_module(module, named, opaque=run_opaque)
    for name, want in zip(module.outputs, weft.run(program, given), strict=True):
        np.testing.assert_array_equal(made[name], want)


@pytest.mark.parametrize(("count", "rows", "expected"), [(COUNT, 41, [1, 1]), (1200, 40, [1, 1])])
def test_others_are_sorted_by_themselves(count: int, rows: int, expected: list[int]) -> None:
    b = Builder()
    first, second = b.param("si32", [COUNT]), b.param("si32", [count])
    program = b.build(counted(b, first), counted(b, second, rows))
    assert rows_sorted(through_stages(program, "sm90")["region"]) == expected


def test_a_kernel_sorts_for_so_many_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathers_and_scatters, "_MOST_SCATTERS", 3)
    b = Builder()
    places = [b.param("si32", [COUNT]) for _ in range(7)]
    program = b.build(*(counted(b, at) for at in places))
    assert rows_sorted(through_stages(program, "sm90")["region"]) == [1, 3, 3]
    monkeypatch.setattr(gathers_and_scatters, "_MOST_UPDATES", COUNT - 1)
    assert rows_sorted(through_stages(program, "sm90")["region"]) == [1] * 7
