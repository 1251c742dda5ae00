"""Running a compiled program on a CUDA device.

`launch` takes tensors that are on the device and returns such tensors, and does not wait. `run` is
the same for arrays of the host: their elements go to memory that the program keeps, and the results
are waited for. States live in memory that host and device both reach.

The device is opened by the first run: a program can be compiled, and looked at, without one.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import BY_NAME
from weft.foundation.errors import ExecutionError
from weft.foundation.launches import note_nothing_started
from weft.runtime.artifact import (
    Artifact,
    BufferSlot,
    Host,
    TensorSpec,
    host_functions,
)
from weft.runtime.cuda.driver import Memory
from weft.runtime.cuda.exchanges import device_exchanges
from weft.runtime.cuda.gpu import Gpu, open_gpu
from weft.runtime.cuda.kept_results import Keeping
from weft.runtime.cuda.memory import Block
from weft.runtime.cuda.resident import Resident
from weft.runtime.cuda.steps import Walk
from weft.runtime.cuda.stretches import Stretches
from weft.runtime.cuda.tensors import (
    DeviceTensor,
    blocks_of,
    duplicate,
    empty,
    fresh,
    overwritten,
)
from weft.runtime.cuda.timed_run import Watched
from weft.runtime.kept_results import Passing
from weft.runtime.timeline import Lap

Array = NDArray[Any]


class Program:
    """A compiled program on its way to a device, and then there. `params` are the positions, among
    the inputs that are not state, of those bound for many runs; `donated` of those whose memory a
    run may use; `host` carries out what no kernel does."""

    def __init__(
        self,
        artifact: Artifact,
        state: Sequence[Array] = (),
        params: frozenset[int] = frozenset(),
        host: Host | None = None,
        donated: frozenset[int] = frozenset(),
    ) -> None:
        self.artifact = artifact
        self.state = list(state)
        self.params, self.donated = params, donated
        self._functions = host_functions(artifact.steps, host)
        self._stretches: Stretches | None = None
        self._own: dict[tuple[str, int], DeviceTensor] = {}
        """Memory for the inputs and outputs of runs on arrays of the host."""
        self._passing: Passing | None = None
        """The donated inputs that are handed out again as outputs."""
        self._holder: object = None
        self._launched: Callable[[], object] = _nobody
        """Whose inputs are where the last launch had them."""
        self._handed: list[int] = []
        """Those of his inputs that are donated: every launch puts other elements there."""
        self._moves = False
        """Whether outputs lie in the memory of other donated inputs."""
        self._blocks: list[Block] = []
        """The memory of donated inputs that the last launch has overwritten."""
        self._alone: list[float] | None = None
        """The seconds of every step by itself, where they were measured."""

    # -- tensors of the device -------------------------------------------------------------------

    def launch(
        self,
        inputs: Sequence[DeviceTensor],
        seed: int = 0,
        holder: object = None,
        data: Sequence[int] = (),
    ) -> list[DeviceTensor]:
        """Start a run; the results are there when somebody reads them. All inputs but those at the
        positions `data` are the holder's: while it stays the same, they are where they were."""
        gpu = open_gpu() if self._stretches is None else self._stretches.resident.gpu
        with gpu.lock:
            try:
                stretches = self._ready(gpu)
                resident = stretches.resident
                known = holder is not None and self._launched() is holder
                given = [inputs[number] for number in data] if known else inputs
                # Inputs that went wrong on their way raise here, before anything is started with
                # them. A tensor has the era of the run that made it.
                eras = {tensor.era for tensor in given}
                if known:
                    eras.update([inputs[number].era for number in self._handed])
                for era in eras:
                    if era is not None:
                        era.check()
                if self._passing is None:
                    self._passing = Passing([place.stays(inputs) for place in self._places])
                outputs: list[DeviceTensor] = self._passing.outputs(inputs)
                for number in self._passing.others:
                    outputs[number] = self._result(gpu, self._places[number], inputs)
                for place in self._fresh:
                    resident.external["output", place.number] = outputs[place.number].address
                addresses = [tensor.address for tensor in given]
                if known:
                    for number, address in zip(data, addresses, strict=True):
                        resident.external["input", number] = address
                else:
                    resident.external.update(zip(self._input_keys, addresses, strict=False))
                if holder is None:
                    self._handed, self._launched, self._moves = [], _nobody, False
                elif not known:
                    # What the device is still to make may go wrong: that is looked at in every run.
                    kept = set(range(len(inputs))).difference(data)
                    self._handed = sorted(kept & self.donated)
                    done = all(inputs[number].era is not gpu.era for number in kept - self.donated)
                    self._launched = weakref.ref(holder) if done else _nobody
                    self._moves = any(place.slot.number in data for place in self._donated_outputs)
                if self._donated_outputs:
                    if not known or self._moves:
                        self._blocks = blocks_of(
                            [outputs[place.number] for place in self._donated_outputs]
                        )
                    overwritten(gpu, self._blocks)
                found = known and self._make_keeping.holds(holder, inputs, data)
                if not found:
                    self._make_keeping.forget()
                # Up to here nothing was started: whoever catches the error still has its donated
                # inputs. Beyond, `walk.run` says so itself where it is so.
                walk = Walk(stretches, self._functions, seed, kept=found)
            except BaseException as error:
                note_nothing_started(error)
                raise
            walk.run()
            if known and not found:
                self._make_keeping.note(holder, inputs, data)
            for place in self._elsewhere:
                number = place.number
                outputs[number] = self._own_output(resident, place, outputs[number])
            era = gpu.era
            for tensor in outputs:
                tensor.era = era
            return outputs

    @cached_property
    def _places(self) -> list[_Place]:
        """Where the outputs are, in order."""
        artifact = self.artifact
        slots = [artifact.buffers[number] for number in artifact.output_slots]
        return [
            _Place(number, slot, spec, slot.space == "input" and slot.number in self.donated)
            for number, (slot, spec) in enumerate(zip(slots, artifact.outputs, strict=True))
        ]

    @cached_property
    def _fresh(self) -> list[_Place]:
        """Outputs whose memory is theirs alone."""
        return [place for place in self._places if place.slot.space == "output"]

    @cached_property
    def _donated_outputs(self) -> list[_Place]:
        """Outputs that lie in the memory of donated inputs."""
        return [place for place in self._places if place.is_given]

    @cached_property
    def _make_keeping(self) -> Keeping:
        """What stays from run to run."""
        assert self._stretches is not None
        return Keeping(self._stretches, self.donated)

    @cached_property
    def _elsewhere(self) -> list[_Place]:
        """Outputs that a run leaves in memory which is somebody else's."""
        return [p for p in self._places if not (p.is_given or p.slot.space == "output")]

    @cached_property
    def _input_keys(self) -> list[tuple[str, int]]:
        """Those of the inputs of a run come first."""
        return [("input", number) for number, _ in enumerate(self.artifact.inputs)]

    def _result(self, gpu: Gpu, place: _Place, inputs: Sequence[DeviceTensor]) -> DeviceTensor:
        """Memory for an output: fresh, or that of the input whose place it takes."""
        spec = place.spec
        if place.slot.space == "input":
            given = inputs[place.slot.number]
            return DeviceTensor(gpu, given.address, spec.dtype, spec.shape, given.owner)
        return fresh(gpu, spec.dtype, spec.shape, place.bytes, "results")

    def _own_output(self, resident: Resident, place: _Place, tensor: DeviceTensor) -> DeviceTensor:
        """An output as its reader's own: not an input that is still somebody else's, a constant or
        a state."""
        if place.slot.space == "input":
            return duplicate(tensor)
        if place.bytes:
            resident.gpu.stream.copy(tensor.address, resident.address(place.slot), place.bytes)
        return tensor

    # -- arrays of the host ----------------------------------------------------------------------

    def run(
        self,
        inputs: Sequence[Array],
        seed: int = 0,
        threads: int | None = None,
        holder: object = None,
        data: Sequence[int] | None = None,
    ) -> list[Array]:
        """The outputs for inputs that have exactly the declared types and lie contiguously.

        An output that is an updated state is a view of that state, good until the next run.
        `holder` owns the parameters, or all inputs but those at the positions `data`: if it is that
        of the last run, they are in place already.
        """
        gpu = open_gpu()
        with gpu.lock:
            stretches = self._ready(gpu)
            resident = stretches.resident
            kept = self.params if data is None else frozenset(range(len(inputs))) - set(data)
            self._upload(resident, inputs, holder, kept)
            Walk(stretches, self._functions, seed).run()
            return self._results(resident)

    def profile(
        self, inputs: Sequence[Array], seed: int = 0, threads: int | None = None
    ) -> list[tuple[str, float]]:
        """The seconds of every step of one run."""
        gpu = open_gpu()
        with gpu.lock:
            stretches = self._ready(gpu)
            resident = stretches.resident
            self._upload(resident, inputs, None, frozenset())
            self._alone = seconds = Walk(stretches, self._functions, seed).timed()
            self._results(resident)
        labels = [step.label for step in self.artifact.steps]
        return list(zip(labels, seconds, strict=True))

    def timeline(
        self, inputs: Sequence[Array], seed: int = 0, threads: int | None = None
    ) -> list[Lap]:
        """When the GPU was busy with each step of one run, and the host with its own and with
        launches."""
        gpu = open_gpu()
        if self._alone is None:
            self.profile(inputs, seed)
        assert self._alone is not None
        with gpu.lock:
            stretches = self._ready(gpu)
            resident = stretches.resident
            self._upload(resident, inputs, None, frozenset())
            laps = Watched(stretches, self._functions, seed).laps(self._alone)
            self._results(resident)
        return laps

    def _ready(self, gpu: Gpu) -> Stretches:
        if self._stretches is None:
            exchanges = device_exchanges(gpu, self.artifact, self._functions)
            self._stretches = Stretches(Resident(gpu, self.artifact, self.state, exchanges))
        if self._stretches.resident.reports:
            gpu.watch(self._stretches.resident)
        for array in self.state:
            if array.nbytes:
                gpu.stream.bring(int(array.ctypes.data), array.nbytes)
        return self._stretches

    def _upload(
        self, resident: Resident, inputs: Sequence[Array], holder: object, params: frozenset[int]
    ) -> None:
        kept = params if holder is not None and holder is self._holder else frozenset()
        self._launched = _nobody
        self._make_keeping.forget()
        # Whoever is interrupted below leaves parameters of two holders behind.
        self._holder = None
        for key, size in resident.sizes.items():
            if key[0] in ("input", "output"):
                if key not in self._own:
                    self._own[key] = empty(resident.gpu, "ui8", (size,), f"{key[0]}s of programs")
                resident.external[key] = self._own[key].address
        for number, array in enumerate(inputs):
            own = self._own.get(("input", number))
            if own is not None and number not in kept:
                resident.gpu.stream.upload(own.address, array)
        self._holder = holder

    def _results(self, resident: Resident) -> list[Array]:
        found = []
        for place in self._places:
            slot, spec = place.slot, place.spec
            if slot.space == "state":
                found.append(self.state[slot.number].reshape(spec.shape))
                continue
            array = np.empty(spec.shape, BY_NAME[spec.dtype].numpy)
            resident.gpu.stream.download(array, resident.address(slot))
            found.append(array)
        era = resident.gpu.era
        resident.gpu.wait()
        era.check()
        return found


