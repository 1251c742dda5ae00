"""`weft verify`: what is wrong with a program."""

from __future__ import annotations

import typer

from weft.cli.programs import ProgramFile, count_instructions, findings_of, load_source
from weft.cli.report import complain, printable
from weft.foundation.tally import counted


def verify_command(file: ProgramFile) -> None:
    """Check FILE against every rule of PTIR or Core IR and list all violations, one a line."""
    source = load_source(file)
    findings = findings_of(source)
    for finding in findings:
        complain(str(finding))
    if findings:
        raise typer.Exit(1)
    count = count_instructions(source)
    print(f"{printable(str(file))}: valid, {counted(count, 'instruction')}")
