"""What a program has on a device: kernels, constants, arena, graphs.

Constants, arena, states and what random numbers depend on have fixed addresses. Inputs and outputs
are wherever a run has them. The steps between two jumps are a *stretch*: they are recorded as one
graph, which later runs replay while the inputs and outputs it touches are where they were; with new
addresses the same graph is recorded again and its nodes are updated. A few sets of addresses are
kept ready.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.foundation.errors import ExecutionError, InternalError, SpecViolation
from weft.runtime.artifact import (
    Artifact,
    BufferSlot,
    CopyBuffer,
    HostCall,
    KernelCode,
    Launch,
    Step,
)
from weft.runtime.cuda import Graph, Memory
from weft.runtime.cuda_kernels import LoadedKernel, load
from weft.runtime.gpu import Gpu

Array = NDArray[Any]
_WORD: Final = 8
_ELEMENT_BITS: Final = 40
"""Bits of an error word that say which element; those above say which check."""
_RUN_BYTES: Final = 16
_KEPT: Final = 4
"""Sets of addresses for which the graph of a stretch is kept ready."""
EXTERNAL: Final = ("input", "output")
"""Memory that each run has somewhere else."""


@dataclass
class Stretch:
    """Steps that follow one another whatever the data, and the external memory they touch."""

    first: int
    last: int
    touched: tuple[tuple[str, int], ...]
    graphs: OrderedDict[tuple[int, ...], Graph] = field(default_factory=OrderedDict)


class Resident:
    """A program on a device."""

    def __init__(self, gpu: Gpu, artifact: Artifact, state: Sequence[Array]) -> None:
        self.gpu, self.artifact = gpu, artifact
        self.external: dict[tuple[str, int], int] = {}
        """Where the inputs and outputs of the run are."""
        self.sizes = _sizes(artifact)
        self.fixed: dict[tuple[str, int], Memory] = {}
        self._reserve(state)
        self.kernels = [_load(gpu, code) for code in artifact.kernels]
        self.reports = any(code.reports for code in artifact.kernels)
        self.errors = gpu.pool.take(_WORD * max(1, len(artifact.steps)), "error words")
        gpu.stream.fill(self.errors.address, self.errors.bytes)
        self.stretches = _stretches(artifact)
        owned = [memory for (space, _), memory in self.fixed.items() if space != "state"]
        graphs = [stretch.graphs for stretch in self.stretches.values()]
        loaded = [kernel for kernel in self.kernels if kernel is not None]
        self._release = weakref.finalize(self, _give_up, [*owned, self.errors], graphs, loaded)
        self._release.atexit = False

    def _reserve(self, state: Sequence[Array]) -> None:
        for (space, number), size in self.sizes.items():
            if space in EXTERNAL:
                continue
            if space == "state":
                address = int(state[number].ctypes.data)
                self.fixed[space, number] = Memory(self.gpu.device, address, size)
            elif space == "constant":
                data = np.frombuffer(self.artifact.constants[number], np.uint8)
                self.fixed[space, number] = self.gpu.pool.take(data.nbytes, "constants")
                self.fixed[space, number].write(data)
            elif space == "arena":
                whole = self.artifact.arena_bytes
                self.fixed[space, number] = self.gpu.pool.take(whole, "intermediate results")
            else:
                self.fixed[space, number] = self.gpu.pool.take(_RUN_BYTES, "seeds")

    def address(self, slot: BufferSlot) -> int:
        """Where a buffer of this run begins."""
        key = _memory(slot)
        if key[0] in EXTERNAL:
            return self.external[key] + slot.offset
        return self.fixed[key].address + slot.offset

    # -- steps -----------------------------------------------------------------------------------

    def put(self, number: int) -> None:
        """Put a launch or a copy into the stream."""
        step = self.artifact.steps[number]
        if isinstance(step, CopyBuffer):
            self.copy(step, 0)
        elif isinstance(step, Launch):
            self.launch(step, number)
        else:
            raise InternalError(f"the step {step.label} is no work for the device")

    def copy(self, step: CopyBuffer, turn: int) -> None:
        """A copy in some turn of a loop."""
        source, target = (
            self.address(self.artifact.buffers[n]) for n in (step.source, step.target)
        )
        if step.bytes:
            source += turn * step.source_step
            target += turn * step.target_step
            self.gpu.stream.copy(target, source, step.bytes)

    def launch(self, step: Launch, number: int) -> None:
        kernel = self.kernels[step.kernel]
        if kernel is None:
            return
        addresses = [self.address(self.artifact.buffers[n]) for n in step.buffers]
        if kernel.code.reports:
            addresses.append(self.errors.address + _WORD * number)
        kernel.launch(addresses, self.gpu.stream.handle)

    def replay(self, stretch: Stretch) -> None:
        """Start the steps of a stretch; the first time with these addresses records them."""
        key = tuple(self.external[touched] for touched in stretch.touched)
        graph = stretch.graphs.get(key)
        if graph is None:
            graph = self._record(stretch)
            stretch.graphs[key] = graph
        stretch.graphs.move_to_end(key)
        graph.launch(self.gpu.stream)

    def _record(self, stretch: Stretch) -> Graph:
        old = stretch.graphs.popitem(last=False)[1] if len(stretch.graphs) >= _KEPT else None
        with self.gpu.stream.capture(old) as graph:
            for number in range(stretch.first, stretch.last):
                self.put(number)
        return graph

    def begin(self, seed: int) -> None:
        """What random numbers depend on, before the first body is entered."""
        words = np.array([seed, 0], np.uint64)
        for (space, _), memory in self.fixed.items():
            if space == "run":
                self.gpu.stream.upload(memory.address, words)

    def enter(self, body: int, before: int) -> None:
        """A body is entered that was entered so often before."""
        memory = self.fixed.get(("run", body))
        if memory is not None:
            # The upper half of the second number.
            self.gpu.stream.set_word(memory.address + _RUN_BYTES - 4, before)

    # -- errors ----------------------------------------------------------------------------------

    def fault(self) -> SpecViolation | None:
        """What the first step that reported a violation has to say; it is forgotten then."""
        words = self.error_words()
        self.gpu.stream.synchronize()
        return self.fault_in(words)

    def error_words(self) -> Array:
        """The error words of all steps, there when the stream is done."""
        words = np.zeros(len(self.artifact.steps), np.uint64)
        if self.reports:
            self.gpu.stream.download(words, self.errors.address)
        return words

    def fault_in(self, words: Array) -> SpecViolation | None:
        """What the first of some error words says."""
        failed = np.flatnonzero(words)
        if not failed.size:
            return None
        self.gpu.stream.fill(self.errors.address, self.errors.bytes)
        return self._violation(int(failed[0]), int(words[failed[0]]))

    def _violation(self, number: int, word: int) -> SpecViolation:
        """What a step left in its error word: the complement of check and element."""
        step, report = self.artifact.steps[number], ~word & ((1 << 64) - 1)
        check, element = report >> _ELEMENT_BITS, report & ((1 << _ELEMENT_BITS) - 1)
        if not isinstance(step, Launch):
            raise InternalError(f"the step {step.label} reported a violation")
        code, why = self.artifact.kernels[step.kernel].checks[check]
        where = step.where[check] if step.where else ""
        return SpecViolation(code, f"{why} at element {element}", where=where or step.label)


def _memory(slot: BufferSlot) -> tuple[str, int]:
    return (slot.space, 0 if slot.space == "arena" else slot.number)


def _sizes(artifact: Artifact) -> dict[tuple[str, int], int]:
    """The bytes of every piece of memory that a program touches."""
    found: dict[tuple[str, int], int] = {}
    for slot in artifact.buffers:
        key = _memory(slot)
        found[key] = max(found.get(key, 0), slot.offset + slot.bytes)
    return found


def is_straight(step: Step) -> bool:
    """Whether a step is the same work for the device in every turn of every run."""
    if isinstance(step, CopyBuffer):
        return not (step.source_step or step.target_step)
    return isinstance(step, Launch)


def _stretches(artifact: Artifact) -> dict[int, Stretch]:
    """The longest runs of straight steps into which nothing jumps, by their first step."""
    targets = {getattr(step, "target", -1) for step in artifact.steps if not _works(step)}
    found: dict[int, Stretch] = {}
    first = 0
    for number in range(len(artifact.steps) + 1):
        ends = number == len(artifact.steps) or not is_straight(artifact.steps[number])
        if (ends or number in targets) and first < number:
            found[first] = Stretch(first, number, _touched(artifact, first, number))
        if ends or number in targets:
            first = number + 1 if ends else number
    return found


def _works(step: Step) -> bool:
    return isinstance(step, Launch | CopyBuffer | HostCall)


def _touched(artifact: Artifact, first: int, last: int) -> tuple[tuple[str, int], ...]:
    found: dict[tuple[str, int], None] = {}
    for step in artifact.steps[first:last]:
        if isinstance(step, CopyBuffer):
            numbers: Sequence[int] = (step.source, step.target)
        else:
            numbers = step.buffers if isinstance(step, Launch) else ()
        for number in numbers:
            key = _memory(artifact.buffers[number])
            if key[0] in EXTERNAL:
                found[key] = None
    return tuple(found)


def _load(gpu: Gpu, code: KernelCode) -> LoadedKernel | None:
    """A kernel ready to be launched; None where it has nothing to do."""
    return load(gpu.device, code) if code.grid[0] else None


def _give_up(
    memory: Sequence[Memory],
    graphs: Sequence[Mapping[tuple[int, ...], Graph]],
    kernels: Sequence[LoadedKernel],
) -> None:
    for kept in graphs:
        for graph in kept.values():
            with contextlib.suppress(ExecutionError):
                graph.close()
    for block in memory:
        with contextlib.suppress(ExecutionError):
            block.free()
    for kernel in kernels:
        with contextlib.suppress(ExecutionError):
            kernel.unload()
