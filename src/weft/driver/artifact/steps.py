"""Steps in the making, over the slots of a parameter block."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from weft.runtime.artifact import (
    Again,
    BufferSlot,
    CopyBuffer,
    HostCall,
    Jump,
    JumpUnless,
    Launch,
    Leave,
    Step,
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
