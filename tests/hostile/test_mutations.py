"""Damaged golden files: each is a program, or an error that Weft raises on purpose.

A program that loads can be verified; one that verifies is written and read back in every form, and
runs or says why not.
"""

from __future__ import annotations

import warnings

import pytest

import weft
from tests.hostile.judge import inputs
from tests.hostile.mutations import mutant, originals
from tests.support.cases import one_in
from weft.foundation.errors import InternalError, UserError, WeftError
from weft.ptir import Program, dumps, loads, verify
from weft.ptir.codecs.wire import last_ids

FAST, FULL = 3_000, 100_000
CHUNK = 250


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MAX_TENSOR_BYTES", str(1 << 20))
    monkeypatch.setenv("WEFT_MAX_LOOP_STEPS", "200")


def outcome(data: bytes) -> str:
    """What became of the file; any exception that is not Weft's own comes out."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", weft.WeftWarning)
            program = loads(data)
    except InternalError:
        raise
    except WeftError:
        return "rejected"
    if verify(program, collect=True):
        return "invalid"
    check_forms(program)
    try:
        weft.run(program, inputs(program))
    except InternalError:
        raise
    except WeftError:
        return "refused"
    return "ok"


def check_forms(program: Program) -> None:
    """The program comes back from text as it is; from the wire forms too, where they can say it."""
    assert loads(dumps(program, "text")) == program
    on_wire = all(r.result_ids == last_ids(r.body, len(r.results)) for r in program.regions)
    for form in ("json", "bincode"):
        try:
            written = dumps(program, form)
        except UserError:
            assert not on_wire
            continue
        read = loads(written)
        assert read == program or not on_wire
        assert dumps(read, form) == written


def check(seeds: range) -> dict[str, int]:
    """Judge these mutants; a failure names the seed."""
    counts: dict[str, int] = {}
    for seed in seeds:
        try:
            found = outcome(mutant(seed))
        except Exception as error:
            pytest.fail(f"mutant({seed}) made {type(error).__name__}: {str(error)[:500]}")
        counts[found] = counts.get(found, 0) + 1
    return counts


@pytest.mark.parametrize("start", one_in(2, range(0, FAST, CHUNK)))
def test_damaged_files_are_rejected_or_work(start: int) -> None:
    counts = check(range(start, start + CHUNK))
    # Damage that nothing survives would test the readers only.
    assert set(counts) >= {"rejected", "invalid", "ok"}


@pytest.mark.slow
@pytest.mark.parametrize("start", range(FAST, FULL, 1_000))
def test_very_many_damaged_files_are_rejected_or_work(start: int) -> None:
    check(range(start, start + 1_000))


def test_a_seed_always_gives_the_same_file() -> None:
    assert [mutant(seed) for seed in range(50)] == [mutant(seed) for seed in range(50)]
    assert len({mutant(seed) for seed in range(200)}) > 190


@pytest.mark.parametrize("form", ["bincode", "json", "text"])
def test_the_originals_load(form: str) -> None:
    assert len(originals(form)) >= 87
    for data in originals(form):
        loads(data)
