"""Dead code: what nothing reads goes; what names a dim, draws from a shared stream or is Required
stays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft
from tests.unit.ptir.passes.programs import Case, agree, mnemonics
from weft.foundation.dtypes import F32
from weft.foundation.errors import SpecViolation
from weft.ptir import BodyBuilder, Builder, Program, Value, verify
from weft.ptir.passes import PassLog, dce
from weft.ptir.streams import assign_streams


def test_dead_instructions_go_and_parameters_stay() -> None:
    case = Case(0)
    x, y = case.param(F32, [3]), case.param(F32, [3])
    b = case.b
    b.exp(b.neg(y))
    live = b.exp(x)
    b.emit("add", live, y)
    case.done(live)
    log = PassLog()
    after = dce(case.program, log)
    assert mnemonics(after) == ["exp"]
    assert after.main.parameters == case.program.main.parameters
    assert log.counts == {"dead-code": 3}
    assert all("test_dce.py:" in fired.place for fired in log.fired)
    agree(case.program, after, case.inputs)


def test_a_live_program_is_returned_as_it_is() -> None:
    b = Builder()
    program = b.build(b.exp(b.param("f32", [2])))
    assert dce(program) is program


def test_an_element_of_a_tuple_keeps_the_tuple() -> None:
    b = Builder()
    x = b.param("f32", [3])
    top = b.emit("top_k", x, k=1, axis=0, largest=True, indices_dtype="si32")
    program = b.build(b.neg(top[1]))
    assert dce(program) is program


def test_unused_regions_go_with_their_op() -> None:
    b = Builder()
    x = b.param("f32", [2])

    def nested(r: BodyBuilder, y: Value) -> Value:
        return r.cond(r.constant(False), lambda i, z: i.neg(z), lambda i, z: z, y)

    b.cond(b.constant(True), nested, lambda r, y: y, x)
    kept = b.cond(b.constant(True), lambda r, y: r.exp(y), lambda r, y: y, x)
    program = b.build(kept)
    log = PassLog()
    after = dce(program, log)
    assert len(program.regions) == 6
    assert [region.id for region in after.regions] == [4, 5]
    assert [note.partition(" dropped")[0] for note in log.notes] == [
        "region ^0",
        "region ^1",
        "region ^2",
        "region ^3",
    ]
    agree(program, after, [np.ones(2, np.float32)])


def test_dead_code_in_a_region_goes_and_its_parameters_stay() -> None:
    def body(r: BodyBuilder, carry: Value, x: Value) -> list[Value]:
        r.exp(x)
        return [r.neg(carry)]

    b = Builder()
    c, xs = b.param("f32", [2]), b.param("f32", [3, 2])
    program = b.build(b.scan(body, [c], [xs]))
    after = dce(program)
    assert mnemonics(after) == ["scan", "neg"]
    assert after.regions[0].parameters == program.regions[0].parameters
    agree(program, after, [np.ones(2, np.float32), np.ones((3, 2), np.float32)])


def test_a_violation_in_dead_code_is_gone_with_it() -> None:
    b = Builder()
    b.emit("div", b.constant([1], "si32"), b.constant([0], "si32"))
    program = b.build(b.constant(1.0))
    with pytest.raises(SpecViolation):
        weft.run(program)
    assert weft.run(dce(program))[0] == 1.0


# -- dims ----------------------------------------------------------------------------------------


def test_an_instruction_that_names_a_dim_stays() -> None:
    b = Builder()
    x, y = b.param("f32", ["?B"]), b.param("f32", ["?C"])
    joined = b.concat([x, y], axis=0)
    b.exp(joined)
    program = b.build(b.full(joined.shape, 1.0, "f32"))
    after = dce(program)
    assert mnemonics(after) == ["concat", "broadcast_to"]
    agree(program, after, [np.ones(2, np.float32), np.ones(3, np.float32)])


def test_a_dim_that_only_a_region_mentions_is_named_too() -> None:
    b = Builder()
    x, s = b.param("f32", ["?B"]), b.param("f32", [])
    joined = b.concat([x, x], axis=0)

    def wide(r: BodyBuilder, y: Value) -> Value:
        return r.reduce_sum(r.broadcast_to(y, joined.shape), [0])

    program = b.build(b.cond(b.constant(True), wide, lambda r, y: y, s))
    after = dce(program)
    assert mnemonics(after)[0] == "concat"
    agree(program, after, [np.ones(2, np.float32), np.array(3, np.float32)])


def test_a_name_that_nobody_uses_does_not_keep_anything() -> None:
    b = Builder()
    x = b.param("f32", ["?B"])
    b.concat([x, x], axis=0)
    assert mnemonics(dce(b.build(b.exp(x)))) == ["exp"]


# -- random numbers ------------------------------------------------------------------------------


def _draw(b: BodyBuilder, stream: int | None = None) -> Value:
    return b.emit("rng_uniform", shape=[2], dtype="f32", stream=stream)


def test_a_dead_draw_goes_when_its_stream_is_its_own() -> None:
    b = Builder()
    _draw(b)
    program = b.build(_draw(b))
    explicit = assign_streams(program)
    after = dce(explicit)
    assert mnemonics(after) == ["rng_uniform"]
    agree(program, after, [], seed=5)


def test_streams_that_are_not_assigned_keep_every_draw() -> None:
    """The stream is the ordinal: without the first draw the second would be another one."""
    b = Builder()
    _draw(b)
    program = b.build(_draw(b))
    assert dce(program) is program


def test_a_dead_draw_from_a_shared_stream_stays() -> None:
    b = Builder()
    _draw(b, 7)
    program = b.build(_draw(b, 7))
    assert dce(program) is program


def _dead_cond(shared: bool) -> Program:
    """A dead cond that draws, then a live one: over the same regions, or over its own."""
    b = Builder()
    x = b.param("f32", [2])

    def draw(r: BodyBuilder, y: Value) -> Value:
        return r.emit("add", y, _draw(r))

    pred = b.constant(True)
    b.cond(pred, draw, lambda r, y: y, x)
    op = b._body[-1].op
    live = b.append(op, [pred, x]) if shared else b.cond(pred, draw, lambda r, y: y, x)
    return assign_streams(b.build(live))


@pytest.mark.parametrize("shared", [False, True])
def test_dead_control_flow_that_draws(shared: bool) -> None:
    program = _dead_cond(shared)
    after = dce(program)
    assert mnemonics(after).count("cond") == (2 if shared else 1)
    agree(program, after, [np.zeros(2, np.float32)], seed=3)


def test_a_stream_shared_with_a_region() -> None:
    b = Builder()
    x = b.param("f32", [2])
    b.cond(b.constant(True), lambda r, y: _draw(r, 1), lambda r, y: y, x)
    program = b.build(_draw(b, 1))
    assert dce(program) is program
    b = Builder()
    x = b.param("f32", [2])
    b.cond(b.constant(True), lambda r, y: _draw(r, 1), lambda r, y: y, x)
    program = b.build(_draw(b, 2))
    after = dce(program)
    assert mnemonics(after) == ["rng_uniform"]
    agree(program, after, [np.zeros(2, np.float32)])


def test_other_functions_are_trimmed_and_kept() -> None:
    b = Builder("main")
    program = b.build(b.exp(b.param("f32", [2])))
    g = Builder("other")
    x = g.param("f32", [2])
    g.neg(x)
    other = g.build(x).main
    both = replace(program, functions=(*program.functions, other))
    after = dce(both)
    verify(after)
    assert [function.name for function in after.functions] == ["main", "other"]
    assert after.functions[1].body == ()
