"""`weft`: verify, show, convert and run programs from the command line.

Exit codes: 0 for success, 1 when the program or the data is wrong, 2 when the command line is.
Errors are sentences on stderr. With WEFT_DEBUG=1 an error comes with its traceback.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from weft import __version__
from weft.cli import arrays
from weft.cli.bench import bench_command
from weft.cli.compare import compare_command
from weft.cli.compile import compile_command
from weft.cli.conformance import conformance_command
from weft.cli.core import app as core_app
from weft.cli.devices import devices_command
from weft.cli.programs import (
    WRITTEN,
    Source,
    count_instructions,
    findings_of,
    input_kinds,
    input_names,
    load_program,
    load_source,
    save_as,
    shown,
)
from weft.cli.report import (
    complain,
    outputs_table,
    print_table,
    printable,
    targets_table,
    write,
)
from weft.cli.tune import log_command, tune_command
from weft.coarse.raising import raise_program
from weft.driver.backends import default_backend
from weft.driver.conversion import conversion_target_names, convert
from weft.driver.execute import run
from weft.driver.inputs import MAX_SEED
from weft.foundation.errors import SpecViolation, UserError, WeftError, WeftWarning
from weft.foundation.tally import counted
from weft.ptir.ir import Program
from weft.ptir.passes.log import PassLog

app = typer.Typer(
    name="weft",
    epilog="FILE is a PTIR program as JSON, bincode or text, a Core IR module or StableHLO text; "
    "which one it is, its content tells. "
    "Exit codes: 0 success, 1 the program or the data is wrong, 2 the command line is wrong.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

ProgramFile = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="A PTIR program, a Core IR module or StableHLO text."),
]


class ShowFormat(StrEnum):
    """The forms of a program that people read."""

    TEXT = "text"
    DISPLAY = "display"
    JSON = "json"


def _version(wanted: bool) -> None:
    if wanted:
        version_command()
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Portable tensor programs (PTIR): verify, convert, run, compile and compare them."""


@app.command("version")
def version_command() -> None:
    """Show the version of Weft."""
    print(f"weft {__version__}")


@app.command("verify")
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


@app.command("show")
def show_command(
    file: ProgramFile,
    format: Annotated[
        ShowFormat,
        typer.Option(
            "--format",
            "-f",
            help="text reads back as it is; display is what other PTIR tools print.",
        ),
    ] = ShowFormat.TEXT,
) -> None:
    """Print FILE. It need not verify."""
    write(shown(load_source(file), format.value), None)
    if format is ShowFormat.JSON:
        write("\n", None)


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
        typer.Argument(metavar="IN", help="A PTIR program, a Core IR module or StableHLO text."),
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
        bool, typer.Option("--list", help="List what --to can name, and stop.")
    ] = False,
    raised: Annotated[
        bool,
        typer.Option("--raise", help="Find coarse ops in the program first: softmax, attention."),
    ] = False,
) -> None:
    """Write the program IN as OUT; the extension of OUT says in which form.

    A program that does not verify is converted with a warning.
    With --to, a conversion target says it, IN must verify, and without OUT the result is printed.
    """
    if list_targets:
        print_table(targets_table())
    elif source is None:
        names = f"; {_target_names()}" if to else ""
        raise typer.BadParameter(f"it is missing: the program to convert{names}", param_hint="IN")
    elif to:
        if len(to) > 1:
            raise typer.BadParameter(f"it is given {len(to)} times", param_hint="--to")
        write(convert(_loaded(source, raised), to[0]), target)
    elif target is None:
        raise typer.BadParameter("give it, or --to NAME", param_hint="OUT")
    else:
        program = _loaded(source, raised) if raised else load_source(source)
        _warn_unless_valid(program, source)
        save_as(program, target)


def _loaded(source: Path, raised: bool) -> Program:
    program = load_program(source)
    return raise_program(program) if raised else program


def _warn_unless_valid(program: Source, source: Path) -> None:
    """A program that breaks a rule can be converted; nobody will run the result."""
    findings = findings_of(program)
    if findings:
        more = f" (and {len(findings) - 1} more, see weft verify)" if len(findings) > 1 else ""
        complain(f"warning: {source} does not verify: {findings[0]}{more}")


@app.command("run")
def run_command(
    file: ProgramFile,
    inputs: Annotated[
        Path | None,
        typer.Option(metavar="NPZ", help="The inputs: arr_0, arr_1, ... or any names, in order."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="NPZ", help="Where the outputs go; without it, a table shows them."),
    ] = None,
    backend: Annotated[str, typer.Option(help="Which backend carries it out.")] = default_backend(),
    seed: Annotated[
        int, typer.Option(min=0, max=MAX_SEED, help="What the random ops draw from.")
    ] = 0,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Tell on stderr how the program was legalised."),
    ] = False,
) -> None:
    """Run FILE. bf16, fp8 and 4-bit arrays are stored as bits under names such as 'arr_0:bf16'."""
    program = load_source(file)
    kinds = input_kinds(program)
    if inputs is None and kinds:
        what = f"@{program.entry}" if isinstance(program, Program) else "the module"
        raise UserError(f"{what} takes inputs, {', '.join(kinds)}; give them with --inputs NPZ")
    given = arrays.read(inputs, input_names(program)) if inputs is not None else []
    log = PassLog()
    results = run(program, given, backend=backend, seed=seed, log=log)
    for entry in log.entries if verbose else ():
        complain(str(entry))
    if out is None:
        print_table(outputs_table(results))
    else:
        arrays.write(out, results)


app.command("compare")(compare_command)
app.command("compile")(compile_command)
app.command("conformance")(conformance_command)
app.command("devices")(devices_command)
app.command("bench")(bench_command)
app.command("tune")(tune_command)
app.command("log")(log_command)
app.add_typer(core_app, name="core")


def _show_warning(message: Warning | str, category: type[Warning], *place: object) -> None:
    """Warnings as sentences; where in Weft they arose is nobody's concern here."""
    name = "warning" if issubclass(category, WeftWarning) else category.__name__
    complain(f"{name}: {message}")


def _status() -> int:
    """Run the command; every error becomes a sentence and an exit code here."""
    try:
        app(prog_name="weft")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    except SpecViolation as error:
        _trace()
        for finding in error.findings:
            complain(f"error: {finding}")
    except WeftError as error:
        _trace()
        complain(f"error: {error}")
    except OSError as error:
        _trace()
        complain(f"error: {error.strerror or error}")
    except MemoryError:
        _trace()
        complain("error: out of memory")
    except Exception as error:
        _trace()
        complain(
            f"internal error: {type(error).__name__}: {error}; this is a bug in Weft, please "
            "report it with the program (WEFT_DEBUG=1 shows where it happened)"
        )
    return 1


def _trace() -> None:
    if os.environ.get("WEFT_DEBUG") == "1":
        traceback.print_exc()


def main() -> None:
    """The entry point of the `weft` command."""
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    status = _status()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has left; without this, Python complains about it while exiting.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = status or 1
    sys.exit(status)


if __name__ == "__main__":
    main()
