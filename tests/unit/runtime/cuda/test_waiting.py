"""Waiting for a device: Ctrl-C ends it with a sentence, and a second one ends the process."""

from __future__ import annotations

import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from weft.runtime.cuda.driver import Stream
from weft.runtime.cuda.waiting import wait

SCRIPT = """
import os, signal, sys, threading, time
from weft.runtime.cuda.waiting import wait

signal.signal(signal.SIGINT, signal.default_int_handler)
before = signal.getsignal(signal.SIGINT)
asked = []


def busy():
    asked.append(1)
    if len(asked) == 3:
        os.kill(os.getpid(), signal.SIGINT)
    return False


try:
    wait(busy)
except KeyboardInterrupt as error:
    print(error, flush=True)
if sys.argv[1] == "again":
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
wait(lambda: True)
print(signal.getsignal(signal.SIGINT) is before)
"""
SENTENCE = (
    "stopped waiting for the GPU, which cannot be stopped: it is still busy with what it was asked "
    "for; a second Ctrl-C ends the process"
)


def after_interrupts(what: str) -> tuple[int, list[str]]:
    command = [sys.executable, "-c", SCRIPT, what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_an_interrupt_ends_the_waiting_until_somebody_waits_to_the_end() -> None:
    assert after_interrupts("again") == (-signal.SIGINT, [SENTENCE])


def test_nobody_waits_for_what_is_done() -> None:
    answers = iter([False, False, True])
    wait(lambda: next(answers))
    assert next(answers, None) is None


class BusyDriver:
    """A driver whose stream is busy for two questions, and which waits for it in copies."""

    def __init__(self) -> None:
        self.questions = 0
        self.copied_at: list[int] = []

    def cuStreamQuery(self, stream: Any) -> tuple[int]:
        self.questions += 1
        return (600 if self.questions < 3 else 0,)

    def cuMemcpyDtoHAsync(self, *_: Any) -> tuple[int]:
        self.copied_at.append(self.questions)
        return (0,)

    cuMemcpyHtoDAsync = cuMemcpyDtoHAsync


@pytest.mark.parametrize(("method", "size", "questions"), [
    ("download", 1, 3), ("upload", 1 << 20, 3), ("upload", 16, 0),
])  # fmt: skip
def test_the_driver_is_not_left_to_wait_in_a_copy(method: str, size: int, questions: int) -> None:
    """It would not hear Ctrl-C: reading a number while a long kernel ran could not be ended."""
    driver: Any = BusyDriver()
    stream = Stream(SimpleNamespace(driver=driver), None)  # type: ignore[arg-type]
    array = np.zeros(size, np.uint8)
    operands = (array, 0) if method == "download" else (0, array)
    getattr(stream, method)(*operands)
    assert driver.copied_at == [questions]
