"""`import weft` is light: NumPy and ml_dtypes, and little of our own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import weft

HEAVY = [
    "islpy",
    "llvmlite",
    "highspy",
    "torch",
    "onnx",
    "jaxlib",
    "cuda",
    "rich",
    "typer",
    "scipy",
]


def python(code: str) -> str:
    source = str(Path(weft.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


def loaded(code: str) -> set[str]:
    """The top-level packages that a piece of code loads."""
    output = python(
        f"{code}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    )
    return set(output.split())


def test_importing_loads_nothing_heavy() -> None:
    assert loaded("import weft").isdisjoint(HEAVY)


def test_running_a_program_loads_nothing_heavy() -> None:
    code = (
        "import weft\n"
        "b = weft.ptir.Builder()\n"
        "weft.run(b.build(b.param('f32', [2]) + 1.0), [[1.0, 2.0]])"
    )
    found = loaded(code)
    assert "numpy" in found
    assert found.isdisjoint(HEAVY)


def processor_seconds(package: str) -> float:
    """Processor time of an import in a fresh process, the start of Python itself not included."""
    code = (
        "import time\n"
        "started = time.process_time()\n"
        f"import {package}\n"
        "print(time.process_time() - started)"
    )
    return float(python(code))


def test_importing_costs_at_most_twice_numpy() -> None:
    # The best of several, taken in turn: other work on the machine only ever adds time.
    pairs = [(processor_seconds("weft"), processor_seconds("numpy")) for _ in range(7)]
    ours, numpys = (min(times) for times in zip(*pairs, strict=True))
    assert ours <= 2 * numpys, f"import weft takes {ours:.3f} s, import numpy {numpys:.3f} s"


def test_the_public_names_are_there() -> None:
    code = (
        "import weft\n"
        "missing = [name for name in weft.__all__ if not hasattr(weft, name)]\n"
        "assert not missing, missing\n"
        "assert set(weft.__all__) <= set(dir(weft))"
    )
    python(code)
