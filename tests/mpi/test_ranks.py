"""Two real ranks, through MPI; skipped where mpi4py is not installed (`make test-mpi`)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.mpi.exchanges import trained
from tests.mpi.parallel import trained as whole
from tests.support.mesh_gpt import trained as gpt

pytest.importorskip("mpi4py")
HERE = Path(__file__).parent


def launched(
    script: str, *args: str, timeout: str = "20", count: int = 2
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weft", "launch", "-n", str(count), str(HERE / script), *args]
    root = str(HERE.parents[1])
    paths = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "WEFT_COLLECTIVE_TIMEOUT": timeout, "PYTHONPATH": paths}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=500
    )


def test_every_exchange_on_every_dtype_and_training() -> None:
    alone = ",".join(map(str, trained(weft.mesh(data=1))))
    done = launched("exchanges.py", alone, timeout="60")
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"right \d", done.stdout)) == ["right 0", "right 1"]


def test_exchanges_in_buckets_beside_kernels_give_the_same_bits() -> None:
    done = launched("buckets.py", timeout="60")
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"right \d", done.stdout)) == ["right 0", "right 1"]


def test_a_function_for_whole_tensors_on_two_ranks() -> None:
    alone = json.dumps(whole(weft.mesh(data=1, model=1)))
    done = launched("parallel.py", alone, timeout="200")
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"right \d", done.stdout)) == ["right 0", "right 1"]


@pytest.mark.parametrize(("dtype", "steps", "within"), [
    ("float32", 20, 1e-5), ("float64", 200, 1e-9),
])  # fmt: skip
def test_a_gpt_learns_the_same_on_two_ranks(dtype: str, steps: int, within: float) -> None:
    alone = gpt(weft.mesh(data=1, model=1), steps, np.dtype(dtype))
    done = launched("training.py", str(steps), dtype, timeout="200")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.partition("losses ")[2].splitlines()[0])
    assert found["data"] == pytest.approx(alone, rel=within)
    assert found["model"] == pytest.approx(alone, rel=within)


def test_a_checkpoint_of_two_ranks_loads_on_one_two_and_three(tmp_path: Path) -> None:
    path = str(tmp_path / "step.safetensors")
    assert launched("checkpoint.py", "save", path).returncode == 0
    assert launched("checkpoint.py", "kill", path).returncode != 0
    for count in (1, 2, 3):
        done = launched("checkpoint.py", "load", path, count=count)
        assert done.returncode == 0, done.stderr
        assert len(re.findall(r"right \d", done.stdout)) == count


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("kind", "sentence"), [
    ("raise", r"weft: rank {} failed at faults.py:\d+: ValueError: no data"),
    ("kill", r"weft: rank {} died, killed or by os._exit; it is past all_reduce .*\.py:\d+"),
    ("exit", r"weft: rank {} died, killed or by os._exit; it is past all_reduce .*\.py:\d+"),
    ("end", r"rank \d is at all_reduce .*faults.py:\d+\), and rank {} has ended"),
    ("sleep", r"waited 3 s at all_reduce .*faults.py:\d+\), and rank {} is past all_reduce"),
    ("mismatch", r"rank \d is at .* \(faults.py:\d+\), and rank \d is at .* \(faults.py:\d+\)"),
    ("constant", r"rank 1 traced another program than rank 0: .*<\d\.0>.* \(faults.py:\d+\) where "
                 r"rank 0 has .*<\d\.0>.* \(faults.py:\d+\)"),
    ("order", r"rank 1 traced another .*: argument 0 x\['[ab]'\] .* has argument 0 x\['[ab]'\]"),
    ("absent", r"weft: rank {} ended before it called weft.mesh"),
    ("asleep", r"weft: rank \d waited 10 s at weft.mesh, but rank {} did not come to it"),
])  # fmt: skip
def test_a_fault_is_one_sentence_and_the_end(kind: str, sentence: str, rank: int) -> None:
    timeout = {"sleep": "3", "asleep": "10"}.get(kind, "60")
    done = launched("faults.py", kind, str(rank), timeout=timeout)
    assert done.returncode != 0
    assert re.search(sentence.format(rank), done.stderr), done.stderr
    assert done.stderr.splitlines()[-1].startswith("weft: "), done.stderr
    if kind not in ("kill", "exit"):
        assert "MPI_ABORT" not in done.stderr
