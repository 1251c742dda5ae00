"""`weft compare` on the command line, and the inputs it makes up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.command_line import weft_command
from tests.unit.testing.absent import WHY
from tests.unit.testing.faulty import FaultyBackend
from weft.cli import arrays
from weft.driver import backends
from weft.foundation.dtypes import ALL
from weft.foundation.errors import Unimplemented, UserError
from weft.ptir import Builder, Program, save
from weft.testing import random_inputs

Weft = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Weft:
    """Runs the command line in this process, which knows a faulty backend."""
    backend = FaultyBackend("tanh")
    monkeypatch.setitem(backends.REGISTRY.registered, backend.name, backend)

    def call(*args: object) -> tuple[int, str, str]:
        capfd.readouterr()
        return weft_command(*args), *capfd.readouterr()

    return call


def model() -> Program:
    b = Builder("model")
    x = b.param("f32", ["?B", 3])
    indices = b.param("si32", [2])
    return b.build(b.emit("take", b.exp(b.tanh(x)), indices), b.emit("neg", x))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.txt"
    save(model(), path)
    return path


def test_agreement(run: Weft, file: Path) -> None:
    assert run("compare", file, "--backend", "reference") == (
        0, "reference agrees with reference on 2 results\n", ""
    )  # fmt: skip


def test_a_difference_names_the_instruction(run: Weft, file: Path) -> None:
    code, out, err = run("compare", file, "--backend", "faulty-tanh")
    assert code == 1
    assert not err
    lines = out.splitlines()
    assert lines[0] == "faulty-tanh differs from reference"
    assert lines[2].startswith("first at %2 = tanh(%0) in function @model")


def test_inputs_from_a_file(run: Weft, file: Path, tmp_path: Path) -> None:
    given = tmp_path / "in.npz"
    arrays.write_arrays(given, [np.zeros((5, 3), np.float32), np.asarray([4, 0], np.int32)])
    code, _, _ = run("compare", file, "--backend", "faulty-tanh", "--inputs", given)
    assert code == 1
    assert run("compare", file, "--backend", "reference", "--inputs", given)[0] == 0


def test_reduce_prints_a_script(run: Weft, file: Path) -> None:
    code, out, err = run("compare", file, "--backend", "faulty-tanh", "--reduce", "--seed", 3)
    assert code == 1
    assert err.startswith("faulty-tanh differs from reference\n")
    assert err.endswith("reducing ...\n")
    script = out
    assert script.startswith('"""Does')
    assert "= tanh(" in script
    assert "= exp(" not in script
    assert "seed=3" in script
    with pytest.raises(SystemExit) as done:
        exec(compile(script, "script.py", "exec"), {"__name__": "__main__"})
    assert done.value.code


class NeedsTanh(FaultyBackend):
    """Differs in tanh, and refuses every program without one."""

    def compile(self, program: Program) -> Any:
        if not any(i.op.mnemonic == "tanh" for i in program.main.body):
            raise Unimplemented("program", "it has no tanh")
        return super().compile(program)


def test_a_refusal_is_not_reduced(
    run: Weft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = NeedsTanh("tanh")
    monkeypatch.setitem(backends.REGISTRY.registered, backend.name, backend)
    b = Builder()
    save(b.build(b.exp(b.param("f32", [2]))), tmp_path / "exp.txt")
    code, out, err = run("compare", tmp_path / "exp.txt", "--backend", backend.name, "--reduce")
    assert code == 1
    assert out == ""
    assert err.startswith(f"{backend.name} refuses the program: Unimplemented program: it has no t")
    assert err.count("it has no tanh") == 1
    assert err.endswith(
        "\nthere is nothing to reduce: the backend gives no results that could differ\n"
    )


def test_a_difference_is_not_reduced_to_a_refusal(
    run: Weft, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = NeedsTanh("tanh")
    monkeypatch.setitem(backends.REGISTRY.registered, backend.name, backend)
    code, out, _ = run("compare", file, "--backend", backend.name, "--reduce")
    assert code == 1
    assert "= tanh(" in out[out.index('"""Does') :]


def test_mistakes_are_sentences(run: Weft, file: Path, tmp_path: Path) -> None:
    code, out, err = run("compare", file, "--backend", "nope")
    assert (code, out) == (1, "")
    assert err.startswith("error: there is no backend 'nope'; the backends are reference")
    code, _, err = run("compare", tmp_path / "missing.txt", "--backend", "reference")
    assert code == 1
    assert "cannot read" in err
    assert run("compare", file)[0] == 2


# -- inputs made up from the signature -----------------------------------------------------------


def test_a_backend_whose_machine_is_not_there_differs_in_nothing(run: Weft, file: Path) -> None:
    found = run("compare", file, "--backend", "tests.unit.testing.absent:BACKEND")
    assert found == (1, "", f"error: {WHY}\n")


def test_inputs_are_made_up_from_the_signature() -> None:
    b = Builder()
    for dtype in ALL:
        b.param(dtype, [2, "?N"])
    program = b.build()
    made = random_inputs(program, seed=1)
    assert [a.dtype for a in made] == [d.numpy for d in ALL]
    assert {a.shape for a in made} == {(2, 4)}
    for dtype, array in zip(ALL, made, strict=True):
        if not (dtype.is_float or dtype.is_complex):
            assert set(np.unique(array.astype(np.int64))) <= {0, 1}
        else:
            wide: Any = array.astype(np.complex128)
            assert np.abs(wide.real).max() <= 2
            assert len(np.unique(wide)) > 2


def test_made_up_inputs_depend_on_the_seed_alone() -> None:
    b = Builder()
    program = b.build(b.exp(b.param("f32", [8])))
    first, again, other = (random_inputs(program, seed)[0] for seed in (1, 1, 2))
    assert first.tobytes() == again.tobytes() != other.tobytes()
    assert weft.run(program, [first])[0].shape == (8,)


def test_the_size_of_dynamic_dims_is_given() -> None:
    b = Builder()
    b.param("f32", ["?N", 2])
    program = b.build()
    assert random_inputs(program, size=7)[0].shape == (7, 2)
    assert random_inputs(program, size=0)[0].shape == (0, 2)
    with pytest.raises(UserError, match="negative"):
        random_inputs(program, size=-1)
