"""One kernel as a program of its own, so that it can be built and measured without the others."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.driver.signature import Role, Signature
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.generators import Built, generator_for
from weft.foundation.dtypes import BY_NAME
from weft.memory.from_region import assign_buffers
from weft.plan.ir import Plan, PlanSet
from weft.ptir.ir import Function, Program
from weft.ptir.types import tensor
from weft.region.ir import Kernel, Module
from weft.region.structure import buffers
from weft.runtime.artifact import TensorSpec
from weft.target.target import Target
from weft.tiny.ir import Graph

Array = NDArray[Any]
_PERIOD: Final = 1_000_003
"""Numbers that are drawn; after them the same ones come again, in other columns."""


def module_of(kernel: Kernel, module: Module) -> Module:
    """The module of one kernel: what it reads is given, what it writes is handed out."""
    written = tuple(dict.fromkeys(output.tensor for output in kernel.outputs))
    given = tuple(name for name in buffers(kernel) if name not in written)
    roles = dict.fromkeys(given, "input") | dict.fromkeys(written, "output")
    tensors = {name: replace(module.tensors[name], role=role) for name, role in roles.items()}
    return Module(tensors, (kernel,), given, written)


def build_alone(kernel: Kernel, module: Module, plan: Plan, target: Target) -> Built:
    """A program that carries out one kernel by a plan."""
    alone, generator = module_of(kernel, module), generator_for(target)
    types = [
        tuple(tensor(alone.tensors[n].dtype, list(alone.tensors[n].shape)) for n in names)
        for names in (alone.inputs, alone.outputs)
    ]
    function = Function(kernel.name, types[0], tuple(range(len(types[0]))), types[1], ())
    signature = Signature((Role.DATA,) * len(types[0]))
    compilation = Compilation(Program(kernel.name, (function,)), target, signature)
    compilation.values |= {
        "frontend": compilation.program,
        "tiny": Graph((), ()),
        "region": alone,
        "memory": assign_buffers(alone),
        "plan": PlanSet({kernel.name: plan.header.kernel}, {plan.header.kernel: plan}),
    }
    for stage in generator.stages:
        compilation.values[stage.name] = stage.enter(compilation)
    return generator.build(compilation, signature, ())


def some_data(spec: TensorSpec, seed: int = 0) -> Array:
    """Something to compute with: normal numbers, and zeros, which are indices into anything."""
    dtype = BY_NAME[spec.dtype]
    if not dtype.is_float:
        return np.zeros(spec.shape, dtype.numpy)
    rng = np.random.default_rng(seed)
    # The period is prime, so that no axis of a usual size meets the same numbers in every row.
    drawn = rng.standard_normal(min(prod(spec.shape), _PERIOD), np.float32).astype(dtype.numpy)
    return np.resize(drawn, spec.shape)
