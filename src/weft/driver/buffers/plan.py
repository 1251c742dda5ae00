"""Where the values of a static program lie in memory: `plan_buffers`.

The execution that a plan describes. The instructions of a body run in order, and each writes its
results into buffers of their own. A buffer is live from the instruction that writes it to the last
one that reads it through any value, both included; only then may others use its bytes, so an
instruction never writes where it reads. Inputs and constants lie where the caller put them;
everything else lies in one arena whose size is the peak.

Some instructions move nothing. `reshape`, `stop_gradient` and `barrier` are their operand;
`slice`, `transpose` and `broadcast_to` are views of it: an offset, and strides (0 where elements
repeat). They get memory, and copy, where a view will not do:

- a reshape of elements that do not lie in row-major order;
- what leaves the body must be dense: the argument of a region or of a custom call;
- a result must be the whole of a buffer, and not an input's or a constant's. Only a parameter that
  is returned itself stays where it is; `returned_inputs` notes it.

A region has a plan of its own, and its arena is part of the arena of the body that uses it, for as
long as the control-flow instruction runs; its regions take turns and share the space. Loop carries
lie in the buffers of the instruction's own result. After a region has run, its results are copied
there, stacked outputs first, so a region must not return a carry in the place of another: such a
result is copied in the region's last step, which is its body's length.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from weft.driver.buffers.arena import ALIGNMENT, Arena, align_bytes
from weft.driver.buffers.views import MOVES, View, is_dense, move_view, whole_view
from weft.foundation.errors import InternalError, UserError
from weft.ptir.ir import Body, ElementRef, Instruction, Operand, Program, Ref, operand_type
from weft.ptir.literal import TensorLiteral
from weft.ptir.ops.constant import Constant, CustomCall
from weft.ptir.ops.control import Scan, While
from weft.ptir.specialise import is_static
from weft.ptir.types import TensorType, TupleType, ValueType, leaves

__all__ = ["ALIGNMENT", "Buffer", "BufferPlan", "Role", "Scratch", "View", "plan_buffers"]


class Role(enum.Enum):
    """Whose memory a buffer is."""

    INPUT = "input"
    CONSTANT = "constant"
    TEMPORARY = "temporary"
    RESULT = "result"


@dataclass(frozen=True, slots=True)
class Buffer:
    """Some bytes, and from when to when they are in use."""

    index: int
    role: Role
    bytes: int
    first: int
    """Position of the instruction that writes it; -1 for inputs and constants."""
    last: int
    """Position of the last instruction that reads it; the body's length where the caller does."""
    offset: int | None
    """Its place in the arena; None for inputs and constants."""
    literal: TensorLiteral | None = None
    """What a constant holds."""

    @property
    def in_arena(self) -> bool:
        return self.role in (Role.TEMPORARY, Role.RESULT)


@dataclass(frozen=True)
class Scratch:
    """The part of the arena that the regions of one instruction use in turn."""

    offset: int
    bytes: int
    plans: tuple[BufferPlan, ...] = field(repr=False)
    """One for each of the op's regions, in the order of its attributes."""


@dataclass(frozen=True)
class BufferPlan:
    """The buffers of one body."""

    label: str
    buffers: tuple[Buffer, ...]
    """The inputs first, a buffer for each tensor of the parameters."""
    values: Mapping[int, tuple[View, ...]]
    """Where each value lies: a view for each of its tensors."""
    results: tuple[View, ...]
    """Where each tensor of the results lies. It differs from `values` where the last step
    copies."""
    returned_inputs: tuple[tuple[int, int], ...]
    """(result, input) for each result that is an input, counted in tensors."""
    scratch: Mapping[int, Scratch]
    """The space of regions, by the position of the instruction that runs them."""
    peak_bytes: int
    """Size of the arena."""
    live_bytes: int
    """The most bytes of the arena in use at one time: no packing has a lower peak."""
    types: Mapping[int, ValueType] = field(repr=False, compare=False)

    @property
    def total_bytes(self) -> int:
        """What the arena would take if no byte were used twice, but inside regions."""
        own = sum(align_bytes(buffer.bytes) for buffer in self.buffers if buffer.in_arena)
        return own + sum(scratch.bytes for scratch in self.scratch.values())

    @property
    def input_bytes(self) -> int:
        return sum(b.bytes for b in self.buffers if b.role is Role.INPUT)

    @property
    def constant_bytes(self) -> int:
        """Bytes of the literals of this body; those of regions are in their plans."""
        return sum(b.bytes for b in self.buffers if b.role is Role.CONSTANT)

    def views(self, operand: Operand) -> tuple[View, ...]:
        """Where an operand lies: a view for each of its tensors."""
        if isinstance(operand, TensorLiteral):
            return (whole_view(self._constants[operand], operand.type),)
        return _select(operand, self.values, self.types)

    @cached_property
    def _constants(self) -> dict[TensorLiteral, int]:
        return {b.literal: b.index for b in self.buffers if b.literal is not None}

    def __str__(self) -> str:
        lines = [f"{self.label}: peak {self.peak_bytes:,} bytes, {self.total_bytes:,} unshared"]
        for b in self.buffers:
            place = f"at {b.offset}" if b.in_arena else "outside"
            lines.append(f"  #{b.index} {b.role.value} {b.bytes} {place}, live {b.first}..{b.last}")
        for value_id, views in self.values.items():
            spots = (f"#{v.buffer}+{v.offset} strides {list(v.strides)}" for v in views)
            lines.append(f"  %{value_id} = {', '.join(spots)}")
        for position, scratch in self.scratch.items():
            labels = ", ".join(plan.label for plan in scratch.plans)
            lines.append(f"  {labels} at {position}: {scratch.bytes} at {scratch.offset}")
        return "\n".join(lines)


