"""Indices that are out of range: compiled code names the value and where it stands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft.foundation.errors import SpecViolation
from weft.ptir import Builder, Program

ROWS = np.arange(6, dtype=np.float32)


def why(program: Program, inputs: list[Any], backend: str = "cpu") -> str:
    with pytest.raises(SpecViolation) as caught:
        weft.run(program, inputs, backend=backend)
    return caught.value.why


def taking(dtype: str, count: int) -> Program:
    b = Builder()
    return b.build(b.take(b.param("f32", [6]), b.param(dtype, [count])))


@pytest.mark.parametrize(("dtype", "value"), [("si32", 9), ("si32", -7), ("si64", 2**40 + 1)])
def test_take_names_the_index_and_its_element(dtype: str, value: int) -> None:
    indices = np.array([1, 2, value, 3, 77], {"si32": np.int32, "si64": np.int64}[dtype])
    told = why(taking(dtype, 5), [ROWS, indices])
    assert told == f"the index {value} at element 2 is outside [0, 6)"


def test_scatter_names_the_index_and_its_element() -> None:
    b = Builder()
    x, indices, updates = b.param("f32", [6]), b.param("si32", [4]), b.param("f32", [4])
    program = b.build(b.scatter_reduce(x, indices, updates, axis=0, reduce="add"))
    told = why(program, [ROWS, np.array([0, 5, 5, 6], np.int32), np.ones(4, np.float32)])
    assert told == "the index 6 at element 3 is outside [0, 6)"


def test_value_belongs_to_the_first_element_that_threads_found() -> None:
    """Every thread finds many; the least element wins, with its own value."""
    count = 400_000
    program = taking("si32", count)
    indices = np.arange(count, dtype=np.int32) + 1000
    indices[:7] = 0
    for _ in range(5):
        assert why(program, [ROWS, indices]) == "the index 1007 at element 7 is outside [0, 6)"


def test_run_after_one_that_failed_is_right() -> None:
    program = taking("si32", 3)
    why(program, [ROWS, np.array([0, 1, -1], np.int32)])
    assert weft.run(program, [ROWS, np.array([5, 0, 1], np.int32)])[0].tolist() == [5.0, 0.0, 1.0]
    assert "index 8 at element 0" in why(program, [ROWS, np.array([8, 1, -1], np.int32)])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_the_place_is_one_of_the_indices_whatever_is_read_there(backend: str) -> None:
    b = Builder()
    program = b.build(b.take(b.param("f32", [4, 5, 3]), b.param("si64", [2, 3])))
    told = why(program, [np.ones((4, 5, 3), np.float32), np.array([[1, 2, 3], [0, 9, 1]])], backend)
    place = {"cpu": "the index 9 at element 4", "reference": "index 9 at [1, 1] of the indices"}
    assert told.startswith(f"{place[backend]} is outside [0, 4)")
