"""The device state of a loaded program: kernels, constants, arena, error words.

Constants, arena, states and what random numbers depend on have fixed addresses. Inputs and outputs
are wherever a run has them.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.foundation import limits
from weft.foundation.errors import (
    ExecutionError,
    InternalError,
    ResourceExceeded,
    SpecViolation,
    WeftError,
)
from weft.foundation.functions import broken_at
from weft.foundation.ranks import Exchange
from weft.runtime.artifact import (
    Artifact,
    BufferSlot,
    CopyBuffer,
    Enter,
    HostCall,
    KernelCode,
    Launch,
    Site,
)
from weft.runtime.cuda.driver import DriverError, Memory, Stream
from weft.runtime.cuda.exchanges import Nccl, Piece, transport
from weft.runtime.cuda.flow import Turns, load_turns
from weft.runtime.cuda.gpu import Gpu
from weft.runtime.cuda.graphs import can_turn
from weft.runtime.cuda.kernels import LoadedKernel, load_kernel
from weft.runtime.cuda.memory import Block
from weft.runtime.cuda.sections import Section, is_straight, sections

Array = NDArray[Any]
_WORD: Final = 8
_ELEMENT_BITS: Final = 40
"""Bits of an error word that say which element; those above say which check."""
_RUN_BYTES: Final = 16
"""A seed, and a number whose upper half counts how often a body was entered."""
EXTERNAL: Final = ("input", "output")
"""Memory that each run has somewhere else."""


class Resident:
    """A program on a device."""

    def __init__(
        self,
        gpu: Gpu,
        artifact: Artifact,
        state: Sequence[Array],
        exchanges: Mapping[int, Exchange] = MappingProxyType({}),
    ) -> None:
        self.gpu, self.artifact, self.exchanges = gpu, artifact, exchanges
        self._between: Nccl | None = None
        if exchanges:
            self._between = transport(gpu)
            self._between.agree(list(exchanges.values()))
        self.external: dict[tuple[str, int], int] = {}
        """Where the inputs and outputs of the run are."""
        self.sizes = _memory_sizes(artifact)
        self._returns: list[Callable[[], None]] = []
        """How to give back what is taken, from the first piece on: there may be no room for all."""
        self._release = weakref.finalize(self, _release_all, self._returns)
        self._release.atexit = False
        self.fixed: dict[tuple[str, int], Memory] = {}
        self.kept: dict[int, Memory] = {}
        """Where results are that stay from run to run, by their numbers."""
        self._reserve(state)
        self._runs = [memory for (space, _), memory in self.fixed.items() if space == "run"]
        self.kernels = [self._load_code(code) for code in artifact.kernels]
        self.sections, self.turns = self._find_sections()
        self.reports = self.turns is not None or any(code.reports for code in artifact.kernels)
        self.errors = self._take(_WORD * max(1, len(artifact.steps)), "error words")
        self._forget()

    def _find_sections(self) -> tuple[list[Section], Turns | None]:
        """What goes to the device as one piece, with branches and loops where it can turn."""
        steps = self.artifact.steps
        quiet = {n for n in range(self.artifact.bodies) if ("run", n) not in self.fixed}
        found = sections(
            steps, turning=can_turn(self.gpu.device), quiet=quiet, exchanged=self.exchanges
        )
        if not any(section.turns for section in found):
            return found, None
        try:
            turns = load_turns(self.gpu.device, self.gpu.pool, self.artifact.bodies)
        except DriverError:
            return sections(steps, turning=False, quiet=quiet, exchanged=self.exchanges), None
        self._returns.append(turns.close)
        return found, turns

    def _take(self, count: int, purpose: str) -> Memory:
        """Memory that is given back with the program."""
        block = self.gpu.pool.take(count, purpose)
        self._returns.append(block.free)
        return block

    def _load_code(self, code: KernelCode) -> LoadedKernel | None:
        """A kernel ready to be launched; None where it has nothing to do."""
        if not code.grid[0]:
            return None
        workspace = None
        if code.workspace_bytes:
            workspace = self._take(code.workspace_bytes, "partial sums")
            self.gpu.stream.fill(workspace.address, code.workspace_bytes)
        kernel = load_kernel(self.gpu.device, code, workspace)
        self._returns.append(kernel.unload)
        return kernel

    def _reserve(self, state: Sequence[Array]) -> None:
        for (space, number), size in self.sizes.items():
            if space in EXTERNAL:
                continue
            if space == "state":
                address = int(state[number].ctypes.data)
                self.fixed[space, number] = Memory(self.gpu.device, address, size)
            elif space == "constant":
                data = np.frombuffer(self.artifact.constants[number], np.uint8)
                self.fixed[space, number] = self._take(data.nbytes, "constants")
                self.gpu.stream.upload(self.fixed[space, number].address, data)
            elif space == "arena":
                whole = self.artifact.arena_bytes
                self.fixed[space, number] = self._take(whole, "intermediate results")
            else:
                self.fixed[space, number] = self._take(_RUN_BYTES, "seeds")

    def address(self, slot: BufferSlot) -> int:
        """Where a buffer of this run begins."""
        key = memory_of(slot)
        if slot.kept in self.kept:
            return self.kept[slot.kept].address
        if key[0] in EXTERNAL:
            return self.external[key] + slot.offset
        return self.fixed[key].address + slot.offset

    def keep(self, sizes: Mapping[int, int]) -> None:
        """Give results memory of their own, all of them or none."""
        taken: dict[int, Block] = {}
        try:
            for number, size in sizes.items():
                taken[number] = self.gpu.pool.take(size, "kept results")
        except ResourceExceeded:
            for block in taken.values():
                block.free()
            raise
        self._returns.extend(block.free for block in taken.values())
        self.kept.update(taken)

    # -- steps -----------------------------------------------------------------------------------

    def put(self, number: int, stream: Stream | None = None, *, follows: bool = False) -> bool:
        """Put a launch or a copy into a stream, or that a body is entered; whether there was
        anything to do. A launch that `follows` another one may start while that one ends."""
        step, stream = self.artifact.steps[number], stream or self.gpu.stream
        match step:
            case CopyBuffer():
                return self.copy(step, 0, stream)
            case Launch():
                return self.launch(step, number, stream, follows=follows)
            case Enter(body=body):
                return self.enter(body, 0, stream)
            case HostCall() if number in self.exchanges:
                return self._exchange(step, self.exchanges[number], stream)
        raise InternalError(f"the step {step.label} is not work for the device")

    def put_straight(self, numbers: Iterable[int], stream: Stream) -> Iterator[int]:
        """Put launches and copies into a stream, one after the other: launches behind launches may
        start while those end. Hands out each step that had anything to do, right behind it."""
        follows = False
        for number in numbers:
            if self.put(number, stream, follows=follows):
                follows = isinstance(self.artifact.steps[number], Launch)
                yield number

    def _exchange(self, step: HostCall, exchange: Exchange, stream: Stream) -> bool:
        assert self._between is not None
        buffers = self.artifact.buffers
        pieces = [
            Piece(
                self.address(buffers[source]),
                self.address(buffers[target]),
                math.prod(result.shape),
                math.prod(given.shape),
            )
            for (source, given), (target, result) in zip(step.inputs, step.outputs, strict=True)
        ]
        pieces = [piece for piece in pieces if piece.given]
        if pieces:
            self._between.put(exchange, step.inputs[0][1].dtype, pieces, stream)
        return bool(pieces)

    def is_straight(self, number: int) -> bool:
        """Whether a step is the same work for the device in every turn of every run."""
        return number in self.exchanges or is_straight(self.artifact.steps[number])

    def copy(self, step: CopyBuffer, turn: int, stream: Stream) -> bool:
        """A copy in some turn of a loop."""
        source, target = self.ends(step)
        if step.bytes:
            source += turn * step.source_step
            target += turn * step.target_step
            stream.copy(target, source, step.bytes)
        return step.bytes > 0

    def ends(self, step: CopyBuffer) -> tuple[int, int]:
        """The addresses that a copy goes from and to."""
        source, target = (
            self.address(self.artifact.buffers[n]) for n in (step.source, step.target)
        )
        return source, target

    def launch(self, step: Launch, number: int, stream: Stream, *, follows: bool = False) -> bool:
        kernel = self.kernels[step.kernel]
        if kernel is not None:
            kernel.launch(self.operands(step, number), stream.handle, early=follows)
        return kernel is not None

    def operands(self, step: Launch, number: int) -> list[int]:
        """The addresses that a launch gives its kernel."""
        addresses = [self.address(self.artifact.buffers[n]) for n in step.buffers]
        if self.artifact.kernels[step.kernel].reports:
            addresses.append(self.error_word(number))
        return addresses

    def error_word(self, number: int) -> int:
        """The address of the error word of a step."""
        return self.errors.address + _WORD * number

    def begin(self, seed: int) -> None:
        """What random numbers depend on, before the first body is entered."""
        if self.turns is not None:
            # In the stream, and not at once: the run before may still be counting.
            self.turns.begin(self.gpu.stream, limits.current().loop_steps)
        if self._runs:
            words = np.array([seed, 0], np.uint64)
            for memory in self._runs:
                self.gpu.stream.upload(memory.address, words)

    def enter(self, body: int, before: int, stream: Stream) -> bool:
        """A body is entered that was entered so often before; where the device counts, it knows
        better. Whether the device has anything to do."""
        memory = self.fixed.get(("run", body))
        # The upper half of the second number.
        # A seed of eight bytes, then a number of eight whose upper half is the last four.
        word = None if memory is None else memory.address + _RUN_BYTES - 4
        if self.turns is not None:
            self.turns.put_enter(stream, body, word)
        elif word is not None:
            stream.set_word(word, before)
        return self.turns is not None or word is not None

    # -- errors ----------------------------------------------------------------------------------

    def fault(self) -> WeftError | None:
        """What the first step that reported a violation has to say; it is forgotten then."""
        words = self.error_words()
        self.gpu.stream.synchronize()
        return self.fault_in(words)

    def error_words(self) -> Array:
        """The error words of all steps and the number of a loop that was ended, there when the
        stream is done."""
        words = np.zeros(len(self.artifact.steps) + 1, np.uint64)
        if self.reports:
            self.gpu.stream.download(words[:-1], self.errors.address)
        if self.turns is not None:
            self.gpu.stream.download(words[-1:], self.turns.overrun)
        return words

    def _forget(self) -> None:
        """Nothing went wrong."""
        self.gpu.stream.fill(self.errors.address, self.errors.bytes)
        if self.turns is not None:
            self.turns.forget(self.gpu.stream)

    def fault_in(self, words: Array) -> WeftError | None:
        """What the first of some error words says."""
        failed = np.flatnonzero(words)
        if not failed.size:
            return None
        self._forget()
        number, word = int(failed[0]), int(words[failed[0]])
        if number == len(self.artifact.steps):
            step = self.artifact.steps[word]
            return endless(step.told if isinstance(step, Enter) else step.label)
        return self._violation(number, word)

    def _violation(self, number: int, word: int) -> SpecViolation:
        """What a step left in its error word: the complement of check and element."""
        step, report = self.artifact.steps[number], ~word & ((1 << 64) - 1)
        check, element = report >> _ELEMENT_BITS, report & ((1 << _ELEMENT_BITS) - 1)
        if not isinstance(step, Launch):
            raise InternalError(f"the step {step.label} reported a violation")
        code, why = self.artifact.kernels[step.kernel].checks[check]
        site = step.where[check] if step.where else Site("")
        found = site.why or broken_at(why, element)
        return SpecViolation(site.code or code, found, where=str(site) or step.label)


def endless(label: str) -> ExecutionError:
    """A loop has entered more bodies than are allowed."""
    most = limits.current().loop_steps
    return ExecutionError(
        f"{label} ran {most:,} region calls without ending; "
        "raise WEFT_MAX_LOOP_STEPS if this is meant"
    )


def memory_of(slot: BufferSlot) -> tuple[str, int]:
    """The piece of memory that a buffer lies in."""
    return (slot.space, 0 if slot.space == "arena" else slot.number)


def _memory_sizes(artifact: Artifact) -> dict[tuple[str, int], int]:
    """The bytes of every piece of memory that a program touches."""
    found: dict[tuple[str, int], int] = {}
    for slot in artifact.buffers:
        key = memory_of(slot)
        found[key] = max(found.get(key, 0), slot.offset + slot.bytes)
    return found


def _release_all(returns: Iterable[Callable[[], None]]) -> None:
    for give_back in returns:
        with contextlib.suppress(ExecutionError):
            give_back()
