"""Two real ranks, through MPI; skipped where mpi4py is not installed (`make test-mpi`)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import weft
from tests.mpi.exchanges import trained

pytest.importorskip("mpi4py")
HERE = Path(__file__).parent


def launched(script: str, *args: str, timeout: str = "20") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weft", "launch", "-n", "2", str(HERE / script), *args]
    environment = {**os.environ, "WEFT_COLLECTIVE_TIMEOUT": timeout}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=500
    )


def test_every_exchange_on_every_dtype_and_training() -> None:
    alone = ",".join(map(str, trained(weft.mesh(data=1))))
    done = launched("exchanges.py", alone)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"right \d", done.stdout)) == ["right 0", "right 1"]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("kind", "sentence"), [
    ("raise", r"weft: rank {} failed at faults.py:\d+: ValueError: no data"),
    ("kill", r"weft: rank {} is gone, killed or by os._exit; it is past all_reduce .*\.py:\d+"),
    ("exit", r"weft: rank {} is gone, killed or by os._exit; it is past all_reduce .*\.py:\d+"),
    ("sleep", r"waited 3 s at all_reduce .*faults.py:\d+\), and rank {} is past all_reduce"),
    ("mismatch", r"rank \d is at .* \(faults.py:\d+\), and rank \d is at .* \(faults.py:\d+\)"),
], ids=["raise", "kill", "exit", "sleep", "mismatch"])  # fmt: skip
def test_a_fault_is_one_sentence_and_the_end(kind: str, sentence: str, rank: int) -> None:
    done = launched("faults.py", kind, str(rank), timeout="3" if kind == "sleep" else "60")
    assert done.returncode != 0
    assert re.search(sentence.format(rank), done.stderr), done.stderr
