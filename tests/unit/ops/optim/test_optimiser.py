"""`weft.optim` against the formulas of the papers, written again in NumPy."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.draws import generator
from weft import nn, optim
from weft.foundation.errors import UserError

Array = NDArray[Any]
RNG = generator()
STEPS = 5
START = RNG.standard_normal((3, 2))
SLOPES = RNG.standard_normal((STEPS, 3, 2))


def sgd(p: Array, g: Array, s: dict[str, Any], t: int) -> Array:
    return p - 0.1 * g


def momentum(p: Array, g: Array, s: dict[str, Any], t: int) -> Array:
    g = g + 0.01 * p
    s["v"] = 0.9 * s.get("v", 0.0) + g
    return np.asarray(p - 0.1 * s["v"])


def nesterov(p: Array, g: Array, s: dict[str, Any], t: int) -> Array:
    s["v"] = 0.9 * s.get("v", 0.0) + g
    return np.asarray(p - 0.1 * (g + 0.9 * s["v"]))


def _adam_way(g: Array, s: dict[str, Any], t: int) -> Array:
    s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * g
    s["v"] = 0.99 * s.get("v", 0.0) + 0.01 * g * g
    m, v = s["m"] / (1 - 0.9 ** (t + 1)), s["v"] / (1 - 0.99 ** (t + 1))
    return np.asarray(m / (np.sqrt(v) + 1e-8))


def adam(p: Array, g: Array, s: dict[str, Any], t: int) -> Array:
    return p - 0.1 * _adam_way(g + 0.02 * p, s, t)


def adamw(p: Array, g: Array, s: dict[str, Any], t: int) -> Array:
    return p - 0.1 * 0.02 * p - 0.1 * _adam_way(g, s, t)


def lion(p: Array, g: Array, s: dict[str, Any], t: int) -> Array:
    m = s.get("m", 0.0)
    s["m"] = 0.99 * m + 0.01 * g
    return np.asarray(p - 0.1 * (np.sign(0.9 * m + 0.1 * g) + 0.02 * p))


def lamb(p: Array, g: Array, s: dict[str, Any], t: int) -> Array:
    s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * g
    s["v"] = 0.999 * s.get("v", 0.0) + 0.001 * g * g
    m, v = s["m"] / (1 - 0.9 ** (t + 1)), s["v"] / (1 - 0.999 ** (t + 1))
    way = m / (np.sqrt(v) + 1e-6) + 0.02 * p
    return np.asarray(p - 0.1 * np.linalg.norm(p) / np.linalg.norm(way) * way)


def muon(p: Array, g: Array, s: dict[str, Any], t: int) -> Array:
    s["v"] = 0.95 * s.get("v", 0.0) + 0.05 * g
    x = (0.05 * g + 0.95 * s["v"]).T  # The parameter has more rows than columns.
    x = x / np.linalg.norm(x)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return np.asarray(p - 0.1 * (np.sqrt(1.5) * x.T + 0.1 * p))


OPTIMISERS: list[tuple[Any, Any]] = [
    (optim.Lion(0.1, weight_decay=0.02), lion),
    (optim.LAMB(0.1, weight_decay=0.02), lamb),
    (optim.Muon(0.1), muon),
    (optim.SGD(0.1), sgd),
    (optim.SGD(0.1, 0.9, weight_decay=0.01), momentum),
    (optim.SGD(0.1, 0.9, nesterov=True), nesterov),
    (optim.Adam(0.1, (0.9, 0.99), weight_decay=0.02), adam),
    (optim.AdamW(0.1, (0.9, 0.99), weight_decay=0.02), adamw),
]


@pytest.mark.parametrize(
    ("optimiser", "formula"), OPTIMISERS, ids=lambda x: getattr(x, "__name__", "")
)
@pytest.mark.parametrize("compiled", [False, True])
def test_an_optimiser_is_its_formula(
    optimiser: optim.Optimiser, formula: Callable[..., Array], compiled: bool
) -> None:
    counter = weft.asarray(np.array(3))
    params: Any = {"w": weft.asarray(START), "n": counter}
    state: Any = optimiser.init(params)
    update: Any = optimiser.update
    if compiled:
        update = weft.jit(optimiser.update)
    expected, kept = START, dict[str, Any]()
    for t in range(STEPS):
        params, state = update({"w": weft.asarray(SLOPES[t]), "n": counter}, state, params)
        expected = formula(expected, SLOPES[t], kept, t)
        np.testing.assert_allclose(params["w"].numpy(), expected, rtol=1e-5, atol=1e-6)
    assert int(params["n"]) == 3
    assert float(state["step"]) == STEPS


def test_narrow_parameters_stay_narrow() -> None:
    params = weft.asarray(START.astype(np.float16))
    optimiser = optim.Adam(0.1)
    state = optimiser.init(params)
    after, state = optimiser.update(weft.asarray(SLOPES[0].astype(np.float16)), state, params)
    assert after.dtype is weft.float16
    assert state["mean"][0].dtype is weft.float16


def test_arrays_are_learnt_as_tensors_are() -> None:
    optimiser = optim.SGD(0.1, 0.9)
    params: Any = {"w": START}
    state = optimiser.init(params)
    assert [held.shape for held in state["velocity"]] == [(3, 2)]
    params, state = optimiser.update({"w": SLOPES[0]}, state, params)
    np.testing.assert_allclose(params["w"].numpy(), START - 0.1 * SLOPES[0], rtol=1e-6)
    length = math.sqrt((SLOPES[0] ** 2).sum())
    assert float(optim.global_norm({"w": SLOPES[0]})) == pytest.approx(length, rel=1e-6)


@pytest.mark.parametrize("optimiser", [optim.SGD(0.1), optim.SGD(0.1, 0.9), optim.AdamW(0.1)])
def test_a_gradient_of_another_dtype_leaves_that_of_the_parameter(optimiser: Any) -> None:
    params = weft.ones((3, 2))
    for dtype in (np.float16, np.float64):
        slope = weft.asarray(SLOPES[0].astype(dtype))
        after, state = optimiser.update(slope, optimiser.init(params), params)
        assert after.dtype is weft.float32
        assert all(held.dtype is weft.float32 for slot in optimiser.slots for held in state[slot])


@pytest.mark.parametrize("shape", [(1, 2), (3, 1), (1, 3, 2), ()])
def test_a_gradient_that_only_broadcasts_is_told(shape: tuple[int, ...]) -> None:
    params = {"w": weft.ones((3, 2))}
    optimiser = optim.SGD(0.1)
    with pytest.raises(
        weft.SpecViolation, match=r"the gradient of params\['w'\] is f32\[.*f32\[3, 2"
    ):
        optimiser.update({"w": weft.ones(shape)}, optimiser.init(params), params)


SCHEDULES: list[tuple[Any, Callable[[int], float]]] = [
    (optim.constant(0.5), lambda t: 0.5),
    (optim.cosine(1.0, 10, 0.1), lambda t: 0.1 + 0.45 * (1 + math.cos(math.pi * min(t / 10, 1)))),
    (optim.warmup(2.0, 4), lambda t: 2.0 * min((t + 1) / 4, 1)),
    (
        optim.warmup(optim.cosine(1.0, 10), 4),
        lambda t: min((t + 1) / 4, 1) * 0.5 * (1 + math.cos(math.pi * min(max(t - 4, 0) / 10, 1))),
    ),
    (optim.step_decay(1.0, [3, 6], 0.5), lambda t: 0.5 ** ((t >= 3) + (t >= 6))),
    (optim.linear(1.0, 10, 0.2), lambda t: 1.0 - 0.8 * min(t / 10, 1)),
    (optim.exponential(2.0, 0.5, 3), lambda t: 2.0 * 0.5 ** (t / 3)),
    (
        optim.warmup_cosine(1.0, 14, 4),
        lambda t: min((t + 1) / 4, 1) * 0.5 * (1 + math.cos(math.pi * min(max(t - 4, 0) / 10, 1))),
    ),
    (
        optim.joined([0.5, optim.linear(1.0, 4), 0.1], [3, 6]),
        lambda t: 0.5 if t < 3 else 1.0 - (t - 3) / 4 if t < 6 else 0.1,
    ),
]


@pytest.mark.parametrize(("schedule", "formula"), SCHEDULES)
def test_a_schedule_is_its_formula(schedule: Any, formula: Callable[[int], float]) -> None:
    traced = weft.jit(lambda step: schedule(step) + step * 0.0)
    for t in (0, 1, 3, 4, 6, 9, 10, 40):
        found = float(traced(weft.asarray(float(t), dtype="f32")))
        assert found == pytest.approx(formula(t), rel=1e-5, abs=1e-6)
        assert float(schedule(t)) == pytest.approx(formula(t), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("schedule", "formula"), SCHEDULES)
@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW])
def test_an_optimiser_is_pickled(kind: Any, schedule: Any, formula: Callable[[int], float]) -> None:
    optimiser = kind(schedule)
    found = pickle.loads(pickle.dumps(optimiser))
    assert float(found.rate(3)) == pytest.approx(formula(3), rel=1e-5, abs=1e-6)
    assert {**vars(found), "rate": None} == {**vars(optimiser), "rate": None}


def test_what_an_optimiser_is_made_of_is_pickled() -> None:
    plain, scaling = optim.AdamW(0.1), optim.LossScale(8.0)
    assert pickle.loads(pickle.dumps(plain)).rate(0) == 0.1
    assert vars(pickle.loads(pickle.dumps(scaling))) == vars(scaling)


def test_boundaries_may_be_read_only_once() -> None:
    boundaries: Any = iter([3, 6])
    schedule = optim.step_decay(1.0, boundaries, 0.5)
    assert [float(schedule(step)) for step in (0, 3, 6, 3)] == [1.0, 0.5, 0.25, 0.5]


def test_clipping_scales_everything_by_one_factor() -> None:
    slopes = {"a": weft.asarray(START), "b": [weft.asarray(SLOPES[0])], "n": 3}
    length = math.sqrt((START**2).sum() + (SLOPES[0] ** 2).sum())
    clipped, found = optim.clip_by_global_norm(slopes, 1.0)
    assert float(found) == pytest.approx(length, rel=1e-6)
    np.testing.assert_allclose(clipped["a"].numpy(), START / length, rtol=1e-6)
    np.testing.assert_allclose(clipped["b"][0].numpy(), SLOPES[0] / length, rtol=1e-6)
    same, _ = optim.clip_by_global_norm(slopes, 100.0)
    np.testing.assert_array_equal(same["a"].numpy(), START)


def test_the_norm_of_narrow_gradients_does_not_overflow() -> None:
    long = weft.asarray(np.full(4, 300.0, np.float16))
    assert float(optim.global_norm(long)) == pytest.approx(600.0)


WRONG: Any = "x"
WRONG_LIST: Any = 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: optim.SGD(-1.0), "a learning rate is a number, 0 or more, or a schedule"),
        (lambda: optim.SGD(True), "a learning rate is a number, 0 or more, or a schedule"),
        (lambda: optim.AdamW(nn.Linear(2, 2).parameters()), "not a list; what is learnt is given"),  # type: ignore[arg-type]
        (lambda: optim.AdamW(nn.Linear(2, 2), 1e-3), "not a Linear; what is learnt is given"),  # type: ignore[arg-type]
        (lambda: optim.SGD(0.1).init({"n": 3}), r"\[init\] there is no float tensor to learn"),
        (lambda: optim.SGD(0.1, nesterov=True), "nesterov looks ahead along the momentum"),
        (
            lambda: optim.SGD(0.1, 1.5),
            "momentum is 1.5; it must be a number, at least 0 and below 1",
        ),
        (lambda: optim.constant(WRONG), r"\[constant\] rate is 'x'"),
        (lambda: optim.step_decay(1.0, WRONG_LIST), "boundaries is 3; it must be a list of steps"),
        (
            lambda: optim.SGD(0.1).update(
                {"w": 1.0}, optim.SGD(0.1).init({"w": START}), {"w": START}
            ),
            r"the gradient of params\['w'\] is a float, not a tensor",
        ),
        (lambda: optim.global_norm({"n": 3}), "no float tensor in the container"),
        (
            lambda: optim.SGD(0.1).update([weft.asarray(START)], {}, weft.asarray(START)),
            "the gradients are not nested as the parameters are",
        ),
        (lambda: optim.Adam(float("nan")), "a learning rate is a number, 0 or more, or a schedule"),
        (
            lambda: optim.Adam(betas=(1.5, 0.9)),
            r"\[Adam\] each of betas is 1.5; it must be a number",
        ),
        (lambda: optim.AdamW(betas=WRONG), r"\[AdamW\] betas is 'x'; it must be a pair of numbers"),
        (
            lambda: optim.AdamW(weight_decay=-1),
            "weight_decay is -1; it must be a number, at least 0",
        ),
        (lambda: optim.SGD(0.1, momentum=-2), r"\[SGD\] momentum is -2; it must be a number"),
        (lambda: optim.warmup(0.1, -3), r"\[warmup\] steps is -3; it must be a whole number"),
        (
            lambda: optim.cosine(10, 0),
            r"\[cosine\] steps is 0; it must be a whole number, at least 1",
        ),
        (lambda: optim.cosine(10, WRONG), r"\[cosine\] steps is 'x'; it must be a whole number"),
        (lambda: optim.step_decay(0.1, [WRONG]), "a boundary is 'x'; it must be a whole number"),
        (
            lambda: optim.clip_by_global_norm([weft.asarray(START)], -1.0),
            r"\[clip_by_global_norm\] limit is -1.0; it must be a number, at least 0",
        ),
        (
            lambda: optim.Adam().update([weft.asarray(START)], {}, [weft.asarray(START)]),
            "the state of Adam has step, mean, square, but this is empty; begin with init",
        ),
        (
            lambda: optim.Adam().update(
                [weft.asarray(START)],
                optim.Adam().init([weft.asarray(START), weft.asarray(START)]),
                [weft.asarray(START)],
            ),
            "mean of the state was made for other parameters than these",
        ),
    ],
)
def test_mistakes_are_told(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()


class Signs(optim.ByParameter):
    """An optimiser as others write them: a step by the sign of the gradient."""

    def direction(
        self, param: weft.Tensor, gradient: weft.Tensor, held: dict[str, Any], step: weft.Tensor
    ) -> tuple[weft.Tensor, dict[str, Any]]:
        return weft.sign(gradient), {}


def test_an_optimiser_of_ones_own_is_its_direction() -> None:
    params, slopes = [weft.asarray(START)], [weft.asarray(SLOPES[0])]
    signs = Signs(0.5)
    (after,), state = signs.update(slopes, signs.init(params), params)
    np.testing.assert_allclose(after.numpy(), START - 0.5 * np.sign(SLOPES[0]), rtol=1e-6)
    assert float(state["step"]) == 1
    with pytest.raises(TypeError, match="abstract"):
        optim.Optimiser()  # type: ignore[abstract]
