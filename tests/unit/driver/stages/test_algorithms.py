"""`algo_set` of an op: what the planner may choose from, and what a plan may not leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from weft.driver.pipeline import report, run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.algorithms import algorithm_of
from weft.driver.stages.bodies import parts_of
from weft.driver.stages.compilation import Compilation
from weft.driver.tuning.tune import classes_of
from weft.foundation.errors import SpecViolation
from weft.plan.ir import ONLINE, STREAMING, PlanSet
from weft.plan.winograd import ALGORITHM as WINOGRAD
from weft.ptir import Builder, Program
from weft.ptir.builder import BodyBuilder, Value
from weft.target.known import target_named

Array = NDArray[Any]
BOTH = [ONLINE, STREAMING]


def attended(b: BodyBuilder, x: Value, algorithms: list[str] | None) -> Value:
    return b.emit("weft.attention", x, x, x, causal=True, algo_set=algorithms)[0]


def attention(*sets: list[str] | None) -> Program:
    """An attention after the other, each with its set."""
    b = Builder("attention")
    x = b.param("f32", [1, 2, 40, 8])
    for algorithms in sets:
        x = attended(b, x, algorithms)
    return b.build(x)


def convolution(algorithms: list[str], window: int = 3) -> Program:
    b = Builder("conv")
    x = b.param("f32", [1, 8, 8, 4])
    w = b.param("f32", [window, window, 4, 8])
    return b.build(b.emit("weft.conv", x, w, layout="NHWC", pad=[1, 1, 1, 1], algo_set=algorithms))


def planned(program: Program, target: str = "cpu", **overrides: str) -> Compilation:
    signature = make_signature(program)
    return run_pipeline(Compilation(program, target_named(target), signature, overrides), "plan")


def algorithms_of(plans: PlanSet) -> list[str]:
    found = (algorithm_of(plans.of(kernel)) for kernel in plans.kernels)
    return [name for name in found if name is not None]


@pytest.mark.parametrize(
    ("sets", "chosen"),
    [
        ([None], [ONLINE]),
        ([BOTH], [ONLINE]),
        ([BOTH[::-1]], [ONLINE]),
        ([[ONLINE]], [ONLINE]),
        ([[STREAMING]], [STREAMING]),
        ([None, [STREAMING], None], [ONLINE, STREAMING, ONLINE]),
        ([[STREAMING], [ONLINE]], [STREAMING, ONLINE]),
    ],
)
def test_the_planner_chooses_within_the_set_of_each_op(
    sets: list[list[str] | None], chosen: list[str]
) -> None:
    assert algorithms_of(planned(attention(*sets))["plan"]) == chosen


@pytest.mark.parametrize("sets", [(None, [STREAMING]), ([STREAMING], None), (BOTH, [STREAMING])])
def test_ops_that_differ_in_their_sets_alone_are_one_within_both(sets: Any) -> None:
    b = Builder("twins")
    x = b.param("f32", [1, 2, 40, 8])
    twins = [attended(b, x, names) for names in sets]
    program = b.build(b.tanh(twins[0]), b.exp(twins[1]))
    assert algorithms_of(planned(program)["plan"]) == [STREAMING]


def test_the_set_changes_the_code_and_not_the_meaning() -> None:
    free, bound = (weft.compile(attention(names), "cpu") for names in (None, [STREAMING]))
    assert free.stages["plan"] != bound.stages["plan"]
    assert free.stages["cpu"] != bound.stages["cpu"]
    x = np.random.default_rng(1).standard_normal((1, 2, 40, 8)).astype(np.float32)
    np.testing.assert_allclose(bound.run([x])[0], free.run([x])[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("only", "other"), [(ONLINE, STREAMING), (STREAMING, ONLINE)])
def test_a_plan_may_not_leave_the_set(only: str, other: str) -> None:
    program = attention([only])
    text = planned(program).text("plan")
    written = text.replace(f'"algo": "{only}"', f'"algo": "{other}"')
    assert written != text
    with pytest.raises(SpecViolation) as raised:
        planned(program, plan=written)
    assert raised.value.code == "PlanAlgorithm"
    assert f"it is planned by {other}, but its op allows only {only}" in str(raised.value)
    assert planned(program, plan=text).text("plan") == text


def test_an_op_that_allows_all_can_be_planned_by_any() -> None:
    program = attention(BOTH)
    text = planned(program).text("plan").replace(f'"algo": "{ONLINE}"', f'"algo": "{STREAMING}"')
    assert STREAMING in algorithms_of(planned(program, plan=text)["plan"])


def test_bodies_of_loops_keep_their_sets() -> None:
    b = Builder("loop")
    x = b.param("f32", [1, 2, 40, 8])
    steps = b.param("f32", [3, 1])

    def body(step: BodyBuilder, carry: Value, _: Value) -> Value:
        return attended(step, carry, [STREAMING])

    program = b.build(b.scan(body, [x], [steps]))
    found = [algorithms_of(part["plan"]) for part in parts_of(planned(program))]
    assert [STREAMING] in found


def test_tuning_stays_within_the_set() -> None:
    compilation = Compilation(
        program := attention([STREAMING]), target_named("cpu"), make_signature(program)
    )
    (kernels,) = classes_of(compilation)
    assert {algorithm_of(plan) for plan in kernels.plans} == {STREAMING}


def test_what_a_target_has_not_built_is_told() -> None:
    compilation = planned(attention([ONLINE]), "sm90")
    assert set(algorithms_of(compilation["plan"])) == {STREAMING}
    told = [line for line in report(compilation) if "its op allows" in line]
    assert told
    assert all(f"its op allows only {ONLINE}, not built for it here" in line for line in told)


@pytest.mark.parametrize(
    ("names", "window", "chosen"),
    [
        (["implicit_gemm"], 3, "implicit_gemm"),
        (["implicit_gemm", WINOGRAD], 3, "implicit_gemm"),
        ([WINOGRAD], 3, WINOGRAD),
        ([WINOGRAD], 2, "implicit_gemm"),
    ],
)
def test_convolutions_have_sets_as_well(names: list[str], window: int, chosen: str) -> None:
    assert algorithms_of(planned(convolution(names, window))["plan"]) == [chosen]
