"""Gradients to the input of strided convolutions: every place multiplies the taps that it meets."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.cases import one_in
from tests.support.gpu_convolutions import Case
from tests.support.images import data, wide
from weft.driver.compile import Executable, compile_program
from weft.driver.execute import run
from weft.ptir import Builder, Program
from weft.region.fitting import phases

Array = NDArray[Any]


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "_WORTH", 1)
    monkeypatch.setattr(phases, "_WORTH_OF_ROWS", 1)


def names(made: Executable) -> list[str]:
    kernels = json.loads(made.stages["region"])["module"]["kernels"]
    return [kernel["region"]["name"] for kernel in kernels]


def agree(program: Program, inputs: list[Array]) -> Executable:
    """The program compiled, its results compared with the reference's."""
    made = compile_program(program, wide())
    got, wanted = made.run(inputs)[-1], run(program, inputs, backend="reference")[-1]
    loose = 1e-2 if str(got.dtype) == "bfloat16" else 2e-5
    np.testing.assert_allclose(
        got.astype(np.float32), wanted.astype(np.float32), rtol=loose, atol=loose
    )
    return made


CASES = {
    "3x3": (Case(dtype="f32", layout="first", stride=2, size=(9, 11), inputs=6, outputs=5), 4),
    "channels last": (Case(dtype="f32", stride=2, size=(8, 8), inputs=6, outputs=5), 4),
    "bf16": (Case(layout="first", stride=2, size=(6, 8), inputs=4, outputs=4), 4),
    "f64": (Case(dtype="f64", layout="first", stride=2, size=(7, 8), inputs=4, outputs=4), 4),
    "whole windows": (
        Case(
            dtype="f32",
            layout="first",
            window=(2, 2),
            stride=2,
            pad=0,
            size=(8, 12),
            inputs=9,
            outputs=8,
        ),
        4,
    ),
    "steps of three": (
        Case(
            dtype="f32",
            layout="first",
            stride=3,
            size=(13, 17),
            pad=(0, 1, 2, 0),
            inputs=8,
            outputs=8,
        ),
        9,
    ),
    "a large window": (
        Case(
            dtype="f32",
            layout="first",
            stride=2,
            window=(7, 5),
            pad=2,
            size=(20, 21),
            inputs=3,
            outputs=8,
        ),
        4,
    ),
    "some places meet no tap": (
        Case(
            dtype="f32",
            layout="first",
            stride=2,
            window=(3, 1),
            pad=0,
            size=(9, 8),
            inputs=5,
            outputs=8,
        ),
        4,
    ),
    "taps two apart, steps of three": (
        Case(
            dtype="f32",
            layout="first",
            stride=3,
            dilation=2,
            pad=2,
            size=(14, 15),
            inputs=8,
            outputs=8,
        ),
        9,
    ),
    "groups": (
        Case(dtype="f32", layout="first", stride=2, size=(8, 8), inputs=8, outputs=12, groups=2),
        4,
    ),
    "a single channel": (
        Case(dtype="f32", layout="first", window=(4, 4), stride=2, size=(8, 12), inputs=1),
        4,
    ),
    "a single channel, windows of two lengths": (
        Case(dtype="f32", stride=2, size=(8, 9), inputs=1, outputs=5, window=(3, 2), pad=0),
        4,
    ),
    "a line": (
        Case(
            dtype="f32",
            layout="first",
            size=(40,),
            window=(5,),
            stride=2,
            pad=2,
            inputs=8,
            outputs=8,
        ),
        2,
    ),
    "a space": (
        Case(
            dtype="f32",
            layout="first",
            size=(6, 6, 8),
            window=(3, 3, 3),
            stride=2,
            inputs=4,
            outputs=4,
        ),
        8,
    ),
}


@pytest.mark.parametrize("name", one_in(3, CASES))
def test_each_phase_is_a_convolution(name: str) -> None:
    case, count = CASES[name]
    program = case.gradient(0)
    found = names(agree(program, data(program)))
    assert sum("_phase" in each and "cleared" not in each for each in found) == count


@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize(("value", "channels"), [(np.inf, 3), (np.nan, 3), (np.inf, 1)])
def test_numbers_that_are_none_spread_as_far_as_in_the_reference(
    where: int, value: float, channels: int
) -> None:
    """A weight also where its tap meets a zero, a gradient only where it is met."""
    case = Case(dtype="f32", layout="first", stride=2, size=(8, 8), inputs=channels, outputs=4)
    program = case.gradient(0)
    inputs = data(program)
    if where < len(inputs):
        inputs[where].reshape(-1)[inputs[where].size // 3] = value
    agree(program, inputs)


def test_of_rows_with_zeros_between_them_some_are_multiplied() -> None:
    b = Builder()
    x, w = b.param("f32", [2, 6, 6, 8]), b.param("f32", [8, 5])
    spread = b.emit("pad", x, low=[0] * 4, high=[0] * 4, interior=[0, 1, 1, 0], pad_value=0.0)
    program = b.build(b.dot_general(spread, w, contract=([3], [0])))
    inputs = data(program)
    inputs[1].reshape(-1)[7] = np.inf
    module = agree(program, inputs).stages["region"]
    kernels = [found["region"] for found in json.loads(module)["module"]["kernels"]]
    found = [k["pattern"] for k in kernels if "_phase" in k["name"] and k["inputs"]]
    assert sorted(found) == ["map", "map", "map", "matmul"]


def test_taps_that_all_meet_elements_stay_together() -> None:
    program = Case(dtype="f32", layout="first", size=(8, 8), inputs=6, outputs=5).gradient(0)
    assert not any("_phase" in name for name in names(agree(program, data(program))))


def test_what_follows_is_computed_in_each_phase() -> None:
    b = Builder()
    x, w = b.param("f32", [2, 6, 6, 5]), b.param("f32", [4 * 5, 7])
    beside = b.param("f32", [2, 15, 15, 7])
    spread = b.emit("pad", x, low=[0] * 4, high=[0] * 4, interior=[0, 2, 2, 0], pad_value=0.0)
    windows = b.extract_patches(
        spread, window=[2, 2], strides=[1, 1], dilation=[1, 1], padding=[(0, 0), (0, 0)],
        pad_value=0.0,
    )  # fmt: skip
    program = b.build(b.tanh(b.dot_general(windows, w, contract=([3], [0]))) * beside)
    found = names(agree(program, data(program)))
    assert sum("_phase" in name and "cleared" not in name for name in found) == 9


@pytest.mark.parametrize(("worth", "count"), [(1 << 10, 27), (1 << 20, 0)])
def test_many_phases_want_as_many_products_each(
    monkeypatch: pytest.MonkeyPatch, worth: int, count: int
) -> None:
    monkeypatch.setattr(phases, "_WORTH", worth)
    monkeypatch.setattr(phases, "_WORTH_OF_ROWS", worth)
    size, window = (7, 7, 6), (3, 3, 3)
    case = Case(
        dtype="f32", layout="first", size=size, window=window, stride=3, inputs=4, outputs=5
    )
    program = case.gradient(0)
    found = names(agree(program, data(program)))
    assert sum("_phase" in each and "cleared" not in each for each in found) == count


def test_few_products_are_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    program = Case(dtype="f32", layout="first", stride=2, inputs=6, outputs=5).gradient(0)
    assert not any("_phase" in name for name in names(agree(program, data(program))))
