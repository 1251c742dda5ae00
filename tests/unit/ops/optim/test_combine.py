"""Optimisers made of optimisers: chains, groups, masks, accumulation, averages."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.draws import generator
from weft import nn, optim
from weft.foundation.errors import UserError

RNG = generator()
START = RNG.standard_normal((3, 2))
SLOPES = RNG.standard_normal((6, 3, 2))


def params_of(*shapes: tuple[int, ...]) -> list[weft.Tensor]:
    return [weft.asarray(RNG.standard_normal(shape)) for shape in shapes]


def run(optimiser: optim.Optimiser, slopes: Any = SLOPES, *, compiled: bool = True) -> Any:
    params: Any = {"w": weft.asarray(START)}
    state: Any = optimiser.init(params)
    update = weft.jit(optimiser.update) if compiled else optimiser.update
    for slope in slopes:
        params, state = update({"w": weft.asarray(slope)}, state, params)
    return params["w"].numpy(), state


def test_a_chain_hands_on_what_it_makes() -> None:
    parts = optim.chain(optim.clip(value=0.5), optim.SGD(0.1, 0.9))
    found, state = run(parts)
    expected, _ = run(optim.SGD(0.1, 0.9), np.clip(SLOPES, -0.5, 0.5))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert len(state) == 2
    plain, _ = run(parts, compiled=False)
    np.testing.assert_allclose(found, plain, rtol=1e-6)


def test_a_clip_by_norm_scales_everything_together() -> None:
    found, _ = run(optim.chain(optim.clip(norm=0.1), optim.SGD(1.0)), SLOPES[:1])
    length = np.linalg.norm(SLOPES[0])
    np.testing.assert_allclose(found, START - SLOPES[0] * 0.1 / length, rtol=1e-5)


def test_adamw_is_a_chain() -> None:
    whole = optim.AdamW(optim.cosine(0.1, 10), weight_decay=0.05)
    parts = optim.chain(optim.Adam(1.0), optim.decay(0.05), optim.scale(optim.cosine(0.1, 10)))
    np.testing.assert_allclose(run(whole)[0], run(parts)[0], rtol=1e-6)


def test_groups_have_optimisers_of_their_own() -> None:
    model = nn.Linear(2, 3)
    grouped = optim.partition(
        lambda name, tensor: "frozen" if name.endswith("bias") else "learnt",
        {"learnt": optim.SGD(0.5), "frozen": optim.freeze()},
    )
    state = grouped.init(model)
    after, state = grouped.update(model.map(weft.ones_like), state, model)
    np.testing.assert_allclose(after.weight.numpy(), model.weight.numpy() - 0.5, rtol=1e-6)
    assert after.bias is not None
    assert model.bias is not None
    np.testing.assert_array_equal(after.bias.numpy(), model.bias.numpy())
    assert state.keys() == {"learnt", "frozen"}


def test_muon_beside_adamw() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    both = optim.partition(
        lambda name, tensor: "matrix" if tensor.ndim == 2 else "rest",
        {"matrix": optim.Muon(0.1), "rest": optim.AdamW(0.1)},
    )
    state = both.init(model)
    assert len(state["matrix"]["velocity"]) == 1
    assert len(state["rest"]["mean"]) == 3
    after, _ = both.update(model.map(weft.ones_like), state, model)
    assert (after[1].weight.numpy() != 1).all()


def test_decay_by_a_condition() -> None:
    matrix, vector = params_of((2, 2), (2,))
    plain = optim.chain(optim.decay(0.5, lambda name, tensor: tensor.ndim > 1), optim.SGD(1.0))
    params: Any = {"m": matrix, "v": vector}
    slopes = {name: weft.zeros_like(value) for name, value in params.items()}
    after, _ = plain.update(slopes, plain.init(params), params)
    np.testing.assert_allclose(after["m"].numpy(), matrix.numpy() * 0.5, rtol=1e-6)
    np.testing.assert_array_equal(after["v"].numpy(), vector.numpy())


def test_a_mask_hands_on_the_rest() -> None:
    matrix, vector = params_of((2, 2), (2,))
    some = optim.chain(
        optim.masked(optim.clip(value=0.0), lambda name, tensor: tensor.ndim > 1), optim.SGD(1.0)
    )
    params: Any = {"m": matrix, "v": vector}
    after, _ = some.update(
        {name: weft.ones_like(value) for name, value in params.items()}, some.init(params), params
    )
    np.testing.assert_array_equal(after["m"].numpy(), matrix.numpy())
    np.testing.assert_allclose(after["v"].numpy(), vector.numpy() - 1.0, rtol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_accumulation_is_a_step_by_the_mean(compiled: bool) -> None:
    found, state = run(optim.accumulate(optim.AdamW(0.1), 3), compiled=compiled)
    means = SLOPES.reshape(2, 3, 3, 2).mean(1)
    np.testing.assert_allclose(found, run(optim.AdamW(0.1), means)[0], rtol=1e-5)
    assert float(state["inner"]["step"]) == 2
    between, _ = run(optim.accumulate(optim.AdamW(0.1), 3), SLOPES[:2])
    np.testing.assert_array_equal(between, START)


def test_an_average_follows_the_parameters() -> None:
    optimiser = optim.chain(optim.SGD(0.1), optim.average(0.9))
    params: Any = {"w": weft.asarray(START)}
    state = optimiser.init(params)
    expected = START
    for slope in SLOPES:
        params, state = optimiser.update({"w": weft.asarray(slope)}, state, params)
        expected = 0.9 * expected + 0.1 * params["w"].numpy()
    found = optim.averaged(state, params)
    np.testing.assert_allclose(found["w"].numpy(), expected, rtol=1e-6)


def test_the_average_of_a_model_keeps_what_is_not_learnt() -> None:
    model: Any = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm(2))
    optimiser = optim.chain(optim.SGD(0.1), optim.average(0.5))
    state: Any = optimiser.init(model)
    step = weft.jit(optimiser.update, donate=("state", "params"))
    first = model[0].weight.numpy()
    model, state = step(model.map(weft.ones_like), state, model)
    found = optim.averaged(state, model)
    np.testing.assert_allclose(found[0].weight.numpy(), first - 0.05, rtol=1e-5)
    np.testing.assert_array_equal(found[1].running_var.numpy(), np.ones(2))


def test_a_chain_is_pickled() -> None:
    made = optim.chain(optim.clip(norm=1.0), optim.Lion(0.1), optim.average())
    np.testing.assert_array_equal(run(pickle.loads(pickle.dumps(made)))[0], run(made)[0])


WRONG: Any = 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: optim.chain(WRONG), r"\[chain\] an int is given where an optimiser is wanted"),
        (lambda: optim.clip(), r"\[clip\] give norm, value, or both"),
        (lambda: optim.clip(norm=-1.0), r"\[clip\] norm is -1.0; it must be a number, at least 0"),
        (lambda: optim.partition(lambda n, t: "a", {}), "optimisers are given by label"),
        (
            lambda: optim.partition(lambda n, t: "b", {"a": optim.SGD(0.1)}).init(params_of((2,))),
            r"the label of params\[0\] is 'b'; there are a",
        ),
        (lambda: optim.accumulate(optim.SGD(0.1), 0), r"\[accumulate\] steps is 0"),
        (lambda: optim.Muon().init(params_of((2,))), r"params\[0\] is f64\[2\], not a matrix"),
        (lambda: optim.averaged({"step": 1}, params_of((2,))), "the state has 0 averages"),
        (
            lambda: optim.chain(optim.SGD(0.1)).update(params_of((2,)), {}, params_of((2,))),
            "the state of a chain is a tuple of 1, and this is a dict",
        ),
        (lambda: optim.joined([0.1, 0.2], [3, 2]), r"\[joined\] 2 schedules have 1 boundaries"),
        (lambda: optim.one_cycle(0.1, 1), r"\[one_cycle\] steps is 1"),
    ],
)
def test_mistakes_are_told(call: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()
