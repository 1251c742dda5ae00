"""Models as programs, and on the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import weft
from tests.support import onnx_models as m
from tests.support.command_line import weft_command
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


def measuring() -> onnx.ModelProto:
    """A model that gives its shape, which is known where its open axes are."""
    nodes = [m.node("Shape", "x", "s"), m.node("Cast", "s", "y", to=m.FLOAT)]
    return m.model(m.graph(nodes, [m.value("x", ["n", "seq len"])], [m.value("y", None)]))


def test_sizes_close_dims_and_what_needs_them_says_so() -> None:
    model = load(measuring().SerializeToString())
    with pytest.raises(weft.SpecViolation, match=r"leaves open the axes 'n', 'seq len': give the"):
        to_program(model)
    with pytest.raises(weft.SpecViolation, match=r"leaves open the axis 'n': give the"):
        to_program(model, {"seq len": 3})
    program = to_program(model, {"n": 5, "seq len": 3})
    np.testing.assert_array_equal(weft.run(program, [np.zeros((5, 3), np.float32)])[0], [5, 3])


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ({"q": 4}, r"no open axis 'q': it leaves open the axes 'n', 'seq len'"),
        ({"n": -4}, r"the size of the axis 'n' is -4; it must be a whole number"),
        ({"n": 1.5}, r"the size of the axis 'n' is 1.5; it must be a whole number"),
        ({"n": True}, r"the size of the axis 'n' is True"),
        ([4], r"sizes are a dict of axes and their sizes, not a list"),
    ],
)
def test_sizes_that_are_none(sizes: Any, why: str) -> None:
    with pytest.raises(weft.UserError, match=why):
        to_program(load(measuring().SerializeToString()), sizes)


def test_sizes_on_the_command_line_reach_the_model(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    onnx.save(measuring(), str(tmp_path / "m.onnx"))
    model, made = tmp_path / "m.onnx", tmp_path / "m.json"
    for words in (("--sizes", "n=2,seq_len=5"), ("--sizes", "n=2", "--sizes", "seq_len=5")):
        assert weft_command("compile", model, *words) == 0
        assert weft_command("convert", model, made, *words) == 0
        assert [str(each) for each in weft.ptir.load(made).main.parameters] == ["f32[2, 5]"]
    for command in (("compile", model), ("convert", model, made)):
        capfd.readouterr()
        assert weft_command(*command) == 1
        told = " ".join(capfd.readouterr().err.split())
        assert "leaves open the axes 'n', 'seq len'" in told
        assert "--sizes n=4,seq_len=4" in told
        assert "to_program" not in told
        assert weft_command(*command, "--sizes", "q=2") == 1
        assert "no open axis 'q'" in capfd.readouterr().err


def test_weft_convert_fixes_the_dims_of_any_program(folder: Path) -> None:
    made, fixed = folder / "m.json", folder / "fixed.json"
    assert weft_command("convert", folder / "m.onnx", made) == 0
    assert weft_command("convert", made, fixed, "--sizes", "batch=7") == 0
    assert [str(each) for each in weft.ptir.load(fixed).main.parameters] == ["f32[7, 3]"]


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
