"""Branches and loops as steps: the bodies of control-flow ops put into the list of the body around
them, entered and connected by jumps.

Each body is assembled once into steps over slots of its own (its parameters, its outputs, its arena)
and put in wherever it is used, with slots of the surroundings in their place. Its memory is a frame
behind the arena of the body around it; the frames of ops that follow one another share it. Loop
carries lie in the buffers of the op's own results. After a body has run, what it made is copied
there, unless it is there already; stacked outputs are copied first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from weft.driver.bodies import CompiledBody, Use
from weft.foundation.dims import static
from weft.foundation.errors import InternalError
from weft.ptir.op import Op
from weft.ptir.ops.control import Cond, Scan, While
from weft.ptir.types import TensorType
from weft.region.ir import Kernel
from weft.runtime.artifact import (
    Again,
    BufferSlot,
    CopyBuffer,
    Enter,
    HostCall,
    Jump,
    JumpUnless,
    Launch,
    Leave,
    Reset,
    Step,
)

ALIGNMENT = 128
Slots: TypeAlias = Sequence[BufferSlot]


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass
class StepList:
    """Steps in the making, over numbered slots."""

    steps: list[Step] = field(default_factory=list)
    slots: list[BufferSlot] = field(default_factory=list)
    arena: int = 0
    """Bytes of the arena, frames included."""
    _numbers: dict[BufferSlot, int] = field(default_factory=dict)

    def number(self, slot: BufferSlot) -> int:
        if slot not in self._numbers:
            self._numbers[slot] = len(self.slots)
            self.slots.append(slot)
        return self._numbers[slot]

    def copy(
        self, source: BufferSlot, target: BufferSlot, size: int, label: str, **steps: int
    ) -> None:
        """A copy, unless the bytes are where they should be."""
        if size and (source != target or steps):
            here, there = self.number(source), self.number(target)
            self.steps.append(CopyBuffer(here, there, size, label, **steps))


@dataclass(frozen=True)
class AssembledBody:
    """The steps of a body over slots of its own: `input` n, `output` n, `arena`."""

    number: int
    steps: tuple[Step, ...]
    slots: tuple[BufferSlot, ...]
    arena: int
    parameters: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    places: tuple[BufferSlot, ...]
    """Where each result lies."""

    @property
    def outputs(self) -> list[int]:
        """The results, by number, that need memory: those that no parameter's buffer holds."""
        return [n for n, place in enumerate(self.places) if place.space == "output"]


def assembled(number: int, body: CompiledBody, steps: StepList, outputs: Slots) -> AssembledBody:
    """A body from its steps and the slots of what it computes."""
    computed = iter(outputs)
    places = []
    for n, kind in enumerate(body.results):
        if n in body.passed:
            size = kind.bytes
            places.append(BufferSlot("input", body.passed[n], 0, size))
        else:
            places.append(next(computed))
    # Outputs are numbered by the computed results; from here on by all of them.
    renumbered = {place: replace(place, number=n) for n, place in enumerate(places)
                  if place.space == "output"}  # fmt: skip
    return AssembledBody(
        number,
        tuple(steps.steps),
        tuple(renumbered.get(slot, slot) for slot in steps.slots),
        steps.arena,
        tuple(body.parameters),
        tuple(body.results),
        tuple(renumbered.get(place, place) for place in places),
    )


class ControlFlow:
    """Puts the control-flow ops of one body into its list of steps."""

    def __init__(self, bodies: dict[Use, AssembledBody], counters: Callable[[], int]) -> None:
        self.bodies = bodies
        self.new_counter = counters

    def expand(self, kernel: Kernel, steps: StepList, slot: Callable[[str], BufferSlot]) -> bool:
        """The steps of a kernel that carries a control-flow op; False for any other."""
        call = kernel.opaque
        if call is None or not isinstance(call.op, Op) or not call.op.regions:
            return False
        operands = [slot(name) for name in call.inputs]
        pairs = zip(call.results, kernel.outputs, strict=True)
        results = {number: slot(output.tensor) for number, output in pairs}
        site = _Site(self, kernel.name, steps, operands, results, aligned(steps.arena))
        match call.op:
            case Cond():
                site.branch(call.op)
            case While():
                site.loop(call.op)
            case Scan():
                site.scan(call.op)
            case _:
                raise InternalError(f"{call.op.mnemonic} is no control flow")
        steps.arena = max(steps.arena, site.top)
        return True


