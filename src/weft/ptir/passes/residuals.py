"""Residuals of the backward part: which forward values are kept, and which are computed again, by a
minimum cut.

Keeping a tensor costs writing and reading it; computing it again costs its instruction, and
whatever that reads must be at hand in turn. The cheapest mixture is a minimum cut. In the graph
each forward instruction is a node behind the source, with the price of running it twice on the edge
between them, and each of its results is a node behind it, with the price of keeping it on the edge.
What an instruction reads and what the backward part reads are edges that may not be cut. Then a
result on the sink's side whose instruction is on the source's side is kept, and an instruction on
the sink's side is run again.

Matrix products, reductions, windows, sorting and loops are never run twice unless the caller forces
it; random instructions never are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from weft.foundation.min_cut import UNCUTTABLE, Network
from weft.ptir.ir import Instruction, Region
from weft.ptir.op import Op
from weft.ptir.ops.constant import Constant
from weft.ptir.ops.elementwise import Cast, Clamp, Compare, ElementwiseBinary, Select, StopGradient
from weft.ptir.ops.indexing import DynamicSlice, Gather, Take
from weft.ptir.ops.movement import BroadcastTo, Iota
from weft.ptir.ops.tuples import MakeTuple
from weft.ptir.slots import Slot, read_slots, slot_type, slots_of
from weft.ptir.types import Symbol, TensorType, ValueType, leaves

TYPICAL_SIZE = 128
"""What a dim counts for whose size is not known."""
BYTE = 16
"""One byte written or read; prices are whole numbers."""
KEEPING = 2 * BYTE
"""Written once, read once."""


@dataclass(frozen=True)
class Division:
    """How a backward part gets what it reads."""

    kept: list[Slot]
    """Forward values that are handed over, parameters included, in the order of definition."""
    again: list[Instruction]
    """Forward instructions that the backward part runs again."""


def byte_count(kind: ValueType) -> int:
    """The bytes of a value; sizes that are not known count as typical ones."""
    return sum(
        math.prod(TYPICAL_SIZE if isinstance(d, Symbol) else d for d in leaf.shape)
        * leaf.dtype.storage_bytes
        for leaf in leaves(kind)
    )


CHEAP = (ElementwiseBinary, Compare, Select, Clamp, Cast, StopGradient)
FREE = (Constant, Iota, BroadcastTo, MakeTuple)
READS = (Take, Gather, DynamicSlice)


@dataclass
class Prices:
    """What running an instruction again costs, in the same measure as keeping its result."""

    regions: Mapping[int, Region]

    def again(self, instruction: Instruction) -> int:
        op, count = instruction.op, byte_count(instruction.output)
        if self.is_random(op) or op.regions:
            return UNCUTTABLE
        if isinstance(op, FREE):
            return 0
        # A sixteenth of what keeping its result costs: such an instruction is computed where its
        # result is read, so that a chain of sixteen of them costs as much as a tensor that is
        # written and read.
        if isinstance(op, CHEAP) or op.family == "movement":
            return count * BYTE // 8
        # Half of what keeping costs: exponentials and the like, and reads at other places.
        if op.elementwise or isinstance(op, READS):
            return count * BYTE
        return UNCUTTABLE

    def is_random(self, op: Op) -> bool:
        """Whether the op draws random numbers, itself or in a region it runs."""
        if op.random:
            return True
        open_ids, seen = list(op.regions), set[int]()
        while open_ids:
            region_id = open_ids.pop()
            if region_id in seen:
                continue
            seen.add(region_id)
            for instruction in self.regions[region_id].body:
                if instruction.op.random:
                    return True
                open_ids.extend(instruction.op.regions)
        return False


@dataclass
class Forward:
    """The part that ran before: its parameters, its instructions, and what each is worth."""

    types: Mapping[int, ValueType]
    """Of parameters and instructions."""
    instructions: Sequence[Instruction]
    parameters: Mapping[Slot, int]
    """The price of handing over each parameter; 0 for those that are at hand anyway."""
    at_hand: Collection[Slot] = ()
    """Values that are kept in any case."""
    hidden: Collection[Slot] = ()
    """Values that must not be kept."""
    forced: Collection[int] = ()
    """Instructions that are run again whatever it costs."""
    once: Collection[int] = ()
    """Instructions that are never run again."""


def divide_forward(forward: Forward, wanted: Iterable[Slot], prices: Prices) -> Division | None:
    """The cheapest way to have `wanted` in the backward part; None where there is no way."""
    return _Division(forward, set(wanted), prices).found()


def with_parts(
    forward: Forward, parts: Sequence[Collection[int]], returned: Iterable[int], prices: Prices
) -> Forward:
    """The same, but of each part, a set of instructions, only what leaves it may be kept: what
    instructions outside of it read, and what is returned. Random numbers are always kept."""
    owner = {value_id: part for part in parts for value_id in part}
    leaving = {value_id for value_id in returned if value_id in owner}
    for instruction in forward.instructions:
        own = owner.get(instruction.id)
        leaving.update(use for use in instruction.uses if owner.get(use, own) is not own)
    drawn = {i.id for i in forward.instructions if prices.is_random(i.op)}
    inside = owner.keys() - drawn - leaving
    made = (i for i in forward.instructions if i.id in inside)
    within = {slot for i in made for slot, _ in slots_of(i.id, i.output)}
    return replace(
        forward,
        hidden={*forward.hidden, *within},
        forced={*forward.forced, *inside},
        once={*forward.once, *drawn, *leaving},
    )


def in_time(
    backward: Sequence[Instruction], again: Iterable[Instruction], results: Iterable[int] = ()
) -> Iterator[Instruction]:
    """The backward part with the instructions that are run again, each right before the first one
    that reads it; the last ones for the values that are returned."""
    waiting = {instruction.id: instruction for instruction in again}
    for reader in backward:
        yield from _due(reader.uses, waiting)
        yield reader
    yield from _due(results, waiting)


def _due(ids: Iterable[int], waiting: dict[int, Instruction]) -> Iterator[Instruction]:
    stack = [(value_id, False) for value_id in reversed(list(ids))]
    while stack:
        value_id, ready = stack.pop()
        instruction = waiting.get(value_id)
        if instruction is None:
            continue
        if ready:
            del waiting[value_id]
            yield instruction
        else:
            stack.append((value_id, True))
            stack.extend((use, False) for use in reversed(list(instruction.uses)))


class _Division:
    def __init__(self, forward: Forward, wanted: set[Slot], prices: Prices) -> None:
        self.forward = forward
        self.wanted = wanted
        self.prices = prices
        self.network = Network()
        self.source, self.sink = self.network.node(), self.network.node()
        self.values: dict[Slot, int] = {}
        self.runs: dict[int, int] = {}

    def found(self) -> Division | None:
        self._connect()
        # Of the cheapest cuts the one with the fewest nodes on the sink's side: where keeping and
        # running again cost the same, it is kept.
        side = self.network.cut(self.source, self.sink)
        if side is None:
            return self._keeping_all()
        again = {value_id for value_id, node in self.runs.items() if node in side}
        kept = {s for s, node in self.values.items() if node in side and s[0] not in again}
        return self._division(kept, again)

    def _connect(self) -> None:
        """Everything that leads to what is wanted, from the last instruction to the first."""
        for slot in self.wanted:
            self.network.edge(self._value(slot), self.sink, UNCUTTABLE)
        for instruction in reversed(self.forward.instructions):
            slots = [slot for slot, _ in slots_of(instruction.id, instruction.output)]
            made = [slot for slot in slots if slot in self.values]
            # Nothing that is wanted depends on it.
            if not made:
                continue
            run = self.runs[instruction.id] = self.network.node()
            self.network.edge(self.source, run, self._cost_of_running(instruction))
            for slot in made:
                self.network.edge(run, self.values[slot], self._cost_of_keeping(slot))
            for operand in instruction.operands:
                for slot in read_slots(operand, self.forward.types):
                    # If the instruction runs again, what it reads must be on the sink's side, too:
                    # kept, or run again in turn.
                    self.network.edge(self._value(slot), run, UNCUTTABLE)

    def _value(self, slot: Slot) -> int:
        if slot not in self.values:
            node = self.values[slot] = self.network.node()
            if slot in self.forward.parameters:
                self.network.edge(self.source, node, self._cost_of_keeping(slot))
        return self.values[slot]

    def _cost_of_running(self, instruction: Instruction) -> int:
        if instruction.id in self.forward.once:
            return UNCUTTABLE
        if instruction.id in self.forward.forced:
            return 0
        return self.prices.again(instruction)

    def _cost_of_keeping(self, slot: Slot) -> int:
        if slot in self.forward.at_hand:
            return 0
        if slot in self.forward.parameters:
            return self.forward.parameters[slot]
        kind = slot_type(slot, self.forward.types)
        if slot in self.forward.hidden or not isinstance(kind, TensorType):
            return UNCUTTABLE
        return byte_count(kind) * KEEPING

    def _keeping_all(self) -> Division | None:
        """Without a cut, everything that the backward part reads is kept, if it may be."""
        if any(self._cost_of_keeping(slot) >= UNCUTTABLE for slot in self.wanted):
            return None
        return self._division(self.wanted, ())

    def _division(self, kept: Collection[Slot], again: Collection[int]) -> Division:
        slots = [
            slot
            for value_id, kind in self.forward.types.items()
            for slot, _ in slots_of(value_id, kind)
            if slot in kept
        ]
        return Division(slots, [i for i in self.forward.instructions if i.id in again])
