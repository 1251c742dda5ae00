"""The code generator for GPUs: dialect kernels, CUDA text, cubins for this machine's device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from numpy.typing import NDArray

from weft.codegen.gpu import templates
from weft.codegen.gpu.compile import Cubin
from weft.codegen.gpu.ir.module import GpuModule
from weft.codegen.gpu.spelling import text
from weft.driver.artifact.assembler import Unit, build_artifact, symbols_of
from weft.driver.artifact.kernels import with_declared_types
from weft.driver.code import gpu_kernels, gpu_reactions
from weft.driver.code.gpu_ahead import Ahead, working_ahead
from weft.driver.code.gpu_linker import arch_for, link
from weft.driver.code.gpu_races import check_edited
from weft.driver.code.plans import choose_plans
from weft.driver.code.slow_paths import slow_paths
from weft.driver.code.sources import CUDA
from weft.driver.legalise import guarded_by
from weft.driver.signature import Signature
from weft.driver.stages.algorithms import chosen_plans
from weft.driver.stages.bodies import compile_bodies
from weft.driver.stages.compilation import Compilation, Stage
from weft.driver.stages.generators import Built, Generator, pipeline
from weft.driver.stages.opaque import host_call
from weft.foundation.errors import Finding, InternalError, UserError
from weft.memory.ir import BufferMap
from weft.plan.ir import Plan, PlanSet
from weft.plan.usage import Estimate, estimate
from weft.ptir.ir import Body, Program
from weft.region.ir import Kernel, Module
from weft.runtime.cuda.gpu import open_gpu
from weft.runtime.cuda.race import seconds_alone
from weft.target.target import Target

Array = NDArray[Any]
WRITTEN_OUT: Final = 8192
"""The most steps that a counted loop is written out as: they go to the device as one graph, which
asks the host for nothing between two turns. A node takes some 20 us to record."""


def _build(compilation: Compilation, signature: Signature, state: Sequence[Array]) -> Built:
    program = compilation.simple()
    bodies = compile_bodies(program, compilation)
    arch = arch_for(compilation.target)
    made, notes = gpu_kernels.Cubins(arch), list[str]()
    guards = guarded_by(compilation["frontend"], compilation.target)
    ahead: Ahead | None = compilation.ahead
    if ahead is not None:
        for body in bodies.values():
            ahead.ask(body.compilation["cu"].sources.values())
    pipeline().check_later(compilation)
    unit = replace(_unit(compilation, made, notes, program, program.main), guards=guards)
    known = {} if ahead is None else ahead.made
    units = {
        use: replace(
            _unit(body.compilation, made, notes, program, body.region, known), guards=guards
        )
        for use, body in bodies.items()
    }
    artifact = build_artifact(unit, arch, host_call, bodies, units, WRITTEN_OUT, keeps=True)
    artifact = with_declared_types(artifact, compilation.program)
    runner = link(artifact, signature, state)
    symbols = symbols_of(unit, units)
    return Built(runner, artifact, symbols, made.compiled, made.reused, notes, compilation.warned)


def _unit(
    compilation: Compilation,
    made: gpu_kernels.Cubins,
    notes: list[str],
    program: Program,
    body: Body,
    known: Mapping[str, Cubin] | None = None,
) -> Unit:
    """What the stages made of a body, with its machine code, of which some is known by its source;
    what there is to say is noted."""
    module = compilation["region"]
    # Before the machine code is waited for; that may move plans, and make other dialect kernels.
    taken = gpu_kernels.estimated_seconds(module, compilation.target)
    cubins = _cubins(compilation, made.arch, known)
    code = compilation["gpu"]
    made.compiled += cubins.compiled
    made.reused += cubins.reused
    notes += gpu_kernels.resource_report(code, cubins)
    notes += slow_paths(module, compilation["plan"], code, compilation.target)
    return Unit(
        module,
        compilation["memory"],
        gpu_kernels.natives(code, module),
        gpu_kernels.kernel_codes(code, module, cubins, taken),
        compilation["tiny"].constants,
        program,
        body,
        code.hosted,
    )


def _choose(compilation: Compilation) -> PlanSet:
    ahead: Ahead | None = compilation.ahead
    parts = compilation["region"], compilation["memory"], compilation.target
    # Beside plans that are read, those of the planner only say which of them are its own.
    if ahead is None or "plan" in compilation.overrides:
        return choose_plans(*parts)
    return choose_plans(*parts, ahead.chooser(*parts))


def _lower(compilation: Compilation) -> GpuModule:
    ahead: Ahead | None = compilation.ahead
    return gpu_kernels.lower_module(
        compilation["region"],
        compilation["memory"],
        compilation["plan"],
        compilation.target,
        _given_keys(compilation),
        tell=None if ahead is None else ahead.teller(len(compilation["plan"].plans)),
    )


def _print(compilation: Compilation) -> gpu_kernels.CudaCode:
    ahead: Ahead | None = compilation.ahead
    printed = () if ahead is None else (GpuModule(ahead.kernels), ahead.printed)
    return gpu_kernels.print_cuda(compilation["gpu"], *printed)


def _check(compilation: Compilation) -> None:
    ahead: Ahead | None = compilation.ahead
    known = None if ahead is None else GpuModule(ahead.verified)
    gpu_kernels.check_module(compilation["gpu"], compilation["region"], compilation.target, known)


def _wait_for_one_another(read: GpuModule, made: GpuModule, compilation: Compilation) -> None:
    gpu_kernels.check_module(read, compilation["region"], compilation.target)
    check_edited(read, made, compilation["region"], compilation.warn)


def _given_keys(compilation: Compilation) -> set[str]:
    """The keys of plans that somebody gave: those that were read and are not the planner's."""
    if "plan" not in compilation.overrides:
        return set()
    own = chosen_plans(compilation).plans
    return {key for key, plan in compilation["plan"].plans.items() if plan != own.get(key)}