def plan_buffers(program: Program) -> BufferPlan:
    """The buffers of the entry function, and in it those of the regions it runs.

    The program verifies and has no dynamic dims: specialise it first. The plan is a function of
    the program alone.
    """
    if not is_static(program):
        raise UserError("a program with dynamic dims has no buffer plan; specialise it first")
    plans: dict[_Use, BufferPlan] = {}
    for use in _innermost_first(program):
        plans[use] = _Planner(program.regions_by_id[use.region], use.carries, plans).plan()
    return _Planner(program.main, range(0), plans).plan()


# -- regions -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Use:
    """A region, and which of its results become its parameters 0, 1, ... when it runs again."""

    region: int
    carries: range


def _region_uses(instruction: Instruction) -> list[_Use]:
    """The regions of an instruction, in the order of the op's attributes."""
    op, count = instruction.op, len(instruction.operands)
    if isinstance(op, While):
        return [_Use(op.cond_region, range(1, count + 1)), _Use(op.body_region, range(count))]
    if isinstance(op, Scan):
        return [_Use(op.body_region, range(op.carry_count))]
    return [_Use(region, range(0)) for region in op.regions]


def _innermost_first(program: Program) -> list[_Use]:
    """Every region the entry function runs, after those that it runs itself."""
    order: dict[_Use, None] = {}
    stack = [(use, False) for i in program.main.body for use in _region_uses(i)]
    while stack:
        use, leaving = stack.pop()
        if leaving:
            order[use] = None
        elif use not in order:
            stack.append((use, True))
            body = program.regions_by_id[use.region].body
            stack += [(inner, False) for instruction in body for inner in _region_uses(instruction)]
    return list(order)


# -- one body ------------------------------------------------------------------------------------


@dataclass
class _Draft:
    """A buffer whose live range still grows."""

    role: Role
    bytes: int
    first: int
    last: int
    literal: TensorLiteral | None = None
    offset: int | None = None

    @property
    def in_arena(self) -> bool:
        return self.role in (Role.TEMPORARY, Role.RESULT)


