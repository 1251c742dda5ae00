"""Timing programs of one signature side by side on a device.

A contestant is recorded as one graph of many runs, each on the next set of inputs and outputs: the
sets together are larger than the second-level cache, so that no run finds its operands there, and
what starting a graph costs is shared by all of them. A round starts every graph once, in an order
of its own, so that clocks and power that drift do so for all; the median over rounds counts.
"""

from __future__ import annotations

import random
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from weft.foundation.errors import UserError
from weft.runtime.artifact import Artifact, TensorSpec
from weft.runtime.cuda.gpu import Gpu
from weft.runtime.cuda.graphs import Graph, recording
from weft.runtime.cuda.resident import Resident
from weft.runtime.cuda.sections import is_straight
from weft.runtime.cuda.tensors import DeviceTensor, duplicate, empty, upload

Array = NDArray[Any]
_COLD_BYTES: Final = 160 << 20
"""What all sets take together, at least, where there are not too many of them."""
_MOST_SETS: Final = 48
"""Copies of a kernel's tensors."""
_ROUND_SECONDS: Final = 1e-3
"""About how long a graph runs, if one run of every set takes no longer."""
_MOST_RUNS: Final = 192
ROUNDS: Final = 9
"""Launches in a graph, at most, and graphs of which the median counts."""


@dataclass
class _Contestant:
    resident: Resident
    graph: Graph | None = None
    runs: int = 0


def can_enter(artifact: Artifact) -> bool:
    """Whether the device carries a program out alone, and in one line."""
    return all(is_straight(step) for step in artifact.steps)


def seconds_alone(gpu: Gpu, artifact: Artifact, inputs: Sequence[Array]) -> float:
    """The time that one run of a program takes the device."""
    kinds = [spec.dtype for spec in artifact.inputs]
    race = Race(gpu, list(zip(inputs, kinds, strict=True)), artifact.outputs)
    try:
        race.enter(artifact)
        (seconds,) = race.seconds()
    finally:
        race.close()
    return seconds


class Race:
    """Contestants, and the sets of memory that all of them work on."""

    def __init__(
        self, gpu: Gpu, inputs: Sequence[tuple[Array, str]], outputs: Sequence[TensorSpec]
    ) -> None:
        """`inputs` are arrays and the names of their dtypes."""
        self.gpu = gpu
        self.contestants: list[_Contestant] = []
        given = [upload(gpu, array, dtype) for array, dtype in inputs]
        made = [empty(gpu, spec.dtype, spec.shape, "results") for spec in outputs]
        whole = sum(tensor.nbytes for tensor in (*given, *made))
        # One more than fits: by the time a set comes again, all others have gone through the cache.
        count = min(_MOST_SETS, 1 + _COLD_BYTES // max(1, whole))
        self.sets = [(given, made)]
        for _ in range(1, count):
            more = [duplicate(tensor) for tensor in given]
            results = [empty(gpu, spec.dtype, spec.shape, "results") for spec in outputs]
            self.sets.append((more, results))

    @property
    def results(self) -> list[DeviceTensor]:
        """The outputs of the last run on the first set."""
        return self.sets[0][1]

    def enter(self, artifact: Artifact) -> None:
        """Add a program and run it once, on the first set."""
        if not can_enter(artifact):
            raise UserError("a program with steps of the host's, or with jumps, enters no race")
        with self.gpu.lock:
            contestant = _Contestant(Resident(self.gpu, artifact, ()))
            self._enqueue_run(contestant, 0)
            self.gpu.wait()
            self.contestants.append(contestant)

    def seconds(self, rounds: int = ROUNDS) -> list[float]:
        """The time of one run of each contestant, in the order in which they entered."""
        with self.gpu.lock:
            for contestant in self.contestants:
                if contestant.graph is None:
                    self._record(contestant)
            shuffled = random.Random(rounds)  # noqa: S311
            times: list[list[float]] = [[] for _ in self.contestants]
            for _ in range(rounds):
                order = list(range(len(self.contestants)))
                shuffled.shuffle(order)
                for number in order:
                    times[number].append(self._time_run(self.contestants[number]))
        return [statistics.median(found) for found in times]

    def close(self) -> None:
        """Give the graphs back; memory goes with whoever holds it."""
        for contestant in self.contestants:
            if contestant.graph is not None:
                contestant.graph.close()
        self.contestants.clear()

    # -- one contestant --------------------------------------------------------------------------

    def _enqueue_run(self, contestant: _Contestant, number: int) -> None:
        """One run, on some set."""
        resident = contestant.resident
        resident.external = self._addresses(number % len(self.sets))
        deque(resident.put_straight(range(len(resident.artifact.steps)), self.gpu.stream), 0)

    def _addresses(self, number: int) -> dict[tuple[str, int], int]:
        kinds: Mapping[str, list[DeviceTensor]] = dict(
            zip(("input", "output"), self.sets[number], strict=True)
        )
        return {
            (space, place): tensor.address
            for space, tensors in kinds.items()
            for place, tensor in enumerate(tensors)
        }

    def _record(self, contestant: _Contestant) -> None:
        """Enough runs for a round, of every set as many."""
        once = self._capture_runs(contestant, len(self.sets))
        # The first start of a graph brings it to the device: only the second one is timed.
        self._time_run(once)
        seconds = self._time_run(once)
        turns = min(_ROUND_SECONDS / max(seconds, 1e-7), _MOST_RUNS) / len(self.sets)
        if turns < 2:
            contestant.graph, contestant.runs = once.graph, once.runs
            return
        if once.graph is not None:
            once.graph.close()
        more = self._capture_runs(contestant, round(turns) * len(self.sets))
        contestant.graph, contestant.runs = more.graph, more.runs

    def _capture_runs(self, contestant: _Contestant, runs: int) -> _Contestant:
        with recording(self.gpu.stream) as graph:
            for number in range(runs):
                self._enqueue_run(contestant, number)
        return _Contestant(contestant.resident, graph, runs)

    def _time_run(self, contestant: _Contestant) -> float:
        """The seconds of a run: those of the whole graph, shared out."""
        graph, stream = contestant.graph, self.gpu.stream
        assert graph is not None
        before, after = self.gpu.device.event(), self.gpu.device.event()
        before.record(stream)
        graph.launch(stream)
        after.record(stream)
        after.synchronize()
        seconds = after.milliseconds_since(before) / 1e3
        before.close()
        after.close()
        return seconds / contestant.runs
