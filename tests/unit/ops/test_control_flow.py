"""`cond`, `while_loop` and `scan` against Python's own control flow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft.foundation.errors import SpecViolation, UserError

pytestmark = pytest.mark.usefixtures("default_backend")

X = np.arange(4, dtype=np.float32)


def both(function: Any, *args: Any) -> list[Any]:
    """A function as it is and under jit."""
    return [function(*args), weft.jit(function)(*args)]


@pytest.mark.parametrize("flag", [True, False])
def test_cond_runs_one_branch(flag: bool) -> None:
    shift = weft.asarray(X)

    def f(p: Any, x: Any) -> Any:
        return weft.cond(p, lambda x: {"y": x + shift}, lambda x: {"y": x * 2.0}, x)

    for found in both(f, weft.asarray(flag), weft.asarray(X)):
        expected = X + X if flag else X * 2
        np.testing.assert_array_equal(found["y"].numpy(), expected)


def test_only_the_branch_that_is_taken_runs() -> None:
    x = weft.asarray(np.asarray([0, 1]))
    found = weft.cond(weft.any(x == 0), lambda x: x, lambda x: 10 // x, x)
    assert found.tolist() == [0, 1]


def test_while_counts() -> None:
    step = weft.asarray(3)

    def f(limit: Any) -> Any:
        start = (weft.asarray(0), weft.asarray(1.0))
        return weft.while_loop(lambda c: c[0] < limit, lambda c: (c[0] + step, c[1] * 2.0), start)

    for n, y in both(f, weft.asarray(10)):
        assert (n.item(), y.item()) == (12, 16.0)


def test_a_loop_that_never_runs() -> None:
    assert weft.while_loop(lambda c: c < 0, lambda c: c + 1, weft.asarray(5)).item() == 5


def test_scan_carries_and_stacks() -> None:
    weight = weft.asarray(np.float32(0.5))

    def f(x: Any) -> Any:
        def body(carry: Any, item: Any) -> Any:
            total = carry["sum"] * weight + item["x"]
            return {"sum": total}, (total, item["x"] * 2.0)

        return weft.scan(body, {"sum": weft.asarray(0.0)}, {"x": x})

    expected, total = [], np.float32(0)
    for item in X:
        total = total * np.float32(0.5) + item
        expected.append(total)
    for carry, (sums, doubled) in both(f, weft.asarray(X)):
        assert carry["sum"].item() == total
        np.testing.assert_array_equal(sums.numpy(), expected)
        np.testing.assert_array_equal(doubled.numpy(), X * 2)


@pytest.mark.parametrize("length", [0, 1, 5])
def test_scan_without_inputs(length: int) -> None:
    last, ys = weft.scan(lambda c, _: (c + 1, c * c), weft.asarray(0), length=length)
    assert last.item() == length
    assert ys.tolist() == [n * n for n in range(length)]


def test_scan_over_nothing() -> None:
    last, ys = weft.scan(lambda c, x: (c + x, x), weft.asarray(1.0), weft.zeros((0,)))
    assert last.item() == 1.0
    assert ys.shape == (0,)


def test_control_flow_nests_and_captures_through_levels() -> None:
    outside = weft.asarray(2.0)

    def f(x: Any) -> Any:
        def step(carry: Any, item: Any) -> Any:
            def grow(c: Any) -> Any:
                return weft.while_loop(lambda v: v < item * outside, lambda v: v + outside, c)

            bigger = weft.cond(item > 1.0, grow, lambda c: c - x[0], carry)
            return bigger, bigger

        return weft.scan(step, weft.asarray(0.0), x)

    expected, carry = [], 0.0
    for item in X:
        if item > 1:
            while carry < item * 2:
                carry += 2.0
        else:
            carry -= float(X[0])
        expected.append(carry)
    for _, ys in both(f, weft.asarray(X)):
        assert ys.tolist() == expected


def test_gradients_pass_through_scan() -> None:
    def loss(w: Any) -> Any:
        last, _ = weft.scan(lambda c, x: (c * w + x, x), weft.asarray(1.0), weft.asarray(X))
        return last

    found = weft.grad(loss)(weft.asarray(0.5)).item()
    h = 1e-3
    difference = (loss(weft.asarray(0.5 + h)).item() - loss(weft.asarray(0.5 - h)).item()) / (2 * h)
    assert abs(found - difference) < 1e-2


def one(x: Any) -> Any:
    return x


MISTAKES: list[tuple[str, Any, str, str]] = [
    ("cond", lambda x: weft.cond(x > 0, one, one, x), "CondPredicateInvalid", "all or any"),
    ("cond", lambda x: weft.cond(True, one, lambda x: x[:2], x), "RegionSignatureMismatch",
     r"f32\[4\] and f32\[2\]"),
    ("cond", lambda x: weft.cond(True, lambda x: (x, x), one, x), "RegionSignatureMismatch",
     "nested in different ways"),
    ("while_loop", lambda x: weft.while_loop(lambda c: c > 0, one, x), "CondPredicateInvalid",
     "one boolean scalar"),
    ("while_loop", lambda x: weft.while_loop(lambda c: weft.any(c > 0), lambda c: c[:2], x),
     "RegionSignatureMismatch", "changes the type of the carry"),
    ("scan", lambda x: weft.scan(lambda c, x: (c, x), x, x[0]), "RankMismatch", "first axis"),
    ("scan", lambda x: weft.scan(lambda c, x: (c, c), x, (x, x[:2])), "ShapeMismatch",
     r"\(4,\), \(2,\)"),
    ("scan", lambda x: weft.scan(lambda c, i: (c[None], i), x, x), "RegionSignatureMismatch",
     "carry"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "call", "code", "text"), MISTAKES)
def test_mistakes_are_told(op: str, call: Any, code: str, text: str) -> None:
    with pytest.raises(SpecViolation, match=text) as caught:
        call(weft.asarray(X))
    assert caught.value.code == code
    assert f"[{op}]" in str(caught.value)
    assert "test_control_flow.py:" in str(caught.value)


def test_scan_needs_a_length_and_a_pair() -> None:
    with pytest.raises(UserError, match="needs its length"):
        weft.scan(lambda c, _: (c, c), weft.asarray(0))
    for length in (-1, 2.5):
        with pytest.raises(UserError, match=rf"a number of steps, not {length}"):
            weft.scan(lambda c, _: (c, c), weft.asarray(0), length=length)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="must return a pair"):
        weft.scan(lambda c, x: c, weft.asarray(0.0), weft.asarray(X))
    with pytest.raises(UserError, match="must return tensors, not str"):
        weft.cond(weft.asarray(True), lambda: "yes", lambda: "no")
