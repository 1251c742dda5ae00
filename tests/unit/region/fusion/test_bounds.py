"""What is decided without a draft is what a draft would decide, and long programs of numbers are
chosen about in few drafts."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

import weft
from tests.support.cases import one_in
from tests.support.lowered import lowered
from weft.driver.stages.opaque import encode_op
from weft.foundation.tally import Tally, tallied
from weft.ops.jit import jit
from weft.ptir import Builder, Program
from weft.region.fusion.bounds import Bounds
from weft.region.fusion.greedy import DRAFTS, Fusion
from weft.region.text import dumps
from weft.region.writing.emit import Root
from weft.testing.random_programs import random_program
from weft.tiny.from_ptir import lower_program


def numbers(count: int, results: int, seed: int = 0) -> Program:
    """A program of scalar instructions, each on two of the last forty values."""
    draw, b = random.Random(seed), Builder("numbers")
    values = [b.param("f32", []) for _ in range(8)]
    for _ in range(count):
        x, y = (draw.choice(values[-40:]) for _ in range(2))
        values.append(draw.choice([b.add, b.mul, b.sub])(x, y) if draw.random() < 0.7 else b.sin(x))
    return b.build(*values[-results:])


def table(rows: int) -> Program:
    """The products of numbers, put together into a matrix."""

    def products(x: weft.Tensor) -> weft.Tensor:
        made: weft.Tensor = weft.asarray([[x[i] * x[j] for i in range(rows)] for j in range(rows)])
        return made

    made: Program = jit(products).program(weft.ones((rows,)))
    return made


def joined(parts: int, size: int) -> Program:
    """Multiples of a vector, one after the other."""

    def multiples(x: weft.Tensor) -> weft.Tensor:
        made: weft.Tensor = weft.concat([x * n for n in range(parts)])
        return made

    made: Program = jit(multiples).program(weft.ones((size,)))
    return made


def several(seed: int) -> Program:
    return random_program(seed, 25, control_flow=False, dynamic=False).program


PROGRAMS: dict[str, Callable[[], Program]] = {
    "numbers": lambda: numbers(60, 7),
    "one result": lambda: numbers(120, 1, seed=3),
    "table": lambda: table(5),
    "joined": lambda: joined(40, 64),
    "joined, larger than starting a kernel": lambda: joined(12, 20_000),
    **{f"random {seed}": lambda seed=seed: several(seed) for seed in range(8)},  # type: ignore[misc]
}


@pytest.mark.parametrize("name", one_in(3, PROGRAMS))
def test_drafts_would_choose_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = lower_program(PROGRAMS[name]())
    quick = dumps(lowered(graph).module, encode_op)
    monkeypatch.setattr(Bounds, "is_cheap", lambda *args: False)
    monkeypatch.setattr(Bounds, "of_numbers", lambda *args: False)
    assert dumps(lowered(graph).module, encode_op) == quick


def test_the_time_of_numbers_is_that_of_a_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    alone = Fusion._alone

    def both(fusion: Fusion, name: str) -> float:
        found = alone(fusion, name)
        compared.append((found, fusion.kernel((Root(name),))[1]))
        return found

    monkeypatch.setattr(Fusion, "_alone", both)
    lowered(lower_program(numbers(400, 3, seed=1)))
    assert len(compared) > 10
    for found, drafted in compared:
        assert found == pytest.approx(drafted, rel=1e-12)


def test_a_long_program_of_numbers_takes_few_drafts() -> None:
    graph, tally = lower_program(numbers(300, 30)), Tally()
    with tallied(tally):
        lowered(graph)
    assert tally.done[DRAFTS] < 150


def test_joining_many_values_takes_few_drafts() -> None:
    """Each is computed where it is read, for less than storing it would take."""
    graph, tally = lower_program(joined(64, 64)), Tally()
    with tallied(tally):
        lowered(graph)
    assert tally.done[DRAFTS] < 200
