"""What a function under `weft.jit` may not do, and how it is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft.foundation.errors import SpecViolation, UserError, WrongArguments

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


def test_a_value_used_after_its_function() -> None:
    box: list[Any] = []
    with pytest.raises(UserError, match="keeps its argument"):
        weft.jit(lambda x: box.append(x) or x * 1.0)(X)  # type: ignore[func-returns-value]
    with pytest.raises(UserError, match="belongs to a traced function that has ended"):
        box[0] + weft.asarray(X)
