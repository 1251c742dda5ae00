"""`weft conformance`: how much of PTIR a backend carries out, as a matrix op x dtype."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from weft import __version__
from weft.cli.report import complain, printable
from weft.driver.backends import Backend, get_backend
from weft.foundation.errors import UserError
from weft.foundation.files import check_writable
from weft.target.known import target_named
from weft.testing.conformance.case import Case
from weft.testing.conformance.matrix import Matrix, as_lists, as_table, legend
from weft.testing.conformance.page import write_page
from weft.testing.conformance.records import Journal, write_json
from weft.testing.conformance.run import Outcome, Result, run_case
from weft.testing.conformance.table import parse_shard, select
from weft.testing.conformance.workers import run_shared

MATRIX_WIDTH = 84
FIRST_FAILURES = 10
"""How many failures are told about at the end; the page and the JSON file have them all."""


def conformance_command(
    backend: Annotated[str, typer.Option(help="The backend to examine.")] = "reference",
    pattern: Annotated[
        str | None,
        typer.Option(
            "--filter", metavar="GLOB", help="Only cases whose id matches, as 'add/f32/*'."
        ),
    ] = None,
    shard: Annotated[
        str, typer.Option(metavar="I/N", help="Only the I-th of N equal shares of the cases.")
    ] = "1/1",
    jobs: Annotated[
        int, typer.Option(min=1, help="Number of processes, each with its own backend.")
    ] = 1,
    seconds: Annotated[
        float | None, typer.Option(min=0, help="Start no new case after this time.")
    ] = None,
    prepare: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="Only compile for this target (sm80, sm90, cpu) and store the kernels in the "
            "cache; this machine need not be such a target.",
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Note each result here; skip what it already holds."),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all results as JSON.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with every failure.")
    ] = None,
) -> None:
    """Run the conformance cases on a backend; exit code 1 if any fails, or if it refuses all."""
    chosen = get_backend(backend)
    cases = select(pattern, _parse_shard(shard))
    if not cases:
        raise UserError(f"no case matches {pattern!r} in shard {shard}")
    if prepare is not None:
        _prepare(cases, _Way(backend, jobs, seconds), target_named(prepare).name)
        return
    for path in (json, html):
        if path is not None:
            check_writable(path)
    journal = Journal(resume, backend) if resume else None
    results = _run_with_progress(cases, chosen, _Way(backend, jobs, seconds), journal)
    _print(results)
    if len(results) < len(cases):
        complain(f"{len(cases) - len(results)} of {len(cases)} cases were not started in time")
    if json is not None:
        write_json(json, backend, results)
    if html is not None:
        write_page(html, backend, results, f"Weft {__version__}")
    refused = _refuses_all(results)
    if refused is not None:
        complain(
            f"warning: the backend ran none of these cases; it refused {refused.id}, the first "
            f"one, with: {refused.reason}"
        )
    if refused is not None or any(result.outcome is Outcome.FAIL for result in results):
        raise typer.Exit(1)


def _parse_shard(text: str) -> tuple[int, int]:
    try:
        return parse_shard(text)
    except UserError as error:
        raise typer.BadParameter(str(error), param_hint="--shard") from None


def _refuses_all(results: list[Result]) -> Result | None:
    """The first refusal, where nothing else came of any case that asks for results."""
    if any(result.computed or result.outcome is Outcome.FAIL for result in results):
        return None
    return next((r for r in results if r.outcome is Outcome.UNIMPLEMENTED), None)


@dataclass(frozen=True)
class _Way:
    """How cases are run: on which backend, by how many processes, and for how long at most."""

    backend: str
    jobs: int
    seconds: float | None


def _prepare(cases: list[Case], way: _Way, target: str) -> None:
    """Compile the cases, and say what could not be compiled."""
    found = list(run_shared(cases, way.backend, way.jobs, way.seconds, target))
    failed = [result for result in found if result.outcome is Outcome.FAIL]
    for result in failed[:FIRST_FAILURES]:
        complain(f"{result.id}: {printable(result.reason)}")
    Console().print(f"{len(found)} of {len(cases)} cases are compiled for {target}")
    if failed:
        raise typer.Exit(1)


def _run_with_progress(
    cases: list[Case], backend: Backend, way: _Way, journal: Journal | None
) -> list[Result]:
    """The results in the order of the cases, with a progress bar where someone is watching."""
    progress = Progress(
        TextColumn(f"{printable(backend.name)}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    results, failed = [], 0
    try:
        with progress:
            task = progress.add_task("", total=len(cases))
            for result in _results_of_cases(cases, backend, way, journal):
                results.append(result)
                failed += result.outcome is Outcome.FAIL
                progress.update(
                    task, advance=1, description=f"[red]{failed} fail" if failed else ""
                )
    finally:
        if journal is not None:
            journal.close()
    places = {case.id: place for place, case in enumerate(cases)}
    return sorted(results, key=lambda result: places[result.id])


def _results_of_cases(
    cases: list[Case], backend: Backend, way: _Way, journal: Journal | None
) -> Iterator[Result]:
    done = {} if journal is None else journal.done
    yield from (done[case.id] for case in cases if case.id in done)
    todo = [case for case in cases if case.id not in done]
    for result in _run_cases(todo, backend, way):
        if journal is not None:
            journal.add(result)
        yield result


def _run_cases(cases: list[Case], backend: Backend, way: _Way) -> Iterator[Result]:
    if way.jobs > 1:
        yield from run_shared(cases, way.backend, way.jobs, way.seconds)
        return
    started = time.monotonic()
    for case in cases:
        if way.seconds is not None and time.monotonic() - started > way.seconds:
            return
        yield run_case(case, backend)


def _print(results: list[Result]) -> None:
    """The matrix, what failed first, and the counts."""
    console = Console(width=None if sys.stdout.isatty() else MATRIX_WIDTH, highlight=False)
    matrix = Matrix.of(results)
    console.print(as_table(matrix))
    for family, rows in as_lists(matrix):
        console.print(Text(f"\n{family}", style="bold"))
        console.print(rows)
    console.print()
    console.print(legend(matrix))
    failed = [result for result in results if result.outcome is Outcome.FAIL]
    for result in failed[:FIRST_FAILURES]:
        console.print(Text(f"\n{result.id}", style="bold red"))
        console.print(Text(printable(result.reason)))
    if len(failed) > FIRST_FAILURES:
        console.print(Text(f"\n... and {len(failed) - FIRST_FAILURES} more failures"))
    console.print(_summary(matrix, len(results)))


def _summary(matrix: Matrix, count: int) -> Text:
    total = matrix.total
    decomposed = f" ({total.decomposed} decomposed)" if total.decomposed else ""
    text = Text(f"\n{count} cases: ")
    text.append(f"{total.passed} pass{decomposed}", style="green")
    text.append(", ")
    text.append(f"{total.failed} fail", style="bold red" if total.failed else "")
    text.append(", ")
    text.append(
        f"{total.unimplemented} unimplemented", style="yellow" if total.unimplemented else ""
    )
    return text
