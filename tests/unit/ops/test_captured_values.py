"""Python values that a compiled function reads: another value is seen by the next call."""

from __future__ import annotations

import gc
import weakref
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft
from weft import functional as F
from weft import nn, optim

X = weft.ones((2,))
FACTOR = 2.0
TABLE = {"rate": 2.0}


def doubled(x: Any) -> Any:
    return x * 2.0


ACT: Callable[[Any], Any] = doubled


class Config:
    """Settings of a program."""

    factor = 2.0

    def __init__(self, rate: float = 2.0) -> None:
        self.rate = rate
        self.scales = [1.0, 1.0]


class Hashed(Config):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hashed)

    def __hash__(self) -> int:
        return 7


class Slotted:
    __slots__ = ("__weakref__", "rate")

    def __init__(self) -> None:
        self.rate = 2.0


class Trainer:
    """Its step reads some of its attributes; what happens around the step changes others."""

    def __init__(self) -> None:
        self.config = Config()
        self.act: Callable[[Any], Any] = F.relu
        self.epoch, self.losses = 0, list[float]()

    def scaled(self, x: Any) -> Any:
        return x * self.config.rate

    def step(self, x: Any) -> Any:
        return weft.sum(self.act(self.scaled(x) - 1.0))

    def fit(self) -> None:
        for _ in range(3):
            self.losses.append(self.step(X).item())
            self.epoch += 1


def _set_global(name: str, value: Any) -> Callable[[], None]:
    def change() -> None:
        globals()[name] = value

    return change


def _closure() -> tuple[Any, Callable[[], None]]:
    rate = 2.0

    def change() -> None:
        nonlocal rate
        rate = 5.0

    return lambda x: x * rate, change


def _of(holder: Any, name: str = "rate") -> tuple[Any, Callable[[], None]]:
    return lambda x: x * getattr(holder, name), lambda: setattr(holder, name, 5.0)


def _grown() -> tuple[Any, Callable[[], None]]:
    rates = [2.0]
    return lambda x: x * sum(rates), lambda: rates.append(3.0)


def _layers() -> tuple[Any, Callable[[], None]]:
    layers = [weft.ones((2,)) * 2.0]
    return lambda x: sum((x * each for each in layers), x), lambda: layers.append(layers[0])


def _items() -> tuple[Any, Callable[[], None]]:
    given = {"a": 2.0, "x": weft.ones((2,))}
    return lambda x: x * given["a"] * given["x"], lambda: given.update(a=5.0)


def _array() -> tuple[Any, Callable[[], None]]:
    held = SimpleNamespace(a=np.ones(2, np.float32))
    return lambda x: x * held.a, lambda: setattr(held, "a", np.zeros(2, np.float32))


def _trainer(change: Callable[[Trainer], None]) -> tuple[Any, Callable[[], None]]:
    trainer = Trainer()
    return trainer.step, lambda: change(trainer)


CAPTURED: dict[str, Callable[[], tuple[Any, Callable[[], None]]]] = {
    "a variable": _closure,
    "a global": lambda: (lambda x: x * FACTOR, _set_global("FACTOR", 5.0)),
    "a global function": lambda: (lambda x: ACT(x), _set_global("ACT", F.relu)),
    "a global dict": lambda: (
        lambda x: x * TABLE["rate"],
        lambda: TABLE.update(rate=TABLE["rate"] + 1.0),
    ),
    "an object": lambda: _of(Config()),
    "a class": lambda: _of(Config(), "factor"),
    "the class itself": lambda: (
        lambda x: x * Config.factor,
        lambda: setattr(Config, "factor", Config.factor + 1.0),
    ),
    "an object with a hash": lambda: _of(Hashed()),
    "an object with slots": lambda: _of(Slotted()),
    "a namespace": lambda: _of(SimpleNamespace(rate=2.0)),
    "options": lambda: _of(Namespace(rate=2.0)),
    "a list that grows": _grown,
    "a list of tensors that grows": _layers,
    "an item": _items,
    "an array": _array,
    "a method": lambda: _trainer(lambda t: setattr(t.config, "rate", 5.0)),
    "an object of a trainer": lambda: _trainer(lambda t: setattr(t, "config", Config(5.0))),
    "a function of a trainer": lambda: _trainer(lambda t: setattr(t, "act", F.sigmoid)),
}


