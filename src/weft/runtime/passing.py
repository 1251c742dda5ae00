"""Outputs of a run that are inputs of it: a donated input that keeps its place, with other elements
in it. There may be hundreds, most often in the order of the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Passing:
    """Which outputs of a program are inputs; None for those that are not."""

    def __init__(self, passed: Sequence[int | None]) -> None:
        self._none: list[Any] = [None] * len(passed)
        self._runs: list[tuple[int, int, int, int]] = []
        """Outputs that are inputs one after the other: the first, the one behind the last, and the
        same of the inputs."""
        for number, given in enumerate(passed):
            if given is None:
                continue
            first, end, start, stop = self._runs[-1] if self._runs else (0, 0, 0, -1)
            if (end, stop) == (number, given):
                self._runs[-1] = (first, end + 1, start, stop + 1)
            else:
                self._runs.append((number, number + 1, given, given + 1))
        self.others = [number for number, given in enumerate(passed) if given is None]
        """The outputs that are no inputs."""

    def outputs(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for these inputs, as far as they are inputs; None for the others."""
        outputs = self._none.copy()
        for first, end, start, stop in self._runs:
            outputs[first:end] = inputs[start:stop]
        return outputs
