"""Printing a loop nest as LLVM IR text.

A routine becomes `void name(ptr args, ptr error, i64 first, i64 last)`: `args` is a table of buffer
pointers, and the pieces `first .. last - 1` of its parallel loops are carried out. Unrolled loops
and lanes are written out here; accumulators are stack slots that LLVM turns into registers. Names
in the text are ours alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from weft.codegen.cpu import ir
from weft.codegen.cpu.accumulators import Accumulators, tree
from weft.codegen.cpu.code import RARE, Code, Val, multiples, number
from weft.codegen.cpu.edges import across_edges, tile_of, window_of, written_out
from weft.codegen.cpu.elements import Elements
from weft.codegen.cpu.formats import compute_type, number_of, storage_type
from weft.codegen.cpu.fourier import transform_row
from weft.codegen.cpu.index_code import IndexCode, Lanes, Loads
from weft.codegen.cpu.ir import LoopKind
from weft.codegen.cpu.long_routines import STOP_WORD, in_turn, looks_of, parts_of
from weft.codegen.cpu.philox import philox_blocks, philox_words
from weft.codegen.cpu.reports import REPORT_BROKEN
from weft.codegen.cpu.sorting import Items, sort_key, sorted_row
from weft.codegen.cpu.stores import write_store
from weft.codegen.cpu.tile_code import signs_of, tiles_function, turn_function
from weft.codegen.cpu.transposing import transposed
from weft.foundation.dtypes import SI64, UI32, DType
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import Expr, bounds, constant
from weft.foundation.whole_ops import key_bytes
from weft.region.ir import Place

_Carries: TypeAlias = tuple[Val, ...]
MOST_COPIES = 8
"""How many calls of one function are replaced by copies of it."""
MOST_COPIED_LINES = 64
"""How long a function may be that is copied to more than one place."""
_ARGUMENTS = "ptr noalias %args, ptr noalias %error, i64 %first, i64 %last"
_HALT = "halt"
"""The end of a routine that was told to stop."""


def emit_module(
    routines: list[ir.Routine], triple: str = "", features: frozenset[str] = frozenset()
) -> str:
    """The LLVM IR of several routines; instructions that not every machine has are used where
    `features` names them."""
    declared: dict[str, str] = {}
    shared: dict[str, str] = {}
    functions = []
    for routine in routines:
        looks, parts = looks_of(routine), parts_of(routine)
        for part in parts or [routine]:
            emitter = _Emitter(part, features, looks)
            emitter.code.functions = shared
            functions.append(emitter.function("internal " if parts else ""))
            declared.update(emitter.code.declared)
        if parts:
            functions.append(in_turn(routine.name, parts, _ARGUMENTS))
    head = [f'target triple = "{triple}"'] if triple else []
    text = "\n".join([*shared.values(), *functions])
    called = [_mark_inlining(name, body, text) for name, body in shared.items()]
    nodes = ["!0 = !{}", f'!{RARE} = !{{!"branch_weights", i32 1, i32 4000}}']
    return "\n".join([*head, *sorted(declared.values()), *called, *functions, *nodes, ""])


def statements_by_line(
    routine: ir.Routine, features: frozenset[str] = frozenset()
) -> dict[int, ir.Stmt]:
    """The statement that each line of a routine's function is there for; its first line is 0. None
    where it is several functions."""
    if parts_of(routine):
        return {}
    emitter = _Emitter(routine, features, looks_of(routine))
    emitter.function()
    first = emitter.code.starts(2)
    written = emitter.written
    return {at: stmt for start, end, stmt in written for at in range(first[start], first[end])}


def _mark_inlining(name: str, function: str, text: str) -> str:
    """A function with whether it is copied to where it is called. One that is long, or called from
    many places as the last step of an unrolled tile does, is not: compiling the copies takes longer
    than everything else, and the calls cost less than a hundredth of the tile."""
    calls, lines = text.count(f"@{name}(") - 1, function.count("\n")
    copied = calls == 1 or (calls <= MOST_COPIES and lines <= MOST_COPIED_LINES)
    how = "alwaysinline" if copied else "noinline"
    return function.replace(" nounwind {", f" {how} nounwind {{", 1)


class _Emitter:
    def __init__(
        self, routine: ir.Routine, features: frozenset[str], looks: Mapping[int, int]
    ) -> None:
        self.routine = routine
        self.features = features
        self.code = Code()
        self.elements = Elements(self.code, features)
        self.formats = self.elements.formats
        self.indices = IndexCode(self.code)
        self.values: dict[tuple[str, tuple[tuple[str, Val | int], ...]], Val] = {}
        self.defined: dict[str, tuple[str, ...]] = {}
        self.dtypes: dict[str, DType] = {}
        self.accumulators = Accumulators(self.code, self.elements, self.indices)
        self.pointers: list[str] = []
        self.loads = Loads(self.code, self.indices, self.formats, routine, features, self.pointers)
        self.written: list[tuple[int, int, ir.Stmt]] = []
        """Statements with the lines that were written for each: from, and to before."""
        self.counted = routine.body
        """Statements of the innermost counted loop: what they compute, they alone use."""
        self.outside_tile = self.in_window = False
        """Whether guards are asked for element by element."""
        self.looks = looks
        """Loops in which a long routine looks whether it shall stop, and after how many turns."""

    def function(self, linkage: str = "") -> str:
        """The text, `internal ` where it is called from this module alone."""
        code = self.code
        for index in range(len(self.routine.buffers)):
            slot = code.pointer("%args", "ptr", number(index, "i64"))
            self.pointers.append(code.load("ptr", slot, 1, 8, ", !invariant.load !0").text)
        for dtype, elements in self.routine.scratch:
            self.pointers.append(code.alloca(storage_type(dtype), elements))
        for parameter in self.routine.params:
            self._parameter(parameter)
        self._body(self.routine.body)
        code.line("ret void")
        if self.looks:
            code.label(_HALT)
            code.line("ret void")
        head = f"define {linkage}void @{self.routine.name}({_ARGUMENTS}) nounwind"
        return f"{head} {{\nentry:\n{code.text()}\n}}"

    # -- statements ------------------------------------------------------------------------------

    def _body(self, body: tuple[ir.Stmt, ...]) -> None:
        for stmt in body:
            if isinstance(stmt, ir.For):
                self._for(stmt)
            else:
                start = len(self.code.lines)
                _WRITERS[type(stmt)](self, stmt)
                self.written.append((start, len(self.code.lines), stmt))

    def _for(self, loop: ir.For) -> None:
        indices = self.indices
        start, last = bounds(loop.start, indices.ranges)[0], bounds(loop.stop, indices.ranges)[1]
        stop = last if loop.end is None else min(last, loop.end)
        indices.ranges[loop.var] = (start, max(start, stop - 1))
        once = loop.has_one_turn and id(loop) not in self.looks
        if loop.kind is LoopKind.SERIAL:
            if once or self.outside_tile or self.in_window or not self._window(loop):
                (self._one_turn if once else self._count_loop)(loop)
            return
        if not (loop.start.is_constant and loop.stop.is_constant):
            raise InternalError("loop bounds are not constant")
        if loop.kind is LoopKind.PARALLEL:
            (self._one_piece if once and not loop.moves else self._count_loop)(loop)
        elif self.outside_tile or not self._tile(loop):
            self._known_loop(loop)

    def _known_loop(self, loop: ir.For) -> None:
        """Unrolled turns, or lanes."""
        indices = self.indices
        start, last = loop.span(indices.ranges)
        if loop.kind is LoopKind.LANES:
            indices.lanes = Lanes(loop.var, last + 1)
            self._body(loop.body)
            indices.lanes = None
            return
        for value in range(start, last + 1, loop.step):
            indices.variables[loop.var] = value
            self._body(loop.body)
        indices.variables.pop(loop.var, None)

    def _one_turn(self, loop: ir.For) -> None:
        """The body of a loop that is carried out once."""
        around, self.counted = self.counted, loop.body
        self._known_loop(loop)
        self.counted = around

    def _one_piece(self, loop: ir.For) -> None:
        """The body of the one piece there is, where it is wanted."""
        code, piece = self.code, number(loop.start.constant, "i64")
        begins = code.compare("icmp sle", Val("%first", "i64"), piece)
        ends = code.compare("icmp sgt", Val("%last", "i64"), piece)
        code.when(code.binary("and", begins, ends), lambda: self._one_turn(loop))

    def _tile(self, loop: ir.For) -> bool:
        """Write a tile as it is inside of what it reads, and as it is at the edges; False where it
        has none, or its machine loads those lanes of a vector that are inside."""
        # Masked loads cost nothing there: one text serves tiles inside and at the edges.
        tile = None if "avx512f" in self.features else tile_of(loop, self.counted)
        if tile is None:
            return False

        def near() -> None:
            self.code.either(
                self.indices.hold_everywhere(tile),
                lambda: self._known_loop(tile.without((*tile.fixed, *tile.moving))),
                lambda: self._known_loop(tile.without(tile.fixed)),
            )

        if tile.fixed:
            inside = self.indices.inside(tile.fixed, 0)
            self.code.either(inside, near, lambda: self._far_loop(loop))
        else:
            near()
        return True

    def _window(self, loop: ir.For) -> bool:
        """Write a loop over a window as it is inside of what it reads, as it is where vectors alone
        reach over an edge, and as it stands; False where it is none."""
        window = None if "avx512f" in self.features else window_of(loop, self.counted)
        if window is None:
            return False
        across = across_edges(window, self.routine.buffers)

        def as_it_stands() -> None:
            self.in_window = True
            self._count_loop(loop)
            self.in_window = False

        def over_edges() -> None:
            self.indices.in_room = True
            self._far_loop(written_out(across.without(across.moving)))
            self.indices.in_room = False

        def near() -> None:
            self.code.either(self.indices.hold_everywhere(across), over_edges, as_it_stands)

        inside = written_out(window.without(window.moving))
        otherwise = near if across.moving else as_it_stands
        holds = self.indices.hold_everywhere(window)
        self.code.either(holds, lambda: self._known_loop(inside), otherwise)
        return True

    def _far_loop(self, loop: ir.For) -> None:
        """A tile that is outside of what it reads, or reaches over an edge, as it stands."""
        self.outside_tile = True
        self._known_loop(loop)
        self.outside_tile = False

    def _count_loop(self, loop: ir.For) -> None:
        first, last = self.indices.value(loop.start), self.indices.value(loop.stop)
        if loop.end is not None:
            last = self.code.intrinsic("llvm.smin", last, number(loop.end, "i64"))
        if loop.kind is LoopKind.PARALLEL:
            # Nobody asks for pieces that a routine does not have: kernels that differ in nothing
            # but how many there are get one text.
            every = (loop.start.constant, loop.stop.constant) == (0, self.routine.pieces)
            start, end = Val("%first", "i64"), Val("%last", "i64")
            first = start if every else self.code.intrinsic("llvm.smax", start, first)
            last = end if every else self.code.intrinsic("llvm.smin", end, last)

        def body(index: Val) -> None:
            self.indices.variables[loop.var] = index
            around, self.counted = self.counted, loop.body
            self._body(loop.body)
            self.counted = around

        turns = self.looks.get(id(loop))
        if turns is None:
            self.code.loop(first, last, loop.step, body, rewritten=loop.adds_up)
        else:
            self._loop_with_looks(first, last, loop.step, turns, body)
        del self.indices.variables[loop.var]

    def _loop_with_looks(
        self, first: Val, last: Val, step: int, turns: int, body: Callable[[Val], None]
    ) -> None:
        """A loop in strips of so many turns, with a look at the state's stop word before each."""
        code = self.code

        def strip(start: Val) -> None:
            self._look()
            end = code.binary("add", start, number(turns * step, "i64"))
            code.loop(start, code.intrinsic("llvm.smin", end, last), step, body)

        code.loop(first, last, turns * step, strip)

    def _look(self) -> None:
        """Leave the routine where it shall stop."""
        code = self.code
        state = code.load("ptr", code.pointer("%error", "ptr", number(1, "i64")), 1, 8)
        word = code.pointer(state.text, "i64", number(STOP_WORD, "i64"))
        value = code.result(f"load atomic i64, ptr {word} monotonic, align 8", "i64")
        code.leave(code.compare("icmp ne", value, number(0, "i64")), _HALT)

    def _parameter(self, parameter: ir.ParamArg) -> None:
        dtype = self.routine.buffers[parameter.buffer].dtype
        kind = storage_type(dtype)
        place = self.code.pointer(
            self.pointers[parameter.buffer], kind, number(parameter.element, "i64")
        )
        value = self.code.load(kind, place, 1, dtype.storage_bytes)
        if kind != "i64":
            value = self.code.convert("sext" if dtype.is_signed else "zext", value, "i64")
        value = self.code.intrinsic("llvm.smax", value, number(parameter.low, "i64"))
        value = self.code.intrinsic("llvm.smin", value, number(parameter.high, "i64"))
        self.indices.variables[parameter.name] = value
        self.indices.ranges[parameter.name] = (parameter.low, parameter.high)

    # -- names -----------------------------------------------------------------------------------

    def _define(self, name: str, value: Val, dtype: DType) -> None:
        here = self.indices.unrolled()
        self.defined[name] = tuple(here)
        self.values[name, tuple(here.items())] = value
        self.dtypes[name] = dtype

    def _value(self, name: str) -> Val:
        here = self.indices.variables
        return self.values[name, tuple([(var, here[var]) for var in self.defined[name]])]

    # -- memory ----------------------------------------------------------------------------------

    def _select(self, places: tuple[Place, ...]) -> None:
        """Make values known as params of the next addresses."""
        found = {p.param: (self._value(p.value), p.size, self.dtypes[p.value]) for p in places}
        self.indices.select(
            {name: (value, size, dtype.is_signed) for name, (value, size, dtype) in found.items()}
        )

    def _load(self, load: ir.Load) -> None:
        dtype = self.routine.dtype_of(load.buffer)
        self._select(load.places)
        if load.guards:
            value = self.loads.guarded(load)
        else:
            raw = self.loads.plain(load.buffer, load.address)
            value = self.formats.from_storage(raw, dtype)
        self._define(load.name, value, dtype)

    def _load_run(self, run: ir.LoadRun) -> None:
        """Vectors of neighbours, taken apart: multiply-adds can use a lane where it is."""
        dtype = self.routine.dtype_of(run.buffer)
        if self.indices.lanes is not None and self.indices.step(run.address) != 0:
            self._load_across(run, dtype)
            return
        width = max(1, 16 // dtype.storage_bytes)
        for start in range(0, run.count, width):
            lanes = min(width, run.count - start)
            lanes = lanes if lanes & (lanes - 1) == 0 else 1
            for first in range(start, min(start + width, run.count), lanes):
                value = self.formats.from_storage(self.loads.neighbours(run, first, lanes), dtype)
                for lane in range(lanes):
                    self.indices.variables[run.var] = first + lane
                    part = self.code.lane(value, lane) if lanes > 1 else value
                    self._define(run.name, part, dtype)
        del self.indices.variables[run.var]

    def _prefetch(self, stmt: ir.Prefetch) -> None:
        kind = storage_type(self.routine.dtype_of(stmt.buffer))
        place = self.indices.far_pointer(self.pointers[stmt.buffer], kind, stmt.address)
        args = self.routine.buffers
        writes = stmt.buffer < len(args) and args[stmt.buffer].written
        self.code.prefetch(place, writes=writes)

    def _load_across(self, run: ir.LoadRun, dtype: DType) -> None:
        """A vector of neighbours for each lane, transposed into one of lanes for each neighbour."""
        variables, lanes = self.indices.variables, self.indices.lane_count
        width = lanes if run.count % lanes == 0 else 1
        if self.loads.turns_lines(run):
            width = 64 // dtype.storage_bytes
        for start in range(0, run.count, width):
            loaded = [self.loads.neighbours(run, start, width, lane) for lane in range(lanes)]
            code = self.code
            turned = [code.gather_lanes(loaded)] if width == 1 else transposed(code, loaded)
            for row, value in enumerate(turned):
                variables[run.var] = start + row
                self._define(run.name, self.formats.from_storage(value, dtype), dtype)
        del variables[run.var]

    def _store(self, store: ir.Store) -> None:
        self._select(store.places)
        dtype = self.routine.dtype_of(store.buffer)
        value = self.formats.to_storage(self._value(store.value), dtype)
        base, masks = self.pointers[store.buffer], self.loads.has_masks(value.scalar)
        write_store(self.code, self.indices, store, value, base, dtype, masks=masks)

    # -- computing -------------------------------------------------------------------------------

    def _let(self, let: ir.Let) -> None:
        if let.fn == "const":
            value = number_of(let.value, let.dtype)
        elif let.fn == "index":
            value = self._index_value(let.index or constant(0), let.dtype)
        elif let.fn == "dot":
            signs = [self.dtypes[name].is_signed for name in let.args[1:]]
            value = self.elements.dot([self._value(name) for name in let.args], signs)
        else:
            args = [self._value(name) for name in let.args]
            source = self.dtypes[let.args[-1]]
            value = self.elements.apply(let.fn, args, source, let.dtype)
        self._define(let.name, value, let.dtype)

    def _index_value(self, expr: Expr, dtype: DType) -> Val:
        """An index expression as a value; where it cannot leave the range of the dtype, there is
        nothing to saturate."""
        indices = self.indices
        low, high = bounds(expr, indices.ranges)
        step = indices.step(expr)
        if dtype.is_integer and dtype.lowest <= low and high <= dtype.highest and step is not None:
            first, scalar = indices.value(expr), compute_type(dtype)
            value = first if scalar == "i64" else self.code.convert("trunc", first, scalar)
            if step == 0 or indices.lanes is None:
                return value
            return self.code.binary("add", value, multiples(step, scalar, indices.lane_count))
        lanes = indices.lane_count if step != 0 else 1
        parts = [indices.value(expr, lane) for lane in range(lanes)]
        value = self.code.gather_lanes(parts) if lanes > 1 else parts[0]
        return self.formats.cast(value, SI64, dtype)

    def _check(self, check: ir.Check) -> None:
        """The value, with what breaks the rule noted in the error word and replaced."""
        code, x, dtype = self.code, self._value(check.x), self.dtypes[check.x]
        zero = number(0, x.scalar, x.lanes)
        match check.rule:
            case "inside":
                broken = self._outside(x, check.size, dtype)
            case "nonzero":
                broken = code.compare("icmp eq", x, zero)
            case _:
                broken = code.compare("icmp slt", x, zero)
        some = code.intrinsic_scalar("llvm.vector.reduce.or", broken) if x.lanes > 1 else broken
        code.when(some, lambda: self._report(check, broken, x, dtype))
        safe = number(1 if check.rule == "nonzero" else 0, x.scalar, x.lanes)
        self._define(check.name, code.select(broken, safe, x), dtype)

    def _outside(self, x: Val, size: int, dtype: DType) -> Val:
        """Whether an index is not in [0, size)."""
        if size > dtype.highest:
            return self.code.compare("icmp slt", x, number(0, x.scalar, x.lanes))
        return self.code.compare("icmp uge", x, number(size, x.scalar, x.lanes))

    def _report(self, check: ir.Check, broken: Val, x: Val, dtype: DType) -> None:
        """The least of (check, element) over all threads is kept with its value, and the run is
        told to stop."""
        code = self.code
        code.functions.setdefault("report_broken", REPORT_BROKEN)
        widen = "sext" if dtype.is_signed else "zext"
        for lane in range(broken.lanes):
            element = self.indices.value(check.element, lane)
            # Check above element: the least key is the first rule that is broken, at its first
            # element.
            key = code.binary("or", element, number(check.number << 48, "i64"))
            key = code.select(code.lane(broken, lane), key, number(-1, "i64"))
            value = code.lane(x, lane)
            value = value if value.scalar == "i64" else code.convert(widen, value, "i64")
            code.line(f"call void @report_broken(ptr %error, {key}, {value})")
        flag = code.load("ptr", code.pointer("%error", "ptr", number(1, "i64")), 1, 8)
        code.line(f"store atomic i64 1, {flag} monotonic, align 8")

    def _words(self, words: ir.Words) -> None:
        state = (self._value(words.seed), self._value(words.offset))
        drawn = self._words_of_blocks(words.element, *state)
        if drawn is None:
            element = self._index_value(words.element, SI64)
            drawn = philox_words(self.code, element, *state)
        self._define(words.name, drawn, UI32)

    def _words_of_blocks(self, element: Expr, seed: Val, offset: Val) -> Val | None:
        """What the lanes take, where that is all words of some blocks, every second or fourth."""
        indices, loop, step = self.indices, self.indices.lanes, self.indices.step(element)
        if loop is None or step not in (1, 2, 4) or seed.lanes > 1 or offset.lanes > 1:
            return None
        rest = [factor for term, factor in element.terms if str(term) != loop.var]
        lanes, place = indices.lane_count, element.constant % step
        if any(number % 4 for number in (lanes * step, element.constant - place, *rest)):
            return None
        first = self.code.binary("lshr", indices.value(element - place, 0), number(2, "i64"))
        drawn = philox_blocks(self.code, first, lanes * step, seed, offset, self.elements.features)
        while drawn.lanes > lanes:
            drawn, place = self.code.apart(drawn)[place % 2], place // 2
        return drawn

    def _sort(self, sort: ir.Sort) -> None:
        """Keys and places of a row written down, sorted, and the first places stored."""
        code, dtype = self.code, self.routine.dtype_of(sort.x)
        kind, items = storage_type(dtype), Items(dtype, sort.length)
        piece = self.indices.value(sort.piece)
        size = number(sort.length * 2 * (key_bytes(dtype.storage_bytes) + 8), "i64")
        work = code.pointer(self.pointers[sort.work], "i8", code.binary("mul", piece, size))
        starts = (0, items.size * sort.length)
        here, there = (code.pointer(work, "i8", number(start, "i64")) for start in starts)
        row = code.binary("mul", self.indices.value(sort.row), number(sort.length, "i64"))
        source = code.pointer(self.pointers[sort.x], kind, row)
        kept = sorted_row(code, items, here, there, sort.count)

        def write(index: Val) -> None:
            raw = code.load(kind, code.pointer(source, kind, index), 1, dtype.storage_bytes)
            value = sort_key(code, self.formats.from_storage(raw, dtype), dtype, sort.descending)
            kept.see(value, index)

        code.loop(number(0, "i64"), number(sort.length, "i64"), 1, write)
        row = code.binary("mul", self.indices.value(sort.row), number(sort.count, "i64"))
        items.copy_places(code, kept.sort(), self.pointers[sort.out], row, sort.count)

    def _fourier(self, stmt: ir.Fourier) -> None:
        """A call of the function that transforms a row."""
        scalar = storage_type(self.routine.dtype_of(stmt.x))
        transform_row(self.code, scalar, stmt, self.indices.value(stmt.row), self.pointers)

    def _tiles(self, tiles: ir.Tiles) -> None:
        """A call of the function that multiplies panels."""
        a, b = (self.routine.dtype_of(number) for number in (tiles.a, tiles.b))
        name = tiles_function(self.code, signs_of(a, b, tiles.parts), self.features)
        places = (f"ptr {self.pointers[number]}" for number in (tiles.a, tiles.b, tiles.sums))
        sizes = (f"i64 {size}" for size in (tiles.rows, tiles.columns, tiles.words))
        adds = f"i1 {str(tiles.adds).lower()}"
        self.code.line(f"call void @{name}({', '.join((*places, *sizes, adds))})")

    def _turn(self, turn: ir.Turn) -> None:
        """A call of the function that turns words round."""
        code, source = self.code, self.pointers[turn.source]
        target = self.indices.pointer(self.pointers[turn.target], "i32", turn.place)
        name = turn_function(code)
        code.line(f"call void @{name}(ptr {source}, ptr {target}, i64 {turn.words})")

    # -- accumulators ----------------------------------------------------------------------------

    def _accumulate(self, stmt: ir.Accumulate) -> None:
        self.accumulators.add(stmt.acc, self._value(stmt.value))

    def _finish(self, finish: ir.Finish) -> None:
        dtype = self.accumulators[finish.accs[0]].dtype
        self._define(finish.name, self.accumulators.total(finish.accs), dtype)

    def _current(self, stmt: ir.Current) -> None:
        held = self.accumulators.held(stmt.acc)
        self._define(stmt.name, held, self.accumulators[stmt.acc].dtype)

    def _merge(self, merge: ir.Merge) -> None:
        """The same for several carries at once, with a body of their own for combining."""

        def combine(a: _Carries, b: _Carries) -> _Carries:
            return self._combine_carries(merge, a, b)

        totals: list[_Carries] = []
        for part in merge.parts:
            accumulators = [self.accumulators[acc] for acc in part]
            rows: list[_Carries] = list(
                zip(*map(self.accumulators.instances, accumulators), strict=True)
            )
            total: _Carries = tree(rows, combine)
            if total[0].lanes > 1 and not self.accumulators.is_around(accumulators[0]):
                lanes = range(total[0].lanes)
                sides: list[_Carries] = [tuple(self.code.lane(v, i) for v in total) for i in lanes]
                total = tree(sides, combine)
            totals.append(total)
        dtypes = [self.accumulators[acc].dtype for acc in merge.parts[0]]
        merged: _Carries = tree(totals, combine)
        for name, value, dtype in zip(merge.names, merged, dtypes, strict=True):
            self._define(name, value, dtype)

    def _combine_carries(self, merge: ir.Merge, a: _Carries, b: _Carries) -> _Carries:
        dtypes = [self.accumulators[acc].dtype for acc in merge.parts[0]]
        for name, left, right, dtype in zip(merge.carries, a, b, dtypes, strict=True):
            self._define(f"{name}.a", left, dtype)
            self._define(f"{name}.b", right, dtype)
        for let in merge.combine:
            self._let(let)
        return tuple(self._value(name) for name in merge.merged)


_WRITERS: Final[dict[type, Callable[[_Emitter, Any], None]]] = {
    ir.Load: _Emitter._load,
    ir.LoadRun: _Emitter._load_run,
    ir.Prefetch: _Emitter._prefetch,
    ir.Let: _Emitter._let,
    ir.Check: _Emitter._check,
    ir.Words: _Emitter._words,
    ir.Sort: _Emitter._sort,
    ir.Fourier: _Emitter._fourier,
    ir.Tiles: _Emitter._tiles,
    ir.Turn: _Emitter._turn,
    ir.Init: lambda to, stmt: to.accumulators.begin(stmt),
    ir.Accumulate: _Emitter._accumulate,
    ir.Finish: _Emitter._finish,
    ir.Current: _Emitter._current,
    ir.Assign: lambda to, stmt: to.accumulators.assign(stmt.acc, to._value(stmt.value)),
    ir.Merge: _Emitter._merge,
    ir.Store: _Emitter._store,
}
"""What writes each statement."""
