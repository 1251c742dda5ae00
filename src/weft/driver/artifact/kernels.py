"""The common part of code generators on the way to an artifact: keys of kernels, buffers as slots,
steps in order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from numpy.typing import NDArray

from weft.driver.artifact.host_kernels import kernel_call, spec_of
from weft.driver.artifact.kernel_facts import moves_nothing
from weft.memory.ir import BufferMap, Copy
from weft.ptir.ir import Program
from weft.ptir.ops.bits import Bitcast
from weft.ptir.types import leaves
from weft.region.exchanges import buckets
from weft.region.ir import Kernel, Module
from weft.runtime.artifact import (
    Again,
    Artifact,
    BufferSlot,
    CopyBuffer,
    HostCall,
    Jump,
    JumpUnless,
    KernelCode,
    Launch,
    Leave,
    Site,
    Step,
    TensorSpec,
)

ALIGNMENT = 128
"""Bytes, as those of `memory`."""


def align_bytes(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass
class StepList:
    """Steps in order; slots are numbered as they are asked for."""

    steps: list[Step] = field(default_factory=list)
    slots: list[BufferSlot] = field(default_factory=list)
    arena: int = 0
    """Bytes of the arena so far."""
    once: int = 0
    """The first steps, which are the same in every turn of a loop around them."""
    _numbers: dict[BufferSlot, int] = field(default_factory=dict)

    @property
    def here(self) -> int:
        """The position of the next step."""
        return len(self.steps)

    def number(self, slot: BufferSlot) -> int:
        if slot not in self._numbers:
            self._numbers[slot] = len(self.slots)
            self.slots.append(slot)
        return self._numbers[slot]

    def append(self, step: Step) -> int:
        """Append a step; its position."""
        self.steps.append(step)
        return len(self.steps) - 1

    def aim(self, position: int, target: int) -> None:
        """Let a jump go somewhere else."""
        step = self.steps[position]
        if isinstance(step, Jump | JumpUnless | Leave | Again):
            self.steps[position] = replace(step, target=target)

    def copy(self, source: BufferSlot, target: BufferSlot, size: int, label: str) -> None:
        """A copy, unless the bytes are where they should be."""
        if size and source != target:
            self.append(CopyBuffer(self.number(source), self.number(target), size, label))


def shift_step(step: Step, numbers: list[int], by: int) -> Step:
    """A step over other slots, in a list in which it stands so much further down."""
    match step:
        case Launch(buffers=buffers):
            return replace(step, buffers=tuple(numbers[n] for n in buffers))
        case CopyBuffer(source=source, target=target):
            return replace(step, source=numbers[source], target=numbers[target])
        case HostCall(inputs=inputs, outputs=outputs):
            return replace(
                step,
                inputs=tuple((numbers[n], spec) for n, spec in inputs),
                outputs=tuple((numbers[n], spec) for n, spec in outputs),
            )
        case JumpUnless(buffer=buffer, target=target):
            return replace(step, buffer=numbers[buffer], target=target + by)
        case Jump(target=target) | Leave(target=target) | Again(target=target):
            return replace(step, target=target + by)
        case _:
            return step


HostCalls: TypeAlias = Callable[[object, Mapping[int, tuple[int, ...]], Sequence[int]], str]
"""An op that the host carries out, and which results are wanted in which shapes, in words."""
Launcher: TypeAlias = Callable[[Kernel], tuple[int, int, Sequence[str], tuple[Site, ...]] | None]
"""The number of a kernel's code, how many kernels a launch of it carries out, the kernel's tensors
in the order of the code's parameters, and which instruction each of its checks belongs to; None
where the host carries the kernel out."""


def body_steps(
    module: Module,
    buffer_map: BufferMap,
    launch: Launcher,
    host_call: HostCalls,
    slot: Callable[[str], BufferSlot],
    expand: Callable[[Kernel, StepList], bool] | None = None,
    hosted: Mapping[str, str] | None = None,
    arena: int = 0,
) -> StepList:
    """The steps of a module over compiled kernels. `expand` writes those of ops that are made of
    steps themselves; `hosted` says why a kernel is left to the host; `arena` is more memory than
    the map has."""
    made = StepList(arena=max(arena, buffer_map.arena_bytes))
    begun: dict[int, list[Launch]] = {}
    copies: dict[str, list[Copy]] = {}
    for copy in buffer_map.copies:
        copies.setdefault(copy.before, []).append(copy)
    for kernel, *others in buckets(module):
        for c in copies.get(kernel.name, ()):
            made.copy(slot(c.source), slot(c.target), c.bytes, f"copy {c.source}")
        if expand is not None and expand(kernel, made):
            continue
        if is_copy(kernel):
            _copy_bytes(kernel, module, made, slot)
            continue
        if not others and moves_nothing(kernel, buffer_map.refs):
            continue
        native = launch(kernel)
        if native is None:
            why = (hosted or {}).get(kernel.name, "it has no machine code")
            calls = [
                _host_call(k, module, lambda n: made.number(slot(n)), host_call, why)
                for k in (kernel, *others)
            ]
            made.append(together(calls, [o.tensor for k in (kernel, *others) for o in k.outputs]))
        else:
            number, sets, names, where = native
            args = tuple(made.number(slot(name)) for name in names)
            parts = [*begun.pop(number, ()), Launch(number, args, kernel.name, where)]
            if len(parts) < sets:
                begun[number] = parts
            else:
                every = tuple(arg for part in parts for arg in part.buffers)
                made.append(replace(parts[0], buffers=every))
    return made


def is_copy(kernel: Kernel) -> bool:
    """Whether all that an op does is done by copying bytes."""
    return kernel.opaque is not None and isinstance(kernel.opaque.op, Bitcast)


def _copy_bytes(
    kernel: Kernel, module: Module, made: StepList, slot: Callable[[str], BufferSlot]
) -> None:
    assert kernel.opaque is not None
    (source,), (output,) = kernel.opaque.inputs, kernel.outputs
    size = module.tensors[source].bytes
    made.copy(slot(source), slot(output.tensor), size, kernel.name)


def slot_of(name: str, buffer_map: BufferMap) -> BufferSlot:
    """The entry of the parameter block that a tensor lies in."""
    buffer = buffer_map.refs[name].buffer
    return BufferSlot(buffer.space.value, buffer.number, buffer.offset, buffer.bytes)


def constants_of(module: Module, data: Mapping[str, NDArray[Any]]) -> list[bytes]:
    """The constants of a module, in the order of their numbers."""
    held = [name for name, tensor in module.tensors.items() if tensor.role == "constant"]
    return [data[name].tobytes() for name in held]


def make_artifact(
    target: str,
    module: Module,
    buffer_map: BufferMap,
    kernels: Sequence[KernelCode],
    steps: StepList,
    constants: Sequence[bytes],
) -> Artifact:
    """A program from its steps."""
    places = tuple(steps.number(slot_of(name, buffer_map)) for name in module.outputs)
    return Artifact(
        target,
        tuple(steps.slots),
        tuple(kernels),
        tuple(steps.steps),
        tuple(spec_of(module.tensors[name]) for name in module.inputs),
        tuple(spec_of(module.tensors[name]) for name in module.outputs),
        places,
        steps.arena,
        tuple(constants),
    )


def _host_call(
    kernel: Kernel, module: Module, slot: Callable[[str], int], words: HostCalls, why: str
) -> HostCall:
    call = kernel.opaque
    if call is None:
        return kernel_call(kernel, module, slot, why)
    pairs = zip(call.results, kernel.outputs, strict=True)
    results = {number: module.tensors[o.tensor] for number, o in pairs if number >= 0}
    shapes = {number: tensor.shape for number, tensor in results.items()}

    def place(name: str) -> tuple[int, TensorSpec]:
        return slot(name), spec_of(module.tensors[name])

    inputs = tuple(place(name) for name in call.inputs)
    outputs = tuple(place(tensor.name) for tensor in results.values())
    return HostCall(words(call.op, shapes, call.pairs), inputs, outputs, kernel.name)


def together(calls: Sequence[HostCall], made: Sequence[str]) -> HostCall:
    """The calls of a bucket as one, which is of the first one's op. Its label stands for what is
    made, in order: by it ranks find out that they would add up different tensors."""
    inputs = tuple(place for call in calls for place in call.inputs)
    outputs = tuple(place for call in calls for place in call.outputs)
    label = calls[0].label
    if len(calls) > 1:
        order = hashlib.sha256(" ".join(made).encode()).hexdigest()[:6]
        label = f"{label} and {len(calls) - 1} more ({order})"
    return replace(calls[0], inputs=inputs, outputs=outputs, label=label)


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
