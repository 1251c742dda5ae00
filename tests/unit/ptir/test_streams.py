"""Random streams: the ordinal of an op by default, written only where it is not that."""

from __future__ import annotations

import json
from dataclasses import replace

import weft
from weft.foundation.dtypes import F32
from weft.ptir import BodyBuilder, Builder, Program, Value, dumps, loads
from weft.ptir.ops.random import RngNormal, RngUniform
from weft.ptir.streams import assign_streams, default_streams, drop_default_streams


def draw(b: BodyBuilder) -> Value:
    return b.rng_uniform(shape=[2], dtype="f32")


def nested() -> Program:
    """Random ops before, inside and after control flow that nests."""
    b = Builder()
    flag = b.param("i1")
    first = draw(b)

    def inner(r: BodyBuilder, pred: Value) -> Value:
        before = draw(r)
        middle = r.cond(pred, lambda s, p: draw(s), lambda s, p: draw(s), pred)
        return r.add(r.add(before, middle), draw(r))

    middle = b.cond(flag, inner, lambda r, p: draw(r), flag)
    return b.build(first, middle, draw(b))


def test_ordinals_follow_the_program_and_descend_into_regions_where_they_are_used() -> None:
    program = nested()
    ordinals = default_streams(program)
    found = [(label, i) for (label, i), _ in sorted(ordinals.items(), key=lambda item: item[1])]
    labels = [label for label, _ in found]
    assert labels[0] == labels[-1] == "function @main"
    outer = program.main.body[1].op.regions[0]
    inside = next(
        i.op.regions for r in program.regions if r.id == outer for i in r.body if i.op.regions
    )
    assert labels[1:6] == [
        f"region ^{outer}",
        f"region ^{inside[0]}",
        f"region ^{inside[1]}",
        f"region ^{outer}",
        f"region ^{program.main.body[1].op.regions[1]}",
    ]
    assert sorted(ordinals.values()) == list(range(7))


def streams(program: Program) -> list[int | None]:
    return [
        i.op.stream
        for body in program.bodies
        for i in body.body
        if isinstance(i.op, RngUniform | RngNormal)
    ]


def test_assigning_and_dropping_are_inverse() -> None:
    program = nested()
    assert streams(program) == [None] * 7
    explicit = assign_streams(program)
    assert sorted(s for s in streams(explicit) if s is not None) == list(range(7))
    assert drop_default_streams(explicit) == program
    assert assign_streams(explicit) == explicit


def test_an_explicit_stream_is_kept() -> None:
    b = Builder()
    b.rng_uniform(shape=[2], dtype="f32", stream=7)
    last = draw(b)
    assert streams(assign_streams(b.build(last))) == [7, 1]


def test_a_region_that_is_used_twice_is_numbered_once() -> None:
    b = Builder()
    flag = b.param("i1")
    first = b.cond(flag, lambda r: draw(r), lambda r: draw(r))
    op = b.build(first).main.body[0].op
    again = b.append(op, [flag])
    assert sorted(default_streams(b.build(first, again)).values()) == [0, 1]


def test_only_a_stream_that_is_not_the_default_is_written() -> None:
    b = Builder()
    program = b.build(draw(b), draw(b))
    swapped = program.with_main(
        replace(
            program.main,
            body=tuple(
                replace(i, op=RngUniform((2,), F32, stream=1 - n))
                for n, i in enumerate(program.main.body)
            ),
        )
    )
    plain = json.loads(dumps(assign_streams(program), "json"))
    assert [next(iter(i["op"])) for i in plain["functions"][0]["body"]] == ["RngUniform"] * 2
    written = json.loads(dumps(swapped, "json"))
    (call,) = {json.dumps(i["op"]) for i in written["functions"][0]["body"][:1]}
    assert json.loads(call) == {
        "CustomCall": {
            "target": "weft.rng_uniform.v1",
            "attrs": {
                "dtype": {"kind": "String", "value": "f32"},
                "shape": {"kind": "I64Array", "value": [2]},
                "stream": {"kind": "I64", "value": 1},
            },
        }
    }
    assert loads(dumps(swapped, "json")) == swapped
    ours, theirs = weft.run(program, seed=3), weft.run(swapped, seed=3)
    assert [a.tobytes() for a in ours] == [a.tobytes() for a in reversed(theirs)]


def test_random_ops_of_other_functions_come_after_those_of_the_entry() -> None:
    b = Builder("zebra")
    entry = b.build(draw(b)).main
    other = replace(entry, name="ant")
    program = Program("zebra", (other, entry))
    assert default_streams(program) == {("function @zebra", 0): 0, ("function @ant", 0): 1}
