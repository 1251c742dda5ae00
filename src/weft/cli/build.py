"""`weft build`: a program as a bundle for C, C++ and Python."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from weft.bundles.build import build
from weft.bundles.elf import MACHINES
from weft.cli.programs import ProgramFile, load_program
from weft.cli.report import printable
from weft.cli.sizes import Sizes, load_sized
from weft.foundation.errors import UserError
from weft.target.cpu import PROCESSORS

_UNNAMED: Final = "main"
"""What the entry of a program is called where its source has no name for it."""
_RANGE: Final = re.compile(r"(\w+)=([0-9]{1,15})\.\.([0-9]{1,15})", re.ASCII)
_PAIR: Final = re.compile(r"([0-9]{1,9})=([0-9]{1,9})", re.ASCII)


def build_command(
    file: ProgramFile,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the bundle.")],
    target: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help=f"cpu (this machine), {', '.join(PROCESSORS)}, sm80 or sm90; of several targets, "
            "each machine uses the best one that it supports.",
        ),
    ] = "cpu",
    name: Annotated[str | None, typer.Option(help="The prefix of its C functions.")] = None,
    sizes: Sizes = None,
    dynamic: Annotated[
        str, typer.Option(metavar="NAME=A..B,...", help="The range of each dynamic dim.")
    ] = "",
    state: Annotated[
        str,
        typer.Option(
            metavar="IN=OUT,...",
            help="Inputs that an instance keeps, each with the result that replaces it.",
        ),
    ] = "",
    cc: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[MACHINE=]COMMAND",
            help="The C compiler; for several kinds of machines, one for each, such as "
            "aarch64=...; repeatable.",
        ),
    ] = None,
) -> None:
    """Compile FILE into a bundle: a folder that C, C++ and Python run without the compiler."""
    ranges = {
        found[1]: (int(found[2]), int(found[3]))
        for found in _match_parts(_RANGE, dynamic, "the range of a dynamic dim, such as B=1..64")
    }
    pairs = {
        int(found[1]): int(found[2])
        for found in _match_parts(
            _PAIR, state, "an input and the result that replaces it, such as 0=1"
        )
    }
    if ranges and sizes:
        raise UserError("give --sizes or --dynamic; a range of one size is B=4..4")
    program = load_program(file) if ranges else load_sized(file, sizes)
    targets = target.split(",")
    given = name or (None if program.entry != _UNNAMED else _stem(file))
    made = build(
        program,
        out=out,
        name=given,
        target=targets,
        sizes=ranges,
        state=pairs,
        cc=_compilers(cc or []),
    )
    total = sum(path.stat().st_size for path in made.rglob("*") if path.is_file())
    print(f"wrote {printable(str(made))}, {total:,} bytes")


def _compilers(given: list[str]) -> str | dict[str, str] | None:
    """One C compiler, or one for each kind of machine."""
    found = {}
    for text in given:
        machine, equals, command = text.partition("=")
        if equals and machine in MACHINES.values():
            found[machine] = command
        elif len(given) > 1:
            raise UserError(f"{text!r} is not a C compiler for one kind of machine: aarch64={text}")
        else:
            return text
    return found or None


def _stem(file: Path) -> str | None:
    """The name of a file as one of C, if it can be."""
    word = re.sub(r"\W", "_", file.stem, flags=re.ASCII).strip("_")
    return word[:64] if word[:1].isalpha() and not word.lower().startswith("weft") else None


def _match_parts(pattern: re.Pattern[str], text: str, what: str) -> list[re.Match[str]]:
    found = []
    for part in text.split(",") if text else ():
        match = pattern.fullmatch(part)
        if match is None:
            raise UserError(f"{part!r} is not {what}")
        found.append(match)
    return found
