"""The CPU backend: programs through the whole pipeline to machine code of this host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.driver.compile import Executable, compile_program
from weft.driver.inputs import in_one_piece
from weft.driver.stages.origins import Origin
from weft.foundation.dtypes import ALL
from weft.foundation.errors import ResourceExceeded, Unimplemented
from weft.foundation.launches import hand_note_on
from weft.ptir.interp import Observer
from weft.ptir.ir import HintKind, Program
from weft.ptir.op import CORE, Op
from weft.ptir.ops.constant import CustomCall
from weft.ptir.types import TensorType
from weft.runtime.artifact import TensorSpec
from weft.runtime.host_memory import empty_tensor
from weft.runtime.timeline import Lap

Array = NDArray[Any]


class CpuExecutable:
    """A compiled program behind the backend protocol. What it is given was stored by the backend,
    and is of the types that the program declares."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        (cluster,) = executable.clusters.values()
        self._run = cluster.built.program.run

    def execute(
        self, inputs: Sequence[Array], *, seed: int = 0, observer: Observer | None = None
    ) -> list[Array]:
        try:
            return self._run(inputs, seed)
        except MemoryError as error:
            raise self._out_of_memory(error) from None

    def execute_held(
        self, inputs: Sequence[Array], holder: object, data: Sequence[int], *, seed: int = 0
    ) -> list[Array]:
        """The same; all inputs but those at the positions `data` are the holder's."""
        try:
            return self._run(inputs, seed, None, holder, data)
        except MemoryError as error:
            raise self._out_of_memory(error) from None

    def _out_of_memory(self, error: MemoryError) -> ResourceExceeded:
        told = self.executable.out_of_memory()
        hand_note_on(error, told)
        return told

    def profile(self, inputs: Sequence[Array], *, seed: int = 0) -> list[tuple[str, float]]:
        """The seconds of every kernel, copy and host call of one run."""
        return self.executable.profile(inputs, seed=seed)

    def timeline(self, inputs: Sequence[Array], *, seed: int = 0) -> list[Lap]:
        """Which thread was busy with which of these in one run, and when."""
        return self.executable.timeline(inputs, seed=seed)

    def origins(self) -> list[Origin]:
        """What the user wrote that each of these carries out."""
        return self.executable.origins()


class CpuBackend:
    """Runs what its kernels express natively, and other ops on the host, one by one."""

    name = "cpu"
    dtypes = frozenset(ALL)
    ops = frozenset(cls.wire_name for cls in CORE.values())
    hints: frozenset[HintKind] = frozenset(HintKind)
    runs_passes = True

    def supports(self, op: Op) -> bool:
        return not isinstance(op, CustomCall)

    def compile(self, program: Program) -> CpuExecutable:
        return self.compile_donating(program, frozenset())

    def compile_donating(self, program: Program, donated: frozenset[int]) -> CpuExecutable:
        return self.compile_keeping(program, donated, frozenset())

    def compile_keeping(
        self, program: Program, donated: frozenset[int], params: frozenset[int]
    ) -> CpuExecutable:
        for instruction in (i for body in program.bodies for i in body.body):
            if isinstance(instruction.op, CustomCall):
                target = f"custom call {instruction.op.target!r}"
                raise Unimplemented(target, "the cpu backend does not know this target")
        return CpuExecutable(compile_program(program, "cpu", donate=donated, params=params))

    def allocate(self, kind: TensorType) -> Array:
        return empty_tensor(TensorSpec("", kind.dtype.name, kind.static_shape))

    def store(self, array: Array) -> Array:
        return in_one_piece(np.asarray(array))

    def read_storage(self, storage: Array, kind: TensorType) -> Array:
        return storage


BACKEND = CpuBackend()
