"""`optimise`: random programs keep every bit, random numbers included; the result is a fixpoint."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from tests.unit.ptir.passes.programs import agree, mnemonics, same
from weft.foundation.errors import InternalError
from weft.ptir import BodyBuilder, Builder, Program, Value, dumps, loads
from weft.ptir.ops.random import RngUniform
from weft.ptir.passes import PASSES, Pass, PassLog, optimise, pipeline
from weft.testing.random_programs import random_program


def test_the_list_of_passes() -> None:
    assert [step.name for step in PASSES] == ["canonicalise", "fold", "cse", "dce"]


@pytest.mark.parametrize("block", one_in(4, range(10)))
def test_random_programs_keep_every_bit(block: int) -> None:
    for seed in range(block * 4, block * 4 + 4):
        case = random_program(seed, 20)
        before = weft.run(case.program, case.inputs, seed=seed)
        after = optimise(case.program)
        agree(case.program, after, case.inputs, seed=seed)
        same(before, weft.run(loads(dumps(after, "json")), case.inputs, seed=seed))
        assert optimise(after) == after


def test_the_same_program_gives_the_same_text() -> None:
    for seed in range(5):
        logs = [PassLog(), PassLog()]
        first, second = (optimise(random_program(seed, 30).program, log) for log in logs)
        assert dumps(first) == dumps(second)
        assert str(logs[0]) == str(logs[1])


def test_passes_work_hand_in_hand() -> None:
    """Folding makes a zero, which ends an addition, which leaves dead code and equal values."""
    b = Builder()
    x = b.param("f32", [2])
    zero = b.neg(b.full([2], 0.0, "f32"))
    y = b.exp(b.emit("add", x, zero))
    program = b.build(b.emit("mul", y, b.exp(x)))
    after = optimise(program)
    assert mnemonics(after) == ["exp", "mul"]
    agree(program, after, [np.array([1, -0.0], np.float32)])


def test_a_program_that_cannot_be_improved_comes_back_equal() -> None:
    b = Builder()
    x = b.param("f32", [2])
    program = b.build(b.exp(b.emit("rng_uniform", shape=[2], dtype="f32") + x))
    assert optimise(program) == program


# -- random numbers ------------------------------------------------------------------------------


def draws() -> Program:
    """A dead draw, two equal ones, one in a loop, one in a dead branch."""

    def body(r: BodyBuilder, carry: Value, x: Value) -> list[Value]:
        r.emit("rng_normal", shape=[2], dtype="f32")
        noise = r.emit("rng_uniform", shape=[2], dtype="f32")
        return [r.emit("add", carry, r.emit("mul", noise, x))]

    b = Builder()
    x, xs = b.param("f32", [2]), b.param("f32", [3, 2])
    b.emit("rng_uniform", shape=[2], dtype="f32")
    same_twice = [b.emit("rng_uniform", shape=[2], dtype="f32") for _ in range(2)]
    b.cond(b.constant(True), lambda r, y: r.emit("rng_normal", shape=[2], dtype="f32"),
           lambda r, y: y, x)  # fmt: skip
    carry = b.scan(body, [x], [xs])
    return b.build(*same_twice, carry, b.emit("rng_uniform", shape=[2], dtype="f32"))


def test_random_numbers_stay_what_they_are() -> None:
    program = draws()
    after = optimise(program)
    inputs = [np.ones(2, np.float32), np.ones((3, 2), np.float32)]
    for seed in (0, 1, 2**64 - 1):
        agree(program, after, inputs, seed=seed)
    assert mnemonics(after).count("rng_normal") == 0
    assert mnemonics(after).count("rng_uniform") == 4
    assert "cond" not in mnemonics(after)


def test_a_stream_is_written_only_where_it_is_not_the_default() -> None:
    after = optimise(draws())
    streams = [
        i.op.stream for body in after.bodies for i in body.body if isinstance(i.op, RngUniform)
    ]
    assert streams == [1, 2, 6, 5]
    b = Builder()
    program = b.build(*(b.emit("rng_uniform", shape=[1], dtype="f32") for _ in range(3)))
    assert optimise(program) == program


# -- contracts -----------------------------------------------------------------------------------


def test_a_pass_that_breaks_a_program_is_our_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_it(program: Program, log: PassLog) -> Program:
        return Program("nowhere", program.functions)

    monkeypatch.setattr(pipeline, "PASSES", (Pass("break", break_it),))
    b = Builder()
    with pytest.raises(InternalError, match="the passes made an invalid program: EntryUndefined"):
        optimise(b.build(b.exp(b.param("f32", [2]))))


def test_stop_gradient_is_not_removed() -> None:
    b = Builder()
    x = b.param("f32", [2])
    program = b.build(b.emit("stop_gradient", b.emit("stop_gradient", x)))
    assert mnemonics(optimise(program)) == ["stop_gradient"]


def test_optimise_is_part_of_the_face() -> None:
    assert weft.ptir.optimise is optimise


def test_equal_instructions_are_not_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is gone makes no two instructions equal: the result is that of all passes in turn."""
    ran: list[str] = []

    def noted(step: Pass) -> Pass:
        def run(program: Program, log: PassLog) -> Program:
            ran.append(step.name)
            return step.run(program, log)

        return Pass(step.name, run, step.done_after)

    programs = [random_program(seed, 40).program for seed in range(30)]
    monkeypatch.setattr(pipeline, "PASSES", tuple(map(noted, PASSES)))
    found = [dumps(optimise(program)) for program in programs]
    assert len(programs) <= ran.count("cse") < ran.count("dce")
    monkeypatch.setattr(pipeline, "PASSES", tuple(Pass(step.name, step.run) for step in PASSES))
    assert [dumps(optimise(program)) for program in programs] == found
