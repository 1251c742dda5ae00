"""Counters of a compilation: how much work was done, and how much came from a cache.

What is worked out once per structure (queries about integer sets, drafts of kernels) counts here
how often it was asked for and how often it had to be worked out. Counting is off unless somebody
listens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Counts by kind of work."""

    asked: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        lines = (f"{what}: {n} asked for, {self.done[what]} done" for what, n in self.asked.items())
        return "\n".join(lines)


_LISTENER: ContextVar[Tally | None] = ContextVar("tally", default=None)


@contextmanager
def tallied(tally: Tally) -> Iterator[None]:
    """Count what is asked for and done from here on, in this thread."""
    token = _LISTENER.set(tally)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def asked(what: str) -> None:
    """Something was asked for."""
    tally = _LISTENER.get()
    if tally is not None:
        tally.asked[what] += 1


def done(what: str) -> None:
    """It was not known, and was worked out."""
    tally = _LISTENER.get()
    if tally is not None:
        tally.done[what] += 1


def counted(count: int, noun: str) -> str:
    """A number of things, in words: `1 kernel`, `1,024 kernels`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
