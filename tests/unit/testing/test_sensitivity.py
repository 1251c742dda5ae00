"""The reference with its roundings disturbed."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.ptir import Builder
from weft.testing import random_program, widen_arrays, widen_program
from weft.testing.sensitivity import disturbed_run, spreads


def test_exact_values_stay_exact() -> None:
    b = Builder()
    x = b.param("f32", [4])
    y = x * 3.0 + 1.0
    program = b.build(y, b.emit("floor", y), b.reduce_sum(y, [0]), b.emit("sqrt", y * y))
    inputs = [np.asarray([1.0, -2.0, 0.5, 4.0], np.float32)]
    plain = weft.run(program, inputs)
    for attempt in range(3):
        for a, c in zip(disturbed_run(program, inputs, round=attempt), plain, strict=True):
            assert np.array_equal(a, c)


def test_rounded_values_move_by_up_to_two_ulp() -> None:
    b = Builder()
    x = b.param("f32", [50])
    program = b.build(b.exp(x))
    inputs = [np.linspace(0.1, 0.6, 50, dtype=np.float32)]
    (plain,) = weft.run(program, inputs)
    seen = set()
    for attempt in range(4):
        (moved,) = disturbed_run(program, inputs, round=attempt)
        steps = (moved.astype(np.float64) - plain) / 2.0**-23
        assert set(np.unique(steps)) <= {-2.0, -1.0, 0.0, 1.0, 2.0}
        assert np.count_nonzero(steps) > 25
        seen.add(moved.tobytes())
    assert len(seen) == 4


def test_f64_functions_are_disturbed_and_exact_ones_are_not() -> None:
    b = Builder()
    x = b.param("f64", [8])
    program = b.build(b.exp(x), b.emit("copysign", x, x), b.emit("sqrt", x), b.emit("fmod", x, x))
    inputs = [np.linspace(0.1, 0.9, 8)]
    pairs = zip(disturbed_run(program, inputs), weft.run(program, inputs), strict=True)
    assert [np.array_equal(a, c) for a, c in pairs] == [False, True, True, True]


def test_a_program_that_magnifies_errors_is_found_out() -> None:
    b = Builder()
    x = b.param("f32", [16])
    y = b.exp(x)
    program = b.build((y - b.literal(np.exp(np.linspace(1, 2, 16)).astype(np.float32))) * 1024.0)
    inputs = [np.linspace(1, 2, 16, dtype=np.float32)]
    exact = weft.run(widen_program(program), widen_arrays(inputs))
    (spread,) = spreads(disturbed_run(program, inputs), exact)
    assert spread > 1024 * 2.0**-23


@pytest.mark.parametrize("seed", range(25))
def test_nothing_discrete_changes_in_random_programs(seed: int) -> None:
    case = random_program(seed)
    exact = weft.run(widen_program(case.program), widen_arrays(case.inputs))
    assert np.all(np.isfinite(spreads(disturbed_run(case.program, case.inputs), exact)))


def test_a_discrete_result_that_changes_is_infinitely_far() -> None:
    assert spreads([np.asarray([1, 2])], [np.asarray([1, 3])]) == [np.inf]
    assert spreads([np.asarray([1, 2])], [np.asarray([1, 2])]) == [0.0]
