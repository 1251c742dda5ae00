"""`weft.jit`: when it compiles and why, what it keeps, what it may be put on."""

from __future__ import annotations

import copy
import gc
import pickle
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

import weft
from tests.support.python_calls import python_calls
from weft.foundation.errors import SpecViolation, UserError
from weft.ptir import verify

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_arguments_and_results_are_nested_containers() -> None:
    class Pair(NamedTuple):
        a: Any
        b: Any

    @weft.jit
    def f(pair: Pair, *, scale: Any, extra: dict[str, Any]) -> dict[str, Any]:
        return {"sum": [pair.a + pair.b, None], "pair": Pair(pair.a * scale, extra["z"]), "n": 3}

    x = weft.asarray(X)
    found = f(Pair(x, X), scale=2.0, extra={"z": x})
    np.testing.assert_array_equal(found["sum"][0].numpy(), X + X)
    np.testing.assert_array_equal(found["pair"].a.numpy(), X * 2)
    assert isinstance(found["pair"], Pair)
    assert found["sum"][1] is None
    assert found["n"] == 3


def test_one_compile_for_each_kind_of_arguments() -> None:
    f = weft.jit(lambda x, y: x * y)
    for array in (X, X + 1, X[:1], X.astype(np.float64), X):
        np.testing.assert_array_equal(f(array, 2.0).numpy(), array * 2)
    assert len(f.versions) == 3
    assert [version.calls for version in f.versions.values()] == [3, 1, 1]


def test_explain_names_argument_dim_and_line() -> None:
    def scaled(params: Any, x: Any, power: int) -> Any:
        return (x * params["w"]) ** power

    f = weft.jit(scaled, static="power")
    assert weft.explain(f) == "nothing compiled yet: the function has not been called"
    f({"w": X}, X, 2)
    f({"w": X[:1]}, X[:1], 2)
    f({"w": X[:1].astype(np.float64)}, X[:1], 2)
    f({"w": X[:1].astype(np.float64)}, X[:1], 3)
    f({"w": X[:1].astype(np.float64)}, 1.0, 3)
    f({"w": X[:1]}, X[:1], 3)
    lines = weft.explain(f).splitlines()
    patterns = [
        r"first call",
        r"dim 0 of params\['w'\] is 1, not 2; dim 0 of x is 1, not 2 \(compared .*:{0}\)",
        r"params\['w'\] is f64, not f32 \(compared with the call at test_jit\.py:{1}\)",
        r"the static argument power is 3, not 2 \(compared with the call at test_jit\.py:{2}\)",
        r"x is a number, not a tensor \(compared with the call at test_jit\.py:{3}\)",
        r"params\['w'\] is f32, not f64 \(compared with the call at test_jit\.py:{3}\)",
    ]
    places = [int(line.split("test_jit.py:")[1].split()[0]) for line in lines]
    patterns = [re.sub(r"\{(\d)\}", lambda m: str(places[int(m[1])]), p) for p in patterns]
    assert len(lines) == len(patterns)
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(
            r"compiled at test_jit\.py:\d+ for reference in \d+\.\d+ s "
            rf"\(\d+ instructions, 1 calls\): {pattern}",
            line,
        ), line


def test_explain_takes_only_what_can_be_explained() -> None:
    with pytest.raises(UserError, match=r"weft\.jit"):
        weft.explain(lambda x: x)  # type: ignore[arg-type]


def test_static_arguments_by_position_and_name() -> None:
    def f(x: Any, axis: int = 0, flip: bool = False) -> Any:
        total = weft.sum(x, axis=axis)
        return -total if flip else total

    jitted = weft.jit(f, static=(1, "flip"))
    np.testing.assert_array_equal(jitted(X).numpy(), X.sum(0))
    np.testing.assert_array_equal(jitted(X, 1).numpy(), X.sum(1))
    np.testing.assert_array_equal(jitted(X, axis=1, flip=True).numpy(), -X.sum(1))
    np.testing.assert_array_equal(jitted(X, 1).numpy(), X.sum(1))
    assert len(jitted.versions) == 3