class _Planner:
    def __init__(self, body: Body, carries: range, plans: Mapping[_Use, BufferPlan]) -> None:
        self.body = body
        self.end = len(body.body)
        self.carries = carries
        self.plans = plans
        self.drafts: list[_Draft] = []
        self.constants: dict[TensorLiteral, int] = {}
        self.values: dict[int, tuple[View, ...]] = {}
        self.types: dict[int, ValueType] = {}
        self.results: list[View] = []
        self.returned: list[tuple[int, int]] = []
        self.returned_ids = set(body.result_ids)
        self.dense_ids = {
            use
            for instruction in body.body
            if instruction.op.regions or isinstance(instruction.op, CustomCall)
            for use in instruction.uses
        }

    def plan(self) -> BufferPlan:
        for value_id, kind in zip(self.body.parameter_ids, self.body.parameters, strict=True):
            self._define(value_id, kind, Role.INPUT, -1)
        for position, instruction in enumerate(self.body.body):
            self._instruction(position, instruction)
        for index, value_id in enumerate(self.body.result_ids):
            self._result(index, value_id)
        arena = Arena()
        scratch = self._pack(arena)
        return BufferPlan(
            self.body.label,
            tuple(
                Buffer(i, d.role, d.bytes, d.first, d.last, d.offset, d.literal)
                for i, d in enumerate(self.drafts)
            ),
            self.values,
            tuple(self.results),
            tuple(self.returned),
            scratch,
            arena.size,
            arena.most_in_use,
            self.types,
        )

    def _define(self, value_id: int, kind: ValueType, role: Role, first: int) -> None:
        """Give a value memory of its own: a buffer for each tensor."""
        self.types[value_id] = kind
        self.values[value_id] = tuple(self._new(leaf, role, first) for leaf in leaves(kind))

    def _new(self, kind: TensorType, role: Role, first: int) -> View:
        self.drafts.append(_Draft(role, kind.bytes, first, first))
        return whole_view(len(self.drafts) - 1, kind)

    def _constant(self, literal: TensorLiteral) -> View:
        if literal not in self.constants:
            self.constants[literal] = len(self.drafts)
            self.drafts.append(_Draft(Role.CONSTANT, literal.type.bytes, -1, -1, literal))
        return whole_view(self.constants[literal], literal.type)

    def _read(self, operand: Operand, position: int) -> tuple[View, ...]:
        if isinstance(operand, TensorLiteral):
            views: tuple[View, ...] = (self._constant(operand),)
        else:
            views = _select(operand, self.values, self.types)
        for view in views:
            draft = self.drafts[view.buffer]
            draft.last = max(draft.last, position)
        return views

    def _instruction(self, position: int, instruction: Instruction) -> None:
        operands = [self._read(operand, position) for operand in instruction.operands]
        view = self._alias(instruction, operands)
        if view is not None and self._will_do(instruction, view):
            self.types[instruction.id] = instruction.output
            self.values[instruction.id] = (view,)
        else:
            self._define(instruction.id, instruction.output, Role.TEMPORARY, position)

    def _alias(self, instruction: Instruction, operands: Sequence[tuple[View, ...]]) -> View | None:
        """Where the result lies already; None where it has to be computed or moved."""
        op = instruction.op
        if isinstance(op, Constant):
            return self._constant(op.value) if instruction.id not in self.returned_ids else None
        if isinstance(op, MOVES):
            source = _expect_tensor(operand_type(instruction.operands[0], self.types))
            return move_view(op, operands[0][0], source, _expect_tensor(instruction.output))
        return None

    def _will_do(self, instruction: Instruction, view: View) -> bool:
        """Whether the result may stay where it lies."""
        kind, draft = _expect_tensor(instruction.output), self.drafts[view.buffer]
        if instruction.id in self.returned_ids:
            return draft.in_arena and kind.bytes == draft.bytes and is_dense(view, kind)
        return instruction.id not in self.dense_ids or is_dense(view, kind)

    def _result(self, index: int, value_id: int) -> None:
        views = self._read(Ref(value_id), self.end)
        if value_id in self.body.parameter_ids:
            own_place = index not in self.carries or self.carries.index(index) == value_id
            if own_place:
                first = len(self.results)
                self.returned += [(first + i, view.buffer) for i, view in enumerate(views)]
            else:
                kinds = leaves(self.types[value_id])
                views = tuple(self._new(kind, Role.RESULT, self.end) for kind in kinds)
        for view in views:
            if self.drafts[view.buffer].in_arena:
                self.drafts[view.buffer].role = Role.RESULT
        self.results += views

    def _pack(self, arena: Arena) -> dict[int, Scratch]:
        """Place the buffers in the order of the instructions; answers the space of regions."""
        born: dict[int, list[_Draft]] = {}
        dying: dict[int, list[_Draft]] = {}
        for draft in self.drafts:
            if draft.in_arena:
                born.setdefault(draft.first, []).append(draft)
                dying.setdefault(draft.last, []).append(draft)
        scratch: dict[int, Scratch] = {}
        for position in range(self.end + 1):
            for draft in born.get(position, ()):
                draft.offset = arena.take(draft.bytes)
            if position < self.end and self.body.body[position].op.regions:
                plans = tuple(self.plans[use] for use in _region_uses(self.body.body[position]))
                size = max(plan.peak_bytes for plan in plans)
                scratch[position] = Scratch(arena.take(size), size, plans)
                arena.give(scratch[position].offset, size)
            for draft in dying.get(position, ()):
                arena.give(draft.offset or 0, draft.bytes)
        return scratch


def _select(
    operand: Ref | ElementRef,
    values: Mapping[int, tuple[View, ...]],
    types: Mapping[int, ValueType],
) -> tuple[View, ...]:
    """The views of a value, or of one element of a tuple."""
    views, kind = values[operand.id], types[operand.id]
    if isinstance(operand, Ref) or isinstance(kind, TensorType):
        return views
    counts = [sum(1 for _ in leaves(element)) for element in kind.elements]
    before = sum(counts[: operand.index])
    return views[before : before + counts[operand.index]]


def _expect_tensor(kind: ValueType) -> TensorType:
    if isinstance(kind, TupleType):
        raise InternalError(f"the tuple {kind} cannot be moved as one tensor")
    return kind
