"""`import weft` is light: NumPy and ml_dtypes, and little of our own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import weft
from tests.support.cases import one_in

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
    pairs = [(processor_seconds("weft"), processor_seconds("numpy")) for _ in range(5)]
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


MODULES = ("fft", "functional", "linalg", "nn", "optim")


@pytest.mark.parametrize("name", one_in(5, MODULES))
def test_a_module_is_imported_as_a_statement(name: str) -> None:
    """First thing in a process, and as what `weft` hands out."""
    python(
        f"import weft.{name} as it\n"
        "import weft\n"
        f"from weft import {name} as other\n"
        f"assert it is weft.{name} is other, it\n"
        f"from weft.{name} import *\n"
        "assert (weft.ones((2,)) + 1).tolist() == [2.0, 2.0]"
    )


def test_a_module_has_the_same_name_before_and_after() -> None:
    python(
        "import weft\n"
        f"before = [getattr(weft, name) for name in {MODULES}]\n"
        "import weft.fft, weft.functional, weft.linalg, weft.nn, weft.optim\n"
        f"assert before == [getattr(weft, name) for name in {MODULES}]"
    )


def test_importing_leaves_the_modules_alone() -> None:
    python("import sys, weft\nassert not any(name.startswith('weft.ops') for name in sys.modules)")


@pytest.mark.slow
def test_types_are_known_by_the_names_of_the_modules(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import weft\n"
        "import weft.fft as fourier\n"
        "import weft.functional as F\n"
        "import weft.linalg\n"
        "import weft.nn as nn\n"
        "from weft.optim import AdamW\n"
        "layer: nn.Linear = weft.nn.Linear(2, 3)\n"
        "optimiser = AdamW(1e-3)\n"
        "reveal_type(layer)\n"
        "reveal_type(optimiser)\n"
        "reveal_type(F.relu(weft.linalg.trace(fourier.fft(fourier.fftfreq(2)))))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(script)],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(Path(weft.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "error" not in done.stdout, done.stdout
    for kind in (
        "weft.ops.nn.linear.Linear",
        "weft.ops.optim.moments.AdamW",
        "weft.ops.tensor.Tensor",
    ):
        assert kind in done.stdout
