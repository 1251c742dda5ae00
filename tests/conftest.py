"""Golden files: texts that tests compare with, rewritten by `pytest --update`."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

import pytest

TEXTS = Path(__file__).parent / "text"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite golden texts and show how")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the golden file of that name under tests/text/."""
    update = bool(request.config.getoption("--update"))

    def compare(name: str, text: str) -> None:
        path = TEXTS / name
        before = path.read_text() if path.exists() else ""
        if text == before:
            return
        change = difflib.unified_diff(
            before.splitlines(), text.splitlines(), f"{name} before", f"{name} now", lineterm=""
        )
        shown = "\n".join(change)
        if not update:
            pytest.fail(f"{name} has changed (pytest --update accepts it):\n{shown}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(shown)

    return compare
