"""A simulated mesh: the ranks are threads of one process, and a collective is a rendezvous.

It defines what collectives mean, and finds out at once what would hang on a real mesh: members of a
group that are at different collectives, a rank whose program is over, ranks that wait in a circle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
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


@dataclass
class _Waiting:
    """A rank at a collective."""

    meeting: Meeting
    array: Array
    parts: _Parts | None = None


@dataclass
class Rendezvous:
    """Where the ranks of one run meet."""

    count: int
    waiting: dict[int, _Waiting] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)
    """Ranks whose program has ended."""
    failure: str = ""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def meet(self, rank: int, meeting: Meeting, array: Array) -> _Parts:
        with self.changed:
            mine = self.waiting[rank] = _Waiting(meeting, array)
            # Who was here before waits for somebody else still, unless this one has come to them.
            self._look(rank, mine)
            self._find_circles()
            while mine.parts is None and not self.failure:
                self.changed.wait()
            if mine.parts is None:
                raise RankFailed(self.failure)
            return mine.parts

    def leave(self, rank: int, failed: str = "") -> None:
        """A rank's program is over, or has failed."""
        with self.changed:
            self.over.add(rank)
            if failed:
                self._fail(failed)
            self._settle()

    def _settle(self) -> None:
        """Let those go on who are all there; say so where somebody never can."""
        for rank, one in list(self.waiting.items()):
            if rank in self.waiting:
                self._look(rank, one)
        self._find_circles()

    def _find_circles(self) -> None:
        stuck = self.waiting.keys() | self.over
        if self.waiting and len(stuck) == self.count:
            places = ", ".join(f"rank {r} is at {w.meeting}" for r, w in self._in_order())
            self._fail(f"the ranks wait for each other in a circle: {places}")

    def _look(self, rank: int, one: _Waiting) -> None:
        members = one.meeting.members
        here = {m: w for m in members if (w := self.waiting.get(m)) is not None}
        same = {m: w for m, w in here.items() if w.meeting.members == members}
        for member in members:
            if member in self.over:
                self._fail(f"rank {rank} is at {one.meeting}, and rank {member} has ended")
        for member, other in same.items():
            if other.meeting.name != one.meeting.name:
                first, second = sorted([rank, member])
                self._fail(
                    f"rank {first} is at {same[first].meeting}, "
                    f"rank {second} at {same[second].meeting}"
                )
        if len(same) == len(members) and not self.failure:
            parts = _Parts(same[member].array for member in members)
            for member in members:
                same[member].parts = parts
                del self.waiting[member]
            self.changed.notify_all()

    def _in_order(self) -> Sequence[tuple[int, _Waiting]]:
        return sorted(self.waiting.items(), key=lambda pair: pair[0])

    def _fail(self, why: str) -> None:
        self.failure = self.failure or why
        self.changed.notify_all()


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
        own = [e for e in errors.values() if not isinstance(e, RankFailed)]
        raise (own or list(errors.values()))[0]
    return results  # type: ignore[return-value]
