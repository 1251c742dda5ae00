"""Linking of GPU programs: what their machine code depends on, and how it comes to run. The device
is opened by the first run; its kind alone decides what is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from weft.codegen.gpu.compile import architecture, version
from weft.driver.signature import Signature
from weft.driver.stages import opaque
from weft.driver.stages.generators import Linker, host_kernel
from weft.foundation.errors import Unimplemented
from weft.ptir.types import TensorType
from weft.runtime.artifact import Artifact, HostFunction
from weft.runtime.cuda import driver
from weft.runtime.cuda.program import Program, state_tensor
from weft.runtime.host_memory import zero_tensor
from weft.target.target import Target

Array = NDArray[Any]


def arch_for(target: Target) -> str:
    """What to build for: this machine, or those that a target names."""
    return architecture(target, driver.compute_capability() if target.is_here else None)


def _target_facts(target: Target) -> tuple[str, ...] | None:
    try:
        compiler = ".".join(map(str, version()))
    except Unimplemented:
        # Nothing can be compiled here, and whoever tries is told so.
        return None
    return arch_for(target), f"NVRTC {compiler}"


def link(artifact: Artifact, signature: Signature, state: Sequence[Array]) -> Program:
    """The program, ready to run."""
    return Program(artifact, state, signature.given_params, _host_function, signature.given_donated)


def _host_function(call: str) -> HostFunction:
    """An op by its meaning, or a kernel that no template carries out."""
    return host_kernel(call) if call.startswith("{") else opaque.host_function(call)


def _new_state(kind: TensorType) -> Array:
    if driver.compute_capability() is None:
        return zero_tensor(kind.dtype.name, kind.static_shape)
    return state_tensor(kind.dtype.name, kind.static_shape)


LINKER = Linker(facts=_target_facts, link=link, new_state=_new_state)
