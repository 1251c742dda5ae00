"""Processes that answer messages: what they do before the first one comes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from weft.foundation.pipes import Family, receive, send

_SERVED = """
import os, pathlib, time
from weft.foundation.errors import UserError
from weft.foundation.pipes import serve

folder, done = pathlib.Path(os.environ["FOLDER"]), []

def answer(message):
    done.append(message)
    if message == b"wrong":
        raise UserError("this cannot be done")
    return b" ".join(done)

def rehearsed():
    yield from (b"one", b"wrong")
    (folder / "half").touch()
    while not (folder / "go on").exists():
        time.sleep(0.01)
    yield b"two"
    (folder / "ready").touch()

serve(answer, rehearsed())
"""


def wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)


def asked_at_once(folder: Path, ask: Callable[[], None]) -> None:
    ask()


def asked_meanwhile(folder: Path, ask: Callable[[], None]) -> None:
    wait_for(folder / "half")
    ask()
    (folder / "go on").touch()


def asked_late(folder: Path, ask: Callable[[], None]) -> None:
    (folder / "go on").touch()
    wait_for(folder / "ready")
    ask()


@pytest.mark.parametrize(
    ("when", "answer"),
    [
        (asked_at_once, b"asked"),
        (asked_meanwhile, b"one wrong asked"),
        (asked_late, b"one wrong two asked"),
    ],
)
def test_messages_are_rehearsed_until_somebody_asks(
    when: Callable[[Path, Callable[[], None]], None], answer: bytes, tmp_path: Path
) -> None:
    """For all processes, and whatever becomes of them."""
    command = [sys.executable, "-c", _SERVED]
    family = Family(command, 2, {**os.environ, "FOLDER": str(tmp_path)})
    (first, back), (second, again) = family.pipes
    try:
        when(tmp_path, lambda: send(first, b"asked"))
        send(second, b"asked")
        assert [receive(back), receive(again)] == [answer] * 2
    finally:
        family.kill()
        family.wait()
        family.close()
