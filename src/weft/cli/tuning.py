"""What `weft tune` does: plans are measured behind a progress bar, and what was found is told."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from weft.cli.report import complain, printable
from weft.cli.sizes import load_sized
from weft.cli.tables import new_table, print_table
from weft.driver.cuda import target_of_device
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.driver.tuning import measure
from weft.driver.tuning.farm import dask_executor, tune_on
from weft.driver.tuning.measure import Ranking
from weft.driver.tuning.products import Product, product_named
from weft.driver.tuning.tune import Trial, Tuning
from weft.driver.tuning.tune_products import FormFile, tune_products
from weft.foundation.errors import UserError
from weft.foundation.files import check_writable
from weft.foundation.tally import counted
from weft.ptir.ir import Program
from weft.runtime import cache
from weft.runtime.cuda.gpu import open_gpu
from weft.target.known import target_named
from weft.target.target import Kind, Target

GOOD: Final = 0.6
"""The least rank correlation at which estimates are good for choosing."""
DIFFERENT: Final = 1.15
"""Times of the slowest plan over the fastest one's, from which on their order says something."""


def tune_file(
    file: Path,
    sizes: Sequence[str] | None,
    log: Path | None,
    *,
    gpu: bool,
    again: bool,
    level: int,
    farm: str = "",
) -> None:
    """Measure plans for the kernels of a program."""
    program = _program(file, sizes)
    target = _target(gpu)
    workers = dask_executor(farm) if farm else None
    with _bar() as bar:
        compilation = Compilation(program, target, make_signature(program), opt_level=level)
        tuning = tune_on(compilation, workers, again=again, watch=bar.show, begin=bar.start)
    for note in tuning.notes:
        complain(note)
    _log_and_report(printable(str(file)), tuning, log, target)


def tune_shapes(shapes: str, data: Path | None, log: Path | None, *, again: bool) -> None:
    """Measure forms of matrix products on this machine's GPU."""
    products = products_in(shapes)
    target = _target(gpu=True)
    into = None if data is None else FormFile(data, open_gpu().device.name, target)
    with _bar() as bar:
        done = tune_products(products, target, bar.show, bar.start, again=again, into=into)
    for product, tuning in done:
        _log_and_report(str(product), tuning, log, target)


def _log_and_report(name: str, tuning: Tuning, log: Path | None, target: Target) -> None:
    if log is not None:
        measure.append(log, tuning.measured)
    _print_report(name, tuning, "GPU" if target.kind is Kind.GPU else "CPU")


def _target(gpu: bool) -> Target:
    """What to tune for; what is found can be kept."""
    target = target_named(target_of_device() if gpu else "cpu")
    _check_cache()
    return target


def _check_cache() -> None:
    """What is found can be kept."""
    where = cache.chosen_folder()
    if where is None:
        raise UserError("tuned plans are kept in Weft's cache, which WEFT_CACHE=off switches off")
    why = cache.refusal(where)
    if why:
        raise UserError(f"tuned plans are kept in Weft's cache, which is not used: {why}")
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"tuned plans are kept in Weft's cache, but the folder {where} cannot be made: "
            f"{error.strerror or error}"
        ) from None
    check_writable(where / "tuned")


def _program(file: Path, sizes: Sequence[str] | None) -> Program:
    return load_sized(file, sizes)


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


def _print_report(name: str, tuning: Tuning, where: str) -> None:
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
            f"the tuned plans could not be saved in {cache.folder()}, so no compile will use them: "
            "free space there, or name another folder with WEFT_CACHE, and tune again"
        )
    elif tuning.interrupted:
        complain(
            "stopped: the results so far are saved, and the next weft tune continues from there"
        )


def tell_log(file: Path) -> None:
    """Say how well the estimates in a log put the plans of each kernel in the order of their
    measured times."""
    lines = measure.read_log(file)
    found = measure.rankings(lines)
    if found:
        _tell_rankings(found)
    what = f"{printable(str(file))}: {counted(len(lines), 'measurement')}, rank correlation of "
    telling = [ranking.correlation for ranking in found if ranking.spread > DIFFERENT]
    if not telling:
        alone = measure.rank_correlation(measure.first_plans(lines))
        print(f"{what}estimate and actual {alone:.2f} between kernels, each by its first plan")
        return
    median = statistics.median(telling)
    verdict = "good enough to choose by" if median >= GOOD else f"below {GOOD}"
    print(
        f"{what}estimate and actual within a kernel {median:.2f}, the median of "
        f"{counted(len(telling), 'kernel')} whose plans differ by more than "
        f"{100 * (DIFFERENT - 1):.0f} %: {verdict}"
    )


def _tell_rankings(found: Sequence[Ranking]) -> None:
    table = new_table()
    table.add_column("kernel", no_wrap=True)
    for title in ("plans", "slowest / fastest", "rank correlation"):
        table.add_column(title, justify="right")
    for ranking in found:
        told = f"{ranking.spread:.2f}", f"{ranking.correlation:.2f}"
        table.add_row(ranking.kernel, str(ranking.plans), *told)
    print_table(table)