@dataclass
class Scaled:
    """A container with a setting."""

    x: Any
    by: Any = field(metadata={"static": True})


@pytest.mark.parametrize(
    "call",
    [
        lambda f, by: f(np.asarray([1, 2]), by),
        lambda f, by: f(np.asarray([1, 2]), (by,)),
        lambda f, by: f(Scaled(np.asarray([1, 2]), by), None),
    ],
    ids=["number", "tuple", "field"],
)
def test_settings_that_are_equal_are_not_the_same(call: Any) -> None:
    def scaled(x: Any, by: Any) -> Any:
        if isinstance(x, Scaled):
            x, by = x.x, x.by
        return x * (by[0] if isinstance(by, tuple) else by)

    f = weft.jit(scaled, static="by")
    kinds = [str(call(f, by).dtype) for by in (1, 1.0, True, 1, 1.0)]
    assert kinds == ["si64", "f32", "si64", "si64", "f32"]
    assert len(f.versions) == 3
    signs = [np.signbit(call(f, zero).numpy()[0]) for zero in (0.0, -0.0)]
    assert signs == [False, True]


def test_another_setting_is_explained() -> None:
    f = weft.jit(lambda x, n: x * n, static="n")
    f(X, 1)
    f(X, 1.0)
    assert "the static argument n is 1.0, not 1 " in weft.explain(f)


def test_the_program_is_at_hand() -> None:
    shift = weft.asarray(X)
    program = weft.jit(lambda x: weft.exp(x) + shift).program(X)
    verify(program)
    assert [i.op.mnemonic for i in program.main.body] == ["exp", "add"]
    assert len(program.main.parameters) == 2
    assert all(re.fullmatch(r"test_jit\.py:\d+", place) for place in program.locations.values())


# -- what is captured, kept and given away -------------------------------------------------------


def test_captured_tensors_are_looked_up_at_every_call() -> None:
    weight = weft.asarray(X)
    f = weft.jit(lambda x: x * weight)
    np.testing.assert_array_equal(f(X).numpy(), X * X)
    weight[0, 1] = 10.0
    expected = X.copy()
    expected[0, 1] = 10.0
    np.testing.assert_array_equal(f(X).numpy(), X * expected)
    assert len(f.versions) == 1


def test_a_donated_argument_cannot_be_read_again() -> None:
    f = weft.jit(lambda state, x: state + x, donate=0)
    state = weft.asarray(X)
    state = f(state, X)
    old = state
    state = f(state, X)
    np.testing.assert_array_equal(state.numpy(), 3 * X)
    for use in (old.numpy, lambda: old + 1.0, lambda: f(old, X)):
        with pytest.raises(UserError, match=r"donated at test_jit\.py:\d+.*use the result"):
            weft.eval(use()) if use is not old.numpy else use()


def test_lazy_arguments_are_computed_first() -> None:
    x = weft.exp(weft.asarray(X))
    f = weft.jit(lambda x: x + 1.0)
    np.testing.assert_allclose(f(x).numpy(), np.exp(X) + 1, rtol=1e-6)
    assert not x.is_lazy


def test_jit_inside_jit_is_part_of_it() -> None:
    inner = weft.jit(lambda x: weft.exp(x))
    outer = weft.jit(lambda x: inner(x) + 1.0)
    np.testing.assert_allclose(outer(X).numpy(), np.exp(X) + 1, rtol=1e-6)
    assert not inner.versions


def test_results_may_be_arguments_and_constants() -> None:
    f = weft.jit(lambda x: (x, weft.zeros((2,)), x))
    a, b, c = f(X)
    np.testing.assert_array_equal(a.numpy(), X)
    np.testing.assert_array_equal(c.numpy(), X)
    assert b.tolist() == [0.0, 0.0]


