"""A timeline of one run: what host and device did, and when.

Kernels of a CPU are called by the threads of the pool. In a run that is looked at, each is called
through a function of Python that takes the time: that costs some microseconds for every handful of
pieces, so times of kernels are measured without it.
"""

from __future__ import annotations

import ctypes
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final

HOST: Final = "host"
"""The lane of what Python carries out itself."""
STREAM: Final = "GPU stream"
"""The lane of what a GPU carries out: programs have one stream."""
LAUNCHES: Final = "launches"
"""The lane of the host's calls that hand work to a GPU, and do not wait for it."""
_PYTHON: Final = -1
"""Stands for the thread of what Python carries out itself."""
MOST_LAPS: Final = 20_000
"""Laps of one run that are kept: a loop may have any number."""
_BREATH: Final = 20e-6
"""Seconds between two handfuls of pieces that are one lap."""
_KERNEL: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)


@dataclass(frozen=True)
class Lap:
    """The time that one step took of one thread of a CPU, or of one stream of a GPU, in seconds
    since the run began."""

    label: str
    start: float
    seconds: float
    lane: str


@dataclass
class Recorder:
    """Takes the time of the threads of one run; `wrapped` kernels tell it of themselves."""

    started: float = field(default_factory=time.perf_counter)
    _taken: dict[int, list[list[Any]]] = field(default_factory=dict)
    _alive: list[Any] = field(default_factory=list)
    """Functions that native code has the addresses of."""

    def wrapped(self, label: str, address: int) -> int:
        """The address of a kernel that takes its own time."""
        kernel = _KERNEL(address)

        def run(args: int, error: int, first: int, last: int) -> None:
            started = time.perf_counter()
            kernel(args, error, first, last)
            self.add(label, started, time.perf_counter(), threading.get_ident())

        made = _KERNEL(run)
        self._alive.append(made)
        return int(ctypes.cast(made, ctypes.c_void_p).value or 0)

    def add(self, label: str, started: float, ended: float, thread: int) -> None:
        """Every thread adds to a list of its own."""
        laps = self._taken.setdefault(thread, [])
        # A thread takes a kernel's pieces in several grabs: those that follow each other at once
        # are shown as one.
        if laps and laps[-1][0] == label and started - laps[-1][2] < _BREATH:
            laps[-1][2] = ended
        elif len(laps) < MOST_LAPS:
            laps.append([label, started, ended])

    def laps(self) -> list[Lap]:
        """What was seen, in order."""
        threads = sorted((laps[0][1], thread) for thread, laps in self._taken.items())
        numbers = [thread for _, thread in threads if thread != _PYTHON]
        names = {thread: f"thread {at + 1}" for at, thread in enumerate(numbers)} | {_PYTHON: HOST}
        found = [
            Lap(label, start - self.started, end - start, names[thread])
            for thread, laps in self._taken.items()
            for label, start, end in laps
        ]
        return sorted(found, key=lambda lap: lap.start)[:MOST_LAPS]

    def host(self, label: str, started: float) -> None:
        """A call of the host that ended just now."""
        self.add(label, started, time.perf_counter(), _PYTHON)
