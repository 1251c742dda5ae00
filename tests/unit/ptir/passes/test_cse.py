"""Common subexpressions: equal instructions are one, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.unit.ptir.passes.programs import Case, agree, mnemonics
from weft.foundation.dtypes import F32, SI32
from weft.ptir import BodyBuilder, Builder, Program, Value
from weft.ptir.passes import PassLog, cse


def test_equal_instructions_are_merged_transitively() -> None:
    case = Case(0)
    x, y = case.param(F32, [3]), case.param(F32, [3])
    b = case.b
    first, second = (b.exp(b.emit("add", x, y)) for _ in range(2))
    case.done(b.emit("mul", first, second), second)
    log = PassLog()
    after = cse(case.program, log)
    assert mnemonics(after) == ["add", "exp", "mul"]
    assert log.counts == {"common-subexpression": 2}
    assert after.main.result_ids[1] == 3
    agree(case.program, after, case.inputs)


def test_what_differs_in_one_respect_is_kept() -> None:
    case = Case(0)
    x, y = case.param(F32, [2, 2]), case.param(F32, [2, 2])
    b = case.b
    case.done(
        b.emit("sub", x, y),
        b.emit("sub", y, x),
        b.emit("add", x, y),
        b.transpose(x, [1, 0]),
        b.transpose(x, [0, 1]),
        b.emit("add", x, b.literal(np.zeros((2, 2), np.float32))),
        b.emit("add", x, b.literal(-np.zeros((2, 2), np.float32))),
    )
    program = case.program
    log = PassLog()
    assert cse(program, log) is program
    assert log.entries == []


def test_equal_literals_and_constants_are_merged() -> None:
    b = Builder()
    x = b.param("f32", [2])
    sums = [b.emit("add", x, b.constant([1.0, 2.0])) for _ in range(2)]
    sums += [b.emit("add", x, b.literal([1.0, 2.0])) for _ in range(2)]
    after = cse(b.build(*sums))
    assert mnemonics(after) == ["constant", "add", "add"]


def test_attributes_that_compare_equal_but_differ_in_bits_are_kept() -> None:
    """0.0 == -0.0 in Python; as a padding value they are two."""
    b = Builder()
    x = b.param("f32", [1])
    pads = [
        b.emit("pad", x, low=[1], high=[0], interior=[0], pad_value=value) for value in (0.0, -0.0)
    ]
    program = b.build(*pads)
    assert cse(program) is program
    g = Builder()
    x, w = g.param("f32", [2]), g.param("f32", [2])
    norms = [
        g.emit("layer_norm", x, w, w, epsilon=value, feature_axis=0) for value in (0.0, -0.0, 0.0)
    ]
    assert mnemonics(cse(g.build(*norms))) == ["layer_norm", "layer_norm"]


def test_nan_attributes_are_merged() -> None:
    b = Builder()
    x = b.param("f32", [1])
    pads = [
        b.emit("pad", x, low=[1], high=[0], interior=[0], pad_value=float("nan")) for _ in range(2)
    ]
    assert mnemonics(cse(b.build(*pads))) == ["pad"]


def test_declared_types_count() -> None:
    """The same reshape twice, each naming its dim: merging would change a type."""
    b = Builder()
    x = b.param("f32", ["?B", 2])
    program = b.build(b.reshape(x, [-1]), b.reshape(x, [-1]))
    assert cse(program) is program


def test_elements_of_merged_tuples_follow() -> None:
    b = Builder()
    x = b.param("f32", [4])
    tops = [b.emit("top_k", x, k=2, axis=0, largest=True, indices_dtype=SI32) for _ in range(2)]
    program = b.build(b.emit("sub", tops[0][0], tops[1][0]), b.neg(tops[1][1]))
    after = cse(program)
    assert mnemonics(after) == ["top_k", "sub", "neg"]
    agree(program, after, [np.array([3, 1, 2, 5], np.float32)])


def test_random_ops_are_never_merged() -> None:
    b = Builder()
    draws = [b.emit(name, shape=[2], dtype="f32") for name in ("rng_uniform", "rng_normal") * 2]
    program = b.build(*draws)
    assert cse(program) is program


def _conds(on_true: str) -> Program:
    """Two equal conds over the same regions; the true one draws if asked to."""

    def draw(r: BodyBuilder, x: Value) -> Value:
        return r.emit("add", x, r.emit(on_true, shape=[2], dtype="f32"))

    def nested(r: BodyBuilder, x: Value) -> Value:
        return r.cond(r.constant(True), draw, lambda i, y: y, x)

    b = Builder()
    x, pred = b.param("f32", [2]), b.param("i1")
    first = b.cond(pred, nested if on_true else (lambda r, y: r.exp(y)), lambda r, y: y, x)
    op = b._body[-1].op
    second = b.append(op, [pred, x])
    return b.build(first, second)


def test_pure_control_flow_is_merged() -> None:
    program = _conds("")
    after = cse(program)
    assert len(after.main.body) == 1
    agree(program, after, [np.ones(2, np.float32), np.array(True)])


@pytest.mark.parametrize("op", ["rng_uniform", "rng_normal"])
def test_control_flow_that_draws_is_not_merged(op: str) -> None:
    program = _conds(op)
    assert cse(program) is program
    first, second = weft.run(program, [np.ones(2, np.float32), np.array(True)])
    assert (first != second).any()


def test_within_regions_and_not_across() -> None:
    b = Builder()
    x = b.param("f32", [2])
    outside = b.exp(x)
    out = b.cond(
        b.constant(True),
        lambda r, y: r.emit("mul", r.exp(y), r.exp(y)),
        lambda r, y: r.exp(y),
        x,
    )
    program = b.build(outside, out)
    after = cse(program)
    assert [[i.op.mnemonic for i in r.body] for r in after.regions] == [["exp", "mul"], ["exp"]]
    agree(program, after, [np.array([1, 2], np.float32)])


def test_a_region_that_returns_a_tuple_keeps_its_results() -> None:
    """The wire can only return a tuple as the last instruction of a region."""

    def twice(r: BodyBuilder, x: Value) -> Value:
        tops = [r.emit("top_k", x, k=1, axis=0, largest=True, indices_dtype=SI32) for _ in range(2)]
        return tops[1]

    b = Builder()
    x = b.param("f32", [3])
    program = b.build(b.cond(b.constant(True), twice, twice, x)[0])
    after = cse(program)
    assert [len(region.body) for region in after.regions] == [2, 2]
    back = weft.ptir.loads(weft.ptir.dumps(after, "json"))
    agree(program, back, [np.array([3, 1, 2], np.float32)])
