"""Errors of late stages, and of edited ones, name the instruction and the line of its program."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.foundation.errors import SpecViolation
from weft.ptir import Builder, Program

HERE = r"\(test_places\.py:\d+\)"


def taken() -> Program:
    b = Builder("taken")
    table, index = b.param("f32", [4, 3]), b.param("si32", [5])
    return b.build(b.exp(b.take(table, index)))


def bad_index(program: Program, overrides: dict[str, str]) -> str:
    made = weft.compile(program, overrides=overrides)
    with pytest.raises(SpecViolation) as caught:
        made(np.zeros((4, 3), np.float32), np.array([0, 1, 2, 3, 4], np.int32))
    return str(caught.value)


def test_lines_survive_every_stage_that_is_read_back() -> None:
    program = taken()
    wanted = bad_index(program, {})
    assert "take(%0, %1) in function @taken (test_places.py:" in wanted
    for stage, text in weft.compile(program).stages.items():
        assert bad_index(program, {stage: text}) == wanted, stage


@pytest.mark.parametrize(
    ("stage", "old", "new"), [("tiny", '"exp"', '"neg"'), ("frontend", "exp(", "neg(")]
)
def test_lines_survive_an_edit_of_something_else(stage: str, old: str, new: str) -> None:
    program = taken()
    text = weft.compile(program).stages[stage]
    assert old in text
    assert bad_index(program, {stage: text.replace(old, new)}) == bad_index(program, {})


def test_a_line_does_not_stick_to_what_was_written_anew() -> None:
    program = taken()
    text = weft.compile(program).stages["frontend"]
    edited = text.replace("exp(%2)", "neg(%2)")
    made = weft.compile(program, overrides={"frontend": edited}).clusters[()].compilation
    lines = made["frontend"].locations
    assert ("function @taken", 2) in lines
    assert ("function @taken", 3) not in lines


def test_a_refused_plan_names_the_product() -> None:
    b = Builder("product")
    program = b.build(b.param("f32", [32, 32]) @ b.param("f32", [32, 32]))
    text = weft.compile(program).stages["plan"]
    edited = text.replace('"arch": "cpu"', '"arch": "sm80"')
    place = rf"kernel matmul0, %2 = dot_general\(%0, %1\) in function @product {HERE}: arch"
    with pytest.raises(SpecViolation, match=place):
        weft.compile(program, overrides={"plan": edited})


def test_what_a_gpu_leaves_to_the_host_is_named() -> None:
    b = Builder("factors")
    program = b.build(b.cholesky(b.param("f32", [4, 4])))
    report = weft.compile(program, "sm90").report()
    why = "a factorisation, which the host computes"
    assert f"opaque0 runs on the host: cholesky {{upper=false}}: {why}" in report
