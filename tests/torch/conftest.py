"""What torch draws is the same in every run."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import pytest


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Some tests compare weights after steps that converge for most of them only."""
    if find_spec("torch") is not None:
        import_module("torch").manual_seed(0)
