"""Vectors of numbers as functions of vectors."""

from __future__ import annotations

from tests.unit.ptir.passes.numbers import numbers_of, pairs_of, scaled, turned
from tests.unit.ptir.passes.programs import Case, agree, mnemonics
from weft.foundation.dtypes import F32
from weft.ptir.passes import optimise


def test_numbers_of_a_vector_are_few_instructions_on_vectors() -> None:
    case = numbers_of(9, scaled)(Case(0), F32)
    assert len(mnemonics(case.program)) > 40
    after = optimise(case.program)
    assert mnemonics(after) == ["constant", "mul", "exp", "add"]
    agree(case.program, after, case.inputs)


def test_numbers_of_two_kinds_are_computed_by_kind_and_then_put_where_they_belong() -> None:
    case = numbers_of(16, turned)(Case(0), F32)
    after = optimise(case.program)
    assert len(mnemonics(after)) < 25
    assert mnemonics(after)[-2:] == ["concat", "take"]
    agree(case.program, after, case.inputs)


def test_numbers_that_come_again_are_computed_once_and_then_taken_to_where_they_belong() -> None:
    case = pairs_of(5)(Case(0), F32)
    assert len(mnemonics(case.program)) > 50
    after = optimise(case.program)
    assert mnemonics(after).count("take") == 2
    assert len(mnemonics(after)) < 10
    agree(case.program, after, case.inputs)


def test_elements_of_a_vector_in_any_order_are_taken_from_it() -> None:
    c = Case(0)
    x = c.param(F32, [9])
    order = [8 * n % 9 for n in range(9)]
    numbers = [c.b.exp(c.b.slice(x, [n], [1])) for n in order]
    case = c.done(c.b.concat(numbers, axis=0))
    after = optimise(case.program)
    assert sorted(mnemonics(after)) == ["exp", "take"]
    agree(case.program, after, case.inputs)
