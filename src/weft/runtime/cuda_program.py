"""Running a compiled program on a CUDA device.

Every buffer has a fixed address: inputs are copied into theirs, results read back from theirs, the
arena and the constants stay, and state lives in memory that host and device both reach. So all
launches and copies of a program are recorded once, as one graph, and a run starts that graph.

The device is opened by the first run: a program can be compiled, and looked at, without one.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import BY_NAME
from weft.foundation.errors import (
    ExecutionError,
    InternalError,
    SpecViolation,
    Unimplemented,
)
from weft.runtime.artifact import (
    Artifact,
    BufferSlot,
    CopyBuffer,
    HostCall,
    KernelCode,
    Launch,
    TensorSpec,
)
from weft.runtime.cuda import Device, Event, Graph, Memory, Stream, open_device
from weft.runtime.cuda_kernels import LoadedKernel, load

Array = NDArray[Any]
_WORD = 8
_ELEMENT_BITS = 40
"""Bits of an error word that say which element; those above say which check."""


class Program:
    """A compiled program on its way to a device, and then there."""

    def __init__(
        self,
        artifact: Artifact,
        state: Sequence[Array] = (),
        params: frozenset[int] = frozenset(),
        device: Device | None = None,
    ) -> None:
        for step in artifact.steps:
            if isinstance(step, HostCall):
                raise Unimplemented(step.label, "the cuda backend cannot run host calls yet")
        self.artifact = artifact
        self.state = list(state)
        self.params = params
        """Positions, among the inputs that are not state, of those bound for many runs."""
        self._device = device
        self._resident: _Resident | None = None
        self._holder: object = None
        self._lock = threading.Lock()

    def run(
        self,
        inputs: Sequence[Array],
        seed: int = 0,
        threads: int | None = None,
        holder: object = None,
    ) -> list[Array]:
        """The outputs for inputs that have exactly the declared types and lie contiguously.

        An output that is an updated state is a view of that state, good until the next run.
        `holder` owns the parameters: if it is that of the last run, they are in place already.
        """
        with self._lock:
            resident = self._ready()
            self._upload(resident, inputs, holder)
            resident.start()
            return self._results(resident)

    def profile(
        self, inputs: Sequence[Array], seed: int = 0, threads: int | None = None
    ) -> list[tuple[str, float]]:
        """The seconds of every step of one run."""
        with self._lock:
            resident = self._ready()
            self._upload(resident, inputs, None)
            seconds = resident.timed()
            self._results(resident)
        labels = [step.label for step in self.artifact.steps]
        return list(zip(labels, seconds, strict=True))

    def _ready(self) -> _Resident:
        if self._resident is None:
            device = self._device or open_device()
            self._resident = _Resident(device, self.artifact, self.state)
        self._resident.device.activate()
        return self._resident

    def _upload(self, resident: _Resident, inputs: Sequence[Array], holder: object) -> None:
        kept = self.params if holder is not None and holder is self._holder else frozenset()
        for number, array in enumerate(inputs):
            address = resident.inputs.get(number)
            if address is not None and number not in kept:
                resident.stream.upload(address, array)
        for array in self.state:
            if array.nbytes:
                resident.stream.bring(int(array.ctypes.data), array.nbytes)
        self._holder = holder

    def _results(self, resident: _Resident) -> list[Array]:
        found = []
        for spec, number in zip(self.artifact.outputs, self.artifact.output_slots, strict=True):
            slot = self.artifact.buffers[number]
            if slot.space == "state":
                found.append(_view(self.state[slot.number], spec))
                continue
            array = np.empty(spec.shape, BY_NAME[spec.dtype].numpy)
            resident.stream.download(array, resident.address(slot))
            found.append(array)
        resident.finish()
        return found


class _Resident:
    """What a program has on a device: memory, kernels, a stream, a graph."""

    def __init__(self, device: Device, artifact: Artifact, state: Sequence[Array]) -> None:
        self.device, self.artifact = device, artifact
        self.blocks: dict[tuple[str, int], Memory] = {}
        self._reserve(state)
        self.errors = device.allocate(_WORD * max(1, len(artifact.steps)))
        self.kernels = [_load(device, code) for code in artifact.kernels]
        self.stream: Stream = device.stream()
        self.graph: Graph | None = None
        owned = [m for (space, _), m in self.blocks.items() if space != "state"]
        self._release = weakref.finalize(self, _free, [*owned, self.errors])
        self._release.atexit = False

    @property
    def inputs(self) -> dict[int, int]:
        """The addresses of the inputs that some step uses."""
        return {n: m.address for (space, n), m in self.blocks.items() if space == "input"}

    def _reserve(self, state: Sequence[Array]) -> None:
        sizes: dict[tuple[str, int], int] = {}
        for slot in self.artifact.buffers:
            key = _block(slot)
            sizes[key] = max(sizes.get(key, 0), slot.offset + slot.bytes)
        for (space, number), size in sizes.items():
            if space == "state":
                address = int(state[number].ctypes.data)
                self.blocks[space, number] = Memory(self.device, address, size)
            elif space == "constant":
                data = np.frombuffer(self.artifact.constants[number], np.uint8)
                self.blocks[space, number] = self.device.upload(data)
            else:
                whole = self.artifact.arena_bytes if space == "arena" else size
                self.blocks[space, number] = self.device.allocate(whole)

    def address(self, slot: BufferSlot) -> int:
        return self.blocks[_block(slot)].address + slot.offset

    def step(self, number: int) -> None:
        """Put one step into the stream."""
        step = self.artifact.steps[number]
        if isinstance(step, CopyBuffer):
            source, target = (self.artifact.buffers[n] for n in (step.source, step.target))
            if step.bytes:
                self.stream.copy(self.address(target), self.address(source), step.bytes)
        elif isinstance(step, Launch):
            kernel = self.kernels[step.kernel]
            addresses = [self.address(self.artifact.buffers[n]) for n in step.buffers]
            if kernel is not None:
                if kernel.code.reports:
                    addresses.append(self.errors.address + _WORD * number)
                kernel.launch(addresses, self.stream.handle)

    def everything(self) -> None:
        if self.reports:
            self.stream.fill(self.errors.address, self.errors.bytes)
        for number, _ in enumerate(self.artifact.steps):
            self.step(number)

    @property
    def reports(self) -> bool:
        return any(code.reports for code in self.artifact.kernels)

    def start(self) -> None:
        """Start a run; the first one records it."""
        if self.graph is None:
            with self.stream.capture() as graph:
                self.everything()
            self.graph = graph
        self.graph.launch(self.stream)

    def timed(self) -> list[float]:
        """Run step by step; the seconds of each."""
        points: list[Event] = []
        for number, _ in enumerate(self.artifact.steps):
            points.append(self.device.event())
            points[-1].record(self.stream)
            self.step(number)
        points.append(self.device.event())
        points[-1].record(self.stream)
        self.stream.synchronize()
        return [after.milliseconds_since(before) / 1e3 for before, after in pairwise(points)]

    def finish(self) -> None:
        """Wait for the run, and raise what its kernels reported."""
        words = np.zeros(len(self.artifact.steps), np.uint64)
        if self.reports:
            self.stream.download(words, self.errors.address)
        self.stream.synchronize()
        failed = np.flatnonzero(words)
        if failed.size:
            raise self.violation(int(failed[0]), int(words[failed[0]]))

    def violation(self, number: int, word: int) -> SpecViolation:
        """What a step left in its error word: the complement of check and element."""
        step, report = self.artifact.steps[number], ~word & ((1 << 64) - 1)
        check, element = report >> _ELEMENT_BITS, report & ((1 << _ELEMENT_BITS) - 1)
        if not isinstance(step, Launch):
            raise InternalError(f"the step {step.label} reported a violation")
        code, why = self.artifact.kernels[step.kernel].checks[check]
        where = step.where[check] if step.where else ""
        return SpecViolation(code, f"{why} at element {element}", where=where or step.label)


def _block(slot: BufferSlot) -> tuple[str, int]:
    return (slot.space, 0 if slot.space == "arena" else slot.number)


def _load(device: Device, code: KernelCode) -> LoadedKernel | None:
    """A kernel ready to be launched; None where it has nothing to do."""
    return load(device, code) if code.grid[0] else None


def _free(blocks: Sequence[Memory]) -> None:
    for block in blocks:
        with contextlib.suppress(ExecutionError):
            block.free()


def _view(array: Array, spec: TensorSpec) -> Array:
    return array.reshape(spec.shape)


def state_tensor(device: Device, dtype: str, shape: tuple[int, ...]) -> Array:
    """A tensor of zeros that host and device both reach, at an address that stays."""
    found = BY_NAME[dtype]
    count = int(np.prod(shape, dtype=np.int64)) * found.storage_bytes
    memory = device.managed(count)
    raw: Any = (ctypes.c_uint8 * max(1, count)).from_address(memory.address)
    release = weakref.finalize(raw, _free, [memory])
    release.atexit = False
    held: Array = np.ctypeslib.as_array(raw)[:count]
    held[...] = 0
    return np.asarray(held.view(found.numpy).reshape(shape))
