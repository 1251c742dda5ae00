"""`weft compare`: does a backend agree with the reference on a program, and if not, where?"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from numpy.typing import NDArray

from weft.cli import arrays
from weft.cli.programs import load_program
from weft.cli.report import complain, printable
from weft.driver.backends import get_backend
from weft.driver.inputs import MAX_SEED
from weft.ptir.ir import Program
from weft.testing import compare, disagrees, random_inputs, reduce_program, reproducer

Array = NDArray[Any]


def compare_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A PTIR program.")],
    backend: Annotated[str, typer.Option(help="The backend to compare with the reference.")],
    inputs: Annotated[
        Path | None,
        typer.Option(
            metavar="NPZ", help="The inputs; without it they are generated from the seed."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=MAX_SEED, help="For the random ops and made-up inputs.")
    ] = 0,
    reduce: Annotated[
        bool,
        typer.Option(
            "--reduce",
            help="Print a small program that still differs, as a script; the report is on stderr.",
        ),
    ] = False,
) -> None:
    """Run FILE on a backend and on the reference; report the first instruction that differs.

    Made-up inputs are floats in [-2, 2], and 0 or 1 for integers, which may be indices; dynamic
    dims are 4. The exit code is 1 when the backends differ, and when the backend refuses FILE.
    """
    get_backend(backend)
    program = load_program(file)
    given = arrays.read_arrays(inputs) if inputs is not None else random_inputs(program, seed)
    report = compare(program, given, backend, seed=seed)
    for line in str(report).splitlines():
        # With --reduce, stdout is a script and nothing else.
        print(printable(line), file=sys.stderr if reduce else sys.stdout)
    if report.agrees:
        return
    if reduce and report.unimplemented:
        complain("there is nothing to reduce: the backend gives no results that could differ")
    elif reduce:
        _print_reduced(program, given, backend, seed)
    raise typer.Exit(1)


def _print_reduced(program: Program, given: Sequence[Array], backend: str, seed: int) -> None:
    complain("reducing ...")
    small, few = reduce_program(
        program, given, lambda p, x: disagrees(p, x, backend, seed=seed), seed=seed
    )
    sys.stdout.write(reproducer(small, few, backend, seed=seed))
