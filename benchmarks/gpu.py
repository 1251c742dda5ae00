"""Weft on the GPU beside its peers, over the frozen list in `gpu.json`.

    PYTHONPATH=src:.gpu-wheels python3 -m benchmarks.gpu --family gemm,rows [--lines TEXT,...]
        [--peers eager,library,compile,max-autotune,jax] [--seconds 400] [--peer-seconds 60]
    python -m benchmarks.gpu --prepare FOLDER [--family ...]

Families are gemm, gemm_odd, gemm_epilogue, rows, maps, reduce, movement, sm80 and gpt2, of the list
in `gpu2.json` attention, attention_training, attention_decode, conv, conv_epilogue, products and
rows_backward, and beside the lists gemm_types, depthwise, groups and whole. Programs go through the
whole compiler. `--prepare` compiles them into a folder that `WEFT_CACHE` names later, on a machine
without a GPU too. Lines are measured in a child, which is given up when it has been silent for too
long, and started again after the line at which it was lost. A peer that takes too long to compile
is given up, and its line goes on. What cannot run, or was not reached in time, is listed with the
reason. The table goes to standard output; the table, the CSV, the records and the roofline plot to
$OUT, or to benchmarks/out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

import weft
from benchmarks import gpu_device, gpu_jax, gpu_report
from benchmarks.children import lines_of
from benchmarks.gpu_line import Line
from benchmarks.gpu_lines import FAMILIES
from benchmarks.needed import PREPARE, need_gpu

PEERS: Final = (*gpu_device.PEERS, gpu_jax.PEER)
MOST_CHILDREN: Final = 6
QUIET: Final = 45.0
"""Seconds after which a child that says nothing is given up, beside those for its peers."""


def wanted_lines(options: argparse.Namespace) -> list[Line]:
    """The lines that were asked for, in the order of the list, which names some shapes twice."""
    found = {line.key: line for family in options.family.split(",") for line in FAMILIES[family]()}
    texts = options.lines.split(",")
    return [line for key, line in found.items() if any(text in key for text in texts)]


# -- compiling beforehand ------------------------------------------------------------------------


def prepare(options: argparse.Namespace) -> int:
    """Compile every line into a cache folder; what cannot be compiled is said."""
    os.environ["WEFT_CACHE"] = str(Path(options.prepare).resolve())
    started = time.perf_counter()
    places = [(line.family, line.key) for line in wanted_lines(options)]
    with ProcessPoolExecutor(options.jobs) as pool:
        for (_, key), note in zip(places, pool.map(_compile, places, chunksize=4), strict=True):
            if note or options.verbose:
                print(f"{key}: {note}", flush=True)
    print(f"{len(places)} programs in {time.perf_counter() - started:.0f} s", flush=True)
    return 0


def _compile(place: tuple[str, str]) -> str:
    family, key = place
    line = next(line for line in FAMILIES[family]() if line.key == key)
    try:
        weft.compile(line.program(), line.target)
    except weft.WeftError as error:
        return f"not yet: {str(error).splitlines()[0]}"
    return ""


# -- the child -----------------------------------------------------------------------------------


def measure_lines(options: argparse.Namespace) -> None:
    """Measure lines one after the other; a record each on standard output."""
    machine = gpu_device.Machine()
    rates = {"copy": machine.copy_bytes_per_second, "versions": gpu_device.versions(machine)}
    _say({"machine": rates})
    skipped, peers = set(json.loads(options.skip)), set(options.peers.split(","))
    for line in wanted_lines(options):
        if line.key in skipped:
            continue
        _say({"begin": line.key})
        record = gpu_device.measure(machine, line, peers, options.peer_seconds)
        if gpu_jax.PEER in peers:
            gpu_jax.measure(machine, line, record, options.peer_seconds)
        _say({"record": record})
        machine.torch.cuda.empty_cache()


def _say(message: dict[str, Any]) -> None:
    print("@" + json.dumps(message), flush=True)


# -- the parent ----------------------------------------------------------------------------------


def silence(peers: str, peer_seconds: float) -> float:
    """Seconds after which a child that says nothing is given up: peers may take all their time."""
    slow = set(peers.split(",")) - {"eager", "library"}
    return QUIET + peer_seconds * len(slow)


class Run:
    """All records of a run, and where they are written."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.lines = wanted_lines(options)
        self.records: dict[str, dict[str, Any]] = {}
        self.machine: dict[str, Any] = {"copy": 1.0, "versions": {}}
        self.ends = time.monotonic() + options.seconds
        folder = Path(os.environ.get("OUT") or Path(__file__).resolve().parent / "out")
        folder.mkdir(parents=True, exist_ok=True)
        self.stem = folder / f"gpu_{options.family.replace(',', '-')}"[:80]

    def measure(self) -> None:
        for _ in range(MOST_CHILDREN):
            if self.child():
                break
        for line in self.lines:
            if line.key not in self.records:
                self.lost(line.key, "not run: out of time")

    def child(self) -> bool:
        """One child; whether all is done."""
        skip = json.dumps(list(self.records))
        command = [sys.executable, "-m", "benchmarks.gpu", "--child", "--skip", skip]
        for name in ("family", "lines", "peers"):
            command += [f"--{name}", getattr(self.options, name)]
        command += ["--peer-seconds", str(self.options.peer_seconds)]
        quiet = silence(self.options.peers, self.options.peer_seconds)
        current = None
        for text in lines_of(command, quiet, self.ends):
            if text is None:
                break
            if not text.startswith("@"):
                print(text, flush=True)
                continue
            message = json.loads(text[1:])
            self.machine = message.get("machine", self.machine)
            current = message.get("begin", current)
            if "record" in message:
                current = None
                self.add(message["record"])
        if current is not None and time.monotonic() < self.ends:
            self.lost(current, "wrong: it hung or crashed")
        return time.monotonic() >= self.ends or len(self.records) >= len(self.lines)

    def add(self, record: dict[str, Any]) -> None:
        self.records[record["key"]] = record
        print(gpu_report.table([record], self.machine["copy"]).splitlines()[-1], flush=True)
        self.write()

    def lost(self, key: str, why: str) -> None:
        empty = {"key": key, "us": {}, "spread": {}, "flops": 0.0, "notes": {"weft": why}}
        self.records[key] = empty

    def write(self) -> None:
        found, copy = list(self.records.values()), self.machine["copy"]
        every = json.dumps({"machine": self.machine, "records": found}, indent=1)
        Path(f"{self.stem}.json").write_text(every)
        Path(f"{self.stem}.md").write_text(
            f"{gpu_report.table(found, copy)}\n{gpu_report.summary(found, copy)}\n"
            f"copy {copy / 1e9:.0f} GB/s; {self.machine['versions']}\n"
        )
        gpu_report.write_csv(found, Path(f"{self.stem}.csv"))
        Path(f"{self.stem}.svg").write_text(gpu_report.roofline(found, copy))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", default=",".join(FAMILIES))
    parser.add_argument("--lines", default="", help="only lines whose name contains one of these")
    parser.add_argument("--peers", default="eager,library,compile", help=", ".join(PEERS))
    parser.add_argument("--seconds", type=float, default=400.0, help="for everything")
    parser.add_argument(
        "--peer-seconds", type=float, default=gpu_device.PEER_SECONDS, help="for compiling a peer"
    )
    parser.add_argument("--prepare", metavar="FOLDER", help="compile into this cache, and stop")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--skip", default="[]", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(options.family.split(",")) - set(FAMILIES)
    if unknown:
        parser.error(f"there is no family {', '.join(sorted(unknown))}: take {', '.join(FAMILIES)}")
    unknown = set(options.peers.split(",")) - set(PEERS)
    if unknown:
        parser.error(f"there is no peer {', '.join(sorted(unknown))}: take {', '.join(PEERS)}")
    if options.prepare:
        return prepare(options)
    if options.child:
        measure_lines(options)
        return 0
    need_gpu(PREPARE)
    run = Run(options)
    run.measure()
    run.write()
    print(Path(f"{run.stem}.md").read_text(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
