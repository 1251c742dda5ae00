"""The engine: fixpoints, chains, regions, lines, the log, results, and hints."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from tests.support.python_calls import python_calls
from tests.unit.ptir.passes.programs import Case, agree, mnemonics
from weft.foundation.dtypes import F32
from weft.foundation.errors import InternalError
from weft.ptir import BodyBuilder, Builder, HintRegion, Program, Value, literal, tensor, verify
from weft.ptir.ir import HintKind, HintPolicy, Instruction
from weft.ptir.ops.control import Cond
from weft.ptir.ops.elementwise import ElementwiseBinary, ElementwiseUnary
from weft.ptir.ops.movement import Reshape
from weft.ptir.passes import (
    Fired,
    Match,
    New,
    PassLog,
    Rule,
    canonicalise,
    cse,
    dce,
    optimise,
    rewrite,
)
from weft.ptir.passes.rewrite import Replacement


def _exp_to_tanh(match: Match) -> Replacement | None:
    return New(ElementwiseUnary("tanh"), match.operands)  # type: ignore[arg-type]


TOY = Rule("toy", "exp(x)", "tanh(x)", ("exp",), _exp_to_tanh)


def simple(*names: str) -> Program:
    """A chain of unary ops over f32[2]."""
    b = Builder()
    y = b.param("f32", [2])
    for name in names:
        y = b.emit(name, y)
    return b.build(y)


# -- matching and replacing ----------------------------------------------------------------------


def test_a_rule_sees_only_the_ops_it_names() -> None:
    after = rewrite(simple("neg", "exp", "abs", "exp"), [TOY])
    assert mnemonics(after) == ["neg", "tanh", "abs", "tanh"]


def test_a_rule_for_an_unknown_op_is_a_bug() -> None:
    with pytest.raises(InternalError, match="looks for an op 'exponential'"):
        Rule("wrong", "", "", ("exponential",), _exp_to_tanh)


def test_nothing_fires_and_the_same_program_comes_back() -> None:
    program = simple("neg", "tanh")
    log = PassLog()
    assert rewrite(program, [TOY], log) is program
    assert log.entries == []


def test_a_rule_that_always_fires_ends() -> None:
    program = simple("neg")
    loop = Rule("loop", "-x", "-x", ("neg",), lambda match: New(match.op, match.operands))
    log = PassLog()
    after = rewrite(program, [loop], log)
    assert after == program
    assert 0 < len(log.fired) <= 16 * 64


def test_what_has_not_changed_is_not_looked_at_again() -> None:
    """Only the instruction that changed, and those whose rules saw its definition."""
    looked: list[int] = []

    def behind_tanh(match: Match) -> Replacement | None:
        looked.append(match.instruction.id)
        definition = match.definition(match.operands[0])
        is_tanh = definition is not None and definition.op.mnemonic == "tanh"
        return New(ElementwiseUnary("abs"), match.operands) if is_tanh else None  # type: ignore[arg-type]

    rules, log = [Rule("behind", "-tanh(x)", "|tanh(x)|", ("neg",), behind_tanh)], PassLog()
    program = simple("neg", "exp", "neg", "exp", "neg", "neg")
    assert rewrite(program, rules, log) is program
    # That of the last instruction depends on more: it is the result.
    assert looked == [1, 3, 5, 6]
    assert rewrite(program, rules, log) is program
    assert looked == [1, 3, 5, 6, 6]
    body = list(program.main.body)
    body[3] = replace(body[3], op=ElementwiseUnary("tanh"))  # type: ignore[arg-type]
    edited = program.with_main(replace(program.main, body=tuple(body)))
    looked.clear()
    assert mnemonics(rewrite(edited, rules, log)) == ["neg", "exp", "neg", "tanh", "abs", "neg"]
    assert looked == [5, 6, 6]


def test_new_instructions_stand_before_the_one_they_are_for() -> None:
    def square(match: Match) -> Replacement | None:
        (x,) = match.operands
        inner = match.emit(ElementwiseUnary("neg"), x)  # type: ignore[arg-type]
        return New(ElementwiseBinary("mul"), (inner, inner))  # type: ignore[arg-type]

    program = simple("tanh", "exp", "tanh")
    after = rewrite(program, [Rule("square", "exp(x)", "(-x) * (-x)", ("exp",), square)])
    verify(after)
    assert mnemonics(after) == ["tanh", "neg", "mul", "tanh"]
    assert [i.id for i in after.main.body] == [1, 4, 2, 3]
    assert after.locations["function @main", 4] == program.locations["function @main", 2]


def test_what_a_rule_made_before_it_gave_up_is_forgotten() -> None:
    def hesitate(match: Match) -> Replacement | None:
        match.emit(ElementwiseUnary("neg"), match.operands[0])  # type: ignore[arg-type]
        return None

    program = simple("exp")
    assert rewrite(program, [Rule("hesitate", "exp(x)", "", ("exp",), hesitate)]) is program


def test_another_type_is_not_accepted() -> None:
    flat = Rule(
        "flat", "exp(x)", "reshape(x)", ("exp",), lambda m: New(Reshape((2, 1)), m.operands)
    )
    one = Rule("one", "exp(x)", "1", ("exp",), lambda m: literal(1.0))
    program = simple("exp", "neg")
    assert rewrite(program, [flat, one]) is program


def test_an_impossible_attribute_is_not_accepted() -> None:
    wrong = Rule("wrong", "exp(x)", "", ("exp",), lambda m: New(Reshape((-7,)), m.operands))
    program = simple("exp")
    assert rewrite(program, [wrong]) is program


def test_ids_stay_32_bits_wide() -> None:
    top = 2**32 - 1
    function = simple("exp").main
    body = (replace(function.body[0], id=top),)
    program = Program("main", (replace(function, body=body, result_ids=(top,)),))

    def wrap(match: Match) -> Replacement | None:
        inner = match.emit(ElementwiseUnary("neg"), match.operands[0])  # type: ignore[arg-type]
        return New(ElementwiseUnary("tanh"), (inner,))  # type: ignore[arg-type]

    after = rewrite(program, [Rule("wrap", "exp(x)", "tanh(-x)", ("exp",), wrap)])
    verify(after)
    assert [i.id for i in after.main.body] == [1, top]


# -- results -------------------------------------------------------------------------------------


def test_a_result_may_become_a_parameter() -> None:
    after = canonicalise(simple("neg", "neg"))
    assert after.main.result_ids == (0,)
    assert weft.run(after, [np.ones(2, np.float32)])[0].tolist() == [1, 1]


def test_a_result_never_becomes_a_literal_or_an_element() -> None:
    b = Builder()
    x = b.param("f32", [3])
    top = b.emit("top_k", x, k=3, axis=0, largest=True, indices_dtype="si32")
    same = b.broadcast_to(top[0], [3])
    one = b.emit("select", b.literal(True), b.literal(1.0), b.literal(2.0))
    program = b.build(same, one)
    log = PassLog()
    assert canonicalise(program, log) is program
    used = Builder()
    y = used.param("f32", [3])
    top = used.emit("top_k", y, k=3, axis=0, largest=True, indices_dtype="si32")
    program = used.build(used.neg(used.broadcast_to(top[0], [3])))
    after = canonicalise(program)
    assert mnemonics(after) == ["top_k", "neg"]
    agree(program, after, [np.array([1, 3, 2], np.float32)])


def test_one_value_may_be_returned_twice() -> None:
    b = Builder()
    x = b.param("f32", [2])
    program = b.build(b.neg(b.neg(x)), b.reshape(x, [2]), x)
    after = canonicalise(program)
    assert after.main.result_ids == (0, 0, 0)
    agree(program, after, [np.ones(2, np.float32)])


# -- regions -------------------------------------------------------------------------------------


def test_rules_work_inside_regions() -> None:
    def body(r: BodyBuilder, carry: Value, x: Value) -> list[Value]:
        return [r.neg(r.neg(carry)), r.emit("add", r.reshape(x, [2]), carry)]

    b = Builder()
    c, xs = b.param("f32", [2]), b.param("f32", [3, 2])
    program = b.build(*b.scan(body, [c], [xs]))
    log = PassLog()
    after = dce(canonicalise(program, log))
    assert [i.op.mnemonic for i in after.regions[0].body] == ["add"]
    assert after.regions[0].result_ids == (0, after.regions[0].body[0].id)
    assert any(fired.place.startswith("%3 = neg(%2) in region ^0 (") for fired in log.fired)
    agree(program, after, [np.ones(2, np.float32), np.ones((3, 2), np.float32)])
    agree(
        program,
        weft.ptir.loads(weft.ptir.dumps(after, "json")),
        [np.ones(2, np.float32), np.ones((3, 2), np.float32)],
    )


def test_a_region_may_become_empty() -> None:
    b = Builder()
    x = b.param("f32", [2])
    program = b.build(b.cond(b.constant(True), lambda r, y: r.neg(r.neg(y)), lambda r, y: y, x))
    after = optimise(program)
    assert after.regions[0].body == ()
    agree(program, weft.ptir.loads(weft.ptir.dumps(after, "bincode")), [np.ones(2, np.float32)])


def test_new_instructions_do_not_come_between_the_results_of_such_a_region() -> None:
    def both(r: BodyBuilder, x: Value) -> list[Value]:
        top = r.emit("top_k", x, k=1, axis=0, largest=True, indices_dtype="si32")
        return [top, r.emit("add", r.exp(x), x)]

    def doubled(match: Match) -> Replacement | None:
        twice = [match.emit(ElementwiseUnary("neg"), o) for o in match.operands]  # type: ignore[arg-type]
        return New(ElementwiseBinary("sub"), (twice[0], twice[1]))  # type: ignore[arg-type]

    b = Builder()
    x = b.param("f32", [2])
    region = b.region([x.type], both)
    program = b.build(b.append(Cond(region, region), [b.constant(True), x])[1])
    after = rewrite(program, [Rule("doubled", "x + y", "-x - -y", ("add",), doubled)])
    assert [i.op.mnemonic for i in after.regions[0].body][-2:] == ["top_k", "sub"]
    verify(weft.ptir.loads(weft.ptir.dumps(after, "json")))


def test_a_region_with_a_tuple_among_its_results_keeps_them() -> None:
    def both(r: BodyBuilder, x: Value) -> list[Value]:
        same = r.reshape(x, [2])
        return [same, r.emit("top_k", x, k=1, axis=0, largest=True, indices_dtype="si32")]

    b = Builder()
    x = b.param("f32", [2])
    program = b.build(b.cond(b.constant(True), both, both, x)[0])
    after = canonicalise(program)
    assert after == program
    agree(program, weft.ptir.loads(weft.ptir.dumps(after, "json")), [np.ones(2, np.float32)])


# -- the log and the lines -----------------------------------------------------------------------


def test_the_log_says_which_rule_fired_where() -> None:
    b = Builder()
    x = b.param("f32", [2])
    y = b.neg(b.neg(x))
    program = b.build(b.exp(y))
    log = PassLog()
    optimise(program, log)
    line = program.locations["function @main", 2]
    assert log.fired[0] == Fired("neg-of-neg", f"%2 = neg(%1) in function @main ({line})")
    assert log.counts == {"neg-of-neg": 1, "dead-code": 1}
    assert str(log).splitlines()[0] == f"neg-of-neg: %2 = neg(%1) in function @main ({line})"


def test_lines_of_values_that_are_gone_are_dropped() -> None:
    program = simple("neg", "neg", "exp")
    after = optimise(program)
    assert set(after.locations) == {("function @main", 3)}


# -- chains --------------------------------------------------------------------------------------


def _chain(step: str, length: int) -> Program:
    b = Builder()
    y = b.param("f32", [3, 4])
    for index in range(length):
        if step == "neg":
            y = b.neg(y)
        elif step == "reshape":
            y = b.reshape(y, [[12], [2, 6], [4, 3]][index % 3])
        elif step == "transpose":
            y = b.transpose(y, [1, 0])
        elif step == "add":
            y = y + -0.0
        elif step == "exp":
            y = b.exp(y)
        else:
            y = b.emit("cast", y, dtype="f32" if index % 2 else "f64")
    return b.build(y)


@pytest.mark.parametrize("step", one_in(5, ["neg", "reshape", "transpose", "add", "cast"]))
def test_ten_thousand_ops_in_a_chain(step: str) -> None:
    program = _chain(step, 10_000)
    start = time.process_time()
    after = optimise(program)
    assert time.process_time() - start < 60
    assert len(after.main.body) == (1 if step == "reshape" else 0)


@pytest.mark.parametrize("step", ["neg", "reshape", "transpose", "add", "cast"])
def test_the_work_grows_with_the_length_and_not_with_its_square(step: str) -> None:
    chains = [_chain(step, length) for length in (50, 100, 400)]
    few, more, many = (python_calls(partial(optimise, chain)) for chain in chains)
    assert many - more < 6.5 * (more - few)


# -- hints ---------------------------------------------------------------------------------------


def hinted(
    program: Program, first: int, last: int, exports: tuple[int, ...], policy: HintPolicy
) -> Program:
    """The program with a hint over the instructions `first` to `last`, by position."""
    function = program.main
    body = function.body[first : last + 1]
    inside = {i.id for i in body}
    inputs = tuple(sorted({use for i in body for use in i.uses} - inside))
    hint = HintRegion(0, HintKind.ELEMENTWISE_DAG, policy, inputs, exports, body)
    made = program.with_main(replace(function, hints=(hint,)))
    verify(made)
    return made


OPTIONAL, PREFERRED, REQUIRED = HintPolicy.OPTIONAL, HintPolicy.PREFERRED, HintPolicy.REQUIRED


def test_a_required_hint_is_left_alone() -> None:
    """%1 = neg, [%2 = neg, %3 = neg], %4 = neg: rules see nothing of it."""
    program = hinted(simple("neg", "neg", "neg", "neg"), 1, 2, (3,), REQUIRED)
    for change in (canonicalise, cse, dce, optimise):
        after = change(program)
        verify(after)
        assert after.main.hints == program.main.hints
        assert [i.id for i in after.main.body] == [1, 2, 3, 4]


def test_what_a_required_hint_reads_stays_a_value() -> None:
    b = Builder()
    x = b.param("f32", [2])
    y = b.reshape(x, [2])
    z = b.exp(y)
    program = hinted(b.build(z, b.neg(y)), 1, 1, (2,), REQUIRED)
    after = optimise(program)
    assert after.main.hints == program.main.hints
    assert [i.id for i in after.main.body] == [1, 2, 3]


def test_a_dead_required_hint_is_kept() -> None:
    b = Builder()
    x = b.param("f32", [2])
    b.exp(x)
    program = hinted(b.build(b.neg(x)), 0, 0, (1,), REQUIRED)
    assert dce(program) is program


def _two_exps(exports: tuple[int, ...], policy: HintPolicy) -> Program:
    """[%1 = exp(%0), %2 = neg(%1)], %3 = exp(%0)."""
    b = Builder()
    x = b.param("f32", [2])
    inside = b.neg(b.exp(x))
    return hinted(b.build(inside, b.exp(x)), 0, 1, exports, policy)


def test_nothing_starts_to_read_inside_a_required_hint() -> None:
    hidden = _two_exps((2,), REQUIRED)
    assert cse(hidden) is hidden
    exported = _two_exps((1, 2), REQUIRED)
    after = cse(exported)
    assert len(after.main.body) == 2
    assert after.main.hints == exported.main.hints
    verify(after)


def test_rules_do_not_look_into_a_required_hint_either() -> None:
    """%3 = neg(%2) outside; %2 = neg(%1) inside: forwarding would read the hidden %1."""
    hidden = hinted(simple("exp", "neg", "neg"), 0, 1, (2,), REQUIRED)
    assert canonicalise(hidden) is hidden
    shown = hinted(simple("exp", "neg", "neg"), 0, 1, (1, 2), REQUIRED)
    after = canonicalise(shown)
    assert after.main.result_ids == (1,)
    assert after.main.hints == shown.main.hints


def test_an_optional_hint_that_is_untouched_is_kept() -> None:
    program = hinted(simple("neg", "neg", "exp", "tanh"), 2, 3, (4,), OPTIONAL)
    log = PassLog()
    after = optimise(program, log)
    assert after.main.hints == ()
    assert "%3 = exp(%2) is now %3 = exp(%0)" in log.notes[0]
    still = hinted(simple("exp", "tanh", "neg", "neg"), 0, 1, (2,), OPTIONAL)
    after = optimise(still)
    assert after.main.hints == still.main.hints
    assert len(after.main.body) == 2


@pytest.mark.parametrize("policy", [OPTIONAL, PREFERRED])
def test_a_hint_whose_instructions_vanish_is_dropped_with_a_note(policy: HintPolicy) -> None:
    program = hinted(simple("exp", "neg", "neg"), 1, 2, (3,), policy)
    log = PassLog()
    after = optimise(program, log)
    assert after.main.hints == ()
    assert log.notes == [
        f"hint 0 (elementwise_dag, {policy}) of function @main dropped: %3 = neg(%2) is gone"
    ]


def test_a_hint_that_would_be_read_from_outside_is_dropped() -> None:
    log = PassLog()
    after = cse(_two_exps((2,), PREFERRED), log)
    verify(after)
    assert after.main.hints == ()
    assert log.notes[0].endswith("dropped: %1 is now read outside it")
    kept = cse(_two_exps((1, 2), PREFERRED))
    assert len(kept.main.hints) == 1


def test_values_keep_their_ids() -> None:
    case = Case(0)
    x = case.param(F32, [2])
    case.done(case.b.exp(case.b.neg(case.b.neg(x))))
    (instruction,) = optimise(case.program).main.body
    assert isinstance(instruction, Instruction)
    assert instruction.id == 3
    assert instruction.output == tensor("f32", [2])
