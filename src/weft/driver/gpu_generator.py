"""The code generator for GPUs: dialect kernels, CUDA text, cubins for this machine's device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from weft.codegen.gpu import text, text_parser
from weft.driver import gpu_code
from weft.driver.artifacts import with_declared_types
from weft.driver.compilation import Compilation, Stage
from weft.driver.generators import Built, Generator
from weft.driver.opaque import host_call
from weft.driver.plans import choose_plans
from weft.driver.signature import Signature
from weft.driver.sources import CUDA
from weft.foundation.errors import InternalError, UserError
from weft.ptir.types import TensorType
from weft.runtime import cuda, cuda_program, executor

Array = NDArray[Any]


def _build(compilation: Compilation, signature: Signature, state: Sequence[Array]) -> Built:
    code = compilation["gpu"]
    arch = gpu_code.architecture(compilation.target, cuda.compute_capability())
    cubins = _cubins(compilation, arch)
    artifact = gpu_code.build_artifact(
        compilation["region"],
        compilation["memory"],
        code,
        cubins,
        compilation["tiny"].constants,
        host_call,
    )
    artifact = with_declared_types(artifact, compilation.program)
    program = cuda_program.Program(artifact, state, signature.given_params)
    notes = [*compilation["plan"].notes, *gpu_code.resource_report(code, cubins)]
    symbols = {name: launch.symbol for name, launch in code.launches.items()}
    return Built(program, artifact, symbols, cubins.compiled, cubins.reused, notes)


def _cubins(compilation: Compilation, arch: str) -> gpu_code.Cubins:
    try:
        return gpu_code.compile_sources(compilation["cu"], arch)
    except InternalError as error:
        read = [stage for stage in ("gpu", "cu") if stage in compilation.overrides]
        if not read:
            raise
        what = "CUDA text that was given does" if "cu" in read else "GPU kernels that were given do"
        raise UserError(f"the {what} not compile: {error}") from None


def _new_state(kind: TensorType) -> Array:
    if cuda.compute_capability() is None:
        return executor.zero_tensor(kind.dtype.name, kind.static_shape)
    return cuda_program.state_tensor(cuda.open_device(), kind.dtype.name, kind.static_shape)


GENERATOR = Generator(
    stages=(
        Stage(
            "gpu", "txt",
            enter=lambda c: gpu_code.lower_module(c["region"], c["memory"], c["plan"], c.target),
            verify=lambda c: gpu_code.check_module(c["gpu"], c["region"], c.target),
            render=text.print_module,
            parse=lambda source, c: text_parser.parse_module(source),
        ),
        Stage(
            "cu", "cu",
            enter=lambda c: gpu_code.print_module(c["gpu"]),
            verify=lambda c: CUDA.require(c["cu"].sources, c["gpu"].kernels),
            render=lambda code: CUDA.join(code.sources),
            parse=lambda source, c: gpu_code.CudaCode(CUDA.split(source)),
        ),
    ),
    choose_plans=choose_plans,
    build=_build,
    new_state=_new_state,
)  # fmt: skip
