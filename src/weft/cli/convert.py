"""`weft convert`: a program in another form."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from weft.cli.programs import (
    KINDS,
    ONNX,
    WRITTEN,
    Source,
    findings_of,
    load_program,
    load_source,
    save_as,
)
from weft.cli.report import check_apart, complain, printable, write
from weft.cli.sizes import Sizes, load_sized, sizes_in
from weft.cli.tables import new_table, print_table
from weft.coarse.raising import raise_program
from weft.driver.conversion import conversion_target_names, convert, get_conversion_target
from weft.foundation.errors import WeftError
from weft.ptir.ir import Program

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


class _ConvertCommand(TyperCommand):
    """A command that says what `--to` can name where it names nothing."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args[-1:] == ["--to"]:
            why = f"it names nothing; {_target_names()}"
            raise typer.BadParameter(why, ctx=ctx, param_hint="--to")
        return super().parse_args(ctx, args)


def _target_names() -> str:
    return f"the conversion targets are {', '.join(conversion_target_names())}"


@app.command("convert", cls=_ConvertCommand)
def convert_command(
    source: Annotated[
        Path | None,
        typer.Argument(metavar="IN", help=KINDS),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Argument(metavar="OUT", help=f"One of {WRITTEN}, or any with --to."),
    ] = None,
    to: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"One of {', '.join(conversion_target_names())}."),
    ] = None,
    list_targets: Annotated[
        bool, typer.Option("--list", help="List the names for --to, and exit.")
    ] = False,
    raised: Annotated[
        bool,
        typer.Option("--raise", help="Find coarse ops in the program first: softmax, attention."),
    ] = False,
    sizes: Sizes = None,
) -> None:
    """Write the program IN as OUT; the extension of OUT determines the format.

    A program that does not verify is converted with a warning.
    With --to, a conversion target says it, IN must verify, and without OUT the result is printed.
    """
    if list_targets:
        print_table(_targets_table())
    elif source is None:
        names = f"; {_target_names()}" if to else ""
        raise typer.BadParameter(f"it is missing: the program to convert{names}", param_hint="IN")
    elif to:
        if len(to) > 1:
            raise typer.BadParameter(f"it is given {len(to)} times", param_hint="--to")
        if target is not None:
            check_apart(target, source)
        write(convert(_load_source(source, raised, sizes), to[0]), target)
    elif target is None:
        raise typer.BadParameter("give it, or --to NAME", param_hint="OUT")
    else:
        whole = not raised and not sizes
        program = load_source(source) if whole else _load_source(source, raised, sizes)
        _warn_unless_valid(program, source)
        save_as(program, target)


def _load_source(source: Path, raised: bool, sizes: list[str] | None) -> Program:
    """The program; an ONNX model may be given the sizes of some of its open axes."""
    if source.suffix == ONNX:
        program = load_program(source, sizes_in(sizes))
    else:
        program = load_sized(source, sizes) if sizes else load_program(source)
    return raise_program(program) if raised else program


def _warn_unless_valid(program: Source, source: Path) -> None:
    """A program that breaks a rule can be converted; nobody will run the result."""
    findings = findings_of(program)
    if findings:
        more = f" (and {len(findings) - 1} more, see weft verify)" if len(findings) > 1 else ""
        complain(f"warning: {source} does not verify: {findings[0]}{more}")


def _targets_table() -> Table:
    """One row for each conversion target; for one that cannot be loaded, why."""
    table = new_table()
    table.add_column("target", no_wrap=True)
    table.add_column("file", no_wrap=True)
    table.add_column("writes")
    for name in conversion_target_names():
        try:
            target = get_conversion_target(name)
            table.add_row(Text(name), Text(target.extension), Text(target.description))
        except WeftError as error:
            table.add_row(Text(name), "", Text(printable(str(error))))
    return table
