"""What all tests share: the backend they run on, golden files, and a log of outcomes.

Tests ask what programs mean, and the reference backend says so at once, where another would compile
first. So it is the default here, in child processes too. What a user sees who chooses nothing is
for modules that say `pytestmark = pytest.mark.usefixtures("default_backend")`.
"""

from __future__ import annotations

import difflib
import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

# OpenBLAS reads it when NumPy is loaded, which is below. Its threads look for more work for 20 ms
# after a product, and so take a processor from the tests that run beside this one.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from tests.support import draws
from tests.support.outcomes import OutcomeLog
from weft.driver.backends import DEFAULT, IN_FORCE
from weft.target import cpu, known

os.environ["WEFT_BACKEND"] = IN_FORCE.name = "reference"
# Tests run side by side, a process to a processor: pools of as many threads each would only wait
# for one another.
os.environ.setdefault("WEFT_NUM_THREADS", str(min(2, cpu.available_cores())))
for _forces_colours in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS"):
    os.environ.pop(_forces_colours, None)
TEXTS = Path(__file__).parent / "text"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite golden texts and show how")
    parser.addoption("--outcomes", metavar="FILE", help="a line for every test as it ends")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--outcomes")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(OutcomeLog(Path(path)))


def pytest_collection_finish() -> None:
    """What is loaded by now stays to the end, and is millions of objects: looking through them for
    garbage, again and again, was a tenth of the time of tests that compile."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture(autouse=True)
def _own_numbers(request: pytest.FixtureRequest) -> None:
    """What a test draws depends on its name alone."""
    draws.restart(request.node.name)


@pytest.fixture
def default_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs on the backend that is in force where nobody chooses one."""
    monkeypatch.delenv("WEFT_BACKEND")
    monkeypatch.setattr(IN_FORCE, "name", DEFAULT)


@pytest.fixture
def quiet_arithmetic() -> Iterator[None]:
    """Overflow and NaN are what the tests of a module are about."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cpu target is two cores with vectors of 128 bits, whatever this machine is: for modules
    whose tests name plans and kernels, which are others on other machines."""
    caches = (64 << 10, 1 << 20, 32 << 20)
    features = cpu.host().features - cpu.MATRIX_TILES
    small = replace(cpu.describe("aarch64", frozenset(), 2, caches), features=features)
    monkeypatch.setattr(known, "host", lambda: small)


@pytest.fixture(scope="module", autouse=True)
def _own_garbage() -> None:
    """What the modules before have left, caches mostly, stays too, but for its garbage. A test that
    looks for cycles looks through what its own module has made: it would take seconds else."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the golden file of that name under tests/text/, which
    `pytest --update` rewrites."""
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
