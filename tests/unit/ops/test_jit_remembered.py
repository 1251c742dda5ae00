"""Functions under `jit` know their arguments again: what has changed since is seen, always."""

from __future__ import annotations

import copy
import gc
import pickle
import random
import threading
from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from tests.support.python_calls import python_calls
from weft import functional as F
from weft import nn
from weft.ops import module_cache
from weft.ops.module_cache import recall


class Model(nn.Module):
    """Tensors as attributes, in a list, a dict, a tuple and a module, and settings beside them."""

    def __init__(self) -> None:
        self.first = nn.Linear(3, 3)
        self.layers = [nn.Linear(3, 3), nn.Linear(3, 3)]
        self.table = {"a": weft.ones((3,)), "b": weft.ones((3,))}
        self.pair = (weft.ones((3,)), nn.LayerNorm(3))
        self.scale: Any = 0.5
        self.bias = weft.zeros((3,))

    def __call__(self, x: Any) -> Any:
        x = self.first(x)
        for layer in self.layers:
            x = F.tanh(layer(x))
        for held in self.table.values():
            x = x * held
        power = 1.0 if isinstance(self.scale, float) else 2.0
        return self.pair[1](x + self.pair[0]) * self.scale * power + self.bias


def call(model: Any, x: Any) -> Any:
    return model(x)


def fresh(*shape: int) -> Any:
    values = np.random.default_rng(random.randrange(10**6)).standard_normal(shape)
    return weft.asarray(values.astype(np.float32))


def _replace_attributes_dict(model: Model) -> None:
    vars(model.first)["weight"] = fresh(3, 3)


def _away_and_back(model: Model) -> None:
    model.more = 1
    del model.more  # type: ignore[attr-defined]
    model.scale = 3


class Doubled(nn.Linear):
    def __call__(self, x: Any) -> Any:
        return super().__call__(x) * 2.0


MUTATIONS: dict[str, Callable[[Model], Any]] = {
    "an element": lambda m: m.first.weight.__setitem__((0, 1), 5.0),
    "a row of a deep one": lambda m: m.layers[1].weight.__setitem__(0, fresh(3)),
    "an element in a dict": lambda m: m.table["a"].__setitem__(2, -3.0),
    "all elements": lambda m: m.bias.__setitem__(..., fresh(3)),
    "become": lambda m: m.pair[0].become(fresh(3)),
    "in place": lambda m: m.bias.__iadd__(1.0),
    "a parameter": lambda m: setattr(m.first, "weight", fresh(3, 3)),
    "a deep parameter": lambda m: setattr(m.layers[0], "bias", fresh(3)),
    "a module": lambda m: setattr(m, "first", nn.Linear(3, 3)),
    "an item of a list": lambda m: m.layers.__setitem__(1, nn.Linear(3, 3)),
    "one more in a list": lambda m: m.layers.append(nn.Linear(3, 3)),
    "one fewer in a list": lambda m: m.layers.pop() if len(m.layers) > 1 else None,
    "another order": lambda m: m.layers.reverse(),
    "another list": lambda m: setattr(m, "layers", [nn.Linear(3, 3)]),
    "an item of a dict": lambda m: m.table.__setitem__("b", fresh(3)),
    "one more in a dict": lambda m: m.table.__setitem__(f"n{len(m.table)}", fresh(3)),
    "one fewer in a dict": lambda m: m.table.popitem() if len(m.table) > 1 else None,
    "a tuple": lambda m: setattr(m, "pair", (fresh(3), m.pair[1])),
    "in a tuple": lambda m: setattr(m.pair[1], "weight", fresh(3)),
    "a setting": lambda m: setattr(m, "scale", random.random()),
    "the kind of a setting": lambda m: setattr(m, "scale", 2 if m.scale == 2.0 else 2.0),
    "a deep setting": lambda m: setattr(m.pair[1], "eps", random.random()),
    "away and back": _away_and_back,
    "through vars": _replace_attributes_dict,
    "the class": lambda m: setattr(m.first, "__class__", Doubled),
    "a shared module": lambda m: setattr(m, "first", m.layers[0]),
    "a lazy parameter": lambda m: setattr(m, "bias", m.bias + fresh(3)),
    "the number of dims": lambda m: setattr(m, "bias", fresh(2, 3)),
}


