"""The command line, run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from weft.cli import main


@dataclass(frozen=True)
class Result:
    """What a command ends with and prints."""

    code: int
    out: str
    err: str


Weft = Callable[..., Result]


def weft_command(*args: object) -> int:
    """The exit code of `weft` with these arguments."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["weft", *map(str, args)])
        patch.setattr("warnings.showwarning", None)
        with pytest.raises(SystemExit) as done:
            main.main()
    assert isinstance(done.value.code, int)
    return done.value.code


def command_runner(capfd: pytest.CaptureFixture[str]) -> Weft:
    """Runs commands, and has what they print."""

    def call(*args: object) -> Result:
        capfd.readouterr()
        return Result(weft_command(*args), *capfd.readouterr())

    return call
