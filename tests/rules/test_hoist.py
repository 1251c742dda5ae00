"""Hoisting: what depends on parameters alone runs once, and nothing else moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft
from tests.rules.programs import mnemonics, same
from tests.support.one_op import Array
from weft.foundation.errors import UserError
from weft.ptir import BodyBuilder, Builder, HintRegion, Program, Value, tensor, verify
from weft.ptir.ir import HintKind, HintPolicy
from weft.ptir.passes import Hoisted, PassLog, hoist


def check(program: Program, marked: list[int], inputs: list[Array], seed: int = 0) -> Hoisted:
    """Both halves verify, and together they give the bits of the whole."""
    hoisted = hoist(program, marked)
    verify(hoisted.prologue)
    verify(hoisted.main)
    values = weft.run(hoisted.prologue, [inputs[i] for i in hoisted.prologue_inputs])
    rest = [inputs[i] for i in hoisted.main_inputs]
    got = weft.run(hoisted.main, [*rest, *values], seed=seed)
    same(weft.run(program, inputs, seed=seed), got)
    return hoisted


def floats(*shape: int) -> Array:
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def test_weights_are_prepared_once() -> None:
    b = Builder("mlp")
    x, w, bias = b.param("f32", [2, 3]), b.param("f32", [4, 3]), b.param("f32", [4])
    turned = b.transpose(b.exp(w), [1, 0])
    y = b.emit("add", b.matmul(x, turned), b.broadcast_to(bias, [2, 4]))
    hoisted = check(b.build(y), [1, 2], [floats(2, 3), floats(4, 3), floats(4)])
    assert mnemonics(hoisted.prologue) == ["exp", "transpose"]
    assert mnemonics(hoisted.main) == ["dot_general", "broadcast_to", "add"]
    assert hoisted.prologue_inputs == (1, 2)
    assert hoisted.main_inputs == (0, 2)
    assert hoisted.prologue.entry == "mlp_prologue"
    assert hoisted.main.main.parameters == (
        tensor("f32", [2, 3]),
        tensor("f32", [4]),
        tensor("f32", [3, 4]),
    )


def test_data_comes_first_then_parameters_then_hoisted_values() -> None:
    b = Builder()
    w, x, v, y = (b.param("f32", [n]) for n in (2, 2, 2, 2))
    total = b.emit("add", b.emit("mul", x, b.exp(w)), b.emit("mul", y, v))
    hoisted = check(b.build(total), [0, 2], [floats(2) for _ in range(4)])
    assert hoisted.main_inputs == (1, 3, 2)
    assert hoisted.prologue_inputs == (0, 2)


def test_constants_iotas_and_broadcasts_alone_are_not_worth_it() -> None:
    b = Builder()
    x, w = b.param("f32", [3, 2]), b.param("f32", [2])
    wide = b.broadcast_to(w, [3, 2])
    count = b.cast(x, "si32")
    table = b.iota("si32", [3, 2], 0)
    y = b.emit("add", b.emit("add", x, wide), b.full([3, 2], 1.0, "f32"))
    results = [y, b.emit("add", count, table), b.emit("add", x, b.constant(floats(3, 2)))]
    hoisted = check(b.build(*results), [1], [floats(3, 2), floats(2)])
    assert hoisted.prologue.main.body == ()
    assert hoisted.prologue.main.results == ()
    assert hoisted.main.main.body == b.build(*results).main.body
    assert hoisted.main_inputs == (0, 1)


def test_cheap_values_move_where_a_hoisted_op_needs_them() -> None:
    b = Builder()
    x, w = b.param("f32", [3, 2]), b.param("f32", [2])
    wide = b.broadcast_to(w, [3, 2])
    shared = b.exp(wide)
    y = b.emit("mul", b.emit("add", x, wide), shared)
    hoisted = check(b.build(y), [1], [floats(3, 2), floats(2)])
    assert mnemonics(hoisted.prologue) == ["broadcast_to", "exp"]
    assert mnemonics(hoisted.main) == ["broadcast_to", "add", "mul"]


def test_a_broadcast_of_a_hoisted_value_stays_behind() -> None:
    b = Builder()
    x, w = b.param("f32", [3, 2]), b.param("f32", [2])
    y = b.emit("mul", x, b.broadcast_to(b.exp(w), [3, 2]))
    hoisted = check(b.build(y), [1], [floats(3, 2), floats(2)])
    assert mnemonics(hoisted.prologue) == ["exp"]
    assert hoisted.main_inputs == (0,)


def test_what_depends_on_nothing_is_hoisted_too() -> None:
    b = Builder()
    x = b.param("f32", [4])
    table = b.sin(b.iota("f32", [4], 0))
    hoisted = check(b.build(b.emit("add", x, table)), [], [floats(4)])
    assert mnemonics(hoisted.prologue) == ["iota", "sin"]
    assert mnemonics(hoisted.main) == ["add"]


def test_a_result_may_be_hoisted_or_a_parameter() -> None:
    b = Builder()
    x, w = b.param("f32", [2]), b.param("f32", [2])
    hoisted = check(b.build(b.exp(w), b.neg(x), w, x), [1], [floats(2), floats(2)])
    assert mnemonics(hoisted.main) == ["neg"]
    assert hoisted.main_inputs == (0, 1)


def test_everything_may_be_hoisted() -> None:
    b = Builder()
    w = b.param("f32", [2])
    hoisted = check(b.build(b.exp(b.neg(w))), [0], [floats(2)])
    assert hoisted.main_inputs == ()
    assert hoisted.main.main.body == ()


def test_tuples_cross_the_border() -> None:
    b = Builder()
    x, w = b.param("f32", [2]), b.param("f32", [4])
    top = b.emit("top_k", w, k=2, axis=0, largest=True, indices_dtype="si32")
    hoisted = check(b.build(b.emit("add", x, top[0]), b.neg(top[1])), [1], [floats(2), floats(4)])
    assert mnemonics(hoisted.prologue) == ["top_k", "neg"]


# -- randomness ----------------------------------------------------------------------------------


def _noise(r: BodyBuilder, x: Value) -> Value:
    return r.emit("add", x, r.emit("rng_uniform", shape=[2], dtype="f32"))


def test_random_ops_stay() -> None:
    b = Builder()
    x, w = b.param("f32", [2]), b.param("f32", [2])
    drawn = b.exp(_noise(b, b.exp(w)))
    y = b.emit("add", b.emit("add", x, drawn), b.emit("rng_normal", shape=[2], dtype="f32"))
    hoisted = check(b.build(y), [1], [floats(2), floats(2)], seed=9)
    assert mnemonics(hoisted.prologue) == ["exp"]


def test_control_flow_moves_unless_it_draws() -> None:
    def nested(r: BodyBuilder, x: Value) -> Value:
        return r.cond(r.constant(True), _noise, lambda i, y: y, x)

    b = Builder()
    x, w = b.param("f32", [2]), b.param("f32", [2])
    pred = b.constant(True)
    pure = b.cond(pred, lambda r, y: r.exp(y), lambda r, y: y, w)
    drawn = b.cond(pred, nested, lambda r, y: y, w)
    y = b.emit("add", b.emit("add", x, pure), drawn)
    hoisted = check(b.build(y), [1], [floats(2), floats(2)], seed=4)
    assert [i.op.mnemonic for i in hoisted.prologue.main.body] == ["constant", "cond"]
    assert [region.id for region in hoisted.prologue.regions] == [0, 1]
    assert [region.id for region in hoisted.main.regions] == [2, 3, 4, 5]


# -- dims ----------------------------------------------------------------------------------------


def test_a_dim_of_the_data_keeps_an_instruction_here() -> None:
    b = Builder()
    x, w = b.param("f32", ["?B", 2]), b.param("f32", [2])
    y = b.emit("mul", x, b.exp(b.broadcast_to(b.neg(w), x.shape)))
    hoisted = check(b.build(y), [1], [floats(3, 2), floats(2)])
    assert mnemonics(hoisted.prologue) == ["neg"]


def test_a_dim_computed_from_the_data_does_too() -> None:
    b = Builder()
    x, w = b.param("f32", ["?B"]), b.param("f32", [1])
    double = b.concat([x, x], axis=0)
    y = b.emit("add", double, b.exp(b.broadcast_to(w, double.shape)))
    hoisted = check(b.build(y), [1], [floats(3), floats(1)])
    assert hoisted.prologue.main.body == ()


def test_a_dim_of_a_parameter_travels() -> None:
    """Main mentions ?V, which only w binds: the hoisted value brings it, or w itself stays."""
    b = Builder()
    x, w = b.param("f32", []), b.param("f32", ["?V"])
    y = b.emit("add", b.broadcast_to(x, w.shape), b.exp(w))
    hoisted = check(b.build(y), [1], [np.array(2, np.float32), floats(3)])
    assert hoisted.main_inputs == (0,)
    b = Builder()
    x, w = b.param("f32", []), b.param("f32", ["?V"])
    y = b.emit("add", b.broadcast_to(x, w.shape), b.full(w.shape, 1.0, "f32"))
    hoisted = check(b.build(y, b.reduce_sum(w, [0])), [1], [np.array(2, np.float32), floats(3)])
    assert hoisted.main_inputs == (0, 1)


def test_a_dim_that_a_hoisted_instruction_names() -> None:
    """?d of concat(w, w) is mentioned in main, and needed by another hoisted instruction."""
    b = Builder()
    x, w = b.param("f32", []), b.param("f32", ["?V"])
    double = b.concat([w, w], axis=0)
    ones = b.exp(b.full(double.shape, 1.0, "f32"))
    y = b.emit("add", b.broadcast_to(x, double.shape), ones)
    hoisted = check(b.build(y), [1], [np.array(2, np.float32), floats(3)])
    assert mnemonics(hoisted.prologue) == ["concat", "broadcast_to", "exp"]
    b = Builder()
    x, w = b.param("f32", []), b.param("f32", ["?V"])
    double = b.concat([w, w], axis=0)
    hoisted = check(
        b.build(b.broadcast_to(x, double.shape)), [1], [np.array(2, np.float32), floats(3)]
    )
    assert mnemonics(hoisted.prologue) == ["concat"]


# -- hints, lines, mistakes ----------------------------------------------------------------------


def _hinted(policy: HintPolicy) -> Program:
    """[%2 = exp(w), %3 = add(x, %2)]."""
    b = Builder()
    x, w = b.param("f32", [2]), b.param("f32", [2])
    program = b.build(b.emit("add", x, b.exp(w)))
    function = program.main
    hint = HintRegion(0, HintKind.ELEMENTWISE_DAG, policy, (0, 1), (3,), function.body)
    return program.with_main(replace(function, hints=(hint,)))


def test_a_required_hint_stays_whole() -> None:
    program = _hinted(HintPolicy.REQUIRED)
    hoisted = hoist(program, [1])
    verify(hoisted.main)
    assert hoisted.main.main.hints == program.main.hints
    assert hoisted.prologue.main.body == ()


def test_another_hint_is_dropped_with_a_note() -> None:
    log = PassLog()
    hoisted = hoist(_hinted(HintPolicy.PREFERRED), [1], log)
    assert hoisted.main.main.hints == ()
    assert log.notes == [
        "hint 0 (elementwise_dag, preferred) of function @main dropped: %2 = exp(%1) is gone"
    ]
    assert log.counts == {"hoist": 1}


def test_lines_travel() -> None:
    b = Builder("net")
    x, w = b.param("f32", [2]), b.param("f32", [2])
    program = b.build(b.emit("add", x, b.exp(w)))
    hoisted = hoist(program, [1])
    line = program.locations["function @net", 2]
    assert hoisted.prologue.locations == {("function @net_prologue", 2): line}
    assert set(hoisted.main.locations) == {("function @net", 3)}


@pytest.mark.parametrize("index", [-1, 2])
def test_an_input_that_does_not_exist(index: int) -> None:
    b = Builder()
    program = b.build(b.emit("add", b.param("f32", [2]), b.param("f32", [2])))
    with pytest.raises(UserError, match=f"^there is no input {index}; @main has 2$"):
        hoist(program, [index])


def test_a_long_chain_takes_linear_time() -> None:
    b = Builder()
    x, w = b.param("f32", [2]), b.param("f32", [2])
    for _ in range(5_000):
        w, x = b.exp(w), b.neg(x)
    hoisted = hoist(b.build(b.emit("add", x, w)), [1])
    assert len(hoisted.prologue.main.body) == 5_000
