"""Running a compiled program on the CPU.

`Program` links the kernels once. A run fills a parameter block (pointers of inputs and outputs) and
makes one native call that carries out every step. Each concurrent run has a workspace of its own:
arena, argument tables, step table, error words. Constants and state live at fixed addresses.

What does not change from run to run is settled when a workspace is made: a run of a small program
takes a few microseconds, so it only fills in the pointers of that run's inputs and outputs.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation import limits
from weft.foundation.errors import ExecutionError, InternalError, SpecViolation
from weft.foundation.functions import broken_at
from weft.foundation.launches import note_nothing_started, take_note
from weft.foundation.ranks import Begun
from weft.runtime import native
from weft.runtime.artifact import (
    Again,
    Artifact,
    BufferSlot,
    CopyBuffer,
    Enter,
    Host,
    HostCall,
    Jump,
    JumpUnless,
    Launch,
    Leave,
    Reset,
    Site,
    Step,
    TensorSpec,
    host_functions,
)
from weft.runtime.host_memory import (
    address_of,
    aligned_bytes,
    aligned_copy,
    as_tensor,
    empty_tensor,
    few_words,
    maker,
    point_words,
    tensor_at,
)
from weft.runtime.jit import Library
from weft.runtime.kept_results import Kept, KeptSteps, Passing, kept_of
from weft.runtime.overlap import Begin, Exchanging, Flight, needed_at
from weft.runtime.threads import WORTH_SHARING, Call, shared_out, thread_count
from weft.runtime.timeline import Lap, Recorder
from weft.runtime.watching import watched

Array = NDArray[Any]
_PIECES = 4
"""The word of a launch that says how many pieces it has."""
_NOTHING = (1 << 64) - 1
"""What an error word holds while nothing was reported; a report has the number of a check in its
upper 16 bits and an element below."""
_ELEMENT_BITS = 48
_HOLDERS = 4
"""Holders that come in turn for whom results are kept."""
_MANY = 16
"""From how many inputs on it is worth knowing those of the last run again."""
LONG = 20_000_000
"""Nanoseconds, as estimated, from which on a kernel is worth a thread that watches for Ctrl-C: to
make one takes a tenth of a millisecond. Estimates may be far too small."""


class _Workspace:
    """What one run at a time needs for itself. All tables are of 64-bit words."""

    def __init__(self, program: Program) -> None:
        artifact = program.artifact
        tables = [s.buffers if isinstance(s, Launch) else () for s in artifact.steps]
        self.arena = empty_tensor(TensorSpec("", "ui8", (artifact.arena_bytes,)))
        self.args = np.zeros(max(1, sum(map(len, tables))), np.uint64)
        self.state = np.zeros(native.STATE_WORDS, np.int64)
        self.state[2] = program.most_bodies
        self.failed = self.state.data
        """The state, of which the first word says whether something failed."""
        self.errors = np.zeros((max(1, len(artifact.steps)), native.ERROR_WORDS), np.uint64)
        # A report is kept where it is less than what is there: any report is less than all ones.
        self.errors[:, :2] = _NOTHING, self.state.ctypes.data
        self.runs = np.zeros((artifact.bodies, 3), np.uint64)
        self.counters = np.zeros(max(1, artifact.counters), np.int64)
        self.steps = np.zeros((len(artifact.steps), native.STEP_WORDS), np.uint64)
        first, word = int(self.steps.ctypes.data), int(self.state.ctypes.data)
        self.call = Call(first, len(artifact.steps), word, program.pauses)
        self.threads = 0
        self.tensors: dict[tuple[int, tuple[int, ...]], Array] = {}
        """What is exchanged between ranks, by buffer and shape, as it lies in the arena."""
        self.holder: Callable[[], object] = _nobody
        """Whose parameters are filled in."""
        self.seen: list[Callable[[], object]] = []
        """The inputs that are filled in, where all of them were."""
        self.changing: dict[str, dict[int, list[tuple[memoryview, int, int]]]] = {
            "input": {},
            "output": {},
        }
        """By space and number: the words that hold a pointer to it, and its offset there."""
        self.kept = KeptSteps(self.steps, native.JUMP)
        self.makes_kept = False
        """Whether the run under way makes what is kept."""
        self._places = 0
        for index, step in enumerate(artifact.steps):
            self._write(program, index, step)
        self.few_inputs, self.few_outputs = map(few_words, self.changing.values())

    def _write(self, program: Program, index: int, step: Step) -> None:
        """The words of one step."""
        words, slots = self.steps[index], program.artifact.buffers
        match step:
            case Launch():
                self._launch(program, index, step)
            case CopyBuffer():
                words[0], words[3], words[4] = native.COPY, step.bytes, self._counter(step.counter)
                words[5], words[6] = step.target_step, step.source_step
                self._point(program, words, 1, slots[step.target])
                self._point(program, words, 2, slots[step.source])
            case HostCall():
                words[0] = native.HOST
            case Enter(body=body):
                words[:2] = native.ENTER, self.runs[body:].ctypes.data
            case Jump(target=target):
                words[:2] = native.JUMP, target
            case JumpUnless(buffer=buffer, target=target):
                words[0], words[2] = native.UNLESS, target
                self._point(program, words, 1, slots[buffer])
            case Reset(counter=counter):
                words[:2] = native.RESET, self._counter(counter)
            case Leave(counter=counter, limit=limit, target=target):
                words[:4] = native.LEAVE, self._counter(counter), limit, target
            case Again(counter=counter, target=target):
                words[:3] = native.AGAIN, self._counter(counter), target

    def _launch(self, program: Program, index: int, launch: Launch) -> None:
        artifact, words = program.artifact, self.steps[index]
        words[0], words[1] = native.LAUNCH, program.addresses[launch.kernel]
        words[2] = self.args[self._places :].ctypes.data
        words[3] = self.errors[index:].ctypes.data
        words[_PIECES] = artifact.kernels[launch.kernel].work_items
        for number in launch.buffers:
            self._point(program, self.args, self._places, artifact.buffers[number])
            self._places += 1

    def _counter(self, number: int) -> int:
        return int(self.counters[number:].ctypes.data)

    def _point(self, program: Program, table: Array, place: int, slot: BufferSlot) -> None:
        """Make a word point to a buffer: now if its address stays, else in every run."""
        if slot.space in ("input", "output"):
            words = self.changing[slot.space].setdefault(slot.number, [])
            words.append((table.data, place, slot.offset))
        else:
            table[place] = program.address(slot, self, (), ())
            if slot.kept:
                self.kept.point(slot.kept, table.data, place)

    def fill(self, space: str, numbers: Sequence[int], arrays: Sequence[Array]) -> None:
        """The pointers of some of this run's inputs or outputs."""
        changing = self.changing[space]
        for number in numbers:
            words = changing.get(number)
            if words is not None:
                address = address_of(arrays[number])
                for table, place, offset in words:
                    table[place] = address + offset

    def fill_moved(self, inputs: Sequence[Array]) -> None:
        """The pointers of all inputs. To see that an array is the one of the run before takes a
        quarter of the time of asking where it is, and a donated state is the same in every run."""
        numbers: Sequence[int] = range(len(inputs))
        if len(inputs) < _MANY:
            self.fill("input", numbers, inputs)
            return
        # Weak references: a dead input may have left its identity to another array, which is
        # elsewhere.
        if self.seen:
            pairs = enumerate(zip(self.seen, inputs, strict=True))
            numbers = [number for number, (kept, array) in pairs if kept() is not array]
        else:
            self.seen = [_nobody] * len(inputs)
        self.fill("input", numbers, inputs)
        for number in numbers:
            self.seen[number] = weakref.ref(inputs[number])

    def use_threads(self, threads: int, work: Array) -> None:
        """How launches are shared out, given the nanoseconds of each step for one thread."""
        launches = self.steps[:, 0] == native.LAUNCH
        pieces = self.steps[launches, _PIECES].astype(np.int64)
        self.steps[launches, _PIECES + 1 :] = shared_out(pieces, work[launches], threads)
        self.threads = threads

    def begin(self, seed: int) -> None:
        """What random numbers depend on, and how many bodies were entered."""
        self.runs[:] = 0
        self.runs[:, 0] = seed
        self.state[1] = 0


