"""Files of torch.export on the command line, and as programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.command_line import weft_command
from weft.bundles.model import model_of
from weft.foundation.errors import Unimplemented, UserError

torch = pytest.importorskip("torch")

from weft.interop.torch.program import load_program  # noqa: E402

Model: Any = torch.nn.Module


class Scored(Model):  # type: ignore[misc]
    """Weights, a buffer, a number that is part of the program, and a result that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.register_buffer("shift", torch.arange(3.0))

    def forward(self, x: Any, scale: int) -> tuple[Any, int]:
        return torch.relu(self.norm(self.layer(x))) * scale + self.shift, scale


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return Scored().eval()


@pytest.fixture
def exported(model: Any, tmp_path: Path) -> Path:
    sizes = {"x": {0: torch.export.Dim("rows", min=1, max=16)}, "scale": None}
    found = torch.export.export(model, (torch.zeros(2, 4), 3), dynamic_shapes=sizes)
    torch.export.save(found, tmp_path / "model.pt2")
    return tmp_path / "model.pt2"


def test_a_file_is_a_program(model: Any, exported: Path) -> None:
    program = load_program(exported)
    assert [str(kind) for kind in program.main.parameters] == ["f32[?x_0, 4]"]
    x = torch.randn(5, 4)
    (got,) = weft.run(program, [x.numpy()])
    np.testing.assert_allclose(got, model(x, 3)[0].detach().numpy(), rtol=1e-5, atol=1e-6)


def test_inputs_of_a_file_have_the_names_of_the_model(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    for name in ("x", "0"):
        assert weft_command("run", exported, "--input", f"{name}={tmp_path / 'x.npy'}") == 0
    assert weft_command("run", exported, "--input", f"y={tmp_path / 'x.npy'}") == 1
    assert "there is no input 'y'; they are x" in capsys.readouterr().err


def test_a_file_is_built(model: Any, exported: Path, tmp_path: Path) -> None:
    out = tmp_path / "made"
    for option, value in (("--sizes", "x_0=4"), ("--dynamic", "x_0=1..4")):
        assert weft_command("build", exported, "--out", out, "--name", "scored", option, value) == 0
        bundle = weft.load_bundle(out)
        x = torch.randn(4, 4)
        want = model(x, 3)[0].detach().numpy()
        np.testing.assert_allclose(bundle(x.numpy())[0], want, rtol=1e-5, atol=1e-6)
    assert bundle(np.zeros((3, 4), np.float32))[0].shape == (3, 3)
    assert [entry.name for entry in (*bundle.inputs, *bundle.results)] == ["x", "out0"]


class Named(Model):  # type: ignore[misc]
    """Results by name, and nested."""

    def forward(self, image: Any, rest: dict[str, Any]) -> dict[str, Any]:
        return {"scores": image + rest["bias"], "all": [image, 3, (image * 2,)]}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # Of torch, to itself.
def test_tensors_have_the_names_of_the_model(tmp_path: Path) -> None:
    x = torch.zeros(2)
    found = torch.export.export(Named(), (x, {"bias": x}))
    torch.export.save(found, tmp_path / "named.pt2")
    program = load_program(tmp_path / "named.pt2")
    assert program.input_names == ("image", "rest_bias")
    assert program.result_names == ("scores", "all", "all")
    given = np.zeros(2, np.float32)
    read = model_of(weft.torch.from_exported(found), [given, {"bias": given}], None, (), None)
    assert read.input_names == ("image", "rest_bias")
    assert [name for _, name in read.results] == ["scores", "all", "all_2"]


def test_what_is_no_such_file_is_told(exported: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.pt2"
    for data in (b"", b"PK", exported.read_bytes()[:-100]):
        bad.write_bytes(data)
        with pytest.raises(UserError, match=r"is not a program that torch\.export\.save of torch"):
            load_program(bad)


def test_what_a_program_cannot_say_is_told(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "train.pt2"
    torch.export.save(torch.export.export(model.train(), (torch.zeros(2, 4), 3)), path)
    with pytest.raises(Unimplemented, match="writes to it, and a program has results alone"):
        load_program(path)
