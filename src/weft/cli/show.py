"""`weft show`: a program for people to read."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from weft.cli.programs import ProgramFile, load_source, program_text
from weft.cli.report import write


class ShowFormat(StrEnum):
    """The forms of a program that people read."""

    TEXT = "text"
    DISPLAY = "display"
    JSON = "json"


def show_command(
    file: ProgramFile,
    format: Annotated[
        ShowFormat,
        typer.Option(
            "--format",
            "-f",
            help="text can be read back; display is the form that other PTIR tools print.",
        ),
    ] = ShowFormat.TEXT,
) -> None:
    """Print FILE. It need not verify."""
    write(program_text(load_source(file), format.value), None)
    if format is ShowFormat.JSON:
        write("\n", None)
