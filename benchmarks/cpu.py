"""Weft on the CPU beside its peers: one process, two threads each, runs interleaved.

    python -m benchmarks.cpu [--lines TEXT,...] [--peers NAME,...] [--rounds N] [--least]
                             [--threads N,...] [--resume FILE] [--csv FILE] [--plot FILE]

Peers are torch (eager and compiled), jax.jit, ONNX Runtime, OpenVINO (in f32) and NumPy; those of
ONNX Runtime and OpenVINO that are not installed are named, and matplotlib is for the plot. A peer
whose error against f64 is over four times Weft's is shown, marked `!`, and not counted. The limit
is what bandwidth (an addition measured in the same run), f32 arithmetic (`--peak` GFLOP/s) or the
issue of vector instructions allow, with each input and each output moved once. With `--resume`,
every finished line is kept in the file, and a run that was broken off goes on after the last. With
`--threads 1,2,4`, each number has a process of its own, and a table shows how every line scales.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import io
import json
import math
import os
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("WEFT_CACHE", "off")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "WEFT_NUM_THREADS"):
    os.environ.setdefault(_variable, "2")
# For 2^20 ticks, not 2^28, OpenBLAS's threads hold their processors after a product, which other
# libraries are measured on next; its own calls follow each other faster than that.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
# The threads of OpenMP (torch's) spin too: Intel's for 200 ms, which is longer than a pause.
os.environ.setdefault("KMP_BLOCKTIME", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

from benchmarks.needed import need  # noqa: E402

need("jax", "torch")

import jax  # noqa: E402
import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.cpu_image_lines import LINES as IMAGES  # noqa: E402
from benchmarks.cpu_lines import LINES as BUILT  # noqa: E402
from benchmarks.cpu_lines import PEAK, THREADS, Call, Line  # noqa: E402
from benchmarks.cpu_recurrent_lines import LINES as RECURRENT  # noqa: E402
from benchmarks.cpu_row_lines import LINES as ROWS  # noqa: E402
from benchmarks.cpu_scaling import counts_of, measured, print_scaling, stay_on  # noqa: E402
from benchmarks.cpu_traced_lines import LINES as TRACED  # noqa: E402

LINES = (*BUILT, *TRACED, *RECURRENT, *ROWS, *IMAGES)


def installed(name: str) -> Any:
    """A package, or None where it is not there."""
    return import_module(name) if find_spec(name) else None


onnxruntime, openvino = installed("onnxruntime"), installed("openvino")

Array = NDArray[Any]
Found = dict[str, dict[str, float]]
PEERS = ("torch", "torch.compile", "jax", "onnxruntime", "openvino", "numpy")
PACKAGES = ("torch", "jax", "onnxruntime", "openvino", "numpy")
SECONDS = 3.0
"""What the rounds of one peer may take together; a slow peer has fewer."""
PAUSE, WARM, CALLS = 0.05, 0.04, 5
"""A turn: seconds of rest, seconds of unmeasured calls, and how many measured ones at most."""


class _Module(torch.nn.Module):  # type: ignore[misc]
    """A line's function as a module, which exporters want."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def to_torch(array: Array) -> Any:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(result: Any) -> Array:
    """A result of any library, or several in one row, in f64."""
    if isinstance(result, list | tuple):
        return np.concatenate([to_numpy(one).ravel() for one in result])
    if isinstance(result, torch.Tensor):
        result = result.detach().to(torch.float64).numpy()
    return np.asarray(result).astype(np.float64)