def same(got: Any, model: Any, x: Any) -> bool:
    """Whether a result is what the model gives without `jit`, for all to see."""
    return bool(np.allclose(got.numpy(), model(x).numpy(), rtol=1e-4, atol=1e-5))


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_changes_in_a_module_is_seen(name: str) -> None:
    random.seed(name)
    model, x, f = Model(), fresh(2, 3), weft.jit(call)
    for _ in range(2):
        f(model, x)
        f(model, x)
        MUTATIONS[name](model)
        assert same(f(model, x), model, x)


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_changes_in_a_captured_module_is_seen(name: str) -> None:
    random.seed(name)
    model, x = Model(), fresh(2, 3)
    f = weft.jit(lambda x: model(x))
    for _ in range(2):
        f(x)
        f(x)
        MUTATIONS[name](model)
        assert same(f(x), model, x)


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("seed", one_in(3, range(3)))
def test_random_changes_between_calls(seed: int) -> None:
    random.seed(seed)
    models, x, f = [Model(), Model()], fresh(2, 3), weft.jit(call)
    names = [name for name in MUTATIONS if name not in ("the number of dims", "one more in a list")]
    for turn in range(12):
        model = random.choice(models)
        for name in random.sample(names, random.choice((0, 1, 2))):
            MUTATIONS[name](model)
        assert same(f(model, x), model, x), turn


def test_a_dict_that_was_handed_out_before_is_looked_at() -> None:
    model, x, f = Model(), fresh(2, 3), weft.jit(call)
    held = vars(model.first)
    for _ in range(3):
        f(model, x)
        held["weight"] = fresh(3, 3)
        assert same(f(model, x), model, x)
    assert recall(model) is recall(model), "and is compared, not read anew"


def test_an_unchanged_module_is_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, f = Model(), fresh(2, 3), weft.jit(call)
    want = f(model, x).tolist()
    monkeypatch.setattr(module_cache, "flatten", None)
    assert f(model, x).tolist() == want
    model.bias[0] = 1.0
    with pytest.raises(TypeError):
        f(model, x)


def test_what_is_replaced_is_not_kept_alive() -> None:
    model, x, f = Model(), fresh(2, 3), weft.jit(call)
    f(model, x)
    old = ref(model.first.weight)
    model.first.weight = fresh(3, 3)
    gc.collect()
    assert old() is None
    f(model, x)
    last, whole = ref(model.first.weight), ref(model)
    del model
    gc.collect()
    assert last() is None
    assert whole() is None


def test_copies_and_pickles_are_modules_of_their_own() -> None:
    model, x, f = Model(), fresh(2, 3), weft.jit(call)
    f(model, x)
    for made in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        made.bias = fresh(3)
        assert same(f(made, x), made, x)
        assert same(f(model, x), model, x)
        assert not np.allclose(f(made, x).numpy(), f(model, x).numpy())


class Loose(nn.Module):
    """A module with a way of its own to set attributes."""

    def __init__(self) -> None:
        self.weight = weft.ones((3,))

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def __call__(self, x: Any) -> Any:
        return x * self.weight


def test_a_module_that_does_not_tell_is_taken_apart_in_every_call() -> None:
    model, x, f = Loose(), fresh(2, 3), weft.jit(call)
    for _ in range(3):
        f(model, x)
        model.weight = fresh(3)
        assert same(f(model, x), model, x)
    assert recall(model) is None


