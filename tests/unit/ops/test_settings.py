"""Settings that Python holds for equal, and are not: each is a version of its own."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.ops.settings import can_change, exact

Pair = namedtuple("Pair", "a b")


@dataclass(frozen=True)
class Frozen:
    rate: Any
    more: Any = ()


@dataclass
class Assigned:
    rate: Any


class Plain:
    """Compared by its identity."""

    def __init__(self, rate: Any = 1.0) -> None:
        self.rate = rate
        self.inside: Any = None


@dataclass
class Config:
    """The sizes of a model, as many write them."""

    sizes: Any
    hidden: int = field(default=1, compare=False)


class Colour(Enum):
    RED = 1


def kind(value: Any) -> str:
    """What a function sees of a setting that `==` does not."""
    if isinstance(value, frozenset | tuple):
        return f"{type(value).__name__}({sorted(kind(each) for each in value)})"
    return f"{value.rate!r}" if isinstance(value, Frozen) else repr(value)


TWINS = {
    "int, float, bool": (1, 1.0, True),
    "signs": (0.0, -0.0, 0),
    "tuples": ((1,), (1.0,), (True,)),
    "deep": ((0, (1,)), (0, (1.0,)), (False, (1,))),
    "sets": (frozenset({1}), frozenset({1.0}), frozenset({True})),
    "sets of tuples": (frozenset({(1, 2)}), frozenset({(1, 2.0)})),
    "sets in tuples": ((frozenset({1}),), (frozenset({True}),)),
    "records": (Frozen(1), Frozen(1.0), Frozen(True)),
    "named tuples": (Pair(1, 2), Pair(1.0, 2), (1, 2)),
    "numbers of NumPy": (np.float64(0.0), np.float64(-0.0), np.float32(0.0)),
}


@pytest.mark.parametrize("values", TWINS.values(), ids=TWINS.keys())
def test_equal_settings_of_other_kinds_are_other_versions(values: tuple[Any, ...]) -> None:
    seen: list[str] = []

    def call(x: Any, how: Any) -> Any:
        seen.append(kind(how))
        return x + len(seen)

    f = weft.jit(call, static="how")
    x = weft.ones(())
    for turn in range(2):
        for number, value in enumerate(values):
            assert f(x, value).item() == number + 2, turn
    assert seen == [kind(value) for value in values]


def test_a_nan_is_one_setting() -> None:
    f = weft.jit(lambda x, how: weft.where(x > how, x, 0.0), static="how")
    for _ in range(3):
        f(weft.ones(()), float("nan"))
        f(weft.ones(()), math.nan)
    assert len(f.versions) == 1


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_equal_keys_of_other_kinds_are_other_versions(kind: Any) -> None:
    f = weft.jit(lambda d: [x * (2 if isinstance(key, bool) else key) for key, x in d.items()])
    x = weft.ones((), dtype="int32")
    for _ in range(2):
        assert f(kind({1: x}))[0].dtype == weft.int32
        assert f(kind({1.5: x, 1.0: x}))[1].dtype == weft.float32
        assert f(kind({1.0: x}))[0].dtype == weft.float32
        assert f(kind({True: x}))[0].item() == 2
        assert f(kind({1: x}))[0].dtype == weft.int32


class Scaled(nn.Module):
    def __init__(self, how: Any) -> None:
        self.how = how
        self.weight = weft.ones((3,))

    def __call__(self, x: Any) -> Any:
        how = self.how[0] if isinstance(self.how, tuple) else self.how
        inside = how.inside.rate if isinstance(how.inside, Plain) else 1.0
        held = sum(how.inside) if isinstance(how.inside, list | set) else 1.0
        rate = how.inside["r"] if isinstance(how.inside, dict) else how.rate
        return x * self.weight * rate * inside * held


def _set_inside(how: Plain, value: Any) -> None:
    how.inside = value


CHANGES: dict[str, Any] = {
    "an attribute": (lambda how: None, lambda how: setattr(how, "rate", how.rate + 1.0)),
    "an object inside": (
        lambda how: _set_inside(how, Plain()), lambda how: setattr(how.inside, "rate", 4.0)),
    "a list inside": (lambda how: _set_inside(how, [1.0]), lambda how: how.inside.append(2.0)),
    "a set inside": (lambda how: _set_inside(how, {1.0}), lambda how: how.inside.add(2.0)),
    "a dict inside": (
        lambda how: _set_inside(how, {"r": 1.0}), lambda how: how.inside.update(r=5.0)),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("nest", [lambda how: how, lambda how: (how,)], ids=["alone", "in a tuple"])
def test_a_setting_that_changes_inside_is_seen(nest: Any, change: Any) -> None:
    prepare, act = change
    how = Plain()
    prepare(how)
    model, x = Scaled(nest(how)), weft.ones((3,))
    calls = {
        "an argument": (weft.jit(lambda m, x: m(x)), (model, x)),
        "captured": (weft.jit(lambda x: model(x)), (x,)),
        "the function": (weft.jit(model), (x,)),
        "static": (weft.jit(lambda how, x: Scaled(how)(x), static="how"), (nest(how), x)),
    }
    for turn in range(2):
        for f, given in calls.values():
            for _ in range(2):
                np.testing.assert_array_equal(f(*given).numpy(), model(x).numpy())
        before = model(x).tolist()
        act(how)
        assert turn or model(x).tolist() != before
        for name, (f, given) in calls.items():
            np.testing.assert_array_equal(f(*given).numpy(), model(x).numpy(), err_msg=name)


UNHASHED: dict[str, tuple[Any, Any]] = {
    "a list": ([1, 2], lambda how: how.append(3)),
    "a list of another kind": ([1, 2], lambda how: how.__setitem__(0, 1.0)),
    "a list in a tuple": (([1, 2], 3), lambda how: how[0].append(4)),
    "a dict": ({"a": 1, "b": "c"}, lambda how: how.update(a=2)),
    "another order": ({"a": 1, "b": 2}, lambda how: how.update(a=how.pop("a"))),
    "a dict in a dict": ({"a": {"b": 1}}, lambda how: how["a"].update(b=2)),
    "a set": ({1, 2}, lambda how: how.add(3)),
    "a deque": (deque([1, 2]), lambda how: how.rotate()),
    "an ordered dict": (OrderedDict(a=1), lambda how: how.update(b=2)),
    "a record": (Config([1, 2]), lambda how: setattr(how, "sizes", 3)),
    "a field that is not compared": (Config([1, 2]), lambda how: setattr(how, "hidden", 3)),
    "a list in a record": (Config([1, 2]), lambda how: how.sizes.append(3)),
    "a list in a frozen record": (Frozen([1, 2]), lambda how: how.rate.append(3)),
    "a namespace": (SimpleNamespace(a=1), lambda how: setattr(how, "a", 2)),
    "a namespace in an object": (
        Plain(SimpleNamespace(a=1)), lambda how: setattr(how.rate, "a", 2)),
    "a named tuple": (Pair([1], 2), lambda how: how.a.append(2)),
}  # fmt: skip


class Shown(nn.Module):
    """Its result says what its setting is."""

    def __init__(self, how: Any) -> None:
        self.how, self.weight = how, weft.ones(())

    def __call__(self, x: Any) -> Any:
        how = self.how
        inside = vars(how.rate) if isinstance(how, Plain) else getattr(how, "hidden", None)
        return x * self.weight * float(sum(f"{how!r:.40} {inside}".partition("at 0x")[0].encode()))


@pytest.mark.parametrize("name", UNHASHED)
def test_a_setting_without_a_hash_that_changes_is_seen(name: str) -> None:
    how: Any
    change: Any
    how, change = copy.deepcopy(UNHASHED[name])
    model, x = Shown(how), weft.ones(())
    jitted = weft.jit(lambda m, x: m(x))
    captured, whole = weft.jit(lambda x: model(x)), weft.jit(model)
    slopes = weft.jit(weft.grad(lambda m: m(x)))
    calls: dict[str, Any] = {
        "an argument": lambda: jitted(model, x),
        "a copy": lambda: jitted(copy.deepcopy(model), x),
        "captured": lambda: captured(x),
        "the function": lambda: whole(x),
        "a gradient": lambda: slopes(model).weight,
    }
    for _ in range(3):
        for told, call in calls.items():
            for _ in range(2):
                assert call().item() == model(x).item(), told
        change(how)
    assert Shown(copy.deepcopy(how)).map(lambda w: w * 2.0).how == how or isinstance(how, Plain)


def test_equal_settings_without_a_hash_are_one_version() -> None:
    f = weft.jit(lambda m, x: m(x))
    for _ in range(3):
        f(Shown({"a": [1, 2.0]}), weft.ones(()))
    assert len(f.versions) == 1


def test_a_donated_module_whose_setting_changes_is_seen() -> None:
    how = Plain()
    step = weft.jit(lambda m: m.map(lambda w: w + m.how.rate), donate="m")
    model: Any = Scaled(how)
    want = 1.0
    for turn in range(6):
        if turn % 2:
            how.rate += 1.0
        want += how.rate
        model = step(model)
    np.testing.assert_array_equal(model.weight.numpy(), np.full(3, want, np.float32))


def test_what_is_looked_at_in_a_setting() -> None:
    assert not any(map(can_change, (1, "a", (1, 2.0), Colour.RED, print, kind, Frozen(1), Plain)))
    assert can_change(Plain())
    assert can_change((Frozen(1, (Plain(),)),))
    own = Plain()
    own.inside = own
    assert exact(own) == exact(own)
    own.inside = weft.ones((2,))
    before = exact(own)
    own.inside = weft.ones((2,))
    assert exact(own) != before, "another tensor, which is not compared with =="
    own.inside = Assigned(1)
    before = exact(own)
    own.inside.rate = 2
    assert exact(own) != before


def test_a_module_inside_a_setting_is_not_looked_into() -> None:
    how = Plain()
    how.inside = nn.Linear(2, 2)
    exact(how)
    assert not how.inside._is_open


@dataclass
class Batch:
    x: Any
    how: Any = field(metadata={"static": True})


def test_a_static_field_that_changes_inside_is_seen() -> None:
    f = weft.jit(lambda batch: batch.x * batch.how.rate)
    batch = Batch(weft.ones(()), Plain())
    for rate in (1.0, 1.0, 4.0, 4.0, 1.0):
        batch.how.rate = rate
        assert f(batch).item() == rate
        assert f(copy.copy(batch)).item() == rate
    assert len(f.versions) == 2
