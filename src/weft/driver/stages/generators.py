"""Code generators and linkers: the last stages of the pipeline, one list for each kind of target.

This is the one place that loads the pipeline, a generator or a linker, when there is need of it: a
program for the CPU needs no CUDA printer, and one that is kept on disk needs a linker alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol, cast

from numpy.typing import NDArray

from weft.driver.loading.lazy_modules import load_part
from weft.driver.signature import Signature
from weft.driver.stages.compilation import Compilation, Stage
from weft.foundation.errors import Finding, UserError
from weft.foundation.forks import no_fork
from weft.foundation.records import dataclass
from weft.ptir.types import TensorType
from weft.runtime.artifact import Artifact, HostFunction
from weft.runtime.timeline import Lap
from weft.target.target import Kind, Target

if TYPE_CHECKING:
    from weft.memory.ir import BufferMap
    from weft.plan.ir import Plan, PlanSet
    from weft.plan.usage import Estimate
    from weft.region.from_poly_view import Fuse
    from weft.region.ir import Kernel, Module

Array = NDArray[Any]
_PIPELINE = "weft.driver.pipeline"
_EXACT = "weft.region.fusion.exact"
_HOST_KERNELS = "weft.driver.artifact.host_kernels"
_FACTORISATIONS = "weft.driver.code.factorisations"
_HOMES = {Kind.CPU: "weft.driver.code.cpu_generator", Kind.GPU: "weft.driver.code.gpu_generator"}
_LINKERS = {Kind.CPU: "weft.driver.code.cpu_linker", Kind.GPU: "weft.driver.code.gpu_linker"}


class Runner(Protocol):
    """A program on its machine."""

    def run(
        self,
        inputs: Sequence[Array],
        seed: int = 0,
        threads: int | None = None,
        holder: object = None,
        data: Sequence[int] | None = None,
    ) -> list[Array]:
        """The results. `holder` owns the parameters among the inputs, or all inputs but those at
        the positions `data`: while it stays the same, so do they."""
        ...

    def profile(
        self, inputs: Sequence[Array], seed: int = 0, threads: int | None = None
    ) -> list[tuple[str, float]]:
        """The seconds of every step of one run."""
        ...

    def timeline(
        self, inputs: Sequence[Array], seed: int = 0, threads: int | None = None
    ) -> list[Lap]:
        """Which thread or stream was busy with which step of one run, and when."""
        ...


@dataclass
class Built:
    """A program that runs, what of it was compiled now, and what there is to say about it."""

    program: Runner
    artifact: Artifact
    symbols: Mapping[str, str]
    """Kernel name to the symbol of its code; equal kernels share one."""
    compiled: int
    reused: int
    notes: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    """What the user is warned of whenever it is made or found."""


@dataclass(frozen=True)
class Generator:
    """From kernels to something that runs on one kind of target."""

    stages: tuple[Stage, ...]
    """What comes after the plan."""
    choose_plans: Callable[[Compilation], PlanSet]
    """A plan for every kernel that its templates can carry out."""
    build: Callable[[Compilation, Signature, Sequence[Array]], Built]
    """Machine code and a runner, after all stages."""
    accepts: Callable[[Kernel, Module, BufferMap, Plan, Target], list[Finding]]
    """Why a kernel cannot be carried out by a plan; nothing where it can."""
    estimate: Callable[[Kernel, Module, BufferMap, Plan, Target], Estimate]
    """What a kernel should take by a plan."""
    clock: Callable[[Built, Sequence[Array]], float]
    """The seconds that all kernels of a program take, the median of some measurements."""
    settle: Callable[[Compilation], object]
    """Lets the stages be those of what building builds, where machine code has a say in plans."""
    ahead: Callable[[Compilation], AbstractContextManager[object]] = nullcontext
    """Around stages and building: machine code may then be made while stages run."""


@dataclass(frozen=True)
class Linker:
    """From machine code to something that runs: what a program needs that is on disk already."""

    facts: Callable[[Target], tuple[str, ...] | None]
    """What machine code depends on besides its source; None where nothing can be compiled."""
    link: Callable[[Artifact, Signature, Sequence[Array]], Runner]
    """A program with its states, ready to run."""
    new_state: Callable[[TensorType], Array]
    """A state of zeros, aligned, at an address that stays: where the machine reaches it."""


class Pipeline(Protocol):
    """The module that has the list of stages."""

    def run_pipeline(self, compilation: Compilation, until: str | None = None) -> Compilation:
        """Run the stages, up to and including `until`."""
        ...

    def run_whole(self, compilation: Compilation) -> None:
        """Run all stages, and those of the bodies of branches and loops, as building does."""
        ...

    def check_later(self, compilation: Compilation) -> None:
        """Make the checks that were put off until machine code is waited for."""
        ...

    def check_overrides(
        self, overrides: Mapping[str, str], target: Target, until: str | None = None
    ) -> None:
        """Every stage that is read is one of the target, has a text, and is reached."""
        ...

    def report(self, compilation: Compilation) -> list[str]:
        """What there is to say about the kernels and the memory of a compilation."""
        ...


def pipeline() -> Pipeline:
    """The stages of the compiler."""
    return cast(Pipeline, load_part(_PIPELINE))


def exact_fusion() -> Fuse:
    """Exact fusion, which needs a solver that nothing else does."""
    try:
        with no_fork:
            return cast("Fuse", importlib.import_module(_EXACT).fuse_exactly)
    except ModuleNotFoundError as error:
        if error.name != "highspy":
            raise
        raise UserError(
            "optimisation level 3 solves integer programs with highspy, which is not installed: "
            "pip install highspy, or use level 2"
        ) from None


def generator_for(target: Target) -> Generator:
    """The code generator of a target."""
    if target.kind not in _HOMES:
        raise UserError(f"there is no code generator for {target.name} yet")
    return cast(Generator, load_part(_HOMES[target.kind]).GENERATOR)


def linker_for(target: Target) -> Linker:
    """The linker of a target."""
    if target.kind not in _LINKERS:
        raise UserError(f"there is no linker for {target.name} yet")
    return cast(Linker, load_part(_LINKERS[target.kind]).LINKER)


def host_kernel(call: str) -> HostFunction:
    """What the host does to carry out a kernel that has no machine code."""
    return cast(HostFunction, load_part(_HOST_KERNELS).host_function(call))


def factorise(op: object, arrays: Sequence[Array], wanted: Collection[int]) -> list[Array] | None:
    """The results of a factorisation by compiled code, those that are wanted; None where there is
    no such code."""
    return cast("list[Array] | None", load_part(_FACTORISATIONS).computed(op, arrays, wanted))
