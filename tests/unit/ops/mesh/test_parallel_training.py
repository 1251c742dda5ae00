"""Training on several ranks gives what training on one gives."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.mesh_gpt import trained
from weft import functional as F
from weft import nn, optim


@cache
def _alone() -> list[float]:
    return trained(weft.mesh(data=1, model=1, simulated=True), 6, np.float64)


@pytest.mark.parametrize(("data", "model"), [(2, 1), (1, 2), (2, 2)])
def test_a_gpt_split_by_batches_or_heads_learns_the_same(data: int, model: int) -> None:
    found = trained(weft.mesh(data=data, model=model, simulated=True), 6, np.float64)
    assert found == pytest.approx(_alone(), rel=1e-10)
    assert found[-1] < found[0]


BATCH = np.random.default_rng(0).standard_normal((16, 2)).astype(np.float32)


def _step(mesh: weft.Mesh, optimiser: Any, *, reduced: bool) -> Any:
    @weft.spmd(mesh, split={"x": {0: "data"}})
    def step(model: Any, state: Any, x: Any) -> Any:
        target = (x[:, 0] * x[:, 1] > 0).astype("int32")
        loss, slopes = weft.value_and_grad(lambda m: F.cross_entropy(m(x), target))(model)
        loss = weft.all_reduce(loss, "mean", over="data")
        if reduced:
            slopes = weft.all_reduce(slopes, "mean", over="data")
        return *optimiser.update(slopes, state, model), loss

    return step


def _begun(optimiser: Any) -> tuple[Any, Any]:
    nn.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
    return model, optimiser.init(model)


def _losses(step: Any, model: Any, state: Any, count: int) -> tuple[list[float], Any, Any]:
    losses = []
    for _ in range(count):
        model, state, loss = step(model, state, BATCH)
        losses.append(float(loss))
    return losses, model, state


@pytest.mark.parametrize("reduced", [False, True], ids=["own gradients", "reduced gradients"])
def test_a_split_state_is_the_whole_one(reduced: bool) -> None:
    one = weft.mesh(data=1)
    alone, _, whole = _losses(
        _step(one, optim.AdamW(1e-2), reduced=True), *_begun(optim.AdamW(1e-2)), 3
    )
    mesh = weft.mesh(data=2, model=2, simulated=True)
    optimiser = optim.sharded(optim.AdamW(1e-2), mesh)
    found, _, state = _losses(_step(mesh, optimiser, reduced=reduced), *_begun(optimiser), 3)
    assert found == pytest.approx(alone, rel=1e-5)
    assert [type(x).__name__ for x in state["mean"]] == ["Sharded", "Sharded", "Sharded", "Tensor"]
    for own, wanted in zip(state["square"], whole["square"], strict=True):
        assert np.allclose(own.numpy(), wanted.numpy(), atol=1e-9)


def test_training_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    def on(count: int) -> tuple[weft.Mesh, Any]:
        mesh = weft.mesh(data=count, simulated=True)
        return mesh, optim.sharded(optim.AdamW(1e-2), mesh)

    mesh, optimiser = on(2)
    through, _, _ = _losses(_step(mesh, optimiser, reduced=False), *_begun(optimiser), 4)
    _, model, state = _losses(_step(mesh, optimiser, reduced=False), *_begun(optimiser), 2)
    path = tmp_path / "step.safetensors"
    weft.save(path, (model, state), mesh=mesh)
    for count in (1, 4):
        mesh, optimiser = on(count)
        model, state = weft.load(path, _begun(optimiser))
        later, _, _ = _losses(_step(mesh, optimiser, reduced=False), model, state, 2)
        assert later == pytest.approx(through[2:], rel=1e-6)


def test_what_a_part_is_not_enough_for_is_refused() -> None:
    mesh = weft.mesh(data=2, simulated=True)
    with pytest.raises(weft.UserError, match="LAMB looks at more than one element at a time"):
        optim.sharded(optim.LAMB(1e-2), mesh)
    with pytest.raises(weft.UserError, match="the mesh has no axis 'rows'"):
        optim.sharded(optim.AdamW(1e-2), mesh, over="rows")


def test_a_split_result_that_differs_along_another_axis_is_told() -> None:
    mesh = weft.mesh(data=2, model=2, simulated=True)

    @weft.spmd(mesh, split={"x": {0: "data", 1: "model"}})
    def run(x: Any) -> Any:
        return weft.Sharded(x * 2, mesh, {0: "data"})

    with pytest.raises(weft.UserError, match="also differs between the ranks along model"):
        run(np.ones((2, 2), np.float32))
