"""The long run of random programs: blocks, shards, and going on where it stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.random.__main__ import BLOCK, _blocks

ROOT = Path(__file__).parents[2]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.random", "--processes", "1", *options]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )


def test_shards_are_the_whole() -> None:
    whole = list(_blocks(7, 10 * BLOCK + 3, (1, 1)))
    parts = [block for part in (1, 2, 3) for block in _blocks(7, 10 * BLOCK + 3, (part, 3))]
    assert sorted(parts) == whole
    assert whole[-1] == (7 + 10 * BLOCK, 3)


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    first = run("--first", "10000", "--count", "2", "--resume", str(journal))
    assert first.returncode == 0, first.stdout
    assert [json.loads(line)["passed"] for line in journal.read_text().splitlines()] == [True]
    again = run("--first", "10000", "--count", "2", "--resume", str(journal))
    assert again.stdout.startswith("1 blocks, 1 done before")
    assert len(journal.read_text().splitlines()) == 1


def test_a_wrong_shard_is_told() -> None:
    done = run("--shard", "3/2")
    assert done.returncode == 2
    assert "'3/2' is not a shard such as 1/4" in done.stderr
