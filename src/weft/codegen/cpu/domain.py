"""Proofs that a loop nest computes every output element exactly once, and that each stage has
computed what later stages read of it.

The executed points are recovered from the emitted loops (their bounds, and the expressions the
stores were given), not from the kernel; isl compares them with the kernel's domain.

All stores of a local that one stage hands to the next stand in one loop over steps, and loads in
the same one, or in later ones, with rows that are told by the step:

1. A point that is stored or loaded lies at its place in the ring.
2. What is stored in step t is row `t + high`, whole; in a step stores come before loads.
3. What is loaded is one of the newest `depth` rows that were stored until step t, or until the end
   of their loop, so that no later row has taken its place.
4. A row that a piece loads was stored by that piece; where rows are cut into tiles of columns, each
   of its columns that the piece loads, in every step that stores a row.

Points, rows and steps are read off the loops and statements, not off the kernel's form, so that the
proofs hold for routines that somebody edited as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from weft.codegen.cpu import ir
from weft.codegen.cpu.ir import LoopKind
from weft.foundation.errors import Finding, InternalError
from weft.foundation.index_expr import Expr, Guard, always, axes_of, axis, constant
from weft.plan.ir import Plan, StagedPlan
from weft.plan.staged import held_by, tiles_of
from weft.poly.sets import Domain, IslBudget, Piece, always_equal, difference, holds, uncovered
from weft.region.form import Ring
from weft.region.forms.rings import Held
from weft.region.ir import Kernel, Output, Stage
from weft.region.structure import buffers

_FAR = 1 << 40
"""Beyond every index: guards with it are bounded on one side only."""


def prove(routine: ir.Routine, kernel: Kernel) -> list[Finding]:
    """Raises an `InternalError` with a sample point where loops and kernel differ.

    What could not be decided within isl's budget is returned as findings.
    """
    skipped = []
    for output in kernel.outputs:
        try:
            _prove_output(routine, kernel, output)
        except IslBudget as error:
            skipped.append(error.finding)
    return skipped


def _prove_output(routine: ir.Routine, kernel: Kernel, output: Output) -> None:
    number = buffers(kernel).index(output.tensor)
    pieces = tuple(
        Piece(executed(loops).where(*stmt.guards), stmt.point)
        for stmt, loops in ir.walk(routine.body)
        if isinstance(stmt, ir.Store) and stmt.buffer == number and stmt.value == output.value
    )
    axes = kernel.let(output.value).axes
    wanted = Domain.box({name: kernel.sizes[name] for name in axes})
    found = difference(pieces, wanted)
    if found is not None:
        raise InternalError(
            f"the loops of {routine.name} do not compute {kernel.name} over its domain: {found}"
        )


def prove_stores(routine: ir.Routine, sizes: Mapping[str, int], what: str) -> list[Finding]:
    """The same for a routine that carries an op whole: its stores, or the rows that it finds, are
    the points of a box."""
    pieces = []
    for stmt, loops in ir.walk(routine.body):
        if isinstance(stmt, ir.Store):
            pieces.append(Piece(executed(loops).where(*stmt.guards), stmt.point))
        elif isinstance(stmt, ir.Sort | ir.Fourier):
            pieces.append(Piece(executed(loops), (stmt.row,)))
    try:
        found = difference(tuple(pieces), Domain.box(sizes))
    except IslBudget as error:
        return [error.finding]
    if found is not None:
        raise InternalError(f"the loops of {routine.name} do not carry out {what}: {found}")
    return []


def executed(loops: tuple[ir.For, ...]) -> Domain:
    """The points that loops run over. Unit steps are all that code generation emits."""
    ranges: dict[str, tuple[int, int]] = {}
    guards: list[Guard] = []
    for loop in loops:
        if loop.step != 1:
            raise InternalError(f"the loop over {loop.var} has a step that cannot be proved")
        ranges[loop.var] = loop.span(ranges)
        if not (loop.start.is_constant and loop.stop.is_constant):
            here = axis(loop.var)
            guards += [Guard(here - loop.start, _FAR), Guard(loop.stop - 1 - here, _FAR)]
    return Domain(tuple((name, *span) for name, span in ranges.items()), (), tuple(guards))


def ring_faults(routine: ir.Routine, kernel: Kernel, plan: Plan) -> Iterator[str]:
    """What is wrong with how stages hand on their rows, a sentence each; raises `IslBudget` where
    that takes too long to say."""
    if not isinstance(plan, StagedPlan):
        return
    first, tiles = len(buffers(kernel)), tiles_of(kernel, plan)
    for number, held in enumerate(held_by(kernel, plan)):
        found = _Local(held, 1 if tiles is None else tiles.count)
        for nest in routine.body:
            yield from found.faults((nest,), first + number)


def prove_rings(routine: ir.Routine, kernel: Kernel, plan: Plan) -> list[Finding]:
    """Raises an `InternalError` where stages do not hand on what is read of them; the answer is
    what could not be proved in time."""
    try:
        for fault in ring_faults(routine, kernel, plan):
            raise InternalError(f"the stages of {kernel.name} do not hand on their rows: {fault}")
    except IslBudget as error:
        return [error.finding]
    return []


@dataclass(frozen=True)
class _Access:
    """A store or a load of a local, with the loops around it and its place in the text."""

    stmt: ir.Store | ir.Load
    loops: tuple[ir.For, ...]
    place: int

    @property
    def guards(self) -> tuple[Guard, ...]:
        return self.stmt.guards


@dataclass(frozen=True)
class _Local:
    held: Held
    tiles: int
    """Tiles of columns that rows are cut into."""

    @property
    def stage(self) -> Stage:
        return self.held.stage

    @property
    def ring(self) -> Ring:
        return self.held.ring

    def faults(self, nest: tuple[ir.Stmt, ...], buffer: int) -> Iterator[str]:
        accesses = [
            _Access(stmt, loops, place)
            for place, (stmt, loops) in enumerate(ir.walk(nest))
            if isinstance(stmt, ir.Store | ir.Load) and stmt.buffer == buffer
        ]
        stores = [found for found in accesses if isinstance(found.stmt, ir.Store)]
        loads = [found for found in accesses if isinstance(found.stmt, ir.Load)]
        found = list(self._frame(accesses))
        for access in accesses if not found else ():
            found += self._at_its_place(access)
        if not found:
            found += self._rows_of_steps(stores)
            found += self._alive(stores, loads)
        if not found:
            found += self._complete(stores, loads)
        yield from found

    def _frame(self, accesses: Sequence[_Access]) -> Iterator[str]:
        """Everything stands in loops over steps, one for all stores, and names its point."""
        stores = [a for a in accesses if isinstance(a.stmt, ir.Store)]
        steps = {id(a.loops[1]) for a in stores if len(a.loops) > 1}
        serial = all(len(a.loops) > 1 and a.loops[1].kind is LoopKind.SERIAL for a in accesses)
        if len(steps) > 1 or not serial:
            yield f"{self._name} is not stored and read in one loop over rows"
        elif any(len(a.stmt.point) != len(self.stage.outer) for a in accesses):
            yield f"{self._name} is stored or read at no point of its axes"
        elif any(self._columns(a) & axes_of(self._row(a)) for a in accesses):
            yield f"{self._name} is stored or read in several rows at once"

    @property
    def _name(self) -> str:
        return self.stage.name

    def _row(self, access: _Access) -> Expr:
        return self._coordinates(access)[self.ring.axis]

    def _coordinates(self, access: _Access) -> dict[str, Expr]:
        names = (found.name for found in self.stage.outer)
        return dict(zip(names, access.stmt.point, strict=True))

    def _inside(self) -> list[str]:
        return list(self.held.inside)

    def _columns(self, access: _Access) -> frozenset[str]:
        """The loops of a step that go along a row, and where rows are cut those that say whether a
        piece has some of its columns, whatever the step."""
        points, inner = self._coordinates(access), access.loops[2:]
        used = frozenset[str]().union(*(axes_of(points[name]) for name in self._inside()))
        found = {loop.var for loop in inner if loop.var in used}
        if self.held.tile is None:
            return frozenset(found)
        outside = [axes_of(points[name]) for name in (self.ring.axis, *self.ring.batch)]
        by_rows = {access.loops[1].var}.union(*outside) - {access.loops[0].var}
        for loop in inner:
            known = {loop.var, *axes_of(loop.start), *axes_of(loop.stop)}
            (by_rows if loop.var not in used and by_rows & known else found).add(loop.var)
        return frozenset(found)

    def _row_loops(self, access: _Access) -> tuple[ir.For, ...]:
        columns = self._columns(access)
        return tuple(loop for loop in access.loops if loop.var not in columns)

    # -- the claims ------------------------------------------------------------------------------

    def _at_its_place(self, access: _Access) -> Iterator[str]:
        tile = axis(access.loops[0].var) % self.tiles
        wanted = self.held.address(access.stmt.point, tile)
        domain = executed(access.loops).where(*access.guards)
        address = access.stmt.address
        if address is not wanted and not always_equal(domain, address, wanted):
            yield f"{address} is not where its point of {self._name} lies, which is {wanted}"
        known = self._coordinates(access)
        ranges = {name: (low, high) for name, low, high in domain.axes}
        for found in self.stage.outer:
            guard = Guard(known[found.name], found.size)
            # Rows are looked at with the loops that say which of them there are.
            if found.name == self.ring.axis or always(guard, ranges) or holds(domain, guard):
                continue
            yield f"{guard.expr} leaves the axis {found.name} of {self._name}"
        if self.held.tile is not None and isinstance(access.stmt, ir.Store):
            # Beyond its columns an address would be that of another row.
            guard = Guard(self.held.column(access.stmt.point, tile), self.held.tile.width)
            if not holds(self._beside(access).domain, guard):
                yield f"{guard.expr} leaves the {guard.size} columns of a tile of {self._name}"

    def _rows_of_steps(self, stores: Sequence[_Access]) -> Iterator[str]:
        """What is stored in a step is its row: all of it once, where rows are not cut."""
        for access in stores:
            step, row = axis(access.loops[1].var), self._row(access)
            if row - step is not constant(self.ring.high):
                yield f"{self._name} is stored in row {row}, not {step + self.ring.high}"
                return
        if self.held.tile is None:
            yield from self._whole_rows(stores)

    def _whole_rows(self, stores: Sequence[_Access]) -> Iterator[str]:
        """In every step that stores a row, each of its elements is stored once."""
        rows: dict[tuple[str, ...], list[Piece]] = {}
        for access in stores:
            known, columns = self._coordinates(access), self._columns(access)
            domain = executed(tuple(loop for loop in access.loops if loop.var in columns))
            index = tuple(known[name] for name in self._inside())
            key = tuple(str(id(loop)) for loop in self._row_loops(access))
            rows.setdefault(key, []).append(Piece(domain, index))
        sizes = {found.name: found.size for found in self.stage.outer}
        box = Domain.box({name: sizes[name] for name in self._inside()})
        for pieces in rows.values():
            missing = difference(tuple(pieces), box)
            if missing is not None:
                yield f"a row of {self._name} is not stored as a whole: {missing}"

    def _alive(self, stores: Sequence[_Access], loads: Sequence[_Access]) -> Iterator[str]:
        last = max((access.place for access in stores), default=-1)
        for access in loads:
            if access.place < last:
                yield f"{self._name} is read before the row of the same step is stored"
                return
            loop, made = access.loops[1], stores[0].loops[1] if stores else None
            step = axis(loop.var) if made is None or loop is made else made.stop - 1
            age = Guard(step + self.ring.high - self._row(access), self.held.depth)
            domain = executed(self._row_loops(access))
            ranges = {name: (low, high) for name, low, high in domain.axes}
            if not always(age, ranges) and not holds(domain, age):
                yield (
                    f"row {self._row(access)} of {self._name} is read in step {step}, when the "
                    f"ring of {self.held.depth} rows does not hold it"
                )

    def _complete(self, stores: Sequence[_Access], loads: Sequence[_Access]) -> Iterator[str]:
        """Every row that a piece loads is one that it stores."""
        stored = tuple(dict.fromkeys(self._rows_of(access) for access in stores))
        for rows in dict.fromkeys(self._rows_of(access) for access in loads):
            point = uncovered(rows, stored)
            if point is not None:
                shown = ", ".join(f"{name} = {value}" for name, value in point.items())
                yield f"{self._name} is read at {shown} in a row that its piece has not stored"
        if self.held.tile is not None:
            yield from self._columns_stored(stores, loads)

    def _columns_stored(self, stores: Sequence[_Access], loads: Sequence[_Access]) -> Iterator[str]:
        """Every step that stores a row stores all columns of it that the piece loads."""
        steps: dict[tuple[int, ...], dict[Piece, None]] = {}
        for access in stores:
            key = tuple(map(id, self._row_loops(access)))
            steps.setdefault(key, {})[self._beside(access)] = None
        wanted = dict.fromkeys(map(self._beside, loads))
        for stored, columns in product(map(tuple, steps.values()), wanted):
            point = uncovered(columns, stored)
            if point is not None:
                shown = ", ".join(f"{name} = {value}" for name, value in point.items())
                yield f"{self._name} is read at {shown} in columns that its piece has not stored"
                return

    def _beside(self, access: _Access) -> Piece:
        """The piece and the place in a row of an access, over the loops that say them."""
        names, known = self._columns(access), self._coordinates(access)
        loops = (access.loops[0], *(loop for loop in access.loops if loop.var in names))
        around = {loop.var for loop in loops}
        guards = tuple(guard for guard in access.guards if axes_of(guard.expr) <= around)
        index = (axis(loops[0].var), *(known[name] for name in self._inside()))
        return Piece(executed(loops).where(*guards), index)

    def _rows_of(self, access: _Access) -> Piece:
        """The piece, the batch and the row of an access, over the loops that say them."""
        loops, known = self._row_loops(access), self._coordinates(access)
        names = {loop.var for loop in loops}
        guards = tuple(guard for guard in access.guards if axes_of(guard.expr) <= names)
        batch = tuple(known[name] for name in self.ring.batch)
        domain = executed(loops).where(*guards)
        return Piece(domain, (axis(loops[0].var), *batch, known[self.ring.axis]))
