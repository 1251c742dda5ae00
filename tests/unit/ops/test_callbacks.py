"""Python functions that a program calls while it runs: `weft.debug` and `pure_callback`."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import weft
from weft.ptir import TensorType

SOURCE = str(Path(weft.__file__).parents[1])
pytestmark = pytest.mark.usefixtures("each_backend")


@pytest.fixture
def seen() -> list[Any]:
    return []


def note(seen: list[Any]) -> Callable[..., None]:
    """A function that remembers what it is called with, as Python numbers."""

    def noted(*values: Any) -> None:
        found = [v.tolist() if isinstance(v, np.ndarray) else v for v in values]
        seen.append(found[0] if len(found) == 1 else tuple(found))

    return noted


def both(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    return [function, weft.jit(function)]


# -- order ---------------------------------------------------------------------------------------


def test_lines_are_printed_in_order_whenever_the_program_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @weft.jit
    def f(x: Any) -> Any:
        weft.debug.print("x = {}", x)
        y = x * 2
        weft.debug.print("{what}: {total:.2f}", what="sum", total=y.sum())
        return y

    f(weft.asarray([1.0, 2.0]))
    f(weft.asarray([3.0, 4.0]))
    assert capsys.readouterr().out == "x = [1. 2.]\nsum: 6.00\nx = [3. 4.]\nsum: 14.00\n"


def test_a_call_that_depends_on_nothing_is_made_at_every_run(seen: list[Any]) -> None:
    @weft.jit
    def f() -> None:
        for name in "abc":
            weft.debug.callback(note(seen), name)

    f()
    f()
    assert seen == list("abcabc")


def test_outside_of_a_trace_calls_are_made_at_once(
    seen: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    weft.debug.callback(note(seen), weft.ones(2) + 1, weft.asarray(3))
    assert seen == [([2.0, 2.0], 3)]
    weft.debug.print("{}", weft.asarray(1.5, dtype=weft.bfloat16))
    assert capsys.readouterr().out == "1.5\n"
    assert weft.pure_callback(np.sin, weft.ones(2).type, weft.zeros(2)).tolist() == [0.0, 0.0]


def test_loops_and_choices_keep_the_order(seen: list[Any]) -> None:
    put = note(seen)

    def turn(carry: Any, i: Any) -> Any:
        weft.debug.callback(put, "turn", i)
        return carry + i, carry

    def goes_on(carry: Any) -> Any:
        weft.debug.callback(put, "asked", carry)
        return carry < 8

    def doubled(carry: Any) -> Any:
        weft.debug.callback(put, "doubled", carry)
        return carry * 2

    def chosen(word: str) -> Callable[[Any], Any]:
        return lambda x: (weft.debug.callback(put, word), x)[1]

    def f(x: Any) -> Any:
        weft.debug.callback(put, "before")
        total, _ = weft.scan(turn, x, weft.arange(3))
        last = weft.while_loop(goes_on, doubled, total)
        weft.cond(last > 3, chosen("yes"), chosen("no"), last)
        weft.fori_loop(0, 2, lambda i, _: weft.debug.callback(put, "fori", i), None)
        return last

    expected = ["before", ("turn", 0), ("turn", 1), ("turn", 2), ("asked", 4), ("doubled", 4)]
    expected += [("asked", 8), "yes", ("fori", 0), ("fori", 1)]
    for function in both(f):
        seen.clear()
        assert int(function(weft.asarray(1))) == 8
        assert seen == expected


def test_nested_loops_carry_the_order_through_each_other(seen: list[Any]) -> None:
    def f(x: Any) -> Any:
        def inner(i: Any, c: Any) -> Any:
            weft.debug.callback(note(seen), i, c)
            return c + 1

        def outer(carry: Any, _: Any) -> Any:
            return weft.fori_loop(0, 2, inner, carry), None

        return weft.scan(outer, x, length=2)[0]

    for function in both(f):
        seen.clear()
        assert int(function(weft.asarray(0))) == 4
        assert seen == [(0, 0), (1, 1), (0, 2), (1, 3)]


# -- transformations -----------------------------------------------------------------------------


def square(seen: list[Any]) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        weft.debug.callback(note(seen), x)
        return (x * x).sum()

    return f


@pytest.mark.parametrize(
    "transform",
    [
        weft.grad,
        weft.value_and_grad,
        weft.hessian,
        weft.jacobian,
        lambda f: weft.grad(weft.checkpoint(f)),
        lambda f: lambda x: weft.jvp(f, (x,), (x,)),
    ],
)
def test_derivatives_have_the_effects_of_the_function_once(
    seen: list[Any], transform: Callable[..., Any]
) -> None:
    for function in both(transform(square(seen))):
        seen.clear()
        weft.eval(*weft.tree.leaves(function(weft.asarray([1.0, 2.0]))))
        assert seen == [[1.0, 2.0]]


def test_the_way_back_has_no_effects(seen: list[Any]) -> None:
    x = weft.asarray([1.0, 2.0])
    _, pullback = weft.vjp(square(seen), x)
    _, pushforward = weft.linearize(square(seen), x)
    assert pullback(1.0)[0].tolist() == [2.0, 4.0]
    assert float(pushforward(x)) == 10.0
    assert seen == [[1.0, 2.0]] * 2


def test_a_loop_with_effects_has_a_gradient(seen: list[Any]) -> None:
    def loss(x: Any) -> Any:
        def body(carry: Any, item: Any) -> Any:
            weft.debug.callback(note(seen), carry)
            return carry * item, carry

        return weft.scan(body, weft.asarray(1.0), x)[0]

    for function in both(weft.grad(loss)):
        seen.clear()
        assert function(weft.asarray([2.0, 3.0])).tolist() == [3.0, 2.0]
        assert seen == [1.0, 2.0]


def test_under_vmap_each_value_has_its_call_and_what_is_the_same_for_all_one(
    seen: list[Any],
) -> None:
    def f(x: Any) -> Any:
        weft.debug.callback(note(seen), x)
        weft.debug.callback(note(seen), "once")
        return x.sum()

    for function in both(weft.vmap(f)):
        seen.clear()
        assert function(weft.asarray([[1.0, 2.0], [3.0, 4.0]])).tolist() == [3.0, 7.0]
        assert seen == [[1.0, 2.0], [3.0, 4.0], "once"]


def test_vmap_of_a_choice_that_differs_makes_the_calls_of_both_sides(seen: list[Any]) -> None:
    def side(word: str, x: Any) -> Any:
        weft.debug.callback(note(seen), word, x)
        return x

    def f(x: Any) -> Any:
        return weft.cond(x > 0, lambda: side("+", x), lambda: -side("-", x))

    assert weft.vmap(f)(weft.asarray([1.0, -2.0])).tolist() == [1.0, 2.0]
    assert seen == [("+", 1.0), ("+", -2.0), ("-", 1.0), ("-", -2.0)]


def test_an_open_axis_is_open_for_a_callback_too(seen: list[Any]) -> None:
    @weft.jit(dynamic={"x": {0: "B"}})  # type: ignore[untyped-decorator]
    def f(x: Any) -> Any:
        weft.debug.callback(note(seen), x)
        total = weft.pure_callback(lambda a: a.sum(), TensorType(weft.float32, ()), x)
        return x * total

    assert f(weft.ones(2)).tolist() == [2.0] * 2
    assert f(weft.ones(3)).tolist() == [3.0] * 3
    assert seen == [[1.0] * 2, [1.0] * 3]


def test_rules_may_have_effects_on_the_way_forward_only(seen: list[Any]) -> None:
    @weft.custom_vjp
    def f(x: Any) -> Any:
        return x * x

    def forward(x: Any) -> Any:
        weft.debug.callback(note(seen), x)
        return x * x, x

    f.defvjp(forward, lambda x, c: (2 * x * c,))
    assert weft.jit(weft.grad(lambda x: f(x).sum()))(weft.ones(2)).tolist() == [2.0, 2.0]
    assert seen == [[1.0, 1.0]]
    f.defvjp(forward, lambda x, c: (weft.debug.callback(print, x), (c,))[1])
    with pytest.raises(weft.Unimplemented, match="the backward rule of f: it calls"):
        weft.grad(lambda x: f(x).sum())(weft.ones(2))


# -- pure callbacks ------------------------------------------------------------------------------


def test_results_are_nested_as_was_said_and_have_any_dtype() -> None:
    def split(x: Any, *, more: dict[str, Any]) -> Any:
        assert isinstance(x, np.ndarray)
        return {"double": x * 2, "count": (len(more["names"]), True)}

    @weft.jit
    def f(x: Any) -> Any:
        wanted = {"double": x.type, "count": (weft.asarray(0), weft.asarray(True))}
        return weft.pure_callback(split, wanted, x, more={"names": "abc"})

    for dtype in (weft.float32, weft.bfloat16, weft.complex64):
        found = f(weft.asarray([1, 2], dtype=dtype))
        assert found["double"].dtype == dtype
        assert found["double"].astype(weft.complex64).tolist() == [2, 4]
        assert (int(found["count"][0]), bool(found["count"][1])) == (3, True)


def test_vmap_of_a_pure_callback_calls_in_turn() -> None:
    def trace_of(x: Any) -> Any:
        return weft.pure_callback(
            np.trace, TensorType(weft.float32, ()), x, vmap_method="sequential"
        )

    x = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    assert weft.vmap(trace_of)(weft.asarray(x)).tolist() == [3.0, 11.0, 19.0]
    assert weft.vmap(weft.vmap(trace_of))(weft.asarray(x[None])).tolist() == [[3.0, 11.0, 19.0]]


def test_a_pure_callback_has_a_gradient_where_it_is_given_one() -> None:
    def sine(x: Any) -> Any:
        return weft.pure_callback(np.sin, x.type, x)

    with pytest.raises(weft.Unimplemented, match="call it in a function with"):
        weft.grad(lambda x: sine(x).sum())(weft.ones(2))
    known = weft.custom_jvp(sine)
    known.defjvp(lambda x, t: (sine(*x), weft.cos(*x) * t[0]))
    x = weft.asarray([0.5, 1.0])
    found = weft.jit(weft.grad(lambda x: known(x).sum()))(x)
    np.testing.assert_allclose(found.numpy(), np.cos([0.5, 1.0]), rtol=1e-6)


# -- mistakes ------------------------------------------------------------------------------------


class Stop(Exception):
    pass


def test_what_a_callback_raises_reaches_the_caller_as_itself() -> None:
    error = Stop("enough")

    def stop(x: Any) -> None:
        raise error

    def f(x: Any) -> Any:
        weft.debug.callback(stop, x)
        return x

    def loop(x: Any) -> Any:
        return weft.scan(lambda c, i: (f(c), i), x, weft.arange(2))

    one, some = weft.asarray(1.0), weft.ones(3)
    for made, x in ((f, one), (loop, one), (weft.grad(f), one), (weft.vmap(f), some)):
        for function in both(made):
            with pytest.raises(Stop) as found:
                function(x)
            assert found.value is error


def test_an_error_of_numpy_is_not_taken_for_a_mistake_of_ours() -> None:
    def f(x: Any) -> Any:
        return weft.scan(lambda c, i: (weft.pure_callback(np.linalg.inv, c.type, c), i), x, x)[0]

    for function in both(f):
        with pytest.raises(np.linalg.LinAlgError, match="Singular matrix"):
            function(weft.zeros((2, 2))).eval()


def test_a_run_after_one_that_failed_is_sound(seen: list[Any]) -> None:
    @weft.jit
    def f(x: Any) -> Any:
        weft.debug.callback(lambda a: seen.append(1 / float(a)), x)
        return x + 1

    with pytest.raises(ZeroDivisionError):
        f(weft.asarray(0.0))
    assert float(f(weft.asarray(2.0))) == 3.0
    assert seen == [0.5]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: weft.debug.print("{} {}", 1), "'{} {}' has a field 1, but no such value is given"),
        (lambda: weft.debug.print("{x}", 1), "has a field x, but no such value is given"),
        (lambda: weft.debug.print("{}", 1, 2), "the value 1 has no field in '{}'"),
        (lambda: weft.debug.print("a", b=2), "the value b has no field in 'a'"),
        (
            lambda: weft.debug.print(cast(Any, 3)),
            "the first argument is an int; it must be the text",
        ),
        (lambda: weft.debug.print("{", 3), "cannot be filled in"),
        (lambda: weft.debug.callback(cast(Any, 3)), "a function is wanted, not an int"),
        (lambda: weft.pure_callback(np.sin, 3), "result_shape is an int; give something with"),
        (lambda: weft.pure_callback(np.sin, ()), "the result has no tensors"),
        (
            lambda: weft.pure_callback(np.sin, weft.ones(2), weft.ones(2), vmap_method="other"),
            "vmap_method is 'other'; there is only 'sequential'",
        ),
        (
            lambda: weft.pure_callback(lambda: np.zeros(3), weft.ones(2)),
            "returns an array of float64 and shape [3], but result_shape says f32[2]",
        ),
        (
            lambda: weft.pure_callback(lambda: (1, 2), weft.ones(2)),
            "returns a tuple, which is not nested as result_shape is",
        ),
    ],
)
def test_mistakes_are_told(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(weft.UserError) as found:
        call()
    assert sentence in str(found.value)
    assert "test_callbacks.py" in str(found.value)


# -- where functions live ------------------------------------------------------------------------


def test_a_function_is_let_go_of_with_its_program() -> None:
    class Held:
        def __call__(self, x: Any) -> None:
            pass

    def compiled() -> tuple[Any, Any]:
        held = Held()

        @weft.jit
        def f(x: Any) -> Any:
            def body(carry: Any, i: Any) -> Any:
                weft.debug.callback(held, i)
                return carry, None

            weft.debug.callback(held, x)
            return weft.scan(body, x, weft.arange(2))[0]

        f(weft.ones(2)).eval()
        return f, weakref.ref(held)

    function, alive = compiled()
    assert alive() is not None
    function.clear()
    del function
    gc.collect()
    assert alive() is None


def test_programs_with_callbacks_are_not_kept_on_disk(tmp_path: Path) -> None:
    code = (
        "import weft; f = weft.jit(lambda x: (weft.debug.print('{}', x), x * 3.25)[1]); "
        "print(float(f(weft.asarray(2.0))))"
    )
    env = {**os.environ, "WEFT_CACHE": str(tmp_path), "PYTHONPATH": SOURCE}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        assert done.stdout == "2.0\n6.5\n"


def test_a_program_from_another_process_says_what_it_lacks() -> None:
    f = weft.jit(lambda x: (weft.debug.callback(lambda a: None, x), x)[1])
    text = str(weft.ptir.dumps(f.program(weft.ones(1)), "text"))
    foreign = weft.ptir.loads(text.replace("<lambda>:", "<lambda>:0"))
    with pytest.raises(weft.SpecViolation) as found:
        weft.run(foreign, [np.ones(1, np.float32)])
    assert "the function <lambda> belongs to another process" in str(found.value)


def test_a_profile_repeats_no_effect(seen: list[Any]) -> None:
    """It runs a program again to see its kernels."""

    def noted(x: Any) -> Any:
        weft.debug.callback(seen.append, x.sum())
        return x * 2.0

    call, x = weft.jit(noted), weft.ones(3)
    call(x)
    seen.clear()
    with weft.profile(show=False) as found:
        assert call(x).tolist() == [2.0] * 3
        call(x)
    assert found.spans
    assert len(seen) == 2
