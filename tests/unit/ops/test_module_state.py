"""Modules that have another form after a call: what a traced function does to them is done."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import weft
from weft import nn, optim
from weft.foundation.errors import UserError
from weft.ops.pytree import flatten


class Pair(NamedTuple):
    """A tuple with names, as a cache may be."""

    key: Any
    value: Any


class Inner(nn.Module):
    def __init__(self) -> None:
        self.w = weft.ones((2,))
        self.calls = 0


class Loose(nn.Module):
    """A module that anything may be done to."""

    def __init__(self) -> None:
        self.w = weft.ones((2,))
        self.k = None
        self.flag, self.rate = True, 0.5
        self.items: list[Any] = [weft.zeros((2,))]
        self.empty: list[Any] = []
        self.named: dict[str, Any] = {"b": weft.zeros((2,)), "a": weft.ones((2,))}
        self.pair = Pair(weft.zeros((2,)), weft.ones((2,)))
        self.none: list[Any] = [None, {"b": None}]
        self.sizes = [1, 2]
        self.inner = Inner()
        self.parts = [Inner(), Inner()]


Change = Callable[[Any, Any], None]


def _cached(m: Any, x: Any) -> None:
    m.k = x if m.k is None else weft.concat([m.k, x])


def _grown(m: Any, x: Any) -> Any:
    _cached(m, x)
    return m


def _moved(m: Any, x: Any) -> None:
    m.parts[0].w = m.parts[0].w + x
    m.parts.reverse()


CHANGES: dict[str, Change] = {
    "from None to a tensor": _cached,
    "and back": lambda m, x: setattr(m, "k", None),
    "a list grows": lambda m, x: m.items.append(x + len(m.items)),
    "an empty list grows": lambda m, x: m.empty.append(x * 2.0),
    "a list shrinks": lambda m, x: m.items and m.items.pop(0),
    "a list is turned round": lambda m, x: m.items.reverse(),
    "another list": lambda m, x: setattr(m, "items", [x, *m.items[:1]]),
    "a list of none": lambda m, x: m.none.__setitem__(0, x),
    "none in a dict in a list": lambda m, x: m.none[1].update(b=x + 1.0),
    "a list of numbers": lambda m, x: m.sizes.append(3),
    "a key": lambda m, x: m.named.update({f"k{len(m.named)}": x}),
    "a key goes": lambda m, x: m.named.pop("b", None),
    "another order of keys": lambda m, x: m.named.update(a=m.named.pop("a") + x),
    "a named tuple": lambda m, x: setattr(m, "pair", m.pair._replace(value=m.pair.value + x)),
    "a tuple": lambda m, x: setattr(m, "pair", (*m.pair, x)),
    "an attribute": lambda m, x: setattr(m, "more", x + 1.0),
    "an attribute goes": lambda m, x: m.__dict__.pop("more", None),
    "a number": lambda m, x: setattr(m, "rate", m.rate + 1.0),
    "a flag": lambda m, x: setattr(m, "flag", not m.flag),
    "a count inside": lambda m, x: setattr(m.inner, "calls", m.inner.calls + 1),
    "a tensor inside": lambda m, x: setattr(m.inner, "w", m.inner.w + x),
    "a new module": lambda m, x: setattr(m, "inner", Inner()),
    "modules change places": lambda m, x: m.parts.reverse(),
    "a module moves": lambda m, x: setattr(m, "other", m.parts[0]),
    "a module changes and moves": _moved,
    "tensors change places": lambda m, x: m.__dict__.update(w=m.inner.w, last=m.w),
    "a dict in order": lambda m, x: setattr(m, "named", OrderedDict({**m.named, "z": x})),
}


def total(m: Any, x: Any) -> Any:
    """Something of all that the module holds."""
    leaves = [leaf for leaf in flatten(m)[0] if isinstance(leaf, weft.Tensor)]
    scale = m.rate if m.flag else 1.0
    return sum((weft.sum(leaf) for leaf in leaves), weft.sum(x)) * scale


def state(m: Any) -> Any:
    leaves, structure = flatten(m)
    return structure, [leaf.tolist() for leaf in leaves]


def applied(names: tuple[str, ...]) -> Callable[[Any, Any], Any]:
    def call(m: Any, x: Any) -> Any:
        for name in names:
            CHANGES[name](m, x)
        return total(m, x)

    return call


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "jit": weft.jit,
    "grad": lambda call: lambda m, x: weft.value_and_grad(call, argnums=1)(m, x)[0],
    "jit of grad": lambda call: weft.jit(
        lambda m, x: weft.value_and_grad(call, argnums=1)(m, x)[0]
    ),
}


@pytest.mark.parametrize("name", list(CHANGES))
def test_what_a_call_does_to_a_module_is_done(name: str) -> None:
    x, call = weft.asarray([1.0, 2.0]), applied((name,))
    plain, model = Loose(), Loose()
    compiled = weft.jit(call)
    with weft.graph(backend="reference"):
        for _ in range(3):
            assert compiled(model, x).item() == call(plain, x).item()
            assert state(model) == state(plain)


@pytest.mark.parametrize("wrapped", list(WRAPPED))
def test_one_thing_after_the_other(wrapped: str) -> None:
    drawn, x = random.Random(wrapped), weft.asarray([1.0, 2.0])
    plain, model = Loose(), Loose()
    calls = [applied(tuple(drawn.sample(list(CHANGES), 3))) for _ in range(4)]
    compiled = [WRAPPED[wrapped](call) for call in calls]
    for _ in range(6):
        number = drawn.randrange(len(calls))
        found, expected = compiled[number](model, x).item(), calls[number](plain, x).item()
        assert found == pytest.approx(expected)
        assert state(model) == state(plain)


def test_lists_stay_the_objects_that_they_are() -> None:
    model = Loose()
    items, inner = model.items, model.parts[1]
    compiled = weft.jit(applied(("a list grows", "modules change places")))
    compiled(model, weft.ones((2,)))
    assert model.items is items
    assert len(items) == 2
    assert model.parts[0] is inner


def test_a_form_that_comes_back_is_not_traced_again() -> None:
    model, seen = Loose(), 0

    def call(m: Any, x: Any) -> Any:
        nonlocal seen
        seen += 1
        m.flag = not m.flag
        return x * (2.0 if m.flag else 3.0)

    compiled = weft.jit(call)
    found = [compiled(model, weft.ones(())).item() for _ in range(6)]
    assert found == [3.0, 2.0] * 3
    assert seen == 2


def test_a_cache_that_is_donated_is_what_the_function_returns() -> None:
    step = weft.jit(_grown, donate="m")
    model = Loose()
    for _ in range(3):
        model = step(model, weft.ones((2,)))
    assert model.k is not None
    assert model.k.shape == (6,)


def test_where_nobody_carries_it_it_is_told() -> None:
    x, rows = weft.ones((2,)), weft.ones((3, 2))
    with pytest.raises(UserError, match=r"StateLost.*\[vmap\].*the attribute k of a Loose"):
        weft.vmap(applied(("from None to a tensor",)), in_axes=(None, 0))(Loose(), rows)
    with pytest.raises(UserError, match=r"\[on_true\] assigns to the attribute rate of a Loose"):
        weft.cond(True, applied(("a number",)), total, Loose(), x)
    with pytest.raises(UserError, match=r"\[body\] assigns to the attribute items of a Loose"):
        weft.scan(lambda m, row: (Loose(), applied(("a list grows",))(m, row)), Loose(), rows)
    with pytest.raises(
        weft.WeftError, match="carry and the next carry are nested in different ways"
    ):
        weft.scan(lambda m, row: (_grown(m, row), None), Loose(), rows)
    shared = Loose()
    with pytest.raises(UserError, match="StateSharedTwice"):
        weft.jit(lambda a, b: (_grown(a, x).k, _grown(b, x).k))(shared, shared)
    assert shared.k is None


def test_a_module_that_both_branches_change_is_returned() -> None:
    x = weft.ones((2,))
    made = weft.cond(weft.asarray(True), _grown, _grown, Loose(), x)
    assert made.k.tolist() == [1.0, 1.0]


class Stats:
    """What a module counts with."""

    def __init__(self) -> None:
        self.odd = 0


class Counting(nn.Module):
    def __init__(self) -> None:
        self.w, self.calls, self.stats = weft.ones((2,)), 0, Stats()

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        return weft.sum(x * self.w)


def test_an_object_that_a_function_changes_is_changed_in_every_call() -> None:
    def call(m: Any, x: Any) -> Any:
        m.stats.odd = 1 - m.stats.odd
        return weft.sum(x) * m.stats.odd

    compiled, model = weft.jit(call), Counting()
    assert [compiled(model, weft.ones(())).item() for _ in range(5)] == [1.0, 0.0, 1.0, 0.0, 1.0]


def test_a_model_that_counts_is_trained() -> None:
    optimiser, model = optim.SGD(0.5, 0.0), Counting()

    @weft.jit
    def step(model: Any, state: Any, x: Any) -> Any:
        slopes = weft.grad(lambda m: m(x))(model)
        return optimiser.update(slopes, state, model)

    state = optimiser.init(model)
    for _ in range(2):
        model, state = step(model, state, weft.ones((2,)))
    assert model.calls == 2
    assert model.w.tolist() == [0.0, 0.0]
    grown = Loose()
    slopes = weft.grad(applied(("an attribute",)))(grown, weft.ones((2,)))
    with pytest.raises(UserError, match=r"no params\.more; make what is learnt before"):
        optimiser.update(slopes, optimiser.init(Loose()), grown)


class Tenfold(Counting):
    """A module that has another value than what is assigned."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value * 10 if name == "calls" else value)


def test_what_a_class_does_on_assignment_is_done_once() -> None:
    plain, model = Tenfold(), Tenfold()
    compiled = weft.jit(lambda m, x: m(x))
    for _ in range(3):
        assert compiled(model, weft.ones((2,))).item() == plain(weft.ones((2,))).item()
        assert model.calls == plain.calls


@pytest.mark.parametrize("wrapped", list(WRAPPED))
def test_a_list_that_is_replaced_stays_as_it_was(wrapped: str) -> None:
    def call(m: Any, x: Any) -> Any:
        m.items, m.named = [m.items[0] + x], dict(m.named, b=x)
        return total(m, x)

    model = Loose()
    items, named = model.items, model.named
    WRAPPED[wrapped](call)(model, weft.ones((2,)))
    assert model.items is not items
    assert items[0].tolist() == named["b"].tolist() == [0.0, 0.0]
    assert model.items[0].tolist() == model.named["b"].tolist() == [1.0, 1.0]
