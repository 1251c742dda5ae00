"""What tests of the commands share."""

from __future__ import annotations

import pytest

from tests.support.command_line import Weft, command_runner


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Weft:
    """Runs the command line in this process."""
    return command_runner(capfd)
