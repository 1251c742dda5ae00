"""The SM90 gradients of attention (*streams*): softmax weights are recomputed block by block.

    producer    one thread loads blocks of columns through a ring, another one the rows of each
                consumer, and two warps what is read for each column besides
    consumers   64 rows each:   S = A B'            and, at the same time,  T = C D'
                                P = 2^(S - shift)   while T is made
                                Y += P D            while dS is made of P and T
                                X += dS B

Of the gradient of queries A and C are queries and cotangents of results, B and D keys and values;
of those of keys and values it is the other way round, and the shifts, the log-sum-exp of each
query, are numbers of columns. Weights stay in registers, as operands of the second products. Blocks
of columns that are hidden from every row are not loaded, and only those at an edge are masked.
Every sum is made by one consumer, in the order of the columns: the same bits in every run.

Who may touch what: of a slot of the ring, the producer between `empty` and its copies, a consumer
between `full` (and `staged_full`) and its arrival on `empty`, which comes after `WgmmaWait` has
retired the last instruction that reads it. A consumer's rows are its own from `own_full` on; its
results take their place, and it arrives on `own_empty` when the copy engine has read those.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.attention.hulls import bounds
from weft.codegen.gpu.attention.layout import ROWS, WARPGROUP
from weft.codegen.gpu.attention.masks import visible
from weft.codegen.gpu.attention.queries import (
    GROUP,
    MEMBER,
    QUARTER,
    STEP,
    bit_registers,
    bits_drawn,
    bits_read,
    chances,
    constant,
    drawn,
    once_per_warp,
    read_from,
    states_read,
)
from weft.codegen.gpu.attention.results import put, unrounded
from weft.codegen.gpu.attention.stream_layout import StreamLayout
from weft.codegen.gpu.attention.stream_problem import Result
from weft.codegen.gpu.attention.work import TILE, range_length
from weft.codegen.gpu.body.quads import BOTH_ROWS
from weft.codegen.gpu.ir.element_ops import ElementOp
from weft.codegen.gpu.ir.scalar import LANE, LANES, THREAD, WARP, Lit, Name, Scalar
from weft.codegen.gpu.ir.swizzle import Major, TileLayout, operand_offset
from weft.codegen.gpu.ir.values import Compute
from weft.codegen.gpu.products.operand import Operand
from weft.codegen.gpu.products.problem import Source, Strides
from weft.codegen.gpu.products.ring import Ring
from weft.codegen.gpu.products.tile_place import offset, present
from weft.foundation.dtypes import F32

Body = tuple[ir.Stmt, ...]
_LOADS_ROWS: Final = LANES
"""The thread that loads rows: the first one of the second warp."""
_STAGING: Final = (2, 3)
"""The warps that bring what is read for each column: a producer's thread has few registers."""
_CONSUMER: Final = Name("for_consumer")
BLOCK_AT: Final = Name("column_block")
_PART: Final = Name("part")
SUMS: Final = ("scores", "other")
"""The registers of the products."""


