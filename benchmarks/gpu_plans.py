"""Lines of the GPU benchmark under other plans than the planner's, side by side.

    PYTHONPATH=src:.gpu-wheels python3 -m benchmarks.gpu_plans [--lines TEXT,...] [--file FILE]
    python -m benchmarks.gpu_plans --prepare FOLDER

The file (`gpu_plans.json`) maps the names of lines to named changes: fields of a plan as JSON,
which take the place of those that the planner chose for the line's largest kernel. All variants of
a line, the planner's own and the line's peers are checked and timed as `benchmarks.gpu` does it:
one launch of each a pass, in random order. Refused plans and wrong results are listed with the
reason.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

import weft
from benchmarks import gpu_device
from benchmarks.gpu_line import Line
from benchmarks.gpu_lines import FAMILIES
from benchmarks.needed import PREPARE, need_gpu
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.plan import text
from weft.target.known import target_named

FILE: Final = Path(__file__).parent / "gpu_plans.json"
OWN: Final = "planner"

Changes = Mapping[str, Any]


def wanted(options: argparse.Namespace) -> Iterator[tuple[Line, dict[str, Changes]]]:
    """The lines of the file that were asked for, and the changes to try on each."""
    given = json.loads(Path(options.file).read_text())
    lines = {line.key: line for family in FAMILIES.values() for line in family()}
    for key, variants in given.items():
        if any(part in key for part in options.lines.split(",")):
            yield lines[key], {OWN: {}, **variants}


def overrides(line: Line, changes: Changes) -> dict[str, str]:
    """The plans of a line with changes to that of its last contraction, or its last kernel, or to
    all plans of the kind that the changes name."""
    if not changes:
        return {}
    program = line.program()
    found = Compilation(program, target_named(line.target), make_signature(program))
    plans = json.loads(text.dumps(run_pipeline(found, until="plan")["plan"]))
    kind = changes.get("kind")
    chosen = [plan for plan in plans["plans"] if plan["kind"] == (kind or "mma")] or plans["plans"]
    for plan in chosen if kind else chosen[-1:]:
        plan.update(changes)
    return {"plan": json.dumps(plans)}


def prepare(options: argparse.Namespace) -> None:
    """Compile every variant into a cache folder."""
    os.environ["WEFT_CACHE"] = str(Path(options.prepare).resolve())
    jobs = [(line.family, line.key, c) for line, found in wanted(options) for c in found.values()]
    with ProcessPoolExecutor(options.jobs) as pool:
        for (_, key, changes), note in zip(jobs, pool.map(_compile, jobs), strict=True):
            if note:
                print(f"{key} {dict(changes)}: {note}", flush=True)


def _compile(job: tuple[str, str, Changes]) -> str:
    family, key, changes = job
    line = next(line for line in FAMILIES[family]() if line.key == key)
    try:
        weft.compile(line.program(), line.target, overrides=overrides(line, changes))
    except weft.WeftError as error:
        return " ".join(str(error).split())
    return ""


def measure(machine: gpu_device.Machine, line: Line, variants: Mapping[str, Changes]) -> None:
    """Check and time the variants of one line; a row each."""
    torch = machine.torch
    inputs = [machine.tensor(found, 1 + n) for n, found in enumerate(line.inputs)]
    calls: dict[str, gpu_device.Call] = {}
    kept: list[Any] = []
    for name, changes in variants.items():
        try:
            ours = gpu_device.Ours(machine, line, inputs, overrides(line, changes))
        except weft.WeftError as error:
            print(f"| {line.key} | {name} | refused: {' '.join(str(error).split())} | |")
            continue
        problem = ours.check(line)
        if problem:
            print(f"| {line.key} | {name} | wrong: {problem} | |", flush=True)
            continue
        kept.append(ours)
        calls[name], _ = machine.recorded(ours.run)
    for name, call in gpu_device.peers_of(line, inputs, {"eager", "library"}, torch).items():
        calls[name], result = machine.recorded(call)
        kept.append(result)
    times = machine.interleaved(calls, machine.passes_for(calls))
    middle = {name: 1e6 * statistics.median(found) for name, found in times.items()}
    for name, value in sorted(middle.items(), key=lambda item: item[1]):
        print(f"| {line.key} | {name} | {value:.2f} | {middle['eager'] / value:.3f} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", default=str(FILE))
    parser.add_argument("--lines", default="", help="only lines whose name contains one of these")
    parser.add_argument("--prepare", metavar="FOLDER", help="compile into this cache, and stop")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if options.prepare:
        prepare(options)
        return 0
    need_gpu(PREPARE)
    machine = gpu_device.Machine()
    print("| line | plan | µs | eager's time over it |\n|---|---|---|---|", flush=True)
    for line, variants in wanted(options):
        measure(machine, line, variants)
        machine.torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
