"""Models as programs, and on the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import weft
from tests import onnx_models as m
from tests.command_line import weft_command
from weft.foundation.lines import Place
from weft.interop.onnx import load, to_program

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(m.perceptron(), str(tmp_path / "m.onnx"))
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "x.npz", x=X)
    return tmp_path


def test_a_program_has_open_dims_and_its_weights(folder: Path) -> None:
    program = to_program(load(folder / "m.onnx"))
    assert program.entry == "test"
    assert [str(kind) for kind in program.main.parameters] == ["f32[?batch, 3]"]
    wanted = next(iter(ReferenceEvaluator(m.perceptron()).run(None, {"x": X})))
    np.testing.assert_allclose(weft.run(program, [X])[0], wanted, rtol=1e-5, atol=1e-6)


def test_instructions_have_the_names_of_their_nodes() -> None:
    """Profiles and errors show them as layers."""
    program = to_program(load(m.perceptron().SerializeToString()))
    layers = [place.layer for place in program.locations.values() if isinstance(place, Place)]
    assert list(dict.fromkeys(layers)) == ["first", "act", "second"]


def test_sizes_close_dims_and_what_needs_them_says_so() -> None:
    nodes = [m.node("Shape", "x", "s"), m.node("Cast", "s", "y", to=m.FLOAT)]
    body = m.graph(nodes, [m.value("x", ["n", 3])], [m.value("y", None)])
    model = load(m.model(body).SerializeToString())
    with pytest.raises(weft.SpecViolation, match="give the sizes of open axes"):
        to_program(model)
    program = to_program(model, {"n": 5})
    np.testing.assert_array_equal(weft.run(program, [np.zeros((5, 3), np.float32)])[0], [5, 3])


def test_weft_run_takes_inputs_by_name(folder: Path) -> None:
    out = folder / "out.npz"
    for words in (("--input", f"x={folder / 'x.npy'}"), ("--inputs", folder / "x.npz")):
        assert weft_command("run", folder / "m.onnx", *words, "--out", out) == 0
        wanted = next(iter(ReferenceEvaluator(m.perceptron()).run(None, {"x": X})))
        np.testing.assert_allclose(np.load(out)["arr_0"], wanted, rtol=1e-5, atol=1e-6)


def test_weft_convert_and_compile_take_models(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert weft_command("convert", folder / "m.onnx", folder / "m.json") == 0
    assert weft_command("run", folder / "m.json", "--input", f"0={folder / 'x.npy'}") == 0
    assert "f32[2, 2]" in capfd.readouterr().out
    assert weft_command("compile", folder / "m.onnx", "--sizes", "batch=2") == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "the input 'x' is not given; add --input x=NPY"),
        (("--input", "y=y.npy"), "cannot read y.npy"),
        (("--input", "x"), "--input takes NAME=FILE, such as x=x.npy, not 'x'"),
        (("--input", "y={npy}"), "there is no input 'y'; they are x"),
        (("--input", "x={npz}"), "holds several arrays; give them with --inputs"),
        (("--input", "x={npy}", "--inputs", "{npz}"), "not with both"),
    ],
)
def test_mistakes_on_the_command_line(
    folder: Path, words: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    names = {"npy": folder / "x.npy", "npz": folder / "x.npz"}
    assert weft_command("run", folder / "m.onnx", *[word.format(**names) for word in words]) == 1
    assert message in " ".join(capfd.readouterr().err.split())


def test_the_command_line_names_no_line_of_its_own_libraries(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "weft", "run", str(tmp_path / "none.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "none.onnx: No such file" in done.stderr
    assert ".py:" not in done.stderr
