"""Core IR on the command line: modules wherever programs are taken, and the commands of their
own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.command_line import Result, Weft
from weft import core_ir

SQUARES = """\
%0 = Input () {name=x} : tensor<f32[2]>
%1 = Mul (%0, %0) : tensor<f32[2]>
%2 = Sum (%1) {axes=[], keepdims=false} : tensor<f32[]>
outputs: %2
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "squares.core"
    path.write_text(SQUARES)
    return path


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    path = tmp_path / "inputs.npz"
    np.savez(path, x=np.array([3, 4], np.float32))
    return path


def test_verify(run: Weft, module: Path) -> None:
    assert run("verify", module) == Result(0, f"{module}: valid, 3 instructions\n", "")
    module.write_text(SQUARES.replace("axes=[]", "axes=[7]"))
    result = run("verify", module)
    assert result.code == 1
    assert result.err == (
        "E3004 at line 3: %2 = Sum (%1): axis 7 of Sum is out of range; a tensor of rank 1 has "
        "[-1, 1) (did you mean 0, the last axis?)\n"
    )


def test_content_tells_what_a_file_is(run: Weft, tmp_path: Path) -> None:
    path = tmp_path / "squares.txt"
    path.write_text("# a comment\n" + SQUARES)
    assert run("verify", path).code == 0
    broken = tmp_path / "broken.core"
    broken.write_text("hello")
    assert run("verify", broken).err.startswith("error: E0101 at line 1, column 1: expected an op")


def test_show(run: Weft, module: Path) -> None:
    assert run("show", module).out == SQUARES
    assert '"ElementwiseBinary":"Mul"' in run("show", module, "--format", "json").out
    assert run("show", module, "--format", "display").out.startswith("program @main")


def test_convert(run: Weft, module: Path, tmp_path: Path) -> None:
    second = tmp_path / "second.core"
    second.write_text(
        '%0 = Input() {name: "x"} : Tensor<f32, [2]>\n'
        "%1 = BinOp(Mul, %0, %0) : Tensor<f32, [2]>\n"
        "%2 = Sum(%1, [], false) : Tensor<f32, []>\noutputs: %2\n"
    )
    first = tmp_path / "first.core"
    assert run("convert", second, first) == Result(0, "", "")
    assert first.read_text() == SQUARES
    as_json = tmp_path / "squares.json"
    assert run("convert", module, as_json).code == 0
    assert run("verify", as_json).code == 0
    assert run("convert", module, "--to", "ptir-text").out == run("show", as_json).out
    back = run("convert", as_json, tmp_path / "back.core")
    assert back == Result(
        1,
        "",
        f"error: cannot write {tmp_path / 'back.core'}: PTIR can express more than Core IR; "
        "write .txt, .json or .bin\n",
    )


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_run(run: Weft, module: Path, inputs: Path, backend: str) -> None:
    result = run("run", module, "--inputs", inputs, "--backend", backend)
    assert (result.code, result.err) == (0, "")
    assert "25" in result.out
    assert run("run", module).err == (
        "error: the module takes the inputs x: tensor<f32[2]>; give them with --inputs NPZ\n"
    )


def test_inputs_are_taken_by_name(run: Weft, tmp_path: Path) -> None:
    path, given = tmp_path / "m.core", tmp_path / "in.npz"
    core_ir.save(core_ir.from_expression("x: f32; y: f32; x - y"), path)
    np.savez(given, y=np.float32(1), x=np.float32(10))
    assert "9" in run("run", path, "--inputs", given).out


def test_what_goes_wrong_in_a_run_has_its_code(run: Weft, tmp_path: Path) -> None:
    path, given = tmp_path / "m.core", tmp_path / "in.npz"
    core_ir.save(core_ir.from_expression("x: f32[3]; i: i32[1]; x[i]"), path)
    np.savez(given, x=np.ones(3, np.float32), i=np.array([3], np.int32))
    assert run("run", path, "--inputs", given).err == (
        "error: E6001 at line 3: %2 = Gather (%0, %1): index 3 at [0] of the indices is outside "
        "[0, 3), the range of axis 0 of x (indices count from 0 and do not wrap)\n"
    )
    assert run("run", path, "--inputs", given, "--backend", "tpu").err.startswith(
        "error: E6002: there is no backend 'tpu'"
    )


def test_grad(run: Weft, module: Path, inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "grad.core"
    assert run("core", "grad", module, "--wrt", "x", "--out", out) == Result(0, "", "")
    assert core_ir.load(out) == core_ir.gradient(core_ir.loads(SQUARES), ["x"])
    assert "6, 8" in run("run", out, "--inputs", inputs).out
    assert run("core", "grad", module).out == out.read_text()
    wrong = run("core", "grad", module, "--wrt", "z")
    assert wrong.err == "error: there is no input 'z' to differentiate for; there are x\n"


def test_canonicalise(run: Weft, tmp_path: Path) -> None:
    path = tmp_path / "m.core"
    core_ir.save(core_ir.from_expression("1 + 2"), path)
    assert run("core", "canonicalise", path).out == (
        "%2 = ConstI64 () {value=3} : tensor<i64[]>\noutputs: %2\n"
    )


def test_expr(run: Weft) -> None:
    result = run("core", "expr", "sum(x * x, [])", "--var", "x: f32[2]")
    assert result == Result(0, SQUARES, "")
    assert run("core", "expr", "x: f32[2]; sum(x * x, [])").out == SQUARES
    assert run("core", "expr", "x: f32; x / x", "--extensions", "div").code == 0
    assert run("core", "expr", "x / ").err == (
        "error: E4001 at line 1, column 1: 'x' is not declared; declared is nothing (write "
        "'x: f32[2, 3];' in front, with its type)\n"
    )
    assert run("core", "expr", "1", "--var", "x").err == (
        "error: 'x' is not a variable such as x:f32[2,3]\n"
    )