def test_a_decorator_with_arguments() -> None:
    @weft.jit(static="n")  # type: ignore[untyped-decorator]
    def power(x: Any, n: int) -> Any:
        """Docs."""
        return x**n

    np.testing.assert_array_equal(power(X, n=2).numpy(), X**2)
    assert power.__name__ == "power"
    assert power.__doc__ == "Docs."


def test_a_call_runs_little_python() -> None:
    """About 175 calls, 60 µs, on the reference backend."""
    y = weft.asarray(X)
    f = weft.jit(lambda x: x + y)
    x = weft.asarray(X)
    assert python_calls(lambda: f(x)) < 210


# -- methods, copies, backends --------------------------------------------------------------------


class Scaler:
    def __init__(self, factor: float) -> None:
        self.factor = weft.asarray(np.float32(factor))

    @weft.jit(static="power")  # type: ignore[untyped-decorator]
    def __call__(self, x: Any, power: int = 1) -> Any:
        return x * self.factor**power


@dataclass
class Line:
    slope: Any
    start: Any

    @weft.jit
    def at(self, x: Any) -> Any:
        return self.slope * x + self.start


def test_a_method_has_versions_for_each_instance() -> None:
    twice, thrice = Scaler(2), Scaler(3)
    np.testing.assert_array_equal(twice(X).numpy(), 2 * X)
    np.testing.assert_array_equal(thrice(X, power=2).numpy(), 9 * X)
    np.testing.assert_array_equal(twice(X).numpy(), 2 * X)
    assert [v.calls for v in twice.__call__.versions.values()] == [2]
    del twice, thrice
    gc.collect()
    assert not Scaler.__call__._bound.all()


def test_a_method_of_a_container_takes_it_as_an_argument() -> None:
    for slope in (2.0, 5.0):
        found = Line(weft.asarray(np.float32(slope)), X).at(X)
        np.testing.assert_array_equal(found.numpy(), slope * X + X)
    assert len(Line.at.versions) == 1


@weft.jit
def add_one(x: Any) -> Any:
    return x + 1.0


def test_copies_and_pickles() -> None:
    assert pickle.loads(pickle.dumps(add_one)) is add_one
    for twin in (copy.copy(add_one), copy.deepcopy(add_one)):
        assert twin is not add_one
        np.testing.assert_array_equal(twin(X).numpy(), X + 1)
    with pytest.raises(UserError, match=r"cannot be pickled.*decorate a function of the module"):
        pickle.dumps(weft.jit(lambda x: x))


def test_the_backend_is_that_of_the_arguments() -> None:
    f = weft.jit(lambda x, y: x + y)
    here, there = weft.asarray(X), weft.asarray(X).to("cpu")
    assert f(here, X).backend == "reference"
    assert f(X, there).backend == "cpu"
    with pytest.raises(SpecViolation, match="x is on backend 'reference' and y on 'cpu'"):
        f(here, there)
    assert "the backend is cpu, not reference" in weft.explain(f)


def test_caches_are_counted_and_cleared() -> None:
    f = weft.jit(lambda x: x * 3.0, dynamic={"x": {0: "B"}})
    f(X)
    gc.collect()  # functions of other tests that nobody holds any more are counted until then
    before = weft.cache_info()
    f(X)
    f(X[:1])
    after = weft.cache_info()
    assert (after.versions, after.clusters) == (before.versions, before.clusters + 1)
    assert after.compiled == before.compiled + 1
    weft.clear_caches()
    assert weft.cache_info().versions == weft.cache_info().programs == 0
    np.testing.assert_array_equal(f(X).numpy(), X * 3)


def test_nobody_looks_for_cycles_while_a_function_is_traced() -> None:
    found: list[bool] = []

    def noted(x: Any) -> Any:
        found.append(gc.isenabled())
        return x + 1

    weft.jit(noted).program(weft.tensor([1.0]))
    assert found == [False]
    assert gc.isenabled()
