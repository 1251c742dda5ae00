"""A simulated mesh: the ranks are threads of one process, and a collective is a rendezvous.

It defines what collectives mean, and finds out at once what would hang on a real mesh: members of a
group that are at different collectives, a rank whose program is over, ranks that wait in a circle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from numpy.typing import NDArray

from weft.foundation.ranks import Meeting, RankFailed, World, as_rank, combined

Array = NDArray[Any]
T = TypeVar("T")


class _Parts(list[Array]):
    """What the members of one meeting came with, and what was made of all of it, once for all."""

    def __init__(self, arrays: Iterable[Array]) -> None:
        super().__init__(arrays)
        self._made: dict[str, Array] = {}
        self._making = threading.Lock()

    def combined(self, fn: str) -> Array:
        with self._making:
            if fn not in self._made:
                self._made[fn] = combined(self, fn)
            return self._made[fn]


class _Waiting:
    """A rank at a collective. It has a lock of its own to wait at: of several that go on at the
    same time none waits for another."""

    def __init__(self, rank: int, meeting: Meeting, array: Array) -> None:
        self.rank, self.meeting, self.array = rank, meeting, array
        self.parts: _Parts | None = None
        self._gate = threading.Lock()
        self._gate.acquire()

    def wait(self) -> None:
        """Return when this rank may go on."""
        self._gate.acquire()

    def go_on(self, parts: _Parts | None = None) -> None:
        self.parts = parts
        self._gate.release()


@dataclass
class Rendezvous:
    """Where the ranks of one run meet."""

    count: int
    waiting: dict[int, _Waiting] = field(default_factory=dict)
    groups: dict[tuple[int, ...], list[_Waiting]] = field(default_factory=dict)
    """Of each group those members that wait for the others; they are at the same collective."""
    over: set[int] = field(default_factory=set)
    """Ranks whose program has ended."""
    failure: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def meet(self, rank: int, meeting: Meeting, array: Array) -> _Parts:
        mine = _Waiting(rank, meeting, array)
        with self.lock:
            if self.failure:
                raise RankFailed(self.failure)
            self._arrive(mine)
        mine.wait()
        if mine.parts is None:
            raise RankFailed(self.failure)
        return mine.parts

    def leave(self, rank: int, failed: str = "") -> None:
        """A rank's program is over, or has failed."""
        with self.lock:
            self.over.add(rank)
            if failed:
                self._fail(failed)
            for one in list(self.waiting.values()):
                self._miss(one)
            self._find_circles()

    def _arrive(self, mine: _Waiting) -> None:
        """Let those go on who are all there; say so where somebody never can."""
        members = mine.meeting.members
        here = self.groups.setdefault(members, [])
        here.append(mine)
        self.waiting[mine.rank] = mine
        # All who wait in a group are at one collective, so one of them stands for the others.
        if here[0].meeting.name != mine.meeting.name:
            first, second = sorted((here[0], mine), key=lambda one: one.rank)
            at = f"rank {first.rank} is at {first.meeting}, rank {second.rank} at {second.meeting}"
            self._fail(at)
        elif len(here) == len(members):
            together = [self.waiting.pop(member) for member in members]
            del self.groups[members]
            parts = _Parts(one.array for one in together)
            for one in together:
                one.go_on(parts)
        else:
            self._miss(mine)
            self._find_circles()

    def _miss(self, one: _Waiting) -> None:
        """Say so where a rank waits for one that has ended."""
        ended = self.over.intersection(one.meeting.members) if self.over else None
        if ended:
            self._fail(f"rank {one.rank} is at {one.meeting}, and rank {min(ended)} has ended")

    def _find_circles(self) -> None:
        # Every rank waits or has ended, and no group is complete: nobody is left who could come.
        if self.waiting and len(self.waiting) + len(self.over) == self.count:
            held = sorted(self.waiting.items())
            places = ", ".join(f"rank {rank} is at {one.meeting}" for rank, one in held)
            self._fail(f"the ranks wait for each other in a circle: {places}")

    def _fail(self, why: str) -> None:
        self.failure = self.failure or why
        for one in self.waiting.values():
            one.go_on()
        self.waiting.clear()
        self.groups.clear()


class SimulatedRank(World):
    """A rank that is a thread."""

    def __init__(self, place: Rendezvous, rank: int) -> None:
        self.place, self.rank, self.count = place, rank, place.count

    def meet(self, meeting: Meeting, array: Array) -> list[Array]:
        return self.place.meet(self.rank, meeting, array)

    def all_reduce(self, meeting: Meeting, array: Array, fn: str) -> Array:
        return self.place.meet(self.rank, meeting, array).combined(fn).copy()


def run_ranks(count: int, program: Callable[[int], T]) -> list[T]:
    """What a program gives on each of so many ranks. The error of a rank is raised; the others,
    which waited for it, are told of it."""
    place = Rendezvous(count)
    results: list[T | None] = [None] * count
    errors: dict[int, BaseException] = {}

    def one(rank: int) -> None:
        failed = ""
        try:
            with as_rank(SimulatedRank(place, rank)):
                results[rank] = program(rank)
        except BaseException as error:
            errors[rank] = error
            failed = f"rank {rank} failed: {error}"
        place.leave(rank, failed)

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        # `RankFailed` is what the others are told: the cause is the error that is none.
        own = [e for e in errors.values() if not isinstance(e, RankFailed)]
        raise (own or list(errors.values()))[0]
    return results  # type: ignore[return-value]
