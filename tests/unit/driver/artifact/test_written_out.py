"""Counted loops whose turns are written out one after the other, which GPUs get; carried out on the
CPU here, where they mean the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from tests.support.turning_programs import scan_around_all
from weft.driver.code import cpu_generator
from weft.ptir import Builder, Program
from weft.ptir.builder import BodyBuilder, Value
from weft.runtime.artifact import Again, Artifact, CopyBuffer, Enter

WIDE = 32
"""Elements of f32 that end where the next tensor may begin."""
Step = Callable[..., list[Value]]


@pytest.fixture(autouse=True)
def written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_generator, "WRITTEN_OUT", 100)


def scanned(step: Step, carries: int, length: int, width: int = WIDE) -> Program:
    """A scan of one input with so many carries, all of one shape; `step` takes them and the slice,
    and returns carries and outputs."""
    b = Builder()
    held = [b.param("f32", [width]) for _ in range(carries)]
    return b.build(b.scan(step, held, [b.param("f32", [length, width])]))


def checked(program: Program) -> Artifact:
    """The steps of a program that gives what the reference gives."""
    rng = np.random.default_rng(0)
    inputs = [
        rng.standard_normal(kind.static_shape).astype(np.float32)  # type: ignore[union-attr]
        for kind in program.main.parameters
    ]
    executable = weft.compile(program, "cpu")
    want = weft.run(program, inputs, backend="reference")
    for found, wanted in zip(executable.run(inputs), want, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    (cluster,) = executable.clusters.values()
    return cluster.built.artifact


def _moving(r: BodyBuilder, p: Value, x: Value) -> list[Value]:
    return [p * 0.5 + x, p]


def _swapped(r: BodyBuilder, p: Value, q: Value, x: Value) -> list[Value]:
    return [q, p + x, q * x]


def _delayed(r: BodyBuilder, p: Value, q: Value, s: Value, x: Value) -> list[Value]:
    """The second and third are what the first was one and two turns ago."""
    return [p * 0.5 + s, p, q, q + x]


def _doubled(r: BodyBuilder, p: Value, q: Value, x: Value) -> list[Value]:
    return [p, p, q + x]


def _stacked_and_passed(r: BodyBuilder, p: Value, q: Value, x: Value) -> list[Value]:
    """The second, which a turn may overwrite, is the first of the turn before, which is stacked."""
    return [p + q, p, p, x]


def _twice(r: BodyBuilder, p: Value, x: Value) -> list[Value]:
    new = r.tanh(p + x)
    return [new, new, p, p]


@pytest.mark.parametrize(
    ("step", "carries"),
    [(_moving, 1), (_swapped, 2), (_delayed, 3), (_doubled, 2), (_stacked_and_passed, 2),
     (_twice, 1)],
)  # fmt: skip
@pytest.mark.parametrize("width", one_in(2, [WIDE, 5]))
def test_turns_mean_what_the_loop_means(step: Step, carries: int, width: int) -> None:
    for length in (0, 1, 4, 5):
        artifact = checked(scanned(step, carries, length, width))
        assert not any(isinstance(found, Again) for found in artifact.steps)
        assert sum(isinstance(found, Enter) for found in artifact.steps) == length


def test_a_turn_reads_and_writes_where_the_stacks_are() -> None:
    """A carry that is stacked as it comes goes to the stack right away, and only the first has to
    be copied there."""
    artifact = checked(scanned(_moving, 1, 6))
    moved = [step for step in artifact.steps if isinstance(step, CopyBuffer)]
    # The operand is not given away: it is copied to the carry, and from there to the stack.
    assert len(moved) <= 2


def test_a_carry_that_stays_the_same_is_not_copied() -> None:
    b = Builder()
    weight, h = b.param("f32", [WIDE, WIDE]), b.param("f32", [1, WIDE])

    def step(r: BodyBuilder, h: Value, w: Value, x: Value) -> list[Value]:
        return [r.tanh(h @ w + x), w]

    loop = b.scan(step, [h, weight], [b.param("f32", [4, 1, WIDE])])
    artifact = checked(b.build(loop[0]))
    copied = [step.bytes for step in artifact.steps if isinstance(step, CopyBuffer)]
    assert 4 * WIDE * WIDE not in copied


def test_loops_in_written_out_turns() -> None:
    checked(scan_around_all())


def test_long_loops_turn() -> None:
    artifact = checked(scanned(_moving, 1, 70))
    assert any(isinstance(step, Again) for step in artifact.steps)


def test_a_loop_inside_of_a_loop_fills_the_stack_that_its_body_gives() -> None:
    """The body passes its first result on, so that the results it computes have other numbers."""

    def outer(r: BodyBuilder, p: Value, x: Value) -> list[Value]:
        last, stack = r.scan(_moving, [x], [r.broadcast_to(p, [3, WIDE])])
        return [p, last, stack]

    steps = checked(scanned(outer, 1, 2)).steps
    assert not [step for step in steps if isinstance(step, Again)]
