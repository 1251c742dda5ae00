"""Ranks that are threads: who waits for whom, and what is made once for all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.foundation.ranks import Meeting, RankFailed, combined, world_here
from weft.runtime import rendezvous
from weft.runtime.rendezvous import run_ranks

EVERYBODY = Meeting("all_reduce", tuple(range(64)))


def test_many_ranks_add_up_once_and_each_has_its_own_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(parts: Any, fn: str) -> Any:
        made.append(len(parts))
        return combined(parts, fn)

    monkeypatch.setattr(rendezvous, "combined", counted)

    def program(rank: int) -> Any:
        own = np.full(3, rank, np.int64)
        for _ in range(5):
            own = world_here().all_reduce(EVERYBODY, own, "max") + 1
        own += rank
        return own

    found = run_ranks(64, program)
    assert [list(one) for one in found] == [[68 + rank] * 3 for rank in range(64)]
    assert made == [64] * 5


def test_groups_meet_beside_each_other() -> None:
    def program(rank: int) -> float:
        own = np.asarray(float(rank))
        for step in (1, 2, 4):
            pair = tuple(sorted((rank, rank ^ step)))
            own = world_here().all_reduce(Meeting("all_reduce", pair), own, "sum")
        return float(own)

    assert run_ranks(8, program) == [28.0] * 8


def test_who_comes_after_a_failure_hears_of_it() -> None:
    met = Meeting("all_gather", (0, 1, 2))

    def program(rank: int) -> None:
        if rank == 2:
            raise ValueError("no data")
        for _ in range(2):
            with pytest.raises(RankFailed, match="rank 2 failed: no data"):
                world_here().meet(met, np.zeros(1))

    with pytest.raises(ValueError, match="no data"):
        run_ranks(3, program)


def test_a_group_of_a_rank_that_has_ended_is_told_whoever_comes_first() -> None:
    def program(rank: int) -> None:
        pair = (0, 1) if rank < 2 else (2, 3)
        if rank != 3:
            world_here().meet(Meeting("all_gather", pair, "a.py:1"), np.zeros(1))

    with pytest.raises(RankFailed, match=r"rank 2 is at all_gather \(a.py:1\), and rank 3 has end"):
        run_ranks(4, program)