def _cubins(
    compilation: Compilation, arch: str, known: Mapping[str, Cubin] | None = None
) -> gpu_kernels.Cubins:
    try:
        return gpu_reactions.compiled(compilation, arch, known)
    except InternalError as error:
        read = [stage for stage in ("gpu", "cu") if stage in compilation.overrides]
        if not read:
            raise
        what = "CUDA text that was given does" if "cu" in read else "GPU kernels that were given do"
        raise UserError(f"the {what} not compile: {error}") from None


def _accepts(
    kernel: Kernel, module: Module, buffer_map: BufferMap, plan: Plan, target: Target
) -> list[Finding]:
    return templates.accepts(kernel, module.tensors, buffer_map.refs, plan, target)


def _estimate(
    kernel: Kernel, module: Module, buffer_map: BufferMap, plan: Plan, target: Target
) -> Estimate:
    return estimate(kernel, module.tensors, plan, target)


def _clock(built: Built, inputs: Sequence[Array]) -> float:
    return seconds_alone(open_gpu(), built.artifact, inputs)


GENERATOR = Generator(
    stages=(
        Stage(
            "gpu", "txt",
            enter=_lower,
            verify=_check,
            render=text.print_module,
            parse=lambda source, c: text.parse_module(source),
            agree=_wait_for_one_another,
        ),
        Stage(
            "cu", "cu",
            enter=_print,
            verify=lambda c: CUDA.require(c["cu"].sources, c["gpu"].kernels),
            render=lambda code: CUDA.join(code.sources),
            parse=lambda source, c: gpu_kernels.CudaCode(CUDA.split(source)),
        ),
    ),
    choose_plans=_choose,
    build=_build,
    accepts=_accepts,
    estimate=_estimate,
    clock=_clock,
    settle=lambda c: _cubins(c, arch_for(c.target)),
    ahead=lambda c: working_ahead(c, arch_for(c.target)),
)  # fmt: skip
