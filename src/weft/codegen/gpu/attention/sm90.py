"""The SM90 attention: TMA loads, rings of mbarriers, and a softmax that overlaps asynchronous
wgmma.

    producer    one thread loads blocks of keys and of values, each through a ring; another one the
                queries of each consumer
    consumers   64 queries each:  S = Q K'         of the next block of keys
                                  O += P V         of the block before, at the same time
                                  the softmax of S, while others multiply; then P is S

Blocks of keys come from the last one down: those of which some keys are hidden (the edge of a band,
keys that are not there) come first and last, and only they are masked. `top` is a query's greatest
score so far and `total` the thread's share of the sum of its powers; when a greater score comes up,
`total` and O are scaled. The grid is persistent: a block takes every `grid`-th tile, the longest
first.

Who may touch what: of the rings of keys and values, the producer between `empty` and its copies, a
consumer between `full` and its arrival on `empty`, which comes after `WgmmaWait` has retired the
last instruction that reads the slot. A consumer's queries are its own from `q_full` on; its results
take their place, and it arrives on `q_empty` when the copy engine has read those. Consumers issue
their products in turn (`turn`), so that one multiplies while another one makes powers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.attention.hulls import bounds
from weft.codegen.gpu.attention.layout import ROWS, WARPGROUP, Layout
from weft.codegen.gpu.attention.queries import (
    GROUP,
    STEP,
    bit_registers,
    constant,
    once_per_warp,
    states_read,
)
from weft.codegen.gpu.attention.results import Results
from weft.codegen.gpu.attention.softmax import Softmax
from weft.codegen.gpu.attention.work import TILE, Steps
from weft.codegen.gpu.body.quads import BOTH_ROWS
from weft.codegen.gpu.ir.scalar import (
    LANES,
    THREAD,
    WARP,
    Lit,
    Name,
    Scalar,
)
from weft.codegen.gpu.ir.swizzle import Major, TileLayout, operand_offset
from weft.codegen.gpu.ir.values import Variable
from weft.codegen.gpu.products.operand import Operand
from weft.codegen.gpu.products.ring import Ring
from weft.codegen.gpu.products.tile_place import present
from weft.foundation.dtypes import F32

Body = tuple[ir.Stmt, ...]
# Three threads, since each waits for something of its own: one that waited for the results of this
# tile to leave would hold up the keys of the next one.
_LOADS_QUERIES: Final = LANES
"""The thread that loads queries: the first one of the second warp."""
_LOADS_BESIDE: Final = 2 * LANES
"""The thread that loads what lies beside the scores."""


@dataclass
class AttentionBuilder:
    """Makes the statements of one kernel."""

    layout: Layout
    name: str

    def __post_init__(self) -> None:
        self.problem, self.plan = self.layout.problem, self.layout.plan
        self.buffers = self.problem.tensors
        self.keys, self.values = Ring(self.plan.stages, "k_"), Ring(self.plan.stages, "v_")
        self.softmax = Softmax(self.layout, self.buffers)
        self.results = Results(self.layout, self.buffers)
        self.tiles_ahead = self.softmax.tiles_ahead
        self.steps = self.layout.steps_of_tile()

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
        for name, operand, tile, rows, columns in (
            ("q", problem.q, layout.q, problem.queries, problem.depth),
            ("k", problem.k, layout.k, problem.keys, problem.depth),
            ("v", problem.v, layout.v, problem.keys, problem.width),
        ):
            yield self.map(name, operand, tile, (columns, rows))
        for number, source in enumerate(layout.staged):
            strides = source.strides
            assert source.tensor is not None
            operand = Operand(
                source.tensor, source.dtype, strides.offset, strides.row, 1, strides.batch
            )
            sizes = (problem.keys, problem.queries)
            yield self.map(f"beside{number}", operand, layout.beside(source), sizes)
        if layout.tma_store:
            out = problem.out
            stored = Operand(
                problem.out_tensor, problem.out_dtype, out.offset, out.row, 1, out.batch
            )
            yield self.map("out", stored, layout.out, (problem.width, problem.queries))

    def map(
        self, name: str, operand: Operand, tile: TileLayout, sizes: tuple[int, int]
    ) -> ir.TensorMap:
        """A panel of a tile at a time."""
        axes = [(n, s) for n, s in zip(self.problem.batch, operand.batch, strict=True) if s]
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
        slots = plan.consumers * layout.q_slots
        yield ir.SharedTile("q", 0, slots * layout.q_bytes, layout.q)
        start = layout.beside_offset
        for number, source in enumerate(layout.staged):
            tile = layout.beside(source)
            yield ir.SharedTile(f"beside{number}", start, plan.consumers * tile.bytes, tile)
            start += plan.consumers * tile.bytes
        yield ir.SharedTile("k", layout.k_offset, plan.stages * layout.k.bytes, layout.k)
        yield ir.SharedTile("v", layout.v_offset, plan.stages * layout.v.bytes, layout.v)

    def barriers(self) -> Iterator[ir.Barriers]:
        plan, start = self.plan, self.layout.barriers_offset
        slots = plan.consumers * self.layout.q_slots
        arrays = [
            ("k_full", plan.stages, 1),
            ("k_empty", plan.stages, 4 * plan.consumers),
            ("v_full", plan.stages, 1),
            ("v_empty", plan.stages, 4 * plan.consumers),
            ("q_full", slots, 1),
            ("q_empty", slots, 1 if self.layout.tma_store else 4),
        ]
        for number, _ in enumerate(self.layout.staged):
            arrays.append((f"beside{number}_full", plan.consumers, 1))
            arrays.append((f"beside{number}_empty", plan.consumers, 4))
        if plan.consumers > 1:
            # All consumers of a block go through the same blocks of keys: there are as many turns
            # of each.
            arrays.append(("turn", plan.consumers, 4))
        for name, count, arrivals in arrays:
            yield ir.Barriers(name, start, count, arrivals)
            start += 8 * count

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

    def items(self, body: Body, *, whole: bool = False) -> ir.Stmt:
        """A loop over the tiles of this block, with `whole` for those who ask which of its blocks
        are seen whole."""
        found = bounds(self.layout, self.buffers, self.softmax.batch, whole=whole)
        return self.layout.each_tile(self.problem.batch, body, tuple(found))

    # The producer

    def producer(self) -> Iterator[ir.Stmt]:
        problem, layout = self.problem, self.layout
        block = Name("last") - 1 - (Name("step") - Name("first"))
        step: list[ir.Stmt] = []
        # Keys and values of a block are asked for one after the other, and consumers are one block
        # of values behind. What they wait for, keys s and values s - 1, was asked for before
        # anything that waits for a slot which they have not handed back.
        for name, ring, operand, tile in (
            ("k", self.keys, problem.k, layout.k),
            ("v", self.values, problem.v, layout.v),
        ):
            row = block * self.plan.tile_kv
            step.append(ir.MbarrierWait(ir.BarrierAt(f"{name}_empty", ring.slot), ring.phase ^ 1))
            full = ir.BarrierAt(f"{name}_full", ring.slot)
            step.append(ir.MbarrierExpectTx(full, tile.bytes))
            step += self.loads(name, operand, tile, ring.slot * tile.bytes, row, full)
            step += ring.advance()
        steps = ir.For("step", Name("first"), Name("last"), 1, tuple(step))
        start = (*self.keys.start(), *self.values.start())
        yield ir.If(THREAD.equals(0), (*start, self.items((steps,))))
        body = (*self.queries(), *self.tiles_ahead.advance())
        chosen = THREAD.equals(_LOADS_QUERIES)
        yield ir.If(chosen, (*self.tiles_ahead.start(), self.items(body)))
        if layout.staged:
            yield from self.beside_producer()

    def queries(self) -> Iterator[ir.Stmt]:
        ring, layout = self.tiles_ahead, self.layout
        for consumer in range(self.plan.consumers):
            slot = consumer * layout.q_slots + ring.slot
            empty, full = (ir.BarrierAt(f"q_{name}", slot) for name in ("empty", "full"))
            yield ir.MbarrierWait(empty, ring.phase ^ 1)
            yield ir.MbarrierExpectTx(full, layout.q.bytes)
            row = TILE * self.plan.tile_q + consumer * ROWS
            start = slot * layout.q_bytes
            yield from self.loads("q", self.problem.q, layout.q, start, row, full)

    def beside_producer(self) -> Iterator[ir.Stmt]:
        """What lies beside the scores, for each consumer in turn: one block of each at a time."""
        layout, step = self.layout, list[ir.Stmt]()
        phase = Name("beside_phase")
        block = Name("last") - 1 - (Name("step") - Name("first"))
        for consumer, number in product(range(self.plan.consumers), range(len(layout.staged))):
            source, name = layout.staged[number], f"beside{number}"
            tile = layout.beside(source)
            full = ir.BarrierAt(f"{name}_full", Lit(consumer))
            step.append(ir.MbarrierWait(ir.BarrierAt(f"{name}_empty", Lit(consumer)), phase ^ 1))
            step.append(ir.MbarrierExpectTx(full, tile.bytes))
            row = TILE * self.plan.tile_q + consumer * ROWS
            batch = present(self.softmax.batch, source.strides.batch)
            for panel in range(tile.panels):
                start = consumer * tile.bytes + panel * tile.panel_bytes
                column = block * self.plan.tile_kv + panel * tile.panel_columns
                target = ir.Address(name, Lit(start))
                step.append(ir.TmaLoad(target, name, (column, row, *batch), full))
        step.append(ir.Set(phase.name, phase ^ 1))
        steps = ir.For("step", Name("first"), Name("last"), 1, tuple(step))
        chosen = THREAD.equals(_LOADS_BESIDE)
        yield ir.If(chosen, (ir.Let(phase.name, Lit(0)), self.items((steps,))))

    def loads(
        self,
        name: str,
        operand: Operand,
        tile: TileLayout,
        start: Scalar,
        row: Scalar,
        full: ir.BarrierAt,
    ) -> Iterator[ir.Stmt]:
        batch = present(self.softmax.batch, operand.batch)
        for panel in range(tile.panels):
            target = ir.Address(name, start + panel * tile.panel_bytes)
            coords = (Lit(panel * tile.panel_columns), row, *batch)
            yield ir.TmaLoad(target, name, coords, full)

    # Consumers

    def consumer(self) -> Body:
        head: list[ir.Stmt] = [
            ir.Let("group", (WARP - 4) >> 2),
            ir.Let("member", THREAD & (WARPGROUP - 1)),
            ir.Let("quarter", WARP & 3),
            *self.tiles_ahead.start(),
            *self.keys.start(),
            *self.values.start(),
        ]
        if self.plan.consumers > 1:
            # A wait for phase 1 passes before anything was completed: the first consumer begins.
            head.append(ir.Let("turn_phase", GROUP.equals(0)))
        if self.layout.staged:
            head.append(ir.Let("beside_phase", Lit(0)))
        head += states_read(self.problem.states, self.buffers)
        head += [constant("zero", F32, 0.0), constant("lowest", F32, -math.inf)]
        head += [constant("one", F32, 1.0), constant("rate", F32, self.softmax.rate)]
        return (*head, self.items((*self.tile(),), whole=True))

    def tile(self) -> Iterator[ir.Stmt]:
        """All blocks of keys for 64 queries."""
        layout, plan = self.layout, self.plan
        yield ir.Registers("scores", ir.RegisterKind.F32, plan.tile_kv // 2)
        yield ir.Registers("weights", ir.RegisterKind.B32, plan.tile_kv // 4)
        yield ir.Registers("mixed", ir.RegisterKind.F32, layout.width // 2, zero=True)
        yield from bit_registers(self.softmax.chances, plan.tile_kv)
        for row in BOTH_ROWS:
            yield Variable(f"top{row}", F32, -math.inf)
            yield Variable(f"total{row}", F32, 0.0)
        yield ir.MbarrierWait(ir.BarrierAt("q_full", self.softmax.q_slot), self.tiles_ahead.phase)
        start = ir.Address("q", self.softmax.q_slot * layout.q_bytes)
        yield ir.Descriptor("queries", start, layout.q, Major.K)
        yield from self.first_step()
        yield from self.further_steps()
        yield from self.last_products()
        yield from self.results.stored()
        yield from self.tiles_ahead.advance()

    def first_step(self) -> Iterator[ir.Stmt]:
        """Scores alone: there are no weights yet to mix values with."""
        yield from self.take_turn()
        yield from self.score_products("_first")
        yield from self.pass_turn()
        yield from self.softmax.draw(Name("last") - 1)
        yield ir.WgmmaWait(0, ("scores",))
        yield from self.release("k", self.keys)
        hides = self.layout.at_most(lambda steps: steps.edge)
        yield from self.softmax.logits(Name("last") - 1, masked=bool(hides))
        yield from self.softmax.powers("_first")
        yield self.softmax.pack(Name("last") - 1)

    def further_steps(self) -> Iterator[ir.Stmt]:
        """The other blocks of keys from the last one but one down: those at the upper edge of the
        band, those that are seen whole, those at its lower edge."""
        for number, (start, end, masked) in enumerate(self.steps.loops):
            if self.layout.at_most(partial(_loop_length, number=number)) > 0:
                block = start - 1 - Name("back")
                yield ir.For("back", 0, start - end, 1, (*self.step(block, masked=masked),))

    def step(self, block: Scalar, *, masked: bool) -> Iterator[ir.Stmt]:
        yield from self.take_turn()
        yield from self.score_products("")
        yield from self.value_products("")
        yield from self.pass_turn()
        yield from self.softmax.draw(block)
        # Products retire in order: S is there, while P V of the block before may still run.
        yield ir.WgmmaWait(1, ("scores",))
        yield from self.release("k", self.keys)
        yield from self.softmax.logits(block, masked=masked)
        yield from self.softmax.powers("")
        yield ir.WgmmaWait(0, ("mixed", "weights"))
        yield from self.release("v", self.values)
        # O is relative to the earlier top, as the powers were that it was made of: scaled only when
        # the products of those are added, and before any with the new powers. They were the last to
        # read the registers of the weights, too, which `pack` writes.
        yield ir.RowScale("mixed", ("factor0", "factor1"))
        yield self.softmax.pack(block)

    def last_products(self) -> Iterator[ir.Stmt]:
        yield from self.value_products("_last")
        yield ir.WgmmaWait(0, ("mixed", "weights"))
        yield from self.release("v", self.values)

    # Products

    def take_turn(self) -> Iterator[ir.Stmt]:
        if self.plan.consumers > 1:
            yield ir.MbarrierWait(ir.BarrierAt("turn", GROUP), Name("turn_phase"))
            yield ir.Set("turn_phase", Name("turn_phase") ^ 1)

    def pass_turn(self) -> Iterator[ir.Stmt]:
        if self.plan.consumers > 1:
            following = (GROUP + 1) % self.plan.consumers
            yield once_per_warp(ir.MbarrierArrive(ir.BarrierAt("turn", following)))

    def score_products(self, suffix: str) -> Iterator[ir.Stmt]:
        layout, ring = self.layout, self.keys
        name = f"keys{suffix}"
        yield ir.MbarrierWait(ir.BarrierAt("k_full", ring.slot), ring.phase)
        start = ir.Address("k", ring.slot * layout.k.bytes)
        yield ir.Descriptor(name, start, layout.k, Major.K)
        yield ir.WgmmaFence()
        dtype = self.problem.q.dtype
        for depth in range(0, layout.depth, STEP):
            a = ir.WgmmaOperand("queries", operand_offset(layout.q, Major.K, 0, depth), Major.K)
            b = ir.WgmmaOperand(name, operand_offset(layout.k, Major.K, 0, depth), Major.K)
            yield ir.Wgmma("scores", self.plan.tile_kv, a, b, dtype, dtype, depth > 0)
        yield ir.WgmmaCommit()

    def value_products(self, suffix: str) -> Iterator[ir.Stmt]:
        layout, ring = self.layout, self.values
        name = f"values{suffix}"
        yield ir.MbarrierWait(ir.BarrierAt("v_full", ring.slot), ring.phase)
        start = ir.Address("v", ring.slot * layout.v.bytes)
        yield ir.Descriptor(name, start, layout.v, Major.MN)
        # Weights are registers that were just written.
        yield ir.WgmmaFence()
        dtype = self.problem.v.dtype
        for key in range(0, self.plan.tile_kv, STEP):
            b = ir.WgmmaOperand(name, operand_offset(layout.v, Major.MN, 0, key), Major.MN)
            weights = ir.RegAt("weights", key // 4)
            yield ir.Wgmma("mixed", layout.width, weights, b, dtype, dtype, accumulate=True)
        yield ir.WgmmaCommit()

    def release(self, name: str, ring: Ring) -> Iterator[ir.Stmt]:
        """Hand a slot back whose products are done, and go to the next."""
        yield once_per_warp(ir.MbarrierArrive(ir.BarrierAt(f"{name}_empty", ring.slot)))
        yield from ring.advance()


def _loop_length(steps: Steps, number: int) -> Scalar:
    start, end, _ = steps.loops[number]
    return start - end
