"""Programs in C and C++ that call bundles: how they are compiled and run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic", "-O1")

COMPILERS = {"gcc": ("-std=c99",), "g++": ("-std=c++11", "-x", "c++"), "clang": ("-std=c99",)}


def needs(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool}")


def call(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
