"""The CUDA backend: programs through the whole pipeline to kernels of this machine's GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.driver.compile import Executable, compile_program
from weft.driver.stages.generators import Built
from weft.driver.stages.origins import Origin
from weft.foundation.dtypes import ALL, as_dtype
from weft.foundation.errors import BackendUnavailable, InternalError, Unimplemented
from weft.ptir.interp import Observer
from weft.ptir.ir import HintKind, Program
from weft.ptir.op import CORE, Op
from weft.ptir.ops.constant import CustomCall
from weft.ptir.types import TensorType
from weft.runtime.cuda import casts, tensors
from weft.runtime.cuda.driver import compute_capability, open_device
from weft.runtime.cuda.gpu import open_gpu
from weft.runtime.cuda.program import Program as DeviceProgram
from weft.runtime.cuda.race import can_enter, seconds_alone
from weft.runtime.cuda.tensors import DeviceTensor
from weft.runtime.timeline import Lap

Array = NDArray[Any]


class CudaExecutable:
    """A compiled program behind the backend protocol."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable

    @property
    def _only_build(self) -> Built:
        (cluster,) = self.executable.clusters.values()
        return cluster.built

    @cached_property
    def _program(self) -> DeviceProgram:
        program = self._only_build.program
        if not isinstance(program, DeviceProgram):
            raise InternalError("a program for a GPU was compiled for something else")
        return program

    def execute(
        self, inputs: Sequence[DeviceTensor], *, seed: int = 0, observer: Observer | None = None
    ) -> list[DeviceTensor]:
        return self._program.launch(inputs, seed)

    def execute_held(
        self,
        inputs: Sequence[DeviceTensor],
        holder: object,
        data: Sequence[int],
        *,
        seed: int = 0,
    ) -> list[DeviceTensor]:
        """The same; all inputs but those at the positions `data` are the holder's."""
        return self._program.launch(inputs, seed, holder, data)

    def device_seconds(self, inputs: Sequence[DeviceTensor]) -> float | None:
        """The time of a run on the device; None where it is the host's in part."""
        artifact = self._only_build.artifact
        if not can_enter(artifact):
            return None
        return seconds_alone(open_gpu(), artifact, [tensor.numpy() for tensor in inputs])

    def profile(self, inputs: Sequence[DeviceTensor], *, seed: int = 0) -> list[tuple[str, float]]:
        """The seconds of every kernel, copy and host call of one run."""
        return self.executable.profile([tensor.numpy() for tensor in inputs], seed=seed)

    def timeline(self, inputs: Sequence[DeviceTensor], *, seed: int = 0) -> list[Lap]:
        """When the GPU was busy with which of these in one run, and the host with its own."""
        return self.executable.timeline([tensor.numpy() for tensor in inputs], seed=seed)

    def origins(self) -> list[Origin]:
        """What the user wrote that each of these carries out."""
        return self.executable.origins()


class CudaBackend:
    """Runs what its kernels express on the GPU, and other kernels and ops on the host, one by one.

    It compiles for the target that the machine's GPU is, or for the one it was made for. Tensors
    stay on the GPU; a run returns at once, and reading a result waits for it.
    """

    name = "cuda"
    dtypes = frozenset(ALL)
    ops = frozenset(cls.wire_name for cls in CORE.values())
    hints: frozenset[HintKind] = frozenset(HintKind)
    runs_passes = True
    lends_memory = True
    """Whether other libraries can use the memory of its tensors as it is."""

    def __init__(self, target: str | None = None) -> None:
        self.target = target

    def supports(self, op: Op) -> bool:
        return not isinstance(op, CustomCall)

    def compile(self, program: Program) -> CudaExecutable:
        return self.compile_donating(program, frozenset())

    def compile_donating(self, program: Program, donated: frozenset[int]) -> CudaExecutable:
        for instruction in (i for body in program.bodies for i in body.body):
            if isinstance(instruction.op, CustomCall):
                target = f"custom call {instruction.op.target!r}"
                raise Unimplemented(target, "the cuda backend does not know this target")
        target = self.target or target_of_device()
        return CudaExecutable(compile_program(program, target, donate=donated))

    def allocate(self, kind: TensorType) -> DeviceTensor:
        return tensors.empty(open_gpu(), kind.dtype.name, kind.static_shape)

    def store(self, array: Array) -> DeviceTensor:
        return tensors.upload(open_gpu(), np.asarray(array), as_dtype(array.dtype).name)

    def repeat(self, element: Array, kind: TensorType) -> DeviceTensor | None:
        shape = kind.static_shape
        return (
            tensors.repeated(open_gpu(), element, kind.dtype.name, shape) if prod(shape) else None
        )

    def cast(self, storage: DeviceTensor, kind: TensorType) -> DeviceTensor | None:
        return casts.cast(storage, kind.dtype.name)

    def duplicate(self, storage: DeviceTensor) -> DeviceTensor:
        return tensors.duplicate(storage)

    def take_over(self, producer: Any, copy: bool = False) -> DeviceTensor:
        """Another library's tensor that is on the GPU already, with its memory or a copy of it."""
        found = tensors.imported(open_gpu(), producer)
        return tensors.duplicate(found) if copy else found

    def view(self, address: int, kind: TensorType, owner: object = None) -> DeviceTensor:
        """Memory of another library as a tensor, which holds its owner. That library says in which
        stream it works (`follow`, `precede`)."""
        return DeviceTensor(open_gpu(), address, kind.dtype.name, kind.static_shape, owner)

    def follow(self, stream: int) -> None:
        """Work from now on comes after what another library's stream has been asked for."""
        open_gpu().follow(stream)

    def precede(self, stream: int) -> None:
        """What that stream is asked for from now on comes after the work so far."""
        open_gpu().precede(stream)

    def read_storage(self, storage: DeviceTensor, kind: TensorType) -> Array:
        return storage.numpy().reshape(kind.static_shape)


def target_of_device() -> str:
    """The target that this machine's GPU is."""
    found = compute_capability()
    if found is None:
        open_device()
        raise BackendUnavailable("this machine has no GPU that the cuda backend can use")
    if found[0] == 9:
        return "sm90"
    if found[0] == 8:
        return "sm80"
    major, minor = found
    raise BackendUnavailable(
        f"the cuda backend needs an SM80 or SM90 GPU; this one is SM{major}{minor}"
    )


BACKEND = CudaBackend()
