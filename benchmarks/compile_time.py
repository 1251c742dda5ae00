"""How long compiling takes: Weft beside torch.compile, both from cold and from their disk caches.

    python -m benchmarks.compile_time [--torch-python PATH] [--runs N] [--models NAME,...]

Three models: twelve blocks of attention with key-value caches (`examples/make_programs.py`), a
GPT-2-small forward pass of 128 tokens (`examples/gpt.py`), and a step of training it. Every
measurement is a process of its own, with an empty cache folder for the cold ones and the folder of
the cold one before for the warm ones; the two compilers take turns. Python has the bytecode of Weft
at hand, as it has that of any installed package. A time is that of compiling and the first call,
less that of a later call; imports of torch and building the model are not counted, what Weft loads
in order to compile is. Medians are shown, of the clock on the wall and of what processors worked,
which says more where others use the machine too. torch needs a C++ compiler (`apt install g++`).

The bar is a fifth of torch's cold time, and a tenth of that fifth for a second process: ratios of
0.2 and 0.02, both to torch's cold time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
BAR, WARM_BAR = 0.2, 0.02
"""What part of torch's cold time Weft may take, with an empty cache folder and with a full one."""
MODELS = ("attention_12_blocks", "gpt2", "gpt2_training")


@dataclass(frozen=True)
class Side:
    """A compiler: how a measurement is started, and where it keeps what it compiled."""

    name: str
    command: tuple[str, ...]
    cache_variable: str
    environment: Mapping[str, str]

    def measure(self, model: str, cache: Path) -> dict[str, Any]:
        environment = {**self.environment, self.cache_variable: str(cache)}
        done = subprocess.run(
            [*self.command, model],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{self.name} failed on {model}:\n{done.stderr[-4000:]}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


@dataclass
class Times:
    """The measurements of one compiler with one model."""

    cold: list[dict[str, Any]]
    warm: list[dict[str, Any]]

    def median(self, which: str, field: str = "compile") -> float:
        return statistics.median(float(found[field]) for found in self._all(which))

    def stage(self, which: str, name: str) -> float:
        return statistics.median(float(f["stages"].get(name, 0.0)) for f in self._all(which))

    def _all(self, which: str) -> list[dict[str, Any]]:
        return self.cold if which == "cold" else self.warm


def sides(torch_python: str | None, bytecode: str) -> list[Side]:
    outside = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    here = {**outside, "PYTHONPYCACHEPREFIX": bytecode}
    command = (sys.executable, "-m", "benchmarks.compile_time_weft")
    ours = Side("weft", command, "WEFT_CACHE", here)
    load = (
        "import benchmarks.compile_time_weft, weft.driver.pipeline, weft.driver.code.cpu_generator"
    )
    subprocess.run([sys.executable, "-c", load], cwd=ROOT, env=here, check=True)
    if torch_python is None:
        return [ours]
    theirs = (torch_python, "-m", "benchmarks.compile_time_torch")
    return [ours, Side("torch.compile", theirs, "TORCHINDUCTOR_CACHE_DIR", outside)]


def find_torch(given: str | None) -> str | None:
    """A Python that has torch: the one that was named, or this one."""
    found = given or sys.executable
    check = subprocess.run([found, "-c", "import torch"], capture_output=True, check=False)
    if check.returncode == 0:
        return found
    if given:
        sys.exit(f"{given} cannot import torch")
    return None


def measure(model: str, compilers: Sequence[Side], runs: int, console: Console) -> dict[str, Times]:
    times = {side.name: Times([], []) for side in compilers}
    for number in range(runs):
        for side in compilers:
            cache = Path(tempfile.mkdtemp(prefix="weft-compile-time-"))
            try:
                cold, warm = side.measure(model, cache), side.measure(model, cache)
            finally:
                shutil.rmtree(cache, ignore_errors=True)
            times[side.name].cold.append(cold)
            times[side.name].warm.append(warm)
            console.print(
                f"{model} {number + 1}/{runs} {side.name}: cold {cold['compile']:.2f} s, "
                f"warm {warm['compile']:.2f} s",
                highlight=False,
            )
    return times


def times_table(results: Mapping[str, Mapping[str, Times]]) -> Table:
    title = f"seconds to compile, and parts of torch's cold ones; the bars are {BAR} and {WARM_BAR}"
    table = Table(title=title)
    table.add_column("model", no_wrap=True)
    table.add_column("compiler", no_wrap=True)
    for heading in ("cold", "ratio", "warm", "ratio"):
        table.add_column(heading, justify="right")
    for heading in ("work cold", "ratio", "warm", "ratio", "one run"):
        table.add_column(heading, justify="right")
    for model, times in results.items():
        peer = times.get("torch.compile")
        for name, found in times.items():
            cells = [c for field in ("compile", "work") for c in _seconds(found, peer, field)]
            table.add_row(model, name, *cells, f"{found.median('cold', 'run'):.4f}")
    return table


def _seconds(found: Times, peer: Times | None, field: str) -> list[str]:
    """Cold and warm, each with what part of the other compiler's cold time it is."""
    cells = []
    for which in ("cold", "warm"):
        seconds = found.median(which, field)
        ratio = f"{seconds / peer.median('cold', field):.3f}" if peer else ""
        cells += [f"{seconds:.2f}", ratio]
    return cells


def stages_table(results: Mapping[str, Mapping[str, Times]]) -> Table:
    table = Table(title="milliseconds of Weft's stages")
    table.add_column("stage", no_wrap=True)
    columns = [(model, which) for model in results for which in ("cold", "warm")]
    for model, which in columns:
        table.add_column(f"{model} {which}", justify="right")
    ours = {model: times["weft"] for model, times in results.items()}
    names = dict.fromkeys(n for times in ours.values() for n in times.cold[0]["stages"])
    for name in names:
        cells = (f"{1e3 * ours[model].stage(which, name):.1f}" for model, which in columns)
        table.add_row(name, *cells)
    table.add_section()
    table.add_row("all of it", *(f"{1e3 * ours[m].median(w):.1f}" for m, w in columns))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--torch-python", help="a Python interpreter that has torch")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--models", default=",".join(MODELS))
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    with tempfile.TemporaryDirectory(prefix="weft-bytecode-") as bytecode:
        compilers = sides(find_torch(options.torch_python), bytecode)
        results = {
            model: measure(model, compilers, options.runs, console)
            for model in options.models.split(",")
        }
    console.print(times_table(results))
    console.print(stages_table(results))
    for model, times in results.items():
        ours = times["weft"].cold[0]
        console.print(
            f"{model}: {ours['kernels']} kernels, {ours['distinct']} distinct", highlight=False
        )
    versions = dict.fromkeys(
        found.cold[0]["version"] for t in results.values() for found in t.values()
    )
    console.print("; ".join(versions), highlight=False)
    if len(compilers) == 1:
        console.print("torch is not installed here; name a Python that has it: --torch-python PATH")


if __name__ == "__main__":
    main()