@pytest.mark.parametrize("name", list(CAPTURED))
def test_another_value_is_seen(name: str) -> None:
    function, change = CAPTURED[name]()
    compiled = weft.jit(function)
    for _ in range(3):
        np.testing.assert_array_equal(compiled(X).numpy(), np.asarray(function(X)))
        compiled(X)
        change()
    np.testing.assert_array_equal(compiled(X).numpy(), np.asarray(function(X)))
    assert "the captured" in weft.explain(compiled)


def test_the_settings_of_an_optimiser_are_seen() -> None:
    optimiser = optim.SGD(0.5, 0.0)
    step = weft.jit(lambda p, s, g: optimiser.update(g, s, p)[0])
    params = {"w": weft.ones((2,))}
    found = []
    for rate in (0.5, 0.25, optim.schedules.constant(0.125)):
        optimiser.rate = rate
        assert step(params, optimiser.init(params), params)["w"].tolist() == pytest.approx(
            optimiser.update(params, optimiser.init(params), params)[0]["w"].tolist()
        )
        found.append(step(params, optimiser.init(params), params)["w"].tolist()[0])
    assert found == [0.5, 0.75, 0.875]
    assert "captured optimiser" in weft.explain(step)
    with pytest.raises(weft.UserError, match="a learning rate is a number"):
        optimiser.rate = "fast"  # type: ignore[assignment]


def test_what_the_function_does_not_read_traces_nothing() -> None:
    """Attributes that other methods change, and what the trace itself changes."""
    trainer, traced = Trainer(), []
    inner = trainer.step

    def step(x: Any) -> Any:
        traced.append(1)
        return inner(x)

    trainer.step = weft.jit(step)  # type: ignore[method-assign]
    trainer.fit()
    trainer.fit()
    assert trainer.losses == [2.0] * 6
    assert len(traced) == 1


def test_values_keep_nothing_alive() -> None:
    config = Config()
    weak = weakref.ref(config)
    compiled = weft.jit(lambda x: x * (config.rate if config else 1.0))
    compiled(X)
    config = None  # type: ignore[assignment]
    gc.collect()
    assert weak() is None
    assert compiled(X).tolist() == [1.0, 1.0]


class Scaled(nn.Module):
    def __init__(self, config: Any) -> None:
        self.config, self.power = config, 1

    def __call__(self, x: Any) -> Any:
        return x * self.config.rate**self.power


@pytest.mark.parametrize("made", [SimpleNamespace, Slotted, Config])
def test_settings_inside_a_module_are_seen(made: Any) -> None:
    config = made()
    config.rate = 2.0
    model = Scaled(config)
    captured = weft.jit(lambda x: model(x))
    given = weft.jit(lambda m, x: m(x)) if made is not SimpleNamespace else captured
    for rate in (2.0, 3.0, 2.0):
        config.rate = rate
        for _ in range(2):
            assert captured(X).tolist() == [rate, rate]
            found = given(X) if given is captured else given(model, X)
            assert found.tolist() == [rate, rate]


def test_a_static_module_has_the_settings_and_tensors_of_the_call() -> None:
    model = Scaled(Config())
    call = weft.jit(lambda m, x: m(x) * getattr(m, "w", 1.0), static="m")
    assert call(model, X).tolist() == [2.0, 2.0]
    model.power = 2
    assert call(model, X).tolist() == call(model, X).tolist() == [4.0, 4.0]
    held = []
    for value in (1.0, 3.0):
        held.append(weft.full((2,), value))
        model.w = held[-1]
        assert call(model, X).tolist() == call(model, X).tolist() == [4.0 * value] * 2


class Turned(nn.Module):
    """Changes its own settings when it is called."""

    def __init__(self) -> None:
        self.w, self.flag, self.name = weft.ones((2,)), False, ""

    def __call__(self, x: Any) -> Any:
        self.flag = not self.flag
        return x * self.w * (2.0 if self.flag else 3.0)

    def once(self, x: Any) -> Any:
        self.name = "known"
        return x * self.w


def test_a_captured_module_that_changes_itself_is_traced_for_every_call() -> None:
    model = Turned()
    for call in (weft.jit(Turned()), weft.jit(lambda x: model(x))):
        assert [call(X).tolist()[0] for _ in range(5)] == [2.0, 3.0, 2.0, 3.0, 2.0]
        assert "changes a module that it captures" in weft.explain(call)
    settled = weft.jit(model.once)
    for _ in range(4):
        settled(X)
    assert model.name == "known"
    (version,) = settled.versions.values()
    assert version.calls == 3  # The second call was traced with the name, and serves from then on.


