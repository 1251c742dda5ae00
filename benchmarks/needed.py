"""What benchmarks need beside Weft itself, peers and a GPU: a sentence where it is missing."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final

from weft.runtime.cuda.driver import compute_capability

PREPARE: Final = "`--prepare FOLDER` compiles its kernels anywhere"


def need(*packages: str) -> None:
    """End the program where one of them is missing, before it is imported."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        names = " ".join(missing)
        sys.exit(f"this benchmark runs beside what is not installed here: pip install {names}")


def need_gpu(otherwise: str = "") -> None:
    """End the program where there is no GPU to measure on, or no torch to measure beside;
    `otherwise` is what it can do without one."""
    need("torch")
    if compute_capability() is None:
        sys.exit(
            "this benchmark measures on an NVIDIA GPU and there is none here: "
            "`weft devices` says what is missing" + (f"; {otherwise}" if otherwise else "")
        )
