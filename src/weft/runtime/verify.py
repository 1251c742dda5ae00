"""The verifier of artifacts from disk, before anything is linked: every number names something that
is there, and no step reaches beyond the memory it is given.

What machine code does cannot be checked. It is bound to its key (`cache`): an artifact that is
whole was made by this version of Weft for this program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from weft.foundation.dtypes import BY_NAME
from weft.runtime.artifact import (
    Again,
    Artifact,
    BufferSlot,
    CopyBuffer,
    Enter,
    HostCall,
    Jump,
    JumpUnless,
    KernelCode,
    Launch,
    Leave,
    Reset,
    Step,
    TensorSpec,
)

_RUN_BYTES: Final = 24
"""What a body's random numbers depend on."""


@dataclass(frozen=True)
class Given:
    """What whoever runs a program knows of it: the types of all its inputs and outputs, and the
    bytes of what a run is given and of the states, each by its number."""

    inputs: Sequence[tuple[str, tuple[int, ...]]]
    outputs: Sequence[tuple[str, tuple[int, ...]]]
    data_bytes: Sequence[int]
    state_bytes: Sequence[int]


def is_sound(artifact: Artifact, given: Given) -> bool:
    """Whether an artifact is one of the program that it is given for."""
    return all(_conditions(artifact, given))


def _conditions(artifact: Artifact, given: Given) -> Iterator[bool]:
    """Everything that must hold; what comes later relies on what came before."""
    yield all(map(_is_tensor, (*artifact.inputs, *artifact.outputs)))
    kinds = [(spec.dtype, spec.shape) for spec in artifact.inputs]
    yield kinds[: len(given.inputs)] == list(given.inputs)
    yield [(spec.dtype, spec.shape) for spec in artifact.outputs] == list(given.outputs)
    steps = len(artifact.steps)
    yield 1 <= artifact.bodies <= steps + 1 and 0 <= artifact.counters <= steps
    sizes = _memory_sizes(artifact, given)
    yield all(_is_inside(slot, sizes) for slot in artifact.buffers)
    yield len(artifact.output_slots) == len(artifact.outputs)
    for number, spec in zip(artifact.output_slots, artifact.outputs, strict=True):
        yield _has_bytes(artifact, number, _spec_bytes(spec))
    yield all(map(_is_kernel, artifact.kernels))
    # A copy in a counted loop moves by its step in every turn: how far it reaches follows from the
    # limit of its counter.
    limits = {step.counter: step.limit for step in artifact.steps if isinstance(step, Leave)}
    yield all(_is_step(step, artifact, limits) for step in artifact.steps)


def _memory_sizes(artifact: Artifact, given: Given) -> Mapping[str, Sequence[int]]:
    """The bytes of every piece of memory, by space and number."""
    return {
        "input": given.data_bytes,
        "output": [_spec_bytes(spec) for spec in artifact.outputs],
        "state": given.state_bytes,
        "constant": [len(data) for data in artifact.constants],
        "run": [_RUN_BYTES] * artifact.bodies,
        "arena": [artifact.arena_bytes],
    }


def _is_inside(slot: BufferSlot, sizes: Mapping[str, Sequence[int]]) -> bool:
    found = sizes.get(slot.space, ())
    number = 0 if slot.space == "arena" else slot.number
    if not 0 <= number < len(found):
        return False
    return min(slot.offset, slot.bytes) >= 0 and slot.offset + slot.bytes <= found[number]


def _has_bytes(artifact: Artifact, number: int, size: int) -> bool:
    """Whether a buffer is there and has so many bytes."""
    return 0 <= number < len(artifact.buffers) and 0 <= size <= artifact.buffers[number].bytes


def _is_tensor(spec: TensorSpec) -> bool:
    return spec.dtype in BY_NAME and min(spec.shape, default=0) >= 0


def _spec_bytes(spec: TensorSpec) -> int:
    return prod(spec.shape) * BY_NAME[spec.dtype].storage_bytes


def _is_kernel(kernel: KernelCode) -> bool:
    sizes = (*kernel.grid, *kernel.block, *kernel.cluster)
    rest = (kernel.work_items, kernel.shared_bytes, kernel.workspace_bytes)
    # A table of the buffers of several sets is all that a kernel is given.
    plain = kernel.sets == 1 or not (kernel.tensor_maps or kernel.reports or kernel.workspace_bytes)
    return bool(kernel.symbol) and min(*sizes, kernel.sets) > 0 and min(rest) >= 0 and plain


def _is_step(step: Step, artifact: Artifact, limits: Mapping[int, int]) -> bool:
    match step:
        case Launch():
            return _is_launch(step, artifact)
        case CopyBuffer(source, target, size, _, counter, source_step, target_step):
            turns = limits.get(counter, 0) if source_step or target_step else 1
            return all(
                by >= 0 and _has_bytes(artifact, number, size + by * max(0, turns - 1))
                for number, by in ((source, source_step), (target, target_step))
            ) and (turns > 0 or counter in limits)
        case HostCall(inputs=inputs, outputs=outputs):
            places = (*inputs, *outputs)
            return all(_is_tensor(s) and _has_bytes(artifact, n, _spec_bytes(s)) for n, s in places)
        case JumpUnless(buffer=buffer) if not _has_bytes(artifact, buffer, 1):
            return False
        case Enter(body=body):
            return 0 <= body < artifact.bodies
        case Reset(counter=counter) | Leave(counter=counter) | Again(counter=counter):
            if not 0 <= counter < artifact.counters:
                return False
    if isinstance(step, Jump | JumpUnless | Leave | Again):
        return 0 <= step.target <= len(artifact.steps)
    return True


def _is_launch(launch: Launch, artifact: Artifact) -> bool:
    if not 0 <= launch.kernel < len(artifact.kernels):
        return False
    kernel, count = artifact.kernels[launch.kernel], len(launch.buffers)
    return (
        all(0 <= number < len(artifact.buffers) for number in launch.buffers)
        and all(0 <= place.buffer < count for place in kernel.tensor_maps)
        and len(launch.where) in (0, len(kernel.checks))
        and count % kernel.sets == 0
    )
