"""The SM80 gradients of attention: those of SM90 (`stream_sm90.py`), with mma.sync of single warps.

    rows, and all blocks of columns that there are slots for but one, are asked for
    for each block:  wait for its copies, meet, ask for a block further on
                     S = A B',  P = 2^(S - shift),  Y += P D,  T = C D',  X += dS B

A warp has 16 rows of the tile. Numbers of columns are loaded when a block is asked for and stored
beside it after the products, which hide how long that takes.

Who may touch a slot: after the meeting of a block all warps have done with the block before, whose
slot the next copies take. Each block closes one group of copies, so that waiting for all but the
last `stages - 2` groups is waiting for its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.attention.filling import Filling, element_at
from weft.codegen.gpu.attention.hulls import bounds
from weft.codegen.gpu.attention.layout import ALIGNMENT
from weft.codegen.gpu.attention.queries import (
    GROUP,
    QUARTER,
    STEP,
    bit_registers,
    bits_drawn,
    states_read,
)
from weft.codegen.gpu.attention.stream_layout import StreamLayout, stream_findings
from weft.codegen.gpu.attention.stream_problem import Result
from weft.codegen.gpu.attention.stream_sm90 import BLOCK_AT, SUMS, StreamBuilder
from weft.codegen.gpu.attention.work import TILE
from weft.codegen.gpu.body.accept import refuse
from weft.codegen.gpu.ir.scalar import BLOCK, LANE, LANES, THREAD, WARP, Lit, Name, Scalar, both
from weft.codegen.gpu.ir.swizzle import TileLayout, fitting
from weft.foundation.dtypes import F32
from weft.foundation.errors import Finding
from weft.foundation.records import dataclass
from weft.foundation.whole_numbers import round_up
from weft.plan.attention import stream_registers
from weft.plan.ir import ONLINE, AttentionPlan
from weft.region.forms.bands import HULL_ROWS

_BAND: Final = 16
_MOST_WARPS: Final = 8
"""Rows of a matrix instruction, and warps of a block, of which 256 threads have 255 registers
each."""
_RESERVED: Final = 1024
"""Bytes of shared memory that every block takes besides."""


@dataclass(frozen=True)
class StreamSm80Layout(StreamLayout):
    """The derived numbers of one kernel."""

    @property
    def threads(self) -> int:
        return LANES * self.plan.consumers

    def own(self, product: int) -> TileLayout:
        depth = self.depths[product]
        return TileLayout(self.plan.tile_q, depth, 2, fitting(depth, 2))

    def stores_by_copy(self, result: Result) -> bool:
        return False

    # Work: a block for each tile; those that are started first have the most to do.

    @property
    def grid(self) -> int:
        return self.items

    @cached_property
    def schedule(self) -> tuple[ir.Table, ...]:
        return ()

    # Shared memory: rows, rings, numbers of columns

    def ring_offset(self, product: int) -> int:
        return self.own_bytes + sum(self.ring_bytes(number) for number in range(product))

    @property
    def shared_bytes(self) -> int:
        return round_up(self.staged_offset + self.plan.stages * self.staged_bytes, ALIGNMENT)

    @property
    def needed_registers(self) -> int:
        widths = [self.width(result) for result in self.problem.results]
        return stream_registers(self.plan.tile_kv, len(self.problem.products), widths)

    @property
    def resident(self) -> int:
        """Blocks that a unit has room for, up to two."""
        limits = self.target.limits
        room = limits.shared_bytes_per_unit // (self.shared_bytes + _RESERVED)
        return 2 if room > 1 and self.plan.consumers <= _MOST_WARPS // 2 else 1


def stream_sm80_refusals(layout: StreamSm80Layout) -> Iterator[Finding]:
    """Everything the template cannot carry out."""
    plan, limits = layout.plan, layout.target.limits
    yield from stream_findings(layout)
    found = [*_stream_plan_refusals(plan, hulls=bool(layout.hulls))]
    yield from found
    if found:
        return
    if layout.needed_registers > limits.registers_per_thread:
        yield refuse("Registers", f"a thread needs about {layout.needed_registers} registers")
    shared, limit = layout.shared_bytes, limits.shared_bytes_per_block
    if shared > limit:
        yield refuse("SharedMemory", f"{shared} bytes of shared memory, over {limit}")


def _stream_plan_refusals(plan: AttentionPlan, *, hulls: bool) -> Iterator[Finding]:
    if plan.algo != ONLINE:
        yield refuse("PlanField", f"algo={plan.algo} has no effect in a stream")
    for name in ("register_tile", "vector"):
        if getattr(plan, name) != AttentionPlan.__dataclass_fields__[name].default:
            yield refuse("PlanField", f"{name} has no effect in the SM80 template")
    if plan.registers != (0, 0) or plan.parts:
        yield refuse("PlanField", "a stream of single warps has no parts, and registers 0, 0")
    warps = plan.consumers
    if not 1 <= warps <= _MOST_WARPS or plan.tile_q != _BAND * warps:
        yield refuse("Tile", f"{plan.tile_q} rows are not 16 for each of {warps} warps, up to 8")
    if hulls and plan.tile_q % HULL_ROWS:
        yield refuse("Tile", f"tables speak of {HULL_ROWS} rows, tiles have {plan.tile_q}")
    if plan.tile_kv % STEP or not STEP <= plan.tile_kv <= LANES * warps:
        yield refuse(
            "Tile", f"tile_kv={plan.tile_kv} is not a multiple of 16 up to {LANES * warps}"
        )
    if plan.stages < 2:
        yield refuse("PlanField", "there must be two stages at least")


class StreamSm80Builder(StreamBuilder):
    """Makes the statements of one kernel."""

    layout: StreamSm80Layout

    def __post_init__(self) -> None:
        super().__post_init__()
        self.filling = Filling(self.layout.threads, self.buffers, self.indices)

    def kernel(self) -> ir.Kernel:
        return replace(super().kernel(), resident=self.layout.resident)

    def maps(self) -> Iterator[ir.TensorMap]:
        return iter(())

    def barriers(self) -> Iterator[ir.Barriers]:
        return iter(())

    def tiles(self) -> Iterator[ir.SharedTile]:
        _, *rest = super().tiles()
        yield ir.SharedTile("own", 0, self.layout.own_bytes, self.layout.own(0))
        yield from rest

    def body(self) -> tuple[ir.Stmt, ...]:
        layout, problem = self.layout, self.problem
        found = bounds(layout, self.buffers, self.indices, whole=True)
        head: list[ir.Stmt] = [
            ir.Let("item", BLOCK),
            *layout.located(problem.batch, tuple(found)),
            ir.Let(GROUP.name, WARP >> 2),
            ir.Let(QUARTER.name, WARP & 3),
            *states_read(problem.states, self.buffers),
        ]
        for number, product in enumerate(problem.products):
            start, first = Lit(layout.own_offset(number)), TILE * self.plan.tile_q
            tile, extents = layout.own(number), (problem.rows, product.depth)
            head += self.filling.rows("own", product.own, tile, start, first, extents)
        for number, result in enumerate(problem.results):
            width = layout.width(result) // 2
            head.append(ir.Registers(f"sum{number}", ir.RegisterKind.F32, width, zero=True))
        head += [*bit_registers(self.chances, layout.tile_columns), *self.rows_kept()]
        return (*head, *self.each_part((*self.part(),)), *self.stored())

    def part(self) -> Iterator[ir.Stmt]:
        """All blocks of columns of one matrix."""
        if self.layout.turns > 1:
            # All warps have done with the slots.
            yield ir.SyncThreads()
        for number in range(self.plan.stages - 1):
            block, suffix = Name("first") + number, f"_{number}"
            yield from self.ask(block, Lit(number), suffix)
            yield from self.put_numbers(Lit(number), suffix)
        yield from self.ring.start()
        yield from self.blocks()

    def step(self, *, masked: bool) -> Iterator[ir.Stmt]:
        layout, stages, products = self.layout, self.plan.stages, self.problem.products
        yield ir.WaitGroup(stages - 2)
        yield ir.SyncThreads()
        behind = (self.ring.slot + (stages - 1)) % stages
        yield from self.ask(BLOCK_AT + (stages - 1), behind, "")
        for number, _ in enumerate(self.problem.results):
            count = layout.tile_columns // 4
            yield ir.Registers(f"weights{number}", ir.RegisterKind.B32, count)
        yield from self.product(0)
        yield from bits_drawn(self.chances, self.problem.states, self.indices, self.fragment)
        yield self.powers(masked=masked)
        early = [number for number in self.order if not self.waits(number)]
        for number in early:
            yield from self.weighted(number)
        for number in range(1, len(products)):
            yield from self.product(number)
        for number in self.order[len(early) :]:
            yield from self.weighted(number)
        yield from self.put_numbers(behind, "")
        yield from self.ring.advance()

    # Copies

    def ask(self, block: Scalar, slot: Scalar, suffix: str) -> Iterator[ir.Stmt]:
        """A block of columns, if there is one, and its numbers, which stay in registers at
        first."""
        layout, problem = self.layout, self.problem
        first, work = block * layout.tile_columns, list[ir.Stmt]()
        for number, product in enumerate(problem.products):
            tile, extents = layout.streamed(number), (problem.columns, product.depth)
            start, name = slot * tile.bytes, f"columns{number}"
            work += self.filling.rows(name, product.streamed, tile, start, first, extents)
        yield ir.If(block < Name("last"), tuple(work))
        yield ir.CommitGroup()
        column = first + THREAD
        inside = both(both(block < Name("last"), column < layout.columns), self.has_column)
        for number, source in enumerate(layout.staged):
            name = f"staged{number}{suffix}"
            yield self.load(name, source, Lit(0), column, inside)
            yield from self.scaled(name, source)

    @property
    def has_column(self) -> Scalar:
        """Whether a thread brings the numbers of a column."""
        return self.layout.tile_columns > THREAD

    def put_numbers(self, slot: Scalar, suffix: str) -> Iterator[ir.Stmt]:
        layout, stores = self.layout, list[ir.Stmt]()
        for number, source in enumerate(layout.staged):
            scaled = "_scaled" if source is self.problem.shift else ""
            start = slot * layout.staged_bytes + number * layout.tile_columns * 4
            place = ir.Address("staged", start + THREAD * 4)
            stores.append(ir.StShared(place, f"staged{number}{suffix}{scaled}", F32))
        if stores:
            yield ir.If(self.has_column, tuple(stores))

    # Products

    def product(self, number: int) -> Iterator[ir.Stmt]:
        layout, own, tile = self.layout, self.layout.own(number), self.layout.streamed(number)
        dtype, count = self.problem.products[number].own.dtype, layout.tile_columns // 2
        rows, columns = f"rows{number}", f"across{number}"
        yield ir.Registers(SUMS[number], ir.RegisterKind.F32, count, zero=True)
        yield ir.Registers(rows, ir.RegisterKind.B32, 4)
        yield ir.Registers(columns, ir.RegisterKind.B32, 4)
        for depth in range(0, layout.depths[number], STEP):
            row = WARP * _BAND + (LANE & 15)
            place = element_at(own, row, (LANE >> 4) * 8 + depth, depth)
            source = ir.Address("own", place + layout.own_offset(number))
            yield ir.LdMatrix(ir.RegAt(rows), source, transposed=False)
            for column in range(0, layout.tile_columns, STEP):
                row = column + (LANE & 7) + (LANE >> 4) * 8
                place = element_at(tile, row, ((LANE >> 3) & 1) * 8 + depth, depth)
                source = ir.Address(f"columns{number}", self.ring.slot * tile.bytes + place)
                yield ir.LdMatrix(ir.RegAt(columns), source, transposed=False)
                for half in (0, 1):
                    acc = ir.RegAt(SUMS[number], column // 2 + 4 * half)
                    part = ir.RegAt(columns, 2 * half)
                    yield ir.MmaSync(acc, ir.RegAt(rows), part, dtype, dtype)

    def weighted(self, number: int) -> Iterator[ir.Stmt]:
        layout, result = self.layout, self.problem.results[number]
        tile, name = layout.streamed(result.of), f"along{number}"
        dtype = self.problem.products[result.of].streamed.dtype
        yield self.weights(number, result)
        yield ir.Registers(name, ir.RegisterKind.B32, 4)
        for column in range(0, layout.tile_columns, STEP):
            for element in range(0, layout.width(result), STEP):
                row = column + (LANE & 15)
                place = element_at(tile, row, (LANE >> 4) * 8 + element, element)
                start = self.ring.slot * tile.bytes
                source = ir.Address(f"columns{result.of}", start + place)
                yield ir.LdMatrix(ir.RegAt(name), source, transposed=True)
                for half in (0, 1):
                    acc = ir.RegAt(f"sum{number}", element // 2 + 4 * half)
                    weights = ir.RegAt(f"weights{number}", column // 4)
                    yield ir.MmaSync(acc, weights, ir.RegAt(name, 2 * half), dtype, dtype)

    def stored(self) -> Iterator[ir.Stmt]:
        for number in self.order:
            yield from self.made(number)
            yield self.store_by_threads(number)