class Program:
    """A compiled program, linked and ready. `params` are the positions, among the inputs, of those
    that stay the same in many runs; `donated` of those whose memory a run may use; `host` carries
    out what no kernel does."""

    def __init__(
        self,
        artifact: Artifact,
        state: Sequence[Array] = (),
        params: frozenset[int] = frozenset(),
        host: Host | None = None,
        donated: frozenset[int] = frozenset(),
    ) -> None:
        self.artifact = artifact
        self._donated = donated
        self._functions = host_functions(artifact.steps, host)
        objects = {kernel.symbol: kernel.code for kernel in artifact.kernels}
        self._library = Library(list(objects.values()), list(objects)) if objects else None
        self.addresses = [
            self._library.address(kernel.symbol) if self._library else 0
            for kernel in artifact.kernels
        ]
        self.constants = [aligned_copy(data) for data in artifact.constants]
        self.state = list(state)
        self.most_bodies = limits.current().loop_steps
        thread_count()  # A wrong WEFT_NUM_THREADS is told even where no run asks for it.
        # Where nothing counts bodies and nothing is random, a run leaves these words as they were.
        self._fresh_runs = artifact.bodies > 1 or any(b.space == "run" for b in artifact.buffers)
        self._work = np.array(list(map(artifact.work_to_share, artifact.steps)), np.int64)
        self._any_shared = bool((self._work >= WORTH_SHARING).any())
        self._inputs = range(len(artifact.inputs))
        self.data: Sequence[int] = [number for number in self._inputs if number not in params]
        """The positions of the inputs that are not parameters."""
        self._outputs = [
            self._output(spec, artifact.buffers[number])
            for spec, number in zip(artifact.outputs, artifact.output_slots, strict=True)
        ]
        self._passing = Passing([self._passed_on(number) for number in range(len(self._outputs))])
        self._fresh = sorted({slot.number for slot in artifact.buffers if slot.space == "output"})
        """The outputs that steps write to."""
        # What a run updates must not be left half updated.
        spaces = {artifact.buffers[number].space for number in artifact.output_slots}
        self.pauses = spaces.isdisjoint(("input", "state"))
        self._begins: dict[int, Begin] = {}
        for number, step in enumerate(artifact.steps):
            function: object = self._functions[step.call] if isinstance(step, HostCall) else None
            if isinstance(function, Exchanging):
                self._begins[number] = function.begin
        self._needed = needed_at(artifact, list(self._begins))
        nanoseconds = enumerate(map(artifact.nanoseconds, artifact.steps))
        self._long = frozenset(number for number, taken in nanoseconds if taken >= LONG)
        """Steps that may take so long that somebody wants to stop them."""
        self._idle: list[_Workspace] = []
        """Workspaces that no run uses; taking one out and putting one back are each one step."""

    def address(
        self,
        slot: BufferSlot,
        workspace: _Workspace,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
    ) -> int:
        """Where a buffer of this run begins."""
        if slot.space == "arena":
            return int(workspace.arena.ctypes.data) + slot.offset
        if slot.space == "run":
            return int(workspace.runs[slot.number :].ctypes.data)
        spaces: dict[str, Sequence[Array]] = {"input": inputs, "output": outputs}
        spaces.update(state=self.state, constant=self.constants)
        return int(spaces[slot.space][slot.number].ctypes.data) + slot.offset

    def run(
        self,
        inputs: Sequence[Array],
        seed: int = 0,
        threads: int | None = None,
        holder: object = None,
        data: Sequence[int] | None = None,
    ) -> list[Array]:
        """The outputs for inputs that have exactly the declared types and lie contiguously.

        An output that is an updated state is a view of that state, good until the next run; one
        that took over a donated input is that input. While `holder` stays the same, so do the
        addresses of all inputs but those at the positions `data`: of the parameters, unless told.
        """
        try:
            outputs = self._memory(inputs)
            count = self._thread_count(threads) if self._any_shared else 1
            workspace = self._take(inputs, outputs, count, holder, seed, data)
        except BaseException as error:
            note_nothing_started(error)
            raise
        try:
            self._carry_out(workspace, inputs, outputs, seed, count)
        except BaseException as error:
            take_note(error)  # A run inside a host call may have left one that is true of it alone.
            raise
        failed = self._give_back(workspace)
        if failed is not None:
            raise failed
        return outputs

    def profile(
        self, inputs: Sequence[Array], seed: int = 0, threads: int | None = None
    ) -> list[tuple[str, float]]:
        """The seconds of every step of one run, each step called on its own."""
        outputs = self._memory(inputs)
        count = self._thread_count(threads)
        workspace = self._take(inputs, outputs, count, None, seed)
        seconds = np.zeros(len(self.artifact.steps))
        position = 0
        while position < len(self.artifact.steps):
            started = time.perf_counter()
            step, here = self.artifact.steps[position], position
            if isinstance(step, HostCall):
                self._host_call(step, workspace, inputs, outputs, seed)
                position += 1
            else:
                position = self._execute(workspace, position, count, turns=1)
            seconds[here] += time.perf_counter() - started
            if position == native.STOPPED:
                break
        self._give_back(workspace)
        return [(s.label, float(t)) for s, t in zip(self.artifact.steps, seconds, strict=True)]

    def timeline(
        self, inputs: Sequence[Array], seed: int = 0, threads: int | None = None
    ) -> list[Lap]:
        """Which thread was busy with which step of one run, and when."""
        outputs = self._memory(inputs)
        count = self._thread_count(threads)
        workspace = self._take(inputs, outputs, count, None, seed)
        recorder = Recorder()
        for words, step in zip(workspace.steps, self.artifact.steps, strict=True):
            if isinstance(step, Launch):
                words[1] = recorder.wrapped(step.label, self.addresses[step.kernel])
        recorder.started = time.perf_counter()
        # The workspace is not kept: its kernels are no longer what they should be.
        self._carry_out(workspace, inputs, outputs, seed, count, recorder)
        return recorder.laps()

    def _thread_count(self, wanted: int | None) -> int:
        """How many threads this run may use; no need to ask where no kernel is cut in pieces."""
        return (wanted or thread_count()) if self._any_shared else 1

    # -- workspaces ------------------------------------------------------------------------------

    def _take(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        threads: int,
        holder: object,
        seed: int,
        data: Sequence[int] | None = None,
    ) -> _Workspace:
        """A workspace with the pointers of this run."""
        try:
            # A list's `pop` and `append` are each one step of the interpreter: no lock is needed,
            # and two runs never get the same workspace.
            workspace = self._idle.pop()
        except IndexError:
            workspace = _Workspace(self)
        if holder is not None and workspace.holder() is not holder and workspace.kept.may_keep:
            workspace = self._instead(workspace, holder)
        # Three cases: nobody's inputs are all pointed to anew, a holder that comes again brings
        # only its data, and a new one fills everything in and keeps nothing of the one before.
        data, kept = self.data if data is None else data, workspace.kept
        if holder is None:
            workspace.holder = _nobody
            few = workspace.few_inputs
            if few is not None and len(inputs) < _MANY:
                point_words(few, inputs)
            else:
                workspace.fill_moved(inputs)
            kept.forget()
        elif workspace.holder() is holder:
            workspace.fill("input", data, inputs)
            found = kept.come_again(holder, data, self._kept_of, aligned_bytes)
            workspace.makes_kept = found
        else:
            workspace.fill("input", self._inputs, inputs)
            workspace.holder, workspace.seen = weakref.ref(holder), []
            kept.forget()
        few = workspace.few_outputs
        if few is not None:
            point_words(few, outputs)
        else:
            workspace.fill("output", self._fresh, outputs)
        if threads != workspace.threads:
            workspace.use_threads(threads, self._work)
        if self._fresh_runs:
            workspace.begin(seed)
        return workspace

    def _instead(self, workspace: _Workspace, holder: object) -> _Workspace:
        """In the place of a workspace that another holder has used, if that is still there: one
        that was this holder's or is nobody's, or a new one, unless there are many."""
        if workspace.holder() is None or not getattr(holder, "elements_stay", False):
            return workspace
        for wanted in (holder, None):
            for other in list(self._idle):
                if other.holder() is wanted:
                    with contextlib.suppress(ValueError):
                        self._idle.remove(other)
                        self._idle.append(workspace)
                        return other
        if len(self._idle) + 1 >= _HOLDERS:
            return workspace
        self._idle.append(workspace)
        return _Workspace(self)

    def _give_back(self, workspace: _Workspace) -> SpecViolation | None:
        """Keep a workspace for the next run, and say what the first step that reported a violation
        has to say. A workspace whose run ended in an exception is not kept."""
        failed = None
        if workspace.failed[0]:
            failed = self._violation(workspace.errors)
            workspace.errors[:, 0] = _NOTHING
            workspace.state[0] = 0
        elif workspace.makes_kept:
            workspace.kept.made()
        workspace.makes_kept = False
        self._idle.append(workspace)
        return failed

    def _kept_of(self, data: Sequence[int]) -> Kept:
        """What runs make of all inputs but those at the positions `data` alone."""
        lasting = set(self._inputs).difference(data, self._donated)
        return kept_of(self.artifact, lasting)

    def _violation(self, records: Array) -> SpecViolation:
        # Steps run in order, and a step keeps the least of its reports: the same violation is told
        # whatever the threads did.
        index = int(np.flatnonzero(records[:, 0] != _NOTHING)[0])
        launch, report = self.artifact.steps[index], int(records[index, 0])
        if not isinstance(launch, Launch):
            raise InternalError(f"the step {launch.label} reported a violation")
        number, element = report >> _ELEMENT_BITS, report & ((1 << _ELEMENT_BITS) - 1)
        code, why = self.artifact.kernels[launch.kernel].checks[number]
        site = launch.where[number] if launch.where else Site("")
        value = int(records.view(np.int64)[index, native.VALUE_WORD])
        found = site.why or broken_at(why, element, value)
        return SpecViolation(site.code or code, found, where=str(site) or launch.label)

    # -- steps -----------------------------------------------------------------------------------

    def _carry_out(
        self,
        workspace: _Workspace,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        seed: int,
        threads: int,
        recorder: Recorder | None = None,
    ) -> None:
        """All steps: one native call up to each host call, or for each step while an exchange is
        under way. In a call that pauses, Python does here what it could not do meanwhile: it raises
        KeyboardInterrupt after Ctrl-C."""
        steps = self.artifact.steps
        count = len(steps)
        position = self._execute(workspace, 0, threads)
        if position == count:
            return
        flight = Flight()
        while native.STOPPED < position < count:
            flight.land(position)
            step = steps[position]
            if isinstance(step, HostCall):
                started = time.perf_counter()
                if position in self._needed:
                    begun = self._begin(position, workspace, inputs, outputs)
                    flight.add(self._needed[position], begun)
                else:
                    self._host_call(step, workspace, inputs, outputs, seed)
                if recorder is not None:
                    recorder.host(step.label, started)
                position += 1
            else:
                # While an exchange is under way it goes on only when somebody asks
                # (`runtime.overlap`), so steps are taken one at a time.
                position = self._execute(workspace, position, threads, 1 if flight else -1)
                flight.poll()
        if position == count:
            flight.land(position)

    def _execute(self, workspace: _Workspace, position: int, threads: int, turns: int = -1) -> int:
        """Native steps from a position on; where to go on."""
        carry_out = workspace.call.execute
        long = self._long and (turns < 0 or position in self._long)
        if long and threading.current_thread() is threading.main_thread():
            carry_out = partial(self._call_watched, workspace)
        found = carry_out(threads, position, turns)
        if found < native.STOPPED:
            step = self.artifact.steps[-2 - found]
            loop = step.told if isinstance(step, Enter) else step.label
            raise ExecutionError(
                f"{loop} ran {self.most_bodies:,} region calls without ending; "
                "raise WEFT_MAX_LOOP_STEPS if this is meant"
            )
        return found

    def _call_watched(self, workspace: _Workspace, *how: int) -> int:
        """A native call with long kernels. After Ctrl-C they are told to stop; those that update
        something in place only by a second one."""

        def stop(urgent: bool) -> None:
            workspace.state[native.STOP_WORD] = urgent or self.pauses

        longest = max(self.artifact.steps, key=self.artifact.nanoseconds)
        seconds = self.artifact.nanoseconds(longest) / 1e9
        return watched(partial(workspace.call.execute, *how), stop, longest.label, seconds)

    def _output(self, spec: TensorSpec, slot: BufferSlot) -> Callable[[Sequence[Array]], Array]:
        """A function from the inputs of a run to the memory of an output that is none of them:
        fresh, or what its buffer already is."""
        if slot.space == "input":
            return lambda inputs: as_tensor(inputs[slot.number], spec)
        if slot.space in ("state", "constant"):
            memory = (self.state if slot.space == "state" else self.constants)[slot.number]
            return lambda inputs: as_tensor(memory, spec)
        return maker(spec)

    def _passed_on(self, number: int) -> int | None:
        """The input that an output is, as it is."""
        slot = self.artifact.buffers[self.artifact.output_slots[number]]
        if slot.space != "input":
            return None
        given, spec = self.artifact.inputs[slot.number], self.artifact.outputs[number]
        return slot.number if (given.dtype, given.shape) == (spec.dtype, spec.shape) else None

    def _memory(self, inputs: Sequence[Array]) -> list[Array]:
        """The memory of the outputs of a run."""
        outputs = self._passing.outputs(inputs)
        for number in self._passing.others:
            outputs[number] = self._outputs[number](inputs)
        return outputs

    def _begin(
        self,
        position: int,
        workspace: _Workspace,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
    ) -> Begun:
        """Begin an exchange on the memory where its tensors lie."""
        call = self.artifact.steps[position]
        assert isinstance(call, HostCall)
        owner = (workspace, inputs, outputs)

        def tensor(number: int, spec: TensorSpec) -> Array:
            slot = self.artifact.buffers[number]
            whole = {"input": inputs, "output": outputs}.get(slot.space)
            if whole is not None and whole[slot.number].shape == spec.shape:
                return whole[slot.number]
            place = (number, spec.shape)
            if place not in workspace.tensors or slot.space != "arena":
                address = self.address(slot, *owner)
                workspace.tensors[place] = tensor_at(address, spec, workspace.arena)
            return workspace.tensors[place]

        given = [tensor(*place) for place in call.inputs]
        made = [tensor(*place) for place in call.outputs]
        at_once = self._needed[position] == position + 1
        return self._begins[position](given, made, at_once, call.label)

    def _host_call(
        self,
        call: HostCall,
        workspace: _Workspace,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        seed: int,
    ) -> None:
        """Hand whole tensors to a function of the host, and keep what it returns."""

        def tensor(number: int, spec: TensorSpec) -> Array:
            slot = self.artifact.buffers[number]
            return tensor_at(self.address(slot, workspace, inputs, outputs), spec)

        results = self._functions[call.call]([tensor(*argument) for argument in call.inputs], seed)
        for result, place in zip(results, call.outputs, strict=True):
            tensor(*place)[...] = result


def _nobody() -> None:
    """The holder of parameters that are nobody's."""
