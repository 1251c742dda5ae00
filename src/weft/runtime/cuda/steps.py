"""Running the steps of a program on a device.

What lies between two jumps goes to the device as one graph. Counted loops turn on the host and wait
for nothing; a branch or a loop that looks at data reads one byte back. A step for the host waits
for its operands, and its results are sent behind them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.foundation import limits
from weft.foundation.dtypes import BY_NAME
from weft.foundation.launches import take_note
from weft.runtime.artifact import (
    Again,
    CopyBuffer,
    Enter,
    HostCall,
    HostFunction,
    Jump,
    JumpUnless,
    Leave,
    Reset,
    TensorSpec,
)
from weft.runtime.cuda.resident import endless
from weft.runtime.cuda.stretches import Stretch, Stretches

Array = NDArray[Any]
_AT_ONCE: Final = 128
"""Steps that are timed together; a stream takes about a thousand things before it must begin."""


class Walk:
    """One run: where it is, how often each body was entered, where its counters stand."""

    def __init__(
        self,
        stretches: Stretches,
        host: Mapping[str, HostFunction],
        seed: int,
        *,
        kept: bool = False,
    ) -> None:
        self.stretches, self.host, self.seed, self.kept = stretches, host, seed, kept
        self.resident = resident = stretches.resident
        artifact = resident.artifact
        self.steps = artifact.steps
        self.counters = [0] * artifact.counters
        self.entered = [0] * artifact.bodies
        self.bodies = 0

    @cached_property
    def most_bodies(self) -> int:
        return limits.current().loop_steps

    def run(self) -> None:
        """All steps; where what is `kept` is there, all but those that make it."""
        self.resident.begin(self.seed)
        position, begun = 0, False
        try:
            while position < len(self.steps):
                stretch = self.stretches.at(position, kept=self.kept)
                if stretch is not None:
                    self._count(stretch.entered)
                    self.replay(stretch)
                    position = stretch.section.last
                else:
                    position = self.turn(position)
                begun = True
        except BaseException as error:
            if begun:
                # Of the stretch that failed nothing was started, but of those before it.
                take_note(error)
            raise

    def timed(self) -> list[float]:
        """All steps, one by one; the seconds of each, in all its turns."""
        seconds = np.zeros(len(self.steps))
        self.resident.begin(self.seed)
        self.resident.gpu.stream.synchronize()
        position = 0
        while position < len(self.steps):
            here, started = position, time.perf_counter()
            if self.resident.is_straight(position):
                position = self._straight_until(position)
                seconds[here:position] += self._time_steps(range(here, position))
            else:
                position = self.turn(position)
                seconds[here] += time.perf_counter() - started
        return [float(found) for found in seconds]

    def replay(self, stretch: Stretch) -> None:
        """Start the steps of a stretch."""
        self.stretches.replay(stretch)

    def _straight_until(self, position: int) -> int:
        end = min(len(self.steps), position + _AT_ONCE)
        bent = (at for at in range(position, end) if not self.resident.is_straight(at))
        return next(bent, end)

    def _time_steps(self, places: range) -> list[float]:
        """Steps that follow each other without a pause of the host; the seconds of each."""
        stream = self.resident.gpu.stream
        points = [self.resident.gpu.device.event() for _ in range(len(places) + 1)]
        # The host takes longer to ask for a small kernel than the device to run it: all is asked
        # for before the first may begin.
        with stream.held_back():
            points[0].record(stream)
            for place, point in zip(places, points[1:], strict=True):
                self.resident.put(place)
                point.record(stream)
        laps = [after.milliseconds_since(before) / 1e3 for before, after in pairwise(points)]
        for point in points:
            point.close()
        return laps

    def turn(self, position: int) -> int:
        """Carry out a step that is not a stretch; where to go on."""
        step = self.steps[position]
        match step:
            case CopyBuffer(counter=counter):
                self.resident.copy(step, self.counters[counter], self.resident.gpu.stream)
            case HostCall() if position not in self.resident.exchanges:
                self._call(step)
            case Enter():
                self._enter(step)
            case Jump(target=target):
                return target
            case JumpUnless(buffer=buffer, target=target):
                return position + 1 if self._holds(buffer) else target
            case Reset(counter=counter):
                self.counters[counter] = 0
            case Leave(counter=counter, limit=limit, target=target):
                return target if self.counters[counter] >= limit else position + 1
            case Again(counter=counter, target=target):
                self.counters[counter] += 1
                return target
            case _:
                self.resident.put(position)
        return position + 1

    def _enter(self, step: Enter) -> None:
        self._count([step])
        self.resident.enter(step.body, self.entered[step.body], self.resident.gpu.stream)
        self.entered[step.body] += 1

    def _count(self, entered: Sequence[Enter]) -> None:
        """So many bodies are entered."""
        self.bodies += len(entered)
        if entered and self.bodies > self.most_bodies:
            raise endless(entered[0].told)

    def _holds(self, buffer: int) -> bool:
        """Whether the i1 in a buffer is true. What went wrong before it was made comes first."""
        (flag,) = self._download([(buffer, TensorSpec("", "i1", ()))])
        return bool(flag)

    def _call(self, call: HostCall) -> None:
        """Hand whole tensors to a function of the host, and keep what it returns."""
        arrays = self._download(call.inputs)
        results = self.host[call.call](arrays, self.seed)
        for result, (number, spec) in zip(results, call.outputs, strict=True):
            found = np.asarray(result, BY_NAME[spec.dtype].numpy).reshape(spec.shape)
            slot = self.resident.artifact.buffers[number]
            self.resident.gpu.stream.upload(
                self.resident.address(slot), np.ascontiguousarray(found)
            )

    def _download(self, places: Sequence[tuple[int, TensorSpec]]) -> list[Array]:
        """Tensors of the device, all work before them done and found right."""
        resident, stream = self.resident, self.resident.gpu.stream
        found = [np.empty(spec.shape, BY_NAME[spec.dtype].numpy) for _, spec in places]
        for array, (number, _) in zip(found, places, strict=True):
            stream.download(array, resident.address(resident.artifact.buffers[number]))
        # Downloaded behind the tensors: what went wrong on the way to them is known with one wait.
        words = resident.error_words()
        stream.synchronize()
        fault = resident.fault_in(words)
        if fault is not None:
            resident.gpu.raised(resident, fault)
            raise fault
        return found
