"""Counting what is asked for and what has to be worked out."""

from __future__ import annotations

import threading

from weft.foundation.tally import Tally, asked, done, tallied


def test_only_what_happens_while_somebody_listens_counts() -> None:
    tally = Tally()
    asked("answers")
    with tallied(tally):
        asked("answers")
        asked("answers")
        done("answers")
    done("answers")
    assert str(tally) == "answers: 2 asked for, 1 done"


def test_the_inner_listener_counts_and_the_outer_one_goes_on() -> None:
    outer, inner = Tally(), Tally()
    with tallied(outer):
        asked("x")
        with tallied(inner):
            asked("x")
        asked("x")
    assert (outer.asked["x"], inner.asked["x"]) == (2, 1)


def test_threads_count_for_themselves() -> None:
    tally = Tally()
    with tallied(tally):
        other = threading.Thread(target=asked, args=("x",))
        other.start()
        other.join()
    assert not tally.asked
