"""A process with little memory that judges hostile files, and the call that starts one.

    outcomes = judged(["file small.json", "made chain-text"])

Each case is a line on stdin, each outcome a line of JSON on stdout. A file that takes too long to
load, to verify or to run, by the clock of the processor, is a crash.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.hostile import extremes, onnx_files
from tests.hostile.bases import bases
from tests.hostile.generated import GENERATED
from tests.hostile.judge import Crash, model_verdict, verdict

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"
MEMORY = 1 << 30
SECONDS = 60.0
PATIENCE = 600
_UNFIT = ("OutputTypeMismatch", "TupleElementInvalid")
LIMITS = {
    "WEFT_MAX_TENSOR_BYTES": str(64 << 20),
    "WEFT_MAX_LOOP_STEPS": "20000",
    "WEFT_MAX_KERNEL_STEPS": "1000000000",
}
FEW_THREADS = {"WEFT_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1"}
"""Stacks of as many threads as a large machine has processors would be all of the memory."""


@dataclass(frozen=True)
class Outcome:
    """The verdict on one file, or how it failed; and what it cost."""

    name: str
    verdict: str
    seconds: float
    peak: int
    """The most memory that the process has had so far, in MB."""
    crash: str = ""


def answered(
    module: str, cases: Sequence[str], settings: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """A module, run in a process of its own with cases on its stdin and these settings of Weft."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WEFT_")}
    environment |= {**FEW_THREADS, **settings}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", module],
        input="\n".join(cases),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment,
        cwd=ROOT,
        check=False,
    )


def judged(
    cases: Sequence[str], limits: Mapping[str, str] = LIMITS, backend: str = "reference"
) -> list[Outcome]:
    """The outcomes of cases that one process judges in turn, under the given limits of Weft."""
    settings = {**limits, "WEFT_BACKEND": backend}
    done = answered("tests.hostile.worker", cases, settings)
    found = [Outcome(**json.loads(line)) for line in done.stdout.splitlines()]
    if done.returncode or not found:
        after = found[-1].name if found else "the start"
        raise Crash(
            f"the process ended with {done.returncode} after {after}: {done.stderr[-2000:]}"
        )
    return found


# -- inside the process ----------------------------------------------------------------------------


def files(case: str) -> Iterator[tuple[str, bytes | str]]:
    """The files that a case stands for."""
    kind, _, name = case.partition(" ")
    match kind:
        case "file":
            yield case, (CORPUS / name).read_bytes()
        case "made":
            data = GENERATED[name][1]()
            yield case, data if isinstance(data, bytes) else data.encode()
        case "onnx":
            yield case, onnx_files.FILES[name][1]()
        case "base":
            yield case, json.dumps(bases()[name])
        case "attributes":
            yield from extremes.attribute_cases(name)
            yield from extremes.operand_cases(name)
        case "operands":
            yield from extremes.shape_cases(name)
            yield from extremes.dtype_cases(name)


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"it takes more than {SECONDS} s")


def outcome(name: str, data: bytes | str) -> Outcome:
    """The judgement of one file."""
    started = time.process_time()
    try:
        judge = model_verdict if name.startswith("onnx ") else verdict
        found, crash = judge(data, lambda: signal.setitimer(signal.ITIMER_PROF, SECONDS)), ""
    except (Crash, TimeoutError) as error:
        found, crash = "CRASH", _trace(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return Outcome(name, found, time.process_time() - started, _peak(), crash)


def _peak() -> int:
    """The most memory so far in MB; `ru_maxrss` would count what the parent had at the fork."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error, limit=-4))[-3_000:]


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, _too_long)
    for case in sys.stdin.read().splitlines():
        for name, data in files(case):
            found = outcome(name, data)
            print(json.dumps(asdict(found)), flush=True)
            table = case.startswith(("attributes", "operands"))
            again = extremes.fitted(data) if table and found.verdict in _UNFIT else None
            if again is not None:
                print(json.dumps(asdict(outcome(f"{name}, fitted", again))), flush=True)


if __name__ == "__main__":
    main()