@dataclass
class _Site:
    """One control-flow op: where its operands and results lie, and the frame it may use."""

    control: ControlFlow
    label: str
    steps: StepList
    operands: list[BufferSlot]
    results: dict[int, BufferSlot]
    bottom: int
    top: int = 0

    def __post_init__(self) -> None:
        self.top = self.bottom

    def _memory(self, size: int) -> BufferSlot:
        """Memory of the frame that nothing else of the op uses."""
        found = BufferSlot("arena", 0, self.top, size)
        self.top = aligned(self.top + max(size, 1))
        return found

    def _result(self, number: int, kind: TensorType) -> BufferSlot:
        """Where a result goes, also one that nobody reads."""
        if number not in self.results:
            self.results[number] = self._memory(kind.bytes)
        return self.results[number]

    def _step(self, step: Step) -> int:
        """Append a step; its position."""
        self.steps.steps.append(step)
        return len(self.steps.steps) - 1

    @property
    def _here(self) -> int:
        return len(self.steps.steps)

    # -- ops -------------------------------------------------------------------------------------

    def branch(self, op: Cond) -> None:
        predicate, *arguments = self.operands
        bodies = [self.control.bodies[Use(region)] for region in op.regions]
        targets = [self._result(n, kind) for n, kind in enumerate(bodies[0].results)]
        frame = self.top
        skip = self._step(JumpUnless(self.steps.number(predicate), 0, self.label))
        ends = []
        for body in bodies:
            self._put(body, arguments, dict(enumerate(targets)), frame)
            ends.append(self._step(Jump(0, self.label)))
        self._aim(skip, ends[0] + 1)
        for end in ends:
            self._aim(end, self._here)

    def loop(self, op: While) -> None:
        count = len(self.operands)
        cond = self.control.bodies[Use(op.cond_region)]
        body = self.control.bodies[Use(op.body_region, count)]
        carries = self._carries(body.parameters)
        frame = self.top
        head = self._here
        made = self._put(cond, carries, {}, frame)
        flag = self._memory(1) if made[0] in carries else made[0]
        self.steps.copy(made[0], flag, 1, self.label)
        self._replace(carries, made[1:], body.parameters)
        leave = self._step(JumpUnless(self.steps.number(flag), 0, self.label))
        self._replace(carries, self._put(body, carries, {}, frame), body.parameters)
        self._step(Jump(head, self.label))
        self._aim(leave, self._here)

    def scan(self, op: Scan) -> None:
        use = next(u for u in self.control.bodies if u.region == op.body_region and u.carries == self._carried(op))
        body = self.control.bodies[use]
        count = use.carries
        carries = self._carries(body.parameters[:count])
        slices = [self._memory(kind.bytes) for kind in body.parameters[count:]]
        length = self._length(body, count)
        counter = self.control.new_counter()
        self._step(Reset(counter, self.label))
        head = self._step(Leave(counter, length, 0, self.label))
        for source, target, kind in zip(
            self.operands[count:], slices, body.parameters[count:], strict=True
        ):
            self.steps.copy(source, target, kind.bytes, self.label, counter=counter, source_step=kind.bytes)
        made = self._put(body, [*carries, *slices], {}, self.top)
        for n, kind in enumerate(body.results[count:], count):
            if n in self.results:
                self.steps.copy(
                    made[n], self.results[n], kind.bytes, self.label,
                    counter=counter, target_step=kind.bytes,
                )  # fmt: skip
        self._replace(carries, made[:count], body.parameters[:count])
        self._step(Again(counter, head, self.label))
        self._aim(head, self._here)

    def _carried(self, op: Scan) -> int:
        raise NotImplementedError

    def _length(self, body: AssembledBody, count: int) -> int:
        raise NotImplementedError
