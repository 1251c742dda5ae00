"""`weft tune`: measure plans for the kernels of a program, or for matrix products; `weft log`: how
good estimates are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from weft.cli.compile import with_sizes
from weft.cli.programs import load_program
from weft.cli.report import check_writable, complain, printable
from weft.cli.tables import new_table, print_table
from weft.driver.cuda import target_of_device
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.levels import DEFAULT_LEVEL, check_level
from weft.driver.tuning import measure
from weft.driver.tuning.products import Product, product_named
from weft.driver.tuning.tune import Trial, Tuning, tune
from weft.driver.tuning.tune_products import FormFile, tune_products
from weft.foundation.errors import UserError
from weft.foundation.tally import counted
from weft.ptir.ir import Program
from weft.ptir.verify import verify
from weft.runtime import cache
from weft.runtime.cuda.gpu import open_gpu
from weft.target.known import target_named
from weft.target.target import Kind

GOOD: float = 0.7
"""The least rank correlation at which estimates are good for choosing."""


def tune_command(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A PTIR program.", show_default=False)
    ] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="For this machine's GPU.")] = False,
    shapes: Annotated[
        str,
        typer.Option(
            metavar="MxNxK,...",
            help="With --gpu, matrix products to tune in place of a program, or a file with one in "
            "each line: 192*1024x1024x64 is a batch, '16x4096x4096 NT' stores the second operand "
            "the other way round.",
        ),
    ] = "",
    data: Annotated[
        Path | None,
        typer.Option(metavar="JSON", help="With --shapes, keep the times of all forms here, too."),
    ] = None,
    sizes: Annotated[
        str, typer.Option(metavar="NAME=N,...", help="The sizes of dynamic dims.")
    ] = "",
    log: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Add every measurement to this log.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Measure what was tuned before, too.")
    ] = False,
    level: Annotated[
        int, typer.Option("-O", metavar="LEVEL", help="How kernels are fused, as in compile.")
    ] = DEFAULT_LEVEL,
) -> None:
    """Measure 10 to 20 plans for each kernel of FILE that differs, and keep the best ones.

    Compiles on this machine use them from then on. Ctrl-C keeps what was found.
    """
    _check_asked(file, gpu, shapes, data)
    check_level(level)
    if log is not None:
        check_writable(log)
    program = None if file is None else _program(file, sizes)
    products = products_in(shapes) if shapes else []
    target = target_named(target_of_device() if gpu else "cpu")
    _check_cache()
    with _bar() as bar:
        if program is None or file is None:
            into = None if data is None else FormFile(data, open_gpu().device.name, target)
            done = tune_products(products, target, bar.show, bar.start, again=again, into=into)
            tunings = [(str(product), tuning) for product, tuning in done]
        else:
            compilation = Compilation(program, target, make_signature(program), opt_level=level)
            tuning = tune(compilation, bar.show, bar.start, again=lambda kernels: again)
            tunings = [(printable(str(file)), tuning)]
    for name, tuning in tunings:
        if log is not None:
            measure.append(log, tuning.measured)
        _report(name, tuning, "GPU" if target.kind is Kind.GPU else "CPU")


def _check_cache() -> None:
    """What is found can be kept."""
    where = cache.folder()
    if where is None:
        raise UserError("tuned plans are kept in Weft's cache, which WEFT_CACHE=off switches off")
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"tuned plans are kept in Weft's cache, but the folder {where} cannot be made: "
            f"{error.strerror or error}"
        ) from None
    check_writable(where / "tuned")


def _check_asked(file: Path | None, gpu: bool, shapes: str, data: Path | None) -> None:
    """There is one thing to tune, and the options belong to it."""
    if (file is None) == (not shapes):
        raise UserError("weft tune takes a program, or --shapes with matrix products, one of both")
    if shapes and not gpu:
        raise UserError("--shapes tunes the forms of matrix kernels on a GPU: add --gpu")
    if data is not None and not shapes:
        raise UserError("--data keeps the times of matrix products: name them with --shapes")


def _program(file: Path, sizes: str) -> Program:
    program = load_program(file)
    verify(program)
    return with_sizes(program, sizes)


def products_in(text: str) -> list[Product]:
    """Products from a list, or from a file of them; lines that begin with # say something."""
    path = Path(text)
    try:
        if path.is_file():
            lines = path.read_text().splitlines()
            text = ",".join(line for line in lines if not line.lstrip().startswith("#"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    found = [product_named(part) for part in text.split(",") if part.strip()]
    if not found:
        raise UserError(f"there is no matrix product in {printable(str(path))}")
    return found


class _Bar:
    """A progress bar with the kernel at hand and its best plan so far."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.task = progress.add_task("", total=None, best="")
        self.points = 0

    def start(self, tuning: Tuning) -> None:
        """More plans to measure: those of a program, or of one product among several."""
        self.points += tuning.points
        self.progress.update(self.task, total=self.points)

    def show(self, trial: Trial) -> None:
        best = f"best {1e6 * trial.best:,.1f} µs"
        name = f"{trial.kernels.kernel.name} {trial.number}/{len(trial.kernels.plans)}"
        self.progress.update(self.task, advance=1, description=name, best=best)


@contextmanager
def _bar() -> Iterator[_Bar]:
    """On stderr, and only where somebody looks."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[best]}"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not sys.stderr.isatty()
    ) as progress:
        yield _Bar(progress)


def _report(name: str, tuning: Tuning, where: str) -> None:
    table = new_table()
    table.add_column("kernel", no_wrap=True)
    for title in ("like it", "plans", "first, µs", "best, µs", "gain"):
        table.add_column(title, justify="right")
    for kernels in tuning.classes:
        found = tuning.found.get(kernels.key)
        if found is not None:
            gain = found.first_seconds / found.seconds
            times = f"{1e6 * found.first_seconds:,.1f}", f"{1e6 * found.seconds:,.1f}"
            alike, points = str(kernels.count), f"{found.points}/{found.of}"
            table.add_row(kernels.kernel.name, alike, points, *times, f"{gain:.2f}x")
    if table.row_count:
        print_table(table)
    plans, known = counted(len(tuning.measured), "plan"), counted(tuning.known, "kernel")
    print(f"{name}: {plans} measured on the {where}, {known} tuned before")
    if not tuning.is_kept:
        complain(
            f"what was found could not be kept in {cache.folder()}, and no compile will use it: "
            "make room there, or name another folder with WEFT_CACHE, and tune again"
        )
    elif tuning.interrupted:
        complain("stopped: what was found so far is kept, the next weft tune goes on from there")


def log_command(
    file: Annotated[Path, typer.Argument(metavar="CSV", help="A log of measurements.")],
) -> None:
    """Say how well the estimates in a log put kernels in the order of their measured times."""
    lines = measure.read(file)
    found = measure.rank_correlation(lines)
    verdict = "good enough to choose by" if found >= GOOD else f"below {GOOD}"
    print(
        f"{printable(str(file))}: {counted(len(lines), 'measurement')}, rank correlation of "
        f"estimate and actual {found:.2f}, {verdict}"
    )
