"""Dropout on a GPU: the masks are the reference's, bit by bit, and so a training step drops the
same numbers forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from weft import functional as F
from weft import nn, optim
from weft.driver.compile import compile_program
from weft.runtime.artifact import HostCall
from weft.runtime.cuda.driver import compute_capability

Array = NDArray[Any]
pytestmark = pytest.mark.skipif(compute_capability() is None, reason="there is no GPU")
RATE = 0.3


class Net(nn.Module):
    """Two layers with dropout between them."""

    def __init__(self) -> None:
        self.first = nn.Linear(48, 64)
        self.dropout = nn.Dropout(RATE)
        self.second = nn.Linear(64, 10)

    def __call__(self, x: weft.Tensor, key: Any) -> weft.Tensor:
        return self.second(self.dropout(F.relu(self.first(x)), key))


def step(optimiser: optim.Optimiser) -> Any:
    def train(model: Net, state: Any, x: Any, wanted: Any, seed: Any, offset: Any) -> Any:
        def loss_of(candidate: Net) -> weft.Tensor:
            return F.cross_entropy(candidate(x, (seed, offset)), wanted)

        loss, gradients = weft.value_and_grad(loss_of)(model)
        model, state = optimiser.update(gradients, state, model)
        return model, state, loss

    return weft.jit(train, donate=("model", "state"))


def data() -> tuple[Array, Array]:
    rng = np.random.default_rng(5)
    return rng.standard_normal((96, 48)).astype(np.float32), rng.integers(0, 10, 96)


def trained(backend: str, steps: int = 6) -> tuple[list[float], list[Array]]:
    """The losses, and the weights in the end."""
    with weft.graph(backend=backend):
        nn.manual_seed(3)
        model, optimiser = Net(), optim.AdamW(1e-2)
        state, train = optimiser.init(model), step(optimiser)
        x, wanted = data()
        losses = []
        for number in range(steps):
            seed, offset = np.int64(11), np.int64(number * 96 * 64)
            model, state, loss = train(model, state, x, wanted, seed, offset)
            losses.append(float(loss.numpy()))
        return losses, [model.first.weight.numpy(), model.second.weight.numpy()]


def masks(backend: str, rows: int, columns: int) -> Array:
    with weft.graph(backend=backend):
        ones = weft.ones((rows, columns))
        dropped = weft.jit(lambda x, seed, offset: nn.Dropout(RATE)(x, (seed, offset)))
        found: Array = dropped(ones, np.int64(7), np.int64(40)).numpy()
        return found


@pytest.mark.parametrize("shape", [(96, 64), (3, 5), (1, 4099)])
def test_masks_have_the_bits_of_the_reference(shape: tuple[int, int]) -> None:
    got, want = masks("cuda", *shape), masks("reference", *shape)
    assert (got.view(np.uint32) == want.view(np.uint32)).all()


def test_a_training_step_drops_what_the_reference_drops() -> None:
    """A mask that differed in one element would move its weights by a step of the optimiser."""
    (losses, weights), (want, reference) = trained("cuda"), trained("reference")
    np.testing.assert_allclose(losses, want, rtol=1e-4)
    for mine, theirs in zip(weights, reference, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-4)


def test_a_training_step_leaves_nothing_to_the_host() -> None:
    model, optimiser = Net(), optim.AdamW(1e-2)
    x, wanted = data()
    numbers = np.int64(11), np.int64(0)
    program = step(optimiser).program(model, optimiser.init(model), x, wanted, *numbers)
    steps = compile_program(program, "sm90").artifact.steps
    assert not [found.label for found in steps if isinstance(found, HostCall)]
