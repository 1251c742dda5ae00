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
    (optim.RMSprop(0.01), "RMSprop", {"lr": 0.01}),
    (
        optim.RMSprop(0.01, 0.9, 1e-6, momentum=0.8, centred=True, weight_decay=0.1),
        "RMSprop",
        {"lr": 0.01, "alpha": 0.9, "eps": 1e-6, "momentum": 0.8, "centered": True,
         "weight_decay": 0.1},
    ),
    (optim.Adagrad(0.1), "Adagrad", {"lr": 0.1}),
    (
        optim.Adagrad(0.1, initial=0.1, rate_decay=0.05, weight_decay=0.1),
        "Adagrad",
        {"lr": 0.1, "lr_decay": 0.05, "initial_accumulator_value": 0.1, "weight_decay": 0.1},
    ),
    (optim.Adafactor(0.01), "Adafactor", {"lr": 0.01}),
    (
        optim.Adafactor(0.02, decay=0.7, clip=1.2, weight_decay=0.1),
        "Adafactor",
        {"lr": 0.02, "beta2_decay": -0.7, "d": 1.2, "weight_decay": 0.1},
    ),
    (
        optim.chain(optim.Adam(1.0), optim.decay(0.1), optim.scale(0.01)),
        "AdamW",
        {"lr": 0.01, "weight_decay": 0.1},
    ),
]  # fmt: skip


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


@pytest.mark.parametrize("options", [{}, {"warm": 0.5, "start": 10.0, "end": 50.0}])
def test_the_same_cycle(options: dict[str, float]) -> None:
    names = {"warm": "pct_start", "start": "div_factor", "end": "final_div_factor"}
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, 0.5, 40, **{names[key]: value for key, value in options.items()}
    )
    mine = optim.one_cycle(0.5, 40, **options)
    for step in range(40):
        wanted = theirs.get_last_lr()[0]
        assert float(mine(step)) == pytest.approx(wanted, rel=1e-4, abs=1e-8)
        optimiser.step()
        if step < 39:
            theirs.step()


def test_adafactor_of_a_vector() -> None:
    rng = np.random.default_rng(0)
    start = rng.standard_normal(7)
    theirs = torch.nn.Parameter(torch.from_numpy(start.copy()))
    other, mine = torch.optim.Adafactor([theirs]), optim.Adafactor()
    params: Any = weft.asarray(start)
    state: Any = mine.init(params)
    for _ in range(5):
        slope = rng.standard_normal(7)
        params, state = mine.update(weft.asarray(slope), state, params)
        theirs.grad = torch.from_numpy(slope)
        other.step()
    np.testing.assert_allclose(params.numpy(), theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_muon_is_near_theirs_which_rounds_to_bfloat16() -> None:
    rng = np.random.default_rng(0)
    start = rng.standard_normal((6, 4)).astype(np.float32)
    theirs = torch.nn.Parameter(torch.from_numpy(start.copy()))
    other, mine = torch.optim.Muon([theirs], lr=0.1), optim.Muon(0.1)
    params: Any = weft.asarray(start)
    state: Any = mine.init(params)
    for _ in range(5):
        slope = rng.standard_normal((6, 4)).astype(np.float32)
        params, state = mine.update(weft.asarray(slope), state, params)
        theirs.grad = torch.from_numpy(slope)
        other.step()
    np.testing.assert_allclose(params.numpy(), theirs.detach().numpy(), atol=0.05)
