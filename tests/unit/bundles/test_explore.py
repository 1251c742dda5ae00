"""`weft explore BUNDLE`: the program that a bundle was made of, where the bundle is whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.explorer_pages import data_of
from weft.cli.main import app
from weft.foundation.errors import WeftError


def explore(*args: object) -> Any:
    return CliRunner().invoke(app, ["explore", *map(str, args)])


def test_a_bundle_opens_for_the_largest_sizes_it_takes(classify: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    found = explore(classify, "-o", out)
    assert found.exit_code == 0, found.exception
    (program,) = data_of(out.read_text())["programs"]
    assert program["name"] == "classify"
    inputs = [value[2] for value in program["values"] if value[1] == "input"]
    assert any("[20, " in kind for kind in inputs)
    assert all(kernel["seconds"] > 0 for kernel in program["kernels"])
    assert explore(classify, "--sizes", "B=3", "--no-run", "-o", out).exit_code == 0
    (program,) = data_of(out.read_text())["programs"]
    assert any("[3, " in value[2] for value in program["values"])


def cut_off(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:20])


def changed(folder: Path) -> None:
    program = bytearray((folder / "program.bin").read_bytes())
    program[len(program) // 2] ^= 1
    (folder / "program.bin").write_bytes(program)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda folder: (folder / "manifest.json").unlink(), "not a bundle"),
        (
            lambda folder: (folder / "manifest.json").write_text("{"),
            "manifest.json was not written",
        ),
        (
            lambda folder: (folder / "manifest.json").write_text("[]"),
            "manifest.json was not written",
        ),
        (lambda folder: (folder / "program.bin").unlink(), "program.bin cannot be read"),
        (cut_off("program.bin"), "program.bin is not the file that was built"),
        (cut_off("weights.safetensors"), "weights.safetensors is not the file that was built"),
        (changed, "program.bin is not the file that was built"),
    ],
    ids=["no-manifest", "manifest-cut", "manifest-list", "no-program", "cut", "weights", "changed"],
)
def test_a_damaged_bundle_is_refused_with_a_sentence(
    damage: Callable[[Path], object], told: str, classify: Path, tmp_path: Path
) -> None:
    folder, out = tmp_path / "classify", tmp_path / "page.html"
    shutil.copytree(classify, folder)
    damage(folder)
    found = explore(folder, "-o", out)
    assert found.exit_code == 1
    assert isinstance(found.exception, WeftError)
    assert told in str(found.exception)
    assert str(folder) in str(found.exception)
    assert not out.exists()
