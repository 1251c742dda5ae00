"""GEMM on the GPU against cuBLAS: every plan in `plans/` on every shape.

    PYTHONPATH=src python3 -m benchmarks.gpu_gemm [--build-only] [--cases 4k,gpt]

Every kernel is first checked against an f32 product, in a child process that is given up when a
kernel hangs. Then all kernels of a shape and cuBLAS are timed together: one launch of each per
pass, in random order, after the L2 cache has been flushed, random data; medians over the passes.
Then the best ones and cuBLAS run back to back (`sustained`), at the clock that the power limit
leaves. The table goes to standard output and, as JSON and Markdown, to $OUT or benchmarks/out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.children import lines_of
from benchmarks.gemm_kernels import Built, Contraction, build, load_plan, plan_names
from weft.foundation.errors import WeftError
from weft.runtime.cuda.driver import open_device
from weft.runtime.cuda.kernels import load_kernel

CASES = {
    "2k": Contraction(2048, 2048, 2048),
    "4k": Contraction(4096, 4096, 4096),
    "8k": Contraction(8192, 8192, 8192),
    "gpt": Contraction(8192, 3072, 768),
    "llama": Contraction(4096, 14336, 4096),
    "gelu": Contraction(8192, 3072, 768, epilogue=("bias", "gelu")),
}
GOALS = {"4k": 0.97, "8k": 0.97, "gpt": 0.97, "gelu": 1.3}
CACHE = Path(__file__).resolve().parent.parent / ".cubins"
HUNG_AFTER = 60.0
"""Seconds of silence after which a child is given up."""
GIVE_UP_AFTER = 4
"""Children that may fail."""
FLUSH_BYTES = 256 << 20
PASSES = {"8k": 60, "llama": 60}


def output_folder() -> Path:
    folder = Path(os.environ.get("OUT") or Path(__file__).resolve().parent / "out")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def build_all(cases: list[str], *, report: bool = False) -> dict[tuple[str, str], Built]:
    """Every plan on every shape; what does not suit a shape, or will be slow, can be reported."""
    jobs = [(case, plan) for case in cases for plan in plan_names()]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        results = list(pool.map(lambda job: _try_build(*job), jobs))
    built = {}
    for job, result in zip(jobs, results, strict=True):
        if not isinstance(result, str):
            built[job] = result
        if report:
            slow = [] if isinstance(result, str) else [str(f) for f in result.report.findings]
            for line in [result] if isinstance(result, str) else slow:
                print(f"{' '.join(job)}: {line}", flush=True)
    return built


def _try_build(case: str, plan: str) -> Built | str:
    try:
        return build(CASES[case], load_plan(plan), CACHE)
    except WeftError as error:
        return str(error).splitlines()[0]


# On the device


class Bench:
    """Data and launches of one case."""

    def __init__(self, case: str, device: Any, torch: Any) -> None:
        self.case, self.shape, self.device, self.torch = case, CASES[case], device, torch
        torch.manual_seed(0)
        shape = self.shape
        make = {"device": "cuda", "dtype": torch.bfloat16}
        self.a = torch.randn(shape.m, shape.k, **make)
        self.b = torch.randn(shape.n, shape.k, **make) / shape.k**0.5
        self.bias = torch.randn(shape.n, **make)
        self.guard = 1 << 16
        self.flat = torch.empty(shape.m * shape.n + 2 * self.guard, **make)
        self.y = self.flat[self.guard : -self.guard].view(shape.m, shape.n)
        self.tensors = {"a": self.a, "b": self.b, "bias": self.bias, "y": self.y}

    def launcher(self, built: Built) -> Callable[[], None]:
        kernel = load_kernel(self.device, built.code)
        addresses = [self.tensors[name].data_ptr() for name in built.buffers]
        stream = self.device.driver.CUstream(self.torch.cuda.current_stream().cuda_stream)
        return lambda: kernel.launch(addresses, stream)

    def library(self) -> dict[str, Callable[[], Any]]:
        """What a user would run instead."""
        torch, functional = self.torch, self.torch.nn.functional
        out = torch.empty_like(self.y)
        weight = self.b.t()
        found = {"cublas": lambda: torch.matmul(self.a, weight, out=out)}
        if self.shape.epilogue:
            found["eager"] = lambda: functional.gelu(functional.linear(self.a, self.b, self.bias))
        else:
            found["cublas again"] = lambda: torch.matmul(self.a, weight, out=out)
        return found

    def reference(self) -> Any:
        torch = self.torch
        result = torch.matmul(self.a.float(), self.b.float().t())
        if self.shape.epilogue:
            result = torch.nn.functional.gelu(result + self.bias.float())
        return result

    def check(self, launch: Callable[[], None], reference: Any) -> str:
        """Empty if the kernel is right; otherwise what is wrong."""
        torch = self.torch
        results = []
        for _ in range(2):
            self.flat.fill_(float("nan"))
            launch()
            torch.cuda.synchronize()
            results.append(self.y.clone())
        first = results[0].float()
        if not torch.isfinite(first).all():
            return f"{int((~torch.isfinite(first)).sum())} elements were not written"
        error = float((first - reference).norm() / reference.norm())
        if error > 1e-2:
            return f"relative error {error:.2e}"
        if not torch.equal(results[0], results[1]):
            return "two runs differ"
        edges = torch.cat([self.flat[: self.guard], self.flat[-self.guard :]])
        return "" if torch.isnan(edges).all() else "memory outside the result was written"


def _device() -> tuple[Any, Any]:
    torch = importlib.import_module("torch")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.cuda.init()
    return open_device(), torch


def check_kernels(cases: list[str], skip: set[tuple[str, str]]) -> None:
    """Child process: check kernels one after the other, one line of JSON each."""
    built = build_all(cases)
    device, torch = _device()
    for case in cases:
        jobs = [job for job in built if job[0] == case and job not in skip]
        if not jobs:
            continue
        bench = Bench(case, device, torch)
        reference = bench.reference()
        for job in jobs:
            _say({"job": job})
            try:
                problem = bench.check(bench.launcher(built[job]), reference)
            except Exception as error:
                # A failed launch leaves the context unusable.
                text = f"{type(error).__name__}: {error}"
                _say({"job": job, "problem": text, "fatal": True})
                return
            _say({"job": job, "problem": problem, "fatal": False})
    _say({"finished": True})


def _say(record: dict[str, Any]) -> None:
    print("@" + json.dumps(record), flush=True)


def check_all(cases: list[str]) -> dict[tuple[str, str], str]:
    """Verdicts of all kernels, from children that may hang or die."""
    verdicts: dict[tuple[str, str], str] = {}
    for _ in range(GIVE_UP_AFTER):
        lost, finished = _run_child(cases, verdicts)
        if finished:
            return verdicts
        if lost is not None:
            # Hanging takes a minute: the plan is not tried on the other shapes.
            verdicts.update(
                {(c, lost[1]): "not run" for c in cases if (c, lost[1]) not in verdicts}
            )
            verdicts[lost] = verdicts.get(lost, "") or "hung or crashed"
            print(f"{' '.join(lost):50} {verdicts[lost]}", flush=True)
    print("too many kernels fail; the rest is not checked", flush=True)
    return verdicts


def _run_child(
    cases: list[str], verdicts: dict[tuple[str, str], str]
) -> tuple[tuple[str, str] | None, bool]:
    """One child: the kernel at which it ended too early, if it did, and whether it got through."""
    done = json.dumps([list(job) for job in verdicts])
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu_gemm",
        "--check",
        "--cases",
        ",".join(cases),
        "--skip",
        done,
    ]
    current: tuple[str, str] | None = None
    before, finished = len(verdicts), False
    for line in lines_of(command, HUNG_AFTER, math.inf):
        if line is None:
            break
        if not line.startswith("@"):
            print(line, flush=True)
            continue
        record = json.loads(line[1:])
        finished = "finished" in record
        if finished:
            break
        current = _job(record["job"])
        if "problem" in record:
            verdicts[current] = record["problem"]
            print(f"{' '.join(current):50} {record['problem'] or 'right'}", flush=True)
            current = current if record["fatal"] else None
    if not finished and current is None and len(verdicts) == before:
        raise SystemExit("the checks cannot run on this machine")
    return current, finished


def _job(pair: list[str]) -> tuple[str, str]:
    return pair[0], pair[1]


@dataclass
class Row:
    """One line of the result."""

    case: str
    name: str
    microseconds: float
    teraflops: float
    ratio: float
    sustained: float | None = None
    spread: float = 0.0
    extra: dict[str, float] = field(default_factory=dict)


def time_kernels(
    cases: list[str], good: set[tuple[str, str]], only: str | None
) -> Iterator[list[Row]]:
    """All kernels of each case and its peers, interleaved; a case at a time."""
    built = build_all(cases)
    device, torch = _device()
    flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    for case in cases:
        bench = Bench(case, device, torch)
        run = dict(bench.library())
        for job in built:
            if job[0] == case and job in good and (only is None or only in job[1]):
                run[job[1]] = bench.launcher(built[job])
        times = interleaved(run, flush, torch, PASSES.get(case, 120))
        found = _rows(case, times)
        best = sorted(found, key=lambda row: row.microseconds)[:4]
        _sustained(found, [r.name for r in best], run, torch)
        print(markdown(found), flush=True)
        yield found


def interleaved(
    run: dict[str, Callable[[], Any]], flush: Any, torch: Any, passes: int
) -> dict[str, list[float]]:
    """Microseconds of each launch, by name."""
    times: dict[str, list[float]] = {name: [] for name in run}
    rng = random.Random(1)
    for launch in run.values():
        for _ in range(3):
            launch()
    torch.cuda.synchronize()
    for _ in range(passes):
        order = list(run)
        rng.shuffle(order)
        marks = []
        for name in order:
            flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run[name]()
            end.record()
            marks.append((name, start, end))
        torch.cuda.synchronize()
        for name, start, end in marks:
            times[name].append(1e3 * start.elapsed_time(end))
    return times


def _rows(case: str, times: dict[str, list[float]]) -> list[Row]:
    shape = CASES[case]
    flops = 2.0 * shape.m * shape.n * shape.k
    middle = {name: statistics.median(values) for name, values in times.items()}
    peer = middle["eager" if shape.epilogue else "cublas"]
    rows = []
    for name, value in middle.items():
        quarters = statistics.quantiles(times[name], n=4)
        row = Row(case, name, value, flops / value / 1e6, peer / value)
        row.spread = (quarters[2] - quarters[0]) / value
        row.extra = {"of cublas": middle["cublas"] / value}
        rows.append(row)
    return rows


def _sustained(
    rows: list[Row], names: list[str], run: dict[str, Callable[[], Any]], torch: Any
) -> None:
    """Back-to-back blocks of a quarter second, in random order, for the best and the peer."""
    by_name = {row.name: row for row in rows}
    peer = "eager" if "eager" in by_name else "cublas"
    names = list(dict.fromkeys([peer, *names]))
    blocks: dict[str, list[float]] = {name: [] for name in names}
    rng = random.Random(2)
    for _ in range(3):
        rng.shuffle(names)
        for name in names:
            count = max(10, int(0.25e6 / by_name[name].microseconds))
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(count):
                run[name]()
            end.record()
            torch.cuda.synchronize()
            blocks[name].append(1e3 * start.elapsed_time(end) / count)
    base = statistics.median(blocks[peer])
    for name, values in blocks.items():
        by_name[name].sustained = base / statistics.median(values)


def markdown(rows: list[Row]) -> str:
    head = "| case | kernel | µs | TF/s | ratio | of cuBLAS | sustained | spread |\n"
    head += "|---|---|---|---|---|---|---|---|\n"
    lines = []
    for row in sorted(rows, key=lambda row: (row.case, row.microseconds)):
        lasting = "" if row.sustained is None else f"{row.sustained:.3f}"
        lines.append(
            f"| {row.case} | {row.name} | {row.microseconds:.2f} | {row.teraflops:.0f} "
            f"| {row.ratio:.3f} | {row.extra['of cublas']:.3f} | {lasting} | {row.spread:.3f} |"
        )
    return head + "\n".join(lines)


def summary(rows: list[Row]) -> str:
    """Per case the best kernel of ours and whether it reaches its goal."""
    lines = []
    for case, goal in GOALS.items():
        ours = [r for r in rows if r.case == case and (case, r.name) in OUR_NAMES]
        if ours:
            best = max(ours, key=lambda row: row.ratio)
            verdict = "reached" if best.ratio >= goal else "MISSED"
            lines.append(f"{case}: {best.name} {best.ratio:.3f} (goal {goal}) {verdict}")
    return "\n".join(lines)


OUR_NAMES: set[tuple[str, str]] = set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--only", help="time only plans whose name contains this")
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--skip", default="[]", help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = options.cases.split(",")
    if options.build_only:
        for (case, plan), found in build_all(cases, report=True).items():
            print(f"{case:6} {plan:40} {found.report.registers} registers")
        return
    if options.check:
        check_kernels(cases, {tuple(job) for job in json.loads(options.skip)})
        return
    build_all(cases, report=True)
    verdicts = check_all(cases)
    good = {job for job, problem in verdicts.items() if not problem}
    OUR_NAMES.update(good)
    wrong = [f"{' '.join(job)}: {why}" for job, why in verdicts.items() if why]
    rows: list[Row] = []
    for timed in time_kernels(cases, good, options.only):
        rows += timed
        _write(rows, wrong)
    print((output_folder() / "gpu_gemm.md").read_text(), flush=True)


def _write(rows: list[Row], wrong: list[str]) -> None:
    folder = output_folder()
    records = [vars(row) for row in rows]
    (folder / "gpu_gemm.json").write_text(json.dumps({"rows": records, "wrong": wrong}, indent=1))
    text = markdown(rows) + "\n\n" + summary(rows) + "\n"
    text += "".join(f"\nwrong: {line}" for line in wrong)
    (folder / "gpu_gemm.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
