"""Attention as people write it, with rounded scores, is the kernels of `F.attention`, forward and
back, and has the values of its program."""

from __future__ import annotations

from typing import Any

import pytest

import weft
from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.spelled_attention import SPELLED, WIDE_RESULTS, numbers, program_of
from weft import functional as F
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.ptir import Program
from weft.target.known import target_named
from weft.testing.compare import compare


def forms(program: Program, target: str) -> list[str]:
    """The patterns of the kernels that are attentions or their gradients."""
    made = Compilation(program, target_named(target), make_signature(program))
    kernels = run_pipeline(made, "region")["region"].kernels
    found = [kernel.pattern.value for kernel in kernels]
    return [name for name in found if name in ("attention", "stream", "matmul")]


def test_every_spelling_is_one_kernel_forward_and_two_back() -> None:
    for number, (name, write) in enumerate(SPELLED.items()):
        program = program_of(write, ("bfloat16", "float16")[number % 2])
        found = forms(program, ("sm90", "sm80")[number // 2 % 2])
        assert found == ["attention", "stream", "stream"], name


@pytest.mark.parametrize(
    ("name", "target"),
    one_in(
        3,
        [
            ("a mask added", "sm90"),
            ("wide throughout", "sm80"),
            ("dropout", "sm90"),
            ("slopes", "sm80"),
        ],
        unpack=True,
    ),
)
def test_values_are_those_of_the_program(name: str, target: str) -> None:
    program = program_of(SPELLED[name])
    code = InterpretedGpu(target).compile(program).compilation["gpu"]
    streams = [launch for kernel, launch in code.launches.items() if kernel.startswith("stream")]
    least = {"sm90": 256, "sm80": 64}[target]
    assert all(code.kernels[launch.symbol].threads >= least for launch in streams)
    report = compare(program, inputs_for(program, 3), InterpretedGpu(target))
    assert report.agrees, str(report)


@pytest.mark.parametrize("target", ["sm90", "sm80"])
@pytest.mark.parametrize("queries", [24, 1])
def test_rows_that_see_nothing_are_no_numbers(queries: int, target: str) -> None:
    """As in the program: only `F.attention` makes them 0, where it says so."""

    def masked(q: Any, k: Any, v: Any, seen: Any) -> Any:
        scores = weft.where(seen[:, None, None, :] > 0, q @ weft.swapaxes(k, -1, -2), -weft.inf)
        return F.softmax(scores.astype("f32"), -1).astype(q.dtype) @ v

    shapes = [(2, 2, queries, 32), (2, 2, 160, 32), (2, 2, 160, 32)]
    given = [weft.zeros(shape, dtype="bf16") for shape in shapes]
    program = weft.jit(masked).program(*given, weft.zeros((2, 160), dtype="int32"))
    assert forms(program, target) == ["attention"]
    inputs = inputs_for(program, 3)
    inputs[3][0], inputs[3][1] = 0, 1
    report = compare(program, inputs, InterpretedGpu(target))
    assert report.agrees, str(report)
    assert compare(program, inputs, "cpu").agrees


def test_wide_weights_are_not_rounded_where_a_wide_result_would_show_it() -> None:
    for name, (write, joined) in WIDE_RESULTS.items():
        given = [weft.tensor(x).astype(weft.bfloat16) for x in numbers()[:3]]
        for target in ("sm90", "sm80"):
            found = forms(weft.jit(write).program(*given), target)
            assert ("attention" in found) == joined, (name, target)
