"""Tensors that a function under `jit` captures, and that are replaced by others."""

from __future__ import annotations

import weakref
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.python_calls import python_calls
from weft import nn

X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Holder:
    default = weft.asarray(X)

    def __init__(self, w: Any) -> None:
        self.w = w
        self.nested = {"layers": [(w,)]}

    def times(self, x: Any) -> Any:
        return x * self.w

    times_under_jit = weft.jit(times)


class Slotted:
    __slots__ = ("w",)

    def __init__(self, w: Any) -> None:
        self.w = w


shared: Any = None


def times_shared(x: Any) -> Any:
    return x * shared


def set_shared(w: Any) -> None:
    globals()["shared"] = w


def by_variable(w: Any) -> tuple[Any, Any]:
    def put(other: Any) -> None:
        nonlocal w
        w = other

    return lambda x: x * w, put


def by_attribute(w: Any) -> tuple[Any, Any]:
    holder = Holder(w)
    holder.nested.clear()
    return lambda x: x * holder.w, lambda other: setattr(holder, "w", other)


def by_slot(w: Any) -> tuple[Any, Any]:
    holder = Slotted(w)
    return lambda x: x * holder.w, lambda other: setattr(holder, "w", other)


def by_nested_items(w: Any) -> tuple[Any, Any]:
    layers: dict[str, Any] = {"a": [0, (w,)]}
    return lambda x: x * layers["a"][1][0], lambda other: layers.update(a=[0, (other,)])


def by_item_beside_data(w: Any) -> tuple[Any, Any]:
    store: dict[str, Any] = {"data": list(range(100_000)), "params": {"w": w}}
    return lambda x: x * store["params"]["w"], lambda other: store["params"].update(w=other)


def by_global(w: Any) -> tuple[Any, Any]:
    set_shared(w)
    return lambda x: times_shared(x), set_shared


def by_bound_method(w: Any) -> tuple[Any, Any]:
    holder = Holder(w)
    holder.nested.clear()
    return holder.times, lambda other: setattr(holder, "w", other)


def by_default(w: Any) -> tuple[Any, Any]:
    params = {"w": w}

    def function(x: Any, params: Any = params) -> Any:
        return x * params["w"]

    return lambda x: function(x), lambda other: params.update(w=other)


def by_class(w: Any) -> tuple[Any, Any]:
    Holder.default = w
    holder = Holder(None)
    return lambda x: x * holder.default, lambda other: setattr(holder, "default", other)


