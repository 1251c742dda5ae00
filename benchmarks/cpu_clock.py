"""A clock that runs while processors work: on a busy machine it says more than the one on the wall.

Needs the process table of Linux.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any


def processor_seconds() -> float:
    """What this process and all it started, also those that are gone, have used so far."""
    parents = dict(_parents())
    ticks = sum(_ticks(pid) for pid in parents if _descends(pid, parents))
    return ticks / os.sysconf("SC_CLK_TCK")


def seconds_and_work(function: Callable[..., Any], inputs: Sequence[Any]) -> tuple[float, float]:
    """What one call takes, by the clock on the wall and by what processors worked."""
    worked, started = processor_seconds(), time.perf_counter()
    function(*inputs)
    return time.perf_counter() - started, processor_seconds() - worked


def _parents() -> Iterator[tuple[int, int]]:
    """Every process with the one that started it."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            fields = _fields(int(folder.name))
            if fields:
                yield int(folder.name), int(fields[1])


def _descends(pid: int, parents: dict[int, int]) -> bool:
    """Whether a process is this one, or was started by it or by one that it started."""
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()


def _ticks(pid: int) -> int:
    """User and system time of a process and of its children that ended."""
    return sum(int(field) for field in _fields(pid)[11:15])


def _fields(pid: int) -> list[str]:
    """What stands behind the name in the line of a process; nothing where it has ended."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return line.rpartition(")")[2].split()