class Reading(nn.Module):
    """Its method reads a global, an attribute of its class and a function."""

    factor = 2.0
    table = X

    def __init__(self, act: Any = doubled) -> None:
        self.w, self.act = X, act

    def __call__(self, x: Any) -> Any:
        return self.act(ACT(x) * self.w) * FACTOR * self.factor * self.table


def _closing_over(value: Any) -> tuple[Any, Callable[[Any], None]]:
    def act(x: Any) -> Any:
        return x * value

    def change(other: Any) -> None:
        nonlocal value
        value = other

    return act, change


@pytest.mark.parametrize("how", ["argument", "captured", "inside"])
def test_what_a_module_reads_is_seen(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (act, other_rate), (tensor_act, other_tensor) = _closing_over(2.0), _closing_over(X)
    model: Any = nn.Sequential(Reading(act), Reading(partial(tensor_act)))
    calls: dict[str, Any] = {
        "argument": lambda f=weft.jit(lambda m, x: m(x)): f(model, X),  # noqa: B008
        "captured": lambda f=weft.jit(lambda x: model(x)): f(X),  # noqa: B008
        "inside": lambda f=weft.jit(lambda a, x: a[0]["m"](x)): f([{"m": model}], X),  # noqa: B008
    }
    changes: list[Callable[[], Any]] = [
        lambda: None,
        lambda: monkeypatch.setitem(globals(), "FACTOR", 5.0),
        lambda: monkeypatch.setitem(globals(), "ACT", F.tanh),
        lambda: monkeypatch.setattr(Reading, "factor", 3.0),
        lambda: monkeypatch.setattr(Reading, "table", X * 2.0),
        lambda: other_rate(7.0),
        lambda: other_tensor(X * 3.0),
    ]
    for number, change in enumerate(changes):
        change()
        for _ in range(2):
            np.testing.assert_allclose(calls[how]().numpy(), model(X).numpy(), err_msg=str(number))


def test_what_a_static_function_reads_is_seen() -> None:
    act, change = _closing_over(2.0)
    f = weft.jit(lambda x, act: act(x), static="act")
    assert f(X, act).tolist() == [2.0, 2.0]
    change(3.0)
    assert f(X, act).tolist() == [3.0, 3.0]


def test_attributes_of_functions_are_seen() -> None:
    def scaled(x: Any) -> Any:
        return x * scaled.rate  # type: ignore[attr-defined]

    f = weft.jit(scaled)
    for rate in (2.0, 2.0, 3.0):
        scaled.rate = rate  # type: ignore[attr-defined]
        assert f(X).tolist() == [rate, rate]


def test_an_array_that_is_returned_is_the_callers() -> None:
    f = weft.jit(lambda x: (x, np.zeros(2)))
    for _ in range(2):
        found = f(X)[1]
        assert found.tolist() == [0.0, 0.0]
        found += 1.0


def test_a_module_with_slots_is_told() -> None:
    with pytest.raises(weft.UserError, match="the module Tight has __slots__"):
        type("Tight", (nn.Module,), {"__slots__": ("rate",)})


class Sized(nn.Module):
    """What a constructor reads counts where a function makes instances, and nowhere else."""

    def __init__(self) -> None:
        self.w = X * FACTOR

    def __call__(self, x: Any) -> Any:
        return x * self.w


def test_what_a_constructor_reads_is_seen_where_it_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    made, given, model = weft.jit(lambda x: Sized()(x)), weft.jit(lambda m, x: m(x)), Sized()
    for factor in (2.0, 9.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        assert made(X).tolist() == [factor, factor]
        assert given(model, X).tolist() == [2.0, 2.0]
    assert "first call" in weft.explain(given)


def test_tensors_that_change_places_in_a_captured_module_do_so_in_every_call() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            self.parts = [X, X * 2.0]

        def __call__(self, x: Any) -> Any:
            self.parts.reverse()
            return x

    model = Pair()
    f = weft.jit(lambda x: model(x))
    for turn in range(4):
        f(X)
        assert model.parts[0].tolist() == [2.0 - turn % 2] * 2
