"""What a function under `weft.jit` may not do, and how it is told."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import weft
from weft.foundation.errors import ResourceExceeded, SpecViolation, UserError, WrongArguments

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f(X), r"missing a required argument: 'y'; it takes x, y"),
        (lambda f: f(X, X, X), r"too many positional arguments; it takes x, y"),
        (lambda f: f(X, X, z=1), r"unexpected keyword argument 'z'; it takes x, y"),
    ],
)
def test_arguments_that_the_function_does_not_take(call: Any, message: str) -> None:
    with pytest.raises(WrongArguments, match=r"test_jit_mistakes\.py:\d+: \[added\] .*" + message):
        call(weft.jit(added))


def added(x: Any, y: Any) -> Any:
    return x + y


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


@dataclass
class Config:
    """Settings, and one of them that says so."""

    mode: str = "fast"
    size: int = field(default=3, metadata={"static": True})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("fast", "is a str, .*; name it in static=, or pass a tensor"),
        ({"mode": "fast"}, r"config\['mode'\] .*; pass it as an argument of its own that static="),
        (Config(), r"config\.mode .*; declare the field with field\(metadata=\{'static': True\}\)"),
        ([[1, Config()]], r"config\[0\]\[1\]\.mode .*; declare the field with"),
    ],
)
def test_who_passes_a_setting_is_told_how(given: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        weft.jit(lambda x, config: x)(X, given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mode": 1}, r"pass a frozen dataclass, or tuple\(d\.items\(\)\), instead of a dict"),
        (Config(), r"declare Config with @dataclass\(frozen=True\)"),
        ({1, 2}, "pass a frozenset instead of a set"),
        ([1], "pass a tuple instead of a list"),
        (X, "pass a number, a string or a tuple of these, or leave it out of static="),
    ],
)
def test_who_names_a_setting_without_a_hash_is_told_what_has_one(given: Any, said: str) -> None:
    with pytest.raises(UserError, match=f"StaticArgumentUnhashable at .*{said}"):
        weft.jit(lambda x, config: x, static="config")(X, given)


@pytest.mark.parametrize("option", ["donate", "static"])
@pytest.mark.parametrize("given", [True, 3.5, None, [3.5], (0, None)])
def test_an_option_that_names_no_argument_says_what_does(option: str, given: Any) -> None:
    with pytest.raises(
        UserError, match=rf"{option} is .*; give the position or the name of an arg"
    ):
        weft.jit(_f, **{option: given})


def _yielding(x: Any) -> Any:
    yield x + 1.0


async def _waiting(x: Any) -> Any:
    return x + 1.0


async def _both(x: Any) -> Any:
    yield x + 1.0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("function", [_yielding, _waiting, _both, lambda x: (y for y in (x,))])
@pytest.mark.parametrize("over", [weft.jit, weft.vmap, weft.grad])
def test_a_function_that_has_not_run_to_its_end_is_no_plain_one(over: Any, function: Any) -> None:
    with pytest.raises(UserError, match=r"a plain function is wanted.* gives a (generator|corout)"):
        over(function)(weft.asarray(X))


def test_an_array_of_objects_is_no_argument() -> None:
    array = np.array([None, 1], dtype=object)
    calls: list[Callable[[], Any]] = [
        lambda: weft.jit(_f)(array),
        lambda: weft.asarray([1.0, 2.0]) + array,
    ]
    for call in calls:
        with pytest.raises(UserError, match=r"elements of NumPy dtype object are no.*astype"):
            call()


def test_what_is_too_large_is_told_with_its_line() -> None:
    with pytest.raises(
        ResourceExceeded, match=r"^ResourceExceeded at test_jit_mistakes\.py"
    ) as found:
        weft.jit(lambda x: x @ x.T)(np.ones((1 << 19, 1), np.float32))
    assert (found.value.code, found.value.where[:20]) == (
        "ResourceExceeded",
        "test_jit_mistakes.py",
    )
    assert copy.copy(found.value).where == found.value.where


def test_a_mistake_inside_names_the_inner_op_and_line() -> None:
    f = weft.jit(lambda x, y: x @ y)
    with pytest.raises(SpecViolation, match=r"\[matmul\].*inner sizes 3 and 2 differ") as caught:
        f(X, X)
    assert "test_jit_mistakes.py:" in str(caught.value)


def _f(x: Any) -> Any:
    return x


_f.__name__ = "f"


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
    assert "test_jit_mistakes.py:" in str(caught.value)


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

    with pytest.raises(
        UserError, match=r"keeps a value of type f32\[2, 3\] made at test_jit_mistakes\.py"
    ):
        f(X)


def test_state_outside_cannot_be_assigned_to() -> None:
    state = weft.asarray(X)

    @weft.jit
    def f(x: Any) -> Any:
        state[0, 0] = 5.0
        return x

    with pytest.raises(UserError, match="may change nothing outside") as caught:
        f(X)
    assert "test_jit_mistakes.py:" in str(caught.value)
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
        (None, "the attribute kept of a Keeper"),
        (lambda x, box=[]: _keep_in_list(box, x), "a list"),
        (lambda x, box=[]: box.append(x) or x * 1.0, "its argument.* a list"),
        (lambda x, box={}: box.update(a=x * 2.0) or box["a"], "a dict, under a"),
    ],
)
def test_a_value_that_is_returned_cannot_be_kept_too(function: Any, holder: str) -> None:
    function = function or Keeper().keep
    with pytest.raises(
        UserError, match=f"CapturedStateChanged at test_jit_mistakes.*{holder}"
    ) as caught:
        weft.jit(lambda x: function(x))(X)
    assert caught.value.code == "CapturedStateChanged"


def test_the_line_that_keeps_a_value_is_named() -> None:
    line = Keeper.keep.__code__.co_firstlineno + 2
    with pytest.raises(UserError, match=rf"at test_jit_mistakes\.py:{line}: \[jit\] keep keeps"):
        weft.jit(Keeper().keep)(X)


def test_a_cycle_that_nobody_holds_is_no_leak() -> None:
    """And is found among the youngest objects: nobody waits until all there are were looked at."""
    looked_at: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            looked_at.append(info["generation"])

    def cyclic(x: Any) -> Any:
        box: list[Any] = [x * 2.0]
        box.append(box)
        return box[0] + 1.0

    gc.callbacks.append(note)
    try:
        found = weft.jit(cyclic)(X)
    finally:
        gc.callbacks.remove(note)
    np.testing.assert_array_equal(found.numpy(), X * 2 + 1)
    assert looked_at
    assert 2 not in looked_at


def test_a_value_used_after_its_function() -> None:
    box: list[Any] = []
    with pytest.raises(UserError, match="keeps its argument"):
        weft.jit(lambda x: box.append(x) or x * 1.0)(X)  # type: ignore[func-returns-value]
    with pytest.raises(UserError, match="belongs to a traced function that has ended"):
        box[0] + weft.asarray(X)
