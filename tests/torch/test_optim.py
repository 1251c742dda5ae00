"""Optimisers against PyTorch's, over many steps of the same gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft import optim

torch = pytest.importorskip("torch", reason="torch is not installed")
STEPS = 30
PAIRS: list[tuple[Any, str, dict[str, Any]]] = [
    (optim.SGD(0.1), "SGD", {"lr": 0.1}),
    (
        optim.SGD(0.1, 0.9, weight_decay=0.01),
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    ),
    (
        optim.SGD(0.1, 0.9, nesterov=True),
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    ),
    (optim.Adam(0.01, weight_decay=0.1), "Adam", {"lr": 0.01, "weight_decay": 0.1}),
    (
        optim.AdamW(0.01, (0.8, 0.99), 1e-6, 0.1),
        "AdamW",
        {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1},
    ),
]


@pytest.mark.parametrize(("mine", "name", "options"), PAIRS)
def test_the_same_steps(mine: optim.Optimiser, name: str, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    start = rng.standard_normal((4, 3))
    theirs = torch.nn.Parameter(torch.from_numpy(start.copy()))
    other = getattr(torch.optim, name)([theirs], **options)
    params: Any = weft.asarray(start)
    state: Any = mine.init(params)
    update = weft.jit(mine.update)
    for _ in range(STEPS):
        slope = rng.standard_normal((4, 3))
        params, state = update(weft.asarray(slope), state, params)
        theirs.grad = torch.from_numpy(slope)
        other.step()
    np.testing.assert_allclose(params.numpy(), theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_the_same_clipping() -> None:
    rng = np.random.default_rng(0)
    slopes = [rng.standard_normal((4, 3)), rng.standard_normal(5)]
    theirs = [torch.nn.Parameter(torch.zeros(s.shape, dtype=torch.float64)) for s in slopes]
    for parameter, slope in zip(theirs, slopes, strict=True):
        parameter.grad = torch.from_numpy(slope.copy())
    length = torch.nn.utils.clip_grad_norm_(theirs, 0.5)
    clipped, found = optim.clip_by_global_norm([weft.asarray(s) for s in slopes], 0.5)
    assert float(found) == pytest.approx(float(length), rel=1e-6)
    for mine, parameter in zip(clipped, theirs, strict=True):
        np.testing.assert_allclose(mine.numpy(), parameter.grad.numpy(), rtol=1e-5)