def test_a_donated_tensor_of_a_module_is_told() -> None:
    model, x, f = Model(), fresh(2, 3), weft.jit(call)
    f(model, x)
    weft.jit(lambda w: w + 1.0, donate="w")(model.bias)
    for _ in range(2):
        with pytest.raises(weft.UserError, match="was donated"):
            f(model, x)
    model.bias = fresh(3)
    assert same(f(model, x), model, x)


def test_contexts_are_part_of_a_call() -> None:
    model, x, f = Model(), fresh(2, 3), weft.jit(call)
    plain = f(model, x).numpy()
    with weft.autocast("bf16"):
        narrow = f(model, x).numpy()
        assert (f(model, x).numpy() == narrow).all()
    assert (f(model, x).numpy() == plain).all()
    assert (narrow != plain).any()
    other = "cpu" if x.backend == "reference" else "reference"
    moved = model.map(lambda t: t.to(other))
    assert f(moved, x.to(other)).backend == other
    assert f(model, x).backend == x.backend
    for _ in range(2):
        with pytest.raises(weft.SpecViolation, match="BackendMismatch"):
            f(model, x.to(other))


def test_training_is_part_of_a_call() -> None:
    norm, x, f = nn.BatchNorm(3), fresh(8, 3), weft.jit(call)
    quiet = f(norm, x).numpy()
    for _ in range(3):
        before = norm.running_var.numpy()
        with nn.training():
            trained = f(norm, x).numpy()
        assert (trained != quiet).any()
        assert (norm.running_var.numpy() != before).all(), "state is assigned in every call"
        after = f(norm, x).numpy()
        assert np.allclose(after, norm(x).numpy(), atol=1e-6)


def test_other_shapes_dtypes_numbers_and_names() -> None:
    def scaled(x: Any, by: Any = 1.0, *, plus: Any = 0.0) -> Any:
        return x * by + plus

    f = weft.jit(scaled)
    for _ in range(3):
        for x in (fresh(2, 3), fresh(3), fresh(3).numpy(), weft.ones((3,), dtype="f64")):
            for given in ({}, {"by": 2.0}, {"plus": 3}, {"plus": 1.5, "by": x}, {"by": 4}):
                want = scaled(weft.asarray(x), **given)
                got = f(x, **given)
                assert got.dtype is want.dtype
                assert np.allclose(got.numpy(), want.numpy())
    whole = weft.jit(lambda x, n: x + n)
    small = weft.ones((3,), dtype="si8")
    for _ in range(2):
        assert whole(small, 100).tolist() == [101] * 3
        with pytest.raises(weft.WeftError, match="300"):
            whole(small, 300)


def test_static_values_are_compared_as_python_tells_them_apart() -> None:
    f = weft.jit(lambda x, n: (x * n, type(n).__name__), static="n")
    x = fresh(3)
    for _ in range(2):
        for value in (1, 1.0, True, 2):
            made, name = f(x, value)
            assert name == type(value).__name__
            assert np.allclose(made.numpy(), x.numpy() * value)


def test_an_arena_in_force_and_a_trace_around() -> None:
    model, x, f = Model(), fresh(2, 3), weft.jit(call)
    want = f(model, x).numpy()
    with weft.graph() as arena:
        assert f(model, x).arena is arena
    outer = weft.jit(lambda x: f(model, x) * 2.0)
    assert np.allclose(outer(x).numpy(), want * 2.0, rtol=1e-5)
    assert np.allclose(f(model, x).numpy(), want)


def test_threads_call_with_modules_of_their_own() -> None:
    f, x = weft.jit(call), fresh(2, 3)
    wrong: list[int] = []

    def work(number: int) -> None:
        model = Model()
        for turn in range(5):
            model.bias = weft.full((3,), float(number * 10 + turn))
            if not same(f(model, x), model, x):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_cleared_functions_compile_again() -> None:
    model, x, f = Model(), fresh(2, 3), weft.jit(call)
    f(model, x)
    f.clear()
    assert not f.versions
    assert same(f(model, x), model, x)
    assert len(f.versions) == 1


