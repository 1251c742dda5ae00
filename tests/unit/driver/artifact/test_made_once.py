"""What is the same in every turn of a loop is made before it: weights laid out for products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.images import wide
from weft.driver.code import cpu_generator
from weft.driver.compile import compile_program
from weft.ptir import Builder, Program
from weft.ptir.builder import BodyBuilder, Value
from weft.runtime.artifact import Again, Jump, Launch, Leave

ROWS, WIDTH, TURNS = 12, 96, 5


def steps_of(program: Program) -> list[Any]:
    """The steps of a program that gives what the reference gives."""
    rng = np.random.default_rng(0)
    inputs: list[NDArray[Any]] = [
        (rng.standard_normal(kind.static_shape) * 0.1).astype(np.float32)  # type: ignore[union-attr]
        for kind in program.main.parameters
    ]
    made = compile_program(program, wide())
    wanted = weft.run(program, inputs, backend="reference")
    for _ in range(2):
        for found, right in zip(made.run(inputs), wanted, strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
    return list(made.artifact.steps)


def positions(steps: list[Any]) -> list[int]:
    """Where weights are laid out."""
    found = (n for n, s in enumerate(steps) if isinstance(s, Launch) and s.label.endswith("_laid"))
    return list(found)


def scanned(step: Any, turns: int = TURNS) -> Program:
    b = Builder()
    h, w = b.param("f32", [ROWS, WIDTH]), b.param("f32", [WIDTH, WIDTH])
    return b.build(b.scan(step, [h, w], [b.param("f32", [turns, ROWS, WIDTH])]))


def _turn(r: BodyBuilder, h: Value, w: Value, x: Value) -> list[Value]:
    h = r.tanh(h @ w + x)
    return [h, w, h * 2.0]


def _changing(r: BodyBuilder, h: Value, w: Value, x: Value) -> list[Value]:
    h = r.tanh(h @ w + x)
    return [h, w * 0.5, h]


@pytest.mark.parametrize(("most", "turns"), [(0, TURNS + 1), (1000, TURNS)])
def test_weights_of_a_counted_loop_are_laid_out_before_it(
    most: int, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_generator, "WRITTEN_OUT", most)
    steps = steps_of(scanned(_turn, turns))
    (at,) = positions(steps)
    others = [n for n, step in enumerate(steps) if isinstance(step, Launch) and n != at]
    heads = [n for n, step in enumerate(steps) if isinstance(step, Leave | Again)]
    assert at < min([*others, *heads])
    assert bool(heads) is (most == 0)


def test_weights_that_change_are_packed_in_every_turn() -> None:
    assert not positions(steps_of(scanned(_changing)))


def while_loop(factor: float) -> Program:
    """A loop whose condition multiplies the weights by a factor; it passes them on if that is 1."""

    def goes_on(r: BodyBuilder, n: Value, h: Value, w: Value) -> list[Value]:
        return [n > 0, n, h, w if factor == 1 else w * factor]

    def turn(r: BodyBuilder, n: Value, h: Value, w: Value) -> list[Value]:
        return [n - 1, r.tanh(h @ w), w]

    b = Builder()
    h, w = b.param("f32", [ROWS, WIDTH]), b.param("f32", [WIDTH, WIDTH])
    return b.build(b.while_(goes_on, turn, b.constant(TURNS, "si32"), h, w))


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_weights_of_a_loop_with_a_condition_are_laid_out_where_they_last_change(
    factor: float,
) -> None:
    steps = steps_of(while_loop(factor))
    (at,) = positions(steps)
    (head,) = [step.target for step in steps if isinstance(step, Jump)]
    assert (at < head) is (factor == 1)
