"""Contractions on a GPU: the kernels that the interpreter ran, and larger ones, give the same
numbers; nothing is written outside the result; two runs agree bit by bit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft
from benchmarks.gemm_kernels import Contraction, build, load_plan, references, region_kernel
from tests.support.device import GUARD, device, run
from tests.support.example_inputs import inputs_for
from tests.support.gpu_contractions import (
    SM80_CASES,
    SM90_CASES,
    TWO_UNITS,
    bound,
    expected,
    ragged,
    random_tensors,
    relative_error,
    sm80_kernel,
    split,
)
from weft.codegen.gpu.assemble import assemble
from weft.codegen.gpu.products import sm90
from weft.ptir import Builder
from weft.runtime.artifact import KernelCode


def check(shape: Contraction, code: KernelCode, names: tuple[str, ...], seed: int = 0) -> None:
    tensors = random_tensors(shape, seed)
    exact = expected(shape, tensors)
    first, second = (run(code, names, tensors) for _ in range(2))
    assert (first.view(np.uint8) == second.view(np.uint8)).all()
    assert np.isnan(first[:GUARD]).all()
    assert np.isnan(first[-GUARD:]).all()
    inside = first[GUARD:-GUARD].reshape(shape.y_shape)
    assert relative_error(inside, exact) < bound(shape)


@pytest.mark.parametrize("case", SM90_CASES)
def test_kernels_of_the_interpreter(case: str) -> None:
    device()
    shape, plan = SM90_CASES[case]
    plan = replace(plan, operand_layouts=shape.layouts)
    kernel = sm90.build(region_kernel(shape), references(shape), plan, TWO_UNITS, "gemm")
    code, _ = assemble(kernel, "sm_90a")
    check(shape, code, kernel.buffers)


@pytest.mark.parametrize("case", SM80_CASES)
def test_kernels_of_the_older_template(case: str) -> None:
    device()
    shape, plan = SM80_CASES[case]
    kernel = sm80_kernel(shape, plan)
    code, _ = assemble(kernel, "sm_90")
    check(shape, code, kernel.buffers)


@pytest.mark.parametrize("seed", range(24))
def test_ragged_shapes(seed: int) -> None:
    device()
    shape, plan = ragged(seed)
    built = build(shape, plan)
    check(shape, built.code, built.buffers, seed)


@pytest.mark.parametrize("plan", ["coop_128x256_deferred", "pingpong_128x128"])
@pytest.mark.parametrize("parts", [2, 3, 4, 8])
def test_sums_in_parts(parts: int, plan: str) -> None:
    """Both forms add up in the same order, and every launch leaves the counters at zero."""
    device()
    shape = Contraction(1000, 1032, 2056, epilogue=("bias", "gelu"))
    tensors, results = random_tensors(shape, parts), []
    for form in ("serial", "parallel"):
        built = build(shape, split(load_plan(plan), parts, form))
        check(shape, built.code, built.buffers, parts)
        results.append(run(built.code, built.buffers, tensors, launches=3).view(np.uint16))
    assert (results[0] == results[1]).all()


@pytest.mark.parametrize(
    "changes", [{"split_k": 4}, {"algo_choice": {"matmul": "splitk_parallel_4"}}], ids=str
)
def test_sums_in_parts_of_a_recorded_program(changes: dict[str, Any]) -> None:
    device()
    b = Builder()
    x, w = b.param("bf16", [200, 1032]), b.param("bf16", [1032, 1032])
    program = b.build(b.matmul(b.gelu(b.matmul(x, w)), w))
    plans = json.loads(weft.compile(program, "sm90").stages["plan"])
    for plan in plans["plans"]:
        plan.update(changes)
    executable = weft.compile(program, "sm90", overrides={"plan": json.dumps(plans)})
    inputs = inputs_for(program, 1)
    first, second, third = (executable.run(inputs)[0] for _ in range(3))
    want = weft.run(program, inputs, backend="reference")[0]
    assert relative_error(first, want.astype(np.float64)) < 1e-2
    for again in (second, third):
        assert (again.view(np.uint16) == first.view(np.uint16)).all()
