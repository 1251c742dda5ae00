"""`weft compile` from the command line: dumps, edited stages, and what `-v` says."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.make_programs import mlp, softmax_layernorm
from weft.cli import main
from weft.ptir import save

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs `weft compile` in this process: the exit code, and what it printed."""

    def call(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["weft", "compile", *map(str, args)])
        monkeypatch.setattr("warnings.showwarning", None)
        capfd.readouterr()
        with pytest.raises(SystemExit) as done:
            main.main()
        assert isinstance(done.value.code, int)
        return (done.value.code, *capfd.readouterr())

    return call


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.ptir.txt"
    save(mlp(batch=8, width=16, hidden=32, out=16), path)
    return path


@pytest.mark.parametrize(
    "stage", ["frontend", "tiny", "indexbook", "poly_view", "region", "memory", "plan", "cpu"]
)
def test_every_dump_reads_back(run: Run, program: Path, tmp_path: Path, stage: str) -> None:
    code, _, err = run(program, f"--dump={stage},llvm", "--out", tmp_path / "a")
    assert (code, err) == (0, "")
    (file,) = (tmp_path / "a").glob(f"{stage}.*")
    code, _, err = run(program, "--from", stage, file, "--dump=llvm", "--out", tmp_path / "b")
    assert (code, err) == (0, "")
    assert (tmp_path / "a" / "llvm.ll").read_text() == (tmp_path / "b" / "llvm.ll").read_text()


def test_a_fault_in_edited_loops_is_a_sentence(run: Run, program: Path, tmp_path: Path) -> None:
    run(program, "--dump=cpu", "--out", tmp_path)
    file = tmp_path / "cpu.txt"
    file.write_text(re.sub(r"store b(\d+)\[", r"store b\1[1000000 + ", file.read_text()))
    code, _, err = run(program, "--from", "cpu", file)
    assert code == 1
    assert err.startswith("error: RoutineMemory at routine k_")
    assert "Traceback" not in err


def test_what_is_no_text_is_a_sentence(run: Run, program: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(b"\xff\xfe")
    code, _, err = run(program, "--from", "plan", tmp_path / "plan.json")
    assert (code, err) == (1, f"error: {tmp_path / 'plan.json'} is not text\n")


def test_verbose_counts_rules_and_kernels(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "rows.ptir.txt"
    save(softmax_layernorm(rows=6, columns=20), path)
    code, out, _ = run(path, "-v")
    assert code == 0
    assert re.search(r"^1 kernel, 1 of them distinct; ", out, re.MULTILINE)
    assert "1 kernels" not in out
    rules = re.findall(r"^([a-z-]+): \d+ times?$", out, re.MULTILINE)
    assert len(rules) == len(set(rules))
    assert " in function @" not in out
