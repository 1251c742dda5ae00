"""A window, and the page of the tour in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.driver import Browser
from tests.browser.pages import ROOT, TOUR


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        made = Browser()
    except (OSError, RuntimeError, AssertionError) as error:
        pytest.skip(f"these need a Chromium that starts: {error}")
    yield made
    made.close()


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a script, as the command writes it."""
    folder = tmp_path_factory.mktemp("tour")
    (folder / "softmax.py").write_text(TOUR)
    command = [sys.executable, "-m", "weft", "explore", "softmax.py", "-o", "softmax.html"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "WEFT_BACKEND": "cpu"}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return folder / "softmax.html"
