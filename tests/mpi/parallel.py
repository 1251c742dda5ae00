"""A script for two ranks: a function for whole tensors, split by batches and then by layers. Each
rank prints `right`, where the losses are those of one rank."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

import weft
from weft import functional as F
from weft import nn, optim

X = np.random.default_rng(0).standard_normal((8, 2)).astype(np.float32)
Y = (X[:, 0] * X[:, 1] > 0).astype(np.int32)
SPLIT: dict[str, Any] = {
    "x": {0: "data"}, "y": {0: "data"},
    "model.layers.0": {0: "model"}, "model.layers.2.weight": {1: "model"},
}  # fmt: skip


def trained(mesh: weft.Mesh) -> list[float]:
    nn.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    optimiser = optim.SGD(1e-1)
    state = optimiser.init(model)

    @weft.jit
    @weft.parallel(mesh, split=SPLIT)
    def step(model: Any, state: Any, x: Any, y: Any) -> Any:
        loss, slopes = weft.value_and_grad(lambda m: F.cross_entropy(m(x), y))(model)
        return *optimiser.update(slopes, state, model), loss

    losses = []
    for _ in range(3):
        model, state, loss = step(model, state, X, Y)
        losses.append(float(loss))
    return losses


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    for axis, other in (("data", "model"), ("model", "data")):
        mesh = weft.mesh(**{axis: -1, other: 1})
        np.testing.assert_allclose(trained(mesh), wanted, rtol=1e-5)
    print("right", weft.mesh().rank, flush=True)
