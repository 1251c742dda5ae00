"""From a finished pipeline to something that runs: one way for each kind of target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from weft.driver import cpu_code, gpu_code
from weft.driver.opaque import run_opaque
from weft.driver.pipeline import Compilation
from weft.driver.signature import Role, Signature
from weft.foundation.errors import InternalError, UserError
from weft.ptir.types import TensorType
from weft.runtime import cuda, cuda_program, executor
from weft.target.target import Kind, Target

Array = NDArray[Any]


class Runner(Protocol):
    """A program on its machine."""

    def run(
        self,
        inputs: Sequence[Array],
        seed: int = 0,
        threads: int | None = None,
        holder: object = None,
    ) -> list[Array]:
        """The results. `holder` owns the parameters among the inputs: while it stays the same, so
        do they."""
        ...

    def profile(
        self, inputs: Sequence[Array], seed: int = 0, threads: int | None = None
    ) -> list[tuple[str, float]]:
        """The seconds of every step of one run."""
        ...


@dataclass
class Built:
    """A program that runs, what of it was compiled now, and what there is to say about it."""

    program: Runner
    compiled: int
    reused: int
    notes: list[str] = field(default_factory=list)


def build(compilation: Compilation, signature: Signature, state: Sequence[Array]) -> Built:
    """Machine code and a runner for a compilation that has gone through every stage."""
    return _BUILDERS[compilation.target.kind](compilation, signature, state)


def _build_cpu(compilation: Compilation, signature: Signature, state: Sequence[Array]) -> Built:
    code = compilation["cpu"]
    artifact = cpu_code.build_artifact(
        compilation["region"],
        compilation["memory"],
        code,
        compilation["tiny"].constants,
        run_opaque,
    )
    return Built(executor.Program(artifact, state), code.compiled, code.reused)


def _build_gpu(compilation: Compilation, signature: Signature, state: Sequence[Array]) -> Built:
    code = compilation["gpu"]
    arch = gpu_code.architecture(compilation.target, cuda.compute_capability())
    cubins = _cubins(compilation, arch)
    artifact = gpu_code.build_artifact(
        compilation["region"],
        compilation["memory"],
        code,
        cubins,
        compilation["tiny"].constants,
        run_opaque,
    )
    given = [role for role in signature.roles if role is not Role.STATE]
    params = frozenset(place for place, role in enumerate(given) if role is Role.PARAM)
    program = cuda_program.Program(artifact, state, params)
    notes = [*compilation["plan"].notes, *gpu_code.resource_report(code, cubins)]
    return Built(program, cubins.compiled, cubins.reused, notes)


def _cubins(compilation: Compilation, arch: str) -> gpu_code.Cubins:
    try:
        return gpu_code.compile_sources(compilation["cu"], arch)
    except InternalError as error:
        if "cu" not in compilation.overrides:
            raise
        raise UserError(f"the CUDA text that was given does not compile: {error}") from None


_BUILDERS: Mapping[Kind, Callable[[Compilation, Signature, Sequence[Array]], Built]] = {
    Kind.CPU: _build_cpu,
    Kind.GPU: _build_gpu,
}


def new_state(kind: TensorType, target: Target) -> Array:
    """A state of zeros, aligned, at an address that stays: where the machine reaches it."""
    if target.kind is Kind.GPU and cuda.compute_capability() is not None:
        device = cuda.open_device()
        return cuda_program.state_tensor(device, kind.dtype.name, kind.static_shape)
    return executor.zero_tensor(kind.dtype.name, kind.static_shape)
