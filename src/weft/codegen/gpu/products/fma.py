"""Matrix products by FMA instructions instead of tensor cores: any dtype and layout, operands that
are computed, guarded or gathered, any epilogue.

    tile      a block makes `tile` rows by columns of the result, a warp `warp_tile` of them; 4 by 8
              lanes share that in pieces of 16 bytes
    slice     `tile` k deep, of both operands, as they are multiplied, in shared memory: a ring of
              `stages`, in which factors that the kernel computes wait too (`local_edges`)
    step      multiply what a lane holds of one k, while that of the next k is loaded; before the
              last one the slice that the ring has room for is put down, and the next asked for

Rows, columns and what is summed over are numbers that are taken apart into the kernel's axes where
an operand is read or a result stored. Elements outside the tensors are zeros that nobody stores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import gcd, prod
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.accept import kernel_refusals
from weft.codegen.gpu.body.peephole import recognise
from weft.codegen.gpu.body.scopes import Group, Scope, group_at
from weft.codegen.gpu.body.thread import Refs
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.element_ops import ElementOp
from weft.codegen.gpu.ir.formats import ACCESS_BYTES, held_bytes
from weft.codegen.gpu.ir.scalar import BLOCK, LANE, THREAD, WARP, Lit, Name, Scalar, both, least
from weft.codegen.gpu.maps.map import Elementwise
from weft.codegen.gpu.products.fma_layout import (
    PADDING,
    factors,
    order_of,
    points_along,
    refusals,
    registers_of,
)
from weft.codegen.gpu.products.fma_registers import LANE_GRID
from weft.codegen.gpu.template import Job
from weft.foundation.dtypes import DType
from weft.foundation.errors import Finding
from weft.foundation.index_expr import coefficient
from weft.foundation.records import dataclass
from weft.plan.ir import MmaPlan, Plan
from weft.region.forms.codes import made_of
from weft.region.ir import Kernel, Read, Tensor
from weft.target.target import Target

_LANE_ROW: Final = (LANE & 1) + (LANE >> 4) * 2
_LANE_COLUMN: Final = (LANE >> 1) & 7
"""Pairs of lanes share a column's piece, and pairs of such pairs a row's: shared memory gives 16
bytes to 16 lanes at a time where these ask for eight pieces, else to eight."""
_BANKS: Final = 8
"""Pieces of 16 bytes that all banks of shared memory give at a time."""


def accepts(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: MmaPlan, target: Target
) -> list[Finding]:
    """Why this template cannot carry out the kernel with the plan; empty if it can. Plans speak of
    the kernel as it was written."""
    own = refusals(kernel, plan, target)
    return [*kernel_refusals(recognise(kernel), tensors), *own]


@dataclass(frozen=True)
class _Side:
    """One factor: its tile in shared memory, its axes, and the extents of the problem and tile."""

    name: str
    value: str
    dtype: DType
    axes: tuple[str, ...]
    size: int
    extent: int
    place: Scalar
    """The number of the tile's first row or column."""

    @property
    def word(self) -> int:
        return held_bytes(self.dtype)


@dataclass
class _Fetched:
    """Values on their way to a slice, and where they go: k, and row or column."""

    found: list[tuple[str, Scalar, Scalar]] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.found]