@dataclass(frozen=True)
class _Place:
    """Where a run leaves an output."""

    number: int
    slot: BufferSlot
    spec: TensorSpec
    is_given: bool
    """Whether that is the memory of a donated input."""

    @cached_property
    def bytes(self) -> int:
        return prod(self.spec.shape) * BY_NAME[self.spec.dtype].storage_bytes

    def stays(self, inputs: Sequence[DeviceTensor]) -> int | None:
        """The number of the input that it is in all but its elements: that tensor is handed out
        again."""
        if not self.is_given:
            return None
        given = inputs[self.slot.number]
        alike = (given.dtype, given.shape) == (self.spec.dtype, self.spec.shape)
        return self.slot.number if alike else None


def _nobody() -> None:
    """The holder of inputs that are nobody's."""


def state_tensor(dtype: str, shape: tuple[int, ...]) -> Array:
    """A tensor of zeros that host and device both reach, at an address that stays."""
    found = BY_NAME[dtype]
    count = int(np.prod(shape, dtype=np.int64)) * found.storage_bytes
    gpu = open_gpu()
    with gpu.lock:
        memory = gpu.device.managed(count)
    raw: Any = (ctypes.c_uint8 * max(1, count)).from_address(memory.address)
    release = weakref.finalize(raw, _free_memory, memory)
    release.atexit = False
    held: Array = np.ctypeslib.as_array(raw)[:count]
    held[...] = 0
    return np.asarray(held.view(found.numpy).reshape(shape))


def _free_memory(memory: Memory) -> None:
    with contextlib.suppress(ExecutionError):
        memory.free()
