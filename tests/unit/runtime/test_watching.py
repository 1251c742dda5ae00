"""Native calls that are told to stop: what they work on is kept until they have ended."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from weft.runtime.watching import watched

PATIENCE = 10.0


@pytest.fixture(autouse=True)
def _python_acts_on_signals() -> Iterator[None]:
    """Jobs in the background of a shell ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_what_a_call_answers_comes_out() -> None:
    assert watched(lambda: 7, lambda urgent: None, "sum0", 1.0) == 7


@pytest.mark.parametrize("times", [1, 2])
def test_the_interrupt_comes_out_when_the_call_has_ended(times: int) -> None:
    told = [threading.Event(), threading.Event()]
    ended: list[bool] = []

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def call() -> int:
        for number in range(times):
            # A signal that comes while Python clears something away is lost with its exception.
            interrupt()
            while not told[number].wait(PATIENCE):
                interrupt()
        ended.append(True)
        return 0

    with pytest.raises(KeyboardInterrupt):
        watched(call, lambda urgent: told[urgent].set(), "sum0", 1.0)
    assert ended == [True]
    assert told[1].is_set() == (times == 2)
