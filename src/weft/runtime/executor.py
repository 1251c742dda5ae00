"""Running a compiled program on the CPU.

`Program` links the kernels once. A run fills a parameter block (pointers of inputs and outputs) and
makes one native call that carries out every step. Each concurrent run has a workspace of its own:
arena, argument tables, step table, error words. Constants and state live at fixed addresses.

What does not change from run to run is settled when a workspace is made: a run of a small program
takes a few microseconds, so it only fills in the pointers of that run's inputs and outputs.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
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
    Step,
    TensorSpec,
)
from weft.runtime.jit import Library
from weft.runtime.native import STEP_WORDS
from weft.runtime.threads import execute, thread_count

Array = NDArray[Any]
ALIGNMENT = 128
_WORD = 8
_TARGET, _SOURCE = 1, 5
"""The words of a step that hold a copy's target and source."""


def aligned_bytes(count: int) -> Array:
    """Uninitialised memory that starts at a multiple of the alignment; never empty."""
    raw = np.empty(max(1, count) + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + max(1, count)]


def empty_tensor(spec: TensorSpec) -> Array:
    """An aligned tensor with unspecified contents."""
    return _maker(spec)(())


def zero_tensor(dtype: str, shape: tuple[int, ...]) -> Array:
    """An aligned tensor of zeros."""
    made = empty_tensor(TensorSpec("", dtype, shape))
    made[...] = np.zeros((), made.dtype)
    return made


def _maker(spec: TensorSpec) -> Callable[[Sequence[Array]], Array]:
    """A function that makes aligned tensors with unspecified contents, whatever the inputs."""
    dtype, shape = BY_NAME[spec.dtype], spec.shape
    total = math.prod(shape) * dtype.storage_bytes + ALIGNMENT
    element = dtype.numpy

    def make(inputs: Sequence[Array]) -> Array:
        raw = np.empty(total, np.uint8)
        return np.ndarray(shape, element, raw, -raw.ctypes.data % ALIGNMENT)

    return make


