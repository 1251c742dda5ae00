"""Random programs: each is valid, reads back from every format, runs, and survives the passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.cases import one_in
from weft.ptir import Program, dumps, loads, verify
from weft.ptir.passes import optimise
from weft.testing import (
    RandomCase,
    compare_results,
    random_program,
    widen_arrays,
    widen_program,
)

Array = NDArray[Any]

FAST, FAST_CHUNK = 300, 25
SLOW, SLOW_CHUNK = 20_000, 200


def check(seed: int) -> None:
    case = random_program(seed)
    verify(case.program)
    results = weft.run(case.program, case.inputs)
    check_formats(case, results)
    optimised = optimise(case.program)
    assert_same(case, weft.run(optimised, case.inputs), results)


def check_formats(case: RandomCase, results: Sequence[Array]) -> None:
    program = case.program
    assert loads(dumps(program, "text")) == program
    # The wire lets a region return only its last instructions, so a copy may be added to it.
    read = loads(dumps(program, "json"))
    assert loads(dumps(program, "bincode")) == read
    assert dumps(read, "json") == dumps(program, "json")
    assert dumps(read, "bincode") == dumps(program, "bincode")
    if read != program:
        verify(read)
        for a, b in zip(weft.run(read, case.inputs), results, strict=True):
            assert same_bits(a, b)


def assert_same(case: RandomCase, out: Sequence[Array], ref: Sequence[Array]) -> None:
    """Results are within the rule; the exact values are only computed where bits differ."""
    if all(same_bits(a, b) for a, b in zip(out, ref, strict=True)):
        return
    exact = weft.run(widen_program(case.program), widen_arrays(case.inputs))
    for index, (a, b, c) in enumerate(zip(out, ref, exact, strict=True)):
        found = compare_results(a, b, c)
        assert found.passed, f"result {index}: {found.reason}"


def same_bits(a: Array, b: Array) -> bool:
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
    )


def check_range(first: int, count: int) -> None:
    for seed in range(first, first + count):
        try:
            check(seed)
        except Exception as error:
            error.add_note(f"random_program({seed})")
            raise


@pytest.mark.parametrize("first", one_in(4, range(0, FAST, FAST_CHUNK)))
def test_random_programs(first: int) -> None:
    check_range(first, FAST_CHUNK)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FAST, SLOW, SLOW_CHUNK))
def test_many_random_programs(first: int) -> None:
    check_range(first, SLOW_CHUNK)


def test_the_check_can_fail() -> None:
    case = random_program(0)
    ref = weft.run(case.program, case.inputs)
    assert any(array.size for array in ref)
    wrong = [_changed(array) for array in ref]
    with pytest.raises(AssertionError, match="result"):
        assert_same(case, wrong, ref)


def _changed(array: Array) -> Array:
    return (
        np.ascontiguousarray(array)
        .view(np.uint8)
        .__invert__()
        .view(array.dtype)
        .reshape(array.shape)
    )


def entry_sizes(program: Program) -> int:
    return sum(len(body.body) for body in program.bodies)


def test_size_is_about_what_was_asked_for() -> None:
    sizes = [entry_sizes(random_program(seed, 40).program) for seed in range(20)]
    assert 35 <= np.median(sizes) <= 80
