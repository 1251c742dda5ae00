"""Hostile files: each works or is a clear error, in bounded time and memory, and never a crash.

`corpus/` holds small files, and `corpus/EXPECTED` says what must become of each. Large ones are
made by `generated.py`. Every file is loaded, verified, and run if it verifies, in a process that
has one gigabyte of memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.hostile.generated import GENERATED, SLOW
from tests.hostile.worker import CORPUS, MEMORY, Outcome, judged


def expectations() -> dict[str, str]:
    lines = (CORPUS / "EXPECTED").read_text().splitlines()
    return dict(line.split() for line in lines if not line.startswith("#"))


EXPECTED = expectations()
NAMES = sorted(EXPECTED)
CHUNK = 60
BOMBS = [name for name in NAMES if name.startswith("bomb-")]
QUICK = [name for name in GENERATED if name not in SLOW]


def compare(outcomes: Sequence[Outcome], expected: dict[str, str]) -> None:
    """Every verdict is the expected one."""
    wrong = [
        f"{o.name}: {o.verdict}, expected {expected[o.name.partition(' ')[2]]}\n{o.crash}"
        for o in outcomes
        if o.verdict != expected[o.name.partition(" ")[2]]
    ]
    assert not wrong, "\n".join(wrong)


def test_every_file_has_an_expectation() -> None:
    files = {path.name for path in CORPUS.iterdir()} - {"EXPECTED", ".gitattributes"}
    assert files == set(EXPECTED)
    assert len(files) >= 150
    assert {path.rpartition(".")[2] for path in files} == {"txt", "json", "bin"}


def test_odd_but_valid_files_are_among_them() -> None:
    assert sum(verdict == "ok" for verdict in EXPECTED.values()) >= 20
    assert len(set(EXPECTED.values())) >= 35


@pytest.mark.parametrize("start", range(0, len(NAMES), CHUNK))
def test_a_small_file_is_what_it_is_expected_to_be(start: int) -> None:
    names = NAMES[start : start + CHUNK]
    outcomes = judged([f"file {name}" for name in names])
    assert len(outcomes) == len(names)
    compare(outcomes, EXPECTED)


@pytest.mark.parametrize("start", range(4))
def test_a_large_file_is_what_it_is_expected_to_be(start: int) -> None:
    names = QUICK[start::4]
    outcomes = judged([f"made {name}" for name in names])
    assert len(outcomes) == len(names)
    compare(outcomes, {name: GENERATED[name][0] for name in names})


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SLOW))
def test_a_very_large_file_is_what_it_is_expected_to_be(name: str) -> None:
    compare(judged([f"made {name}"]), {name: GENERATED[name][0]})


def test_what_would_be_too_large_is_refused_before_it_is_allocated() -> None:
    outcomes = judged([f"file {name}" for name in BOMBS])
    assert {outcome.verdict for outcome in outcomes} == {"ResourceExceeded"}
    assert outcomes[-1].peak < (MEMORY >> 20) // 2, "something was allocated all the same"


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("memory-")])
def test_running_out_of_memory_is_an_error_of_wefts(name: str) -> None:
    """Within the limits that Weft has by default, but more than there is."""
    (outcome,) = judged([f"file {name}"], limits={})
    assert (outcome.verdict, outcome.crash) == ("ResourceExceeded", "")