def calls_of(line: Line, inputs: list[Array]) -> dict[str, Callable[[], Call]]:
    """For Weft and each peer, what makes it ready."""
    tensors = [to_torch(array) for array in inputs]

    def in_jax() -> Call:
        arrays = [jax.numpy.asarray(array) for array in inputs]
        function = jax.jit(line.jax, donate_argnums=tuple(line.changed))

        def again() -> Any:
            result = jax.block_until_ready(function(*arrays))
            if not line.changed:
                return result
            first, *arrays[line.changed.start : line.changed.stop] = result
            return first

        return again

    def onnx_runtime() -> Call:
        model = io.BytesIO()
        torch.onnx.export(_Module(line.torch), tuple(tensors), model, dynamo=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        session = onnxruntime.InferenceSession(model.getvalue(), options)
        named = dict(zip((i.name for i in session.get_inputs()), inputs, strict=True))
        return lambda: session.run(None, named)[0]

    def open_vino() -> Call:
        model = openvino.convert_model(_Module(line.torch), example_input=tuple(tensors))
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": THREADS}
        ready = openvino.compile_model(model, "CPU", settings)
        return lambda: ready(inputs, share_inputs=True)[0]

    def torch_compiled() -> Call:
        function = torch.compile(line.torch)
        return lambda: function(*tensors)

    made: dict[str, Callable[[], Call]] = {
        "weft": lambda: line.weft(inputs),
        "torch": lambda: lambda: line.torch(*tensors),
        "torch.compile": torch_compiled,
        "jax": in_jax,
    }
    if line.exports and onnxruntime is not None:
        made["onnxruntime"] = onnx_runtime
    if line.exports and openvino is not None:
        made["openvino"] = open_vino
    if line.numpy is not None:
        function = line.numpy
        made["numpy"] = lambda: lambda: function(*inputs)
    return made


def measure(line: Line, rounds: int, least: bool = False, peers: Collection[str] = PEERS) -> Found:
    """Milliseconds, error against f64 and seconds until the first result, by name."""
    inputs = line.inputs()
    wide = [to_torch(a) for a in inputs]
    exact = line.torch(*(t.double() if t.is_floating_point() else t for t in wide))
    ready: dict[str, Call] = {}
    found: Found = {}
    for name, make in calls_of(line, inputs).items():
        if name != "weft" and name not in peers:
            continue
        started = time.perf_counter()
        try:
            call = make()
            result = call()
        except Exception as error:
            why = (str(error).splitlines() or [type(error).__name__])[0]
            print(f"{line.name}: {name} failed: {why[:120]}", file=sys.stderr)
            continue
        first = time.perf_counter() - started
        ready[name] = call
        off = float(np.abs(to_numpy(result) - to_numpy(exact)).max())
        found[name] = {"first_s": first, "error": off}
        if name == "weft":
            results = result if isinstance(result, list) else [result]
            found[name]["bytes"] = float(sum(np.asarray(one).nbytes for one in results))
    for name, times in interleaved(ready, rounds).items():
        found[name]["ms"] = (min(times) if least else statistics.median(times)) * 1e3
    return found


def interleaved(calls: Mapping[str, Call], rounds: int) -> dict[str, list[float]]:
    """Seconds of calls, the libraries taking turns in random order. A turn is a pause, unmeasured
    calls for WARM seconds and a few measured ones: idle threads of some libraries hold a core for
    seconds (OpenBLAS's yield, others spin), and the scheduler needs a few calls of whoever comes
    next until that one's threads have both cores again."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    order = random.Random(0)
    for _ in range(rounds):
        for name in order.sample(list(calls), len(calls)):
            if 2 * sum(seconds[name]) <= SECONDS:
                time.sleep(PAUSE)
                seconds[name] += turn(calls[name])
    return seconds


def turn(call: Call) -> list[float]:
    """Seconds of the measured calls of one turn; a call over SECONDS needs no other before it."""
    warm = 0.0
    while warm < WARM:
        started = time.perf_counter()
        call()
        warm += time.perf_counter() - started
        if warm > SECONDS:
            return [warm]
    taken: list[float] = []
    while len(taken) < CALLS and sum(taken) < WARM:
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return taken


def bandwidth() -> float:
    """Bytes a second that two threads add and store, into memory that was written before."""
    a, b, c = (torch.ones(1 << 24) for _ in range(3))
    times = []
    for _ in range(9):
        started = time.perf_counter()
        torch.add(a, b, out=c)
        times.append(time.perf_counter() - started)
    return 3 * 4 * (1 << 24) / min(times)


def counted(found: Found) -> dict[str, float]:
    """The milliseconds of the peers whose error is not over four times ours."""
    bound = 4 * found["weft"]["error"] + 1e-12
    return {n: f["ms"] for n, f in found.items() if n != "weft" and f["error"] <= bound}


def ratio_of(found: Found) -> tuple[float, str]:
    """The best counted peer's time over ours, and which peer that is."""
    peers = counted(found)
    best = min(peers, key=lambda name: peers[name], default="")
    return (peers[best] / found["weft"]["ms"], best) if best else (float("nan"), "-")


def row_of(line: Line, found: Found, limit: float) -> list[str]:
    peers = counted(found)
    cells = [line.name, f"{found['weft']['ms']:.2f}"]
    for name in PEERS:
        mark = "" if name in peers else " !"
        cells.append(f"{found[name]['ms']:.2f}{mark}" if name in found else "-")
    ratio, best = ratio_of(found)
    firsts = [f"{found[n]['first_s']:.2f}" if n in found else "-" for n in ("weft", PEERS[1])]
    share = f"{100 * limit * 1e3 / found['weft']['ms']:.0f} %"
    return [*cells, f"{ratio:.2f} ({best})", share, *firsts]


def bars(results: Mapping[str, Found]) -> list[str]:
    """The geometric mean and the least ratio of each kind of line."""
    lines = []
    for kind in dict.fromkeys(line.kind for line in LINES):
        ratios = [
            ratio_of(results[n.name])[0] for n in LINES if n.kind == kind and n.name in results
        ]
        ratios = [ratio for ratio in ratios if math.isfinite(ratio)]
        if ratios:
            mean = float(np.exp(np.mean(np.log(ratios))))
            lines.append(f"{kind}: geometric mean {mean:.2f}, least {min(ratios):.2f}")
    return lines


def version(package: str) -> str:
    """What of a package is here."""
    found = find_spec(package) is not None
    return f"{package} {importlib.metadata.version(package)}" if found else f"no {package}"


def plot(path: Path, results: Mapping[str, Found]) -> None:
    """The ratios to the best peer as bars from 1, won to the right and lost to the left."""
    pyplot = import_module("matplotlib.pyplot")
    pyplot.rcParams["svg.fonttype"] = "none"  # text, not its outlines: a fifth of the bytes
    ratios = {name: ratio_of(found) for name, found in reversed([*results.items()])}
    ratios = {name: found for name, found in ratios.items() if math.isfinite(found[0])}
    figure, axes = pyplot.subplots(figsize=(9, 0.22 * len(ratios) + 1))
    for place, (ratio, peer) in enumerate(ratios.values()):
        axes.barh(place, ratio - 1, left=1, color="#2f6f9f" if ratio >= 1 else "#c05a2b")
        side = "left" if ratio >= 1 else "right"
        axes.text(ratio, place, f" {ratio:.2f} {peer} ", ha=side, va="center", fontsize=7)
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.35, 2.2 * max(ratio for ratio, _ in ratios.values()))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(range(len(ratios)), list(ratios), fontsize=7)
    axes.margins(y=0.005)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlabel(f"time of the best peer / time of Weft, {THREADS} threads each")
    figure.tight_layout()
    figure.savefig(path)


