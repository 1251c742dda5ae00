"""The code generator for CPUs: loop nests, LLVM IR, machine code of this host."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from numpy.typing import NDArray

from weft.codegen.cpu import text
from weft.codegen.cpu.compile import accepts, lower
from weft.codegen.cpu.price import price
from weft.driver.artifact.assembler import Unit, build_artifact, symbols_of
from weft.driver.artifact.kernels import with_declared_types
from weft.driver.code import cpu_kernels
from weft.driver.code.cpu_kernels import Objects
from weft.driver.code.cpu_linker import link
from weft.driver.code.sources import LLVM
from weft.driver.legalise import guarded_by
from weft.driver.signature import Signature
from weft.driver.stages.bodies import compile_bodies
from weft.driver.stages.compilation import Compilation, Stage, unchecked
from weft.driver.stages.generators import Built, Generator
from weft.driver.stages.opaque import host_call
from weft.foundation.errors import Finding
from weft.memory.ir import BufferMap
from weft.plan.from_region import plan_module
from weft.plan.ir import Plan, PlanSet
from weft.plan.usage import Estimate
from weft.ptir.ir import Body, Program
from weft.region.cost import kernel_work
from weft.region.ir import Kernel, Module
from weft.region.structure import buffers
from weft.runtime import executor
from weft.target.roofline import Usage, quantisation
from weft.target.target import Target

Array = NDArray[Any]
WRITTEN_OUT: Final = 2048
"""The most steps that a counted loop is written out as, so that turns read and write stacks where
they lie; each takes some microseconds to assemble."""
_CLOCKED: Final = 2e-3
"""Seconds that are measured at once, about."""
_MOST_TURNS: Final = 256
"""Runs of a kernel that are measured together."""
_REPETITIONS: Final = 5
"""Measurements of which the median counts, after one that warms up."""
_ENOUGH: Final = 0.2
"""Seconds after which a kernel is not measured again."""


def _choose_plans(compilation: Compilation) -> PlanSet:
    return plan_module(compilation["region"], compilation.target)


def _lower(compilation: Compilation) -> cpu_kernels.CpuCode:
    return cpu_kernels.lower_module(
        compilation["region"],
        compilation["memory"],
        compilation["plan"],
        compilation.target.limits.vector_bits,
    )


def _build(compilation: Compilation, signature: Signature, state: Sequence[Array]) -> Built:
    program = compilation.simple()
    bodies = compile_bodies(program, compilation)
    made = Objects()
    guards = guarded_by(compilation["frontend"], compilation.target)
    unit = replace(_unit(compilation, made, program, program.main), guards=guards)
    units = {
        use: replace(_unit(body.compilation, made, program, body.region), guards=guards)
        for use, body in bodies.items()
    }
    machine = compilation.target.machine or compilation.target.name
    artifact = build_artifact(unit, machine, host_call, bodies, units, WRITTEN_OUT, keeps=True)
    artifact = with_declared_types(artifact, compilation.program)
    runner = link(artifact, signature, state)
    symbols, warned = symbols_of(unit, units), compilation.warned
    return Built(runner, artifact, symbols, made.compiled, made.reused, warned=warned)


def _unit(compilation: Compilation, made: Objects, program: Program, body: Body) -> Unit:
    """What the stages made of a body, with its machine code."""
    objects = cpu_kernels.compile_sources(compilation["llvm"], compilation.target)
    made.compiled += objects.compiled
    made.reused += objects.reused
    module, code = compilation["region"], compilation["cpu"]
    return Unit(
        module,
        compilation["memory"],
        cpu_kernels.natives(code, module),
        cpu_kernels.kernel_codes(code, module, objects.objects, compilation.target),
        compilation["tiny"].constants,
        program,
        body,
    )


def _accepts(
    kernel: Kernel, module: Module, buffer_map: BufferMap, plan: Plan, target: Target
) -> list[Finding]:
    return accepts(kernel, module.tensors, plan)


def _estimate(
    kernel: Kernel, module: Module, buffer_map: BufferMap, plan: Plan, target: Target
) -> Estimate:
    """The price of the loops that a plan makes."""
    refs = buffer_map.refs_of(buffers(kernel))
    routine = lower(kernel, module.tensors, refs, plan, kernel.name)
    usage = Usage(quantisation(routine.pieces, target.limits.units))
    work = kernel_work(kernel, module.tensors, target)
    return Estimate(work, usage, price(routine, target).seconds)


def _clock(built: Built, inputs: Sequence[Array]) -> float:
    """The median of native calls that carry the steps out many times, so that a call itself is
    nothing."""
    once = executor.Program(built.artifact)
    once.run(inputs)
    started = time.perf_counter()
    once.run(inputs)
    seconds = time.perf_counter() - started
    turns = max(1, min(_MOST_TURNS, int(_CLOCKED / max(seconds, 1e-7))))
    steps = built.artifact.steps * turns
    program = executor.Program(replace(built.artifact, steps=steps))
    program.run(inputs)
    times: list[float] = []
    while len(times) < _REPETITIONS and sum(times) < _ENOUGH:
        started = time.perf_counter()
        program.run(inputs)
        times.append(time.perf_counter() - started)
    return statistics.median(times) / turns


GENERATOR = Generator(
    stages=(
        Stage(
            "cpu", "txt",
            enter=_lower,
            verify=unchecked,
            render=lambda code: text.print_routines(list(code.routines.values())),
            parse=lambda source, c: cpu_kernels.read_module(
                source, _lower(c), c["region"], c["memory"], c["plan"], c.warn
            ),
        ),
        Stage(
            "llvm", "ll",
            enter=lambda c: cpu_kernels.print_llvm(c["cpu"], c.target.features),
            verify=lambda c: cpu_kernels.check_sources(
                c["llvm"], c["cpu"], not {"cpu", "llvm"}.isdisjoint(c.overrides)
            ),
            render=lambda code: LLVM.join(code.sources),
            parse=lambda source, c: cpu_kernels.LlvmCode(LLVM.split(source)),
        ),
    ),
    choose_plans=_choose_plans,
    build=_build,
    accepts=_accepts,
    estimate=_estimate,
    clock=_clock,
    settle=unchecked,
)  # fmt: skip
