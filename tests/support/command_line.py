"""The command line, run in this process."""

from __future__ import annotations

import sys

import pytest

from weft.cli import main


def weft_command(*args: object) -> int:
    """The exit code of `weft` with these arguments."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["weft", *map(str, args)])
        patch.setattr("warnings.showwarning", None)
        with pytest.raises(SystemExit) as done:
            main.main()
    assert isinstance(done.value.code, int)
    return done.value.code