@dataclass
class StreamBuilder:
    """Makes the statements of one kernel."""

    layout: StreamLayout
    name: str

    def __post_init__(self) -> None:
        self.problem, self.plan = self.layout.problem, self.layout.plan
        problem = self.problem
        operands = [o.tensor for p in problem.products for o in (p.own, p.streamed)]
        stored = [source for result in problem.results for source in result.stored.sources]
        begun = [source for state in problem.states for source in state.sources]
        sources = (*problem.sources, *stored, *begun)
        tensors = [*operands, *(s.tensor for s in sources if s.tensor is not None)]
        tensors += [name for hull in problem.hulls for name in hull.tensors]
        self.buffers = list(dict.fromkeys([*tensors, *(r.tensor for r in problem.results)]))
        self.sizes = (*problem.batch, *problem.group)
        self.indices = tuple(Name(f"batch{axis}") for axis, _ in enumerate(self.sizes))
        self.ring = Ring(self.plan.stages)
        self.ahead = Ring(self.layout.slots, "own_")
        self.chances = chances(result.weight for result in problem.results)
        self.order = sorted(range(len(problem.results)), key=self.waits)

    def waits(self, number: int) -> bool:
        """Whether a result has to wait for the other product."""
        return self.problem.results[number].uses_other

    def kernel(self) -> ir.Kernel:
        return ir.Kernel(
            name=self.name,
            grid=self.layout.grid,
            threads=self.layout.threads,
            buffers=tuple(self.buffers),
            maps=tuple(self.maps()),
            tiles=tuple(self.tiles()),
            barriers=tuple(self.barriers()),
            tables=self.layout.schedule,
            body=self.body(),
        )

    # Storage

    def maps(self) -> Iterator[ir.TensorMap]:
        problem, layout = self.problem, self.layout
        for number, product in enumerate(problem.products):
            own = (product.depth, problem.rows)
            yield self.map(f"own{number}", product.own, layout.own(number), own)
            columns = (product.depth, problem.columns)
            yield self.map(f"columns{number}", product.streamed, layout.streamed(number), columns)
        for number, result in enumerate(problem.results):
            if layout.stores_by_copy(result):
                out, size = result.out, problem.products[result.of].depth
                stored = Operand(result.tensor, result.dtype, out.offset, out.row, 1, out.batch)
                yield self.map(f"out{number}", stored, layout.own(result.of), (size, problem.rows))

    def map(
        self, name: str, operand: Operand, tile: TileLayout, sizes: tuple[int, int]
    ) -> ir.TensorMap:
        """A panel of a tile at a time."""
        axes = [(n, s) for n, s in zip(self.sizes, operand.batch, strict=True) if s]
        # A single row has no stride; the copy engine wants a regular one all the same.
        pitch = operand.outer or -(-sizes[0] // 8) * 8
        return ir.TensorMap(
            name,
            self.buffers.index(operand.tensor),
            operand.dtype,
            operand.offset,
            (*sizes, *(size for size, _ in axes)),
            (pitch, *(stride for _, stride in axes)),
            (tile.panel_columns, tile.rows, *(1 for _ in axes)),
            tile.swizzle,
        )

    def tiles(self) -> Iterator[ir.SharedTile]:
        layout, plan = self.layout, self.plan
        size = plan.consumers * layout.slots * layout.own_bytes
        yield ir.SharedTile("own", 0, size, layout.own(0))
        for number, _ in enumerate(layout.depths):
            tile, start = layout.streamed(number), layout.ring_offset(number)
            yield ir.SharedTile(f"columns{number}", start, plan.stages * tile.bytes, tile)
        if layout.staged:
            size = plan.stages * layout.staged_bytes
            yield ir.SharedTile("staged", layout.staged_offset, size, None)

    def barriers(self) -> Iterator[ir.Barriers]:
        plan, start = self.plan, self.layout.barriers_offset
        slots = plan.consumers * self.layout.slots
        arrays = [
            ("full", plan.stages, 1),
            # Four warps of each consumer arrive once each. Of a consumer's own rows one thread
            # arrives where the copy engine reads its results, else its four warps.
            ("empty", plan.stages, 4 * plan.consumers),
            ("own_full", slots, 1),
            ("own_empty", slots, 1 if self.copies else 4),
        ]
        if self.layout.staged:
            # Every lane arrives for what it stored itself: then no order within a warp is needed.
            arrays.append(("staged_full", plan.stages, LANES * len(self.shares)))
        for name, count, arrivals in arrays:
            yield ir.Barriers(name, start, count, arrivals)
            start += 8 * count

    @property
    def copies(self) -> bool:
        """Whether the copy engine writes some result."""
        return any(map(self.layout.stores_by_copy, self.problem.results))

    # Roles

    def body(self) -> Body:
        prepare: list[ir.Stmt] = [ir.MbarrierInit(array.name) for array in self.barriers()]
        prepare.append(ir.MbarrierInitFence())
        prepare += [ir.PrefetchMap(found.name) for found in self.maps()]
        warps = 4 * self.plan.consumers
        roles = (
            ir.Role("producer", 0, 4, (*self.registers(0), *self.producer())),
            ir.Role("consumer", 4, warps, (*self.registers(1), *self.consumer())),
        )
        return (ir.If(THREAD.equals(0), tuple(prepare)), ir.SyncThreads(), ir.Roles(roles))

    def registers(self, role: int) -> Body:
        count = self.plan.registers[role]
        return (ir.SetMaxNReg(count, grow=role == 1),) if count else ()

    def each_tile(self, body: Body, *, whole: bool = False) -> ir.Stmt:
        """A loop over the tiles of this block, with `whole` for those who ask which of its blocks
        are seen whole."""
        found = bounds(self.layout, self.buffers, self.indices, whole=whole)
        return self.layout.each_tile(self.problem.batch, body, tuple(found))

    def each_part(self, body: Body) -> Body:
        """A loop over what a tile goes through columns for: the heads that share its own."""
        if self.layout.turns == 1:
            return body
        located: list[ir.Stmt] = []
        rest: Scalar = _PART
        first = len(self.problem.batch)
        for axis in reversed(range(len(self.problem.group))):
            size = self.problem.group[axis]
            located.append(ir.Let(f"batch{first + axis}", rest % size if axis else rest))
            rest = rest // size
        return (ir.For(_PART.name, 0, self.layout.turns, 1, (*located, *body)),)

    # The producer

    def producer(self) -> Iterator[ir.Stmt]:
        blocks = ir.For(BLOCK_AT.name, Name("first"), Name("last"), 1, (*self.load_block(),))
        through = self.each_tile(self.each_part((blocks,)))
        yield ir.If(THREAD.equals(0), (*self.ring.start(), through))
        rows = (*self.ahead.start(), self.each_tile((*self.load_rows(),)))
        yield ir.If(THREAD.equals(_LOADS_ROWS), rows)
        for number, sources in enumerate(self.shares):
            body = (*self.stage_block(sources),)
            stage = ir.For(BLOCK_AT.name, Name("first"), Name("last"), 1, body)
            through = self.each_tile(self.each_part((stage,)))
            yield ir.If(WARP.equals(_STAGING[number]), (*self.ring.start(), through))

    @property
    def shares(self) -> list[Sequence[int]]:
        """What each of the warps brings that there is something for."""
        numbers = range(len(self.layout.staged))
        return [numbers[n :: len(_STAGING)] for n, _ in enumerate(_STAGING) if numbers[n:]]

    def load_block(self) -> Iterator[ir.Stmt]:
        layout, slot = self.layout, self.ring.slot
        full = ir.BarrierAt("full", slot)
        tiles = [layout.streamed(number) for number, _ in enumerate(layout.depths)]
        yield ir.MbarrierWait(ir.BarrierAt("empty", slot), self.ring.phase ^ 1)
        yield ir.MbarrierExpectTx(full, sum(tile.bytes for tile in tiles))
        for number, product in enumerate(self.problem.products):
            start, row = slot * tiles[number].bytes, BLOCK_AT * layout.tile_columns
            target = ir.Address(f"columns{number}", start)
            yield from self.loads(target, target.tile, product.streamed, tiles[number], row, full)
        yield from self.ring.advance()

    def load_rows(self) -> Iterator[ir.Stmt]:
        layout, plan = self.layout, self.plan
        slot = _CONSUMER * layout.slots + self.ahead.slot
        full = ir.BarrierAt("own_full", slot)
        tiles = [layout.own(number) for number, _ in enumerate(layout.depths)]
        loads: list[ir.Stmt] = [
            ir.MbarrierWait(ir.BarrierAt("own_empty", slot), self.ahead.phase ^ 1),
            ir.MbarrierExpectTx(full, sum(tile.bytes for tile in tiles)),
        ]
        row = TILE * plan.tile_q + _CONSUMER * ROWS
        for number, product in enumerate(self.problem.products):
            start = slot * layout.own_bytes + layout.own_offset(number)
            target, tile = ir.Address("own", start), tiles[number]
            loads += self.loads(target, f"own{number}", product.own, tile, row, full)
        yield ir.For(_CONSUMER.name, 0, plan.consumers, 1, tuple(loads))
        yield from self.ahead.advance()

    def loads(
        self,
        target: ir.Address,
        name: str,
        operand: Operand,
        tile: TileLayout,
        row: Scalar,
        full: ir.BarrierAt,
    ) -> Iterator[ir.Stmt]:
        batch = present(self.indices, operand.batch)
        for panel in range(tile.panels):
            place = ir.Address(target.tile, target.offset + panel * tile.panel_bytes)
            coords = (Lit(panel * tile.panel_columns), row, *batch)
            yield ir.TmaLoad(place, name, coords, full)

    def stage_block(self, sources: Sequence[int]) -> Iterator[ir.Stmt]:
        """Some of what is read for each column of a block, a lane each."""
        layout, slot = self.layout, self.ring.slot
        yield ir.MbarrierWait(ir.BarrierAt("empty", slot), self.ring.phase ^ 1)
        for number in sources:
            place = Name("place")
            body = self.stage_column(number, layout.staged[number], place)
            if layout.tile_columns % LANES:
                body = (ir.If(place < layout.tile_columns, body),)
            located = ir.Let(place.name, Name("piece") * LANES + LANE)
            pieces = -(-layout.tile_columns // LANES)
            yield ir.For("piece", 0, pieces, 1, (located, *body))
        yield ir.MbarrierArrive(ir.BarrierAt("staged_full", slot))
        yield from self.ring.advance()

    def stage_column(self, number: int, source: Source, place: Scalar) -> Body:
        layout, name = self.layout, f"staged{number}"
        column = BLOCK_AT * layout.tile_columns + place
        load = self.load(name, source, Lit(0), column, column < layout.columns)
        scaled = (*self.scaled(name, source),)
        start = self.ring.slot * layout.staged_bytes + number * layout.tile_columns * 4
        target = ir.Address("staged", start + place * 4)
        value = f"{name}_scaled" if scaled else name
        return (load, *scaled, ir.StShared(target, value, F32))

    def load(
        self, name: str, source: Source, row: Scalar, column: Scalar, inside: Scalar
    ) -> ir.Stmt:
        assert source.tensor is not None
        place = offset(source.strides, row, column, self.indices)
        return ir.LoadElement(name, self.buffers.index(source.tensor), source.dtype, place, inside)

    def scaled(self, name: str, source: Source) -> Iterator[ir.Stmt]:
        """A shift, as it is taken from scores or from a power of two."""
        if source is self.problem.shift:
            # Powers are of two: e^(s - c) is 2^((s - c) log2 e). Where the score is scaled first,
            # so is the shift.
            rate = 1.0 if self.problem.score.is_low else math.log2(math.e)
            yield constant(f"{name}_rate", F32, rate)
            args = (name, f"{name}_rate")
            yield Compute(ElementOp(f"{name}_scaled", F32, "mul", args))

    # Consumers

    def consumer(self) -> Body:
        head: list[ir.Stmt] = [
            ir.Let(GROUP.name, (WARP - 4) >> 2),
            ir.Let(MEMBER.name, THREAD & (WARPGROUP - 1)),
            ir.Let(QUARTER.name, WARP & 3),
            *self.ahead.start(),
            *self.ring.start(),
            *states_read(self.problem.states, self.buffers),
        ]
        return (*head, self.each_tile((*self.tile(),), whole=True))

    @property
    def first_row(self) -> Scalar:
        return TILE * self.plan.tile_q + GROUP * ROWS

    @property
    def own_slot(self) -> Scalar:
        return GROUP * self.layout.slots + self.ahead.slot

    def tile(self) -> Iterator[ir.Stmt]:
        """All blocks of columns for 64 rows."""
        layout = self.layout
        for name, _ in zip(SUMS, self.problem.products, strict=False):
            yield ir.Registers(name, ir.RegisterKind.F32, layout.tile_columns // 2)
        for number, result in enumerate(self.problem.results):
            kind, count = ir.RegisterKind.B32, layout.tile_columns // 4
            yield ir.Registers(f"weights{number}", kind, count)
            width = layout.width(result) // 2
            yield ir.Registers(f"sum{number}", ir.RegisterKind.F32, width, zero=True)
        yield from bit_registers(self.chances, layout.tile_columns)
        yield from self.rows_kept()
        yield ir.MbarrierWait(ir.BarrierAt("own_full", self.own_slot), self.ahead.phase)
        for number, _ in enumerate(layout.depths):
            start = self.own_slot * layout.own_bytes + layout.own_offset(number)
            place = ir.Address("own", start)
            yield ir.Descriptor(f"rows{number}", place, layout.own(number), Major.K)
        yield from self.each_part((*self.blocks(),))
        yield from self.stored()
        yield from self.ahead.advance()

    def rows_kept(self) -> Iterator[ir.Stmt]:
        """What is read for each of a thread's rows."""
        for number, source in enumerate(self.layout.kept):
            for row in BOTH_ROWS:
                name = f"kept{number}_{row}"
                place = self.first_row + QUARTER * 16 + (LANE >> 2) + 8 * row
                yield self.load(name, source, place, Lit(0), place < self.problem.rows)
                yield from self.scaled(name, source)

    def blocks(self) -> Iterator[ir.Stmt]:
        """Those with hidden columns at the lower edge of the band, those that are seen whole, those
        at its upper edge."""
        for number, (start, end, masked) in enumerate(self.layout.steps_of_tile().ranges):
            if self.layout.at_most(partial(range_length, number=number)) > 0:
                yield ir.For(BLOCK_AT.name, start, end, 1, (*self.step(masked=masked),))

    def step(self, *, masked: bool) -> Iterator[ir.Stmt]:
        slot, phase = self.ring.slot, self.ring.phase
        yield ir.MbarrierWait(ir.BarrierAt("full", slot), phase)
        yield ir.WgmmaFence()
        for number, _ in enumerate(self.problem.products):
            yield from self.product(number)
        yield from bits_drawn(self.chances, self.problem.states, self.indices, self.fragment)
        # Products retire in the order in which they were issued: S is there, T may still run.
        yield ir.WgmmaWait(len(self.problem.products) - 1, ("scores",))
        if self.layout.staged:
            yield ir.MbarrierWait(ir.BarrierAt("staged_full", slot), phase)
        yield self.powers(masked=masked)
        early = [number for number in self.order if not self.waits(number)]
        for number in early:
            yield from self.weighted(number)
        if len(self.problem.products) > 1:
            # T was issued before the products of `early`: all groups but these newest ones must be
            # done.
            yield ir.WgmmaWait(len(early), ("other",))
        for number in self.order[len(early) :]:
            yield from self.weighted(number)
        # The last readers of the slot: weights go with registers, their other factor lies in it.
        arrays = [f"{name}{n}" for n in self.order for name in ("sum", "weights")]
        yield ir.WgmmaWait(0, tuple(arrays))
        yield once_per_warp(ir.MbarrierArrive(ir.BarrierAt("empty", slot)))
        yield from self.ring.advance()

    def product(self, number: int) -> Iterator[ir.Stmt]:
        layout, own = self.layout, self.layout.own(number)
        tile, name = layout.streamed(number), f"across{number}"
        dtype = self.problem.products[number].own.dtype
        start = ir.Address(f"columns{number}", self.ring.slot * tile.bytes)
        yield ir.Descriptor(name, start, tile, Major.K)
        for depth in range(0, layout.depths[number], STEP):
            rows = operand_offset(own, Major.K, 0, depth)
            a = ir.WgmmaOperand(f"rows{number}", rows, Major.K)
            b = ir.WgmmaOperand(name, operand_offset(tile, Major.K, 0, depth), Major.K)
            yield ir.Wgmma(SUMS[number], layout.tile_columns, a, b, dtype, dtype, depth > 0)
        yield ir.WgmmaCommit()

    def powers(self, *, masked: bool) -> ir.Stmt:
        """Scores become powers; those of hidden columns become 0."""
        program = self.problem.score
        sources = [self.source(source) for source in program.sources]
        ops, value = list(program.ops), program.result
        if masked:
            more, hidden = visible(self.layout, value)
            more += [self.source(s) for hull in self.problem.hulls for s in hull.each.sources]
            sources, ops, value = sources + more, ops + hidden, hidden[-1].name
        ops += [*self.exponent(value), ElementOp("raised", F32, "exp2", ("exponent",), loose=True)]
        sources.append(self.source(self.problem.shift))
        place = ir.RegAt("scores")
        return ir.Epilogue(
            place, self.fragment, program.value, tuple(sources), tuple(ops), "raised", place, F32
        )

    def exponent(self, score: str) -> list[ElementOp]:
        """That of a power of two: a score that may be low is shifted before the last factor."""
        first, last = self.problem.scale, math.log2(math.e)
        if not self.problem.score.is_low:
            return [
                ElementOp("rate", F32, "const", (), first * last),
                ElementOp("scaled", F32, "mul", (score, "rate")),
                ElementOp("exponent", F32, "sub", ("scaled", "shift")),
            ]
        return [
            ElementOp("scale", F32, "const", (), first),
            ElementOp("scaled", F32, "mul", (score, "scale")),
            ElementOp("shifted", F32, "sub", ("scaled", "shift")),
            ElementOp("rate", F32, "const", (), last),
            ElementOp("exponent", F32, "mul", ("shifted", "rate")),
        ]

    def weighted(self, number: int) -> Iterator[ir.Stmt]:
        """The weights of a result, and their product with the block's columns."""
        layout, result = self.layout, self.problem.results[number]
        tile, name = layout.streamed(result.of), f"along{number}"
        dtype = self.problem.products[result.of].streamed.dtype
        yield self.weights(number, result)
        start = ir.Address(f"columns{result.of}", self.ring.slot * tile.bytes)
        yield ir.Descriptor(name, start, tile, Major.MN)
        # Weights are registers that were just written.
        yield ir.WgmmaFence()
        for column in range(0, layout.tile_columns, STEP):
            a = ir.RegAt(f"weights{number}", column // 4)
            b = ir.WgmmaOperand(name, operand_offset(tile, Major.MN, 0, column), Major.MN)
            yield ir.Wgmma(f"sum{number}", layout.width(result), a, b, dtype, dtype, True)
        yield ir.WgmmaCommit()

    def weights(self, number: int, result: Result) -> ir.Stmt:
        program = result.weight
        sources = [self.source(source) for source in program.sources]
        sources += drawn(program, self.problem.states, self.indices)
        sources += bits_read(program, self.chances)
        acc, value = ("other", "v1") if result.uses_other else ("scores", "v0")
        if result.uses_other and result.uses_power:
            sources.append(ir.RegisterElements("v0", F32, ir.RegAt("scores")))
        dtype = self.problem.products[result.of].streamed.dtype
        return ir.Epilogue(
            ir.RegAt(acc),
            self.fragment,
            value,
            tuple(sources),
            program.ops,
            program.result,
            ir.RegAt(f"weights{number}"),
            dtype,
        )

    @property
    def fragment(self) -> ir.Fragment:
        """A thread's share of the rows and of a block's columns."""
        row = self.first_row + QUARTER * 16 + (LANE >> 2)
        column = BLOCK_AT * self.layout.tile_columns + (LANE & 3) * 2
        groups = self.layout.tile_columns // 8
        return ir.Fragment(groups, row, column, self.problem.rows, self.problem.columns)

    def source(self, source: Source) -> ir.ElementSource:
        layout = self.layout
        staged = layout.number(layout.staged, source)
        if staged is not None:
            start = self.ring.slot * layout.staged_bytes + staged * layout.tile_columns * 4
            place = ir.Address("staged", start + (LANE & 3) * 8)
            return ir.SharedColumns(source.name, source.dtype, place)
        kept = layout.number(layout.kept, source)
        if kept is not None:
            scaled = "_scaled" if source is self.problem.shift else ""
            names = tuple(f"kept{kept}_{row}{scaled}" for row in BOTH_ROWS)
            return ir.RowValues(source.name, source.dtype, names)
        return read_from(source, self.buffers, self.indices)

    # Results

    def stored(self) -> Iterator[ir.Stmt]:
        """Results to memory, by way of the place of the rows where the copy engine writes them."""
        meet = ir.NamedBarrier(GROUP + 1, WARPGROUP)
        copied = [n for n in self.order if self.layout.stores_by_copy(self.problem.results[n])]
        if copied:
            # All warps of the consumer have read their rows.
            yield meet
        for number in self.order:
            yield from self.made(number)
            if number in copied:
                of = self.problem.results[number].of
                registers = ir.RegAt(f"stored{number}")
                yield from put(registers, self.layout.own(of), "own", self.own_start(of))
            else:
                yield self.store_by_threads(number)
        done = ir.MbarrierArrive(ir.BarrierAt("own_empty", self.own_slot))
        if not copied:
            yield once_per_warp(done)
            return
        yield ir.ProxyFence()
        yield meet
        stores = [store for number in copied for store in self.stores(number)]
        yield ir.If(MEMBER.equals(0), (*stores, ir.TmaCommit(), ir.TmaWaitRead(0), done))

    def own_start(self, product: int) -> Scalar:
        return self.own_slot * self.layout.own_bytes + self.layout.own_offset(product)

    def made(self, number: int) -> Iterator[ir.Stmt]:
        """What is stored, in registers."""
        result = self.problem.results[number]
        width, kind = self.layout.width(result), ir.RegisterKind.for_results(result.dtype)
        count = width // (4 if result.dtype.storage_bytes == 2 else 2)
        yield ir.Registers(f"stored{number}", kind, count)
        program = result.stored
        sources = (read_from(source, self.buffers, self.indices) for source in program.sources)
        yield ir.Epilogue(
            ir.RegAt(f"sum{number}"),
            self.result_fragment(result),
            program.value,
            tuple(sources),
            unrounded(program),
            program.result,
            ir.RegAt(f"stored{number}"),
            result.dtype,
        )

    def result_fragment(self, result: Result) -> ir.Fragment:
        row = self.first_row + QUARTER * 16 + (LANE >> 2)
        size, groups = self.problem.products[result.of].depth, self.layout.width(result) // 8
        return ir.Fragment(groups, row, (LANE & 3) * 2, self.problem.rows, size)

    def stores(self, number: int) -> Iterator[ir.Stmt]:
        result = self.problem.results[number]
        tile, start = self.layout.own(result.of), self.own_start(result.of)
        batch = present(self.indices, result.out.batch)
        for panel in range(tile.panels):
            place = ir.Address("own", start + panel * tile.panel_bytes)
            coords = (Lit(panel * tile.panel_columns), self.first_row, *batch)
            yield ir.TmaStore(place, f"out{number}", coords)

    def store_by_threads(self, number: int) -> ir.Stmt:
        """Straight from registers, where the copy engine cannot write."""
        result = self.problem.results[number]
        out, size = result.out, self.problem.products[result.of].depth
        even = all(stride % 2 == 0 for stride in (out.row, out.offset, *out.batch))
        start = Strides(out.offset, 0, 0, out.batch)
        return ir.StGlobalVec(
            ir.RegAt(f"stored{number}"),
            result.dtype,
            self.result_fragment(result),
            self.buffers.index(result.tensor),
            offset(start, Lit(0), Lit(0), self.indices),
            out.row,
            out.column,
            2 if out.column == 1 and even and size % 2 == 0 else 1,
        )