def test_a_donated_step_hands_its_state_on() -> None:
    def step(model: Any, state: Any, x: Any) -> Any:
        moved = model.map(lambda w: w * 0.5)
        return moved, {"n": state["n"] + 1.0, "kept": [k + 1.0 for k in state["kept"]]}, x.sum()

    f = weft.jit(step, donate=("model", "state"))
    model, x = Model(), fresh(2, 3)
    state = {"n": weft.asarray(0.0), "kept": [fresh(3), fresh(2)]}
    want: Any = weft.tree.map(lambda t: weft.asarray(t.numpy()), (model, state))
    for turn in range(4):
        old = model, state
        model, state, total = f(model, state, x)
        want = step(want[0], want[1], x)[:2]
        assert total.shape == ()
        for got, own in zip(model.parameters(), want[0].parameters(), strict=True):
            assert np.allclose(got.numpy().copy(), own.numpy())
        assert state["n"].item() == turn + 1
        with pytest.raises(weft.UserError, match="was donated"):
            old[0].bias.numpy()
        with pytest.raises(weft.UserError, match="was donated"):
            old[1]["kept"][1].numpy()
    assert len(f.versions) == 1


def test_memory_that_two_donated_arguments_share_is_written_once() -> None:
    f = weft.jit(lambda a, b: (a + 1.0, b * 2.0), donate=("a", "b"))
    for _ in range(3):
        x = weft.asarray(np.full(3, 3.0, np.float32))
        first, second = f(x, copy.copy(x))
        assert (first.tolist(), second.tolist()) == ([4.0] * 3, [6.0] * 3)


# -- calls of tensors and modules alone -----------------------------------------------------------


def test_a_small_call_runs_little_python() -> None:
    """About 58, 64 and 69 calls, 16 µs."""
    with weft.graph(backend="cpu"):
        x, model = fresh(4, 4).eval(), nn.Linear(4, 4).map(lambda w: w.eval())
    add, apply, own = weft.jit(lambda a, b: a + b), weft.jit(call), weft.jit(model)
    assert python_calls(lambda: add(x, x)) < 66
    assert python_calls(lambda: apply(model, x)) < 71
    assert python_calls(lambda: own(x)) < 75


@pytest.mark.usefixtures("each_backend")
def test_calls_of_all_kinds_after_a_plain_one() -> None:
    f = weft.jit(lambda a, b: a * 2.0 + b)
    x, other = fresh(2, 3), fresh(2, 3)
    want = x.numpy() * 2.0 + other.numpy()
    pairs: list[tuple[Any, Any]] = [
        (x, other), (x.numpy(), other), (x, other.numpy()), (x + 0.0, other * 1.0), (x, other),
    ]  # fmt: skip
    for a, b in pairs * 2:
        np.testing.assert_allclose(f(a, b).numpy(), want, rtol=1e-6)
        np.testing.assert_allclose(f(a, b=b).numpy(), want, rtol=1e-6)
        np.testing.assert_allclose(f(b=b, a=a).numpy(), want, rtol=1e-6)
    assert f(x, 1.0).shape == (2, 3)
    assert f(x[:1], other[:1]).shape == (1, 3)
    assert f(x.astype(weft.float64), other.astype(weft.float64)).dtype is weft.float64
    with pytest.raises(TypeError):
        f(x)
    weft.jit(lambda a: a + 1.0, donate="a")(x)
    with pytest.raises(weft.UserError, match="was donated"):
        f(x, other)


def test_a_plain_call_sees_what_is_in_force() -> None:
    f = weft.jit(lambda x: F.linear(x, x))
    g = weft.jit(lambda x: x * (2.0 if nn.is_training() else 1.0))
    x = fresh(3, 3)
    for _ in range(2):
        assert f(x).dtype is weft.float32
        with weft.autocast("bf16"):
            assert f(x).dtype is weft.bfloat16
        plain = g(x).numpy()
        with nn.training():
            np.testing.assert_allclose(g(x).numpy(), plain * 2.0)
