"""Whole programs on a GPU against the reference: the three examples in every float dtype, by the
SM90 and by the SM80 templates, at their own sizes and at larger and odd ones; state and parameters;
and runs that give the same bits again."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from examples.make_programs import attention, mlp
from tests.support import padded_programs
from tests.support.example_inputs import inputs_for
from tests.support.gpu_programs import LARGE, MAKERS, ODD, TARGETS
from tests.support.gpu_random import KINDS, numbers, with_epilogue
from weft.driver.compile import compile_program
from weft.driver.cuda import CudaBackend
from weft.foundation.dtypes import BY_NAME
from weft.foundation.errors import SpecViolation, Unimplemented
from weft.ptir import Builder, Program
from weft.runtime.cuda.driver import compute_capability
from weft.testing.compare import compare
from weft.testing.random_programs import random_program

Array = NDArray[Any]
DTYPES = ("f32", "bf16", "f16")

pytestmark = pytest.mark.skipif(
    compute_capability() != (9, 0), reason="these programs are for an SM90 GPU"
)


@cache
def backend(target: str) -> CudaBackend:
    return CudaBackend(target)


def agree(program: Program, target: str, seed: int) -> None:
    report = compare(program, inputs_for(program, seed), backend(target))
    assert report.agrees, str(report)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MAKERS)
def test_examples_agree(name: str, dtype: str, target: str) -> None:
    for seed in range(3):
        agree(MAKERS[name](dtype=dtype), target, seed)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", LARGE)
def test_large_programs_agree(name: str, dtype: str, target: str) -> None:
    agree(LARGE[name](dtype), target, 1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", ODD)
def test_odd_sizes_agree(name: str, dtype: str, target: str) -> None:
    agree(ODD[name](dtype), target, 2)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", [*MAKERS, "large attention"])
def test_runs_give_the_same_bits(name: str, dtype: str, target: str) -> None:
    program = MAKERS[name](dtype=dtype) if name in MAKERS else LARGE["attention"](dtype)
    executable = compile_program(program, target)
    inputs = inputs_for(program, 5)
    other = inputs_for(program, 6)
    first = executable.run(inputs)
    executable.run(other)
    for _ in range(3):
        again = executable.run(inputs)
        assert all(_bits(a) == _bits(b) for a, b in zip(first, again, strict=True))


def _bits(array: Array) -> bytes:
    return array.tobytes()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_epilogues_of_other_dtypes_agree(name: str, whole: bool, target: str) -> None:
    program = with_epilogue(name, whole=whole)
    x, w = inputs_for(program, 1)[:2]
    other = numbers(BY_NAME[name], (24, 40) if whole else (40,), 3)
    report = compare(program, [x, w, other], backend(target))
    assert report.agrees, str(report)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MAKERS)
def test_a_dialect_text_that_is_fed_back_runs_the_same(name: str, target: str) -> None:
    program = MAKERS[name](dtype="bf16")
    inputs = inputs_for(program, 3)
    plain = compile_program(program, target)
    again = compile_program(program, target, overrides={"gpu": plain.stages["gpu"]})
    pairs = zip(plain.run(inputs), again.run(inputs), strict=True)
    assert all(_bits(a) == _bits(b) for a, b in pairs)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_cache_is_updated_in_place(dtype: str, target: str) -> None:
    """Pieces of a sequence, one after the other, through an executable that keeps its caches."""
    program = attention(2, 4, 16, 32, dtype=dtype)
    executable = compile_program(program, target, state=[3, 4])
    assert any("0 bytes copied" in line for line in executable.report())
    caches = inputs_for(program, 0)[3:5]
    for held, start in zip(executable.state, caches, strict=True):
        held[...] = start
    for step in range(4):
        q, k, v, _, _, position = inputs_for(program, step)
        position = np.asarray(4 * step, position.dtype)
        want = weft.run(program, [q, k, v, *caches, position], backend="reference")
        got = executable.run([q, k, v, position])
        for mine, exact in zip(got, want, strict=True):
            close = np.allclose(mine.astype(np.float32), exact.astype(np.float32), 2e-2, 2e-2)
            assert close, f"step {step}"
        caches = [np.array(cache) for cache in want[1:]]
        assert all(_bits(a) == _bits(b) for a, b in zip(executable.state, caches, strict=True))


@pytest.mark.parametrize("target", TARGETS)
def test_parameters_are_bound_once(target: str) -> None:
    program = mlp(dtype="bf16")
    inputs = inputs_for(program, 1)
    executable = compile_program(program, target, params=[1, 2, 3, 4])
    bound = executable.bind(inputs[1:])
    first = bound(inputs[0])[0]
    assert _bits(first) == _bits(executable.run(inputs)[0])
    for seed in range(3):
        x = inputs_for(program, seed)[0]
        assert _bits(bound(x)[0]) == _bits(executable.run([x, *inputs[1:]])[0])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", padded_programs.GATHERS)
def test_gathers_of_what_is_padded_or_joined_agree(name: str, dtype: str, target: str) -> None:
    inputs = padded_programs.gather_inputs(dtype)
    report = compare(padded_programs.gather(name, dtype), inputs, backend(target))
    assert report.agrees, str(report)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", padded_programs.NOISE)
def test_padded_noise_agrees(name: str, target: str) -> None:
    program = padded_programs.padded_noise(name, "f32")
    report = compare(program, [padded_programs.STATE], backend(target))
    assert report.agrees, str(report)


def test_integer_division_by_zero_is_reported() -> None:
    b = Builder()
    x, y = b.param("si32", [100]), b.param("si32", [100])
    executable = compile_program(b.build(x / y), "sm90")
    ones = np.ones(100, np.int32)
    assert (executable.run([7 * ones, 2 * ones])[0] == 3).all()
    with pytest.raises(SpecViolation, match="IntegerDivideByZero"):
        executable.run([ones, np.arange(100, dtype=np.int32)])
    assert (executable.run([7 * ones, 2 * ones])[0] == 3).all()


def test_steps_are_timed() -> None:
    program = attention(dtype="bf16")
    steps = compile_program(program, "sm90").profile(inputs_for(program))
    assert len([label for label, _ in steps if label.startswith("attention")]) == 1
    assert all(0 <= seconds < 1 for _, seconds in steps)
    laps = compile_program(program, "sm90").timeline(inputs_for(program))
    assert {lap.lane for lap in laps} == {"GPU stream", "launches"}
    busy = [lap for lap in laps if lap.lane == "GPU stream"]
    ends = [lap.start + lap.seconds for lap in busy]
    assert all(end <= lap.start + 1e-6 for end, lap in zip(ends, busy[1:], strict=False))
    launch = next(lap for lap in laps if lap.lane == "launches")
    # The stream begins after the host has, and not long after it has handed the graph over.
    assert launch.start < busy[0].start < launch.start + launch.seconds + 1e-3


def test_times_have_no_pauses_of_the_host_in_them() -> None:
    b = Builder()
    x = b.param("f32", [64, 64])
    y = x
    for _ in range(200):
        y = b.matmul(y, x)
    executable, array = compile_program(b.build(y), "sm90"), np.eye(64, dtype=np.float32)
    taken = [seconds for _, seconds in executable.profile([array])]
    assert len(taken) >= 200
    assert sorted(taken)[len(taken) // 2] < 2e-5


@pytest.mark.parametrize("target", TARGETS)
def test_random_programs_agree(target: str) -> None:
    carried_out = 0
    for seed in range(120):
        case = random_program(seed, 6, control_flow=False, dtypes=CudaBackend.dtypes)
        try:
            weft.run(case.program, case.inputs, backend=backend(target), seed=1)
        except Unimplemented:
            continue
        carried_out += 1
        report = compare(case.program, case.inputs, backend(target), seed=1)
        assert report.agrees, f"seed {seed}: {report}"
    assert carried_out >= 15
