"""Programs for the CPU on their way into this process: what their machine code depends on, and how
it comes to run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from weft.driver.signature import Signature
from weft.driver.stages.generators import Linker
from weft.driver.stages.opaque import host_function
from weft.ptir.types import TensorType
from weft.runtime import executor
from weft.runtime.artifact import Artifact
from weft.runtime.jit import code_facts
from weft.target.target import Target

Array = NDArray[Any]


def _facts(target: Target) -> tuple[str, ...]:
    return code_facts()


def link(artifact: Artifact, signature: Signature, state: Sequence[Array]) -> executor.Program:
    """The program, ready to run."""
    return executor.Program(artifact, state, signature.given_params, host_function)


def _new_state(kind: TensorType) -> Array:
    return executor.zero_tensor(kind.dtype.name, kind.static_shape)


LINKER = Linker(facts=_facts, link=link, new_state=_new_state)
