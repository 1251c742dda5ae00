"""Convolutions with the channels before the image axes (planes), and the pooling behind them
(SM90).

    producer    the filters of all taps, once; for each tile, for each 64 channels: wait until the
                slot is empty, load the lines that two lines of sums need, 64 columns of each
    consumers   for each step: wait until the slot is full, multiply the lines with every tap; then
                add up the taps of a line, element program, pool, store

A tile is a line of results, two lines of sums, by 64 columns. Filters are rows of the matrices,
columns of the image their columns: a line lies along columns, and products of a tap are made for
all of them, in an accumulator for each tap along the line. A tap further on belongs to the sum one
column before it: so accumulators are added up a column apart (`AddShifted`), and the copy engine
begins at whole lines of memory. The first and the last column that are loaded lack a neighbour, if
the image does not end there: tiles overlap. Two consumers take tiles in turn. Zeros to the left and
right of the image are not multiplied: where a filter is infinite there, the NaN is missing.

Who may touch a slot is as in `sm90.py`; filters stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.accept import kernel_refusals, refuse, too_many
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.element_ops import ElementOp
from weft.codegen.gpu.ir.scalar import (
    BLOCK,
    LANE,
    THREAD,
    WARP,
    Lit,
    Name,
    Scalar,
    both,
    least,
    total,
    wide,
)
from weft.codegen.gpu.ir.swizzle import SWIZZLE_128, Major, TileLayout, operand_offset
from weft.codegen.gpu.products.problem import element_op
from weft.codegen.gpu.products.refusals import (
    algorithm_refusals,
    memory_refusals,
    unused_field_refusals,
)
from weft.codegen.gpu.products.ring import Ring
from weft.codegen.gpu.template import Job
from weft.foundation.dtypes import F32
from weft.foundation.errors import Finding
from weft.foundation.index_expr import coefficient, linear
from weft.plan.completion import CACHED, false_claims
from weft.plan.ir import MmaPlan, Plan
from weft.plan.planes import CONSUMERS, PlanesTile, tile_of
from weft.plan.text import told
from weft.region.forms.planes import (
    COLUMNS,
    DEPTH,
    FILTERS,
    POOL,
    SLICE,
    STEP,
    TAPS,
    Planes,
    between,
    find_planes,
    pools_first,
)
from weft.region.ir import Let, Read

Body = tuple[ir.Stmt, ...]
_USED: Final = frozenset({
    "header", "tile", "warp_tile", "cache", "epilogue", "local_edges", "arch", "algo_choice",
    "stages", "registers",
})  # fmt: skip
_FIXED: Final = {"roles": "pingpong", "order": "rows"}
_WARPGROUP: Final = 128
_MOST_STAGES: Final = 12
_GROUP: Final = 4
"""Neighbouring columns of results that a quad of lanes has."""


class PlanesBuilder:
    """Makes the statements of one kernel."""

    def __init__(self, job: Job[MmaPlan], found: Planes, name: str) -> None:
        self.kernel, self.plan, self.found, self.name = job.kernel, job.plan, found, name
        self.refs, self.sizes = job.refs, job.kernel.sizes
        self.at: PlanesTile = tile_of(job.kernel, job.tensors, found)
        self.buffers = list(job.kernel.buffers)
        self.slab = TileLayout(self.at.depth, COLUMNS * self.at.lines, 2, SWIZZLE_128)
        self.filter = TileLayout(FILTERS, DEPTH, 2, SWIZZLE_128)
        self.ring = Ring(job.plan.stages)
        self.grid = min(job.target.limits.units, self.at.tiles)
        image = job.kernel.let(found.image).expr
        assert isinstance(image, Read)
        self.image = image

    def kernel_called(self) -> ir.Kernel:
        return ir.Kernel(
            name=self.name,
            grid=self.grid,
            threads=_WARPGROUP * (1 + CONSUMERS),
            buffers=tuple(self.buffers),
            maps=tuple(self.maps()),
            tiles=tuple(self.tiles()),
            barriers=tuple(self.barriers()),
            tables=(),
            body=self.body(),
        )

    # Storage

    @property
    def taps(self) -> int:
        return prod(self.sizes[name] for name in self.found.taps)

    @property
    def filters_bytes(self) -> int:
        return self.at.steps * self.taps * self.filter.bytes

    def maps(self) -> Iterator[ir.TensorMap]:
        ref, dtype = self.refs[self.image.tensor], self.kernel.let(self.found.image).dtype
        images, channels, lines, columns = ref.shape
        steps = (ref.strides[1], ref.strides[2], ref.strides[0])
        sizes = (columns, channels, lines, images)
        box = (COLUMNS, self.at.depth, self.at.lines, 1)
        number = self.buffers.index(self.image.tensor)
        yield ir.TensorMap("x", number, dtype, 0, sizes, steps, box, SWIZZLE_128)
        read = self.kernel.let(self.found.filters).expr
        assert isinstance(read, Read)
        address = linear(read.index, self.refs[read.tensor].strides)
        down, along = self.found.taps
        order = (self.found.channels, self.found.row, along, down)
        yield ir.TensorMap(
            "w",
            self.buffers.index(read.tensor),
            dtype,
            0,
            tuple(self.sizes[name] for name in order),
            tuple(coefficient(address, name) for name in order[1:]),
            (DEPTH, FILTERS, 1, 1),
            SWIZZLE_128,
        )

    def tiles(self) -> Iterator[ir.SharedTile]:
        size = self.plan.stages * self.slab.bytes
        yield ir.SharedTile("w", 0, self.filters_bytes, self.filter)
        yield ir.SharedTile("x", self.filters_bytes, size, self.slab)

    def barriers(self) -> Iterator[ir.Barriers]:
        start, stages = self.filters_bytes + self.plan.stages * self.slab.bytes, self.plan.stages
        yield ir.Barriers("full", start, stages, 1)
        yield ir.Barriers("empty", start + 8 * stages, stages, 4)
        yield ir.Barriers("turn", start + 16 * stages, CONSUMERS, 4)
        yield ir.Barriers("ready", start + 16 * stages + 8 * CONSUMERS, 1, 1)

    # Roles

    def body(self) -> Body:
        prepare: list[ir.Stmt] = [ir.MbarrierInit(array.name) for array in self.barriers()]
        prepare += [ir.MbarrierInitFence(), *(ir.PrefetchMap(m.name) for m in self.maps())]
        less, more = self.plan.registers
        producer = (ir.SetMaxNReg(less, grow=False), *self.producer())
        consumer = (ir.SetMaxNReg(more, grow=True), *self.consumer())
        roles = ir.Roles(
            (
                ir.Role("producer", 0, 4, producer),
                ir.Role("consumer", 4, 4 * CONSUMERS, consumer),
            )
        )
        return (ir.If(THREAD.equals(0), tuple(prepare)), ir.SyncThreads(), roles)

    def producer(self) -> Iterator[ir.Stmt]:
        ring, slot = self.ring, self.ring.slot
        full = ir.BarrierAt("full", slot)
        load = ir.TmaLoad(
            ir.Address("x", slot * self.slab.bytes),
            "x",
            (
                Name("start"),
                Name("step") * DEPTH,
                Name("line") * POOL + self.found.start,
                Name("image"),
            ),
            full,
        )
        step = (
            ir.MbarrierWait(ir.BarrierAt("empty", slot), ring.phase ^ 1),
            ir.MbarrierExpectTx(full, self.slab.bytes),
            load,
            *ring.advance(),
        )
        steps = ir.For("step", 0, self.at.steps, 1, step)
        loop = ir.For("tile", BLOCK, self.at.tiles, self.grid, (*self.locate(), steps))
        yield ir.If(THREAD.equals(0), (*self.load_filters(), *ring.start(), loop))

    def load_filters(self) -> Iterator[ir.Stmt]:
        """All of them: those of 64 channels follow one another, tap by tap."""
        ready = ir.BarrierAt("ready", Lit(0))
        yield ir.MbarrierExpectTx(ready, self.filters_bytes)
        places = [
            (step, tap, divmod(tap, TAPS))
            for step in range(self.at.steps)
            for tap in range(self.taps)
        ]
        for step, tap, (down, along) in places:
            start = (step * self.taps + tap) * self.filter.bytes
            coords = (Lit(step * DEPTH), Lit(0), Lit(along), Lit(down))
            yield ir.TmaLoad(ir.Address("w", Lit(start)), "w", coords, ready)

    def locate(self) -> Body:
        """Where the tile `tile` lies: image, line of results, and the column that it begins at."""
        at, place, window = self.at, Name("place"), Name("window")
        return (
            ir.Let("window", Name("tile") % at.windows),
            ir.Let("place", Name("tile") // at.windows),
            ir.Let("line", place % self.sizes[self.found.line]),
            ir.Let("image", place // self.sizes[self.found.line]),
            ir.Let("start", least(window * STEP, max(0, at.width - COLUMNS))),
        )

    def consumer(self) -> Body:
        ring, group, turn = self.ring, Name("group"), Name("turn_phase")
        steps = Lit(self.at.steps)
        head: list[ir.Stmt] = [
            ir.Let("group", (WARP - 4) >> 2),
            ir.Let("quarter", WARP & 3),
            *ring.start(),
            *(ir.Registers(name, ir.RegisterKind.F32, COLUMNS) for name in self.sums),
            ir.Let("turn_phase", group.equals(0)),
            ir.If(group >= 1, ring.skip(steps)),
            ir.MbarrierWait(ir.BarrierAt("ready", Lit(0)), Lit(0)),
        ]
        body = (
            *self.locate(),
            ir.MbarrierWait(ir.BarrierAt("turn", group), turn),
            *(s for step in range(self.at.steps) for s in self.multiply(step)),
            ir.Set("turn_phase", turn ^ 1),
            *ring.skip(steps),
            *self.finish(),
        )
        first = BLOCK + group * self.grid
        return (*head, ir.For("tile", first, self.at.tiles, CONSUMERS * self.grid, body))

    # A tile

    @property
    def sums(self) -> tuple[str, ...]:
        """Those of each tap along a line."""
        return tuple(f"acc{tap}" for tap in range(TAPS))

    def multiply(self, step: int) -> Iterator[ir.Stmt]:
        """64 channels, or all: every line with the taps that it is met by. The other consumer may
        begin once the last step was asked for."""
        slot, x, w = self.ring.slot, f"x_tile{step}", f"w_tile{step}"
        start = step * self.taps * self.filter.bytes
        dtype = self.kernel.let(self.found.image).dtype
        yield ir.MbarrierWait(ir.BarrierAt("full", slot), self.ring.phase)
        yield ir.Descriptor(x, ir.Address("x", slot * self.slab.bytes), self.slab, Major.MN)
        yield ir.Descriptor(w, ir.Address("w", Lit(start)), self.filter, Major.K)
        yield ir.WgmmaFence()
        for tap in range(self.taps):
            down, along = divmod(tap, TAPS)
            for k in range(0, self.at.depth, SLICE):
                inside = operand_offset(self.filter, Major.K, 0, k)
                yield ir.Wgmma(
                    self.sums[along],
                    POOL * COLUMNS,
                    ir.WgmmaOperand(w, tap * self.filter.bytes + inside, Major.K),
                    ir.WgmmaOperand(
                        x, operand_offset(self.slab, Major.MN, COLUMNS * down, k), Major.MN
                    ),
                    dtype,
                    dtype,
                    accumulate=step + down + k > 0,
                )
        yield ir.WgmmaCommit()
        if step == self.at.steps - 1:
            # Its steps lie behind these in the ring: all waits for slots of this tile are done.
            other = ir.BarrierAt("turn", (Name("group") + 1) % CONSUMERS)
            yield ir.If(LANE.equals(0), (ir.MbarrierArrive(other),))
        yield ir.WgmmaWait(0, self.sums)
        empty = ir.MbarrierArrive(ir.BarrierAt("empty", slot))
        yield ir.If(LANE.equals(0), (empty,))
        yield from self.ring.advance()

    def finish(self) -> Iterator[ir.Stmt]:
        """The taps of a line added up, the element program in the place of the sums, the pool."""
        first, middle, last = self.sums
        # A result at column c is tap 0 times column c - 1, tap 1 times c and tap 2 times c + 1.
        # Each accumulator has its tap's products with every column: they are added a column apart.
        yield ir.AddShifted(middle, first, -1)
        yield ir.AddShifted(middle, last, 1)
        if not self.pools_first:
            yield self.element_program(middle)
        names = tuple(f"pooled{n}" for n in range(COLUMNS // 4))
        yield ir.PoolPairs(names, middle)
        if self.pools_first:
            yield from self.load_numbers()
        yield from self.count_stored()
        for group in range(COLUMNS // 8):
            yield from self.store_pair(group, names[2 * group], names[2 * group + 1])

    @property
    def row(self) -> Scalar:
        return Name("quarter") * 16 + (LANE >> 2)

    @property
    def pools_first(self) -> bool:
        return pools_first(self.kernel, self.found)

    def programmed(self, value: str) -> tuple[list[Let], list[Let], dict[str, str]]:
        """What is made of the sum that is called `value`: what is read for it, what is computed,
        and what each is called."""
        roles = self.kernel.roles
        assert roles is not None
        lets = between(self.kernel, self.found)
        names = {let.name: f"v{n}" for n, let in enumerate(lets, 1)} | {roles.contraction: value}
        reads = [let for let in lets if isinstance(let.expr, Read)]
        return reads, [let for let in lets if let not in reads], names

    def place_of(self, let: Let) -> tuple[int, int, int]:
        """The buffer of a number of the filters, where the first lies, and the step to the next."""
        assert isinstance(let.expr, Read)
        place = linear(let.expr.index, self.refs[let.expr.tensor].strides)
        number = self.buffers.index(let.expr.tensor)
        return number, place.constant, coefficient(place, self.found.row)

    def element_program(self, sums: str) -> ir.Stmt:
        reads, lets, names = self.programmed("v0")
        sources, ops = list[ir.ElementSource](), list[ElementOp]()
        for let in reads:
            number, first, step = self.place_of(let)
            name = names[let.name]
            sources.append(ir.GlobalElements(name, let.dtype, number, Lit(first), step, 0))
        ops += [element_op(let, names[let.name], names) for let in lets]
        result = names[lets[-1].name] if lets else "v0"
        if lets and lets[-1].dtype is not F32:
            ops.append(ElementOp("wide", F32, "cast", (result,)))
            result = "wide"
        held = self.sizes[self.found.row]
        fragment = ir.Fragment(POOL * COLUMNS // 8, self.row, (LANE & 3) * 2, held, POOL * COLUMNS)
        place_of = ir.RegAt(sums)
        return ir.Epilogue(
            place_of, fragment, "v0", tuple(sources), tuple(ops), result, place_of, F32
        )

    def load_numbers(self) -> Iterator[ir.Stmt]:
        """Those of the filter that this lane stores results of."""
        reads, _, names = self.programmed("")
        row = self.stored_row
        for let in reads:
            number, first, step = self.place_of(let)
            inside = row < self.sizes[self.found.row]
            yield ir.LoadElement(
                names[let.name], number, let.dtype, wide(row) * step + first, inside
            )

    @property
    def stored_row(self) -> Scalar:
        """Of lanes in pairs one has the upper row's results, the other the lower's."""
        return self.row + 8 * (LANE & 1)

    def made_of(self, sum: str) -> Iterator[ir.Stmt]:
        """The element program on one number; `<sum>_stored` is what it makes."""
        _, lets, names = self.programmed(sum)
        dtype, own = self.kernel.let(self.found.fold).dtype, {let.name for let in lets}
        names = {let: f"{name}_{sum}" if let in own else name for let, name in names.items()}
        if not self.pools_first:
            yield values.Compute(ElementOp(f"{sum}_stored", dtype, "cast", (sum,)))
            return
        for let in lets[:-1]:
            yield values.Compute(element_op(let, names[let.name], names))
        yield values.Compute(element_op(lets[-1], f"{sum}_stored", names))

    def store_pair(self, group: int, upper: str, lower: str) -> Iterator[ir.Stmt]:
        """Two neighbours of a row. What is beside the columns of the tile, other tiles store."""
        (output,) = self.kernel.outputs
        dtype, odd = self.kernel.let(self.found.fold).dtype, LANE & 1
        sent, got = f"sent{group}", f"got{group}"
        pair = [f"low{group}", f"high{group}"]
        # A lane has both rows of one pooled column, its neighbour those of the next: they trade,
        # and each has two neighbours of one row to store together.
        yield values.Choose(sent, F32, odd, upper, lower)
        yield values.Shuffle(got, F32, sent, 1)
        yield values.Choose(pair[0], F32, odd, got, upper)
        yield values.Choose(pair[1], F32, odd, lower, got)
        stored = [f"{name}_stored" for name in pair]
        for name in pair:
            yield from self.made_of(name)
        place = linear(output.index, self.refs[output.tensor].strides)
        row = self.stored_row
        column = (Name("start") >> 1) + (4 * group + (LANE & 2))
        found = self.found
        where = [(Name("image"), found.images), (row, found.row), (Name("line"), found.line)]
        steps = [wide(index) * coefficient(place, name) for index, name in where if name]
        offset = total(place.constant, *steps, column)
        yield values.StoreVector(
            self.buffers.index(output.tensor),
            dtype,
            offset,
            self.inside(group),
            tuple(stored),
        )

    def inside(self, group: int) -> Scalar:
        """Whether a tile stores a group of columns for this row: those before it begin eight
        columns further on than it does, behind the first. Groups are stored whole or not at all."""
        at, window, first = self.at, Name("window"), group * _GROUP
        all_rows = self.sizes[self.found.row] == FILTERS
        guard: Scalar = Lit(1) if all_rows else self.stored_row < self.sizes[self.found.row]
        if at.windows == 1:
            return both(guard, Lit(int(first < at.width // POOL)))
        if first < (COLUMNS - STEP) // (2 * POOL):
            guard = both(guard, window.equals(0))
        if first < min(map(self.stored_columns, range(at.windows))):
            return guard
        return both(guard, Name("stored") > first)

    def stored_columns(self, window: int) -> int:
        """Columns of results before which a tile has those that it stores."""
        most = self.at.width - COLUMNS
        start, end = min(window * STEP, most), min((window + 1) * STEP, most)
        last = window == self.at.windows - 1
        return (end + (COLUMNS - STEP) // 2 + last * (COLUMNS - 8) - start) // POOL

    def count_stored(self) -> Body:
        """The same, for the tile at hand."""
        at, window = self.at, Name("window")
        end = least((window + 1) * STEP, at.width - COLUMNS) - Name("start")
        last = window.equals(at.windows - 1)
        columns = (end + (COLUMNS - STEP) // 2 + last * (COLUMNS - 8)) // POOL
        return (ir.Let("stored", columns),) if at.windows > 1 else ()


# -- the template --------------------------------------------------------------------------------


class PlanesTemplate:
    """Convolutions of planes of channels, with a pool."""

    name: Final = "planes"

    def takes(self, plan: Plan) -> bool:
        return isinstance(plan, MmaPlan) and plan.arch == "planes"

    def accepts(self, job: Job[MmaPlan]) -> list[Finding]:
        return [*kernel_refusals(job.short, job.tensors), *_refusals(job)]

    def build(self, job: Job[MmaPlan], name: str) -> ir.Kernel:
        found = find_planes(job.kernel, job.tensors)
        assert found is not None  # `accepts` has refused the rest
        return PlanesBuilder(job, found, name).kernel_called()


def _refusals(job: Job[MmaPlan]) -> Iterator[Finding]:
    kernel, plan = job.kernel, job.plan
    found = find_planes(kernel, job.tensors)
    if found is None or not job.target.has("wgmma"):
        yield refuse("NotOfPlanes", f"{kernel.name} is not a convolution of planes with a pool")
        return
    yield from unused_field_refusals(plan, _USED, _FIXED, "the template of planes")
    if plan.cache not in ((), CACHED):
        yield refuse("PlanField", f"{told(plan, 'cache')}: both operands wait in shared memory")
    for why in (*false_claims(kernel, plan), *algorithm_refusals(kernel, plan)):
        yield refuse("PlanField", why)
    at = tile_of(kernel, job.tensors, found)
    if plan.tile != at.tile or plan.warp_tile != at.tile[:2]:
        yield refuse("Tile", f"a tile is {'x'.join(map(str, at.tile))}, one consumer's")
    elif not 2 <= plan.stages <= _MOST_STAGES:
        yield refuse("PlanField", f"a ring of {plan.stages} slots, not of 2 to {_MOST_STAGES}")
    else:
        yield from memory_refusals(at.shared_bytes(plan.stages), job.target)
    yield from too_many(at.tiles)


TEMPLATE: Final = PlanesTemplate()
