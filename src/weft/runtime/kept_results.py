"""Results that a run can skip: those that a program keeps from run to run since they depend on its
parameters alone, such as repacked weights; and outputs that are inputs.

Whoever calls a program may say that some inputs are a *holder's*, and the same as long as it is.
When the same holder comes again, what is made of its inputs alone moves to memory of its own, and
runs that come after leave out the steps that make it. Programs that never see a holder twice keep
nothing, and look for nothing.

On the host a holder also has to say that nobody writes into what it holds (`elements_stay`): there
every library reaches the memory of every other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from weft.runtime.artifact import Artifact, Launch

Array = NDArray[Any]
_GIVEN: Final = ("input", "constant")
_SAID: Final = 2
"""The words of a step that those of a jump take the place of."""


@dataclass(frozen=True)
class Kept:
    """Steps that need not run again, the inputs that they depend on, and the bytes of each result,
    by its number."""

    steps: frozenset[int]
    inputs: tuple[int, ...]
    sizes: dict[int, int]


NOTHING: Final = Kept(frozenset(), (), {})


def kept_of(artifact: Artifact, lasting: Collection[int]) -> Kept:
    """What depends on constants and these inputs alone."""
    steps, sizes = set[int](), dict[int, int]()
    inputs, met = dict[int, None](), set[int]()
    for number, step in enumerate(artifact.steps):
        if not isinstance(step, Launch):
            continue
        slots = [artifact.buffers[n] for n in step.buffers]
        # The first launch that names a number makes it; all later ones read it.
        made = {slot.kept: slot.bytes for slot in slots if slot.kept and slot.kept not in met}
        met.update(made)
        read = [slot for slot in slots if slot.kept not in made]
        stays = all(
            slot.kept in sizes
            if slot.kept
            else slot.space in _GIVEN and (slot.space != "input" or slot.number in lasting)
            for slot in read
        )
        # A launch that reads a kept result is kept with it only where that one is: steps come in
        # order, so what it reads has been decided.
        if made and stays:
            steps.add(number)
            sizes |= made
            inputs |= dict.fromkeys(slot.number for slot in read if slot.space == "input")
    return Kept(frozenset(steps), tuple(inputs), sizes)


class KeptSteps:
    """What a workspace of the host keeps: the steps of a table that are left out, and where their
    results lie."""

    def __init__(self, steps: Array, jump: int) -> None:
        self._steps, self._jump = steps, jump
        self._pointers: dict[int, list[tuple[memoryview, int]]] = {}
        """The words that point to each result."""
        self._memory: list[Array] = []
        self._kept: Kept | None = None
        """None as long as nobody has come twice."""
        self._data: tuple[int, ...] = ()
        """The inputs that were not the holder's when it came."""
        self._said: dict[int, list[int]] = {}
        """What the steps that are left out say else."""
        self.is_made = False
        """Whether the next run of the holder leaves steps out."""

    def point(self, number: int, table: memoryview, place: int) -> None:
        """A word of a table points to this result."""
        self._pointers.setdefault(number, []).append((table, place))

    @property
    def may_keep(self) -> bool:
        """Whether there are results that a run may keep."""
        return bool(self._pointers)

    def forget(self) -> None:
        """The next run makes everything."""
        self.is_made = False
        for step, words in self._said.items():
            self._steps[step, :_SAID] = words
        self._said = {}

    def come_again(
        self,
        holder: object,
        data: Sequence[int],
        find: Callable[[Sequence[int]], Kept],
        allocate: Callable[[int], Array],
    ) -> bool:
        """The holder of the run before has come again; whether this run makes what is kept, and
        has to say that it has (`made`)."""
        if self.is_made or not self._pointers or not getattr(holder, "elements_stay", False):
            return False
        if self._kept is None:
            self._begin(find(data), allocate)
            self._data = tuple(data)
        # With other data positions other inputs would be the holder's: what was found to depend on
        # the holder alone may then not.
        return bool(self._kept and self._kept.steps) and self._data == tuple(data)

    def made(self) -> None:
        """A run has made what is kept: those that come after leave out the steps."""
        self.is_made = True
        for step in self._kept.steps if self._kept else ():
            self._said[step] = [int(word) for word in self._steps[step, :_SAID]]
            # The step becomes a jump to the one behind it: the table keeps its length, and the
            # targets of all other jumps hold.
            self._steps[step, :_SAID] = self._jump, step + 1

    def _begin(self, found: Kept, allocate: Callable[[int], Array]) -> None:
        """Take memory for results, where there is some."""
        self._kept = NOTHING
        try:
            memory = {number: allocate(size) for number, size in found.sizes.items()}
        except MemoryError:
            return
        for number, held in memory.items():
            for table, place in self._pointers[number]:
                table[place] = int(held.ctypes.data)
        self._memory, self._kept = list(memory.values()), found


class Passing:
    """Which outputs of a program are inputs, None for those that are not: a donated input that
    keeps its place, with other elements in it. There may be hundreds, most often in the order of
    the inputs."""

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
