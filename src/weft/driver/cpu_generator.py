"""The code generator for CPUs: loop nests, LLVM IR, machine code of this host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from weft.codegen.cpu import text
from weft.driver import cpu_code
from weft.driver.artifacts import with_declared_types
from weft.driver.compilation import Compilation, Stage, unchecked
from weft.driver.generators import Built, Generator
from weft.driver.opaque import host_call, host_function
from weft.driver.signature import Signature
from weft.driver.sources import LLVM
from weft.memory.ir import BufferMap
from weft.plan.from_region import plan_module
from weft.plan.ir import PlanSet
from weft.ptir.types import TensorType
from weft.region.ir import Module
from weft.runtime import executor
from weft.target.target import Target

Array = NDArray[Any]


def _choose_plans(module: Module, buffer_map: BufferMap, target: Target) -> PlanSet:
    return plan_module(module, target)


def _build(compilation: Compilation, signature: Signature, state: Sequence[Array]) -> Built:
    objects = cpu_code.compile_sources(compilation["llvm"])
    artifact = cpu_code.build_artifact(
        compilation["region"],
        compilation["memory"],
        compilation["cpu"],
        objects.objects,
        compilation.target,
        compilation["tiny"].constants,
        host_call,
    )
    artifact = with_declared_types(artifact, compilation.program)
    program = executor.Program(artifact, state, signature.given_params, host_function)
    symbols = compilation["cpu"].symbols
    return Built(program, artifact, symbols, objects.compiled, objects.reused)


def _new_state(kind: TensorType) -> Array:
    return executor.zero_tensor(kind.dtype.name, kind.static_shape)


GENERATOR = Generator(
    stages=(
        Stage(
            "cpu", "txt",
            enter=lambda c: cpu_code.lower_module(
                c["region"], c["memory"], c["plan"], c.target.limits.vector_bits
            ),
            verify=unchecked,
            render=lambda code: text.print_routines(list(code.routines.values())),
        ),
        Stage(
            "llvm", "ll",
            enter=lambda c: cpu_code.print_module(c["cpu"]),
            verify=lambda c: cpu_code.check_sources(c["llvm"], c["cpu"], "llvm" in c.overrides),
            render=lambda code: LLVM.join(code.sources),
            parse=lambda source, c: cpu_code.LlvmCode(LLVM.split(source)),
        ),
    ),
    choose_plans=_choose_plans,
    build=_build,
    new_state=_new_state,
)  # fmt: skip
