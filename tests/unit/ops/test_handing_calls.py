"""Handing results on around a call: errors, traces, other results, threads, and all of it in any
order."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest

import weft
from tests.unit.ops.handed import (
    DONATED,
    KINDS,
    Model,
    adding,
    stepped,
    tensor,
    values,
)  # fmt: skip
from weft.foundation.errors import UserError, WeftError
from weft.ops.tensor import Tensor

pytestmark = pytest.mark.usefixtures("each_backend")


def test_arguments_after_an_error_are_as_they_were_or_cannot_be_read(each_backend: str) -> None:
    @weft.jit(donate="state")  # type: ignore[untyped-decorator]
    def step(state: Any, at: Any) -> Any:
        return [w + weft.take(w, at, axis=0).sum() * 0.0 + 1.0 for w in state]

    good, bad = weft.asarray(np.array([1], np.int32)), weft.asarray(np.array([7], np.int32))
    state: Any = [tensor(n) for n in range(4)]
    for _ in range(4):
        state = step(state, good)
    with pytest.raises(WeftError):
        step(state, bad)
    if each_backend == "reference":
        assert values(state) == [4.0, 5.0, 6.0, 7.0]
        assert values(step(state, good)) == [5.0, 6.0, 7.0, 8.0]
        return
    with pytest.raises(UserError, match=r"donated at .* to a call that failed on its way"):
        step(state, good)
    with pytest.raises(UserError, match=r"donated at .* to a call that failed on its way"):
        values(state)
    assert values(step([tensor(n) for n in range(4)], good)) == [1.0, 2.0, 3.0, 4.0]


def test_calls_inside_of_traces() -> None:
    inner = adding()

    @weft.jit(donate="state")  # type: ignore[untyped-decorator]
    def outer(state: Any, x: Any) -> Any:
        state, total = inner(state, x)
        return state, total

    state = stepped(outer, [tensor(n) for n in range(4)], 5)
    state = stepped(inner, state, 4)
    state = stepped(outer, state, 2)
    slopes = weft.grad(lambda s: (s[0] * s[1]).sum())(state)
    assert values(slopes) == [12.0, 11.0, 0.0, 0.0]
    mapped = weft.vmap(lambda s: s[0] + s[3])(state)
    assert values([mapped]) == [11.0 + 14.0]
    captured = weft.jit(lambda x: x + state[2])
    assert values([captured(tensor(1))]) == [14.0]
    state = stepped(outer, state, 1)
    assert values([captured(tensor(1))]) == [15.0]


def test_a_model_that_is_called_between_its_steps() -> None:
    @weft.jit(donate="model")  # type: ignore[untyped-decorator]
    def step(model: Any) -> Any:
        return model.map(lambda w: w + 1.0)

    look = weft.jit(lambda model, x: model.layers[0](x))
    model, x = Model(1), tensor(1)
    for turn in range(6):
        model = step(model)
        if turn % 2:
            assert values([look(model, x)]) == [2 * (turn + 2) + 0.5]


def test_other_results_are_the_callers_own() -> None:
    step, x = adding(), weft.asarray(np.ones((2, 3), np.float32))
    state, totals = [tensor(n) for n in range(4)], []
    for turn in range(6):
        state, total = step(state, x * float(turn))
        totals.append(total)
    assert [float(total) for total in totals] == [12.0 * turn for turn in range(6)]


def test_the_same_tensor_twice_among_the_results() -> None:
    step = weft.jit(lambda s: ([s[0] + 1.0, s[1]], s[1], s[0] + 1.0), donate="s")
    state, olds = [tensor(1), tensor(2)], []
    for _ in range(5):
        state, same, again = step(state)
        olds.append((same, again))
    assert [values(each) for each in olds] == [[2.0, n + 2.0] for n in range(5)]


def test_threads_hand_on_their_own() -> None:
    step, found = adding(), {}

    def work(number: int) -> None:
        state: Any = [tensor(number + n) for n in range(6)]
        x, older = tensor(1), None
        for turn in range(150):
            if turn % 7 == 0:
                older = state[2]
            if turn % 5 == 0:
                assert values(state[:1]) == [float(number + turn)]
            state, _ = step(state, x)
            if turn % 7 == 0:
                with pytest.raises(UserError, match=DONATED):
                    older.numpy()  # type: ignore[union-attr]
        found[number] = values(state)

    threads = [threading.Thread(target=work, args=(10 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {10 * n: [150.0 + 10 * n + k for k in range(6)] for n in range(4)}


def test_threads_that_look_at_one_tensor_see_one_node() -> None:
    step = adding()
    for _ in range(30):
        state = stepped(step, [Model(1), [tensor(5)]], 3)
        start = threading.Barrier(4)
        seen: list[Any] = []

        def look(state: Any = state, start: Any = start, seen: Any = seen) -> None:
            start.wait()
            seen.append((state[1][0]._node, state[0].layers, state[0].table["a"]._node))

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({tuple(map(id, each)) for each in seen}) == 1


@pytest.mark.parametrize("seed", range(12))
def test_whatever_a_user_does(seed: int) -> None:
    """Steps, looks, changes and things kept, in any order, against numbers that are kept beside."""
    rng = random.Random(seed)
    step, x = adding(), tensor(1)
    state, expected = KINDS["list"](), [0.0, 1.0, 2.0, 3.0]
    kept: list[tuple[Tensor, float]] = []
    donated: list[Tensor] = []
    for _ in range(80):
        action, at = rng.random(), rng.randrange(4)
        if action < 0.5:
            given = set(map(id, state))
            state, _ = step(state, x)
            expected = [value + 1 for value in expected]
            donated += [leaf for leaf, _ in kept if id(leaf) in given]
            kept = [(leaf, value) for leaf, value in kept if id(leaf) not in given]
        elif action < 0.6:
            assert values(state[at : at + 1]) == [expected[at]]
        elif action < 0.7:
            kept.append((state[at], expected[at]))
        elif action < 0.8:
            state[at] = tensor(expected[at])
        elif action < 0.85:
            state = list(state)
        elif action < 0.9:
            kept, donated = kept[1:], donated[at:]
        else:
            assert values([leaf for leaf, _ in kept]) == [value for _, value in kept]
            for leaf in donated:
                with pytest.raises(UserError, match=DONATED):
                    leaf.numpy()
    assert values(state) == expected
