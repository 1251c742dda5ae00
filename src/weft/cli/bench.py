"""`weft bench`: how long programs and matrix products take, on made-up inputs."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

import weft
from weft.cli.report import printable
from weft.cli.sizes import Sizes, load_sized
from weft.cli.tables import new_table, print_table
from weft.cli.tuning import products_in
from weft.driver.backends import TimedExecutable, get_backend
from weft.driver.execute import Prepared, prepare
from weft.driver.tuning.single_kernel import some_data
from weft.foundation.errors import UserError
from weft.ptir.ir import Program
from weft.ptir.types import TensorType
from weft.runtime.artifact import TensorSpec

ROUNDS: Final = 5
_ROUND_SECONDS: Final = 0.05
"""About how long the runs of a round take together; the median of the rounds counts."""
_MOST_RUNS: Final = 1000
_MODELS: Final = "benchmarks/models.py"
USUAL: Final = "4096x4096x4096 NT,8192x8192x8192 NT,16x4096x4096 NT,1024x2304x768 NT"
"""What a GPU is measured by where nothing is named: two products that keep all of it busy, one of
few rows, one of a small model."""


def bench_command(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE...", help="PTIR programs.")
    ] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="On this machine's GPU.")] = False,
    shapes: Annotated[
        str,
        typer.Option(
            metavar="MxNxK,...",
            help="Matrix products in bf16, written as for weft tune.",
        ),
    ] = "",
    sizes: Sizes = None,
    models: Annotated[
        bool,
        typer.Option(
            "--models",
            help="Whole models compared with torch, in a clone of Weft's repository: FILE is a "
            'name, such as "gpt2*"; without FILE all models, without --gpu small ones.',
        ),
    ] = False,
) -> None:
    """Measure how long a run of each FILE takes on made-up inputs: many runs in a row, the median
    of five rounds.

    On a GPU, tensors stay there, and the host does not wait for each run. The first column is then
    the time of a run on the device, measured by its own clock: many runs in one graph, on operands
    that are not in its cache. The second column is the time of a call from Python, measured by the
    host's clock. Programs with steps on the host or with branches have only the second column.
    Without FILE and --shapes, a GPU multiplies a few typical matrices.
    """
    if models:
        if shapes or sizes:
            raise UserError("--models cannot be combined with --shapes or --sizes")
        raise typer.Exit(_run_models(",".join(map(str, files or [])) or "*", gpu))
    if not files and not shapes:
        if not gpu:
            raise UserError("weft bench takes programs, or --shapes with matrix products")
        shapes = USUAL
    table = new_table()
    table.add_column("program", no_wrap=True)
    for title in (*(("device µs", "host µs a call") if gpu else ("µs",)), "TFLOP/s"):
        table.add_column(title, justify="right")
    for name, program, flops in _find_programs(files or [], shapes, sizes):
        times = _times(prepare(program, get_backend("cuda" if gpu else "cpu")), gpu)
        seconds = next(time for time in times if time is not None)
        rate = f"{flops / seconds / 1e12:.2f}" if flops else ""
        table.add_row(name, *("" if t is None else f"{1e6 * t:,.1f}" for t in times), rate)
    print_table(table)


def _run_models(names: str, gpu: bool) -> int:
    """The benchmark of whole models, which is no part of the package; its exit code."""
    root = Path(weft.__file__).resolve().parents[2]
    if not (root / _MODELS).is_file():
        raise UserError(
            "the models are part of Weft's repository, not of the installed package; run "
            "weft bench --models, or python -m benchmarks.models, from a checkout"
        )
    where = ["--device", "cuda"] if gpu else ["--device", "cpu", "--tiny"]
    command = [sys.executable, "-m", "benchmarks.models", "--models", names, *where]
    return subprocess.run(command, cwd=root, check=False).returncode  # noqa: S603


def _find_programs(
    files: Sequence[Path], shapes: str, sizes: Sequence[str] | None
) -> Iterator[tuple[str, Program, float]]:
    """Names, programs, and the operations of products."""
    for file in files:
        yield printable(str(file)), load_sized(file, sizes), 0.0
    for product in products_in(shapes) if shapes else ():
        work = 2.0 * product.batch * product.m * product.n * product.k
        yield str(product), product.program(), work


def _times(prepared: Prepared, gpu: bool) -> list[float | None]:
    """The columns of one program, in seconds."""
    held = _made_up(prepared)
    called = _seconds(prepared, held)
    if not gpu:
        return [called]
    timed = prepared.executable
    return [timed.device_seconds(held) if isinstance(timed, TimedExecutable) else None, called]


def _made_up(prepared: Prepared) -> list[Any]:
    """Inputs, as the backend holds them."""
    backend, held = prepared.backend, []
    for number, kind in enumerate(prepared.program.main.parameters):
        if not isinstance(kind, TensorType):
            raise UserError("weft bench can only make up tensors, but the program takes a tuple")
        spec = TensorSpec("", kind.dtype.name, kind.static_shape)
        held.append(backend.store(some_data(spec, number)))
    return held


def _seconds(prepared: Prepared, held: Sequence[Any]) -> float:
    """Of one call among many."""
    once = _seconds_per_run(prepared, held, 1)
    once = min(once, _seconds_per_run(prepared, held, 1))
    count = max(1, min(_MOST_RUNS, int(_ROUND_SECONDS / max(once, 1e-7))))
    return statistics.median(_seconds_per_run(prepared, held, count) for _ in range(ROUNDS))


def _seconds_per_run(prepared: Prepared, held: Sequence[Any], count: int) -> float:
    """The seconds of a run among so many; what the last one made is waited for."""
    started = time.perf_counter()
    for _ in range(count):
        results = prepared.execute(held)
    for result, kind in zip(results, prepared.results, strict=True):
        prepared.backend.read_storage(result, kind)
    return (time.perf_counter() - started) / count
