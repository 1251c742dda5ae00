"""StableHLO files: the command line, bad text, and a machine without jaxlib."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import weft
from weft.cli.main import app
from weft.foundation.errors import ResourceExceeded, SpecViolation, Unimplemented, UserError
from weft.interop.stablehlo import bindings, is_stablehlo, load, loads
from weft.ptir.ir import Program

MODULE = """module @m {
  func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.tanh %x : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
"""
WITH_TOKEN = """"stablehlo.tanh"(%x) : (tensor<2xf32>) -> tensor<2xf32>
    %t = stablehlo.create_token : !stablehlo.token"""
REJECTED = [
    ("func.func @main() {\n %0 = stablehlo.foo : tensor<f32>\n return }", SpecViolation,
     "MalformedText at line 2, column 7: custom op 'stablehlo.foo' is unknown"),
    ("module { }", UserError, "the module has no function @main"),
    (MODULE.replace("stablehlo.tanh %x : tensor<2xf32>", WITH_TOKEN), Unimplemented,
     "Unimplemented !stablehlo.token: the type has no counterpart in PTIR; create_token, line 4"),
    ("module { func.func @main() { return } }" + "[" * 300, ResourceExceeded,
     "brackets nest more than 256 deep in the StableHLO text, at character 295"),
    (b"\xff\xfe", SpecViolation, "MalformedText: the file is not UTF-8 text: byte 0 is wrong"),
    ("func.func @main(%x: tensor<2xf6E2M3FN>) { return }", Unimplemented,
     "Unimplemented element type f6E2M3FN: PTIR does not have it; an argument"),
    ("func.func @main(%x: tensor<2xf32>) { func.call @main(%x) : (tensor<2xf32>) -> ()\nreturn }",
     SpecViolation, "RecursiveCall"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "kind", "message"), REJECTED)
def test_bad_text_is_told_in_a_sentence(text: str, kind: type[Exception], message: str) -> None:
    pytest.importorskip("jaxlib", reason="the extra weft[stablehlo] is not installed")
    with pytest.raises(kind) as caught:
        loads(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "yes"),
    [
        (MODULE, True),
        ("// a comment\n#loc = loc(unknown)\nmodule {}", True),
        ("func.func @f() { return }", True),
        ("ptir.v0.4\nentry @main\n", False),
        ('{"entry": "main"}', False),
    ],
)
def test_content_tells_it_apart(text: str, yes: bool) -> None:
    assert is_stablehlo(text) is yes
    assert is_stablehlo(text.encode()) is yes


def test_without_jaxlib_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Program:
        raise ImportError(name)

    bindings.bindings.cache_clear()
    monkeypatch.setattr(importlib, "import_module", absent)
    try:
        with pytest.raises(UserError) as caught:
            loads(MODULE)
    finally:
        bindings.bindings.cache_clear()
    assert str(caught.value) == (
        "StableHLO text is read and written through jaxlib, which is not installed; "
        "pip install weft[stablehlo]"
    )


def test_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("jaxlib", reason="the extra weft[stablehlo] is not installed")
    source, other, back = (tmp_path / name for name in ("m.mlir", "m.json", "n.mlir"))
    source.write_text(MODULE)
    run = CliRunner().invoke
    assert run(app, ["verify", str(source)]).output.endswith("m.mlir: valid, 1 instruction\n")
    assert "%1 = tanh(%0) : f32[2]" in run(app, ["show", str(source)]).output
    assert run(app, ["convert", str(source), str(other)]).exit_code == 0
    assert run(app, ["convert", str(other), str(back)]).exit_code == 0
    assert back.read_text() == MODULE.replace("module @m", "module").replace("%x", "%arg0")
    assert run(app, ["run", str(back)]).exit_code != 0


SOFTMAX = """\
func.func @main(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1]
    : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<2xf32>) -> tensor<2x3xf32>
  %2 = stablehlo.subtract %x, %1 : tensor<2x3xf32>
  %3 = stablehlo.exponential %2 : tensor<2x3xf32>
  %4 = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [1]
    : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
  %5 = stablehlo.broadcast_in_dim %4, dims = [0] : (tensor<2xf32>) -> tensor<2x3xf32>
  %6 = stablehlo.divide %3, %5 : tensor<2x3xf32>
  return %6 : tensor<2x3xf32>
}
"""


@pytest.mark.parametrize("named", [[], ["--to", "weft.interop.stablehlo:TARGET"]])
def test_formulas_are_raised_for_who_knows_coarse_ops(tmp_path: Path, named: list[str]) -> None:
    pytest.importorskip("jaxlib", reason="the extra weft[stablehlo] is not installed")
    source, plain, raised = (tmp_path / name for name in ("m.mlir", "plain.mlir", "raised.mlir"))
    source.write_text(SOFTMAX)
    for target, options in ((plain, named), (raised, [*named, "--raise"])):
        done = CliRunner().invoke(app, ["convert", str(source), str(target), *options])
        assert done.exit_code == 0, done.output
    assert "custom_call" not in plain.read_text()
    assert "custom_call @byteir.softmax(%arg0)" in raised.read_text()
    x = np.array([[0.0, 1.0, 2.0], [5.0, -1.0, 5.0]], np.float32)
    wanted = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    for path in (plain, raised):
        (found,) = weft.run(load(path), [x], backend="reference")
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


CORE = """\
%0 = Input () {name=x} : tensor<f32[2, 3]>
%1 = Input () {name=w} : tensor<f32[3, 4]>
%2 = MatMul (%0, %1) : tensor<f32[2, 4]>
%3 = Relu (%2) : tensor<f32[2, 4]>
outputs: %3
"""


def test_every_way_between_the_forms(tmp_path: Path) -> None:
    """From Core IR to StableHLO and on, by every way: the same bytes, and the same meaning."""
    pytest.importorskip("jaxlib", reason="the extra weft[stablehlo] is not installed")
    source, inputs = tmp_path / "m.core", tmp_path / "inputs.npz"
    source.write_text(CORE)
    np.savez(inputs, x=np.ones((2, 3), np.float32), w=np.eye(3, 4, dtype=np.float32))
    run = CliRunner().invoke
    ways = [("m.core", "a.mlir"), ("m.core", "m.json"), ("m.json", "b.mlir"), ("a.mlir", "c.mlir")]
    for start, end in [*ways, ("a.mlir", "a.bin"), ("a.bin", "d.mlir")]:
        assert run(app, ["convert", str(tmp_path / start), str(tmp_path / end)]).exit_code == 0
    texts = {(tmp_path / f"{name}.mlir").read_text() for name in "abcd"}
    assert len(texts) == 1
    for name in ("m.core", "a.mlir", "m.json", "a.bin"):
        path = str(tmp_path / name)
        assert run(app, ["verify", path]).exit_code == 0
        assert run(app, ["show", path]).exit_code == 0
        shown = run(app, ["run", path, "--inputs", str(inputs), "--backend", "reference"]).output
        assert "1, 1, 1, 0, 1, 1, ..." in shown
    refused = run(app, ["convert", str(tmp_path / "a.mlir"), str(tmp_path / "back.core")])
    assert "PTIR can express more than Core IR" in str(refused.exception)
