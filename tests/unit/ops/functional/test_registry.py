"""The registry of implementations: policies, where they are set, and who may register."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft
from weft import functional as F
from weft.foundation.errors import UserError
from weft.ops.functional import registry

X = np.asarray([1.0, -2.0], np.float32)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Policies and implementations as they were."""
    before = {
        name: (dict(entry.implementations), entry.policy)
        for name, entry in registry._ENTRIES.items()
    }
    yield
    for name, (implementations, policy) in before.items():
        entry = registry._ENTRIES[name]
        entry.implementations.clear()
        entry.implementations.update(implementations)
        entry.policy = policy
        entry.measured.clear()


@pytest.fixture
def calls() -> list[str]:
    """Two implementations of relu that tell when they run; the first takes matrices only."""
    seen: list[str] = []
    own = registry.entry_of("relu").implementations["default"].run

    def told(name: str) -> Any:
        def run(x: Any) -> Any:
            seen.append(name)
            return own(x)

        return run

    F.register("relu", "loud", told("loud"), lambda x: x.ndim == 2)
    F.register("relu", "quiet", told("quiet"))
    return seen


def test_these_ops_ship_several() -> None:
    several = {op for op in registry._ENTRIES if len(F.implementations(op)) > 1}
    assert {"attention", "matmul", "conv1d", "conv2d", "conv3d", "layer_norm"} <= several


def test_the_default_is_the_first_that_supports_the_arguments(calls: list[str]) -> None:
    F.relu(weft.asarray(X))
    assert calls == []
    assert F.implementations("relu") == ["default", "loud", "quiet"]


def test_force_in_every_way_to_say_it(calls: list[str]) -> None:
    F.configure({"relu": "force=quiet"})
    F.relu(weft.asarray(X))
    F.configure('{"relu": "force=loud"}')
    F.relu(weft.asarray(X))
    with F.overrides({"relu": "force=quiet"}):
        F.relu(weft.asarray(X))
        with F.overrides('{"relu": "default"}'):
            F.relu(weft.asarray(X))
        F.relu(weft.asarray(X))
    F.relu(weft.asarray(X))
    assert calls == ["quiet", "loud", "quiet", "quiet", "loud"]


def test_overrides_are_of_one_thread(calls: list[str]) -> None:
    with F.overrides({"relu": "force=quiet"}):
        thread = threading.Thread(target=lambda: F.relu(weft.asarray(X)))
        thread.start()
        thread.join()
    assert calls == []


def test_an_implementation_may_replace_the_default(calls: list[str]) -> None:
    F.register("relu", "default", lambda x: x * 0.0, lambda x: x.ndim == 1)
    assert F.relu(weft.asarray(X)).tolist() == [0.0, -0.0]
    F.relu(weft.asarray(X.reshape(1, 2)))
    assert calls == ["loud"]


def test_a_third_party_decorates() -> None:
    @F.implements("silu", "mine", lambda x: x.dtype is weft.float32)
    def mine(x: Any) -> Any:
        return x * F.sigmoid(x)

    with F.overrides({"silu": "force=mine"}):
        np.testing.assert_allclose(F.silu(weft.asarray(X)).numpy(), X / (1 + np.exp(-X)), rtol=1e-6)


def test_an_implementation_can_be_taken_away(calls: list[str]) -> None:
    F.configure({"relu": "force=quiet"})
    F.unregister("relu", "quiet")
    F.relu(weft.asarray(X))
    assert calls == []
    assert F.implementations("relu") == ["default", "loud"]
    with pytest.raises(UserError, match="keeps its default"):
        F.unregister("relu", "default")
    with pytest.raises(UserError, match="no implementation 'quiet'; it has default, loud"):
        F.unregister("relu", "quiet")


def test_nobody_supports_the_arguments() -> None:
    F.register("relu", "default", lambda x: x, lambda x: False)
    F.register("relu", "other", lambda x: x, lambda x: False)
    with pytest.raises(UserError, match=r"\[relu\] no implementation \(default, other\) supports"):
        F.relu(weft.asarray(X))


