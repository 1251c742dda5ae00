"""Convolutions and their gradients on a GPU: the small ones that the interpreter ran, and the sizes
of the usual networks, agree with the reference and with a sum in f32; two runs give the same
bits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.example_inputs import inputs_for
from tests.support.gpu_convolutions import (
    CASES,
    COPIED,
    DEPTHWISE,
    FIRST_LAYERS,
    GRADIENTS,
    GROUPED,
    PATCHES,
    PHASES,
    UNEVEN,
    Case,
    depthwise,
)
from tests.support.gpu_planes import CASES as PLANES
from weft.driver.compile import compile_program
from weft.driver.cuda import CudaBackend
from weft.ptir import Program
from weft.region.fitting import join_pools
from weft.runtime.cuda.driver import compute_capability
from weft.testing.compare import compare

Array = NDArray[Any]

pytestmark = pytest.mark.skipif(
    compute_capability() != (9, 0), reason="these kernels are for an SM90 GPU"
)


@cache
def backend() -> CudaBackend:
    return CudaBackend("sm90")


def agree(program: Program, seed: int) -> None:
    report = compare(program, inputs_for(program, seed), backend())
    assert report.agrees, str(report)


@pytest.mark.parametrize("name", [*CASES, *COPIED])
def test_convolutions_agree(name: str) -> None:
    for seed in range(3):
        agree({**CASES, **COPIED}[name].program(), seed)


@pytest.mark.parametrize("name", PLANES)
def test_pools_of_planes_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_pools, "_WORTH", 1)
    agree(PLANES[name].program(), 1)


def test_patches_agree() -> None:
    agree(PATCHES.program(), 1)


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_agree(name: str) -> None:
    case, of = GRADIENTS[name]
    agree(case.gradient(of), 1)


@pytest.mark.parametrize("name", UNEVEN)
def test_gradients_of_filters_with_any_channels_agree(name: str) -> None:
    agree(UNEVEN[name].gradient(1), 1)


@pytest.mark.parametrize("name", PHASES)
def test_gradients_in_phases_agree(name: str) -> None:
    """Of few tiles, and of several for every block."""
    case = PHASES[name]
    agree(replace(case, images=9).gradient(0), 1)
    large = replace(case, size=tuple(4 * size for size in case.size), images=16)
    agree(large.gradient(0), 2)


@pytest.mark.parametrize("name", GROUPED)
def test_groups_of_few_channels_agree(name: str) -> None:
    case = GROUPED[name]
    agree(case.program(), 1)
    large = replace(case, size=tuple(4 * size for size in case.size), images=9)
    for program in (large.program(), large.gradient(0), large.gradient(1)):
        agree(program, 2)


@pytest.mark.parametrize("name", FIRST_LAYERS)
def test_gradients_of_first_layers_agree(name: str) -> None:
    case = FIRST_LAYERS[name]
    large = replace(case, size=tuple(4 * size for size in case.size), images=64)
    agree(large.gradient(1), 1)


@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise_convolutions_agree(name: str) -> None:
    agree(depthwise(name), 1)
    case, of, _ = DEPTHWISE[name]
    large = replace(case, size=tuple(3 * size for size in case.size), images=40)
    agree(large.program() if of is None else large.gradient(of), 2)


LAYERS = {
    "56": Case(size=(56, 56), images=16),
    "61 x 53": Case(size=(61, 53), inputs=72, outputs=80, images=16),
    "28": Case(size=(28, 28), inputs=128, outputs=128, images=8),
    "14": Case(size=(14, 14), inputs=256, outputs=256, images=32),
    "7": Case(size=(7, 7), inputs=512, outputs=512, images=32),
    "stride 2": Case(size=(28, 28), inputs=128, outputs=256, stride=2, images=8),
    "many columns": Case(size=(30, 31), inputs=64, outputs=320, images=3, dtype="f16"),
}


def summed(case: Case, x: Array, w: Array) -> Array:
    """The convolution tap by tap, in f32."""
    low, high = case.padding[:2], case.padding[2:]
    padded = np.pad(x.astype(np.float32), ((0, 0), *zip(low, high, strict=True), (0, 0)))
    rows, columns = case.places
    total = np.zeros((case.images, rows, columns, case.outputs), np.float32)
    for r in range(case.window[0]):
        for s in range(case.window[1]):
            part = padded[:, r :: case.stride, s :: case.stride][:, :rows, :columns]
            total += part @ w[r, s].astype(np.float32)
    return total


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_networks_are_right_and_give_the_same_bits_again(name: str) -> None:
    case = LAYERS[name]
    program = case.program()
    x, w = inputs_for(program, 2)
    executable = compile_program(program, "sm90")
    first, again = (executable.run([x, w])[0] for _ in range(2))
    assert (first.view(np.uint16) == again.view(np.uint16)).all()
    wanted = summed(case, x, w)
    assert np.abs(first.astype(np.float32) - wanted).max() <= 1e-2 * np.abs(wanted).max()
