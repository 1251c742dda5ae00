"""Whatever users call things with, they are answered: with a result, or with an error of Weft's
that names their line. `tests/support/odd_calls.py` says what is called, and with what."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.support.odd_calls import ODD, Target, calls, targets, verdict
from weft.ops.functional import registry
from weft.ops.session import Session
from weft.ptir import Builder
from weft.ptir.op import SPELLINGS

QUICK = 6
"""How many calls of each target are part of `make test`."""
GROUPS = {
    home: list(found)
    for home, found in groupby(targets(), lambda target: target.name.partition(".")[0])
}
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that write files write them here, and functions that they register are forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))


def failures(found: list[Target], most: int | None) -> list[str]:
    wrong = []
    for target in found:
        for call in calls(target, most):
            said = verdict(call)
            if said:
                wrong.append(f"{target.name}({call.text}): {said}")
    return wrong


@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("home", GROUPS)
def test_every_call_ends_well(home: str, part: int) -> None:
    assert failures(GROUPS[home][part::8], QUICK) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("home", GROUPS)
def test_every_call_of_all_ends_well(home: str, part: int) -> None:
    assert failures(GROUPS[home][part::8], None) == []


def test_what_is_called() -> None:
    """Functions are found by looking; if the looking breaks, these would be missed."""
    names = {target.name for target in targets()}
    some = {
        "weft.sin",
        "weft.functional.softmax",
        "weft.linalg.qr",
        "weft.fft.rfft",
        "weft.nn.Linear",
    }
    assert some <= names
    assert {f"Builder.{name}" for name in SPELLINGS} <= names
    assert {f"Handle.{name}" for name in SPELLINGS} <= names
    assert {"Tensor.__add__", "Tensor.reshape", "Session.emit", "Value.__matmul__"} <= names
    assert len(ODD) > 60


# -- sentences -----------------------------------------------------------------------------------

X = weft.ones((2, 2))


def test_wrong_counts_name_the_function_and_what_it_takes() -> None:
    with pytest.raises(weft.UserError, match=r"\[sin\] too many positional arguments; it takes x"):
        weft.sin(X, X)
    with pytest.raises(TypeError, match=r"\[add\] missing a required argument: 'x2'"):
        weft.add(X)
    with pytest.raises(TypeError, match=r"\[exp\] too many"):
        X.exp(3)


def test_transformed_functions_name_what_they_take() -> None:
    rematerialised = weft.checkpoint(lambda x, y: x)
    with pytest.raises(weft.UserError, match="missing a required argument: 'y'; it takes x, y"):
        rematerialised(X)
    ruled = weft.custom_vjp(lambda x, y: x)
    with pytest.raises(weft.UserError, match="missing a required argument: 'y'; it takes x, y"):
        ruled(X)
    with pytest.raises(weft.UserError, match=r"\[Flatten\] got an unexpected keyword argument"):
        weft.nn.Flatten(first=1)  # type: ignore[call-arg]


def test_a_static_argument_that_cannot_be_shown_is_named() -> None:
    deep: list[object] = []
    for _ in range(5_000):
        deep = [deep]
    with pytest.raises(weft.UserError, match="the static argument y is a list, which has no hash"):
        weft.jit(lambda x, y: x, static="y")(X, deep)


def test_a_builder_says_what_it_wants() -> None:
    b = Builder()
    x = b.param("f32", [2, 2])
    with pytest.raises(weft.SpecViolation, match="attribute axes of reduce: 'ab' is not a list"):
        b.reduce_sum(x, "ab")  # type: ignore[arg-type]
    with pytest.raises(weft.SpecViolation, match="attribute perm of transpose: 'ab' is not a list"):
        b.transpose(x, "ab")  # type: ignore[arg-type]
    with pytest.raises(weft.SpecViolation, match="is not a whole number"):
        b.top_k(x, k=np.ones(2), axis=0, largest=True)
    with pytest.raises(weft.UserError, match="unknown dtype <%0"):
        b.cast(x, x)  # type: ignore[arg-type]


def test_a_session_says_what_it_wants() -> None:
    s = Session.here()
    h = s.import_(X)
    with pytest.raises(weft.UserError, match="not a tuple; parts of a tensor"):
        list(h)
    with pytest.raises(weft.UserError, match="not a tuple; parts of a tensor"):
        h[0]
    with pytest.raises(weft.UserError, match=r"the number 1\.0 has no dtype"):
        s.emit("add", 1.0, 2.0)
    with pytest.raises(weft.SpecViolation, match="axes 5 is out of range") as caught:
        h.reduce_mean([5])
    assert caught.value.where.startswith("test_calls.py:")
    with pytest.raises(weft.UserError, match="make a handle of it with import_"):
        h + X
