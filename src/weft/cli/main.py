"""`weft`: verify, show, convert and run programs from the command line.

Exit codes: 0 for success, 1 when the program or the data is wrong, 2 when the command line is.
Errors are sentences on stderr. With WEFT_DEBUG=1 an error comes with its traceback.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from typing import Annotated

import typer

from weft import __version__
from weft.cli.commands import Commands, list_in
from weft.cli.report import complain
from weft.foundation.errors import SpecViolation, WeftError, WeftWarning
from weft.foundation.lines import without_user

app = typer.Typer(
    name="weft",
    cls=Commands,
    epilog="FILE is a PTIR program as JSON, bincode or text, a Core IR module, StableHLO "
    "text or an ONNX model; its content or its extension tells the format. "
    "Exit codes: 0 success, 1 the program or the data is wrong, 2 the command line is wrong.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


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


list_in(app)


def _show_warning(message: Warning | str, category: type[Warning], *place: object) -> None:
    """Warnings as sentences; where in Weft they arose is nobody's concern here."""
    name = "warning" if issubclass(category, WeftWarning) else category.__name__
    complain(f"{name}: {message}")


def _status() -> int:
    """Run the command; every error becomes a sentence and an exit code here."""
    try:
        with without_user():
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
