"""`weft tune`: measure plans for the kernels of a program, or for matrix products; `weft log`: how
good estimates are. What they do is loaded when it is done: help is there at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.commands import work_of
from weft.cli.sizes import Sizes
from weft.driver.stages.compilation import DEFAULT_LEVEL, check_level
from weft.foundation.errors import UserError
from weft.foundation.files import check_writable


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
        typer.Option(
            metavar="JSON",
            help="With --shapes, also write the times of all candidates to this file.",
        ),
    ] = None,
    sizes: Sizes = None,
    log: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Add every measurement to this log.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also measure what was tuned before.")
    ] = False,
    farm: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Let the workers of a Dask scheduler measure, as in tcp://host:8786; they are "
            "machines like this one.",
        ),
    ] = "",
    level: Annotated[
        int, typer.Option("-O", metavar="LEVEL", help="How kernels are fused, as in compile.")
    ] = DEFAULT_LEVEL,
) -> None:
    """Measure 10 to 20 plans for each kernel of FILE that differs, and keep the best ones.

    Later compiles on this machine use them. Ctrl-C keeps the results so far.
    """
    _check_asked(file, gpu, shapes, data)
    if farm and file is None:
        raise UserError("--farm measures the kernels of a program: name one in place of --shapes")
    check_level(level)
    if log is not None:
        check_writable(log)
    work = work_of("tuning")
    if file is None:
        work.tune_shapes(shapes, data, log, again=again)
    else:
        work.tune_file(file, sizes, log, gpu=gpu, again=again, level=level, farm=farm)


def _check_asked(file: Path | None, gpu: bool, shapes: str, data: Path | None) -> None:
    """There is one thing to tune, and the options belong to it."""
    if (file is None) == (not shapes):
        raise UserError("weft tune takes a program, or --shapes with matrix products, one of both")
    if shapes and not gpu:
        raise UserError("--shapes tunes the forms of matrix kernels on a GPU: add --gpu")
    if data is not None and not shapes:
        raise UserError("--data keeps the times of matrix products: name them with --shapes")


def log_command(
    file: Annotated[Path, typer.Argument(metavar="CSV", help="A log of measurements.")],
) -> None:
    """Report how well the estimates in a log rank the plans of each kernel."""
    work_of("tuning").tell_log(file)
