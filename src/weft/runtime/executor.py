"""Running a compiled program on the CPU.

`Program` links the kernels once. A run fills a parameter block (pointers of inputs and outputs) and
makes one native call that carries out every step. Each concurrent run has a workspace of its own:
arena, argument tables, step table, error words. Constants and state live at fixed addresses.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import BY_NAME
from weft.foundation.errors import SpecViolation
from weft.runtime.artifact import (
    Artifact,
    BufferSlot,
    CopyBuffer,
    HostCall,
    Launch,
    TensorSpec,
)
from weft.runtime.jit import Library
from weft.runtime.native import STEP_WORDS
from weft.runtime.threads import execute, thread_count

Array = NDArray[Any]
ALIGNMENT = 128


def aligned_bytes(count: int) -> Array:
    """Uninitialised memory that starts at a multiple of the alignment; never empty."""
    raw = np.empty(max(1, count) + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + max(1, count)]


def empty_tensor(spec: TensorSpec) -> Array:
    """An aligned tensor with unspecified contents."""
    dtype = BY_NAME[spec.dtype]
    count = int(np.prod(spec.shape, dtype=np.int64))
    raw = aligned_bytes(count * dtype.storage_bytes)
    return raw[: count * dtype.storage_bytes].view(dtype.numpy).reshape(spec.shape)


def zero_tensor(dtype: str, shape: tuple[int, ...]) -> Array:
    """An aligned tensor of zeros."""
    made = empty_tensor(TensorSpec("", dtype, shape))
    made[...] = np.zeros((), made.dtype)
    return made


class _Workspace:
    """What one run at a time needs for itself."""

    def __init__(self, program: Program) -> None:
        artifact = program.artifact
        self.arena = aligned_bytes(artifact.arena_bytes)
        tables = [s.buffers if isinstance(s, Launch) else () for s in artifact.steps]
        offsets = np.cumsum([0, *map(len, tables)])
        flat = [number for table in tables for number in table]
        self.args = np.zeros(max(1, len(flat)), np.uint64)
        self.errors = np.zeros(max(1, len(artifact.steps)), np.uint64)
        self.steps = np.zeros((len(artifact.steps), STEP_WORDS), np.uint64)
        self.slots = [artifact.buffers[number] for number in flat]
        self.copies: list[tuple[int, CopyBuffer]] = []
        for index, step in enumerate(artifact.steps):
            self.steps[index, 2] = self.errors[index:].ctypes.data
            if isinstance(step, Launch):
                kernel = artifact.kernels[step.kernel]
                self.steps[index, 0] = program.addresses[step.kernel]
                self.steps[index, 1] = self.args[int(offsets[index]) :].ctypes.data
                self.steps[index, 3] = kernel.work_items
            elif isinstance(step, CopyBuffer):
                self.steps[index, 3] = step.bytes
                self.copies.append((index, step))

    def fill(self, program: Program, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """The pointers of this run."""

        def address(slot: BufferSlot) -> int:
            return program.address(slot, self.arena, inputs, outputs)

        for index, slot in enumerate(self.slots):
            self.args[index] = address(slot)
        for index, copy in self.copies:
            self.steps[index, 1] = address(program.artifact.buffers[copy.target])
            self.steps[index, 5] = address(program.artifact.buffers[copy.source])

    def set_grabs(self, threads: int) -> None:
        """How many pieces a thread takes at a time: enough for balance, few enough to be cheap."""
        pieces = self.steps[:, 3].astype(np.int64)
        self.steps[:, 4] = np.maximum(1, pieces // (threads * 4))


class Program:
    """A compiled program, linked and ready."""

    def __init__(self, artifact: Artifact, state: Sequence[Array] = ()) -> None:
        self.artifact = artifact
        objects = {kernel.symbol: kernel.code for kernel in artifact.kernels}
        self._library = Library(list(objects.values()), list(objects)) if objects else None
        self.addresses = [
            self._library.address(kernel.symbol) if self._library else 0
            for kernel in artifact.kernels
        ]
        self.constants = [_aligned_copy(data) for data in artifact.constants]
        self.state = list(state)
        self._segments = _native_segments(artifact)
        self._idle: list[_Workspace] = []
        self._lock = threading.Lock()

    def address(
        self,
        slot: BufferSlot,
        arena: Array,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
    ) -> int:
        """Where a buffer of this run begins."""
        spaces: dict[str, Sequence[Array]] = {
            "input": inputs,
            "output": outputs,
            "state": self.state,
            "constant": self.constants,
        }
        if slot.space == "arena":
            return int(arena.ctypes.data) + slot.offset
        return int(spaces[slot.space][slot.number].ctypes.data) + slot.offset

    def run(
        self,
        inputs: Sequence[Array],
        seed: int = 0,
        threads: int | None = None,
        holder: object = None,
    ) -> list[Array]:
        """The outputs for inputs that have exactly the declared types and lie contiguously.

        An output that is an updated state is a view of that state, good until the next run; one
        that took over a donated input is that input. Who holds the parameters does not matter: all
        inputs are read where they lie.
        """
        outputs = self._outputs(inputs)
        with self._workspace(inputs, outputs, threads or thread_count()) as workspace:
            self._carry_out(workspace, inputs, outputs, seed, threads or thread_count())
            failed = np.flatnonzero(workspace.errors)
        if failed.size:
            label = self.artifact.steps[int(failed[0])].label
            raise SpecViolation("IntegerDivideByZero", "a divisor is zero", where=label)
        return outputs

    def profile(
        self, inputs: Sequence[Array], seed: int = 0, threads: int | None = None
    ) -> list[tuple[str, float]]:
        """The seconds of every step of one run, each step called on its own."""
        count = threads or thread_count()
        outputs = self._outputs(inputs)
        found = []
        with self._workspace(inputs, outputs, count) as workspace:
            for index, step in enumerate(self.artifact.steps):
                started = time.perf_counter()
                if isinstance(step, HostCall):
                    self._host_call(step, workspace.arena, inputs, outputs, seed)
                else:
                    execute(int(workspace.steps[index:].ctypes.data), 1, count)
                found.append((step.label, time.perf_counter() - started))
        return found

    @contextmanager
    def _workspace(
        self, inputs: Sequence[Array], outputs: Sequence[Array], threads: int
    ) -> Iterator[_Workspace]:
        """A workspace with the pointers of this run; it goes back to the idle ones afterwards."""
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        workspace = idle or _Workspace(self)
        workspace.fill(self, inputs, outputs)
        workspace.set_grabs(threads)
        workspace.errors[:] = 0
        yield workspace
        with self._lock:
            self._idle.append(workspace)

    def _carry_out(
        self,
        workspace: _Workspace,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        seed: int,
        threads: int,
    ) -> None:
        """All steps: one native call for each segment between host calls."""
        for first, last, call in self._segments:
            if last > first:
                execute(int(workspace.steps[first:].ctypes.data), last - first, threads)
            if call is not None:
                self._host_call(call, workspace.arena, inputs, outputs, seed)

    def _outputs(self, inputs: Sequence[Array]) -> list[Array]:
        """Memory for every output: fresh, or what its buffer already is."""
        found = []
        for spec, number in zip(self.artifact.outputs, self.artifact.output_slots, strict=True):
            slot = self.artifact.buffers[number]
            taken = {"state": self.state, "input": inputs, "constant": self.constants}
            if slot.space in taken:
                memory = taken[slot.space][slot.number]
                found.append(_tensor_at(int(memory.ctypes.data), spec, memory))
            else:
                found.append(empty_tensor(spec))
        return found

    def _host_call(
        self,
        call: HostCall,
        arena: Array,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        seed: int,
    ) -> None:
        """Hand whole tensors to a function of the host, and keep what it returns."""

        def tensor(number: int, spec: TensorSpec) -> Array:
            slot = self.artifact.buffers[number]
            address = self.address(slot, arena, inputs, outputs)
            return _tensor_at(address, spec)

        results = call.function([tensor(*argument) for argument in call.inputs], seed)
        for result, place in zip(results, call.outputs, strict=True):
            tensor(*place)[...] = result


def _native_segments(artifact: Artifact) -> list[tuple[int, int, HostCall | None]]:
    """Ranges of steps between host calls, each with the call that ends it."""
    found: list[tuple[int, int, HostCall | None]] = []
    first = 0
    for index, step in enumerate(artifact.steps):
        if isinstance(step, HostCall):
            found.append((first, index, step))
            first = index + 1
    return [*found, (first, len(artifact.steps), None)]


def _tensor_at(address: int, spec: TensorSpec, owner: object = None) -> Array:
    """The memory at an address as a tensor; `owner` is kept alive with it."""
    dtype = BY_NAME[spec.dtype]
    count = int(np.prod(spec.shape, dtype=np.int64))
    raw: Any = (ctypes.c_uint8 * max(1, count * dtype.storage_bytes)).from_address(address)
    raw.owner = owner
    memory: Array = np.ctypeslib.as_array(raw)[: count * dtype.storage_bytes]
    return np.asarray(memory.view(dtype.numpy).reshape(spec.shape))


def _aligned_copy(data: bytes) -> Array:
    memory = aligned_bytes(len(data))
    memory[: len(data)] = np.frombuffer(data, np.uint8)
    return memory
