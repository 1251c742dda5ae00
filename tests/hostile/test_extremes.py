"""A systematic table: every attribute of every op at its extremes, every op on strange operands.

Whatever a file says, it is rejected, refused, or works: there are too many to say which.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import weft
from tests.hostile.bases import bases, instruction
from tests.hostile.judge import verdict
from tests.hostile.worker import judged
from tests.support.cases import each
from weft.foundation.dtypes import F32
from weft.foundation.errors import SpecViolation
from weft.ptir import Builder
from weft.ptir.op import all_ops
from weft.ptir.ops.callback import Callback
from weft.ptir.types import TensorType

NAMES = [cls.name for cls in all_ops()]
CHUNK = 25
SHARES = 12
"""Of the ops: one of them is tried among the fast tests."""
TAKE_NONE = {"callback", "custom_call", "while"}
TAKE_MANY = {cls.name for cls in all_ops() if "*" in "".join(cls.operands)}


def test_every_op_has_a_program() -> None:
    assert sorted(bases()) == sorted(NAMES)
    outcomes = judged([f"base {name}" for name in NAMES])
    wrong = {o.name: (o.verdict, o.crash) for o in outcomes if o.verdict != "ok"}
    verdicts = {name: verdict for name, (verdict, _) in wrong.items()}
    # A file cannot bring a function along.
    lacking = {"base callback": "UnknownCustomCall", "base custom_call": "Unimplemented"}
    assert verdicts == lacking


@each("name", NAMES)
@each("count", [0, 20])
def test_every_op_counts_its_operands(name: str, count: int) -> None:
    base = bases()[name]
    inst = instruction(base)
    right = name in TAKE_MANY if count else name in TAKE_NONE or not inst["operands"]
    literal = {"spec": {"dtype": "F32", "shape": {"dims": []}}, "bytes": [0, 0, 128, 63]}
    inst["operands"] = ([*inst["operands"], {"Literal": literal}] * 20)[:count]
    assert (verdict(json.dumps(base)) == "ArityMismatch") != right


@pytest.mark.parametrize(
    "share", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, SHARES))]
)
def test_no_extreme_of_an_attribute_crashes_an_op(share: int) -> None:
    check("attributes", NAMES[share::SHARES], least=2)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, len(NAMES), CHUNK))
def test_no_shape_or_dtype_of_the_operands_crashes_an_op(start: int) -> None:
    check("operands", NAMES[start : start + CHUNK], least=1)


def check(what: str, names: list[str], least: int) -> None:
    """Nothing crashes, and files of at least so many kinds of outcome were there for every op."""
    outcomes = judged([f"{what} {name}" for name in names])
    crashed = [f"{o.name}: {o.crash}" for o in outcomes if o.crash]
    assert not crashed, "\n\n".join(crashed[:5])
    for name in names:
        verdicts = {o.verdict for o in outcomes if o.name.startswith((f"{name} ", f"{name}."))}
        assert len(verdicts) >= least, f"{name}: {verdicts}"


def test_a_function_that_is_given_other_operands_is_told() -> None:
    """While the function of a program is known, a text of that program can call it with others."""
    made = Callback.of(list, "same", False, [TensorType(F32, ())])
    b = Builder()
    x = b.param("f32", [])
    given: dict[str, Any] = {
        "function": made.function,
        "effect": False,
        "results": list(made.results),
    }
    program = b.build(b.emit("callback", x, x, **given))
    with pytest.raises(SpecViolation, match="the function same gave 2 results, declared as f32"):
        weft.run(program, [np.float32(1)], backend="reference")
