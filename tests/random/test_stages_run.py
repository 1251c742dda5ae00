"""The long run of programs with stages: what is right, what is wrong, and what has no time."""

from __future__ import annotations

import pytest

from tests.random.stages import check, run_all


def test_programs_run_in_processes() -> None:
    tally = run_all(range(161, 163), "cpu", 2)
    assert (tally.done, tally.wrong) == (2, [])
    assert 0 < tally.staged <= 2


def test_what_is_wrong_is_told_with_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    tally = run_all(range(7, 9), "no target", 1)
    assert tally.wrong == [7, 8]
    assert "WRONG, seed 8: UserError" in capsys.readouterr().out


def test_a_run_ends_in_time() -> None:
    assert run_all(range(10), "cpu", 1, seconds=-1.0).done == 0


@pytest.mark.parametrize("target", ["cpu", "sm80", "sm90"])
def test_choices_are_drawn(target: str) -> None:
    """Some choices have stages that the compiler would not have made."""
    assert any(check(seed, target) for seed in (161, 162, 163))


def test_what_rows_a_piece_stores_is_proved_where_there_are_many_loops() -> None:
    """The proof takes some 100,000 isl operations."""
    assert check(991185)
