"""`weft build`: bundles of program files, from the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.support.command_line import weft_command
from tests.unit.bundles import models
from weft import core_ir
from weft.bundles.model import model_of
from weft.interop import stablehlo
from weft.ptir import Builder
from weft.ptir.types import symbols_of

TEXT = """
func.func @main(%x: tensor<?x2xf32>) -> tensor<?x2xf32> {
  %y = stablehlo.add %x, %x : tensor<?x2xf32>
  return %y : tensor<?x2xf32>
}
"""

CORE = """
%0 = Input () {name=left} : tensor<f32[2]>
%1 = Input () {name=right} : tensor<f32[2]>
%2 = Add (%0, %1) : tensor<f32[2]>
outputs: %2
"""


@pytest.fixture
def scaled(tmp_path: Path) -> Path:
    """A program with an open size."""
    b = Builder("scaled")
    weft.ptir.save(b.build(b.param("f32", ["?B", 2]) * 2.0), tmp_path / "scaled.json")
    return tmp_path / "scaled.json"


def twice(made: Path, count: int) -> bool:
    """Whether a bundle doubles so many rows."""
    x = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
    return bool((weft.load_bundle(made)(x)[0] == 2 * x).all())


def test_ranges_and_names(scaled: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "scaled"
    assert (
        weft_command("build", scaled, "--out", out, "--dynamic", "B=1..8", "--name", "twice") == 0
    )
    assert "wrote " in capsys.readouterr().out
    bundle = weft.load_bundle(out)
    assert (bundle.name, bundle.sizes) == ("twice", {"B": (1, 8)})
    assert twice(out, 3)


def test_several_targets(scaled: Path, folder: Path) -> None:
    out, targets = folder / "targets", f"{models.PORTABLE},cpu"
    assert weft_command("build", scaled, "--out", out, "--sizes", "B=3", "--target", targets) == 0
    assert weft.load_bundle(out, target=models.PORTABLE).target == models.PORTABLE
    assert twice(out, 3)


def test_stablehlo(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("jaxlib")
    source, out = tmp_path / "model.mlir", folder / "stablehlo"
    source.write_text(TEXT)
    (symbol,) = symbols_of(stablehlo.loads(TEXT.encode()).main.parameters[0])
    name = symbol.name
    for option, value in (("--sizes", f"{name}=4"), ("--dynamic", f"{name}=1..4")):
        assert weft_command("build", source, "--out", out, option, value) == 0
        assert twice(out, 4)
    assert twice(out, 3)
    assert weft.load_bundle(out).name == "model"  # The file's: the program has none.


def test_onnx(folder: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    two = onnx.numpy_helper.from_array(np.eye(2, dtype=np.float32) * 2, "w")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x.1", "w"], ["y"]),
            helper.make_node("Identity", ["y"], ["y/0"]),
            helper.make_node("Identity", ["y"], ["y.0"]),
            helper.make_node("Identity", ["y"], ["0"]),
        ],
        "doubled",
        [helper.make_tensor_value_info("x.1", kind, ["N", 2])],
        [helper.make_tensor_value_info(n, kind, ["N", 2]) for n in ("y", "y/0", "y.0", "0")],
        [two],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    source, out = tmp_path / "model.onnx", folder / "onnx"
    onnx.save(made, source)
    for option, value in (("--sizes", "N=4"), ("--dynamic", "N=1..4")):
        assert weft_command("build", source, "--out", out, option, value) == 0
        assert twice(out, 4)
    assert twice(out, 3)
    bundle = weft.load_bundle(out)
    assert bundle.name == "doubled"
    assert [entry.name for entry in bundle.inputs] == ["x_1"]
    assert [entry.name for entry in bundle.results] == ["y", "y_0", "y_0_2", "out_0"]
    read = model_of(weft.onnx.load(source), [np.zeros((4, 2), np.float32)], None, (), None)
    assert read.input_names[:1] == ("x_1",)
    assert [name for _, name in read.results] == ["y", "y_0", "y_0_2", "out_0"]


def test_the_names_of_a_core_ir_module() -> None:
    program = core_ir.to_ptir(core_ir.loads(CORE))
    assert model_of(program, (), None, (), None).input_names == ("left", "right")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ((), "has dynamic dims, which a run binds"),
        (("--dynamic", "B=1-8"), "'B=1-8' is not the range of a dynamic dim, such as B=1..64"),
        (("--dynamic", "C=1..8"), "there is no size 'C'; the open sizes are B"),
        (("--dynamic", "B=1..8", "--sizes", "B=2"), "give --sizes or --dynamic"),
        (("--sizes", "B=2", "--state", "0"), "'0' is not an input and the result that replaces it"),
        (("--sizes", "B=2", "--target", "cpu,sm90"), "cannot be for both processors and GPUs"),
        (("--sizes", "B=2", "--target", "vax"), "there is no target 'vax'"),
    ],
)
def test_mistakes_are_told(
    scaled: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    given: tuple[str, ...],
    why: str,
) -> None:
    assert weft_command("build", scaled, "--out", tmp_path / "no", *given) == 1
    assert why in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "no").exists()


def test_torch_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("weft.interop.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "weft.cli.exported", raising=False)
    (tmp_path / "model.pt2").write_bytes(b"")
    assert weft_command("build", tmp_path / "model.pt2", "--out", tmp_path / "no") == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "is read by PyTorch, which is not installed; pip install 'weft[torch]'" in told
