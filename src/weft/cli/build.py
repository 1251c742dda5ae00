"""`weft build`: a program as a bundle for C, C++ and Python."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from weft.bundles.build import build
from weft.cli.compile import with_sizes
from weft.cli.programs import ProgramFile, load_program
from weft.cli.report import printable
from weft.foundation.errors import UserError
from weft.target.cpu import PROCESSORS

_RANGE: Final = re.compile(r"(\w+)=([0-9]{1,15})\.\.([0-9]{1,15})", re.ASCII)
_PAIR: Final = re.compile(r"([0-9]{1,9})=([0-9]{1,9})", re.ASCII)


def build_command(
    file: ProgramFile,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the bundle goes.")],
    target: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help=f"cpu, which is this machine, {', '.join(PROCESSORS)}, sm80 or sm90; of several "
            "the best that a machine runs is chosen there.",
        ),
    ] = "cpu",
    name: Annotated[
        str | None, typer.Option(help="What the functions of its header begin with.")
    ] = None,
    sizes: Annotated[
        str, typer.Option(metavar="NAME=N,...", help="Sizes of dynamic dims, all of them.")
    ] = "",
    dynamic: Annotated[
        str, typer.Option(metavar="NAME=A..B,...", help="Ranges of dynamic dims, all of them.")
    ] = "",
    state: Annotated[
        str,
        typer.Option(
            metavar="IN=OUT,...",
            help="Inputs that an instance keeps, each with the result that replaces it.",
        ),
    ] = "",
    cc: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="A C compiler for the target.")
    ] = None,
) -> None:
    """Compile FILE into a bundle: a folder that C, C++ and Python run without the compiler."""
    program = load_program(file)
    ranges = {
        found[1]: (int(found[2]), int(found[3]))
        for found in _matched(_RANGE, dynamic, "the range of a dynamic dim, such as B=1..64")
    }
    pairs = {
        int(found[1]): int(found[2])
        for found in _matched(_PAIR, state, "an input and the result that replaces it, such as 0=1")
    }
    if not ranges:
        program = with_sizes(program, sizes)
    elif sizes:
        raise UserError("give --sizes or --dynamic; a range of one size is B=4..4")
    targets = target.split(",")
    made = build(program, out=out, name=name, target=targets, sizes=ranges, state=pairs, cc=cc)
    total = sum(path.stat().st_size for path in made.rglob("*") if path.is_file())
    print(f"wrote {printable(str(made))}, {total:,} bytes")


def _matched(pattern: re.Pattern[str], text: str, what: str) -> list[re.Match[str]]:
    found = []
    for part in text.split(",") if text else ():
        match = pattern.fullmatch(part)
        if match is None:
            raise UserError(f"{part!r} is not {what}")
        found.append(match)
    return found