class Tiles(Elementwise):
    """A tile of the result to a block."""

    def __init__(self, kernel: Kernel, refs: Refs, plan: MmaPlan, target: Target) -> None:
        super().__init__(kernel, refs, target)
        assert kernel.roles is not None
        self.plan, self.target = plan, target
        (rows, columns, self.depth), (warp_rows, warp_columns) = plan.tile, plan.warp_tile
        self.warps = (rows // warp_rows, columns // warp_columns)
        self.batch, m, n, self.k = (
            tuple(axis.name for axis in kernel.axes if axis.name in names)
            for names in (kernel.roles.batch, kernel.roles.m, kernel.roles.n, kernel.roles.k)
        )
        self.length = points_along(kernel, self.k)
        self.a, self.b = (
            _Side(name, value, self.lets[value].dtype, axes, points_along(kernel, axes), extent, at)
            for name, value, axes, extent, at in zip(
                ("a", "b"),
                factors(kernel),
                (m, n),
                (rows, columns),
                (Name("tile_m") * rows, Name("tile_n") * columns),
                strict=True,
            )
        )
        self.contraction = self.lets[kernel.roles.contraction]
        self.root = Scope(None, {}, [])
        self.order = order_of(kernel, plan)
        self.tables = self.order.tables if self.order.count else ()
        start = 0
        for side in (self.a, self.b):
            size = plan.stages * self.depth * self.pitch(side) * side.word
            self.tiles.append(ir.SharedTile(side.name, start, size))
            start += size

    @property
    def grid(self) -> int:
        return self.order.count

    @property
    def threads(self) -> int:
        return prod(self.warps) * 32

    @property
    def resident(self) -> int:
        return registers_of(self.kernel, self.plan).resident(self.target)

    # -- the problem -----------------------------------------------------------------------------

    def work(self) -> list[ir.Stmt]:
        body = self.root.body
        body += self.order.locate(BLOCK)
        if self.batch and points_along(self.kernel, self.batch) > 1:
            self.root.axes = self.places(self.root, Name("matrix"), self.batch)
        else:
            self.root.axes = {name: Lit(0) for name in self.batch}
        body += [
            ir.Let("lane_m", WARP // self.warps[1] * self.plan.warp_tile[0]),
            ir.Let("lane_n", WARP % self.warps[1] * self.plan.warp_tile[1]),
        ]
        rows = self.own_places(self.a, Name("lane_m"), _LANE_ROW, LANE_GRID[0])
        columns = self.own_places(self.b, Name("lane_n"), _LANE_COLUMN, LANE_GRID[1])
        sums = [[self.fresh("acc") for _ in columns] for _ in rows]
        start = 0.0 if self.contraction.dtype.is_float else 0
        body += [
            values.Variable(name, self.contraction.dtype, start) for line in sums for name in line
        ]
        if self.length:
            self.multiply_slices(rows, columns, sums)
        self.store_results(rows, columns, sums)
        return body

    def piece(self, side: _Side) -> int:
        """Neighbouring rows or columns that a lane has, at most an access of shared memory."""
        lanes = LANE_GRID[0] if side is self.a else LANE_GRID[1]
        warp = self.plan.warp_tile[0 if side is self.a else 1]
        found = ACCESS_BYTES // side.word
        while warp // lanes % found:
            found //= 2
        return found

    def own_places(self, side: _Side, first: Scalar, lane: Scalar, lanes: int) -> list[Scalar]:
        """A lane's rows or columns, as numbers in the tile: pieces of neighbours, `lanes` apart."""
        piece = self.piece(side)
        warp = self.plan.warp_tile[0 if side is self.a else 1]
        name = self.fresh("own")
        self.root.body.append(ir.Let(name, first + lane * piece))
        return [
            Name(name) + (turn * lanes * piece + step)
            for turn in range(warp // (lanes * piece))
            for step in range(piece)
        ]

    # -- slices ----------------------------------------------------------------------------------

    @property
    def slices(self) -> int:
        return -(-self.length // self.depth)

    def multiply_slices(
        self, rows: Sequence[Scalar], columns: Sequence[Scalar], sums: Sequence[Sequence[str]]
    ) -> None:
        sides, ahead_of = ((self.a, rows), (self.b, columns)), self.plan.stages - 1
        for number in range(ahead_of):
            first = Lit(min(number, self.slices - 1))
            for side, _ in sides:
                self.put(self.root, side, self.fetch(self.root, side, first), Lit(number))
        early = all(self.comes_early(side) for side, _ in sides)
        coming = [self.expect(side) for side, _ in sides] if early else []
        self.root.body.append(ir.SyncThreads())
        held = [self.hold(side, places) for side, places in sides]
        inner = Scope(self.root, {}, [])
        later = self.slice_after(ahead_of)
        fetched = coming or [self.fetch(inner, side, later) for side, _ in sides]
        meeting = self.meeting(inner, fetched, early=early)
        turn: list[ir.Stmt] = [ir.If(Name("step").equals(self.depth - 1), meeting)]
        after = Name("step") + 1
        buffer, k = (Name("slice") + after // self.depth) % self.plan.stages, after % self.depth
        ahead = [self.load_pieces(turn, side, buffer, k, places) for side, places in sides]
        self.add_products(turn, held, sums)
        for names, found in zip(held, ahead, strict=True):
            turn += _assign_all(names, found)
        inner.body.append(ir.For("step", 0, self.depth, 1, tuple(turn), times=self.depth))
        self.root.body.append(ir.For("slice", 0, self.slices, 1, tuple(inner.body)))

    def meeting(
        self, inner: Scope, fetched: Sequence[_Fetched], *, early: bool
    ) -> tuple[ir.Stmt, ...]:
        """The slice that was fetched is put where the one before this lay and, `early`, the one
        after it asked for: its elements have all products of a slice to arrive in."""
        scope, sides, stages = Scope(inner, {}, []), (self.a, self.b), self.plan.stages
        for side, found in zip(sides, fetched, strict=True):
            # Nobody reads there since the last meeting: what is multiplied in a slice's last step
            # was loaded in the step before it.
            self.put(scope, side, found, (Name("slice") + (stages - 1)) % stages)
        for side, found in zip(sides, fetched if early else (), strict=early):
            after = self.fetch(scope, side, self.slice_after(stages))
            scope.body += _assign_all(found.names, after.names)
        return (*scope.body, ir.SyncThreads())

    def slice_after(self, count: int) -> Scalar:
        """The slice that many after this one; beyond the last the last again, which nobody uses."""
        return least(Name("slice") + count, self.slices - 1)

    def expect(self, side: _Side) -> _Fetched:
        """Variables for a slice on its way, at first the one that the ring has no room for."""
        first = self.fetch(self.root, side, Lit(min(self.plan.stages - 1, self.slices - 1)))
        names = self.variables(side, "coming", first.names)
        places = [place for _, *place in first.found]
        return _Fetched([(name, k, at) for name, (k, at) in zip(names, places, strict=True)])

    def hold(self, side: _Side, places: Sequence[Scalar]) -> list[str]:
        """Variables for what a lane multiplies next, at first the beginning of the first slice."""
        first = self.load_pieces(self.root.body, side, Lit(0), Lit(0), places)
        return self.variables(side, "held", first)

    def variables(self, side: _Side, prefix: str, sources: Sequence[str]) -> list[str]:
        """Variables that begin with the values of others."""
        start = 0.0 if side.dtype.is_float else 0
        names = [self.fresh(prefix) for _ in sources]
        self.root.body += [values.Variable(name, side.dtype, start) for name in names]
        self.root.body += _assign_all(names, sources)
        return names

    def fetch(self, scope: Scope, side: _Side, number: Scalar) -> _Fetched:
        """This thread's share of a slice, in registers."""
        along_k = self.runs_along_k(side)
        axis = (self.k if along_k else side.axes)[-1:]
        vector = self.vector(side, axis)
        per_line = (self.depth if along_k else side.extent) // vector
        fetched = _Fetched()
        for turn in range(side.extent * self.depth // (self.threads * vector)):
            variable = self.fresh("p")
            scope.body.append(ir.Let(variable, THREAD + turn * self.threads))
            inner, outer = Name(variable) % per_line * vector, Name(variable) // per_line
            k, across = (inner, outer) if along_k else (outer, inner)
            names = self.fetch_vector(scope, side, (number * self.depth + k, across), axis, vector)
            if self.length % self.depth and not self.is_read(side):
                names = self.zero_beyond(scope, side, names, number * self.depth + k)
            for step, name in enumerate(names):
                place = (k + step, across) if along_k else (k, across + step)
                fetched.found.append((name, *place))
        return fetched

    def is_read(self, side: _Side) -> bool:
        """Whether a factor is what was read: zeros, where nothing was."""
        return isinstance(self.lets[side.value].expr, Read)

    def comes_early(self, side: _Side) -> bool:
        """Whether a slice may be asked for a slice ahead: nothing is computed of its elements, and
        they come in vectors, which leaves registers for them."""
        axis = (self.k if self.runs_along_k(side) else side.axes)[-1:]
        return self.is_read(side) and self.vector(side, axis) > 1

    def runs_along_k(self, side: _Side) -> bool:
        """Whether neighbours along k, rather than rows or columns, are neighbours in memory."""
        if not side.axes or not self.k:
            return bool(self.k)
        reads = [let for let in made_of(self.kernel, side.value) if isinstance(let.expr, Read)]
        along = across = 0
        for let in reads:
            assert isinstance(let.expr, Read)
            address = self.address(let.expr)
            along += coefficient(address, self.k[-1]) == 1
            across += coefficient(address, side.axes[-1]) == 1
        return along >= across

    def vector(self, side: _Side, axis: Sequence[str]) -> int:
        """Elements that a thread fetches together, along an axis."""
        reads = [let for let in made_of(self.kernel, side.value) if isinstance(let.expr, Read)]
        widest = max((let.dtype.storage_bytes for let in reads), default=side.word)
        share = side.extent * self.depth // self.threads
        found = max(1, ACCESS_BYTES // widest)
        extent = self.kernel.sizes[axis[0]] if axis else 1
        # Vectors along k divide a slice's depth, those across it a line of the slice as well.
        line = self.depth if axis == self.k[-1:] else gcd(self.depth, side.extent)
        while found > 1 and (extent % found or share % found or line % found):
            found //= 2
        return found

    def fetch_vector(
        self,
        scope: Scope,
        side: _Side,
        place: tuple[Scalar, Scalar],
        axis: Sequence[str],
        vector: int,
    ) -> list[str]:
        """A factor at neighbouring points, the first at a number of k and a row of the tile."""
        k, row = self.fresh("k"), self.fresh("r")
        scope.body += [ir.Let(k, place[0]), ir.Let(row, side.place + place[1])]
        inside: Scalar = Name(k) < self.length if self.length % self.depth else Lit(1)
        if side.size % side.extent:
            inside = both(inside, Name(row) < side.size)
        axes = self.places(scope, Name(k), self.k) | self.places(scope, Name(row), side.axes)
        group = group_at(scope, axes, axis[0] if axis else None, vector, inside)
        return [self.value(side.value, point) for point in group.instances]

    def zero_beyond(
        self, scope: Scope, side: _Side, names: Sequence[str], number: Scalar
    ) -> list[str]:
        """The values of a slice, zeros where there is nothing more to sum."""
        zero = self.fresh()
        start = 0.0 if side.dtype.is_float else 0
        scope.body.append(values.Compute(ElementOp(zero, side.dtype, "const", (), start)))
        found = []
        for name in names:
            found.append(self.fresh())
            inside = number < self.length
            scope.body.append(values.Choose(found[-1], side.dtype, inside, name, zero))
        return found

    def slot(self, side: _Side, buffer: Scalar, k: Scalar, place: Scalar) -> ir.Address:
        row = (buffer * self.depth + k) * self.pitch(side)
        vector = self.scattered(side)
        if vector:
            place = place ^ k // vector % _BANKS * (ACCESS_BYTES // side.word)
        return ir.Address(side.name, (row + place) * side.word)

    def pitch(self, side: _Side) -> int:
        """Elements from one k of a slice to the next."""
        return side.extent + (0 if self.scattered(side) else PADDING)

    def scattered(self, side: _Side) -> int:
        """Elements that a thread fetches together, where those of eight threads are neighbours
        along k: each goes to another row of the slice, so rows are permuted in pieces of 16 bytes,
        every eighth by the same number, and what eight threads put down lies in as many banks. 0
        where fewer are."""
        if not self.runs_along_k(side) or side.extent % (_BANKS * ACCESS_BYTES // side.word):
            return 0
        vector = self.vector(side, self.k[-1:])
        return vector if vector > 1 and self.depth // vector >= _BANKS else 0

    def put(self, scope: Scope, side: _Side, fetched: _Fetched, buffer: Scalar) -> None:
        for name, k, place in fetched.found:
            address = self.slot(side, buffer, k, place)
            scope.body.append(ir.StShared(address, name, side.dtype))

    def add_products(
        self,
        body: list[ir.Stmt],
        held: Sequence[Sequence[str]],
        sums: Sequence[Sequence[str]],
    ) -> None:
        """The products of what a lane holds, added to the sums: row after row, there and back, so
        that each has a factor in common with the one before."""
        everywhere: dict[str, Scalar] = {name: Lit(0) for name in self.kernel.sizes}
        reduction = self.reductions[self.contraction.name]
        left, right = held
        for number, (a, names) in enumerate(zip(left, sums, strict=True)):
            line = list(zip(right, names, strict=True))
            for b, name in reversed(line) if number % 2 else line:
                made = {self.a.value: a, self.b.value: b}
                point = Scope(None, everywhere, body, made=made)
                (following,) = reduction.step(self, point, [name])
                body.append(values.Assign(name, following, Lit(1)))

    def load_pieces(
        self,
        body: list[ir.Stmt],
        side: _Side,
        buffer: Scalar,
        k: Scalar,
        places: Sequence[Scalar],
    ) -> list[str]:
        """What a lane has of one k of a slice."""
        piece, found = self.piece(side), list[str]()
        for first in range(0, len(places), piece):
            names = tuple(self.fresh() for _ in range(piece))
            address = self.slot(side, buffer, k, places[first])
            body.append(
                ir.LoadSharedVector(names, side.dtype, address)
                if piece > 1
                else ir.LoadShared(names[0], side.dtype, address)
            )
            found += names
        return found

    # -- results ---------------------------------------------------------------------------------

    def store_results(
        self, rows: Sequence[Scalar], columns: Sequence[Scalar], sums: Sequence[Sequence[str]]
    ) -> None:
        piece = self.piece(self.b)
        last = self.b.axes[-1:] if self.b.axes else ()
        together = piece if last and self.kernel.sizes[last[0]] % piece == 0 else 1
        starts = [
            self.row_or_column(self.b, columns[first]) for first in range(0, len(columns), together)
        ]
        for row, line in zip(rows, sums, strict=True):
            places, inside = self.row_or_column(self.a, row)
            scope = Scope(self.root, places, self.root.body, inside)
            for number, (axes, exists) in enumerate(starts):
                axis = last[0] if last and together > 1 else None
                group = group_at(scope, axes, axis, together, exists)
                for point, name in zip(group.instances, line[number * together :], strict=False):
                    home = self.home(self.contraction.axes, point)
                    home.made.setdefault(self.contraction.name, name)
                self.store_group(group, {**self.root.axes, **places, **axes}, axis)

    def row_or_column(self, side: _Side, place: Scalar) -> tuple[dict[str, Scalar], Scalar]:
        """The axes of a lane's own row or column, and whether there is one."""
        name = self.fresh("r")
        self.root.body.append(ir.Let(name, side.place + place))
        whole = side.size % side.extent == 0
        inside: Scalar = Lit(1) if whole else Name(name) < side.size
        return self.places(self.root, Name(name), side.axes), inside

    def store_group(self, group: Group, axes: Mapping[str, Scalar], along: str | None) -> None:
        self.store_points(group, along, axes)


def _assign_all(names: Sequence[str], sources: Sequence[str]) -> list[ir.Stmt]:
    """Variables take the values of others, one for one."""
    pairs = zip(names, sources, strict=True)
    return [values.Assign(name, source, Lit(1)) for name, source in pairs]


class FmaTemplate:
    """Tiles of multiply-adds of single numbers."""

    name: Final = "fma"

    def takes(self, plan: Plan) -> bool:
        return isinstance(plan, MmaPlan) and plan.arch == "fma"

    def accepts(self, job: Job[MmaPlan]) -> list[Finding]:
        return accepts(job.kernel, job.tensors, job.plan, job.target)

    def build(self, job: Job[MmaPlan], name: str) -> ir.Kernel:
        return Tiles(job.short, job.refs, job.plan, job.target).kernel_called(name, job.tensors)


TEMPLATE: Final = FmaTemplate()
