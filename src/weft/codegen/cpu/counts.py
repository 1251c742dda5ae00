"""Counts of instructions and memory accesses in a loop nest, loop by loop, for the cost model.

A *place* is the body of a serial or parallel loop, with the unrolled and lanes loops inside it. A
value that does not change along a loop belongs to the place outside of it, where LLVM computes it.
What is counted are cycles of a core that starts one vector instruction in each, two multiply-adds,
two loads and a store; how long functions take is `operations_of`, as for a kernel without a plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from weft.codegen.cpu import ir
from weft.codegen.cpu.ir import LoopKind
from weft.codegen.cpu.math import NARROWED
from weft.codegen.cpu.sorting import kept_at_once
from weft.foundation.dtypes import DType
from weft.foundation.fourier_steps import steps_of
from weft.foundation.index_expr import Axis, Expr, FloorDiv, axes_of, axis, constant
from weft.region.cost import PHILOX, operations_of
from weft.target.target import Target

_LATENCY: Final = 4
"""Cycles until a sum can be added to again."""
_STEP: Final = 1
"""Cycles of a step of a loop beside its body."""
_ENTRY: Final = 12
"""Cycles to enter a loop and to leave it: the processor guesses wrong where it ends."""
_FREE: Final = frozenset({"const", "cast", "index"})
_LONG: Final = 8
"""Operations from which on a function is a chain that waits for itself."""
_WAITING: Final = 0.3
"""How much longer such a function takes alone; side by side with others it waits for less."""
_WORDS_A_CYCLE: Final = 256.0
"""Products of words by tiles, of which one instruction takes 16 cycles."""
_TURNED_ROWS: Final = 32
"""Rows that are turned together; each vector of sixteen words is shuffled four times."""
_CONSTANTS: Final = 8
"""Registers for the numbers of a long function, which has two more for each vector at hand."""
_OPERANDS: Final = 4
"""Registers for what is on its way."""
_SPILLED: Final = 1.5
"""Cycles to put a vector away and to take it back."""

Kinds = Mapping[str, LoopKind]
"""The unrolled and lanes loops around a statement."""


@dataclass(frozen=True)
class Access:
    """Memory that a statement touches: its first byte, and how far it moves with each loop."""

    buffer: int
    first: int
    item: int
    steps: tuple[tuple[str, float], ...]
    trips: Mapping[str, float] = field(hash=False, compare=False)


@dataclass(eq=False)
class Place:
    """The body of a loop, or of the routine: how often it runs, and what one run does."""

    loop: ir.For | None = None
    runs: float = 1.0
    trips: float = 1.0
    """Runs each time the loop is entered."""
    arithmetic: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    waits: dict[str, float] = field(default_factory=dict)
    """Cycles that a sum is waited for, by the sum."""
    held: dict[str, float] = field(default_factory=dict)
    """Vectors of a sum that live on from one run to the next."""
    at_hand: float = 0.0
    """Vectors of a long function that are computed side by side."""
    accesses: list[Access] = field(default_factory=list)
    inner: list[Place] = field(default_factory=list)
    sides: set[str] = field(default_factory=set)
    """The unrolled and lanes loops in it."""

    def cycles(self, registers: int) -> float:
        """Of one run, without the loops inside: those of its busiest part."""
        held = sum(self.held.values()) + _OPERANDS
        if self.at_hand:
            held += 2 * self.at_hand + _CONSTANTS
        spilled = _SPILLED * max(0.0, held - registers)
        # Units work side by side, and a sum waits for itself meanwhile.
        busiest = max(self.arithmetic, self.loads / 2, self.stores, *self.waits.values(), 0.0)
        around = _STEP + _ENTRY / self.trips if self.trips > 1 else 0.0
        return busiest + spilled + around

    def every(self) -> Iterator[Place]:
        """This place and all inside it."""
        yield self
        for place in self.inner:
            yield from place.every()

    @property
    def along(self) -> frozenset[str]:
        """The loops inside one run."""
        every = list(self.every())
        inner = [place.loop.var for place in every if place.loop and place is not self]
        return frozenset(inner).union(*(place.sides for place in every))


def count(routine: ir.Routine, target: Target) -> Place:
    """The places of a routine, the outermost with all others inside."""
    return _Counter(routine, target).run()


@dataclass
class _Counter:
    """One walk over a routine. Names that are defined again, in the rest of a loop that was cut,
    are defined alike."""

    routine: ir.Routine
    target: Target
    needs: dict[str, frozenset[str]] = field(default_factory=dict)
    """The loops that a value changes along."""
    sums: dict[str, ir.Init] = field(default_factory=dict)
    trips: dict[str, float] = field(default_factory=dict)
    middles: dict[str, float] = field(default_factory=dict)
    starts: dict[str, Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        stmts = [stmt for stmt, _ in ir.walk(self.routine.body)]
        summed = {stmt.value for stmt in stmts if isinstance(stmt, ir.Accumulate)}
        used = {name for stmt in stmts if isinstance(stmt, ir.Let) for name in stmt.args}
        used |= {stmt.value for stmt in stmts if isinstance(stmt, ir.Store | ir.Assign)}
        self.only_summed = summed - used

    def run(self) -> Place:
        root = Place()
        self._body(self.routine.body, (root,), {})
        return root

    def _body(self, body: Iterable[ir.Stmt], places: tuple[Place, ...], kinds: Kinds) -> None:
        for stmt in body:
            match stmt:
                case ir.For():
                    self._loop(stmt, places, kinds)
                case ir.Load():
                    self._load(stmt, places, kinds)
                case ir.LoadRun():
                    self._load_run(stmt, places, kinds)
                case ir.Let():
                    self._let(stmt, places, kinds)
                case ir.Store():
                    self._store(stmt, places[-1], kinds)
                case ir.Init():
                    self.sums[stmt.acc] = stmt
                case ir.Accumulate():
                    self._accumulate(stmt, places[-1], kinds)
                case ir.Finish():
                    self._finish(stmt, places, kinds)
                case _:
                    self._other(stmt, places, kinds)

    def _loop(self, loop: ir.For, places: tuple[Place, ...], kinds: Kinds) -> None:
        trips = self._enter(loop)
        if loop.kind in (LoopKind.UNROLLED, LoopKind.LANES):
            places[-1].sides.add(loop.var)
            self._body(loop.body, places, {**kinds, loop.var: loop.kind})
        elif trips > 0:
            runs = places[-1].runs * trips * self._copies(frozenset(kinds), kinds)
            place = Place(loop, runs, trips)
            places[-1].inner.append(place)
            self._body(loop.body, (*places, place), kinds)

    def _enter(self, loop: ir.For) -> float:
        """How often a loop runs, where those around it are in their middles."""
        first, stop = (_index_at_middles(end, self.middles) for end in (loop.start, loop.stop))
        if loop.end is not None:
            stop = min(stop, loop.end)
        trips = max(0.0, (stop - first) / loop.step)
        self.trips[loop.var], self.starts[loop.var] = trips, loop.start
        self.middles[loop.var] = (first + max(first, stop - 1)) / 2
        return trips

    # -- statements ------------------------------------------------------------------------------

    def _load(self, load: ir.Load, places: tuple[Place, ...], kinds: Kinds) -> None:
        needs = axes_of(load.address).union(*(axes_of(guard.expr) for guard in load.guards))
        needs = needs.union(*(self._needs(place.value) for place in load.places))
        self.needs[load.name] = needs
        home = _innermost_place(needs, places)
        home.loads += self._accesses(load.buffer, load.address, needs, kinds)
        home.arithmetic += len(load.guards) * self._copies(needs, kinds)
        self._touch(home, load.buffer, load.address)

    def _load_run(self, load: ir.LoadRun, places: tuple[Place, ...], kinds: Kinds) -> None:
        """A vector for each lane, and what turns them round."""
        needs = axes_of(load.address)
        self.needs[load.name] = needs | {load.var}
        home, lanes = _innermost_place(needs, places), self._lanes(needs, kinds)
        home.loads += self._copies(needs, kinds) * lanes
        home.arithmetic += self._copies(needs, kinds) * lanes * math.log2(max(1, lanes))
        self.trips[load.var], self.starts[load.var] = load.count, constant(0)
        home.sides.add(load.var)
        self._touch(home, load.buffer, load.address + axis(load.var))

    def _let(self, let: ir.Let, places: tuple[Place, ...], kinds: Kinds) -> None:
        needs = self._needs(*let.args) | (axes_of(let.index) if let.index else frozenset())
        self.needs[let.name] = needs
        if let.fn in _FREE or (let.fn == "mul" and let.name in self.only_summed):
            return
        home, vectors = _innermost_place(needs, places), self._vectors(needs, kinds, let.dtype)
        each = float(operations_of(NARROWED.get(let.fn, let.fn)))
        if each >= _LONG:
            home.at_hand = max(home.at_hand, vectors)
            each *= 1 + _WAITING / vectors
        home.arithmetic += each * vectors

    def _store(self, store: ir.Store, here: Place, kinds: Kinds) -> None:
        needs = axes_of(store.address) | self._needs(store.value)
        here.stores += self._accesses(store.buffer, store.address, needs, kinds)
        self._touch(here, store.buffer, store.address)

    def _accumulate(self, stmt: ir.Accumulate, here: Place, kinds: Kinds) -> None:
        init = self.sums[stmt.acc]
        vectors = self._vectors(frozenset(kinds), kinds, init.dtype)
        lanes = math.prod(n for _, n, kind in init.loops if kind is LoopKind.LANES)
        held = math.prod(n for _, n, kind in init.loops if kind is not LoopKind.LANES)
        held *= math.ceil(lanes / self.target.lanes(init.dtype))
        here.arithmetic += vectors / 2
        here.waits[stmt.acc] = here.waits.get(stmt.acc, 0.0) + _LATENCY * vectors / held
        here.held[stmt.acc] = held

    def _finish(self, stmt: ir.Finish, places: tuple[Place, ...], kinds: Kinds) -> None:
        init = self.sums[stmt.accs[0]]
        around = frozenset(name for name, _, _ in init.loops if name in kinds)
        self.needs[stmt.name] = around | _loops(places)
        apart = [(n, kind) for name, n, kind in init.loops if name not in kinds]
        lanes = math.prod(n for n, kind in apart if kind is LoopKind.LANES)
        parts = math.prod(n for n, kind in apart if kind is not LoopKind.LANES)
        # Of more lanes than a register has, LLVM takes out one by one.
        whole = lanes <= self.target.lanes(init.dtype)
        steps = len(stmt.accs) * parts - 1 + 2 * (math.log2(lanes) if whole else lanes)
        places[-1].arithmetic += steps * self._vectors(around, kinds, init.dtype)

    def _other(self, stmt: ir.Stmt, places: tuple[Place, ...], kinds: Kinds) -> None:
        here, every = places[-1], frozenset(kinds) | _loops(places)
        copies = self._copies(frozenset(kinds), kinds)
        match stmt:
            case ir.Current():
                self.needs[stmt.name] = every
            case ir.Check():
                self.needs[stmt.name] = self._needs(stmt.x)
                here.arithmetic += copies
            case ir.Words():
                self.needs[stmt.name] = every
                here.arithmetic += PHILOX * copies
            case ir.Merge():
                self.needs.update(dict.fromkeys(stmt.names, _loops(places)))
                here.arithmetic += _LATENCY * len(stmt.combine) * len(stmt.parts)
            case ir.Turn():
                here.arithmetic += _TURNED_ROWS * stmt.words / 4
            case ir.Tiles():
                products = stmt.rows * stmt.columns * stmt.words * stmt.parts**2
                here.arithmetic += products / _WORDS_A_CYCLE
            case ir.Fourier():
                here.arithmetic += _ENTRY * stmt.length * len(steps_of(stmt.length)) / 4
            case ir.Sort():
                kept = kept_at_once(stmt.length, stmt.count) or stmt.length
                steps = stmt.length + kept * (math.log2(max(2, kept)) - 1)
                here.arithmetic += 2 * _ENTRY * steps

    # -- how many --------------------------------------------------------------------------------

    def _needs(self, *names: str) -> frozenset[str]:
        return frozenset[str]().union(*(self.needs.get(name, frozenset()) for name in names))

    def _copies(self, needs: frozenset[str], kinds: Kinds) -> float:
        """How often a statement is written out."""
        unrolled = (n for n, kind in kinds.items() if kind is LoopKind.UNROLLED and n in needs)
        return math.prod(self.trips[name] for name in unrolled)

    def _lanes(self, needs: frozenset[str], kinds: Kinds) -> float:
        names = (n for n, kind in kinds.items() if kind is LoopKind.LANES and n in needs)
        return math.prod(self.trips[name] for name in names)

    def _vectors(self, needs: frozenset[str], kinds: Kinds, dtype: DType) -> float:
        lanes = self._lanes(needs, kinds)
        return self._copies(needs, kinds) * math.ceil(lanes / self.target.lanes(dtype))

    def _accesses(self, buffer: int, address: Expr, needs: frozenset[str], kinds: Kinds) -> float:
        """A vector where lanes are neighbours, one for each lane where they are not."""
        steps = self._steps(address)
        lanes = [n for n, kind in kinds.items() if kind is LoopKind.LANES and n in needs]
        if all(abs(steps.get(name, 0.0)) == 1 for name in lanes):
            return self._vectors(needs, kinds, self.routine.dtype_of(buffer))
        return self._copies(needs, kinds) * self._lanes(needs, kinds)

    def _steps(self, address: Expr) -> dict[str, float]:
        """How far an address moves with each loop, on average; a loop that starts where another one
        says moves with that one too."""
        found: dict[str, float] = {}
        for term, factor in address.terms:
            if isinstance(term, Axis):
                found[term.name] = found.get(term.name, 0.0) + factor
                inside, share = self.starts.get(term.name, constant(0)), float(factor)
            elif isinstance(term, FloorDiv):
                inside, share = term.value, factor / term.divisor
            else:
                continue
            for name, step in self._steps(inside).items():
                found[name] = found.get(name, 0.0) + share * step
        return found

    def _touch(self, place: Place, buffer: int, address: Expr) -> None:
        item = self.routine.dtype_of(buffer).storage_bytes
        moves = self._steps(address).items()
        steps = tuple((name, step * item) for name, step in moves if name in self.trips)
        trips = {name: self.trips[name] for name, _ in steps}
        place.accesses.append(Access(buffer, address.constant * item, item, steps, trips))


def _innermost_place(needs: frozenset[str], places: tuple[Place, ...]) -> Place:
    """Where a value is computed: in the innermost loop that it changes along."""
    return next((p for p in reversed(places) if p.loop and p.loop.var in needs), places[0])


def _loops(places: tuple[Place, ...]) -> frozenset[str]:
    return frozenset(place.loop.var for place in places if place.loop)


def _index_at_middles(value: Expr, middles: Mapping[str, float]) -> float:
    """An index where all loops are in their middles."""
    total = float(value.constant)
    for term, factor in value.terms:
        if isinstance(term, Axis):
            total += factor * middles.get(term.name, 0.0)
        elif isinstance(term, FloorDiv):
            total += factor * (_index_at_middles(term.value, middles) // term.divisor)
    return total
