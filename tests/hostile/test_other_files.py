"""Damaged StableHLO, bundles, checkpoints and plans: each works, or is an error that Weft raises on
purpose. Programs, models of ONNX, weights, Core IR and archives of inputs have tests of their
own."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest

import weft
from tests.hostile.other_files import KINDS, outcome
from weft.foundation.errors import InternalError, WeftError

QUICK = {"StableHLO": 150, "plan": 12}
MOST = {"plan": 300}
LONGEST = 2_000


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MAX_TENSOR_BYTES", str(1 << 20))
    monkeypatch.setenv("WEFT_MAX_LOOP_STEPS", "200")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the originals are, and what they are made into."""
    return tmp_path_factory.mktemp("damaged")


def judged(name: str, seeds: range, folder: Path) -> set[str]:
    """What becomes of mutants; one that ends in anything but a result or a sentence fails."""
    if name == "StableHLO":
        pytest.importorskip("jaxlib")
    if name in ("manifest", "unchecked weights") and shutil.which("cc") is None:
        pytest.skip("bundles are linked by a C compiler, and there is no cc")
    found = set()
    for seed in seeds:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", weft.WeftWarning)
                outcome(KINDS[name], folder, seed)
            found.add("works")
        except InternalError as error:
            pytest.fail(f"{name} {seed}: {error}")
        except WeftError as error:
            found.add("refused" if len(str(error)) < LONGEST else f"a wordy refusal of {seed}")
        except Exception as error:
            pytest.fail(f"{name} {seed} made {type(error).__name__}: {str(error)[:500]}")
    return found


@pytest.mark.parametrize("name", KINDS)
def test_damaged_files_are_refused_or_work(name: str, folder: Path) -> None:
    # Damage that nothing survives would test the readers only.
    assert judged(name, range(QUICK.get(name, 60)), folder) == {"works", "refused"}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_many_damaged_files_are_refused_or_work(name: str, folder: Path) -> None:
    judged(name, range(1_000, 1_000 + MOST.get(name, 3_000)), folder)
