"""Accumulators of loop nests: stack slots that LLVM turns into registers, one for each unrolled
instance. Instances and vector lanes are combined as trees, always in the same order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from weft.codegen.cpu import ir
from weft.codegen.cpu.code import Code, Val
from weft.codegen.cpu.elements import Elements
from weft.codegen.cpu.formats import compute_type, number_of
from weft.codegen.cpu.index_code import IndexCode
from weft.codegen.cpu.ir import LoopKind
from weft.foundation.dtypes import DType, Kind
from weft.foundation.errors import InternalError

Item = TypeVar("Item")
_IDENTITIES: Final = {"sum": 0.0, "prod": 1.0}
_COMBINE: Final = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
_NARROW: Final = 4
"""Lanes that are combined one by one."""


@dataclass(frozen=True)
class Accumulator:
    """One accumulator: its slots, by the places of the unrolled loops around it."""

    init: ir.Init
    slots: dict[tuple[int, ...], str]
    lanes: int
    unrolled: tuple[str, ...]
    """The variables of the unrolled loops around it."""

    @property
    def dtype(self) -> DType:
        return self.init.dtype


class Accumulators:
    """The accumulators of a routine, by name."""

    def __init__(self, code: Code, elements: Elements, indices: IndexCode) -> None:
        self.code, self.elements, self.indices = code, elements, indices
        self._made: dict[str, Accumulator] = {}

    def __getitem__(self, name: str) -> Accumulator:
        return self._made[name]

    def begin(self, init: ir.Init) -> None:
        lanes = next((n for _, n, kind in init.loops if kind is LoopKind.LANES), 1)
        first = _identity(init.fn, init.dtype) if init.start is None else init.start
        start = number_of(first, init.dtype, lanes)
        unrolled = [(var, n) for var, n, kind in init.loops if kind is LoopKind.UNROLLED]
        slots = {}
        for place in itertools.product(*(range(n) for _, n in unrolled)):
            slots[place] = self.code.alloca(start.type)
            self.code.store(start, slots[place], 4)
        self._made[init.acc] = Accumulator(init, slots, lanes, tuple(var for var, _ in unrolled))

    def _place(self, accumulator: Accumulator) -> list[int | None]:
        """The instance meant here; None for loops that are not around."""
        here = map(self.indices.variables.get, accumulator.unrolled)
        return [place if isinstance(place, int) else None for place in here]

    def _slot(self, accumulator: Accumulator) -> str:
        return accumulator.slots[tuple(index or 0 for index in self._place(accumulator))]

    def held(self, name: str) -> Val:
        """What the instance meant here holds."""
        accumulator = self._made[name]
        scalar = compute_type(accumulator.dtype)
        return self.code.load(scalar, self._slot(accumulator), accumulator.lanes, 4)

    def add(self, name: str, value: Val) -> None:
        old, accumulator = self.held(name), self._made[name]
        more = self.code.spread(value, accumulator.lanes)
        self.code.store(self._combine(accumulator.init, old, more), self._slot(accumulator), 4)

    def assign(self, name: str, value: Val) -> None:
        accumulator = self._made[name]
        spread = self.code.spread(value, accumulator.lanes)
        self.code.store(spread, self._slot(accumulator), 4)

    def _combine(self, init: ir.Init, a: Val, b: Val) -> Val:
        return self.elements.apply(_COMBINE[init.fn], [a, b], init.dtype, init.dtype)

    def total(self, names: tuple[str, ...]) -> Val:
        """All instances and lanes of some accumulators, combined."""
        total: Val | None = None
        for name in names:
            part = self._reduce_instances(self._made[name])
            init = self._made[names[0]].init
            total = part if total is None else self._combine(init, total, part)
        if total is None:
            raise InternalError("a reduction without accumulators")
        return total

    def instances(self, accumulator: Accumulator) -> list[Val]:
        """What the instances over loops that are not around hold."""
        wanted, kind = self._place(accumulator), compute_type(accumulator.dtype)
        slots = (
            [
                slot
                for place, slot in accumulator.slots.items()
                if all(w is None or w == p for w, p in zip(wanted, place, strict=True))
            ]
            if None in wanted
            else [self._slot(accumulator)]
        )
        return [self.code.load(kind, slot, accumulator.lanes, 4) for slot in slots]

    def is_around(self, accumulator: Accumulator) -> bool:
        """Whether the accumulator's lanes are the lanes of a loop around this place."""
        lane_vars = [v for v, _, kind in accumulator.init.loops if kind is LoopKind.LANES]
        return self.indices.lanes is not None and self.indices.lanes.var in lane_vars

    def _reduce_instances(self, accumulator: Accumulator) -> Val:
        """The instances as a tree, then the lanes, likewise."""

        def combine(a: Val, b: Val) -> Val:
            return self._combine(accumulator.init, a, b)

        total = tree(self.instances(accumulator), combine)
        if total.lanes > 1 and not self.is_around(accumulator):
            # Neighbours of a wide vector side by side, as the tree would have them.
            while total.lanes > _NARROW and total.lanes % 2 == 0:
                total = combine(*self.code.apart(total))
            lanes = [self.code.lane(total, i) for i in range(total.lanes)]
            total = tree(lanes, combine)
        return total


def tree(values: list[Item], combine: Callable[[Item, Item], Item]) -> Item:
    """The values combined pairwise, neighbours first: the same order every time."""
    while len(values) > 1:
        # Pairs of pairs: each of n values goes through log2(n) additions.
        pairs = itertools.zip_longest(values[::2], values[1::2])
        values = [a if b is None else combine(a, b) for a, b in pairs]
    return values[0]


def _identity(fn: str, dtype: DType) -> bool | int | float:
    if fn in _IDENTITIES:
        return _IDENTITIES[fn]
    if dtype.kind is Kind.BOOL:
        return fn == "min"
    return dtype.lowest if fn == "max" else dtype.highest
