"""Weft on the CPU beside its peers: one process, two threads each, runs interleaved.

    python -m benchmarks.cpu [--lines TEXT,...] [--rounds N] [--csv FILE] [--plot FILE]

Peers are torch (eager and compiled), ONNX Runtime, OpenVINO (in f32) and NumPy; all of them must be
installed, and matplotlib for the plot. A peer whose error against f64 is over four times Weft's is
shown, marked `!`, and not counted. The limit is what bandwidth (an addition measured in the same
run) or arithmetic (`--peak` GFLOP/s) allow, with each input and each output moved once.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import io
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "2")

import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402
import openvino  # noqa: E402
import torch  # noqa: E402
from matplotlib import pyplot  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

import weft  # noqa: E402
from benchmarks.cpu_lines import LINES, Line  # noqa: E402

Array = NDArray[Any]
Call = Callable[[], Any]
THREADS = 2
PEERS = ("torch", "torch.compile", "onnxruntime", "openvino", "numpy")


class _Module(torch.nn.Module):  # type: ignore[misc]
    """A line's function as a module, which exporters want."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def calls_of(line: Line, inputs: list[Array]) -> dict[str, Callable[[], Call]]:
    """For Weft and each peer, what makes it ready."""
    tensors = [torch.from_numpy(array) for array in inputs]

    def compiled() -> Call:
        executable = weft.compile(line.program(), "cpu")
        return lambda: executable.run(inputs, threads=THREADS)[0]

    def onnx_runtime() -> Call:
        model = io.BytesIO()
        torch.onnx.export(_Module(line.torch), tuple(tensors), model, dynamo=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        session = onnxruntime.InferenceSession(model.getvalue(), options)
        names = [found.name for found in session.get_inputs()]
        return lambda: session.run(None, dict(zip(names, inputs, strict=True)))[0]

    def open_vino() -> Call:
        model = openvino.convert_model(_Module(line.torch), example_input=tuple(tensors))
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": THREADS}
        ready = openvino.compile_model(model, "CPU", settings)
        return lambda: ready(inputs, share_inputs=True)[0]

    def torch_compiled() -> Call:
        function = torch.compile(line.torch)
        return lambda: function(*tensors)

    made: dict[str, Callable[[], Call]] = {
        "weft": compiled,
        "torch": lambda: lambda: line.torch(*tensors),
        "torch.compile": torch_compiled,
        "onnxruntime": onnx_runtime,
        "openvino": open_vino,
    }
    if line.numpy is not None:
        function = line.numpy
        made["numpy"] = lambda: lambda: function(*inputs)
    return made


def measure(line: Line, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds, error against f64 and seconds until the first result, by name."""
    inputs = line.inputs()
    exact = line.torch(*(torch.from_numpy(a.astype(np.float64)) for a in inputs)).numpy()
    ready: dict[str, Call] = {}
    found: dict[str, dict[str, float]] = {}
    for name, make in calls_of(line, inputs).items():
        started = time.perf_counter()
        try:
            call = make()
            result = np.asarray(call())
        except Exception as error:
            print(
                f"{line.name}: {name} failed: {str(error).splitlines()[0][:120]}", file=sys.stderr
            )
            continue
        first = time.perf_counter() - started
        ready[name] = call
        found[name] = {"first_s": first, "error": float(np.abs(result - exact).max())}
    seconds: dict[str, list[float]] = {name: [] for name in ready}
    for _ in range(rounds):
        for name, call in ready.items():
            for warm in (True, False):
                started = time.perf_counter()
                call()
                if not warm:
                    seconds[name].append(time.perf_counter() - started)
    for name, times in seconds.items():
        found[name]["ms"] = statistics.median(times) * 1e3
    found["weft"]["results"] = exact.size
    return found


def bandwidth() -> float:
    """Bytes a second that two threads add and store, into memory that was written before."""
    a, b, c = (torch.ones(1 << 24) for _ in range(3))
    times = []
    for _ in range(9):
        started = time.perf_counter()
        torch.add(a, b, out=c)
        times.append(time.perf_counter() - started)
    return 3 * 4 * (1 << 24) / min(times)


def counted(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The milliseconds of the peers whose error is not over four times ours."""
    bound = 4 * found["weft"]["error"] + 1e-12
    return {n: f["ms"] for n, f in found.items() if n != "weft" and f["error"] <= bound}


def row_of(line: Line, found: Mapping[str, Mapping[str, float]], limit: float) -> list[str]:
    ours, peers = found["weft"]["ms"], counted(found)
    best = min(peers, key=lambda name: peers[name], default="")
    cells = [line.name, f"{ours:.2f}"]
    for name in PEERS:
        mark = "" if name in peers else " !"
        cells.append(f"{found[name]['ms']:.2f}{mark}" if name in found else "-")
    ratio = f"{peers[best] / ours:.2f} ({best})" if best else "-"
    return [*cells, ratio, f"{100 * limit * 1e3 / ours:.0f} %", f"{found['weft']['first_s']:.2f}"]


def plot(path: Path, rows: list[tuple[str, float]]) -> None:
    """The ratios to the best peer, as bars."""
    figure, axes = pyplot.subplots(figsize=(8, 0.4 * len(rows) + 1))
    axes.barh([name for name, _ in rows], [ratio for _, ratio in rows])
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlabel("best peer's time / Weft's time")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", default="")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--peak", type=float, default=91.3, help="GFLOP/s of two threads")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    versions = [
        f"{n} {importlib.metadata.version(n)}" for n in ("torch", "onnxruntime", "openvino")
    ]
    moved = bandwidth()
    print(", ".join([*versions, f"numpy {np.__version__}", f"triad {moved / 1e9:.1f} GB/s"]))
    headers = ["line", "weft ms", *PEERS, "best peer / weft", "of limit", "first call s"]
    table, rows = Table(*headers), []
    for line in LINES:
        if options.lines and not any(part in line.name for part in options.lines.split(",")):
            continue
        found = measure(line, options.rounds)
        results = int(found["weft"]["results"])
        row = row_of(line, found, line.limit(results, moved, options.peak * 1e9))
        rows.append(row)
        table.add_row(*row)
        print(" | ".join(row), flush=True)
    Console(width=180).print(table)
    if options.csv:
        with options.csv.open("w", newline="") as file:
            csv.writer(file).writerows([headers, *rows])
    if options.plot:
        ratios = [(row[0], float(row[-3].split()[0])) for row in rows if row[-3] != "-"]
        plot(options.plot, ratios)


if __name__ == "__main__":
    main()
