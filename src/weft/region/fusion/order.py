"""Scheduling: the order in which kernels run.

Groups, the kernels in the making, have numbers in the order of the program, and each needs others
before it. They run in the order of the program; or, where that leaves less in memory at the worst
moment, each as soon as it can once it frees at least as many bytes as it stores. What writes an
output where an input of the same size may be overwritten waits until nobody reads the input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from heapq import heapify, heappop, heappush

from weft.foundation.packing import Block, peak
from weft.foundation.records import dataclass


class Order:
    """Which groups run before which; a group that was joined into another one is gone."""

    def __init__(self, before: dict[int, set[int]]) -> None:
        self.before = before
        self.after: dict[int, set[int]] = {n: set() for n in before}
        for n, needed in before.items():
            for earlier in needed:
                self.after[earlier].add(n)
        self.latest = {n: n for n in before}
        """No number of a group, or of one that has to run before it, is greater."""

    def join(self, number: int, other: int) -> None:
        """Let a group take over another one's place too."""
        for earlier in self.before.pop(other) - {number}:
            self.after[earlier].discard(other)
            self.after[earlier].add(number)
            self.before[number].add(earlier)
        for later in self.after.pop(other):
            self.before[later].discard(other)
            if later != number:
                self.before[later].add(number)
                self.after[number].add(later)
        self.before[number] -= {number, other}
        self.after[number] -= {number, other}
        self._raise(number, max(self.latest[number], self.latest.pop(other)))

    def _raise(self, number: int, latest: int) -> None:
        self.latest[number] = latest
        stack = [number]
        while stack:
            for later in self.after[stack.pop()]:
                if self.latest[later] < latest:
                    self.latest[later] = latest
                    stack.append(later)

    def is_between(self, number: int, other: int) -> bool:
        """Whether a third group stands between the two: it needs one and is needed by the other."""
        return self._needs(number, other) or self._needs(other, number)

    def are_neighbours(self, number: int, other: int) -> bool:
        """Whether one of the two needs the other, with nothing between them."""
        return other in self.before[number] or number in self.before[other]

    def _needs(self, last: int, first: int) -> bool:
        """Whether a group needs another one by way of a third."""
        before, latest = self.before, self.latest
        stack = [n for n in before[last] if n != first]
        seen: set[int] = set()
        while stack:
            here = stack.pop()
            if here not in seen and latest[here] >= first:
                seen.add(here)
                needed = before[here]
                if first in needed:
                    return True
                stack += needed
        return False

    def sequence(self, traffic: Traffic) -> list[int]:
        """Groups after everything they need, in whichever of the two orders takes less memory."""
        plain = self._in_order(None)
        early = self._in_order(_Readers(traffic))
        return early if traffic.peak(early) < traffic.peak(plain) else plain

    def _in_order(self, readers: _Readers | None) -> list[int]:
        """Groups after everything they need: in the order of the program, or before that as soon
        as they free memory."""
        missing = {n: len(needed) for n, needed in self.before.items()}
        ready = [n for n, count in missing.items() if not count]
        heapify(ready)
        freeing = readers.freeing(ready) if readers else []
        done: dict[int, None] = {}
        while ready:
            number = heappop(freeing or ready)
            if number in done:
                continue
            done[number] = None
            fresh = []
            for later in self.after[number]:
                missing[later] -= 1
                if not missing[later]:
                    heappush(ready, later)
                    fresh.append(later)
            if readers:
                last = (n for n in readers.ran(number) if not missing[n])
                for found in readers.freeing([*fresh, *last]):
                    heappush(freeing, found)
        return list(done)


@dataclass(frozen=True)
class Traffic:
    """What groups read and store: the bytes of tensors that only this program sees, of what it is
    given and of what it hands out."""

    reads: Mapping[int, Set[str]]
    stores: Mapping[int, Set[str]]
    internal: Mapping[str, int]
    given: Mapping[str, int]
    handed_out: Mapping[str, int]

    def peak(self, sequence: Iterable[int]) -> int:
        """The most bytes of internal tensors that live at one moment."""
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for moment, number in enumerate(sequence):
            for name in self.stores[number]:
                first[name] = last[name] = moment
            for name in self.reads[number]:
                last[name] = moment
        return peak(
            Block(name, self.internal[name], moment, last[name])
            for name, moment in first.items()
            if name in self.internal
        )


class _Readers:
    """Who still has to read a tensor while groups run."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.waiting: dict[str, set[int]] = {}
        for number, names in traffic.reads.items():
            for name in names:
                self.waiting.setdefault(name, set()).add(number)

    def ran(self, number: int) -> list[int]:
        """Note that a group ran; those that are now the last to read something it read."""
        found: list[int] = []
        for name in self.traffic.reads[number]:
            waiting = self.waiting[name]
            waiting.discard(number)
            if len(waiting) == 1:
                found += waiting
        return found

    def freeing(self, numbers: Iterable[int]) -> list[int]:
        """The groups that need no more memory than they free, in order."""
        return sorted(n for n in numbers if self._frees(n))

    def _frees(self, number: int) -> bool:
        traffic, own = self.traffic, {number}
        read, stored = traffic.reads[number], traffic.stores[number]
        freed = sum(traffic.internal.get(n, 0) for n in read if self.waiting[n] == own)
        if sum(traffic.internal.get(n, 0) for n in stored) > freed:
            return False
        sizes = {traffic.handed_out[n] for n in stored if n in traffic.handed_out}
        return not any(traffic.given.get(n) in sizes and self.waiting[n] != own for n in read)
