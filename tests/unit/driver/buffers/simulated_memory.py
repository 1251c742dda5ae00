"""An oracle for buffer plans: a machine whose memory remembers who wrote each byte.

Every element that an instruction computes is a number that was never used before, and every byte of
the memory holds such a number. What a value must hold is tracked apart from the memory, by NumPy on
arrays of these numbers; whenever a value is read, each byte at the place that the plan gives must
hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.driver.buffers import BufferPlan, Role, View
from weft.ptir.ir import Body, ElementRef, Instruction, Operand, Program, Ref
from weft.ptir.literal import TensorLiteral
from weft.ptir.ops.control import Cond, Scan, While
from weft.ptir.ops.elementwise import StopGradient
from weft.ptir.ops.movement import BroadcastTo, Reshape, Slice, Transpose
from weft.ptir.ops.scheduling import Barrier
from weft.ptir.types import TensorType, TupleType, ValueType, leaves

Tags = NDArray[np.int64]
Value = tuple[Tags, ...]
"""What each tensor of a value must hold."""
LOOP_STEPS = 3


class Overwritten(AssertionError):
    """A byte does not hold what the value that lies there must hold."""


class Place:
    """A view at an address: base, strides, and the type."""

    def __init__(self, base: int, view: View, kind: TensorType) -> None:
        self.base, self.view, self.kind = base, view, kind

    def addresses(self) -> Tags:
        where = np.full(self.kind.static_shape, self.base + self.view.offset, np.int64)
        for axis, (dim, stride) in enumerate(
            zip(self.kind.static_shape, self.view.strides, strict=True)
        ):
            steps = (np.arange(dim) * stride).reshape(
                [-1 if a == axis else 1 for a in range(self.kind.rank)]
            )
            where = where + steps
        return where[..., None] + np.arange(self.kind.dtype.storage_bytes)

    @property
    def dense(self) -> bool:
        flat = self.addresses().reshape(-1)
        return bool(np.array_equal(flat, self.start + np.arange(flat.size)))

    @property
    def start(self) -> int:
        return self.base + self.view.offset


class Machine:
    def __init__(self, program: Program, plan: BufferPlan) -> None:
        self.program, self.plan = program, plan
        self.memory: Tags = np.zeros(plan.peak_bytes, np.int64)
        self.used = 0
        self.fixed: list[tuple[Place, Tags]] = []

    def run(self) -> None:
        """Run the entry function; inputs and constants must come out as they went in."""
        main = self.program.main
        kinds = [leaf for kind in main.parameters for leaf in leaves(kind)]
        inputs = [self.outside(kind) for kind in kinds]
        self.body(main, self.plan, 0, inputs)
        for place, tags in self.fixed:
            self.read(place, tags, "at the end")

    # -- memory ----------------------------------------------------------------------------------

    def fresh(self, kind: TensorType) -> Tags:
        first = self.used + 1
        self.used += kind.size
        return np.arange(first, first + kind.size, dtype=np.int64).reshape(kind.static_shape)

    def outside(self, kind: TensorType) -> tuple[Place, Tags]:
        """A tensor that the arena does not hold: an input or a constant."""
        base = len(self.memory)
        self.memory = np.concatenate([self.memory, np.zeros(kind.bytes, np.int64)])
        strides = np.empty(kind.static_shape, kind.dtype.numpy).strides
        place = Place(base, View(0, 0, strides), kind)
        made = (place, self.fresh(kind))
        self.write(*made)
        self.fixed.append(made)
        return made

    def write(self, place: Place, tags: Tags) -> None:
        self.memory[place.addresses()] = np.broadcast_to(
            tags[..., None], (*tags.shape, place.kind.dtype.storage_bytes)
        )

    def read(self, place: Place, tags: Tags, when: str) -> None:
        found = self.memory[place.addresses()]
        if found.shape[:-1] != tags.shape or not np.array_equal(
            found, np.broadcast_to(tags[..., None], found.shape)
        ):
            raise Overwritten(f"{place.kind} at {place.start} {when}")

    # -- bodies ----------------------------------------------------------------------------------

    def body(
        self, body: Body, plan: BufferPlan, arena: int, inputs: Sequence[tuple[Place, Tags]]
    ) -> list[tuple[Place, Tags]]:
        return _Frame(self, body, plan, arena, inputs).run()


class _Frame:
    def __init__(
        self,
        machine: Machine,
        body: Body,
        plan: BufferPlan,
        arena: int,
        inputs: Sequence[tuple[Place, Tags]],
    ) -> None:
        self.machine, self.body, self.plan, self.arena = machine, body, plan, arena
        self.tags: dict[int, Value] = {}
        self.types: dict[int, ValueType] = {}
        self.bases: dict[int, int] = {}
        self.literals: dict[int, Tags] = {}
        rest = list(inputs)
        for place, _ in rest:
            assert place.dense, "a region's argument has gaps"
        self.bases.update({index: place.start for index, (place, _) in enumerate(rest)})
        for value_id, kind in zip(body.parameter_ids, body.parameters, strict=True):
            count = len(list(leaves(kind)))
            self.tags[value_id] = tuple(tags for _, tags in rest[:count])
            self.types[value_id] = kind
            rest = rest[count:]
        for buffer in plan.buffers:
            if buffer.role is Role.CONSTANT:
                assert buffer.literal is not None
                place, tags = machine.outside(buffer.literal.type)
                self.bases[buffer.index], self.literals[buffer.index] = place.start, tags
            elif buffer.in_arena:
                assert buffer.offset is not None
                assert buffer.offset % 64 == 0
                assert buffer.offset + buffer.bytes <= plan.peak_bytes
                self.bases[buffer.index] = arena + buffer.offset

    def run(self) -> list[tuple[Place, Tags]]:
        for position, instruction in enumerate(self.body.body):
            self.step(position, instruction)
        results = []
        spots = iter(self.plan.results)
        for value_id in self.body.result_ids:
            value = self.operand(Ref(value_id))
            for place, tags in value:
                view = next(spots)
                result = Place(self.bases[view.buffer], view, place.kind)
                if view != place.view:  # the last step copies
                    assert self.plan.buffers[view.buffer].first == len(self.body.body)
                    self.machine.read(place, tags, "before the copy of a result")
                    self.machine.write(result, tags)
                results.append((result, tags))
        for place, tags in results:
            self.machine.read(place, tags, f"as a result of {self.body.label}")
        return results

    def operand(self, operand: Operand) -> list[tuple[Place, Tags]]:
        if isinstance(operand, TensorLiteral):
            (view,) = self.plan.views(operand)
            place = Place(self.bases[view.buffer], view, operand.type)
            return [(place, self.literals[view.buffer])]
        kind, tags = self.types[operand.id], self.tags[operand.id]
        if isinstance(operand, ElementRef):
            assert isinstance(kind, TupleType)
            counts = [len(list(leaves(element))) for element in kind.elements]
            before = sum(counts[: operand.index])
            tags = tags[before : before + counts[operand.index]]
            kind = kind.elements[operand.index]
        views = self.plan.views(operand)
        return [
            (Place(self.bases[view.buffer], view, leaf), expected)
            for view, leaf, expected in zip(views, leaves(kind), tags, strict=True)
        ]

    def step(self, position: int, instruction: Instruction) -> None:
        operands = [self.operand(operand) for operand in instruction.operands]
        flat = [pair for operand in operands for pair in operand]
        self.check(flat, f"read by {instruction.summary}")
        kinds = list(leaves(instruction.output))
        places = [
            Place(self.bases[view.buffer], view, kind)
            for view, kind in zip(self.plan.values[instruction.id], kinds, strict=True)
        ]
        if instruction.op.regions:
            tags = self.regions(position, instruction, operands, places)
        else:
            tags = self.computed(instruction, operands, kinds)
            for place, expected in zip(places, tags, strict=True):
                if self.plan.buffers[place.view.buffer].first == position:
                    self.machine.write(place, expected)
        self.tags[instruction.id], self.types[instruction.id] = tags, instruction.output
        self.check(flat, f"after {instruction.summary}")
        self.check(list(zip(places, tags, strict=True)), f"written by {instruction.summary}")

    def check(self, pairs: Sequence[tuple[Place, Tags]], when: str) -> None:
        for place, tags in pairs:
            self.machine.read(place, tags, when)

    def computed(
        self, instruction: Instruction, operands: Any, kinds: Sequence[TensorType]
    ) -> Value:
        op = instruction.op
        kind: Any = kinds[0] if kinds else None
        tags: Any = operands[0][0][1] if operands and operands[0] else None
        match op:
            case StopGradient() | Barrier():
                return (tags,)
            case Reshape():
                return (tags.reshape(kind.static_shape),)
            case Transpose():
                return (tags.transpose(op.perm),)
            case BroadcastTo():
                return (np.broadcast_to(tags, kind.static_shape),)
            case Slice():
                window = zip(op.starts, op.sizes, strict=True)
                return (tags[(..., *(slice(a, a + n) for a, n in window))],)
        if op.name == "constant":
            views = self.plan.values[instruction.id]
            if views[0].buffer in self.literals:
                return (self.literals[views[0].buffer],)
        return tuple(self.machine.fresh(kind) for kind in kinds)

    # -- control flow ----------------------------------------------------------------------------

    def regions(
        self,
        position: int,
        instruction: Instruction,
        operands: Sequence[list[tuple[Place, Tags]]],
        places: Sequence[Place],
    ) -> Value:
        scratch = self.plan.scratch[position]
        assert scratch.offset + scratch.bytes <= self.plan.peak_bytes
        base = self.arena + scratch.offset
        for place in places:
            self.machine.write(place, self.machine.fresh(place.kind))

        def call(index: int, args: Sequence[tuple[Place, Tags]]) -> list[tuple[Place, Tags]]:
            assert scratch.plans[index].peak_bytes <= scratch.bytes
            region = self.machine.program.regions_by_id[instruction.op.regions[index]]
            return self.machine.body(region, scratch.plans[index], base, args)

        flat = [pair for operand in operands for pair in operand]
        match instruction.op:
            case Cond():
                for index in (0, 1):
                    tags = self.move(call(index, flat[1:]), places)
                return tags
            case While():
                tags = self.move(flat, places)
                for step in range(LOOP_STEPS):
                    predicate, *carries = call(0, list(zip(places, tags, strict=True)))
                    self.check([predicate], "the predicate")
                    tags = self.move(carries, places)
                    if step + 1 < LOOP_STEPS:
                        tags = self.move(call(1, list(zip(places, tags, strict=True))), places)
                return tags
            case Scan():
                return self.scan(instruction.op, operands, places, call)
        raise AssertionError(instruction.summary)

    def move(self, sources: Sequence[tuple[Place, Tags]], targets: Sequence[Place]) -> Value:
        """Copy one tensor after the other, as an executor does."""
        for (source, tags), target in zip(sources, targets, strict=True):
            if source.start != target.start or source.view.strides != target.view.strides:
                self.machine.read(source, tags, "moved out of a region")
                self.machine.write(target, tags)
        self.check(
            [(t, tags) for (_, tags), t in zip(sources, targets, strict=True)], "after moving"
        )
        return tuple(tags for _, tags in sources)

    def scan(self, op: Scan, operands: Any, places: Sequence[Place], call: Any) -> Value:
        initial = [pair for operand in operands[: op.carry_count] for pair in operand]
        inputs = [operand[0] for operand in operands[op.carry_count :]]
        count = len(initial)
        held, stacks = places[:count], places[count:]
        tags = self.move(initial, held)
        stacked = [np.zeros(stack.kind.static_shape, np.int64) for stack in stacks]
        for stack, expected in zip(stacks, stacked, strict=True):
            self.machine.write(stack, expected)
        for step in range(inputs[0][0].kind.static_shape[0]):
            slices = [(_row(place, step), t[step]) for place, t in inputs]
            results = call(0, [*zip(held, tags, strict=True), *slices])
            for stack, expected, result in zip(stacks, stacked, results[count:], strict=True):
                expected[step] = result[1]
                self.move([result], [_row(stack, step)])
            tags = self.move(results[:count], held)
        return (*tags, *stacked)


def _row(place: Place, step: int) -> Place:
    view = place.view
    kind = place.kind.with_shape(place.kind.shape[1:])
    inner = View(view.buffer, view.offset + step * view.strides[0], view.strides[1:])
    return Place(place.base, inner, kind)


def simulate(program: Program, plan: BufferPlan) -> None:
    """Raises `Overwritten` where the plan lets a live byte be overwritten."""
    Machine(program, plan).run()
