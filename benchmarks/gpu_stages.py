"""The stencil programs and filters of `fusion_programs` on a GPU: kernels with stages beside
torch.compile.

    PYTHONPATH=src:.gpu-wheels python3 -m benchmarks.gpu_stages [--sizes 1500,6000] [--peers torch]

Images are random, results are compared with the program in f64 on the device, and everything of a
line is recorded once and launched in turn, with other data in the cache before each launch; medians
in microseconds.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from benchmarks.fusion_peers import weft_program
from benchmarks.fusion_programs import FILTERS, PROGRAMS
from benchmarks.gpu_device import Machine, Ours
from benchmarks.needed import need_gpu

STENCILS: Final = ("blur4", "jacobi4", "unsharp", "harris")
LINES: Final = {**PROGRAMS, **FILTERS}
LAUNCHES: Final = 30
TOLERANCE: Final = 1e-4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default=",".join((*STENCILS, *FILTERS)))
    parser.add_argument("--sizes", default="1500,6000")
    parser.add_argument("--peers", default="torch", help="torch, or nothing")
    options = parser.parse_args()
    need_gpu()
    machine = Machine()
    print("| program | size | kernels | weft µs | torch.compile | ratio | off by |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for size in map(int, options.sizes.split(",")):
        for name in options.programs.split(","):
            print(row(machine, name, size, beside=options.peers == "torch"), flush=True)
    return 0


def shape_of(name: str, size: int) -> tuple[int, ...]:
    """An image of that size; of several with channels, a share of its points each."""
    ((first, *_, last),) = LINES[name].shapes
    if len(LINES[name].shapes[0]) == 2:
        return size, size
    edge = round(size / (first * last) ** 0.5)
    return first, edge, edge, last


def row(machine: Machine, name: str, size: int, *, beside: bool) -> str:
    """A line of the table."""
    torch, line = machine.torch, LINES[name]
    shape = shape_of(name, size)
    x = 0.3 * torch.randn(*shape, device="cuda")
    library = SimpleNamespace()
    wanted = line.program(library, x.double()).float()
    program = weft_program(line, [np.zeros(shape, np.float32)])
    asked: Any = SimpleNamespace(program=lambda: program, target="sm90")
    ours = Ours(machine, asked, [x])
    calls: dict[str, Callable[[], Any]] = {"weft": ours.run}
    if beside:
        compiled = torch.compile(lambda image: line.program(library, image), dynamic=False)
        calls["torch"] = lambda: compiled(x)
    graphs = {who: machine.recorded(call)[0] for who, call in calls.items()}
    found = machine.interleaved(graphs, LAUNCHES)
    times = {who: 1e6 * statistics.median(seconds) for who, seconds in found.items()}
    ours.run()
    torch.cuda.synchronize()
    off = float((ours.outputs[0] - wanted).abs().max() / wanted.abs().max())
    wrong = " WRONG" if off > TOLERANCE else ""
    peer = times.get("torch")
    shown = ("", "") if peer is None else (f"{peer:.1f}", f"{peer / times['weft']:.2f}")
    steps = len(ours.artifact.steps)
    cells = (name, f"{size}²", str(steps), f"{times['weft']:.1f}", *shown, f"{off:.0e}{wrong}")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    raise SystemExit(main())
