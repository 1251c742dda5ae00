"""A timed run: when the host launched what, and when the stream was busy with it.

Launches are asynchronous: the host hands over a whole graph in one call, and goes on while the
stream works. Points in the stream before and behind each graph say when it ran. Inside a graph
nobody can look without changing it: its steps share its time as they share the time that they take
one by one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from weft.foundation.tally import counted
from weft.runtime.artifact import CopyBuffer, HostCall, Launch
from weft.runtime.cuda.driver import Event
from weft.runtime.cuda.steps import Walk
from weft.runtime.cuda.stretches import Stretch
from weft.runtime.timeline import HOST, LAUNCHES, MOST_LAPS, STREAM, Lap


@dataclass(frozen=True)
class _Put:
    """Steps that were put into the stream together."""

    steps: Sequence[int]
    before: Event
    behind: Event


@dataclass
class _Seen:
    """What a run that is looked at leaves behind."""

    began: float = 0.0
    laps: list[Lap] = field(default_factory=list)
    """Those of the host."""
    put: list[_Put] = field(default_factory=list)
    points: list[Event] = field(default_factory=list)


class Watched(Walk):
    """One run; `laps` starts it, given the seconds that every step takes alone."""

    _seen: _Seen

    def laps(self, alone: Sequence[float]) -> list[Lap]:
        """Who was busy with what: the stream, the host with its own steps, and with launches."""
        stream, self._seen = self.resident.gpu.stream, _Seen()
        for stretch in self.stretches.by_step.values():
            self.stretches.ready(stretch)
        stream.synchronize()
        try:
            first = self._point()
            first.synchronize()
            self._seen.began = time.perf_counter()
            self.run()
            stream.synchronize()
            found = [*self._seen.laps, *self._in_stream(first, alone)]
        finally:
            for point in self._seen.points:
                point.close()
        return sorted(found, key=lambda lap: lap.start)[:MOST_LAPS]

    def replay(self, stretch: Stretch) -> None:
        section = stretch.section
        steps = range(section.first, section.last)
        with self._note_launch([at for at in steps if self._is_work(at)]):
            super().replay(stretch)

    def turn(self, position: int) -> int:
        step = self.steps[position]
        if self._is_work(position):
            with self._note_launch([position]):
                return super().turn(position)
        if not isinstance(step, HostCall):
            return super().turn(position)
        # It waits for its operands, and waiting is no work.
        self.resident.gpu.stream.synchronize()
        started = time.perf_counter()
        found = super().turn(position)
        self._add(step.label, started, HOST)
        return found

    def _is_work(self, position: int) -> bool:
        """Whether a step is the stream's."""
        step = self.steps[position]
        return isinstance(step, Launch | CopyBuffer) or position in self.resident.exchanges

    @contextmanager
    def _note_launch(self, steps: Sequence[int]) -> Iterator[None]:
        """What the host asks for inside is in the stream, from point to point."""
        if not steps or len(self._seen.laps) >= MOST_LAPS:
            yield
            return
        before, started = self._point(), time.perf_counter()
        yield
        named = self.steps[steps[0]].label if len(steps) == 1 else counted(len(steps), "step")
        self._add(f"launch of {named}", started, LAUNCHES)
        self._seen.put.append(_Put(steps, before, self._point()))

    def _add(self, label: str, started: float, lane: str) -> None:
        ended, began = time.perf_counter(), self._seen.began
        self._seen.laps.append(Lap(label, started - began, ended - started, lane))

    def _point(self) -> Event:
        made = self.resident.gpu.device.event()
        self._seen.points.append(made)
        made.record(self.resident.gpu.stream)
        return made

    def _in_stream(self, first: Event, alone: Sequence[float]) -> Iterator[Lap]:
        for put in self._seen.put:
            start = put.before.milliseconds_since(first) / 1e3
            taken = put.behind.milliseconds_since(put.before) / 1e3
            whole = sum(alone[step] for step in put.steps)
            for step in put.steps:
                share = alone[step] / whole if whole else 1 / len(put.steps)
                yield Lap(self.steps[step].label, start, share * taken, STREAM)
                start += share * taken
