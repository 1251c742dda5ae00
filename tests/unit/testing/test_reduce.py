"""Failing programs become small, still fail, and are written as scripts that reproduce."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft
from tests.support.cases import each, one_in
from tests.unit.testing.faulty import FaultyBackend
from weft.driver import backends
from weft.foundation.dtypes import ALL, DType
from weft.foundation.errors import UserError
from weft.ptir import Builder, Program, dumps, verify
from weft.testing import (
    RandomCase,
    array_of,
    disagrees,
    random_program,
    reduce_program,
    reproducer,
)

SOURCE = str(Path(weft.__file__).parents[1])


def size(program: Program) -> int:
    return sum(len(body.body) for body in program.bodies)


def broken(seed: int) -> tuple[RandomCase, FaultyBackend]:
    """A program of about 60 instructions, and a backend that fails on it."""
    case = random_program(seed, 60)
    names = [i.op.mnemonic for body in case.program.bodies for i in body.body if not i.op.regions]
    for spelling in dict.fromkeys(names[::-1]):
        backend = FaultyBackend(spelling)
        if disagrees(case.program, case.inputs, backend):
            return case, backend
    raise AssertionError(f"no fault shows in the results of program {seed}")


@pytest.mark.parametrize("seed", one_in(6, range(12)))
def test_sixty_ops_become_a_few(seed: int) -> None:
    case, backend = broken(seed)
    backend.compiled = 0

    def fails(program: Program, inputs: Any) -> bool:
        return disagrees(program, inputs, backend)

    program, inputs = reduce_program(case.program, case.inputs, fails)
    verify(program)
    assert fails(program, inputs)
    assert size(case.program) >= 50
    assert size(program) <= 5
    assert sum(a.size for a in inputs) <= sum(a.size for a in case.inputs)
    assert backend.compiled < 300


def test_the_reduced_program_is_as_small_as_it_gets() -> None:
    b = Builder()
    x, y = b.param("f32", ["?B", 5]), b.param("si32", [7])
    total = b.reduce_sum(b.tanh(b.exp(x) * 0.125), [1])
    program = b.build(b.emit("neg", y), total, b.emit("add", y, y))
    inputs = [np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5), np.arange(7, dtype=np.int32)]
    backend = FaultyBackend("tanh")
    small, few = reduce_program(program, inputs, lambda p, v: disagrees(p, v, backend))
    assert [i.op.mnemonic for i in small.main.body] == ["tanh"]
    assert [a.shape for a in few] == [(1, 1)]
    assert few[0].tolist() == [[0.0]]


def test_a_fault_in_a_region_is_reached() -> None:
    b = Builder()
    xs, carry = b.param("f32", [3, 2]), b.param("f32", [2])

    def step(r: Any, state: Any, x: Any) -> Any:
        return [r.emit("add", state, r.tanh(x)), x]

    made = b.scan(step, [carry], [xs])
    program = b.build(b.exp(made[0]), made[1])
    inputs = [np.asarray([[1, 2], [3, 4], [5, 6]], np.float32) / 4, np.zeros(2, np.float32)]
    backend = FaultyBackend("tanh")
    small, _ = reduce_program(program, inputs, lambda p, v: disagrees(p, v, backend))
    assert [i.op.mnemonic for i in small.main.body] == ["tanh"]
    assert not small.regions


def test_control_flow_stays_where_it_is_the_fault() -> None:
    b = Builder()
    x, flag = b.param("f32", [3]), b.param("i1", [])
    made = b.cond(flag, lambda r, v: r.exp(v), lambda r, v: r.emit("neg", v), b.tanh(x))
    program = b.build(b.emit("neg", made))
    inputs = [np.asarray([0.5, 1, 2], np.float32), np.asarray(True)]

    def fails(candidate: Program, values: Any) -> bool:
        return any(i.op.mnemonic == "cond" for i in candidate.main.body)

    small, _ = reduce_program(program, inputs, fails)
    assert [i.op.mnemonic for i in small.main.body] == ["cond"]
    verify(small)


def test_random_numbers_stay_what_they_were() -> None:
    """Leaving out the first random op must not change the numbers of the second."""
    b = Builder()
    first = b.emit("rng_uniform", shape=[4], dtype="f32")
    second = b.emit("rng_uniform", shape=[4], dtype="f32")
    program = b.build(first, b.emit("neg", second))
    wanted = weft.run(program, seed=5)[1]

    def fails(candidate: Program, values: Any) -> bool:
        return any(np.array_equal(out, wanted) for out in weft.run(candidate, values, seed=5))

    small, few = reduce_program(program, [], fails, seed=5)
    assert fails(small, few)
    assert size(small) <= 1


def test_the_budget_is_kept() -> None:
    case = random_program(1, 60)
    asked = 0

    def fails(program: Program, inputs: Any) -> bool:
        nonlocal asked
        asked += 1
        return True

    reduce_program(case.program, case.inputs, fails, budget=20)
    assert asked <= 20


def test_errors_of_weft_count_as_no() -> None:
    case = random_program(2, 30)
    first = True

    def fails(program: Program, inputs: Any) -> bool:
        nonlocal first
        if first:
            first = False
            return True
        raise UserError("not this one")

    program, inputs = reduce_program(case.program, case.inputs, fails)
    assert program == case.program
    assert len(inputs) == len(case.inputs)


def test_a_program_that_does_not_fail_is_refused() -> None:
    case = random_program(0, 5)
    with pytest.raises(UserError, match="does not fail; there is nothing to reduce"):
        reduce_program(case.program, case.inputs, lambda p, v: False)


# -- scripts -------------------------------------------------------------------------------------


def run_script(text: str) -> tuple[int, str]:
    env = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(
        [sys.executable, "-c", text], env=env, capture_output=True, text=True, check=False
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def exit_code(text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Runs a script in this process, where the faulty backends are registered."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as done:
        exec(compile(text, "reproducer.py", "exec"), {"__name__": "__main__"})
    return int(done.value.code or 0), capsys.readouterr().out


def test_the_script_reproduces_the_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case, backend = broken(8)
    monkeypatch.setitem(backends.REGISTRY.registered, backend.name, backend)
    small, few = reduce_program(
        case.program, case.inputs, lambda p, v: disagrees(p, v, backend.name)
    )
    text = reproducer(small, few, backend.name)
    assert len(text.splitlines()) < 40
    code, shown = exit_code(text, capsys)
    assert code == 1
    assert f"{backend.name} differs from reference" in shown
    assert f"= {backend.spelling}(" in shown
    backend.spelling = "nothing"
    code, shown = exit_code(text, capsys)
    assert code == 0
    assert shown.startswith(f"{backend.name} agrees with reference on ")


def test_the_script_needs_weft_only() -> None:
    case = random_program(3, 12)
    code, shown = run_script(reproducer(case.program, case.inputs, seed=2))
    assert code == 0
    assert shown.startswith("cpu agrees with reference on")


def test_a_script_shows_short_arrays_as_numbers() -> None:
    b = Builder()
    x = b.param("bf16", [2])
    text = reproducer(b.build(b.exp(x)), [np.asarray([0.5, -2.0], ml_dtypes.bfloat16)], "mine")
    assert "    array_of('bf16', [2], [0.5, -2.0]),\n" in text
    assert "report = compare(program, inputs, 'mine', seed=0)" in text
    assert "  %1 = exp(%0) : bf16[2]\n" in text


def test_names_cannot_break_out_of_a_script() -> None:
    b = Builder("evil'''\nraise SystemExit(7)\n'''\\")
    x = b.param("f32", [])
    text = reproducer(b.build(b.exp(x)), [np.asarray(1.0, np.float32)])
    code, _ = run_script(text)
    assert code == 0


@each("dtype", ALL)
@each("shape", [(), (0, 2), (3,), (5, 20)])
def test_arrays_survive_the_script(dtype: DType, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2 if dtype.bits < 4 else 7, shape) - (3 if dtype.is_float else 0)
    array = np.asarray(values).astype(dtype.numpy)
    if dtype.is_float and array.size > 2:
        array.reshape(-1)[:2] = [np.nan, -0.0]
    if dtype.name in ("ui64", "si64") and array.size:
        array.reshape(-1)[0] = int(dtype.highest)
    text = reproducer(Builder().build(), [array])
    line = next(line for line in text.splitlines() if "array_of(" in line and "import" not in line)
    back = eval(line.strip().removesuffix(","), {"array_of": array_of})
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


def test_the_text_in_a_script_is_the_program() -> None:
    case = random_program(4, 10)
    assert str(dumps(case.program, "text")) in reproducer(case.program, case.inputs)