WAYS = [
    by_variable, by_attribute, by_slot, by_nested_items, by_global, by_bound_method, by_default,
    by_item_beside_data, by_class,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("held", [True, False])
def test_a_captured_tensor_that_is_replaced(way: Any, held: bool) -> None:
    """Whether or not somebody still holds the old one, of the same type or another."""
    function, put = way(weft.asarray(X))
    f = weft.jit(function)
    kept = []
    for w in (X, 3 * X, 5 * X, np.float32(2) * X[:1], X):
        tensor = weft.asarray(w)
        put(tensor)
        kept += [tensor] if held else []
        del tensor
        np.testing.assert_array_equal(f(X).numpy(), X * w)
    assert len(f.versions) == 1


def test_replacing_a_captured_tensor_by_one_of_its_type_traces_nothing() -> None:
    state, traces = {"w": weft.asarray(X)}, []

    @weft.jit
    def f(x: Any) -> Any:
        traces.append(1)
        return x + state["w"]

    old = state["w"]
    for factor in (1, 2, 3):
        state["w"] = weft.asarray(factor * X)
        np.testing.assert_array_equal(f(X).numpy(), X + factor * X)
    state["w"] = weft.exp(old)
    np.testing.assert_allclose(f(X).numpy(), X + np.exp(X), rtol=1e-6)
    assert len(traces) == 1
    told = "the captured tensor state['w'] was replaced: it is f32[2, 3] now, without compiling"
    assert f"{told} again (in 3 calls)" in weft.explain(f)
    state["w"] = weft.asarray(X[:1])
    np.testing.assert_array_equal(f(X).numpy(), X + X[:1])
    assert len(traces) == 2
    assert "state['w'] was replaced: it is f32[1, 3] now" in weft.explain(f)
    state["w"] = 2.0
    np.testing.assert_array_equal(f(X).numpy(), X + 2)
    assert "state['w'] was replaced: it is not a tensor now" in weft.explain(f)


def test_one_tensor_in_two_places_of_which_one_is_replaced() -> None:
    first = {"w": weft.asarray(X)}
    second = {"w": first["w"]}
    f = weft.jit(lambda x: x * first["w"] + second["w"])
    np.testing.assert_array_equal(f(X).numpy(), X * X + X)
    second["w"] = weft.asarray(4 * X)
    np.testing.assert_array_equal(f(X).numpy(), X * X + 4 * X)
    first["w"] = second["w"]
    np.testing.assert_array_equal(f(X).numpy(), X * 4 * X + 4 * X)


class Scale(nn.Module):
    def __init__(self, w: Any) -> None:
        self.w = w

    def __call__(self, x: Any) -> Any:
        return weft.sum(x * self.w)


@pytest.mark.parametrize(
    "made",
    [
        lambda model: lambda x: model["m"](x),
        lambda model: partial(lambda model, x: model["m"](x), model),
        lambda model: weft.jit(lambda x: model["m"](x)),
        lambda model: weft.vmap(lambda row: model["m"](row)),
        lambda model: weft.grad(lambda x: model["m"](x)),
    ],
)
def test_a_captured_module_that_is_replaced_behind_other_functions(made: Any) -> None:
    model = {"m": Scale(weft.asarray(X[1]))}
    function = made(model)
    f = weft.jit(function)
    kept = []
    for factor in (1, 2, 3):
        model["m"] = Scale(weft.asarray(factor * X[1]))
        kept.append(model["m"])
        np.testing.assert_array_equal(f(X).numpy(), function(weft.asarray(X)).numpy())
    model["m"].w = weft.asarray(7 * X[1])
    np.testing.assert_array_equal(f(X).numpy(), function(weft.asarray(X)).numpy())
    (version,) = f.versions.values()
    assert version.replacements == 3


def test_a_method_under_jit_sees_what_its_instance_holds_now() -> None:
    holder = Holder(weft.asarray(X))
    old = holder.w
    np.testing.assert_array_equal(holder.times_under_jit(X).numpy(), X * X)
    holder.w = weft.asarray(3 * X)
    np.testing.assert_array_equal(holder.times_under_jit(X).numpy(), 3 * X * X)
    np.testing.assert_array_equal(old.numpy(), X)


def test_captured_tensors_are_not_kept_alive() -> None:
    holders = [Holder(weft.asarray(X))]
    f = weft.jit(lambda x: x * holders[0].w)
    f(X)
    holder = weakref.ref(holders[0])
    tensor = weakref.ref(holders[0].w)
    holders[0] = Holder(weft.asarray(2 * X))
    assert holder() is None
    assert tensor() is None
    np.testing.assert_array_equal(f(X).numpy(), 2 * X * X)


def test_looking_for_replaced_tensors_is_quick() -> None:
    """One call for each tensor, 0.15 µs."""
    params = {str(index): weft.asarray(X) for index in range(100)}
    f = weft.jit(lambda x: sum(params.values(), x))
    f(X)
    (version,) = f.versions.values()
    assert not version.unreached
    assert python_calls(lambda: version.is_current(f.function)) < 130
    assert version.is_current(f.function)


# -- modules --------------------------------------------------------------------------------------


class Powered(nn.Module):
    """No tensors, a setting."""

    def __init__(self, power: int) -> None:
        self.power = power

    def __call__(self, x: Any) -> Any:
        return x**self.power


def test_the_settings_of_a_captured_module_without_tensors_are_looked_at() -> None:
    module = Powered(2)
    for f in (weft.jit(module), weft.jit(lambda x: module(x))):
        for power in (2, 2, 3, 3, 2):
            module.power = power
            assert f(weft.asarray(3.0)).item() == 3.0**power
        assert "module has other settings or parts than it had" in weft.explain(f).replace(
            "the captured module module", "module"
        )


def test_another_module_in_the_place_of_a_captured_one_is_seen() -> None:
    held = {"module": Powered(2)}
    f = weft.jit(lambda x: held["module"](x))
    assert f(weft.asarray(3.0)).item() == 9.0
    held["module"] = Powered(3)
    assert f(weft.asarray(3.0)).item() == 27.0
    assert "the captured module held['module'] has other settings" in weft.explain(f)


def test_a_captured_module_that_is_not_remembered_is_looked_at() -> None:
    class Odd(Powered):
        def __setattr__(self, name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

    module = Odd(2)
    f = weft.jit(lambda x: module(x))
    for power in (2, 3, 2):
        module.power = power
        assert f(weft.asarray(3.0)).item() == 3.0**power


def test_a_captured_module_may_have_an_attribute_without_a_hash() -> None:
    module: Any = Powered(2)
    module.table = np.arange(3)
    module.weight = weft.ones(())
    f = weft.jit(lambda x: module(x) * module.weight)
    for value in (1.0, 1.0, 5.0):
        module.weight = weft.ones(()) * value
        assert f(weft.asarray(3.0)).item() == 9.0 * value


def test_a_module_that_a_step_returned_is_not_looked_at_for_its_settings() -> None:
    """The function reaches it and does not use it: it waits, as before."""
    held: dict[str, Any] = {"model": nn.Linear(2, 2)}

    def step(model: Any, other: bool) -> Any:
        return held["model"] if other else model.map(lambda w: w + 1.0)

    f = weft.jit(step, donate="model", static="other")
    held["model"] = f(f(held["model"], False), False)
    for _ in range(3):
        model = held["model"]
        assert model._waiting is not None
        held["model"] = f(model, False)


@pytest.mark.parametrize("change", [
    lambda held: held.update(w=weft.asarray(5.0)),
    lambda held: held["w"].become(weft.asarray(5.0)),
    lambda held: held["w"].__setitem__((), 5.0),
    lambda held: held.update(w=weft.ones(()) * 5.0),
], ids=["replaced", "become", "assigned", "by no constant"])  # fmt: skip
@pytest.mark.parametrize("wrap", [False, True], ids=["a dict", "a module"])
def test_a_captured_tensor_that_is_a_constant_is_looked_at(change: Any, wrap: bool) -> None:
    held: Any = {"w": weft.asarray(2.0)}
    if wrap:
        held["module"] = Powered(2)
        held["module"].held = held["w"]
    f = weft.jit(lambda x: x * (held["module"].held if wrap else held["w"]))
    for _ in range(2):
        assert f(weft.asarray(3.0)).item() == 6.0
    change(held)
    if wrap:
        held["module"].held = held["w"]
    for _ in range(2):
        assert f(weft.asarray(3.0)).item() == 15.0
    assert "the captured number" in weft.explain(f)


def test_a_captured_module_of_no_class_of_its_own() -> None:
    module: Any = nn.Module()
    module.weight = weft.ones(()) * 2.0
    f = weft.jit(lambda x: x * module.weight)
    for value in (2.0, 2.0, 3.0):
        module.weight = weft.ones(()) * value
        assert f(weft.asarray(3.0)).item() == 3.0 * value


class _Scaled(nn.Module):
    """A module with settings, one of which may have no hash."""

    def __init__(self, **more: Any) -> None:
        self.w = weft.ones(3)
        self.scale = 2.0
        for name, value in more.items():
            setattr(self, name, value)

    def __call__(self, x: Any) -> Any:
        return x * self.w * self.scale


@pytest.mark.parametrize(
    "odd",
    [[1, 2], {"a": [1]}, np.zeros(2), SimpleNamespace(a=1)],
    ids=["list", "dict", "array", "object"],
)
def test_a_setting_without_a_hash_hides_no_other(odd: Any) -> None:
    x = weft.ones(3)
    model: Any = _Scaled(sizes=odd)
    for called in (weft.jit(model), weft.jit(lambda x: model(x))):
        model.scale = 2.0
        assert called(x).tolist() == [2.0] * 3
        model.scale = 5.0
        assert called(x).tolist() == [5.0] * 3
    outer: Any = _Scaled(inner=_Scaled(sizes=odd), other=_Scaled())
    both = weft.jit(lambda x: outer.inner(x) + outer.other(x))
    assert both(x).tolist() == [4.0] * 3
    outer.other.scale = 3.0
    assert both(x).tolist() == [5.0] * 3


def test_a_setting_without_a_hash_is_compared_itself() -> None:
    model: Any = _Scaled(sizes=[1, 2])
    x = weft.ones(3)
    called = weft.jit(lambda x: model(x) * len(model.sizes))
    assert called(x).tolist() == [4.0] * 3
    model.sizes.append(3)
    assert called(x).tolist() == [6.0] * 3
    del model.sizes
    model.sizes = (1,)
    assert called(x).tolist() == [2.0] * 3
    model.scale = 7.0
    assert called(x).tolist() == [7.0] * 3


@pytest.mark.parametrize(
    ("transformed", "want"),
    [
        (lambda f, x: weft.grad(lambda y: weft.sum(f(y)))(x), [[4.0, 4.0], [4.0, 4.0]]),
        (lambda f, x: weft.vmap(f)(x), [[0.0, 4.0], [8.0, 12.0]]),
        (lambda f, x: weft.checkpoint(f)(x), [[0.0, 4.0], [8.0, 12.0]]),
        (lambda f, x: weft.jvp(f, (x,), (x,))[1], [[0.0, 4.0], [8.0, 12.0]]),
    ],
    ids=["grad", "vmap", "checkpoint", "jvp"],
)
def test_an_inner_function_makes_a_constant_and_captures_a_value(
    transformed: Any, want: list[list[float]]
) -> None:
    """The constant outlives the trace that it was made in, but not what that function captures."""
    two = np.full(2, 2.0, np.float32)
    outer = weft.jit(lambda x, w: transformed(lambda y: y * weft.asarray(two) * w, x))
    found = outer(np.arange(4, dtype=np.float32).reshape(2, 2), two)
    np.testing.assert_array_equal(found, want)
