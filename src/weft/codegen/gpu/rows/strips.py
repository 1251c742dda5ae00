"""Sliding-window reductions (pooling, depthwise convolutions): a thread takes a strip of
overlapping rows, and reads common elements once.

    column = block % groups * lanes + thread % lanes              a vector of columns
    strip  = block / groups * strips + thread / lanes % strips    `rows_per_thread` rows
    member = thread / rows_per_block                              one of `threads` that share it
    put what all strips read alike, the filters, into shared memory
    for each turn: for each tap of a chunk, for each row: accumulate

Taps and rows of a strip are written out, so that it is known which of them read the same element:
their indices are the same expression of the numbers of strip and chunk. They come in the order of
these elements. Rows that do not exist, at the end of an axis, are not stored; nothing is read for
them alone. Members merge their sums as in `columns.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.accept import kernel_refusals, refuse, too_many
from weft.codegen.gpu.body.index import Indexer, Ranges, unflatten
from weft.codegen.gpu.body.reductions import Reduction
from weft.codegen.gpu.body.scopes import ALWAYS, Group, Scope, group_at
from weft.codegen.gpu.body.thread import Refs, Resolve
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.formats import ACCESS_BYTES, held_bytes
from weft.codegen.gpu.ir.scalar import BLOCK, THREAD, Lit, Name, Scalar, both, least, wide
from weft.codegen.gpu.rows.columns import Columns, field_refusals
from weft.codegen.gpu.template import Job
from weft.foundation.errors import Finding
from weft.foundation.index_expr import (
    Expr,
    Guard,
    always,
    axes_of,
    axis,
    bounds,
    coefficient,
    linear,
    substitute,
)
from weft.plan.ir import Plan, RowPlan
from weft.plan.rows import row_count, row_length
from weft.plan.strips import Strip, first, lanes_of, resident_strips, staged, strip_of
from weft.region.ir import Binary, Cast, Kernel, Let, Read, Select, Tensor, Unary
from weft.region.ir import row_major as row_major_of
from weft.target.target import Target

_WRITTEN_OUT = 300
"""Products of turns that the compiler may interleave."""
_IN_VECTOR = "column.in"
"""The place of a column in its vector, as an axis."""
_ON_THEIR_WAY = 16
"""Elements that a thread has asked for before it puts the first into shared memory, at most."""


def accepts(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: RowPlan, target: Target
) -> list[Finding]:
    """Why this template cannot carry out the kernel with the plan; empty if it can."""
    return [*kernel_refusals(kernel, tensors), *_strips_refusals(kernel, plan)]


def _strips_refusals(kernel: Kernel, plan: RowPlan) -> Iterator[Finding]:
    strip = strip_of(kernel, plan.rows_per_thread)
    if strip is None:
        why = f"no {plan.rows_per_thread} rows side by side overlap"
        yield refuse("PlanField", why, "use rows_per_thread=1")
        return
    size = kernel.sizes[strip.of.columns]
    if size % plan.vector:
        yield refuse("Vector", f"a vector of {plan.vector} does not divide an axis of {size}")
    yield from too_many(row_count(kernel), row_length(kernel))
    yield from field_refusals(plan)


class Strips(Columns):
    """A strip of overlapping rows, and a vector of columns, to some threads."""

    def __init__(self, kernel: Kernel, refs: Refs, plan: RowPlan, target: Target) -> None:
        found = strip_of(kernel, plan.rows_per_thread)
        assert found is not None
        super().__init__(kernel, refs, plan, found.of.kept)
        self.strip: Strip = found
        self.target = target
        self.lanes = lanes_of(kernel, found.of, plan)
        self.columns_of_block = self.lanes * plan.vector
        for name, count in found.rows.items():
            self.sizes[name] = -(-self.sizes[name] // count)
        self.sizes[found.pair.reduced] //= found.chunk
        self.strips = prod(self.sizes[name] for name in self.kept[:-1])
        self.groups = -(-self.sizes[self.kept[-1]] // self.lanes)
        numbered = {first(name): self.sizes[name] for name in (*found.rows, found.pair.reduced)}
        self.ranges = {**kernel.ranges, **{n: (0, size - 1) for n, size in numbered.items()}}
        self.indexer = Indexer({**self.indexer.ranges, **self.ranges}, self.params)
        self.moved: dict[Scope, dict[str, Expr]] = {}
        """Axes of points, from the numbers of strip and chunk."""
        self.known_reads: dict[tuple[object, ...], str] = {}
        self.known_values: dict[tuple[object, ...], str] = {}
        self.rows: list[Group] = []
        self.staged: dict[str, str] = {}
        """Tiles of what waits in shared memory."""

    @property
    def grid(self) -> int:
        return self.groups * -(-self.strips // self.strips_of_block)

    @property
    def strips_of_block(self) -> int:
        return self.plan.rows_per_block // self.lanes

    @property
    def resident(self) -> int:
        return resident_strips(self.strip, self.plan, self.target)

    # -- places ----------------------------------------------------------------------------------

    def work(self) -> Iterator[ir.Stmt]:
        side, body = self.plan.rows_per_block, self.root.body
        vectors = self.sizes[self.kept[-1]]
        lane, place = THREAD % self.lanes, THREAD % side // self.lanes
        body.append(ir.Let("column", BLOCK % self.groups * self.lanes + lane))
        body.append(ir.Let("number", BLOCK // self.groups * self.strips_of_block + place))
        body.append(ir.Let("member", THREAD // side))
        exists: Scalar = Lit(1)
        found = []
        for name, count, own in (
            ("column", vectors, self.lanes),
            ("number", self.strips, self.strips_of_block),
        ):
            whole = count % own == 0
            exists = exists if whole else both(exists, Name(name) < count)
            found.append(Name(self.fresh("at")))
            body.append(
                ir.Let(found[-1].name, Name(name) if whole else least(Name(name), count - 1))
            )
        self.stage_all()
        axes = self.places(self.root, found[1], self.strip.of.in_turn, self.sizes)
        for name in self.strip.rows:
            self.root.axes[first(name)] = axes.pop(name)
        axes[self.kept[-1]] = found[0] * self.plan.vector
        self.columns = group_at(self.root, axes, self.kept[-1], self.plan.vector, Lit(1))
        self.rows = [self.row(self.columns, at, body) for at in self.strip.points]
        stored = both(exists, Name("member").equals(0)) if self.plan.threads > 1 else exists
        for row in self.rows:
            self.store_group(self.kernel.outputs, stored, row, 0)
        yield from body

    def row(self, under: Group, at: Mapping[str, int], body: list[ir.Stmt]) -> Group:
        """A row of the strip, under the scopes of its columns."""
        places, inside = dict[str, Scalar](), both(ALWAYS, ALWAYS)
        for name, step in at.items():
            count, size = self.strip.rows[name], self.kernel.sizes[name]
            places[name] = self.root.axes[first(name)] * count + step
            if size % count > 0 and step >= size % count:
                inside = both(inside, places[name] < size)
        return self.below(under, places, inside, self.strip.moved(at, 0), body)

    def below(
        self,
        under: Group,
        places: dict[str, Scalar],
        inside: Scalar,
        moved: Mapping[str, Expr],
        body: list[ir.Stmt],
    ) -> Group:
        """Scopes under those of a group, in which more axes are known."""
        group = Group(self.kept[-1])
        for parent in under.instances:
            scope = Scope(parent, dict(places), body, inside, group)
            outer = self.moved.get(parent, {})
            self.moved[scope] = outer | {name: moved[name] for name in places if name in moved}
            group.instances.append(scope)
        return group

    # -- sums ------------------------------------------------------------------------------------

    def reduce(self, reduction: Reduction, home: Scope) -> None:
        """The results of a reduction for all rows of the strip."""
        count = len(self.rows) * self.plan.vector
        carries = [[self.fresh("acc") for _ in reduction.carries] for _ in range(count)]
        for names in carries:
            for name, carry in zip(names, reduction.carries, strict=True):
                self.root.body.append(values.Variable(name, carry.dtype, carry.start))
        if self.length:
            self.accumulate(reduction, carries)
        if self.plan.threads > 1:
            self.merge(reduction, carries)
        points = [point for row in self.rows for point in row.instances]
        for point, names in zip(points, carries, strict=True):
            for result, place in reduction.results.items():
                point.made[result] = names[place]

    def accumulate(self, reduction: Reduction, carries: Sequence[Sequence[str]]) -> None:
        """A loop over chunks of taps, each written out for all rows."""
        threads, pair = self.plan.threads, self.strip.pair
        length = self.length // self.strip.chunk
        number, turn = self.fresh("q"), self.fresh("turn")
        inner = Scope(self.root, {}, [])
        inner.body.append(ir.Let(number, Name(turn) * threads + Name("member")))
        whole = length % threads == 0
        inside = Lit(1) if whole else Name(number) < length
        own = Name(number) if whole else least(Name(number), length - 1)
        places = self.places(inner, own, self.reduced, self.sizes)
        chunk = places.pop(pair.reduced)
        places[first(pair.reduced)] = chunk
        turns = self.below(self.columns, places, inside, {}, inner.body)
        taps = []
        for tap in range(self.strip.chunk):
            at: dict[str, Scalar] = {pair.reduced: chunk * self.strip.chunk + tap}
            moved = self.strip.moved({}, tap)
            taps.append(self.below(turns, at, ALWAYS, moved, inner.body))
        for row, tap in self.in_order():
            points = self.row(taps[tap], self.strip.points[row], inner.body)
            sums = carries[row * self.plan.vector :]
            for names, point in zip(sums, points.instances, strict=False):
                following = reduction.step(self, point, names)
                for name, new in zip(names, following, strict=True):
                    inner.body.append(values.Assign(name, new, inside))
        count = -(-length // threads)
        each = len(carries) * self.strip.chunk
        few = range(max(1, min(count, _WRITTEN_OUT // each)), 0, -1)
        times = next(turns for turns in few if count % turns == 0)
        self.root.body.append(ir.For(turn, 0, count, 1, tuple(inner.body), times=times))

    def in_order(self) -> list[tuple[int, int]]:
        """Rows and taps in the order of the elements that they read; of those that share one, the
        first row first: where it does not exist, nor do the others."""
        pairs = [(row, tap) for row in range(len(self.rows)) for tap in range(self.strip.chunk)]
        reads = [let.expr for let in self.strip.of.streams if isinstance(let.expr, Read)]
        names = {self.strip.pair.kept, self.strip.pair.reduced}
        moving = [read for read in reads if names <= _index_axes(read)] or reads

        def place(pair: tuple[int, int]) -> tuple[int, int, int]:
            row, tap = pair
            moved = self.strip.moved(self.strip.points[row], tap)
            return (substitute(self.address(moving[0]), moved).constant, row, tap)

        return sorted(pairs, key=place)

    # -- values ----------------------------------------------------------------------------------

    def compute(self, let: Let, scope: Scope, resolve: Resolve) -> str:
        """What is made of the same values is made once."""
        if not isinstance(let.expr, Unary | Cast | Binary | Select):
            return super().compute(let, scope, resolve)
        operands = (getattr(let.expr, name, None) for name in ("x", "y", "lhs", "rhs", "pred"))
        args = tuple(resolve(name) for name in operands if name is not None)
        key = (let.name, args, id(scope.body))
        if key not in self.known_values:
            self.known_values[key] = super().compute(let, scope, resolve)
        return self.known_values[key]

    def read(self, let: Let, read: Read, home: Scope) -> None:
        """An element that was read before is known; others come as they do elsewhere, or from
        shared memory."""
        group = home.group
        if let.name in self.staged and group is not None:
            self.read_staged(let, home, group)
            return
        moved = self.moved.get(home, {})
        if group is None or not moved or read.places:
            super().read(let, read, home)
            return
        places = substitute(self.address(read), moved), self.moved_guards(read, home)
        keys = [(let.name, *places, n, id(home.body)) for n in range(len(group.instances))]
        if keys[group.instances.index(home)] not in self.known_reads:
            super().read(let, read, home)
        for key, point in zip(keys, group.instances, strict=True):
            if let.name in point.made:
                self.known_reads.setdefault(key, point.made[let.name])
            elif key in self.known_reads:
                point.made[let.name] = self.known_reads[key]

    def moved_guards(self, read: Read, scope: Scope) -> tuple[Guard, ...]:
        """The guards of a read that may fail at a point."""
        moved = self.moved.get(scope, {})
        found = [Guard(substitute(g.expr, moved), g.size) for g in self.kernel.open_guards(read)]
        return tuple(guard for guard in found if not always(guard, self.ranges))

    def guard(self, read: Read, scope: Scope) -> Scalar:
        if read.places or scope not in self.moved:
            return super().guard(read, scope)
        guards = self.moved_guards(read, scope)
        if any(_never(guard, self.indexer.ranges) for guard in guards):
            return Lit(0)
        holds = self.indexer.holds(guards, self.known(read, scope))
        return both(scope.exists(), holds)

    def offset(self, address: Expr, scope: Scope) -> Scalar:
        moved = substitute(address, self.moved.get(scope, {}))
        return wide(self.indexer.scalar(moved, scope.known()))

    # -- shared memory ---------------------------------------------------------------------------

    def stage_all(self) -> None:
        """What all strips read alike, put down by all threads of the block."""
        lets = staged(self.kernel, self.strip.of, self.pitch)
        for let in lets:
            start = sum(tile.bytes for tile in self.tiles)
            size = prod(self.sizes_staged(let, self.pitch).values()) * held_bytes(let.dtype)
            self.staged[let.name] = f"shared{len(self.tiles)}"
            self.tiles.append(ir.SharedTile(self.staged[let.name], start, size))
            self.stage(let)
        if lets:
            self.root.body.append(ir.SyncThreads())

    @property
    def pitch(self) -> int:
        """Places for the columns of a tap: an odd number of vectors, so that neighbouring taps of a
        vector lie in other banks."""
        return self.columns_of_block + (self.lanes % 2 == 0) * self.plan.vector

    def sizes_staged(self, let: Let, columns: int) -> dict[str, int]:
        """The axes of such a value in shared memory, so many columns last."""
        sizes = {name: self.kernel.sizes[name] for name in self.reduced if name in let.axes}
        if self.kept[-1] in let.axes:
            sizes[self.kept[-1]] = columns
        return sizes

    def stage(self, let: Let) -> None:
        """In the order in which elements lie in memory, but those of a vector together: neighbours
        put them into different banks. Several are on their way to each thread: put down one by
        one, each would wait for memory as long as a chunk of products takes."""
        body = self.root.body
        count = prod(self.sizes_staged(let, self.columns_of_block).values())
        turns, rest = divmod(count, self.threads)
        loops = max(0, turns - 1) // _ON_THEIR_WAY
        each = -(-turns // (loops + 1))
        if loops:
            turn = self.fresh("turn")
            first = Name(turn) * (each * self.threads)
            body.append(ir.For(turn, 0, loops, 1, self.put_down(let, first, each)))
        done = loops * each
        body.extend(self.put_down(let, Lit(done * self.threads), turns - done))
        if rest:
            last = self.put_down(let, Lit(turns * self.threads), 1)
            body.append(ir.If(rest > THREAD, last))

    def put_down(self, let: Let, first: Scalar, turns: int) -> tuple[ir.Stmt, ...]:
        """So many elements of each thread: all are asked for before one is stored."""
        assert isinstance(let.expr, Read)
        address, columns, vector = self.address(let.expr), self.kept[-1], self.plan.vector
        sizes = self.sizes_staged(let, self.lanes)
        order = sorted(sizes, key=lambda name: -abs(coefficient(address, name)))
        if columns in sizes:
            order, sizes = [*order, _IN_VECTOR], {**sizes, _IN_VECTOR: vector}
        inner, stores = Scope(self.root, {}, []), list[ir.Stmt]()
        for turn in range(turns):
            number, name = self.fresh("q"), self.fresh()
            inner.body.append(ir.Let(number, first + (turn * self.threads) + THREAD))
            places = unflatten(Name(number), order, sizes)
            if columns in places:
                places[columns] = places[columns] * vector + places.pop(_IN_VECTOR)
            at: dict[str, Scalar] = dict(places)
            exists: Scalar = ALWAYS
            if columns in at:
                at[columns] += BLOCK % self.groups * self.columns_of_block
                if self.sizes[columns] % self.lanes:
                    exists = at[columns] < self.kernel.sizes[columns]
            scope = Scope(inner, at, inner.body, exists)
            inner.body.append(self.load(name, let, let.expr, scope))
            stores.append(ir.StShared(self.slot(let, places), name, let.dtype))
        return (*inner.body, *stores)

    def slot(self, let: Let, places: Mapping[str, Scalar]) -> ir.Address:
        """Where an element is, from its places along the axes in shared memory."""
        sizes = self.sizes_staged(let, self.pitch)
        strides = row_major_of(tuple(sizes.values()))
        flat = linear(tuple(map(axis, sizes)), strides)
        indexer = Indexer({name: (0, size - 1) for name, size in sizes.items()}, {})
        number = indexer.scalar(flat, places)
        return ir.Address(self.staged[let.name], number * held_bytes(let.dtype))

    def read_staged(self, let: Let, home: Scope, group: Group) -> None:
        """The elements of all columns of a thread, as many at a time as an access takes."""
        columns = self.kept[-1]
        points = group.instances if columns in let.axes else [home]
        piece = min(len(points), ACCESS_BYTES // held_bytes(let.dtype))
        for start in range(0, len(points), piece):
            part = points[start : start + piece]
            places = dict(part[0].known())
            places[columns] = THREAD % self.lanes * self.plan.vector + start
            address = self.slot(let, places)
            names = tuple(self.fresh() for _ in part)
            home.body.append(
                ir.LoadSharedVector(names, let.dtype, address)
                if piece > 1
                else ir.LoadShared(names[0], let.dtype, address)
            )
            for point, name in zip(part, names, strict=True):
                point.made[let.name] = name


def _never(guard: Guard, ranges: Ranges) -> bool:
    """Whether a guard fails everywhere: between the elements of a strided image, and outside."""
    low, high = bounds(guard.expr, ranges)
    return high < 0 or low >= guard.size


def _index_axes(read: Read) -> set[str]:
    return {name for expr in read.index for name in axes_of(expr)}


class StripsTemplate:
    """Strips of overlapping rows."""

    name: Final = "strips"

    def takes(self, plan: Plan) -> bool:
        if not isinstance(plan, RowPlan) or plan.walks:
            return False
        return plan.across and plan.rows_per_thread > 1

    def accepts(self, job: Job[RowPlan]) -> list[Finding]:
        return accepts(job.short, job.tensors, job.plan, job.target)

    def build(self, job: Job[RowPlan], name: str) -> ir.Kernel:
        strips = Strips(job.short, job.refs, job.plan, job.target)
        return strips.kernel_called(name, job.tensors)


TEMPLATE: Final = StripsTemplate()
