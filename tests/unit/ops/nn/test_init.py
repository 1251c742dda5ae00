"""First values of parameters: their spread, and that they are parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft.foundation.errors import UserError
from weft.nn import init

KEY = weft.random.key(0)
SHAPE = (64, 32, 3, 3)


@pytest.mark.parametrize(
    ("made", "deviation"),
    [
        (init.xavier_uniform, (2 / (32 * 9 + 64 * 9)) ** 0.5),
        (init.xavier_normal, (2 / (32 * 9 + 64 * 9)) ** 0.5),
        (init.kaiming_uniform, (2 / (32 * 9)) ** 0.5),
        (init.kaiming_normal, (2 / (32 * 9)) ** 0.5),
    ],
)
def test_the_spread_follows_inputs_and_outputs(made: Any, deviation: float) -> None:
    weight = made(KEY, SHAPE)
    assert weight.shape == SHAPE
    assert weight.requires_grad
    values = weight.numpy()
    assert values.std() == pytest.approx(deviation, rel=0.03)
    assert abs(values.mean()) < 0.02 * deviation
    assert made(
        KEY, (8,), inputs=9, **({"outputs": 9} if "xavier" in made.__name__ else {})
    ).shape == (8,)
    with pytest.raises(UserError, match="how many inputs and outputs"):
        made(KEY, (8,))


@pytest.mark.parametrize("shape", [(5, 5), (3, 7), (7, 3), (4, 2, 3, 3)])
def test_orthogonal(shape: tuple[int, ...]) -> None:
    weight = init.orthogonal(KEY, shape, gain=2.0).numpy().reshape(shape[0], -1)
    small = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
    assert small == pytest.approx(4 * np.eye(len(small)), abs=1e-5)


def test_plain_values() -> None:
    assert init.zeros((2,)).tolist() == [0.0, 0.0]
    assert init.ones(2, "bfloat16").dtype == weft.bfloat16
    assert init.constant((1,), 3.0).tolist() == [3.0]
    assert init.normal(KEY, (2000,), 0.5).numpy().std() == pytest.approx(0.5, rel=0.1)
    cut = init.truncated_normal(KEY, (2000,), 0.5).numpy()
    assert np.abs(cut).max() <= 1.0
    assert np.abs(init.uniform(KEY, (2000,), 0.1).numpy()).max() <= 0.1


def test_they_work_in_a_traced_function_and_replace_weights() -> None:
    made = weft.jit(lambda key: init.kaiming_normal(key, (4, 4)))(KEY)
    assert made.tolist() == init.kaiming_normal(KEY, (4, 4)).tolist()
    layer = weft.nn.Linear(4, 4)
    layer.weight = init.orthogonal(KEY, layer.weight.shape)
    assert layer(weft.ones((1, 4))).shape == (1, 4)
    assert dir(init) == sorted(init.__all__)