class _Workspace:
    """What one run at a time needs for itself. All tables are of 64-bit words."""

    def __init__(self, program: Program) -> None:
        artifact = program.artifact
        tables = [s.buffers if isinstance(s, Launch) else () for s in artifact.steps]
        self.arena = aligned_bytes(artifact.arena_bytes)
        self.args = np.zeros(max(1, sum(map(len, tables))), np.uint64)
        self.errors = np.zeros(max(1, len(artifact.steps)), np.uint64)
        self.steps = np.zeros((len(artifact.steps), STEP_WORDS), np.uint64)
        self.first_step = int(self.steps.ctypes.data)
        self.threads = 0
        self.holder: Callable[[], object] = _nobody
        """Whose parameters are filled in."""
        self.changing: dict[tuple[str, int], list[tuple[Array, int, int]]] = {}
        """By space and number: the words that hold a pointer to it, and its offset there."""
        place = 0
        for index, step in enumerate(artifact.steps):
            words = self.steps[index]
            words[2] = self.errors[index:].ctypes.data
            if isinstance(step, Launch):
                kernel = artifact.kernels[step.kernel]
                words[0] = program.addresses[step.kernel]
                words[1] = self.args[place:].ctypes.data
                words[3] = kernel.work_items
                for number in step.buffers:
                    self._point(program, self.args, place, artifact.buffers[number])
                    place += 1
            elif isinstance(step, CopyBuffer):
                words[3] = step.bytes
                self._point(program, words, _TARGET, artifact.buffers[step.target])
                self._point(program, words, _SOURCE, artifact.buffers[step.source])

    def _point(self, program: Program, table: Array, place: int, slot: BufferSlot) -> None:
        """Make a word point to a buffer: now if its address stays, else in every run."""
        if slot.space in ("input", "output"):
            words = self.changing.setdefault((slot.space, slot.number), [])
            words.append((table, place, slot.offset))
        else:
            table[place] = program.address(slot, self.arena, (), ())

    def fill(self, space: str, numbers: Sequence[int], arrays: Sequence[Array]) -> None:
        """The pointers of some of this run's inputs or outputs."""
        changing = self.changing
        for number in numbers:
            words = changing.get((space, number))
            if words is not None:
                address = arrays[number].ctypes.data
                for table, place, offset in words:
                    table[place] = address + offset

    def use_threads(self, threads: int, alone: Array) -> None:
        """How many pieces a thread takes at a time: enough for balance, few enough to be cheap. All
        at once, where a kernel is done before another thread has woken up."""
        if threads != self.threads:
            pieces = self.steps[:, 3].astype(np.int64)
            shared = np.maximum(1, pieces // (threads * 4))
            self.steps[:, 4] = np.where(alone, np.maximum(1, pieces), shared)
            self.threads = threads


class Program:
    """A compiled program, linked and ready. `params` are the positions, among the inputs, of those
    that stay the same in many runs."""

    def __init__(
        self,
        artifact: Artifact,
        state: Sequence[Array] = (),
        params: frozenset[int] = frozenset(),
    ) -> None:
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
        self._alone = np.array([_runs_alone(artifact, step) for step in artifact.steps], bool)
        self._any_shared = not bool(self._alone.all())
        self._inputs = range(len(artifact.inputs))
        self._data = [number for number in self._inputs if number not in params]
        self._outputs = [
            self._output(spec, artifact.buffers[number])
            for spec, number in zip(artifact.outputs, artifact.output_slots, strict=True)
        ]
        self._fresh = range(len(artifact.outputs))
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
        that took over a donated input is that input. While `holder` stays the same, so do the
        addresses of the parameters among the inputs.
        """
        outputs = [make(inputs) for make in self._outputs]
        count = self._thread_count(threads)
        workspace = self._take(inputs, outputs, count, holder)
        self._carry_out(workspace, inputs, outputs, seed, count)
        failed = self._give_back(workspace)
        if failed is not None:
            raise SpecViolation("IntegerDivideByZero", "a divisor is zero", where=failed)
        return outputs

    def profile(
        self, inputs: Sequence[Array], seed: int = 0, threads: int | None = None
    ) -> list[tuple[str, float]]:
        """The seconds of every step of one run, each step called on its own."""
        outputs = [make(inputs) for make in self._outputs]
        count = self._thread_count(threads)
        workspace = self._take(inputs, outputs, count, None)
        found = []
        for index, step in enumerate(self.artifact.steps):
            started = time.perf_counter()
            if isinstance(step, HostCall):
                self._host_call(step, workspace.arena, inputs, outputs, seed)
            else:
                execute(workspace.first_step + index * STEP_WORDS * _WORD, 1, count)
            found.append((step.label, time.perf_counter() - started))
        self._give_back(workspace)
        return found

    def _thread_count(self, wanted: int | None) -> int:
        """How many threads this run may use; no need to ask where no kernel is cut in pieces."""
        return (wanted or thread_count()) if self._any_shared else 1

    # -- workspaces ------------------------------------------------------------------------------

    def _take(
        self, inputs: Sequence[Array], outputs: Sequence[Array], threads: int, holder: object
    ) -> _Workspace:
        """A workspace with the pointers of this run."""
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        workspace = idle or _Workspace(self)
        if holder is not None and workspace.holder() is holder:
            workspace.fill("input", self._data, inputs)
        else:
            workspace.fill("input", self._inputs, inputs)
            workspace.holder = _nobody if holder is None else weakref.ref(holder)
        workspace.fill("output", self._fresh, outputs)
        workspace.use_threads(threads, self._alone)
        return workspace

    def _give_back(self, workspace: _Workspace) -> str | None:
        """Keep a workspace for the next run, and say which step reported a violation first. A
        workspace whose run ended in an exception is not kept."""
        failed = None
        if workspace.errors.any():
            failed = self.artifact.steps[int(np.flatnonzero(workspace.errors)[0])].label
            workspace.errors[:] = 0
        with self._lock:
            self._idle.append(workspace)
        return failed

    # -- steps -----------------------------------------------------------------------------------

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
                execute(workspace.first_step + first * STEP_WORDS * _WORD, last - first, threads)
            if call is not None:
                self._host_call(call, workspace.arena, inputs, outputs, seed)

    def _output(self, spec: TensorSpec, slot: BufferSlot) -> Callable[[Sequence[Array]], Array]:
        """A function from the inputs of a run to the memory of an output: fresh, or what its buffer
        already is."""
        if slot.space == "input":
            return lambda inputs: _as_tensor(inputs[slot.number], spec)
        if slot.space in ("state", "constant"):
            memory = (self.state if slot.space == "state" else self.constants)[slot.number]
            return lambda inputs: _as_tensor(memory, spec)
        return _maker(spec)

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


def _runs_alone(artifact: Artifact, step: Step) -> bool:
    """Whether a step is not worth waking other threads for."""
    if not isinstance(step, Launch):
        return True
    kernel = artifact.kernels[step.kernel]
    return kernel.small or kernel.work_items <= 1


def _nobody() -> None:
    """The holder of parameters that are nobody's."""


def _as_tensor(memory: Array, spec: TensorSpec) -> Array:
    """The same memory as a tensor of its own."""
    if memory.shape == spec.shape and memory.dtype == BY_NAME[spec.dtype].numpy:
        return memory.view()
    return _tensor_at(int(memory.ctypes.data), spec, memory)


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
