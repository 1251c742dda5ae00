"""The CPU benchmark with several numbers of threads, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

Found = dict[str, dict[str, float]]
VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "WEFT_NUM_THREADS")


def counts_of(text: str) -> list[int]:
    """`1,2,4` as numbers."""
    counts = [int(part) for part in text.split(",") if part.strip().isdigit()]
    if not counts or min(counts) < 1 or len(counts) < len(text.split(",")):
        raise SystemExit(f"--threads is {text!r}; give numbers over 0, such as 1,2,4")
    return counts


def stay_on(count: int) -> None:
    """Keep this process, and the threads it makes, on so many cores: some libraries ask the machine
    how many there are, and take them all."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def measured(counts: Sequence[int], arguments: Sequence[str]) -> dict[int, dict[str, Found]]:
    """What the benchmark finds with each number of threads."""
    results: dict[int, dict[str, Found]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for count in counts:
            kept = Path(folder) / f"{count}.json"
            command = [sys.executable, "-m", "benchmarks.cpu", *arguments, "--resume", str(kept)]
            settings = os.environ | dict.fromkeys(VARIABLES, str(count))
            print(f"{count} threads", flush=True)
            subprocess.run(command, env=settings, check=True)
            results[count] = json.loads(kept.read_text()) if kept.exists() else {}
    return results


def print_scaling(
    results: Mapping[int, Mapping[str, Found]], ratio_of: Callable[[Found], tuple[float, str]]
) -> None:
    """For each line and number of threads: Weft's milliseconds, how many times as fast as with the
    first number that is, and the best peer's time over Weft's."""
    first, *_ = results
    table = Table("line", *(f"{count} threads" for count in results))
    for name in results[first]:
        cells = []
        for found in results.values():
            if name not in found or name not in results[first]:
                cells.append("-")
                continue
            ours = found[name]["weft"]["ms"]
            faster = results[first][name]["weft"]["ms"] / ours
            ratio, peer = ratio_of(found[name])
            cells.append(f"{ours:.2f} (x {faster:.1f}, {peer} {ratio:.2f})")
        table.add_row(name, *cells)
    Console(width=200).print(table)
