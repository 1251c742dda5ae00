"""Counted loops, a choice among several, combinations of everything so far; windows; types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft.foundation.errors import SpecViolation, UserError


def test_a_counted_loop_has_a_gradient() -> None:
    def power(x: Any) -> Any:
        return weft.fori_loop(1, 4, lambda i, total: total * x * i, weft.asarray(1.0))

    x = weft.asarray(2.0)
    assert power(x).item() == 48.0
    assert weft.grad(power)(x).item() == 72.0
    assert weft.jit(weft.grad(power))(x).item() == 72.0
    assert weft.fori_loop(3, 3, lambda i, total: total + 1, x).item() == 2.0


def test_a_counted_loop_may_have_bounds_that_are_tensors() -> None:
    @weft.jit
    def total(upper: Any) -> Any:
        return weft.fori_loop(0, upper, lambda i, pair: (pair[0] + i, pair[1] * 2), (0, 1))

    found = total(weft.asarray(5))
    assert [x.item() for x in found] == [10, 32]
    assert [x.item() for x in total(3)] == [3, 8]
    with pytest.raises(UserError, match=r"upper is f32\[\]"):
        weft.fori_loop(0, weft.asarray(1.5), lambda i, x: x, 0)


BRANCHES = [lambda x: x + 1.0, lambda x: x * 10.0, lambda x: -x]


@pytest.mark.parametrize(
    ("index", "wanted"), [(-3, 3.0), (0, 3.0), (1, 20.0), (2, -2.0), (9, -2.0)]
)
def test_a_choice_among_several(index: int, wanted: float) -> None:
    x = weft.asarray(2.0)
    assert weft.switch(index, BRANCHES, x).item() == wanted
    assert weft.switch(weft.asarray(index), BRANCHES, x).item() == wanted
    assert (
        weft.jit(lambda i, x: weft.switch(i, BRANCHES, x))(weft.asarray(index), x).item() == wanted
    )


def test_a_choice_has_gradients_and_batches() -> None:
    def chosen(i: Any, x: Any) -> Any:
        return weft.switch(i, BRANCHES, x)

    x = weft.asarray(2.0)
    assert weft.grad(chosen, 1)(weft.asarray(1), x).item() == 10.0
    found = weft.vmap(chosen, in_axes=(0, None))(weft.asarray([0, 1, 2]), x)
    assert found.tolist() == [3.0, 20.0, -2.0]
    with pytest.raises(UserError, match="at least one function"):
        weft.switch(0, [])


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("reverse", [False, True])
def test_everything_so_far(size: int, reverse: bool) -> None:
    x = np.arange(1.0, 2 * size + 1).reshape(2, size)
    found = weft.associative_scan(lambda a, b: a + b, x, reverse=reverse, axis=1).numpy()
    wanted = np.cumsum(x[:, ::-1], 1)[:, ::-1] if reverse else np.cumsum(x, 1)
    assert found == pytest.approx(wanted)


def test_everything_so_far_of_pairs_in_order() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.uniform(0.5, 1.5, 7), rng.normal(size=7)

    def after(first: Any, second: Any) -> Any:
        """x -> a x + b, one after the other: not commutative."""
        return first[0] * second[0], second[0] * first[1] + second[1]

    state, wanted = 0.0, []
    for factor, shift in zip(a, b, strict=True):
        state = factor * state + shift
        wanted.append(state)
    found = weft.jit(lambda a, b: weft.associative_scan(after, (a, b)))(a, b)[1]
    assert found.numpy() == pytest.approx(np.array(wanted))

    def last(a: Any) -> Any:
        return weft.associative_scan(after, (a, weft.asarray(b)))[1][-1]

    slope = weft.grad(last)(weft.asarray(a)).numpy()
    step = 1e-6
    sides = [[last(weft.asarray(a + side * e)).item() for side in (step, -step)] for e in np.eye(7)]
    moved = np.array([(up - down) / (2 * step) for up, down in sides])
    assert slope == pytest.approx(moved, rel=1e-5, abs=1e-7)


def test_mistakes_of_scans_are_told() -> None:
    with pytest.raises(UserError, match="must return what it takes"):
        weft.associative_scan(lambda a, b: (a, b), weft.ones(3))
    with pytest.raises(SpecViolation, match="sizes 2, 3 along axis 0"):
        weft.associative_scan(lambda a, b: a, (weft.ones(2), weft.ones(3)))
    with pytest.raises(SpecViolation, match="a scalar"):
        weft.associative_scan(lambda a, b: a, weft.asarray(1.0))


# -- windows -------------------------------------------------------------------------------------


def test_windows() -> None:
    x = weft.arange(12.0).reshape((3, 4))
    assert weft.dynamic_slice(x, (1, 2), (2, 2)).tolist() == [[6.0, 7.0], [10.0, 11.0]]
    assert weft.dynamic_slice(x, (5, -1), (2, 2)).tolist() == [[6.0, 7.0], [10.0, 11.0]]
    assert weft.dynamic_slice(weft.arange(5), weft.asarray([3]), (2,)).tolist() == [3, 4]
    found = weft.jit(lambda x, i: weft.dynamic_slice(x, (i, 0), (1, 4)))(x, weft.asarray(2))
    assert found.tolist() == [[8.0, 9.0, 10.0, 11.0]]
    changed = weft.dynamic_update_slice(x, weft.zeros((1, 2)), (weft.asarray(1), 1))
    assert changed.tolist()[1] == [4.0, 0.0, 0.0, 7.0]
    rows = weft.vmap(lambda i: weft.dynamic_slice(x, (i, 1), (1, 2)))(weft.asarray([0, 2]))
    assert rows.tolist() == [[[1.0, 2.0]], [[9.0, 10.0]]]


def test_windows_have_gradients() -> None:
    def read(x: Any) -> Any:
        return weft.sum(weft.dynamic_slice(x, (1,), (2,)) * weft.asarray([3.0, 5.0]))

    assert weft.grad(read)(weft.ones(4)).tolist() == [0.0, 3.0, 5.0, 0.0]

    def written(update: Any) -> Any:
        return weft.sum(weft.dynamic_update_slice(weft.ones(4), update, (1,)) * weft.arange(4.0))

    assert weft.grad(written)(weft.ones(2)).tolist() == [1.0, 2.0]


def test_wrong_windows_are_told() -> None:
    x = weft.ones((3, 4))
    with pytest.raises(UserError, match="1 starts for the 2 axes"):
        weft.dynamic_slice(x, (1,), (2, 2))
    with pytest.raises(UserError, match="3 sizes for the 2 axes"):
        weft.dynamic_slice(x, (1, 1), (2, 2, 2))
    with pytest.raises(SpecViolation, match="have different ranks"):
        weft.dynamic_update_slice(x, weft.ones(2), (0, 0))
    with pytest.raises(SpecViolation, match="convert it"):
        weft.dynamic_update_slice(x, weft.arange(4).reshape((1, 4)), (0, 0))


# -- types, second derivatives, pushforwards -----------------------------------------------------


def test_shapes_without_computing() -> None:
    def model(params: Any, x: Any) -> Any:
        return {"y": x @ params["w"], "count": 3, "none": None}

    params = {"w": weft.ptir.TensorType(weft.float32, (4, 2))}
    found = weft.eval_shape(model, params, weft.ones((5, 4)))
    assert found["y"].shape == (5, 2)
    assert str(found["y"]) == "f32[5, 2]"
    assert str(found["count"]) == "si64[]"
    assert found["none"] is None
    huge = weft.ptir.TensorType(weft.float32, (1 << 20, 1 << 20))
    assert weft.eval_shape(weft.sin, huge).shape == huge.shape


def test_hessian() -> None:
    def f(x: Any) -> Any:
        return x[0] ** 2 * x[1] + weft.sin(x[1])

    found = weft.hessian(f)(weft.asarray([2.0, 3.0])).numpy()
    assert found == pytest.approx(np.array([[6.0, 4.0], [4.0, -np.sin(3.0)]]), rel=1e-5)
    nested = weft.hessian(lambda p: p["a"] * p["b"] ** 2)(
        {"a": weft.asarray(2.0), "b": weft.asarray(3.0)}
    )
    assert nested["a"]["b"].item() == 6.0
    assert nested["b"]["b"].item() == 4.0


def test_linearize() -> None:
    value, push = weft.linearize(lambda x, y: {"z": x * y}, weft.asarray(2.0), weft.asarray(3.0))
    assert value["z"].item() == 6.0
    assert push(1.0, 0.0)["z"].item() == 3.0
    assert push(1.0, 10.0)["z"].item() == 23.0
    with pytest.raises(UserError, match="not nested as the arguments"):
        push(1.0)
