"""Index expressions as LLVM code (loop variables, params, lanes, and values used as indices), and
loads at these addresses.

A variable is a number that is known while code is written (an unrolled loop) or a value. Inside a
lanes loop an expression has one number for each lane; most move by a constant step from lane to
lane, and one address then serves them all. So neighbours are loaded as one vector and others lane
by lane, and where a guard fails, the value that stands there instead is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft.codegen.cpu import ir
from weft.codegen.cpu.code import Code, Val, multiples, number
from weft.codegen.cpu.edges import GuardedTile
from weft.codegen.cpu.formats import Formats, number_of, storage_type
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import (
    Axis,
    Expr,
    FloorDiv,
    Guard,
    Term,
    axes_of,
    bounds,
    coefficient,
    params_of,
)


@dataclass
class Lanes:
    """The lanes loop that code stands in."""

    var: str
    count: int


@dataclass
class IndexCode:
    """Writes expressions into a `Code`."""

    code: Code
    variables: dict[str, Val | int] = field(default_factory=dict)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    lanes: Lanes | None = None
    places: dict[str, Val] = field(default_factory=dict)
    """Params that are values: i64, one for each lane or one for all, in range."""
    in_room: bool = False
    """Whether whole vectors lie in their buffers, also where guards keep some lanes out."""

    @property
    def lane_count(self) -> int:
        return 1 if self.lanes is None else self.lanes.count

    def value(self, expr: Expr, lane: int = 0) -> Val:
        """The expression as a number, in the given lane."""
        moving, fixed = self._split(expr, lane)
        if moving is None:
            return number(fixed, "i64")
        return self.code.binary("add", moving, number(fixed, "i64")) if fixed else moving

    def pointer(self, base: str, kind: str, address: Expr, lane: int = 0) -> str:
        """The place of an element. Neighbours share what moves, and differ by a constant."""
        moving, fixed = self._split(address, lane)
        if moving is None or fixed == 0:
            return self.code.pointer(base, kind, moving or number(fixed, "i64"))
        # Where no term takes anything away, a part of the sum is inside the buffer too.
        rises = (factor > 0 and self._lowest(term) >= 0 for term, factor in address.terms)
        if fixed < 0 or not all(rises):
            shared = self.code.far_pointer(base, kind, moving)
            return self.code.far_pointer(shared, kind, number(fixed, "i64"))
        shared = self.code.pointer(base, kind, moving)
        return self.code.pointer(shared, kind, number(fixed, "i64"))

    def far_pointer(self, base: str, kind: str, address: Expr) -> str:
        """The same where it may lie beyond the buffer."""
        moving, fixed = self._split(address, 0)
        place = base if moving is None else self.code.far_pointer(base, kind, moving)
        return self.code.far_pointer(place, kind, number(fixed, "i64")) if fixed else place

    def _lowest(self, term: Term) -> int:
        if isinstance(term, FloorDiv):
            return bounds(term.value, self.ranges)[0] // term.divisor
        return self.ranges[term.name][0]

    def _split(self, expr: Expr, lane: int) -> tuple[Val | None, int]:
        """The sum of what is computed, what moves least often first, and the sum of what is
        known."""
        known = expr.constant
        parts: list[tuple[Term, Val]] = []
        for term, factor in expr.terms:
            value = self._term(term, lane)
            if isinstance(value, int):
                known += factor * value
            elif factor == 1:
                parts.append((term, value))
            else:
                parts.append((term, self.code.binary("mul", value, number(factor, "i64"))))
        if len(parts) > 1:
            parts.sort(key=lambda part: self._depth(part[0]))
        total: Val | None = None
        for _, part in parts:
            total = part if total is None else self.code.binary("add", total, part)
        return total, known

    def _depth(self, term: Term) -> int:
        """The innermost loop that moves a term."""
        names = axes_of(term.value) if isinstance(term, FloorDiv) else (term.name,)
        return max((n for n, name in enumerate(self.variables) if name in names), default=0)

    def _term(self, term: Term, lane: int) -> Val | int:
        if isinstance(term, FloorDiv):
            return self._floordiv(term, lane)
        if self.lanes is not None and term.name == self.lanes.var:
            return lane
        if term.name in self.places:
            place = self.places[term.name]
            return place if place.lanes == 1 else self.code.lane(place, lane)
        return self.variables[term.name]

    def _floordiv(self, term: FloorDiv, lane: int) -> Val | int:
        code = self.code
        moving, fixed = self._split(term.value, lane)
        if moving is None:
            return fixed // term.divisor
        value = code.binary("add", moving, number(fixed, "i64")) if fixed else moving
        divisor = number(term.divisor, "i64")
        low, _ = bounds(term.value, self.ranges)
        if low >= 0:
            return code.binary("udiv", value, divisor)
        quotient = code.binary("sdiv", value, divisor)
        rest = code.binary("srem", value, divisor)
        below = code.compare("icmp slt", rest, number(0, "i64"))
        return code.binary("sub", quotient, code.convert("zext", below, "i64"))

    def step(self, expr: Expr) -> int | None:
        """How far the expression moves from lane to lane; None when it is not the same
        everywhere."""
        if self.lanes is None:
            return 0
        if any(self.places[name].lanes > 1 for name in params_of(expr) if name in self.places):
            return None
        name = self.lanes.var
        for term, _ in expr.terms:
            if isinstance(term, FloorDiv) and not self._is_same(term, self.lanes):
                return None
        return coefficient(expr, name)

    def _is_same(self, term: FloorDiv, lanes: Lanes) -> bool:
        """Whether a quotient is the same in all lanes: none of them, or they begin at a multiple of
        their number, which divides the divisor."""
        value, count = term.value, lanes.count
        if lanes.var not in axes_of(value):
            return True
        if coefficient(value, lanes.var) != 1 or term.divisor % count or value.constant % count:
            return False
        return all(
            factor % count == 0
            and not (isinstance(other, FloorDiv) and not self._is_same(other, lanes))
            for other, factor in value.terms
            if not (isinstance(other, Axis) and other.name == lanes.var)
        )

    def inside(self, guards: Sequence[Guard], lane: int) -> Val:
        """Whether every guard holds."""
        found: Val | None = None
        for guard in guards:
            value = self.value(guard.expr, lane)
            # One unsigned comparison says both that it is not negative and that it is small enough.
            holds = self.code.compare("icmp ult", value, number(guard.size, "i64"))
            found = holds if found is None else self.code.binary("and", found, holds)
        if found is None:
            raise InternalError("a guarded load without guards")
        return found

    def inside_lanes(self, guards: Sequence[Guard]) -> Val:
        """Whether every guard holds, lane by lane; each moves by a step."""
        found: Val | None = None
        for guard in guards:
            step = self.step(guard.expr)
            low, high = bounds(guard.expr, self.ranges)
            scalar = "i32" if max(-low, high, guard.size) < 1 << 30 else "i64"
            value = self.value(guard.expr)
            value = value if scalar == "i64" else self.code.convert("trunc", value, scalar)
            lanes = self.code.spread(value, self.lane_count)
            if step:
                moved = multiples(step, scalar, self.lane_count)
                lanes = self.code.binary("add", lanes, moved)
            holds = self.code.compare("icmp ult", lanes, number(guard.size, scalar))
            found = holds if found is None else self.code.binary("and", found, holds)
        if found is None:
            raise InternalError("a guarded load without guards")
        return found

    def select(self, values: Mapping[str, tuple[Val, int, bool]]) -> None:
        """Let params be values, each with its size and signedness, kept inside [0, size)."""
        self.places = {}
        for name, (value, size, signed) in values.items():
            wide = value
            if value.scalar != "i64":
                wide = self.code.convert("sext" if signed else "zext", value, "i64")
            low = self.code.intrinsic("llvm.smax", wide, number(0, "i64", wide.lanes))
            last = number(max(size - 1, 0), "i64", wide.lanes)
            self.places[name] = self.code.intrinsic("llvm.smin", low, last)
            self.ranges[name] = (0, max(size - 1, 0))

    def unrolled(self) -> dict[str, int]:
        """The variables that are known while code is written."""
        return {var: value for var, value in self.variables.items() if isinstance(value, int)}

    def hold_everywhere(self, tile: GuardedTile) -> Val:
        """Whether the moving guards of a tile hold for all of its elements."""
        code = self.code
        for one in tile.loops:
            self.ranges[one.var] = one.span(self.ranges)
        found: Val | None = None
        for guard in tile.moving:
            ends = []
            for last in (False, True):
                corner = tile.corner(guard, last=last)
                self.variables.update(corner)
                ends.append(self.value(guard.expr))
                for name in corner:
                    del self.variables[name]
            low = code.compare("icmp sge", ends[0], number(0, "i64"))
            high = code.compare("icmp slt", ends[1], number(guard.size, "i64"))
            holds = code.binary("and", low, high)
            found = holds if found is None else code.binary("and", found, holds)
        if found is None:
            raise InternalError("a tile without guards that move")
        return found


@dataclass(frozen=True)
class Loads:
    """Loads of a routine, with instructions that its machine has."""

    code: Code
    indices: IndexCode
    formats: Formats
    routine: ir.Routine
    features: frozenset[str]
    pointers: Sequence[str]

    def plain(self, buffer: int, address: Expr) -> Val:
        """What is stored at an address, in every lane."""
        code, base, indices = self.code, self.pointers[buffer], self.indices
        dtype = self.routine.dtype_of(buffer)
        kind, align = storage_type(dtype), dtype.storage_bytes
        step, lanes = indices.step(address), indices.lane_count
        if step in (0, 1) or lanes == 1:
            place = indices.pointer(base, kind, address)
            return code.load(kind, place, lanes if step == 1 else 1, align)
        if step == 2 and self._joins_every_second(lanes):
            place = indices.pointer(base, kind, address)
            return self._every_second(kind, place, lanes, align)
        if step == -1 or (step == -2 and self._joins_every_second(lanes)):
            # The last lane lies first.
            place = indices.pointer(base, kind, address, lanes - 1)
            read = code.load if step == -1 else self._every_second
            return _turn_round(code, read(kind, place, lanes, align))
        parts = [
            code.load(kind, indices.pointer(base, kind, address, lane), 1, align)
            for lane in range(lanes)
        ]
        return code.gather_lanes(parts)

    def neighbours(self, run: ir.LoadRun, first: int, width: int, lane: int = 0) -> Val:
        """So many neighbours of a run, as they are stored: those at the beginning of the buffer
        instead, turned into the fill, where a guard fails."""
        code, indices, base = self.code, self.indices, self.pointers[run.buffer]
        dtype = self.routine.dtype_of(run.buffer)
        kind, align = storage_type(dtype), dtype.storage_bytes
        if not run.guards:
            place = indices.pointer(base, kind, run.address + first, lane)
            return code.load(kind, place, width, align)
        inside = indices.inside(run.guards, lane)
        address = code.select(inside, indices.value(run.address + first, lane), number(0, "i64"))
        loaded = code.load(kind, code.pointer(base, kind, address), width, align)
        fill = self.formats.to_storage(number_of(run.fill, dtype), dtype)
        return code.select(inside, loaded, fill)

    def turns_lines(self, run: ir.LoadRun) -> bool:
        """Whether neighbours fill registers of AVX-512 that hold a transposed tile in each
        quarter."""
        size = self.routine.dtype_of(run.buffer).storage_bytes
        few = self.indices.lane_count * size == 16
        return few and "avx512f" in self.features and run.count * size % 64 == 0

    def guarded(self, load: ir.Load) -> Val:
        """Where a guard fails, element 0 is read instead and `fill` is the value: for all lanes at
        once where they are neighbours, else lane by lane."""
        code, base, indices = self.code, self.pointers[load.buffer], self.indices
        dtype = self.routine.dtype_of(load.buffer)
        kind, align = storage_type(dtype), dtype.storage_bytes
        moves = any(indices.step(guard.expr) != 0 for guard in load.guards)
        varies = moves or indices.step(load.address) != 0
        lanes = indices.lane_count if varies else 1
        fill = number_of(load.fill, dtype)
        step = indices.step(load.address)
        every_second = step == 2 and self._joins_every_second(lanes)
        together = every_second or step == 1
        if not moves and together and self._has_room(load.buffer, (step or 1) * lanes):
            inside = indices.inside(load.guards, 0)
            address = code.select(inside, indices.value(load.address), number(0, "i64"))
            place = code.pointer(base, kind, address)
            read = self._every_second if every_second else code.load
            return code.select(
                inside, self.formats.from_storage(read(kind, place, lanes, align), dtype), fill
            )
        if moves and together and self._masks(load.guards, kind):
            mask = indices.inside_lanes(load.guards)
            place = code.far_pointer(base, kind, indices.value(load.address))
            fill = self.formats.to_storage(code.spread(fill, lanes), dtype)
            read_some = self._every_second_masked if every_second else code.masked_load
            return self.formats.from_storage(read_some(kind, place, mask, fill, align), dtype)
        if step == 1 and self._moves_evenly(load.guards) and self._has_room(load.buffer, lanes):
            return self._around_the_edge(load, fill)
        return self._lane_by_lane(load, lanes, fill)

    def _around_the_edge(self, load: ir.Load, fill: Val) -> Val:
        """All lanes as neighbours, whichever of them a guard keeps out, and then the fill in place
        of these. What is read beside them lies in the buffer, but for the few vectors that begin
        before it or end behind it."""
        code, indices = self.code, self.indices
        dtype, lanes = self.routine.dtype_of(load.buffer), indices.lane_count
        kind = storage_type(dtype)
        address = indices.value(load.address)
        last = self.routine.buffers[load.buffer].elements - lanes
        beyond = code.compare("icmp ugt", address, number(last, "i64"))
        place = address if indices.in_room else code.select(beyond, number(0, "i64"), address)
        pointer = code.pointer(self.pointers[load.buffer], kind, place)
        found = self.formats.from_storage(
            code.load(kind, pointer, lanes, dtype.storage_bytes), dtype
        )
        usual = code.select(indices.inside_lanes(load.guards), found, fill)
        if indices.in_room:
            return usual
        return code.rarely(beyond, [usual], lambda: [self._lane_by_lane(load, lanes, fill)])[0]

    def _lane_by_lane(self, load: ir.Load, lanes: int, fill: Val) -> Val:
        code, base, indices = self.code, self.pointers[load.buffer], self.indices
        dtype = self.routine.dtype_of(load.buffer)
        kind, parts = storage_type(dtype), []
        for lane in range(lanes):
            inside = indices.inside(load.guards, lane)
            if inside.text == "false":
                parts.append(fill)
                continue
            address = code.select(inside, indices.value(load.address, lane), number(0, "i64"))
            raw = code.load(kind, code.pointer(base, kind, address), 1, dtype.storage_bytes)
            parts.append(code.select(inside, self.formats.from_storage(raw, dtype), fill))
        return code.gather_lanes(parts) if lanes > 1 else parts[0]

    def _every_second(self, kind: str, pointer: str, lanes: int, align: int) -> Val:
        """Elements 0, 2, 4, ...: of two vectors that begin at the first and end at the last."""
        low = self.code.load(kind, pointer, lanes, align)
        after = self.code.pointer(pointer, kind, number(lanes - 1, "i64"))
        high = self.code.load(kind, after, lanes, align)
        return self._every_second_of(low, high)

    def _every_second_masked(
        self, kind: str, pointer: str, mask: Val, fill: Val, align: int
    ) -> Val:
        """Elements 0, 2, 4, ... where the mask holds, and the fill elsewhere."""
        lanes = mask.lanes
        half = lanes // 2
        first = [n // 2 if n % 2 == 0 else lanes for n in range(lanes)]
        last = [half + n // 2 if n % 2 else lanes for n in range(lanes)]
        parts = []
        for start, taken in ((0, first), (lanes - 1, last)):
            chosen = ", ".join(f"i32 {lane}" for lane in taken)
            some = f"shufflevector {mask}, {mask.type} zeroinitializer, <{lanes} x i32> <{chosen}>"
            place = self.code.assign(
                f"getelementptr {kind}, ptr {pointer}, i64 {start}", "ptr"
            ).text
            parts.append(
                self.code.masked_load(kind, place, self.code.assign(some, "i1", lanes), fill, align)
            )
        return self._every_second_of(*parts)

    def _every_second_of(self, low: Val, high: Val) -> Val:
        """Elements 0, 2, 4, ... of two vectors, the second of which begins where the first ends."""
        lanes = low.lanes
        half = lanes // 2
        taken = [2 * n if n < half else lanes + 2 * n - (lanes - 1) for n in range(lanes)]
        mask = ", ".join(f"i32 {lane}" for lane in taken)
        text = f"shufflevector {low}, {high}, <{lanes} x i32> <{mask}>"
        return self.code.assign(text, low.scalar, lanes)

    def has_masks(self, kind: str) -> bool:
        """Whether one instruction loads or stores some lanes of a vector."""
        whole = kind in ("float", "double", "i32", "i64") and self.indices.lane_count >= 4
        return "avx512f" in self.features and whole

    def _masks(self, guards: Sequence[Guard], kind: str) -> bool:
        """Whether one instruction loads those lanes whose guards hold, which move by a step."""
        return self.has_masks(kind) and self._moves_evenly(guards)

    def _moves_evenly(self, guards: Sequence[Guard]) -> bool:
        """Whether guards move by the same step from each lane to the next."""
        return all(self.indices.step(guard.expr) is not None for guard in guards)

    def _joins_every_second(self, lanes: int) -> bool:
        """Whether reading what lies between as well, and dropping it, is faster than lane by
        lane: one instruction takes any lanes of two vectors."""
        return "avx512f" in self.features and lanes >= 8

    def _has_room(self, buffer: int, lanes: int) -> bool:
        """Whether a vector can be read from the beginning of a buffer."""
        return buffer < len(self.routine.buffers) and self.routine.buffers[buffer].elements >= lanes


def _turn_round(code: Code, value: Val) -> Val:
    """The lanes of a vector from the last to the first."""
    order = ", ".join(f"i32 {lane}" for lane in reversed(range(value.lanes)))
    text = f"shufflevector {value}, {value.type} poison, <{value.lanes} x i32> <{order}>"
    return code.assign(text, value.scalar, value.lanes)
