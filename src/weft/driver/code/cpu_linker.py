"""Linking of CPU programs into this process: what their machine code depends on, and how it comes
to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from numpy.typing import NDArray

from weft.driver.signature import Signature
from weft.driver.stages.generators import Linker, Runner
from weft.driver.stages.opaque import host_function
from weft.foundation.errors import UserError
from weft.ptir.types import TensorType
from weft.runtime import executor
from weft.runtime.artifact import Artifact
from weft.runtime.host_memory import zero_tensor
from weft.runtime.jit import code_facts
from weft.target.target import Target

Array = NDArray[Any]
_HERE: Final = "cpu"


def _target_facts(target: Target) -> tuple[str, ...]:
    return code_facts(None if target.is_here else target.code)


class Elsewhere:
    """A program for other processors than this one: it is built, and not run."""

    def __init__(self, machine: str) -> None:
        self.machine = machine

    def run(self, *_: Any, **__: Any) -> list[Array]:
        """Say that it does not run here."""
        raise UserError(
            f"the program is built for {self.machine}, and runs out of a bundle: weft.build writes "
            "one; compile it for cpu to run it here"
        )

    profile: Any = run
    timeline: Any = run


def link(artifact: Artifact, signature: Signature, state: Sequence[Array]) -> Runner:
    """The program, ready to run."""
    if artifact.target != _HERE:
        return Elsewhere(artifact.target)
    return executor.Program(
        artifact, state, signature.given_params, host_function, signature.given_donated
    )


def _new_state(kind: TensorType) -> Array:
    return zero_tensor(kind.dtype.name, kind.static_shape)


LINKER = Linker(facts=_target_facts, link=link, new_state=_new_state)
