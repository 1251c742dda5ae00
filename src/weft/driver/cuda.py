"""The CUDA backend: programs through the whole pipeline to kernels of this machine's GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.codegen.gpu.element import HELD
from weft.driver.compile import Executable, compile_program
from weft.foundation.errors import BackendUnavailable, Unimplemented
from weft.ptir.interp import Observer
from weft.ptir.ir import HintKind, Program
from weft.ptir.op import CORE, Op
from weft.ptir.ops.constant import CustomCall
from weft.ptir.types import TensorType
from weft.runtime.cuda import compute_capability, open_device

Array = NDArray[Any]
CONTROL_FLOW = frozenset({"Cond", "While", "Scan"})


class CudaExecutable:
    """A compiled program behind the backend protocol."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable

    def execute(
        self, inputs: Sequence[Array], *, seed: int = 0, observer: Observer | None = None
    ) -> list[Array]:
        return self.executable.run(inputs, seed=seed)


class CudaBackend:
    """Runs what its kernels express; other ops are `Unimplemented`.

    It compiles for the target that the machine's GPU is, or for the one it was made for.
    """

    name = "cuda"
    dtypes = frozenset(HELD)
    ops = frozenset(cls.wire_name for cls in CORE.values()) - CONTROL_FLOW
    hints: frozenset[HintKind] = frozenset(HintKind)

    def __init__(self, target: str | None = None) -> None:
        self.target = target

    def supports(self, op: Op) -> bool:
        return not isinstance(op, CustomCall)

    def compile(self, program: Program) -> CudaExecutable:
        for instruction in program.main.body:
            if isinstance(instruction.op, CustomCall):
                target = f"custom call {instruction.op.target!r}"
                raise Unimplemented(target, "the cuda backend does not know this target")
        return CudaExecutable(compile_program(program, self.target or target_of_device()))

    def allocate(self, kind: TensorType) -> Array:
        return np.empty(kind.static_shape, kind.dtype.numpy)

    def store(self, array: Array) -> Array:
        return np.asarray(array, order="C")

    def read_storage(self, storage: Array, kind: TensorType) -> Array:
        return storage


def target_of_device() -> str:
    """The target that this machine's GPU is."""
    found = compute_capability()
    if found is None:
        open_device()
        raise BackendUnavailable("this machine has no GPU that the cuda backend can use")
    if found[0] == 9:
        return "sm90"
    if found >= (8, 0):
        return "sm80"
    major, minor = found
    raise BackendUnavailable(
        f"the cuda backend needs an SM80 or SM90 GPU; this one is SM{major}{minor}"
    )


BACKEND = CudaBackend()
