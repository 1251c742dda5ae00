"""Branches and loops as steps of an artifact: the bodies become part of the list of steps,
connected by jumps.

Each body is assembled once, over slots of its own (its parameters, its outputs, its arena), and put
in wherever it is used, with slots of the surroundings in their place. Its memory is a frame behind
the arena of the body around it; the frames of ops that follow one another are the same memory. Loop
carries lie in the buffers of the op's own results, which begin as its operands. After a body has
run, what it made is copied there, unless it is there already; stacked outputs are copied first.

A counted loop of few steps is written out, turn after turn: a turn then reads its slices and the
carries where they lie, and writes what it makes where it belongs, and hardly anything is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from weft.driver.artifact.kernels import ALIGNMENT, StepList, align_bytes, shift_step
from weft.driver.stages.bodies import CompiledBody, Use, carried
from weft.foundation.errors import InternalError
from weft.foundation.records import dataclass
from weft.ptir.ir import Region
from weft.ptir.op import Op
from weft.ptir.ops.control import Cond, Scan, While
from weft.ptir.types import TensorType
from weft.region.ir import Kernel, Module
from weft.runtime.artifact import (
    Again,
    BufferSlot,
    CopyBuffer,
    Enter,
    Jump,
    JumpUnless,
    Launch,
    Leave,
    Reset,
    Site,
    Step,
)


@dataclass(frozen=True)
class AssembledBody:
    """The steps of a body over slots of its own: `input` n, `output` n (by result), `arena`."""

    number: int
    steps: tuple[Step, ...]
    slots: tuple[BufferSlot, ...]
    arena: int
    parameters: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    places: tuple[BufferSlot, ...]
    """Where each result lies: an output, or a parameter that was passed on or updated in place."""
    passed: Mapping[int, int]
    """Results that are parameters, which the body only reads: which ones."""
    once: int = 0
    """The first steps, which make of what stays the same in all turns what does."""

    def keeps(self, number: int) -> bool:
        """Whether a carry is the same in every turn."""
        return self.passed.get(number) == number


def assemble_body(
    number: int, body: CompiledBody, steps: StepList, outputs: Sequence[BufferSlot]
) -> AssembledBody:
    """A body from its steps and the slots of what it computes, which are numbered from 0 on and
    from here on by the result they are."""
    computed = iter(outputs)
    places = [
        BufferSlot("input", body.passed[n], 0, kind.bytes) if n in body.passed else next(computed)
        for n, kind in enumerate(body.results)
    ]
    by_result = {place.number: n for n, place in enumerate(places) if _is_output(place)}

    def renumbered(slot: BufferSlot) -> BufferSlot:
        """Also where it is a part of what is computed: several kernels may write one result."""
        return replace(slot, number=by_result[slot.number]) if _is_output(slot) else slot

    return AssembledBody(
        number,
        tuple(steps.steps),
        tuple(map(renumbered, steps.slots)),
        steps.arena,
        tuple(body.parameters),
        tuple(body.results),
        tuple(map(renumbered, places)),
        body.passed,
        steps.once,
    )


def _is_output(place: BufferSlot) -> bool:
    return place.space == "output"


@dataclass
class ControlFlow:
    """Puts the control-flow ops of bodies into their lists of steps."""

    bodies: Mapping[Use, AssembledBody]
    regions: Mapping[int, Region]
    written_out: int = 0
    """The most steps that the turns of a counted loop may become."""
    counters: int = 0

    def expand(
        self,
        kernel: Kernel,
        module: Module,
        steps: StepList,
        slot: Callable[[str], BufferSlot],
        where: tuple[Site, ...] = (),
    ) -> bool:
        """The steps of a kernel that carries a control-flow op, which errors name by `where`; False
        for any other."""
        call = kernel.opaque
        if call is None or not isinstance(call.op, Op) or not call.op.regions:
            return False
        results = {
            number: slot(output.tensor)
            for number, output in zip(call.results, kernel.outputs, strict=True)
        }
        operands = [slot(name) for name in call.inputs]
        label = f"{kernel.name} ({call.op.mnemonic})"
        site = _Site(self, label, where, steps, operands, results)
        match call.op:
            case Cond():
                site.branch(call.op)
            case While():
                site.loop(call.op)
            case Scan():
                count = carried(self.regions[call.op.body_region], call.op.carry_count)
                length = module.tensors[call.inputs[count]].shape[0]
                site.scan(call.op, count, length)
            case _:
                raise InternalError(f"{call.op.mnemonic} is not control flow")
        steps.arena = max(steps.arena, site.top)
        return True

    def counter(self) -> int:
        self.counters += 1
        return self.counters - 1


class _Site:
    """One control-flow op: where its operands and results lie, and the frame it may use."""

    def __init__(
        self,
        control: ControlFlow,
        label: str,
        where: tuple[Site, ...],
        steps: StepList,
        operands: list[BufferSlot],
        results: dict[int, BufferSlot],
    ) -> None:
        self.control, self.label, self.where, self.steps = control, label, where, steps
        self.operands, self.results = operands, results
        self.top = align_bytes(steps.arena)

    # -- ops -------------------------------------------------------------------------------------

    def branch(self, op: Cond) -> None:
        predicate, *arguments = self.operands
        bodies = [self.control.bodies[Use(region)] for region in op.regions]
        targets = {n: self._result(n, kind) for n, kind in enumerate(bodies[0].results)}
        frame = self.top
        flag = self.steps.number(predicate)
        skip = self.steps.append(JumpUnless(flag, 0, self.label))
        self.begin(bodies[0], arguments, frame)
        self.put(bodies[0], arguments, frame, targets)
        end = self.steps.append(Jump(0, self.label))
        self.steps.aim(skip, self.steps.here)
        self.begin(bodies[1], arguments, frame)
        self.put(bodies[1], arguments, frame, targets)
        self.steps.aim(end, self.steps.here)

    def loop(self, op: While) -> None:
        cond = self.control.bodies[Use(op.cond_region)]
        body = self.control.bodies[Use(op.body_region, len(self.operands))]
        carries = self._carries(body.parameters)
        flag = self.memory(1)
        frame = self.top
        # A condition may change what the body passes on.
        stays = all(cond.passed.get(n + 1) == n for n in range(len(carries)) if body.keeps(n))
        if stays:
            self.begin(body, carries, frame)
        head = self.steps.here
        # What all turns have in common stays while the condition is computed.
        place = align_bytes(frame + body.arena) if body.once else frame
        self.begin(cond, carries, place)
        made = self.put(cond, carries, place)
        self.steps.copy(made[0], flag, 1, self.label)
        self.settle(carries, made[1:], body.parameters)
        leave = self.steps.append(JumpUnless(self.steps.number(flag), 0, self.label))
        if not stays:
            self.begin(body, carries, frame)
        self.settle(carries, self.put(body, carries, frame), body.parameters)
        self.steps.append(Jump(head, self.label))
        self.steps.aim(leave, self.steps.here)

    def scan(self, op: Scan, count: int, length: int) -> None:
        """`count` carries, then inputs of which each turn sees one slice."""
        body = self.control.bodies[Use(op.body_region, count)]
        carries = self._carries(body.parameters[:count], body)
        if length * (len(body.steps) + len(body.results)) <= self.control.written_out:
            _WrittenOut(self, body, carries).run(length)
            return
        slices = [self.memory(kind.bytes) for kind in body.parameters[count:]]
        frame = self.top
        self.begin(body, [*carries, *slices], frame)
        counter = self.control.counter()
        self.steps.append(Reset(counter, self.label))
        head = self.steps.append(Leave(counter, length, 0, self.label))
        for source, target in zip(self.operands[count:], slices, strict=True):
            self._move(source, target, target.bytes, counter, source_step=target.bytes)
        made = self.put(body, [*carries, *slices], frame)
        for n, kind in enumerate(body.results[count:], count):
            if n in self.results:
                self._move(made[n], self.results[n], kind.bytes, counter, target_step=kind.bytes)
        self.settle(carries, made[:count], body.parameters[:count])
        self.steps.append(Again(counter, head, self.label))
        self.steps.aim(head, self.steps.here)

    # -- memory ----------------------------------------------------------------------------------

    def memory(self, size: int) -> BufferSlot:
        """Memory of the frame that nothing else of the op uses."""
        found = BufferSlot("arena", 0, self.top, size)
        self.top = align_bytes(self.top + max(size, 1))
        return found

    def _result(self, number: int, kind: TensorType) -> BufferSlot:
        """Where a result goes, also one that nobody reads."""
        if number not in self.results:
            self.results[number] = self.memory(kind.bytes)
        return self.results[number]

    def _carries(
        self, kinds: Sequence[TensorType], body: AssembledBody | None = None
    ) -> list[BufferSlot]:
        """The results that a loop carries, holding its operands; where the body of a counted loop
        keeps one that nobody reads, the operand itself."""
        found = []
        for number, kind in enumerate(kinds):
            begun = number in self.results
            if body is not None and body.keeps(number) and not begun:
                found.append(self.operands[number])
                continue
            found.append(self._result(number, kind))
            if not begun:
                self.steps.copy(self.operands[number], found[-1], kind.bytes, self.label)
        return found

    def _move(
        self,
        source: BufferSlot,
        target: BufferSlot,
        size: int,
        counter: int,
        source_step: int = 0,
        target_step: int = 0,
    ) -> None:
        """A copy of which one end moves with the turns of a loop."""
        if size:
            ends = self.steps.number(source), self.steps.number(target)
            step = CopyBuffer(*ends, size, self.label, counter, source_step, target_step)
            self.steps.append(step)

    def settle(
        self, carries: Sequence[BufferSlot], made: Sequence[BufferSlot], kinds: Sequence[TensorType]
    ) -> None:
        """New carries for old ones, all at once: what lies in a carry that is overwritten is put
        aside first."""
        moves = [
            (source, target, kind.bytes)
            for source, target, kind in zip(made, carries, kinds, strict=True)
            if source != target
        ]
        overwritten = {target for _, target, _ in moves}
        aside: dict[BufferSlot, BufferSlot] = {}
        for source, _, size in moves:
            if source in overwritten and source not in aside:
                aside[source] = self.memory(size)
                self.steps.copy(source, aside[source], size, self.label)
        for source, target, size in moves:
            self.steps.copy(aside.get(source, source), target, size, self.label)

    # -- bodies ----------------------------------------------------------------------------------

    def begin(self, body: AssembledBody, inputs: Sequence[BufferSlot], frame: int) -> None:
        """The steps of a body that all turns have in common; its memory is from `frame` on."""
        for step in body.steps[: body.once]:
            if not isinstance(step, Launch):
                raise InternalError(f"{self.label}: what turns have in common is kernels")
            slots = [_slot_outside(body.slots[n], inputs, {}, frame) for n in step.buffers]
            self.steps.append(replace(step, buffers=tuple(map(self.steps.number, slots))))

    def put(
        self,
        body: AssembledBody,
        inputs: Sequence[BufferSlot],
        frame: int,
        targets: Mapping[int, BufferSlot] | None = None,
    ) -> list[BufferSlot]:
        """The steps of a body, with its memory from `frame` on; where its results then are: in
        `targets`, by result, or wherever it makes them."""
        targets = targets or {}
        outputs = self._outputs(body, frame, targets)
        slots = [_slot_outside(slot, inputs, outputs, frame) for slot in body.slots]
        self.steps.append(Enter(body.number, self.label, self.where))
        numbers = [self.steps.number(slot) for slot in slots]
        by = self.steps.here - body.once
        for step in body.steps[body.once :]:
            self.steps.append(shift_step(step, numbers, by))
        made = [_slot_outside(place, inputs, outputs, frame) for place in body.places]
        for n, target in targets.items():
            self.steps.copy(made[n], target, body.results[n].bytes, self.label)
            made[n] = target
        return made

    def _outputs(
        self, body: AssembledBody, frame: int, targets: Mapping[int, BufferSlot]
    ) -> dict[int, BufferSlot]:
        """The memory of what a body computes, by result."""
        end = align_bytes(frame + body.arena)
        found = {}
        for n, place in enumerate(body.places):
            if _is_output(place) and n in targets:
                found[n] = targets[n]
            elif _is_output(place):
                found[n] = BufferSlot("arena", 0, end, place.bytes)
                end = align_bytes(end + max(place.bytes, 1))
        self.top = max(self.top, end)
        return found


class _WrittenOut:
    """The turns of a counted loop, one after the other.

    A scanned input is read, and a stacked output written, where its stack has it. What a turn makes
    of a carry goes to memory that no carry lies in, and the next turn reads it there; a carry that
    is stacked as a turn finds it goes to the stack right away. No two carries share memory: a body
    may overwrite those that it does not pass on.
    """

    def __init__(self, site: _Site, body: AssembledBody, carries: list[BufferSlot]) -> None:
        self.site, self.body, self.carries = site, body, carries
        self.count = count = len(carries)
        self.slices = [
            None if _is_aligned(kind) else site.memory(kind.bytes)
            for kind in body.parameters[count:]
        ]
        """Memory for slices that kernels could not read where they lie."""
        self.spare = {
            n: [carries[n], site.memory(body.results[n].bytes)]
            for n in range(count)
            if not body.keeps(n)
        }
        """Memory of a carry, all of it alike."""
        self.stacked = {
            body.passed[n]: n
            for n in range(len(body.results) - 1, count - 1, -1)
            if n in site.results
            and body.passed.get(n, count) < count
            and _is_aligned(body.results[n])
        }
        """Carries that are stacked as a turn finds them: by which result."""

    def run(self, length: int) -> None:
        site, body, count = self.site, self.body, self.count
        held, frame = self.carries, site.top
        site.begin(body, held, frame)
        for turn in range(length):
            slices = [self._slice(n, turn) for n in range(count, len(body.parameters))]
            targets = self._targets(held, turn, last=turn + 1 == length)
            made = site.put(body, [*held, *slices], frame, targets)
            for n in range(count, len(body.results)):
                if n in site.results:
                    stack = self._piece(site.results[n], body.results[n], turn)
                    site.steps.copy(made[n], stack, stack.bytes, site.label)
            held = made[:count]
        site.settle(self.carries, held, body.parameters[:count])

    def _slice(self, number: int, turn: int) -> BufferSlot:
        """A scanned input as one turn reads it."""
        site, own = self.site, self.slices[number - self.count]
        piece = self._piece(site.operands[number], self.body.parameters[number], turn)
        if own is None:
            return piece
        site.steps.copy(piece, own, piece.bytes, site.label)
        return own

    def _piece(self, stack: BufferSlot, kind: TensorType, turn: int) -> BufferSlot:
        return replace(stack, offset=stack.offset + turn * kind.bytes, bytes=kind.bytes)

    def _targets(
        self, held: Sequence[BufferSlot], turn: int, *, last: bool
    ) -> dict[int, BufferSlot]:
        """Where a turn that finds the carries somewhere leaves its results; it leaves the others
        where it makes them."""
        site, body = self.site, self.body
        found = {
            n: self._piece(site.results[n], kind, turn)
            for n, kind in enumerate(body.results)
            if n >= self.count
            and n in site.results
            and _is_output(body.places[n])
            and _is_aligned(kind)
        }
        taken = set[BufferSlot]()
        for n, spare in self.spare.items():
            place = body.places[n]
            updated = place.space == "input" and n not in body.passed and place not in taken
            taken.add(place)
            if updated:
                continue
            if n in self.stacked and not last:
                found[n] = self._piece(site.results[self.stacked[n]], body.results[n], turn + 1)
                continue
            free = next((slot for slot in spare if slot not in held), None)
            if free is None:
                free = site.memory(body.results[n].bytes)
                spare.append(free)
            found[n] = free
        return found


def _is_aligned(kind: TensorType) -> bool:
    """Whether each piece of a stack lies as kernels expect their tensors to."""
    return kind.bytes % ALIGNMENT == 0


def _slot_outside(
    slot: BufferSlot, inputs: Sequence[BufferSlot], outputs: Mapping[int, BufferSlot], frame: int
) -> BufferSlot:
    """A slot of a body as one of the body around it."""
    match slot.space:
        case "input":
            return _slot_within(inputs[slot.number], slot)
        case "output":
            return _slot_within(outputs[slot.number], slot)
        case "arena":
            return replace(slot, offset=slot.offset + frame)
        case _:
            return slot


def _slot_within(whole: BufferSlot, part: BufferSlot) -> BufferSlot:
    """Part of a parameter or a result, in the memory that this one has."""
    if not part.offset:
        return whole
    return replace(whole, offset=whole.offset + part.offset, bytes=part.bytes)
