"""Conformance cases shared among processes: the same results, also where a process is lost."""

from __future__ import annotations

import pytest

from tests.unit.testing.absent import WHY
from weft.foundation.errors import BackendUnavailable
from weft.testing.conformance import workers
from weft.testing.conformance.run import Outcome
from weft.testing.conformance.table import select
from weft.testing.conformance.workers import run_shared


def test_a_case_that_ends_its_process_fails_alone() -> None:
    cases = [*select("tanh/f32/*")[:1], *select("add/f32/*")[:2], *select("exp/f32/*")[:2]]
    name = "tests.unit.testing.deadly:BACKEND"
    found = {result.id: result for result in run_shared(cases, name, 2)}
    assert found.keys() == {case.id for case in cases}
    lost = found.pop(cases[0].id)
    assert (lost.outcome, lost.reason) == (Outcome.FAIL, "its process ended with code 3")
    assert {result.outcome for result in found.values()} == {Outcome.PASS}


def test_a_backend_whose_machine_is_not_there_ends_the_run() -> None:
    results = run_shared(select("add/f32/*"), "tests.unit.testing.absent:BACKEND", 2)
    with pytest.raises(BackendUnavailable, match=f"^{WHY}$"):
        list(results)


@pytest.mark.slow
def test_a_case_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PATIENCE", 20.0)
    (result,) = run_shared(select("sin/f32/*")[:1], "tests.unit.testing.deadly:BACKEND", 1)
    assert (result.outcome, result.reason) == (Outcome.FAIL, "it took more than 20 seconds")


def test_nothing_is_begun_after_the_time() -> None:
    assert list(run_shared(select("add/f32/*"), "reference", 2, seconds=-1)) == []
