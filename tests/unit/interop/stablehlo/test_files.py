"""StableHLO files: the command line, bad text, and a machine without jaxlib."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weft.cli.main import app
from weft.foundation.errors import ResourceExceeded, SpecViolation, Unimplemented, UserError
from weft.interop.stablehlo import bindings, is_stablehlo, loads
from weft.ptir.ir import Program

MODULE = """module @m {
  func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.tanh %x : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
"""
REJECTED = [
    ("func.func @main() {\n %0 = stablehlo.foo : tensor<f32>\n return }", SpecViolation,
     "MalformedText at line 2, column 7: custom op 'stablehlo.foo' is unknown"),
    ("module { }", UserError, "the module has no function @main"),
    (MODULE.replace("tanh %x", "cbrt %x").replace("stablehlo.cbrt", "chlo.lgamma").replace(
        ": tensor<2xf32>\n    ret", ": tensor<2xf32> -> tensor<2xf32>\n    ret"),
     Unimplemented, "Unimplemented stablehlo.lgamma: it cannot be read yet; line 3"),
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
