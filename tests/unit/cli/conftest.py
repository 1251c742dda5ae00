"""What tests of the commands share."""

from __future__ import annotations

import pytest

from tests.support.command_line import Result, Weft, weft_command


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Weft:
    """Runs the command line in this process."""

    def call(*args: object) -> Result:
        capfd.readouterr()
        return Result(weft_command(*args), *capfd.readouterr())

    return call
