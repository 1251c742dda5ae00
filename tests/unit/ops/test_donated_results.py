"""Steps whose state is donated give what they give when it is not, whichever results are written
into whichever inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn, optim
from weft.ptir import Builder

Step = Callable[[Sequence[Any], Any], list[Any]]
X = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)


def total(value: Any, axis: int = 0) -> Any:
    return weft.sum(value, axis=axis)


STEPS: dict[str, tuple[Step, int]] = {
    "slope and offset": (
        lambda p, x: [
            p[0] - total((x * p[0] + p[1]) * x),
            p[1] - total(x * p[0] + p[1]),
        ],
        2,
    ),
    "the other way round": (
        lambda p, x: [p[1] - total(x * p[0] + p[1]), p[0] - total((x * p[0] + p[1]) * x)],
        2,
    ),
    "in a ring": (
        lambda p, x: [p[k] - total(x * p[(k + 1) % 3]) for k in range(3)],
        3,
    ),
    "rows": (
        lambda p, x: [p[0] - total(x[:4] * p[1], 1), p[1] - total(x[:4] * p[0], 1)],
        2,
    ),
    "maxima": (
        lambda p, x: [p[0] - weft.max(x * p[0] + p[1], axis=0), p[1] - weft.max(x * p[1], axis=0)],
        2,
    ),
    "maps": (lambda p, x: [p[0] - p[1] * x[0], p[1] - p[0] * x[1]], 2),
    "a product": (
        lambda p, x: [p[0] - x.T @ (x @ p[0]), p[1] - total(x * p[0])],
        2,
    ),
}


def state(count: int) -> list[Any]:
    return [weft.asarray(np.full(4, 1.0 + 0.5 * k, np.float32)) for k in range(count)]


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("name", STEPS)
def test_results_are_those_without_donation(name: str) -> None:
    step, count = STEPS[name]
    want = weft.jit(step)(state(count), weft.asarray(X))
    got = weft.jit(step, donate=("p",))(state(count), weft.asarray(X))
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("optimiser", [optim.SGD(0.1), optim.SGD(0.1, momentum=0.9)])
def test_a_norm_with_fixed_statistics_trains_alike(optimiser: Any) -> None:
    def trained(donate: bool) -> float:
        model = nn.BatchNorm(4)
        own = optimiser.init(model)

        def step(m: Any, s: Any, x: Any) -> Any:
            loss, slope = weft.value_and_grad(lambda m: weft.mean((m(x) - 1) ** 2))(m)
            return *optimiser.update(slope, s, m), loss

        run = weft.jit(step, donate=("m", "s") if donate else ())
        loss: Any = None
        for _ in range(4):
            model, own, loss = run(model, own, weft.asarray(X))
        return float(loss)

    assert trained(True) == pytest.approx(trained(False), rel=1e-6)


def test_moments_lie_in_their_own_memory() -> None:
    """What is read once, in no reduction, may be written over though another result is made of
    it, too: the moments of a step."""
    b = Builder()
    w, m, g = (b.param("f32", [64]) for _ in range(3))
    moved = m + g
    made = weft.compile(b.build(w - moved, moved), donate=(0, 1))
    assert '"second": "out0"' in str(made.stages["memory"])
    assert '"second": "out1"' in str(made.stages["memory"])
