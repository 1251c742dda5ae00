"""A window, and the pages that several tests look at. Tests change neither: a page is opened anew
for each, and the window is as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.driver import SIZE, Browser
from tests.browser.pages import ROOT, TOUR, deep
from weft.explorer.page import page


@pytest.fixture(scope="session")
def window() -> Iterator[Browser]:
    try:
        made = Browser()
    except (OSError, RuntimeError, AssertionError) as error:
        pytest.skip(f"these need a Chromium that starts: {error}")
    yield made
    made.close()


@pytest.fixture
def browser(window: Browser) -> Browser:
    """The window, whatever the test before did to it, or was stopped in."""
    window.leave_frame()
    window.open_nothing()
    window.resize(*SIZE)
    window.dark(False)
    window.errors()
    return window


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of 10,000 nodes."""
    path = tmp_path_factory.mktemp("deep") / "deep.html"
    path.write_text(page(deep(), "deep"))
    return path


@pytest.fixture(scope="session")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a script, as the command writes it."""
    folder = tmp_path_factory.mktemp("tour")
    (folder / "softmax.py").write_text(TOUR)
    command = [sys.executable, "-m", "weft", "explore", "softmax.py", "-o", "softmax.html"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "WEFT_BACKEND": "cpu"}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return folder / "softmax.html"