def test_the_benchmark_runs_all_and_keeps_the_fastest() -> None:
    seen: list[str] = []

    def slow(x: Any) -> Any:
        seen.append("slow")
        for _ in range(30):
            x = weft.sort(weft.exp(x))
        return x

    def fast(x: Any) -> Any:
        seen.append("fast")
        return x

    F.register("relu", "default", slow)
    F.register("relu", "fast", fast)
    x = weft.asarray(np.ones((100, 100), np.float32))
    with F.overrides({"relu": "benchmark(cache=2)"}):
        F.relu(x)
        assert {"slow", "fast"} <= set(seen)
        seen.clear()
        F.relu(x + 1.0)
        assert seen == ["fast"]
        entry = registry.entry_of("relu")
        for size in (2, 3, 4):
            F.relu(weft.ones((size,)))
        assert len(entry.measured) == 2
        seen.clear()
        F.relu(x)
        assert "slow" in seen  # it was forgotten


def test_the_benchmark_leaves_the_arguments_and_the_graph_alone() -> None:
    x, w = weft.asarray(np.ones((2, 3, 4), np.float32)), weft.asarray(np.ones((4, 5), np.float32))
    lazy = x * 2.0
    with F.overrides({"matmul": "benchmark(cache=8)"}):
        found = F.matmul(lazy, w)
    assert lazy.is_lazy
    np.testing.assert_array_equal(found.numpy(), np.full((2, 3, 5), 8.0))


@pytest.mark.parametrize("dynamic", [None, {"x": {1: "rows"}}])
def test_the_benchmark_inside_a_traced_function(dynamic: Any) -> None:
    x, w = np.ones((2, 3, 4), np.float32), np.ones((4, 5), np.float32)
    product = weft.jit(lambda x: F.matmul(x, weft.asarray(w)), dynamic=dynamic)
    with F.overrides({"matmul": "benchmark(cache=8)"}):
        np.testing.assert_array_equal(product(weft.asarray(x)).numpy(), x @ w)


def test_the_benchmark_of_arrays() -> None:
    x, w = np.ones((2, 3, 4), np.float32), np.ones((4, 5), np.float32)
    with F.overrides({"matmul": "benchmark(cache=8)"}):
        np.testing.assert_array_equal(F.matmul(x, w).numpy(), x @ w)  # type: ignore[arg-type]
        F.matmul(x[:, :2], w)  # type: ignore[arg-type]
    assert len(registry.entry_of("matmul").measured) == 2


def test_unknown_names_list_what_exists() -> None:
    with pytest.raises(
        UserError, match="attention has no implementation 'flash'; it has default, "
    ):
        F.configure({"attention": "force=flash"})
    with pytest.raises(UserError, match=r"no functional op 'atention'; the ops are .*attention"):
        F.configure({"atention": "default"})
    with pytest.raises(UserError, match="no functional op 'nope'"):
        F.register("nope", "x", lambda: None)


@pytest.mark.parametrize("policy", ["", "force=", "benchmark", "benchmark(cache=0)", "fast", 3])
def test_wrong_policies_are_told(policy: Any) -> None:
    with pytest.raises(UserError, match=r"default, force=NAME or benchmark\(cache=N\)"):
        F.configure({"relu": policy})


@pytest.mark.parametrize("settings", ["{", "[1]", "3"])
def test_settings_must_be_an_object(settings: str) -> None:
    with pytest.raises(UserError, match="object of op names and policies"):
        F.configure(settings)


def test_a_wrong_setting_changes_nothing() -> None:
    with pytest.raises(UserError):
        F.configure({"attention": "force=streaming", "matmul": "force=nothing"})
    assert registry.entry_of("attention").policy == registry.Policy()


def test_the_environment_sets_policies(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_FUNCTIONAL", '{"relu": "force=quiet"}')
    monkeypatch.setattr(registry, "_settled", False)
    F.relu(weft.asarray(X))
    assert calls == ["quiet"]
    monkeypatch.setenv("WEFT_FUNCTIONAL", '{"relu": "force=nothing"}')
    monkeypatch.setattr(registry, "_settled", False)
    for _ in range(2):  # it is not forgotten after the first call
        with pytest.raises(UserError, match=r"\[WEFT_FUNCTIONAL\] relu has no .* it has default"):
            F.relu(weft.asarray(X))
