"""Bundles that many tests look at, each built once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.unit.bundles import models
from weft.bundles import library


@pytest.fixture(scope="session", autouse=True)
def _quick_compiler() -> Iterator[None]:
    """What C compilers optimise takes them four times as long, and computes the same."""
    flags = tuple("-O0" if flag == "-O2" else flag for flag in library._COMPILED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "_COMPILED", flags)
        yield


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where bundles are built; skips where nothing can link them."""
    if shutil.which("cc") is None:
        pytest.skip("bundles are linked by a C compiler, and there is no cc")
    return tmp_path_factory.mktemp("bundles")


@pytest.fixture(scope="session")
def classify(folder: Path) -> Path:
    """A classifier for 0 to 20 rows, on any processor of this kind."""
    x = np.zeros((5, 4), np.float32)
    return weft.build(models.classifier(), x, out=folder / "classify", sizes={"B": (0, 20)})


@pytest.fixture(scope="session")
def mixture(folder: Path) -> Path:
    return weft.build(models.mixture(), out=folder / "mixture", target=models.PORTABLE)
