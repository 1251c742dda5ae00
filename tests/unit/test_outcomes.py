"""The log of a test run says what failed and what was under way, even where the run is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = """
import time
import pytest

def test_good():
    pass

def test_bad():
    assert 3 == 4

@pytest.mark.skip(reason="not here")
def test_elsewhere():
    pass

@pytest.fixture
def broken():
    raise ValueError("no such thing")

def test_unready(broken):
    pass

def test_endless():
    time.sleep(600)
"""
HOOKS = "from tests.conftest import pytest_addoption, pytest_configure\n"
BEGUN = "begun   test_some.py::test_endless"


def start(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    (folder / "conftest.py").write_text(HOOKS)
    (folder / "test_some.py").write_text(TESTS)
    plain = ["-p", "no:cacheprovider", "-q", f"--rootdir={folder}", "-c", "/dev/null"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *plain, "--outcomes", "log.txt", *options],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(Path(__file__).parents[2]), "WEFT_CACHE": "off"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    "processes", [pytest.param([], marks=pytest.mark.slow), ["-n", "1"]], ids=["alone", "shared"]
)
def test_a_run_that_is_cut_off_has_told_what_failed(tmp_path: Path, processes: list[str]) -> None:
    log, run = tmp_path / "log.txt", start(tmp_path, *processes)
    ends = time.monotonic() + 300
    while not log.exists() or BEGUN not in log.read_text():
        assert time.monotonic() < ends
        assert run.poll() is None
        time.sleep(0.1)
    run.kill()
    run.wait()
    outcomes = [line.split()[:2] for line in log.read_text().splitlines()]
    assert [line for line in outcomes if line[0] != "begun"] == [
        ["passed", "test_some.py::test_good"],
        ["failed", "test_some.py::test_bad"],
        ["skipped", "test_some.py::test_elsewhere"],
        ["failed", "test_some.py::test_unready"],
    ]
    assert sum(line[0] == "begun" for line in outcomes) == 5
    assert "assert 3 == 4" in log.read_text()
    assert "ValueError: no such thing" in log.read_text()


def test_a_whole_run_says_that_it_finished(tmp_path: Path) -> None:
    assert start(tmp_path, "-k", "good").wait() == 0
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["begun", "passed", "finished"]