def load_state(path: Path | None) -> dict[str, Found]:
    """The lines that an earlier run has finished."""
    if path is None or not path.exists():
        if path is not None and not path.parent.is_dir():
            raise SystemExit(f"--resume: there is no folder {path.parent}")
        return {}
    try:
        return dict(json.loads(path.read_text()))
    except ValueError:
        raise SystemExit(f"--resume: {path} is not what an earlier run has kept") from None


def keep_state(path: Path, results: Mapping[str, Found]) -> None:
    """Keep what is finished; a run that is broken off meanwhile leaves what was kept before."""
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_text(json.dumps(results, indent=1))
    unfinished.replace(path)


def wanted(text: str) -> list[Line]:
    found = [n for n in LINES if not text or any(part in n.name for part in text.split(","))]
    if not found:
        raise SystemExit(f"--lines: no line has {text} in its name")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", default="")
    parser.add_argument("--peers", default=",".join(PEERS), help="those to measure")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--least", action="store_true", help="minima: others use the machine")
    parser.add_argument("--peak", type=float, default=PEAK / 1e9, help="GFLOP/s of the threads")
    parser.add_argument("--resume", type=Path, help="where finished lines are kept")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--threads", default="", help="numbers of threads, such as 1,2,4")
    options = parser.parse_args()
    if options.threads:
        passed = ["--lines", options.lines, "--rounds", str(options.rounds)]
        passed += ["--peers", options.peers]
        passed += ["--least"] if options.least else []
        print_scaling(measured(counts_of(options.threads), passed), ratio_of)
        return
    peers = options.peers.split(",")
    if unknown := sorted({*peers} - {*PEERS}):
        raise SystemExit(f"--peers has {', '.join(unknown)}; there are {', '.join(PEERS)}")
    lines, results = wanted(options.lines), load_state(options.resume)
    if options.plot:
        need("matplotlib")
    stay_on(THREADS)
    torch.set_num_threads(THREADS)
    warnings.filterwarnings("ignore")
    moved = bandwidth()
    print(", ".join([*map(version, PACKAGES), f"triad {moved / 1e9:.1f} GB/s"]))
    headers = [
        "line",
        "weft ms",
        *PEERS,
        "best peer / weft",
        "of limit",
        "first call s",
        "(compile)",
    ]
    table, rows = Table(*headers), list[list[str]]()
    for line in lines:
        if line.name not in results:
            found = measure(line, options.rounds, options.least, peers)
            if "weft" not in found:
                continue
            results[line.name] = found
            if options.resume:
                keep_state(options.resume, results)
        found = results[line.name]
        limit = line.limit(int(found["weft"]["bytes"]), moved, options.peak * 1e9)
        rows.append(row_of(line, found, limit))
        table.add_row(*rows[-1])
        print(" | ".join(rows[-1]), flush=True)
    Console(width=200).print(table)
    print("\n".join(bars(results)))
    if options.csv:
        with options.csv.open("w", newline="") as file:
            csv.writer(file).writerows([headers, *rows])
    if options.plot:
        plot(options.plot, results)


if __name__ == "__main__":
    main()
