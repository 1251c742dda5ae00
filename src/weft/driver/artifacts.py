"""What all code generators share on the way to an artifact: keys of kernels, buffers as slots of
the parameter block, steps in order."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from numpy.typing import NDArray

from weft.foundation.errors import SpecViolation
from weft.memory.ir import BufferMap, Copy, MemRef
from weft.plan.ir import Plan
from weft.ptir.ir import Program
from weft.ptir.types import leaves
from weft.region.ir import Kernel, Module, Tensor
from weft.region.structure import structure_key
from weft.runtime.artifact import (
    Artifact,
    BufferSlot,
    CopyBuffer,
    HostCall,
    KernelCode,
    Launch,
    Step,
    TensorSpec,
)

HostCalls: TypeAlias = Callable[[object, Mapping[int, tuple[int, ...]], Sequence[int]], str]
"""An op that the host carries out, and which results are wanted in which shapes, in words."""
Launcher = Callable[[Kernel], tuple[int, Sequence[str]] | None]
"""The number of a kernel's code, and its tensors in the order of the code's parameters; None where
the host carries the kernel out."""


def kernel_key(
    kernel: Kernel,
    tensors: dict[str, Tensor],
    refs: Mapping[str, MemRef],
    plan: Plan | None,
    *more: str,
) -> str:
    """A digest that is equal for kernels which become the same code."""
    layout = [(ref.strides, ref.noalias) for ref in refs.values()]
    # The header names the kernel the plan was made for; two equal kernels may have two headers.
    plan_text = re.sub(r"header=Header\([^)]*\)", "", repr(plan))
    text = "\0".join([structure_key(kernel, tensors), repr(layout), plan_text, *more])
    return hashlib.sha256(text.encode()).hexdigest()


def make_artifact(
    target: str,
    module: Module,
    buffer_map: BufferMap,
    kernels: Sequence[KernelCode],
    launch: Launcher,
    constants: Mapping[str, NDArray[Any]],
    host_call: HostCalls,
) -> Artifact:
    """The steps of a module over compiled kernels."""
    table = _Slots(module, buffer_map)
    copies: dict[str, list[Copy]] = {}
    for copy in buffer_map.copies:
        copies.setdefault(copy.before, []).append(copy)
    steps: list[Step] = []
    for kernel in module.kernels:
        steps += [
            CopyBuffer(table.slot(c.source), table.slot(c.target), c.bytes, f"copy {c.source}")
            for c in copies.get(kernel.name, ())
        ]
        native = launch(kernel)
        if native is None:
            steps.append(_host_call(kernel, module, table, host_call))
        else:
            number, names = native
            args = tuple(table.slot(name) for name in names)
            steps.append(Launch(number, args, kernel.name))
    places = tuple(table.slot(name) for name in module.outputs)
    held = [name for name, tensor in module.tensors.items() if tensor.role == "constant"]
    return Artifact(
        target,
        tuple(table.slots),
        tuple(kernels),
        tuple(steps),
        tuple(_spec(module.tensors[name]) for name in module.inputs),
        tuple(_spec(module.tensors[name]) for name in module.outputs),
        places,
        buffer_map.arena_bytes,
        tuple(constants[name].tobytes() for name in held),
    )


class _Slots:
    """Entries of the parameter block, numbered as they are asked for."""

    def __init__(self, module: Module, buffer_map: BufferMap) -> None:
        self.module = module
        self.buffer_map = buffer_map
        self.slots: list[BufferSlot] = []
        self._numbers: dict[BufferSlot, int] = {}

    def slot(self, name: str) -> int:
        buffer = self.buffer_map.refs[name].buffer
        made = BufferSlot(buffer.space.value, buffer.number, buffer.offset, buffer.bytes)
        if made not in self._numbers:
            self._numbers[made] = len(self.slots)
            self.slots.append(made)
        return self._numbers[made]


def _host_call(kernel: Kernel, module: Module, table: _Slots, words: HostCalls) -> HostCall:
    call = kernel.opaque
    if call is None:
        raise SpecViolation("OpaqueKernel", f"kernel {kernel.name} says nothing to call")
    pairs = zip(call.results, kernel.outputs, strict=True)
    results = {number: module.tensors[o.tensor] for number, o in pairs if number >= 0}
    shapes = {number: tensor.shape for number, tensor in results.items()}

    def place(name: str) -> tuple[int, TensorSpec]:
        return table.slot(name), _spec(module.tensors[name])

    inputs = tuple(place(name) for name in call.inputs)
    outputs = tuple(place(tensor.name) for tensor in results.values())
    return HostCall(words(call.op, shapes, call.pairs), inputs, outputs, kernel.name)


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tensor.name, tensor.dtype.name, tensor.shape)


def with_declared_types(artifact: Artifact, program: Program) -> Artifact:
    """The artifact with its inputs and outputs as the program has them: complex tensors, which
    kernels have as pairs of floats, under their own dtype."""
    kinds = [leaf for kind in program.main.parameters for leaf in leaves(kind)]
    results = [leaf for kind in program.main.results for leaf in leaves(kind)]
    inputs = list(artifact.inputs)
    for number, kind in enumerate(kinds):
        inputs[number] = replace(inputs[number], dtype=kind.dtype.name, shape=kind.static_shape)
    outputs = tuple(
        replace(spec, dtype=kind.dtype.name, shape=kind.static_shape)
        for spec, kind in zip(artifact.outputs, results, strict=True)
    )
    return replace(artifact, inputs=tuple(inputs), outputs=outputs)
