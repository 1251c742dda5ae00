"""Python scripts that a command runs as `python SCRIPT` would."""

from __future__ import annotations

import os
import runpy
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import typer

from weft.cli.programs import READ
from weft.foundation.errors import UserError
from weft.foundation.lines import without_user


def run_script(script: Path, args: Sequence[str]) -> None:
    """Run a script to its end. Where it fails, its own traceback is shown and the command ends."""
    if not script.is_file():
        raise UserError(f"there is no script {script}")
    if script.suffix in READ:
        raise UserError(
            f"{script} is a program, not a Python script; weft explore and weft bench take programs"
        )
    with _started_as(script, args):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as done:
            if done.code not in (None, 0):
                # What Python does with it: a number is the exit code, all else is shown.
                code = done.code if isinstance(done.code, int) else 1
                if not isinstance(done.code, int):
                    print(done.code, file=sys.stderr)
                _exit_with_error(script, f"it ended with exit code {code}", code)
        except Exception as error:
            own = _from_script(error.__traceback__, script)
            traceback.print_exception(error.with_traceback(own))
            _exit_with_error(script, f"it raised {type(error).__name__}")


def _exit_with_error(script: Path, why: str, code: int = 1) -> None:
    print(f"error: {script} did not finish: {why}", file=sys.stderr)
    raise typer.Exit(code)


def _from_script(found: TracebackType | None, script: Path) -> TracebackType | None:
    """A traceback from the first line of the script on; nothing where it did not begin, as where
    Python cannot read it."""
    at = found
    while at is not None and at.tb_frame.f_code.co_filename != str(script):
        at = at.tb_next
    return at


@contextmanager
def _started_as(script: Path, args: Sequence[str]) -> Iterator[None]:
    """What a script finds around it: its arguments, its folder, and itself as Weft's user."""
    argv, path, leave = sys.argv, sys.path, os._exit
    process, thread = os.getpid(), threading.get_ident()

    def leave_script(status: int) -> NoReturn:
        # The script ends, and not the command that is to tell about it. A process that the script
        # forked, and a thread beside it, leave as they would.
        if os.getpid() == process and threading.get_ident() == thread:
            raise SystemExit(status)
        leave(status)

    sys.argv = [str(script), *args]
    sys.path = [str(script.resolve().parent), *path]
    os._exit = leave_script
    try:
        with without_user(has=True):
            yield
    finally:
        sys.argv, sys.path, os._exit = argv, path, leave
