"""Gradients to the filters of convolutions with channels first: windows are packed line by line."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.support.cases import one_in
from tests.support.gpu_convolutions import Case
from tests.support.images import data, wide
from weft.driver.compile import Executable, compile_program
from weft.driver.execute import run


def agree(case: Case, rest: float | None = None) -> Executable:
    """The gradient compiled, its results compared with the reference's."""
    program = case.gradient(1)
    inputs = data(program)
    if rest is not None:
        inputs[0].reshape(-1)[inputs[0].size // 3] = rest
    made = compile_program(program, wide())
    got, wanted = made.run(inputs)[-1], run(program, inputs, backend="reference")[-1]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    return made


def first(size: tuple[int, ...], inputs: int, outputs: int, **more: int) -> Case:
    case = {"window": (3,) * len(size), "images": 6, **more}
    return Case(dtype="f32", layout="first", size=size, inputs=inputs, outputs=outputs, **case)  # type: ignore[arg-type]


LINES = {
    "lines of whole vectors": first((16, 32), 6, 16),
    "lines of half a vector": first((8, 8), 8, 16),
    "lines of odd length": first((5, 13), 8, 16),
    "every second element": first((12, 32), 8, 16, stride=2),
    "every second element of an odd line": first((15, 21), 8, 16, stride=2),
    "a line": first((40,), 24, 16),
    "a space": first((3, 4, 10), 4, 16),
    "few columns": first((8, 16), 3, 24),
}


@pytest.mark.parametrize("name", one_in(3, LINES))
def test_windows_are_packed_line_by_line(name: str) -> None:
    routines = agree(LINES[name]).stages["cpu"].split("\nroutine ")
    loads = [
        line
        for routine in routines
        for line in routine.splitlines()
        if line.strip().startswith("load") and "kl_" in line and " if " in line
    ]
    assert loads


@pytest.mark.parametrize(
    "case",
    [
        first((9, 15), 8, 16, stride=3),
        first((6, 3), 16, 16),
        first((12, 12), 8, 16, dilation=2, pad=2),
    ],
    ids=["steps of three", "short lines", "dilated"],
)
def test_other_windows_agree(case: Case) -> None:
    agree(case)


@pytest.mark.parametrize("stride", [1, 2])
def test_infinite_elements_are_met_where_they_are(stride: int) -> None:
    agree(first((10, 16), 8, 16, stride=stride), np.inf)


def test_columns_that_fill_most_of_a_tile_are_packed() -> None:
    made = agree(first((8, 16), 3, 24))
    plans = json.loads(made.stages["plan"])["plans"]
    (tile,) = [plan["tile"] for plan in plans if len(plan.get("cache", ())) == 2][-1:]
    assert tile[1] == 32
