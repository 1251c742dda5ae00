"""Plans written by hand in the plan language, for some kernels of a program."""

from __future__ import annotations

import json

import numpy as np
import pytest

import weft
from examples.make_programs import mlp, mlp_bf16
from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from weft.foundation.errors import SpecViolation
from weft.plan.dsl import print_plan
from weft.plan.ir import MmaPlan
from weft.plan.text import loads

SMALL = "kernel matmul1; split m 2; split n 8; split k 32; warp_tile 2x8; vectorize n.i.i 4"


def test_a_plan_by_hand_changes_its_kernel_alone() -> None:
    program = mlp(batch=8, width=16, hidden=32, out=16)
    chosen = weft.compile(program)
    made = weft.compile(program, overrides={"plan": f"# by hand\n{SMALL};\n"})
    first, second = json.loads(made.stages["plan"])["plans"]
    assert first == json.loads(chosen.stages["plan"])["plans"][0]
    assert (second["tile"], second["warp_tile"]) == ([2, 8, 32], "2x8")
    assert made.stages["cpu"] != chosen.stages["cpu"]
    inputs = inputs_for(program)
    np.testing.assert_allclose(made(*inputs)[0], weft.run(program, inputs)[0], atol=1e-4)


@pytest.mark.parametrize("target", one_in(2, ["cpu", "sm80", "sm90"]))
def test_plans_as_statements_are_the_plans_that_were_chosen(target: str) -> None:
    program = mlp_bf16() if target != "cpu" else mlp()
    stages = weft.compile(program, target).stages
    plans = loads(stages["plan"]).plans.values()
    text = "".join(print_plan(plan) for plan in plans if isinstance(plan, MmaPlan))
    assert text.count("kernel ") == len(plans) == 2
    assert weft.compile(program, target, overrides={"plan": text}).stages == stages


def test_a_tile_by_hand_changes_the_cuda() -> None:
    text = "kernel matmul0; split m 64; split n 32; split k 64; warp_tile 64x32"
    chosen = weft.compile(mlp_bf16(), "sm80")
    made = weft.compile(mlp_bf16(), "sm80", overrides={"plan": text})
    assert made.stages["cu"] != chosen.stages["cu"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("split m 4; kernel matmul0", "PlanKernel at stage plan: 'split m 4' is for no kernel"),
        ("kernel", "'kernel' is not written: kernel NAME"),
        ("kernel nothing; split m 4", "no kernel nothing; those with plans are matmul0, matmul1"),
        (f"{SMALL}; {SMALL}", "the structure of kernel matmul1 is planned twice"),
        ("kernel matmul0; split m 4", "kernel matmul0, statement 2, .*: no statement splits n"),
        ("splitt m 4", r"no statement: 'splitt' is not a statement \(write statements, such as"),
        ("# nothing here", "the plan file begins with no statement: it is empty"),
        ("{", "MalformedJson at stage plan: the plan file is not JSON"),
        (
            "kernel matmul0;\n\n  tile 4",
            "kernel matmul0, statement 1, line 3, column 3, .*: 'tile' is not a statement",
        ),
        (f"{SMALL}; ;", "kernel matmul1, statement .*: it is empty"),
        (f"{SMALL}; arch sm80", "kernel matmul1, .*: arch=sm80 has no effect on the CPU"),
    ],
)
def test_mistakes_are_sentences(text: str, message: str) -> None:
    with pytest.raises(SpecViolation, match=message):
        weft.compile(mlp(batch=8, width=16, hidden=32, out=16), overrides={"plan": text})
