"""The process's thread pool: made on first use, sized by the affinity mask, remade after a fork;
and how many threads a launch on a CPU is for, and how many pieces of it one takes at a time.

A thread more costs a launch a little under a tenth of a microsecond, which it takes to come and to
be waited for. Work of w is done soonest by so many threads that each has as much of it as all of
them cost: the root of w over that. Threads that sleep are woken where a program has enough to do
for as long as that takes.
"""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.foundation.errors import UserError
from weft.foundation.forks import new_lock, no_fork
from weft.runtime import native
from weft.runtime.jit import Library, host_cpu, object_code

_NEW = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)
_RUN = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_FIRST, _TURNS, _POOL = 1, 3, 5
"""Words of a call."""


def thread_count() -> int:
    """How many threads kernels may use: `WEFT_NUM_THREADS`, else the processors we may run on."""
    text = os.environ.get("WEFT_NUM_THREADS", "")
    if text:
        if not text.isdecimal() or not 1 <= int(text) <= native.MOST_THREADS:
            raise UserError(
                f"WEFT_NUM_THREADS is {text!r}; it must be a number from 1 to {native.MOST_THREADS}"
            )
        return int(text)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


Array = NDArray[Any]
WORTH_SHARING: Final = 4_000
"""Nanoseconds of work, as estimated, from which on several threads share a launch."""
_OF_A_THREAD: Final = 40
"""Nanoseconds that a thread more costs: half of what they were measured to be on 16 cores, since
short kernels take about twice as long as is estimated."""
_OF_A_GRAB: Final = 1_000
"""The least nanoseconds of work that are worth asking for again."""
_GRABS: Final = 4
"""How often a thread asks for pieces, for balance."""
WORTH_WAKING: Final = 30_000
"""Nanoseconds of work in a program for which threads are woken: the first comes after about ten
microseconds."""
SHARING: Final = {
    "WORTH_SHARING": WORTH_SHARING,
    "OF_A_THREAD": _OF_A_THREAD,
    "OF_A_GRAB": _OF_A_GRAB,
    "GRABS": _GRABS,
}
"""What programs in C are shared out by."""


def shared_out(pieces: Array, work: Array, threads: int) -> Array:
    """For each launch, given its pieces and its nanoseconds of work: how many pieces are taken at a
    time, by how many threads, and whether those that sleep are woken for it."""
    # n threads take work / n + n * cost: least where n is the root of work / cost, and there both
    # terms are equal.
    best = np.sqrt(work / _OF_A_THREAD).astype(np.int64)
    wanted = np.clip(best, 1, np.minimum(threads, np.maximum(1, pieces)))
    wanted = np.where(work >= WORTH_SHARING, np.maximum(1, wanted), 1)
    # One grab a thread at least; up to four, so that a thread that is done early can take what a
    # slow one has not begun; but none with less work than is worth asking for.
    grabs = np.clip(work // _OF_A_GRAB, wanted, wanted * _GRABS)
    grab = np.maximum(1, np.where(wanted > 1, pieces // np.maximum(1, grabs), pieces))
    wakes = np.full_like(pieces, int(work[wanted > 1].sum()) >= WORTH_WAKING)
    return np.stack([grab, wanted, wakes], axis=1)


class _Library(Library):
    """The native executor, linked into this process."""

    def __init__(self) -> None:
        code, _ = object_code(native.source(host_cpu()[0]))
        super().__init__([code], list(native.SYMBOLS))
        self.new_pool = _NEW(self.address("weft_pool_new"))
        self.run = _RUN(self.address("weft_run"))


@dataclass
class _Native:
    library: _Library | None = None
    pools: dict[int, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=new_lock)


_STATE = _Native()


def _library() -> _Library:
    with no_fork, _STATE.lock:
        if _STATE.library is None:
            _STATE.library = _Library()
        return _STATE.library


def _pool(threads: int, library: _Library) -> int:
    """The pool with one worker fewer than `threads`; the caller is the other one."""
    with _STATE.lock:
        if threads not in _STATE.pools:
            _STATE.pools[threads] = library.new_pool(threads - 1)
        return _STATE.pools[threads]


class Call:
    """A table of `count` steps at address `steps`, and the words of `weft_execute` that carry it
    out. They are written into memory: each one that ctypes converts takes as long as a small
    kernel."""

    __slots__ = ("_address", "_block", "_words")

    def __init__(self, steps: int, count: int, state: int, pauses: bool) -> None:
        self._block = np.array([steps, 0, count, -1, state, 0, pauses], np.int64)
        self._words = self._block.data
        self._address = int(self._block.ctypes.data)

    def execute(self, threads: int, first: int = 0, turns: int = -1) -> int:
        """Carry out the steps from `first` on and at most `turns` of them; the answer is that of
        `weft_execute`. Python runs on meanwhile."""
        library = _STATE.library or _library()
        words = self._words
        words[_FIRST] = first
        words[_TURNS] = turns
        words[_POOL] = 0
        if threads > 1:
            words[_POOL] = _STATE.pools.get(threads) or _pool(threads, library)
        position: int = library.run(self._address)
        return position


def _after_fork() -> None:
    """The child has none of the parent's threads: forget the pools, whose memory it merely
    copied."""
    _STATE.pools = {}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
