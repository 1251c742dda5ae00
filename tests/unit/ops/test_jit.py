"""`weft.jit`: when it compiles and why, and what a traced function may not do."""

from __future__ import annotations

import re
import time
from typing import Any, NamedTuple

import numpy as np
import pytest

import weft
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
        r"dim 0 of params\['w'\] is 1, not 2; dim 0 of x is 1, not 2",
        r"params\['w'\] is f64, not f32",
        r"the static argument power changed",
        r"x has rank 0, not 2",
        r"params\['w'\] is f32, not f64; x has rank 2, not 0",
    ]
    assert len(lines) == len(patterns)
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(
            rf"compiled at test_jit\.py:\d+ in \d+\.\d+ s \(\d+ instructions, 1 calls\): {pattern}",
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


def test_dynamic_dims_are_compiled_once() -> None:
    f = weft.jit(lambda x: weft.functional.softmax(x * 2.0), dynamic={"x": {0: "B"}})
    for rows in range(1, 21):
        x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
        e = np.exp(2 * x - (2 * x).max(1, keepdims=True))
        np.testing.assert_allclose(f(x).numpy(), e / e.sum(1, keepdims=True), rtol=1e-5)
    assert len(f.versions) == 1
    assert "?B" in str(f.program(X).main.parameters[0])


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


def test_a_value_used_after_its_function() -> None:
    box: list[Any] = []
    f = weft.jit(lambda x: box.append(x) or x * 1.0)  # type: ignore[func-returns-value]
    f(X)
    with pytest.raises(UserError, match="belongs to a traced function that has ended"):
        box[0] + weft.asarray(X)


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
