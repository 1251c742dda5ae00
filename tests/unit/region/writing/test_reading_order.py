"""Products on CPUs are stored in the order in which they are read, and mean the same."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.example_inputs import inputs_for
from weft import functional as F
from weft.ptir import Program
from weft.testing.compare import compare


def numbers(*shape: int) -> Any:
    return weft.asarray(np.random.default_rng(shape).standard_normal(shape).astype(np.float32))


def shapes_of_products(program: Program) -> list[list[int]]:
    """What the kernels of products store."""
    module = json.loads(weft.compile(program, "x86-64-v4").stages["region"])["module"]
    regions = [kernel["region"] for kernel in module["kernels"]]
    made = [r["outputs"][0] for r in regions if r.get("roles")]
    return [[n for n in output["memref"]["shape"] if n > 1] for output in made]


def agrees(program: Program) -> None:
    report = compare(program, inputs_for(program, 3), "cpu")
    assert report.agrees, str(report)


def halves(x: Any, w: Any, b: Any) -> Any:
    """A gate of two halves of the channels of a convolution."""
    y = F.conv1d(x, w, b)
    return weft.tanh(y[:, :8]) * F.sigmoid(y[:, 8:])


def test_channels_that_are_cut_in_halves_lie_apart() -> None:
    program = weft.jit(halves).program(numbers(1, 6, 41), numbers(16, 6, 2), numbers(16))
    assert shapes_of_products(program) == [[16, 40]]
    agrees(program)


def test_several_readers_agree_on_an_order() -> None:
    def skips(x: Any, w: Any) -> Any:
        y = F.conv2d(x, w)
        return F.relu(y), weft.mean(y, axis=(2, 3)), F.max_pool2d(y, 2)

    program = weft.jit(skips).program(numbers(2, 6, 14, 14), numbers(16, 6, 3, 3))
    assert shapes_of_products(program) == [[2, 16, 12, 12]]
    agrees(program)


@pytest.mark.parametrize("where", ["handed out", "in its own order", "in two orders"])
def test_others_stay_as_they_are(where: str) -> None:
    def product(x: Any, w: Any) -> Any:
        y = x @ w
        if where == "handed out":
            return y, weft.tanh(y.T) + y.T[0]
        if where == "in its own order":
            return weft.tanh(y[:, :8]), weft.exp(y)
        return weft.tanh(y.T[:, :8]), weft.exp(y)

    program = weft.jit(product).program(numbers(20, 12), numbers(12, 30))
    assert [20, 30] in shapes_of_products(program)
    agrees(program)
