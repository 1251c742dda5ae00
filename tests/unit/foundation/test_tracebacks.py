"""Errors end at the user's line, and what makes them do so leaves nothing behind."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import weft
from weft import functional as F
from weft import nn, optim
from weft.foundation.errors import UserError, WeftError
from weft.foundation.lines import is_inside
from weft.foundation.tracebacks import ending_outside

X = weft.ones((2, 3))


@pytest.fixture(autouse=True)
def nobody_traces() -> Iterator[None]:
    """Without a debugger or the like these tests mean something, and leave none."""
    before = sys.gettrace()
    sys.settrace(None)
    yield
    assert sys.gettrace() is None
    sys.settrace(before)


def files(error: BaseException) -> list[str]:
    """The files of a traceback, as Python prints it."""
    return [Path(entry.filename).name for entry in traceback.extract_tb(error.__traceback__)]


def read_donated() -> Any:
    x = weft.ones((3,))
    weft.jit(lambda a: a + 1.0, donate="a")(x)
    return x.numpy()


def zeros() -> Any:
    return weft.zeros((2,), dtype=weft.int32)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: X + weft.ones((5,)),
        lambda: 1.0 + X @ X,
        lambda: X.sum(axis=4),
        lambda: F.softmax(X, axs=1),  # type: ignore[call-arg]
        lambda: nn.Linear(4, 5)(X),
        lambda: (zeros() // zeros()).numpy(),
        lambda: (zeros() // zeros()).eval(),
        lambda: weft.eval(zeros() // zeros()),
        lambda: weft.jit(lambda x: x // x)(zeros()),
        lambda: weft.jit(lambda x: x @ x)(X),
        lambda: weft.grad(lambda x: (x @ x).sum())(X),
        lambda: weft.vmap(lambda x: x @ X)(X),
        lambda: weft.jacobian(lambda x: x @ x)(X),
        lambda: F.configure({"relu": "force=nobody"}),
        lambda: F.overrides({"nothing": "default"}),
        lambda: weft.graph(backend="zz"),
        lambda: weft.graph("zz"),  # type: ignore[arg-type]
        lambda: weft.set_default_backend("zz"),
        lambda: len(X[0, 0]),
        lambda: list(X[0, 0]),
        lambda: nn.Linear(-1, 5),
        lambda: nn.Linear("a", 5),  # type: ignore[arg-type]
        lambda: nn.Linear(2, 3).with_state({}),
        lambda: optim.SGD(-1.0),
        lambda: optim.warmup(0.1, -1),
        lambda: optim.SGD(0.1).update({}, {}, X),
        lambda: optim.clip_by_global_norm(X, -1.0),
        lambda: weft.autocast("zz"),
        lambda: weft.load("no such file"),
        lambda: weft.save("no such folder/x", X),
        lambda: X.nothing,
        lambda: X.view(3, 2),
        lambda: weft.nothing,
        lambda: weft.softmax,
        lambda: F.nothing,  # type: ignore[attr-defined]
        read_donated,
    ],
)
def test_a_traceback_ends_at_the_users_line(wrong: Callable[[], Any]) -> None:
    with pytest.raises((WeftError, AttributeError)) as caught:
        wrong()
    assert set(files(caught.value)) == {"test_tracebacks.py"}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: optim.AdamW(lr=0.1),  # type: ignore[call-arg]
            "[AdamW] got an unexpected keyword argument 'lr'; it takes rate, betas, eps, "
            "weight_decay; lr is called rate here"),
        (lambda: nn.Linear(in_features=3),  # type: ignore[call-arg]
            "[Linear] missing a required argument: 'inputs'; it takes inputs, outputs, bias, "
            "dtype; in_features is called inputs here"),
        (lambda: optim.RMSprop(centered=True),  # type: ignore[call-arg]
            "momentum, centred, weight_decay; did you mean centred?"),
        (lambda: optim.RMSprop(1e-2, alpha=0.9),  # type: ignore[call-arg]
            "weight_decay; alpha is called decay here"),
        (lambda: weft.grad(weft.sum, argnum=0),  # type: ignore[call-arg]
            "it takes function, argnums, has_aux; did you mean argnums?"),
        (lambda: weft.jit(lambda x, n: x.sum(axis=n))(X, 1), "[sum] a Tensor is given where a "
            "Python value is wanted; an argument of a function under jit is one where static= "
            "names it"),
    ],
)  # fmt: skip
def test_arguments_that_are_not_taken(wrong: Callable[[], Any], told: str) -> None:
    with pytest.raises(UserError) as caught:
        wrong()
    assert told in str(caught.value)
    assert set(files(caught.value)) == {"test_tracebacks.py"}


def test_a_traced_number_is_not_written() -> None:
    with pytest.raises(UserError) as caught:
        weft.jit(lambda x, n: f"{n:.3f}")(X, 0.5)
    assert caught.value.code == "TracedValueRead"
    assert "in static=" in str(caught.value)


def test_it_ends_there_for_the_user_who_catches_it() -> None:
    try:
        X @ X
    except WeftError:
        text = traceback.format_exc()
    assert text.count("File ") == 1
    assert "in test_it_ends_there_for_the_user_who_catches_it\n    X @ X" in text


def test_the_whole_traceback_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DEBUG", "1")
    with pytest.raises(WeftError) as caught:
        X @ X
    assert files(caught.value)[-1] == "registry.py"


def test_a_tracer_of_somebody_else_stays() -> None:
    seen: list[str] = []

    def tracer(frame: Any, event: str, detail: Any) -> None:
        seen.append(frame.f_code.co_name)

    sys.settrace(tracer)
    try:
        with pytest.raises(WeftError) as caught:
            X @ X
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(None)
    assert "explained" in seen
    assert files(caught.value)[-1] == "registry.py"


def test_an_error_that_is_not_raised_is_not_waited_for() -> None:
    frame = sys._getframe()
    ending_outside(UserError("caught inside"))
    assert sys.gettrace() is None  # this line has happened in the meantime
    assert frame.f_trace is None

    ending_outside(UserError("caught inside")), is_inside(frame)  # a call
    assert sys.gettrace() is None


def test_frames_of_users_between_those_of_weft_are_kept() -> None:
    class Model(nn.Module):
        def __call__(self, x: Any) -> Any:
            return x @ x

    with pytest.raises(WeftError) as caught:
        Model()(X)
    names = [entry.name for entry in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-1] == "__call__"
    assert files(caught.value)[-1] == "test_tracebacks.py"


def test_faults_of_weft_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("weft.ops.graph.evaluate.execute", broken)
    with pytest.raises(ZeroDivisionError) as caught:
        (X + 2.5).eval()
    assert "evaluate.py" in files(caught.value)
