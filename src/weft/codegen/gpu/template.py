"""The interface of GPU templates: which plans one takes, whether it can carry out a plan for a
kernel, and the dialect kernel it builds. `templates.TEMPLATES` lists them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Generic, Protocol, TypeVar

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.peephole import recognise
from weft.codegen.gpu.body.thread import Refs
from weft.foundation.errors import Finding
from weft.foundation.records import dataclass
from weft.plan.ir import Plan
from weft.region.ir import Kernel, Tensor
from weft.target.target import Target

P = TypeVar("P", bound=Plan)


@dataclass(frozen=True)
class Job(Generic[P]):
    """A finished kernel (`kernel.form` says what it is), where its tensors lie, and the plan by
    which it is to be carried out on a target."""

    kernel: Kernel
    tensors: Mapping[str, Tensor]
    refs: Refs
    plan: P
    target: Target

    @cached_property
    def short(self) -> Kernel:
        """The kernel with the functions that programs spell out by their names. Plans speak of the
        kernel as it was written."""
        return recognise(self.kernel)


class Template(Protocol[P]):
    """Carries out kernels by plans of one kind."""

    @property
    def name(self) -> str:
        """What the template is called in tests and messages."""

    def takes(self, plan: Plan) -> bool:
        """Whether plans like this one are for this template, whatever the kernel."""

    def accepts(self, job: Job[P]) -> list[Finding]:
        """Why the job cannot be done; empty if it can. Every field of the plan has an effect, or is
        refused here."""

    def build(self, job: Job[P], name: str) -> ir.Kernel:
        """The dialect kernel of a job that is accepted, `name` in the generated source."""
