"""`weft profile`: where the time of a script goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import weft
from weft.cli.report import check_apart, printable
from weft.cli.scripts import run_script
from weft.foundation.errors import UserError
from weft.foundation.files import check_writable
from weft.ops.trace.profile import KEYS, Profile


def profile_command(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A Python script.")],
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS...]", help="Arguments of the script, also options."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", "-o", metavar="FILE", help="A trace for Perfetto."),
    ] = None,
    by: Annotated[
        str, typer.Option(metavar="WHAT", help="A row for each kernel, line, layer or op.")
    ] = "kernel",
    most: Annotated[int, typer.Option(metavar="N", help="How many rows.")] = 30,
) -> None:
    """Run SCRIPT and print where its time went: kernel, op, line and layer.

    Every program that it runs with Weft is run once more, kernel by kernel. Options of weft come
    before SCRIPT; everything after it is passed to the script, as on the command line of python.
    """
    if most < 1:
        raise UserError(f"--most is the number of rows, 1 or more, not {most}")
    if by not in KEYS:
        raise UserError(f"--by is {', '.join(KEYS)}, not {by!r}")
    if trace is not None:
        check_apart(trace, script)
        check_writable(trace)
    found = Profile()
    try:
        with weft.profile(trace, show=False) as found:
            run_script(script, args or [])
        if not found.spans:
            raise UserError(f"{script} ran nothing with Weft, so there is nothing to report")
    finally:
        # A script that failed is told about as far as it came.
        if found.spans:
            _tell(found, by, most, trace)


def _tell(found: Profile, by: str, most: int, trace: Path | None) -> None:
    for line in found.table(by, most=most).splitlines():
        print(printable(line))
    if trace is not None:
        print(f"wrote {printable(str(trace))}: open it with weft explore, or with Perfetto")
