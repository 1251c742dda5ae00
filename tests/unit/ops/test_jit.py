"""`weft.jit`: when it compiles and why, and what a traced function may not do."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

import weft
from weft.foundation.errors import SpecViolation, UserError, WrongArguments
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


def test_a_number_is_traced_and_takes_the_dtype_beside_it() -> None:
    f = weft.jit(lambda x, s: x * s)
    half = weft.asarray(X.astype(np.float16))
    for number in (1.0, 2.0, 3.5):
        found = f(half, number)
        assert found.dtype is weft.float16
        np.testing.assert_array_equal(found.numpy(), X.astype(np.float16) * np.float16(number))
    assert len(f.versions) == 1
    assert f(weft.asarray(np.arange(3)), 2.5).dtype is weft.float32


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f(X), r"missing a required argument: 'y'; it takes x, y"),
        (lambda f: f(X, X, X), r"too many positional arguments; it takes x, y"),
        (lambda f: f(X, X, z=1), r"unexpected keyword argument 'z'; it takes x, y"),
    ],
)
def test_arguments_that_the_function_does_not_take(call: Any, message: str) -> None:
    with pytest.raises(WrongArguments, match=r"test_jit\.py:\d+: \[added\] .*" + message):
        call(weft.jit(added))


def added(x: Any, y: Any) -> Any:
    return x + y


def test_a_number_that_fits_no_dtype() -> None:
    with pytest.raises(SpecViolation, match="not representable in si64"):
        weft.jit(added)(X, 2**70)


def test_dynamic_dims_are_compiled_once() -> None:
    f = weft.jit(lambda x: weft.functional.softmax(x * 2.0), dynamic={"x": {0: "B"}})
    for rows in range(1, 21):
        x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
        e = np.exp(2 * x - (2 * x).max(1, keepdims=True))
        np.testing.assert_allclose(f(x).numpy(), e / e.sum(1, keepdims=True), rtol=1e-5)
    assert len(f.versions) == 1
    assert "?B" in str(f.program(X).main.parameters[0])


def test_twenty_batch_sizes_are_one_native_compile() -> None:
    weight = weft.asarray(np.arange(12, dtype=np.float32).reshape(3, 4) / 8).to("cpu")

    def f(x: Any, y: Any) -> Any:
        hidden = weft.functional.softmax(x @ weight)
        return hidden, (weft.sum(hidden, axis=1) * y).mean(), weft.max(hidden, axis=0)

    jitted = weft.jit(f, dynamic={"x": {0: "B"}, "y": {-1: "B"}})
    for rows in range(1, 21):
        rng = np.random.default_rng(rows)
        x, y = rng.standard_normal((rows, 3)).astype(np.float32), rng.random(rows, np.float32)
        found = jitted(weft.asarray(x).to("cpu"), y)
        scores = x @ weight.numpy()
        e = np.exp(scores - scores.max(1, keepdims=True))
        hidden = e / e.sum(1, keepdims=True)
        expected = hidden, (hidden.sum(1) * y).mean(), hidden.max(0)
        for a, b in zip(found, expected, strict=True):
            assert a.backend == "cpu"
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-5)
    lines = weft.explain(jitted).splitlines()
    assert len(lines) == 2
    assert re.fullmatch(r"  for B up to 32 in .* s \(20 calls\): first call with B = 1", lines[1])


def test_the_sizes_that_share_a_program_can_be_chosen() -> None:
    shapes = weft.ShapeSet({"B": (2, 8)})
    f = weft.jit(lambda x: weft.cumulative_sum(x), dynamic={"x": {0: "B"}}, shapes=shapes)
    for count in (1, 2, 3, 8, 5, 9):
        x = np.arange(count)
        np.testing.assert_array_equal(f(x).numpy(), x.cumsum())
    (version,) = f.versions.values()
    labels = {cluster.label for cluster in version.compiled.clusters.clusters.values()}
    assert labels == {"B up to 2", "B up to 8", "B = 9"}


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_what_is_rejected_is_told_in_real_sizes(backend: str) -> None:
    f = weft.jit(lambda x: x[3], dynamic={"x": {0: "B"}}, shapes=weft.ShapeSet({"B": 8}))
    np.testing.assert_array_equal(f(weft.asarray(np.arange(5)).to(backend)).numpy(), 3)
    with pytest.raises(SpecViolation, match=r"\[take\] .*outside \[0, 2\)") as caught:
        f(weft.asarray(np.arange(2)).to(backend))
    assert caught.value.code == "GatherIndexOutOfBounds"


def test_a_size_that_cannot_be_filled_up_says_why() -> None:
    f = weft.jit(lambda x: weft.sort(x), dynamic={0: {0: "B"}})
    for count in (3, 5):
        x = np.arange(count)[::-1].astype(np.float32)
        np.testing.assert_array_equal(f(weft.asarray(x).to("cpu")).numpy(), np.sort(x))
    assert re.search(r"B = 5 .*B is exact: sort orders \?B \(test_jit\.py", weft.explain(f))


def test_the_program_is_at_hand() -> None:
    shift = weft.asarray(X)
    program = weft.jit(lambda x: weft.exp(x) + shift).program(X)
    verify(program)
    assert [i.op.mnemonic for i in program.main.body] == ["exp", "add"]
    assert len(program.main.parameters) == 2
    assert all(re.fullmatch(r"test_jit\.py:\d+", place) for place in program.locations.values())


@pytest.mark.parametrize(("number", "dtype"), [(-1, np.uint8), (300, np.uint8), (2**40, np.int32)])
def test_a_number_that_the_dtype_beside_it_does_not_hold(number: int, dtype: Any) -> None:
    x = weft.asarray(np.array([1, 2], dtype))
    f = weft.jit(added)
    np.testing.assert_array_equal(f(x, 3).numpy(), np.array([4, 5], dtype))
    with pytest.raises(SpecViolation) as eager:
        added(x, number)
    with pytest.raises(SpecViolation) as jitted:
        f(x, number)
    for error in (eager.value, jitted.value):
        assert error.code == "LiteralInvalid"
        assert f"the number {number} is not representable in {x.dtype}" in str(error)
    assert eager.value.findings[0].where == jitted.value.findings[0].where
    assert len(f.versions) == 1


def int8(*values: int) -> Any:
    return weft.asarray(np.array(values, np.int8))


COMPUTED: list[tuple[Any, tuple[Any, ...]]] = [
    (lambda x, n: x + (n * 2 - 3), (200,)),
    (lambda x, n: x * (-n), (130,)),
    (lambda x, n: x + abs(n), (-128,)),
    (lambda x, n: x + n // 2, (300,)),
    (lambda x, n: x + n % 1000, (-1,)),
    (lambda x, n: x + n**3, (6,)),
    (lambda x, n: x + n**n, (10**6,)),
    (lambda x, n: x + (1 << n), (7,)),
    (lambda x, n: x + (1 << n), (10**12,)),
    (lambda x, n: x + (n ^ 3), (255,)),
    (lambda x, n, m: x + n * m, (20, 30)),
    (lambda x, n: weft.where(x > 1, x, n + 1), (127,)),
    (lambda x, n: weft.astype(x, weft.int64) + n * n, (2**40,)),
    (lambda x, n: weft.grad(lambda y: (y * (n + 1)).sum())(weft.ones(2)) + (x + n * 9), (100,)),
]


@pytest.mark.parametrize(("function", "numbers"), COMPUTED)
def test_a_computed_number_that_the_dtype_beside_it_does_not_hold(
    function: Any, numbers: tuple[Any, ...]
) -> None:
    f = weft.jit(function)
    x = int8(1, 2)
    small = (3,) * len(numbers)
    np.testing.assert_array_equal(f(x, *small).numpy(), function(x, *small).numpy())
    with pytest.raises(SpecViolation) as jitted:
        f(x, *numbers)
    assert jitted.value.code == "LiteralInvalid"
    line = function.__code__.co_firstlineno
    assert f"test_jit.py:{line}: [<lambda>] the number " in str(jitted.value)
    assert "is not representable in si" in str(jitted.value)
    np.testing.assert_array_equal(f(x, *small).numpy(), function(x, *small).numpy())
    assert len(f.versions) == 1


def test_computed_numbers_take_the_dtype_beside_them() -> None:
    x = int8(5, 7)
    functions: list[Any] = [
        lambda x, n: x * (n // 2),
        lambda x, n: x * (n % 4),
        lambda x, n: x - n**2,
    ]
    for function in functions:
        found, expected = weft.jit(function)(x, 6), function(x, 6)
        assert found.dtype is expected.dtype is weft.int8
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_what_is_made_a_tensor_wraps_and_saturates_as_tensors_do() -> None:
    f = weft.jit(lambda x, n: (weft.asarray(n) * weft.asarray(n)) + x)
    assert f(weft.asarray([1]), 2**40).tolist() == [1]
    g = weft.jit(lambda x, n: x + (n * 2).astype(weft.int8))
    assert g(int8(0), 200).tolist() == [127]


def test_a_division_by_zero_among_numbers_is_told_by_the_program() -> None:
    with pytest.raises(SpecViolation, match=r"IntegerDivideByZero at test_jit.py:\d+"):
        weft.jit(lambda x, n: x + (1 // n))(weft.asarray([1]), 0)


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


def test_a_call_is_quick() -> None:
    """An idle core needs 60 µs; a busy machine gets some room."""
    y = weft.asarray(X)
    f = weft.jit(lambda x: x + y)
    x = weft.asarray(X)
    f(x)
    times = []
    for _ in range(200):
        started = time.perf_counter()
        f(x)
        times.append(time.perf_counter() - started)
    assert min(times) < 300e-6


# -- mistakes ------------------------------------------------------------------------------------


def test_python_control_flow_on_data() -> None:
    @weft.jit
    def f(x: Any) -> Any:
        if weft.sum(x) > 0:
            return x
        return -x

    with pytest.raises(UserError, match=r"weft\.cond.*instead of Python's if") as caught:
        f(X)
    assert "traced value of type i1[]" in str(caught.value)
    assert caught.value.code == "TracedValueRead"
    assert "test_jit.py:" in str(caught.value)


@pytest.mark.parametrize("read", [float, int, bool, np.asarray, lambda x: x.tolist(), range])
def test_elements_of_a_traced_value_cannot_be_read(read: Any) -> None:
    f = weft.jit(lambda x: x + float(np.sum(read(weft.sum(x.astype(weft.int32))))))
    with pytest.raises(UserError, match="known only when the function runs"):
        f(X)


def test_a_traced_value_cannot_be_kept() -> None:
    kept = []

    @weft.jit
    def f(x: Any) -> Any:
        kept.append(x * 2.0)
        return x

    with pytest.raises(UserError, match=r"keeps a value of type f32\[2, 3\] made at test_jit\.py"):
        f(X)


def test_state_outside_cannot_be_assigned_to() -> None:
    state = weft.asarray(X)

    @weft.jit
    def f(x: Any) -> Any:
        state[0, 0] = 5.0
        return x

    with pytest.raises(UserError, match="may change nothing outside") as caught:
        f(X)
    assert "test_jit.py:" in str(caught.value)
    np.testing.assert_array_equal(state.numpy(), X)


class Keeper:
    """Something outside."""

    kept: Any = None

    def keep(self, x: Any) -> Any:
        value = x * 2.0
        self.kept = value
        return value


def _keep_in_list(box: list[Any], x: Any) -> Any:
    box.append(x * 2.0)
    return box[0]


@pytest.mark.parametrize(
    ("function", "holder"),
    [
        (Keeper().keep, "the attribute kept of a Keeper"),
        (lambda x, box=[]: _keep_in_list(box, x), "a list"),
        (lambda x, box=[]: box.append(x) or x * 1.0, "its argument.* a list"),
        (lambda x, box={}: box.update(a=x * 2.0) or box["a"], "a dict, under a"),
    ],
)
def test_a_value_that_is_returned_cannot_be_kept_too(function: Any, holder: str) -> None:
    with pytest.raises(UserError, match=f"CapturedStateChanged at test_jit.*{holder}") as caught:
        weft.jit(lambda x: function(x))(X)
    assert caught.value.code == "CapturedStateChanged"


def test_the_line_that_keeps_a_value_is_named() -> None:
    line = Keeper.keep.__code__.co_firstlineno + 2
    with pytest.raises(UserError, match=rf"at test_jit\.py:{line}: \[jit\] keep keeps"):
        weft.jit(Keeper().keep)(X)


def test_a_value_used_after_its_function() -> None:
    box: list[Any] = []
    with pytest.raises(UserError, match="keeps its argument"):
        weft.jit(lambda x: box.append(x) or x * 1.0)(X)  # type: ignore[func-returns-value]
    with pytest.raises(UserError, match="belongs to a traced function that has ended"):
        box[0] + weft.asarray(X)


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
    before = weft.cache_info()
    f(X)
    f(X[:1])
    after = weft.cache_info()
    assert (after.versions, after.clusters) == (before.versions, before.clusters + 1)
    assert after.compiled == before.compiled + 1
    weft.clear_caches()
    assert weft.cache_info().versions == weft.cache_info().programs == 0
    np.testing.assert_array_equal(f(X).numpy(), X * 3)


# -- mistakes with dynamic dims --------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x if x.shape[0] > 3 else -x,
        lambda x: sum(x[i] for i in range(x.shape[0])),
        lambda x: x * (x.shape[0] * 2),
        lambda x: x if x.shape[0] else -x,
        lambda x: weft.reshape(x, (x.shape[0] // 2, 6)),
    ],
)
def test_a_size_that_is_not_known_cannot_be_used(use: Any) -> None:
    line = use.__code__.co_firstlineno
    with pytest.raises(SpecViolation, match=r"the size of the dynamic dim \?B") as caught:
        weft.jit(use, dynamic={0: {0: "B"}})(X)
    assert caught.value.code == "DynamicDimensionMismatch"
    assert f"test_jit.py:{line}" in str(caught.value)
    assert "leave this axis out of dynamic=" in caught.value.hint


@pytest.mark.parametrize(
    ("dynamic", "sentence"),
    [
        ({"x": {2: "B"}}, "dynamic names axis 2 of x, which is f32"),
        ({"x": {-3: "B"}}, "dynamic names axis -3 of x, which is f32"),
        ({"x": {0: 5}}, "give a dict from axes to names"),
        ({"x": 0}, "give a dict from axes to names"),
        ("x", "give a dict such as"),
        ({"y": {0: "B"}}, "dynamic names 'y'"),
    ],
)
def test_wrong_dynamic_dims(dynamic: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        weft.jit(_f, dynamic=dynamic)(X)


def test_a_shape_set_names_dims_that_are_dynamic() -> None:
    with pytest.raises(UserError, match="names the dim 'T', but the dynamic dims are B"):
        weft.jit(_f, dynamic={"x": {0: "B"}}, shapes=weft.ShapeSet({"T": 4}))
    with pytest.raises(UserError, match=r"give a weft\.ShapeSet"):
        weft.jit(_f, shapes={"B": 4})  # type: ignore[arg-type]


def test_wrong_arguments_are_named() -> None:
    f = weft.jit(lambda config, x: x)
    with pytest.raises(UserError, match=r"the argument config\['mode'\] is a str.*static="):
        f({"mode": "fast"}, X)
    with pytest.raises(UserError, match=r"the static argument config is .*no hash"):
        weft.jit(lambda config, x: x, static=0)([1], X)
    with pytest.raises(UserError, match="donate names 'y'; f takes x"):
        weft.jit(_f, donate="y")
    with pytest.raises(UserError, match="jit takes a function, not int"):
        weft.jit(3)  # type: ignore[arg-type]


def _f(x: Any) -> Any:
    return x


_f.__name__ = "f"


def test_a_mistake_inside_names_the_inner_op_and_line() -> None:
    f = weft.jit(lambda x, y: x @ y)
    with pytest.raises(SpecViolation, match=r"\[matmul\].*inner sizes 3 and 2 differ") as caught:
        f(X, X)
    assert "test_jit.py:" in str(caught.value)
