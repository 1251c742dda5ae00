"""A log of a test run that is good at any moment: a line for every test when it begins and when it
ends, so that a run that was cut off still says what failed, and what was under way.

    pytest tests/device -n 12 --outcomes FILE

    begun   tests/device/test_dropout.py::test_masks
    passed  tests/device/test_dropout.py::test_masks  1.2 s
    failed  tests/device/test_dropout.py::test_rates  0.3 s  AssertionError: 3 != 4
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

_MOST: Final = 300
"""Characters of a reason."""


class OutcomeLog:
    """Writes the log; with several processes that of the one which hands out the tests."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("w", buffering=1)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        print("begun  ", nodeid, file=self.file)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that passes is told of once, by its call; what else happens, wherever it does."""
        if report.passed and report.when != "call":
            return
        words = [f"{report.outcome:<7}", f"{report.nodeid} ", f"{report.duration:.1f} s"]
        if report.failed:
            words += ["", _reason(report)]
        print(*words, file=self.file)

    def pytest_sessionfinish(self) -> None:
        print("finished", file=self.file)
        self.file.close()


def _reason(report: pytest.TestReport) -> str:
    """What went wrong, in a line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = report.longreprtext if crash is None else crash.message
    return " ".join(text.split())[:_MOST]
