"""Loops whose number of steps is known: they become scans, and have gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft.foundation.errors import Unimplemented
from weft.ptir import Builder, Program, verify
from weft.ptir.counted_loops import with_counted_loops
from weft.ptir.gradient import gradient
from weft.ptir.ops.control import Scan, While


def loop(test: Any, start: int, by: Any, dtype: str = "si32") -> Program:
    """x becomes sin(x) + x as long as the counter passes the test."""
    b = Builder()
    x = b.param("f64", [2])
    first = b.constant(start, dtype)
    found = b.while_(
        lambda r, i, x: (test(r, i), i, x), lambda r, i, x: (by(i), r.sin(x) + x), first, x
    )
    return b.build(found[0], b.reduce_sum(found[1], [0]))


def ops(program: Program) -> list[type]:
    return [type(i.op) for body in program.bodies for i in body.body]


COUNTED: dict[str, tuple[Any, int, Any, int]] = {
    "less": (lambda r, i: i < 5, 0, lambda i: i + 1, 5),
    "less by two": (lambda r, i: i < 5, 0, lambda i: i + 2, 3),
    "at most": (lambda r, i: i <= 5, 0, lambda i: 1 + i, 6),
    "greater": (lambda r, i: i > 0, 4, lambda i: i - 1, 4),
    "mirrored": (
        lambda r, i: r.compare(r.constant(5, "si32"), i, "greater"),
        1,
        lambda i: i + 1,
        4,
    ),
    "unequal": (lambda r, i: i != 6, 0, lambda i: i + 2, 3),
    "never": (lambda r, i: i < 0, 0, lambda i: i + 1, 0),
}


@pytest.mark.parametrize("name", COUNTED)
def test_a_counted_loop_becomes_a_scan(name: str) -> None:
    test, start, by, steps = COUNTED[name]
    program = loop(test, start, by)
    made = with_counted_loops(program)
    verify(made)
    assert Scan in ops(made)
    assert While not in ops(made)
    x = np.array([0.3, -1.0])
    before, after = (weft.run(p, [x], backend="reference") for p in (program, made))
    assert [a.tolist() for a in before] == [a.tolist() for a in after]
    slope, value = np.ones(2), x
    for _ in range(steps):
        slope, value = slope * (np.cos(value) + 1), np.sin(value) + value
    found = weft.run(gradient(program, [0], of=1), [x], backend="reference")[2]
    assert found == pytest.approx(slope)


NOT_COUNTED: dict[str, tuple[Any, int, Any]] = {
    "for ever": (lambda r, i: i > -1, 0, lambda i: i + 1),
    "doubling": (lambda r, i: i < 50, 1, lambda i: i * 2),
    "never unequal": (lambda r, i: i != 5, 0, lambda i: i + 2),
    "too long": (lambda r, i: i < 2**30, 0, lambda i: i + 1),
}


@pytest.mark.parametrize("name", NOT_COUNTED)
def test_other_loops_stay(name: str) -> None:
    program = loop(*NOT_COUNTED[name])
    assert with_counted_loops(program) is program
    with pytest.raises(Unimplemented, match="how often the loop runs is not known"):
        gradient(program, [0], of=1)


def test_a_counter_that_runs_over_stays() -> None:
    program = loop(lambda r, i: i < 127, 0, lambda i: i + 2, "si8")
    assert with_counted_loops(program) is program


def test_a_bound_that_is_carried_along_and_loops_in_loops() -> None:
    b = Builder()
    x = b.param("f64")

    def inner(r: Any, x: Any) -> Any:
        done = r.while_(
            lambda s, j, n, y: (j < n, j, n, y),
            lambda s, j, n, y: (j + 1, n, s.sin(y)),
            r.constant(0, "si64"), r.constant(2, "si64"), x,
        )  # fmt: skip
        return done[2]

    found = b.while_(
        lambda r, i, x: (i < 3, i, x),
        lambda r, i, x: (i + 1, inner(r, x)),
        b.constant(0, "si32"),
        x,
    )
    program = b.build(found[1])
    made = with_counted_loops(program)
    assert While not in ops(made)
    value, slope = 0.7, 1.0
    for _ in range(6):
        slope, value = slope * np.cos(value), np.sin(value)
    results = weft.run(gradient(program, [0]), [np.array(0.7)], backend="reference")
    assert results[0] == pytest.approx(value)
    assert results[1] == pytest.approx(slope)


def test_a_while_loop_of_tensors_with_a_known_end() -> None:
    def power(x: Any) -> Any:
        def step(state: Any) -> Any:
            return state[0] + 1, state[1] * x

        return weft.while_loop(lambda state: state[0] < 3, step, (0, weft.asarray(1.0)))[1]

    assert weft.grad(power)(weft.asarray(2.0)).item() == 12.0
