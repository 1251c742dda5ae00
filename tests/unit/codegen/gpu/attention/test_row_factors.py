"""Attention whose weights are not powers over their sum: one kernel, with a factor of each row
behind its softmax."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.written_attention import (
    FACTORS,
    sinks_trained,
    with_factors,
    with_sinks,
    with_sinks_and_sums,
)
from weft.plan.ir import AttentionPlan
from weft.ptir import Program
from weft.testing.compare import compare


def agree(program: Program, target: str, kinds: list[str]) -> None:
    made = InterpretedGpu(target).compile(program).compilation
    kernels = [k for k in made["region"].kernels if k.pattern.value in ("attention", "stream")]
    assert [kernel.pattern.value for kernel in kernels] == kinds
    assert all(isinstance(made["plan"].of(kernel.name), AttentionPlan) for kernel in kernels)
    report = compare(program, inputs_for(program, 3), InterpretedGpu(target))
    assert report.agrees, str(report)


@pytest.mark.parametrize("target", ["sm90", "sm80"])
@pytest.mark.parametrize("name", FACTORS)
def test_other_weights_are_one_kernel_and_agree(name: str, target: str) -> None:
    agree(with_factors(FACTORS[name]), target, ["attention"])


@pytest.mark.parametrize("target", ["sm90", "sm80"])
@pytest.mark.parametrize("write", [with_sinks, with_sinks_and_sums])
def test_so_are_those_of_a_single_query(write: Any, target: str) -> None:
    agree(with_factors(write, queries=1, keys=200), target, ["attention"])


@pytest.mark.parametrize("target", ["sm90", "sm80"])
def test_sinks_are_trained(target: str) -> None:
    agree(sinks_trained(), target, ["attention", "stream", "stream"])
