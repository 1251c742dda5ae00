"""The program cache: compiled programs by structural signature.

Two graphs with the same structure, over whatever tensors, have the same signature and share one
compiled program. Numbers in a graph (the 0.5 of `x * 0.5`, the 3 of `x[3]`) are compiled into the
program at first; when the same structure comes back with other numbers, one more program is
compiled that takes those as parameters which have changed, and where others change later, one that
takes them all. From then on nothing is compiled for that structure again. A number that never
changes stays part of the program: a slice at a known place is computed better.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from weft.driver.backends import Backend, runs_passes
from weft.driver.execute import Prepared, prepare
from weft.foundation.errors import UserError
from weft.foundation.forks import new_lock, no_fork
from weft.ops.graph.hooks import WATCH
from weft.ptir.ir import Program
from weft.ptir.passes import optimise
from weft.ptir.passes.log import PassLog

Signature: TypeAlias = tuple[Any, ...]
Numbers: TypeAlias = tuple[bytes, ...]
Positions: TypeAlias = tuple[int, ...]
"""Which of the numbers are parameters."""
Single: TypeAlias = tuple[str, int, int]
"""One instruction on data: its backend and form, and the order of its operands."""
Build: TypeAlias = Callable[[Positions], tuple[Program, Backend]]


@dataclass
class Statistics:
    """What the cache has done so far."""

    hits: int = 0
    misses: int = 0
    compiled: int = 0
    evicted: int = 0


@dataclass
class Entry:
    """The compiled versions of one structure."""

    numbers: Numbers
    fixed: Prepared | None = None
    """With the numbers compiled in."""
    lifted: tuple[Prepared, Positions] | None = None
    """With the numbers at these positions as parameters after the leaves."""
    lock: threading.Lock = field(default_factory=new_lock)

    def serving(self, numbers: Numbers) -> tuple[Prepared, Positions] | None:
        """The version that computes with these numbers."""
        if self.fixed is not None and self.numbers == numbers:
            return self.fixed, ()
        lifted = self.lifted
        if lifted is None:
            return None
        everything = len(lifted[1]) == len(numbers)
        return lifted if everything or set(self.changed(numbers)) <= set(lifted[1]) else None

    def changed(self, numbers: Numbers) -> Positions:
        """Where these numbers are other than those that came first."""
        pairs = zip(self.numbers, numbers, strict=True)
        return tuple(at for at, (first, now) in enumerate(pairs) if first != now)


class ProgramCache:
    """Least recently used first out. Threads may use it at the same time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.statistics = Statistics()
        self.singles: dict[Single, Prepared] = {}
        """Programs of one instruction on data, found without a look at the graph."""
        self._entries: OrderedDict[Signature, Entry] = OrderedDict()
        self._lock = new_lock()

    def find(
        self, signature: Signature, numbers: Numbers, build: Build
    ) -> tuple[Prepared, Positions]:
        """The program for a structure, and which of the numbers it takes as parameters.

        `build(positions)` makes the program where it is needed.
        """
        entry = self._entry(signature, numbers)
        found = entry.serving(numbers)
        if found is not None:
            self.statistics.hits += 1
            return found
        with entry.lock:
            return self._fill(entry, numbers, build)

    def _entry(self, signature: Signature, numbers: Numbers) -> Entry:
        with self._lock:
            entry = self._entries.get(signature)
            if entry is None:
                entry = self._entries[signature] = Entry(numbers)
                if len(self._entries) > self.size:
                    self._entries.popitem(last=False)
                    self.statistics.evicted += 1
                    self.singles.clear()
            else:
                self._entries.move_to_end(signature)
        return entry

    def _fill(self, entry: Entry, numbers: Numbers, build: Build) -> tuple[Prepared, Positions]:
        """Compile what is missing; another thread may have done so while this one waited."""
        found = entry.serving(numbers)
        if found is not None:
            return found
        self.statistics.misses += 1
        if entry.numbers == numbers:
            entry.fixed = self.compile(*build(()))
            return entry.fixed, ()
        once = entry.lifted is None
        # At most three programs for a structure, however its numbers change.
        positions = entry.changed(numbers) if once else tuple(range(len(numbers)))
        entry.lifted = self.compile(*build(positions)), positions
        return entry.lifted

    def compile(
        self,
        program: Program,
        backend: Backend,
        kind: str = "eval",
        donated: frozenset[int] = frozenset(),
        params: frozenset[int] = frozenset(),
        source: Program | None = None,
    ) -> Prepared:
        """A program after all passes, ready to run. `kind` tells a tracer for whom, and what the
        passes did; a run may use the memory of the inputs at the positions `donated`, and those at
        the positions `params` are the same in many runs. `source` is what it was made of."""
        self.statistics.compiled += 1
        started = time.perf_counter()
        log = PassLog()
        is_ready = WATCH.tracer is None and runs_passes(backend)
        with no_fork:
            passed = program if is_ready else optimise(program, log)
            made = replace(prepare(passed, backend, donated, params), source=source or program)
        if WATCH.tracer is not None:
            WATCH.tracer.compiled(kind, program, made, log, time.perf_counter() - started)
        return made

    def clear(self) -> None:
        """Forget every program."""
        with self._lock:
            self._entries.clear()
            self.singles.clear()

    def __len__(self) -> int:
        return len(self._entries)


def _cache_size() -> int:
    text = os.environ.get("WEFT_PROGRAM_CACHE", "512")
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UserError(f"WEFT_PROGRAM_CACHE is {text!r}; it must be a whole number over 0")
    return int(text)


PROGRAMS = ProgramCache(_cache_size())
"""The cache of the process."""
