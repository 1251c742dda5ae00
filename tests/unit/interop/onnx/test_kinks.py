"""Gradients of loaded models where an operator has a kink: those of `weft.functional`, which are
PyTorch's."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import weft
from tests.support import onnx_models as m
from tests.support.cases import each

SELU = 1.67326319217681884765625 * 1.05070102214813232421875


@dataclass(frozen=True)
class Kink:
    """A node of one operator, where its operand is, and its derivative at each element there."""

    op: str
    at: list[Any]
    wanted: list[Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    """Further operands, in order; None is one left out."""
    version: int = 21


KINKS = [
    Kink("Relu", [-1, -0.0, 0, 1], [0, 0, 0, 1]),
    Kink("LeakyRelu", [-1, 0, 1], [0.01, 0.01, 1]),
    Kink("PRelu", [-1, 0, 1], [0.25, 0.25, 1], constants={"slope": 0.25}),
    Kink("ThresholdedRelu", [0.5, 1, 2], [0, 0, 1]),
    Kink("Elu", [0, -0.0, 800], [1, 1, 1]),
    Kink("Elu", [0], [0.5], {"alpha": 0.5}),
    Kink("Celu", [0, 800], [1, 1]),
    Kink("Selu", [0, -0.0, 800], [SELU, SELU, 1.05070102214813232421875]),
    Kink("HardSigmoid", [-3, -2.5, 0, 2.5, 3], [0, 0, 0.2, 0, 0]),
    Kink("HardSigmoid", [-1, 0, 1], [0, 0.5, 0], {"alpha": 0.5, "beta": 0.5}),
    Kink("HardSwish", [-3, 3], [0, 1]),
    Kink("Shrink", [-0.5, 0, 0.5, 1], [0, 0, 0, 1]),
    Kink("Softplus", [-800, 0, 800], [0, 0.5, 1]),
    Kink("Mish", [-800, 800], [0, 1]),
    Kink("Abs", [0, -0.0], [0, 0]),
    Kink("Clip", [-2, -1, 0, 1, 2], [0, 1, 1, 1, 0], constants={"low": -1, "high": 1}),
    Kink("Clip", [-1, 0, -0.0], [0, 1, 1], constants={"low": 0}),
    Kink("Clip", [1, 2], [1, 0], constants={"low": None, "high": 1}),
    Kink("Clip", [-1, 1], [1, 1], {"min": -1.0, "max": 1.0}, version=6),
    Kink("Max", [0, 1, 2], [0, 0.5, 1], constants={"other": 1}),
    Kink("Min", [0, 1, 2], [1, 0.5, 0], constants={"other": 1}),
    Kink("ReduceMax", [1, 1, 0], [0.5, 0.5, 0]),
    Kink("ReduceMin", [1, 1, 2], [0.5, 0.5, 0]),
    Kink("ReduceL1", [0, 1], [0, 1]),
    Kink("ReduceL2", [0, 0], [0, 0]),
    Kink("ReduceL2", [3, 4], [0.6, 0.8]),
    Kink("ReduceLogSumExp", [-math.inf, 0], [0, 1]),
    Kink("LpNormalization", [0, 0], [0, 0]),
    Kink("LpNormalization", [0, 0], [0, 0], {"p": 1}),
    Kink("LpPool", [[[0, 0, 3, 4]]], [[[0, 0, 0.6, 0.8]]], {"kernel_shape": [2], "strides": [2]}),
    Kink("GlobalLpPool", [[[0, 0]]], [[[0, 0]]]),
    Kink("GlobalLpPool", [[[0, 0]]], [[[0, 0]]], {"p": 3}),
]


@each("kink", KINKS)
def test_the_derivative_at_a_kink(kink: Kink) -> None:
    x = np.array(kink.at, np.float32)
    names = " ".join("-" if each is None else name for name, each in kink.constants.items())
    given = {name: np.float32(each) for name, each in kink.constants.items() if each is not None}
    nodes = [m.node(kink.op, f"x {names}", "y", **kink.attributes)]
    body = m.graph(nodes, [m.value("x", x.shape)], [m.value("y", None)], given)
    model = weft.onnx.load(m.model(body, kink.version).SerializeToString())
    found = weft.grad(lambda z: model(z)["y"].sum())(weft.asarray(x))
    np.testing.assert_allclose(found.numpy(), np.array(kink.wanted, np.float32), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("activation", "at", "wanted"), [("Relu", 0.0, 0.0), ("HardSigmoid", 2.5, 0.0)]
)
def test_activations_of_recurrent_layers(activation: str, at: float, wanted: float) -> None:
    nodes = [m.node("RNN", "x w r", "y", hidden_size=1, activations=[activation])]
    weights = {"w": np.ones((1, 1, 1), np.float32), "r": np.ones((1, 1, 1), np.float32)}
    body = m.graph(nodes, [m.value("x", (1, 1, 1))], [m.value("y", None)], weights)
    model = weft.onnx.load(m.model(body).SerializeToString())
    x = weft.asarray(np.full((1, 1, 1), at, np.float32))
    assert weft.grad(lambda z: model(z)["y"].sum())(x).item() == wanted


def test_integers_have_a_relu() -> None:
    body = m.graph([m.node("Relu", "x", "y")], [m.value("x", (2,), 6)], [m.value("y", None, 6)])
    model = weft.onnx.load(m.model(body).SerializeToString())
    assert model(weft.asarray(np.array([-1, 2], np.int32)))["y"].tolist() == [0, 2]
