"""Models of PyTorch on Weft beside torch eager, inductor and ONNX Runtime: first call and run time.

    python -m benchmarks.imported [--models TEXT,...] [--threads N] [--rounds N] [--limit SECONDS]

The 28 models of `tests/scores/torch_model_zoo.py` with random weights and cut sizes, in f32 and
without gradients, each in a process of its own. `weft` is `torch.compile(backend="weft")`,
`imported` is `weft.torch.from_module` under `weft.jit`. Nothing is cached on disk. A first call
traces, compiles and runs once; it is shown by the clock on the wall, and by what processors
worked, which says more where others use the machine too. Every compiler has compiled a small model
before, so that what it loads is not counted. Run times are medians of bursts, the sides in turn.
A side that fails, gives other results than eager torch or takes longer than the limit is named
under the table and is not counted. Models of transformers and timm need those packages.

The bars: a geometric mean of at least 1.0 of inductor's speed, and half its time to compile.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable
from typing import Any

from benchmarks.children import lines_of
from benchmarks.needed import need

need("torch")

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from tests.scores.torch_model_zoo import MODELS  # noqa: E402

SIDES = ("eager", "inductor", "onnxruntime", "weft", "imported")
OURS = ("weft", "imported")


def measure(model: str, more: list[str], limit: float) -> dict[str, dict[str, Any]]:
    """What is known of every side: seconds, or why not."""
    command = [sys.executable, "-m", "benchmarks.imported_model", model, *more]
    found: dict[str, dict[str, Any]] = {}
    times: dict[str, float] = {}
    late = False
    for line in lines_of(command, limit, time.monotonic() + limit):
        late = line is None
        told = json.loads(line) if line and line.startswith("{") else {}
        if "side" in told:
            found[told.pop("side")] = told
        times = told.get("times", times)
    why = f"no answer within {limit:.0f} s" if late else "the process ended early"
    for side in SIDES:
        known = found.setdefault(side, {"failed": why})
        if side in times:
            known["run"] = times[side]
        elif "failed" not in known:
            known["failed"] = why
    return found


def geomean(values: Iterable[float]) -> float:
    found = list(values)
    return math.exp(sum(map(math.log, found)) / len(found)) if found else math.nan


def ratios(results: dict[str, dict[str, Any]], side: str, peer: str, field: str) -> list[float]:
    """How many times as long as a side the peer takes, for every model that both have."""
    pairs = [(found[side], found[peer]) for found in results.values()]
    return [b[field] / a[field] for a, b in pairs if "run" in a and "run" in b]


def cell(known: dict[str, Any], field: str, scale: float, digits: int) -> str:
    return f"{scale * known[field]:.{digits}f}" if "run" in known else "-"


def table(results: dict[str, dict[str, Any]]) -> Table:
    made = Table(title="milliseconds of a call; seconds of the first, wall (work)")
    made.add_column("model", no_wrap=True)
    for side in SIDES:
        made.add_column(side, justify="right")
    for side in ("inductor", *OURS):
        made.add_column(f"{side} first", justify="right", no_wrap=True)
    for name, found in results.items():
        firsts = [
            f"{cell(found[side], 'first', 1, 1)} ({cell(found[side], 'work', 1, 1)})"
            for side in ("inductor", *OURS)
        ]
        made.add_row(name, *(cell(found[side], "run", 1e3, 3) for side in SIDES), *firsts)
    return made


def summary(results: dict[str, dict[str, Any]]) -> list[str]:
    lines = []
    for side in OURS:
        for peer in ("inductor", "eager", "onnxruntime"):
            found = ratios(results, side, peer, "run")
            lines.append(f"{side} against {peer}: {geomean(found):.2f} over {len(found)} models")
        for field, what in (("first", "wall"), ("work", "work")):
            found = ratios(results, side, "inductor", field)
            share = geomean(1 / each for each in found)
            lines.append(f"{side}, first call, {what}: {share:.2f} of inductor's")
    for name, sides in results.items():
        for side, known in sides.items():
            if "failed" in known:
                lines.append(f"{name}, {side}: {known['failed']}")
            elif known.get("told"):
                lines.append(f"{name}, {side}: {known['told']}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="", help="only those whose names contain one of these")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one model")
    given = parser.parse_args()
    parts = given.models.split(",")
    names = [name for name in MODELS if any(part in name for part in parts)]
    more = ["--threads", str(given.threads), "--rounds", str(given.rounds)]
    console = Console(width=None if sys.stdout.isatty() else 140)
    results: dict[str, dict[str, Any]] = {}
    for name in names:
        results[name] = measure(name, more, given.limit)
        known = {
            side: found.get("run", found.get("failed")) for side, found in results[name].items()
        }
        print(f"{name}: {known}", file=sys.stderr, flush=True)
    console.print(table(results))
    for line in summary(results):
        console.print(line, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
