"""Benchmarks beside peers that Weft itself does not need: a sentence where one is not installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def need(*packages: str) -> None:
    """End the program where one of them is missing, before it is imported."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        names = " ".join(missing)
        sys.exit(f"this benchmark runs beside what is not installed here: pip install {names}")
