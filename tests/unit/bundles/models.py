"""Models that the tests of bundles build."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np

import weft
from weft import functional as F
from weft import nn
from weft.ptir import Builder, Program


def classifier() -> Any:
    """A perceptron that is captured."""
    nn.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))

    def classify(x: Any) -> Any:
        return F.softmax(model(x), axis=-1), model(x).argmax(axis=-1)

    shapes = weft.ShapeSet({"B": (4, 16)})
    return weft.jit(classify, dynamic={"x": {0: "B"}}, shapes=shapes)


def mixture() -> Program:
    """A product with a constant, and two results."""
    b = Builder("mixture")
    x, w = b.param("f32", [5, 7]), b.param("f32", [7, 9])
    table = np.arange(9, dtype=np.float32).reshape(1, 9) ** 2
    y = b.gelu(x @ w + b.broadcast_to(b.constant(table), [5, 9]))
    return b.build(b.softmax(y), b.reduce_sum(y, [0]))


def halving() -> Program:
    """Halves a number until it is small."""
    b = Builder("halving")
    x = b.param("f32", [])

    def going(r: Any, y: Any) -> Any:
        return y > 1.0, y

    return b.build(b.while_(going, lambda r, y: y * 0.5, x))


def noise() -> Program:
    b = Builder("noise")
    x = b.param("f32", [33])
    return b.build(x + b.emit("rng_uniform", shape=[33], dtype="f32"))


def division() -> Program:
    b = Builder("division")
    x, y = b.param("si32", [3]), b.param("si32", [3])
    return b.build(b.emit("div", x, y))


def same() -> Program:
    """Results that are inputs, and one that is there twice."""
    b = Builder("same")
    x, y = b.param("f32", [3]), b.param("f32", [3])
    z = x + y
    return b.build(x, z, z, y)


def added() -> Program:
    b = Builder("added")
    x, y = b.param("f32", [3]), b.param("f32", [3])
    return b.build(x + y)


def updated() -> Program:
    """A table with a row replaced."""
    b = Builder("updated")
    x, row, at = b.param("f32", [6, 3]), b.param("f32", [1, 3]), b.param("si32", [2])
    return b.build(b.emit("dynamic_update_slice", x, row, at, sizes=[1, 3]))


def swapped() -> Program:
    """Two states that change places, and their sum."""
    b = Builder("swapped")
    x, y, step = b.param("f32", [2]), b.param("f32", [2]), b.param("f32", [2])
    return b.build(x + y, y, x + step)


def inputs_of(program: Program, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    found = []
    for kind in program.main.parameters:
        assert isinstance(kind, weft.ptir.TensorType)
        values = rng.random(kind.static_shape) * 10 + 1
        found.append(np.asarray(values.astype(kind.dtype.numpy)))
    return found


PORTABLE = "aarch64" if platform.machine() == "aarch64" else "x86-64-v3"
"""A target whose code runs here, and under tools that know no newer processors."""
