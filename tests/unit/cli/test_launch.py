"""How `weft launch` ends jobs, with jobs that are no ranks of MPI."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from weft.cli import launch
from weft.runtime.board import FAILED, STARTING, Board

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def job_of(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code])


def test_a_job_that_does_not_listen_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "_DEAF", 0.5)
    board = Board.made(tmp_path / "board", 2)
    board.tell("rank 1 failed at a.py:3: no\ndata")
    board.tell("rank 0 failed at a.py:4: no data")
    board.write(1, FAILED)
    assert launch._watch_job(job_of(DEAF), board) == 1
    assert capsys.readouterr().err == "weft: rank 1 failed at a.py:3: no data\n"


def test_a_rank_that_ended_before_it_joined_is_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = Board.made(tmp_path / "board", 2)
    board.write(0, STARTING)
    gone = job_of("")
    gone.wait()
    Path(Board.first_file(board.path, 1)).write_text(f"{gone.pid}\n")
    assert launch._watch_job(job_of("import time; time.sleep(600)"), board) == 1
    assert capsys.readouterr().err == "weft: rank 1 ended before it called weft.mesh\n"


def test_a_rank_that_does_not_join_is_late(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEFT_COLLECTIVE_TIMEOUT", "0.5")
    board = Board.made(tmp_path / "board", 3)
    board.write(1, STARTING)
    assert launch._watch_job(job_of("import time; time.sleep(600)"), board) == 1
    assert capsys.readouterr().err == (
        "weft: rank 1 waited 0.5 s at weft.mesh, but rank 0, rank 2 did not come to it; "
        "WEFT_COLLECTIVE_TIMEOUT sets the limit\n"
    )
