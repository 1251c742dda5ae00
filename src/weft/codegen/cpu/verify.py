"""The verifier of loop nests: names are defined before use, dtypes fit, loops can be written out,
and no address leaves its buffer.

    RoutineLoop     bounds, kinds and nesting of loops; how much is written out or repeated
    RoutineName     a value, an accumulator or a variable that is not known where it is used
    RoutineType     operands that a function does not take; accumulators that do not fit a loop
    RoutineMemory   an address outside its buffer, or a store into one that is only read

Code generation makes no routine for which this does not hold; it is for those that somebody edited.
Once it holds, the machine code touches no memory but the routine's own, and ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from weft.codegen.cpu import ir
from weft.codegen.cpu.domain import executed
from weft.codegen.cpu.elements import FUNCTIONS
from weft.codegen.cpu.formats import supported
from weft.codegen.cpu.ir import LoopKind
from weft.codegen.cpu.math import NARROWED
from weft.codegen.cpu.sorting import key_type
from weft.codegen.cpu.text import statement_text
from weft.codegen.cpu.tile_code import EDGE, WORDS
from weft.codegen.cpu.tile_rules import tile_faults
from weft.foundation.dtypes import BF16, F32, F64, I1, SI32, SI64, UI8, UI32, DType
from weft.foundation.errors import Finding, SpecViolation
from weft.foundation.fourier_steps import steps_of
from weft.foundation.functions import BINARY, COMPARISONS, REDUCTIONS, UNARY
from weft.foundation.index_expr import Expr, Guard, always, axes_of, bounds, constant, params_of
from weft.foundation.numeric import is_number_of
from weft.plan.blocks import STACK_BYTES
from weft.poly.sets import Domain, IslBudget, counterexample
from weft.region.ir import Place

MAX_LANES: Final = 64
MAX_WRITTEN: Final = 1 << 15
"""Statements of a routine once its unrolled loops are written out; LLVM takes a second for some
thousand."""
_FAR: Final = 1 << 60
"""Indices up to which 64 bits do not overflow on the way."""
_RULES: Final = ("inside", "nonzero", "nonnegative")
_TILE: Final = (LoopKind.UNROLLED, LoopKind.LANES)
EMPTY: Final[Mapping[str, tuple[int, int]]] = {}


def verify(routine: ir.Routine) -> None:
    """Raise with everything that is wrong with a routine."""
    found = list(findings(routine))
    if found:
        raise SpecViolation.of(found)


def findings(routine: ir.Routine) -> Iterator[Finding]:
    """Everything that is wrong with a routine."""
    checker = _Checker(routine)
    checker.run()
    yield from checker.found


@dataclass(frozen=True)
class _Value:
    """What is known of a name: its dtype, and the tile loops it has an instance for."""

    dtype: DType
    tile: tuple[ir.For, ...] = ()


@dataclass
class _Checker:
    routine: ir.Routine
    found: list[Finding] = field(default_factory=list)
    values: dict[str, _Value] = field(default_factory=dict)
    accumulators: dict[str, ir.Init] = field(default_factory=dict)
    loops: list[ir.For] = field(default_factory=list)
    made: list[set[str]] = field(default_factory=lambda: [set()])
    """Names defined in each of the loops that run, the innermost last: gone where it ends."""
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The range of the variable of each loop that runs."""
    written: int = 0
    """Statements so far, once unrolled loops and lanes are written out."""
    here: ir.Stmt | None = None

    def wrong(self, code: str, why: str, hint: str = "") -> None:
        shown = "" if self.here is None else f": {statement_text(self.here)}"
        self.found.append(Finding(code, f"routine {self.routine.name}{shown}", why, hint))

    def run(self) -> None:
        self._frame()
        if not self.found:
            self._body(self.routine.body)
        if not self.found and self.written > MAX_WRITTEN:
            self.here = None
            why = f"unrolled loops and lanes make {self.written:,} statements; the most are "
            self.wrong("RoutineLoop", f"{why}{MAX_WRITTEN:,}", "use smaller tiles")

    # -- the frame -------------------------------------------------------------------------------

    def _frame(self) -> None:
        routine = self.routine
        for dtype, elements in routine.scratch:
            if not supported(dtype) or elements < 1:
                self.wrong(
                    "RoutineMemory", f"there is no scratch of {elements} elements of {dtype}"
                )
        held = sum(dtype.storage_bytes * elements for dtype, elements in routine.scratch)
        if held > STACK_BYTES:
            why = f"scratch takes {held:,} bytes of a thread's stack; {STACK_BYTES:,} is the most"
            self.wrong("RoutineMemory", why)
        outer = [stmt for stmt in routine.body if isinstance(stmt, ir.For)]
        if len(outer) != len(routine.body) or any(s.kind is not LoopKind.PARALLEL for s in outer):
            self.wrong("RoutineLoop", "a routine is parallel loops over its pieces")
        else:
            self._pieces(outer)

    def _pieces(self, outer: list[ir.For]) -> None:
        at = 0
        for loop in outer:
            if not _is_counted(loop):
                self.wrong("RoutineLoop", "pieces are counted from a number to a number, by ones")
                return
            if loop.start.constant != at:
                self.wrong("RoutineLoop", f"the piece {at} is in no loop, or in two")
            at = loop.stop.constant
        if at != self.routine.pieces:
            why = f"its loops have {at} pieces, but it says {self.routine.pieces}"
            self.wrong("RoutineLoop", why)

    # -- statements ------------------------------------------------------------------------------

    def _body(self, body: Iterable[ir.Stmt]) -> None:
        for stmt in body:
            if self.found:
                return
            self.here = stmt
            self.written += self.times(_TILE)
            if isinstance(stmt, ir.For):
                self._for(stmt)
            else:
                self._statement(stmt)

    def _for(self, loop: ir.For) -> None:
        if any(around.var == loop.var for around in self.loops):
            self.wrong("RoutineLoop", f"the variable {loop.var} is used by a loop around it")
        if loop.step != 1 or (loop.kind is not LoopKind.SERIAL and not _is_counted(loop)):
            self.wrong(
                "RoutineLoop", "loops go by ones; but for serial ones, from 0 or a number up"
            )
        if self.found or not self._all_known((loop.start, loop.stop)):
            return
        if loop.kind is LoopKind.PARALLEL and self.loops:
            self.wrong("RoutineLoop", "a parallel loop stands inside another loop")
        if loop.kind is LoopKind.LANES:
            self._lanes(loop)
        self.loops.append(loop)
        self.spans[loop.var] = loop.span(self.spans)
        self.made.append(set())
        self._body(loop.body)
        self.loops.pop()
        del self.spans[loop.var]
        inside = self.made.pop()
        # Turns that are written out leave their values behind, each with its instance; of a loop
        # that runs nothing is known after it, not even whether it had a turn.
        if loop.kind in _TILE:
            self.made[-1] |= inside
        else:
            for name in inside:
                self.values.pop(name, None)
                self.accumulators.pop(name, None)

    def _lanes(self, loop: ir.For) -> None:
        count = loop.stop.constant
        if loop.start.constant or not 1 <= count <= MAX_LANES or count & (count - 1):
            why = f"lanes are 0..N, N a power of two up to {MAX_LANES}"
            self.wrong("RoutineLoop", why)
        if self._lanes_around is not None:
            self.wrong("RoutineLoop", "lanes stand inside lanes")
        if any(isinstance(stmt, ir.For) for stmt in loop.body):
            self.wrong("RoutineLoop", "a loop stands inside lanes")

    def _statement(self, stmt: ir.Stmt) -> None:
        match stmt:
            case ir.Load():
                self._load(stmt)
            case ir.LoadRun():
                self._load_run(stmt)
            case ir.Prefetch():
                self._prefetch(stmt)
            case ir.Store():
                self._store(stmt)
            case ir.Let():
                self._let(stmt)
            case ir.Check():
                self._check(stmt)
            case ir.Words():
                self._words(stmt)
            case ir.Sort():
                self._sort(stmt)
            case ir.Fourier():
                self._fourier(stmt)
            case ir.Tiles() | ir.Turn():
                self._tile_statement(stmt)
            case ir.Init():
                self._init(stmt)
            case ir.Merge():
                self._merge(stmt)
            case ir.Accumulate() | ir.Assign():
                self._update(stmt)
            case ir.Current():
                if self._accumulator(stmt.acc, held=True):
                    self._define(stmt.name, self.accumulators[stmt.acc].dtype)
            case ir.Finish():
                self._finish(stmt)

    def times(self, kinds: Collection[LoopKind] = tuple(LoopKind)) -> int:
        """How often the loops of some kinds that run repeat what is in them."""
        total = 1
        for loop in self.loops:
            first, last = self.spans[loop.var]
            total *= max(0, last + 1 - first) if loop.kind in kinds else 1
        return total

    # -- names -----------------------------------------------------------------------------------

    @property
    def _tile_loops(self) -> tuple[ir.For, ...]:
        return tuple(loop for loop in self.loops if loop.kind in _TILE)

    @property
    def _lanes_around(self) -> ir.For | None:
        return next((loop for loop in self.loops if loop.kind is LoopKind.LANES), None)

    def _define(self, name: str, dtype: DType, tile: tuple[ir.For, ...] | None = None) -> None:
        if name in self.accumulators:
            self.wrong("RoutineName", f"{name} is an accumulator")
        self.values[name] = _Value(dtype, self._tile_loops if tile is None else tile)
        self.made[-1].add(name)

    def _value(self, name: str) -> DType | None:
        """The dtype of a value; None where it is not known here."""
        known = self.values.get(name)
        if known is None:
            self.wrong("RoutineName", f"{name} is not defined here")
            return None
        around = {loop.var: loop for loop in self._tile_loops}
        for loop in known.tile:
            other = around.get(loop.var)
            if other is None or other.kind is not loop.kind or not _is_loop_within(other, loop):
                self.wrong("RoutineName", f"{name} has no instance here: {loop.var} is not around")
                return None
        return known.dtype

    def _all_known(self, exprs: Iterable[Expr], places: tuple[Place, ...] = ()) -> bool:
        """Whether every variable and param of expressions is known here, and machine numbers hold
        what they come to."""
        ranges = self._ranges(places)
        for expr in exprs:
            unknown = (axes_of(expr) | params_of(expr)) - ranges.keys()
            if unknown:
                self.wrong(
                    "RoutineName", f"{min(unknown)} is neither a loop around here nor a param"
                )
                return False
            if max(map(abs, bounds(expr, ranges))) > _FAR:
                self.wrong("RoutineMemory", f"{expr} leaves the numbers of the machine")
                return False
        return True

    def _ranges(self, places: tuple[Place, ...] = ()) -> dict[str, tuple[int, int]]:
        """The ranges of all variables and params that are known here."""
        found = {p.name: (p.low, p.high) for p in self.routine.params}
        found |= {place.param: (0, place.size - 1) for place in places}
        return {**found, **self.spans}

    # -- memory ----------------------------------------------------------------------------------

    def _buffer(self, number: int) -> int | None:
        """How many elements a buffer or scratch has; None where there is no such buffer."""
        buffers, scratch = self.routine.buffers, self.routine.scratch
        if number < len(buffers):
            return buffers[number].elements
        if number < len(buffers) + len(scratch):
            return scratch[number - len(buffers)][1]
        self.wrong("RoutineMemory", f"there is no buffer {number}")
        return None

    def _inside(
        self,
        address: Expr,
        elements: int,
        guards: tuple[Guard, ...] = (),
        places: tuple[Place, ...] = (),
    ) -> None:
        """An address stays inside its buffer wherever its guards hold."""
        exprs = (address, *(guard.expr for guard in guards))
        if not self._all_known(exprs, places) or not self.times():
            return
        ranges, wanted = self._ranges(places), Guard(address, elements)
        if always(wanted, ranges):
            return
        # Interval arithmetic knows ranges, and not that the last tile ends early: isl is told the
        # loops as they run.
        nest = executed(tuple(self.loops))
        free = tuple((name, *span) for name, span in ranges.items() if name not in self.spans)
        try:
            point = counterexample(Domain(nest.axes, free, (*nest.guards, *guards)), wanted)
        except IslBudget:
            why = f"{address} is not known to stay inside the {elements} elements"
            self.wrong("RoutineMemory", why)
            return
        if point is not None:
            shown = ", ".join(f"{name} = {value}" for name, value in point.items())
            why = f"{address} leaves the {elements} elements of the buffer at {shown}"
            self.wrong("RoutineMemory", why)

    def _places(self, places: tuple[Place, ...]) -> bool:
        for place in places:
            dtype = self._value(place.value)
            if dtype is None:
                return False
            if not dtype.is_integer or place.size < 1:
                self.wrong(
                    "RoutineType", f"{place.value} : {dtype} is not a place below {place.size}"
                )
                return False
        return True

    def _load(self, load: ir.Load) -> None:
        elements = self._buffer(load.buffer)
        if elements is None or not self._places(load.places):
            return
        self._inside(load.address, elements, load.guards, load.places)
        self._all_known(load.point)
        self._fill(load)
        self._define(load.name, self.routine.dtype_of(load.buffer))

    def _fill(self, load: ir.Load | ir.LoadRun) -> None:
        dtype = self.routine.dtype_of(load.buffer)
        if load.guards and (load.fill is None or not is_number_of(load.fill, dtype)):
            self.wrong("RoutineType", f"{load.fill} is not a number of {dtype}")

    def _load_run(self, run: ir.LoadRun) -> None:
        elements = self._buffer(run.buffer)
        if elements is None:
            return
        if not 1 <= run.count <= MAX_WRITTEN or any(loop.var == run.var for loop in self.loops):
            self.wrong(
                "RoutineLoop", f"{run.count} neighbours over {run.var} cannot be loaded here"
            )
            return
        if elements < run.count:
            # Where a guard fails, the first elements are read instead.
            self.wrong("RoutineMemory", f"{run.count} neighbours are more than all {elements}")
            return
        self._inside(run.address, elements - run.count + 1, run.guards)
        self._fill(run)
        kind = LoopKind.UNROLLED
        own = ir.For(run.var, constant(0), constant(run.count), 1, kind, ())
        self._define(run.name, self.routine.dtype_of(run.buffer), (*self._tile_loops, own))

    def _prefetch(self, hint: ir.Prefetch) -> None:
        """A hint may name any place, of a buffer that exists."""
        if self._buffer(hint.buffer) is not None:
            self._all_known((hint.address,))

    def _store(self, store: ir.Store) -> None:
        elements, dtype = self._buffer(store.buffer), self._value(store.value)
        if elements is None or dtype is None or not self._places(store.places):
            return
        buffers = self.routine.buffers
        if store.buffer < len(buffers) and not buffers[store.buffer].written:
            self.wrong("RoutineMemory", f"the buffer {store.buffer} is only read")
        if dtype is not self.routine.dtype_of(store.buffer):
            kind = self.routine.dtype_of(store.buffer)
            self.wrong("RoutineType", f"{store.value} : {dtype} cannot be stored as {kind}")
        self._inside(store.address, elements, store.guards, store.places)
        self._all_known(store.point)

    def _sort(self, sort: ir.Sort) -> None:
        sizes = [self._buffer(number) for number in (sort.x, sort.out, sort.work)]
        if None in sizes or not self._all_known((sort.row, sort.piece)):
            return
        x, out, work = (size or 0 for size in sizes)
        kinds = [self.routine.dtype_of(number) for number in (sort.out, sort.work)]
        if kinds != [SI64, UI8] or not 1 <= sort.count <= sort.length:
            self.wrong("RoutineType", "positions are si64, memory for sorting is ui8")
            return
        key_bytes = int(key_type(self.routine.dtype_of(sort.x))[1:]) // 8
        for expr, length, size in (
            (sort.row, sort.length, x),
            (sort.row, sort.count, out),
            (sort.piece, sort.length * 2 * (key_bytes + 8), work),
        ):
            self._inside(expr, size // length)

    def _fourier(self, stmt: ir.Fourier) -> None:
        numbers = (stmt.x, stmt.out, stmt.work, stmt.roots)
        sizes = [self._buffer(number) for number in numbers]
        if None in sizes or not self._all_known((stmt.row,)):
            return
        x, out, work, roots = (size or 0 for size in sizes)
        kinds = {self.routine.dtype_of(number) for number in numbers}
        steps = steps_of(stmt.length)
        if not steps or len(kinds) != 1 or not kinds <= {F32, F64}:
            self.wrong("RoutineType", "rows of f32 or f64 have transforms, of some lengths")
            return
        if work < 2 * stmt.length or roots < steps[-1].table:
            self.wrong("RoutineMemory", f"{work} and {roots} elements are too few for a transform")
        for size in (x, out):
            self._inside(stmt.row, size // (2 * stmt.length))

    def _tile_statement(self, stmt: ir.Tiles | ir.Turn) -> None:
        for code, why in tile_faults(stmt, self.routine, bool(self._tile_loops)):
            self.wrong(code, why)
        if isinstance(stmt, ir.Turn) and not self.found:
            elements = self._buffer(stmt.target) or 0
            self._inside(stmt.place, elements - EDGE * stmt.words + 1)

    # -- computing -------------------------------------------------------------------------------

    def _let(self, let: ir.Let) -> None:
        kinds = [self._value(name) for name in let.args]
        if None in kinds:
            return
        match let.fn:
            case "const":
                right = let.value is not None and is_number_of(let.value, let.dtype)
            case "index":
                right = let.index is None or self._all_known((let.index,))
            case "cast":
                right = len(kinds) == 1
            case "select":
                right = kinds == [I1, let.dtype, let.dtype]
            case "cut":
                right = (kinds, let.dtype) == ([F32], BF16)
            case "word":
                right = (kinds, let.dtype) in WORDS
            case "dot":
                right = len(kinds) == 3 and kinds[0] is let.dtype and {*kinds} <= {SI32, UI32}
            case fn if fn in COMPARISONS:
                right = len(kinds) == 2 and kinds[0] is kinds[1] and let.dtype is I1
            case fn:
                known = NARROWED.get(fn, fn)
                arity = 1 if known in UNARY else 2 if known in BINARY else 0
                right = arity > 0 and kinds == [let.dtype] * arity
        if not right or let.fn not in FUNCTIONS or not supported(let.dtype):
            shown = ", ".join(map(str, kinds)) or str(let.value)
            self.wrong("RoutineType", f"there is no {let.fn} of ({shown}) in {let.dtype}")
            return
        self._define(let.name, let.dtype)

    def _check(self, check: ir.Check) -> None:
        dtype = self._value(check.x)
        if dtype is None or not self._all_known((check.element,)):
            return
        known = check.rule in _RULES and check.number < len(self.routine.checks)
        if not known or not dtype.is_integer or check.size < 0:
            self.wrong("RoutineType", f"there is no such check of {dtype}")
            return
        self._define(check.name, dtype)

    def _words(self, words: ir.Words) -> None:
        kinds = [self._value(name) for name in (words.seed, words.offset)]
        if None in kinds or not self._all_known((words.element,)):
            return
        if kinds != [SI64, SI64]:
            self.wrong("RoutineType", "a state is two si64")
            return
        self._define(words.name, UI32)

    # -- accumulators ----------------------------------------------------------------------------

    def _init(self, init: ir.Init) -> None:
        if self._tile_loops:
            self.wrong("RoutineLoop", "an accumulator begins outside unrolled loops and lanes")
        lanes = [count for _, count, kind in init.loops if kind is LoopKind.LANES]
        instances = 1
        for _, count, _ in init.loops:
            instances *= count
        if len(lanes) > 1 or not 1 <= instances <= MAX_WRITTEN:
            self.wrong("RoutineLoop", f"an accumulator with {instances} instances")
        if any(not 1 <= n <= MAX_LANES or n & (n - 1) for n in lanes):
            self.wrong("RoutineLoop", f"{lanes[0]} lanes are not a power of two up to {MAX_LANES}")
        folds = init.fn == "carry" and init.start is not None
        if not supported(init.dtype) or not (init.fn in REDUCTIONS or folds):
            self.wrong("RoutineType", f"there is no {init.fn} of {init.dtype}")
        elif init.start is not None and not is_number_of(init.start, init.dtype):
            self.wrong("RoutineType", f"{init.start} is not a number of {init.dtype}")
        # A name that begins as an accumulator is no value any more.
        self.values.pop(init.acc, None)
        self.accumulators[init.acc] = init
        self.made[-1].add(init.acc)

    def _accumulator(self, name: str, *, held: bool = False) -> bool:
        """Whether an accumulator is known here and has an instance for where this is; `held`: one
        for each lane, if it has lanes."""
        init = self.accumulators.get(name)
        if init is None:
            self.wrong("RoutineName", f"there is no accumulator {name} here")
            return False
        around = {loop.var: loop for loop in self._tile_loops}
        for var, count, kind in init.loops:
            loop = around.get(var)
            if loop is None:
                missing = held and kind is LoopKind.LANES and count > 1
            else:
                own = ir.For(var, constant(0), constant(count), 1, kind, ())
                missing = loop.kind is not kind or not _is_loop_within(loop, own)
                missing |= kind is LoopKind.LANES and _trips(loop) != count
            if missing:
                self.wrong("RoutineLoop", f"{name} has no instance here: it has {count} over {var}")
                return False
        return True

    def _fits(self, name: str, init: ir.Init) -> bool:
        """Whether a value can go into an accumulator: of its dtype, and of no lanes but its own."""
        dtype = self._value(name)
        if dtype is None:
            return False
        lanes = {loop.var for loop in self.values[name].tile if loop.kind is LoopKind.LANES}
        own = {var for var, _, kind in init.loops if kind is LoopKind.LANES}
        if dtype is not init.dtype or not lanes <= own:
            self.wrong("RoutineType", f"{name} : {dtype} does not fit the accumulator {init.acc}")
            return False
        return True

    def _update(self, stmt: ir.Accumulate | ir.Assign) -> None:
        if self._accumulator(stmt.acc, held=isinstance(stmt, ir.Assign)):
            init = self.accumulators[stmt.acc]
            self._fits(stmt.value, init)
            if isinstance(stmt, ir.Accumulate) and init.fn not in REDUCTIONS:
                self.wrong("RoutineType", f"{stmt.acc} is assigned, not accumulated")

    def _finish(self, finish: ir.Finish) -> None:
        if not all(self._accumulator(acc) for acc in finish.accs):
            return
        inits = [self.accumulators[acc] for acc in finish.accs]
        if len({(init.fn, init.dtype) for init in inits}) > 1 or inits[0].fn not in REDUCTIONS:
            self.wrong("RoutineType", "accumulators of different kinds are not combined")
            return
        self._define(finish.name, inits[0].dtype)

    def _merge(self, merge: ir.Merge) -> None:
        counts = {len(merge.names), len(merge.carries), len(merge.merged)}
        counts |= {len(part) for part in merge.parts}
        if len(counts) > 1 or not merge.parts:
            self.wrong("RoutineType", "names, carries and parts of a merge are not as many")
            return
        if not all(self._accumulator(acc) for part in merge.parts for acc in part):
            return
        parts = [[self.accumulators[acc] for acc in part] for part in merge.parts]
        dtypes = [init.dtype for init in parts[0]]
        alike = all(init.loops == part[0].loops for part in parts for init in part)
        if not alike or any([init.dtype for init in part] != dtypes for part in parts):
            self.wrong("RoutineType", "the accumulators of a merge are not alike")
            return
        for name, dtype in zip(merge.carries, dtypes, strict=True):
            self._define(f"{name}.a", dtype)
            self._define(f"{name}.b", dtype)
        self._body(merge.combine)
        self.here = merge
        for name, dtype in zip(merge.merged, dtypes, strict=True):
            if self._value(name) not in (dtype, None):
                self.wrong("RoutineType", f"{name} is no {dtype}")
        for name, dtype in zip(merge.names, dtypes, strict=True):
            self._define(name, dtype)


def repetitions(body: Iterable[ir.Stmt], around: Mapping[str, tuple[int, int]] = EMPTY) -> int:
    """How many statements a run carries out, at most."""
    total = 0
    for stmt in body:
        total += 1
        if isinstance(stmt, ir.For):
            first, last = stmt.span(around)
            inner = repetitions(stmt.body, {**around, stmt.var: (first, last)})
            total += max(0, last + 1 - first) * inner
    return total


def _is_counted(loop: ir.For) -> bool:
    numbers = loop.start.is_constant and loop.stop.is_constant and loop.end is None
    return numbers and loop.step == 1 and 0 <= loop.start.constant <= loop.stop.constant


def _trips(loop: ir.For) -> int:
    return loop.stop.constant - loop.start.constant


def _is_loop_within(inner: ir.For, outer: ir.For) -> bool:
    """Whether every iteration of a loop is one of another loop over the same variable."""
    return (
        outer.start.constant <= inner.start.constant and inner.stop.constant <= outer.stop.constant
    )
