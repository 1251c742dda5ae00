"""The SM90 attention: copy engine, barriers in rings, softmax beside asynchronous products.

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
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.attention.layout import ROWS, WARPGROUP, Layout, Steps, refusals
from weft.codegen.gpu.attention.problem import Program, RowResult, analyse
from weft.codegen.gpu.body.accept import kernel_refusals
from weft.codegen.gpu.ir.element_ops import ElementOp, Number
from weft.codegen.gpu.ir.scalar import (
    BLOCK,
    LANE,
    LANES,
    THREAD,
    WARP,
    Lit,
    Name,
    Scalar,
    TableAt,
    both,
)
from weft.codegen.gpu.ir.swizzle import Major, TileLayout, operand_offset
from weft.codegen.gpu.ir.values import Assign, Compute, Shuffle, StoreElement, Variable
from weft.codegen.gpu.products.place import offset, present
from weft.codegen.gpu.products.problem import Operand, Refs, Refusal, Source
from weft.codegen.gpu.products.ring import Ring
from weft.codegen.gpu.template import Job
from weft.foundation.dtypes import F32, I1, SI32, DType
from weft.foundation.errors import Finding, SpecViolation
from weft.plan.ir import AttentionPlan, Plan
from weft.region.ir import Kernel
from weft.target.target import Target

Body = tuple[ir.Stmt, ...]
_GROUP: Final = Name("group")
_QUARTER: Final = Name("quarter")
_MEMBER: Final = Name("member")
_TILE: Final = Name("tile")
_BOTH_ROWS: Final = (0, 1)
_QUAD: Final = (1, 2)
"""Bits of the lanes of a quad: an exchange over both reaches all four."""
_STEP: Final = 16
_LOADS_QUERIES: Final = LANES
"""The thread that loads queries: the first one of the second warp."""
_LOADS_BESIDE: Final = 2 * LANES
"""The thread that loads what lies beside the scores."""


def accepts(kernel: Kernel, refs: Refs, plan: AttentionPlan, target: Target) -> list[Finding]:
    """Why this template cannot carry out the kernel with the plan; empty if it can."""
    try:
        problem = analyse(kernel, refs)
    except Refusal as refusal:
        return [refusal.finding]
    return [*refusals(Layout(problem, plan, target))]


def build(kernel: Kernel, refs: Refs, plan: AttentionPlan, target: Target, name: str) -> ir.Kernel:
    """The dialect kernel, called `name` in the generated source."""
    findings = accepts(kernel, refs, plan, target)
    if findings:
        raise SpecViolation.of(findings)
    return _Builder(Layout(analyse(kernel, refs), plan, target), name).kernel()


@dataclass
class _Builder:
    """Makes the statements of one kernel."""

    layout: Layout
    name: str

    def __post_init__(self) -> None:
        self.problem, self.plan = self.layout.problem, self.layout.plan
        problem = self.problem
        sources = (*problem.score.sources, *problem.mixed.sources)
        tensors = [problem.q.tensor, problem.k.tensor, problem.v.tensor]
        tensors += [source.tensor for source in sources if source.tensor is not None]
        tensors += [problem.out_tensor, *(row.tensor for row in problem.rows)]
        self.buffers = list(dict.fromkeys(tensors))
        self.keys, self.values = Ring(self.plan.stages, "k_"), Ring(self.plan.stages, "v_")
        self.tiles_ahead = Ring(self.layout.q_slots, "q_")
        self.steps = self.layout.steps(_TILE)

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

    def items(self, body: Body) -> ir.Stmt:
        """A loop over the tiles of this block: of a few matrices at a time, those with the most
        keys first."""
        layout, problem = self.layout, self.problem
        item, group = Name("item"), Name("item") // layout.per_group
        located: list[ir.Stmt] = [
            ir.Let("tile", layout.tile_of(item)),
            ir.Let("matrix", group * layout.together + item % layout.together),
        ]
        rest: Scalar = Name("matrix")
        for axis in reversed(range(len(problem.batch))):
            located.append(ir.Let(f"batch{axis}", rest % problem.batch[axis] if axis else rest))
            rest = rest // problem.batch[axis]
        located += [ir.Let("first", self.steps.first), ir.Let("last", self.steps.last)]
        inner = (*located, *body)
        if not layout.schedule:
            return ir.For("item", BLOCK, layout.items, layout.grid, inner)
        chosen = ir.Let("item", Name("period") + TableAt("order", Name("turn_number")))
        start, end = (TableAt("starts", BLOCK + ahead) for ahead in (0, 1))
        turns = ir.For("turn_number", start, end, 1, (chosen, *inner))
        return ir.For("period", 0, layout.items, layout.period, (turns,))

    @property
    def batch(self) -> tuple[Scalar, ...]:
        return tuple(Name(f"batch{axis}") for axis, _ in enumerate(self.problem.batch))

    # The producer

    def producer(self) -> Iterator[ir.Stmt]:
        problem, layout = self.problem, self.layout
        block = Name("last") - 1 - (Name("step") - Name("first"))
        step: list[ir.Stmt] = []
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
            row = _TILE * self.plan.tile_q + consumer * ROWS
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
            row = _TILE * self.plan.tile_q + consumer * ROWS
            batch = present(self.batch, source.strides.batch)
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
        batch = present(self.batch, operand.batch)
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
            head.append(ir.Let("turn_phase", _GROUP.equals(0)))
        if self.layout.staged:
            head.append(ir.Let("beside_phase", Lit(0)))
        head += [_constant("zero", F32, 0.0), _constant("lowest", F32, -math.inf)]
        head += [_constant("one", F32, 1.0), _constant("rate", F32, self.rate)]
        return (*head, self.items((*self.tile(),)))

    @property
    def rate(self) -> float:
        """What a score is multiplied by before it is a power of two."""
        return self.problem.scale * math.log2(math.e)

    def tile(self) -> Iterator[ir.Stmt]:
        """All blocks of keys for 64 queries."""
        layout, plan = self.layout, self.plan
        yield ir.Registers("scores", ir.RegisterKind.F32, plan.tile_kv // 2)
        yield ir.Registers("weights", ir.RegisterKind.B32, plan.tile_kv // 4)
        yield ir.Registers("mixed", ir.RegisterKind.F32, layout.width // 2, zero=True)
        for row in _BOTH_ROWS:
            yield Variable(f"top{row}", F32, -math.inf)
            yield Variable(f"total{row}", F32, 0.0)
        yield ir.MbarrierWait(ir.BarrierAt("q_full", self.q_slot), self.tiles_ahead.phase)
        start = ir.Address("q", self.q_slot * layout.q_bytes)
        yield ir.Descriptor("queries", start, layout.q, Major.K)
        yield from self.first_step()
        yield from self.further_steps()
        yield from self.last_products()
        yield from self.results()
        yield from self.tiles_ahead.advance()

    @property
    def q_slot(self) -> Scalar:
        """Where this consumer's queries of this tile are."""
        return _GROUP * self.layout.q_slots + self.tiles_ahead.slot

    def first_step(self) -> Iterator[ir.Stmt]:
        """Scores alone: there are no weights yet to mix values with."""
        yield from self.take_turn()
        yield from self.score_products("_first")
        yield from self.pass_turn()
        yield ir.WgmmaWait(0, ("scores",))
        yield from self.release("k", self.keys)
        hides = self.layout.at_most(lambda steps: steps.edge)
        yield from self.logits(Name("last") - 1, masked=bool(hides))
        yield from self.softmax("_first")
        yield self.pack()

    def further_steps(self) -> Iterator[ir.Stmt]:
        """The other blocks of keys from the last one but one down: those at the upper edge of the
        band, those that are seen whole, those at its lower edge."""
        for number, (start, end, masked) in enumerate(self.steps.loops):
            if self.layout.at_most(partial(_turns, number=number)) > 0:
                block = start - 1 - Name("back")
                yield ir.For("back", 0, start - end, 1, (*self.step(block, masked=masked),))

    def step(self, block: Scalar, *, masked: bool) -> Iterator[ir.Stmt]:
        yield from self.take_turn()
        yield from self.score_products("")
        yield from self.value_products("")
        yield from self.pass_turn()
        yield ir.WgmmaWait(1, ("scores",))
        yield from self.release("k", self.keys)
        yield from self.logits(block, masked=masked)
        yield from self.softmax("")
        yield ir.WgmmaWait(0, ("mixed", "weights"))
        yield from self.release("v", self.values)
        yield ir.RowScale("mixed", ("factor0", "factor1"))
        yield self.pack()

    def last_products(self) -> Iterator[ir.Stmt]:
        yield from self.value_products("_last")
        yield ir.WgmmaWait(0, ("mixed", "weights"))
        yield from self.release("v", self.values)

    # Products

    def take_turn(self) -> Iterator[ir.Stmt]:
        if self.plan.consumers > 1:
            yield ir.MbarrierWait(ir.BarrierAt("turn", _GROUP), Name("turn_phase"))
            yield ir.Set("turn_phase", Name("turn_phase") ^ 1)

    def pass_turn(self) -> Iterator[ir.Stmt]:
        if self.plan.consumers > 1:
            following = (_GROUP + 1) % self.plan.consumers
            yield _once_per_warp(ir.MbarrierArrive(ir.BarrierAt("turn", following)))

    def score_products(self, suffix: str) -> Iterator[ir.Stmt]:
        layout, ring = self.layout, self.keys
        name = f"keys{suffix}"
        yield ir.MbarrierWait(ir.BarrierAt("k_full", ring.slot), ring.phase)
        start = ir.Address("k", ring.slot * layout.k.bytes)
        yield ir.Descriptor(name, start, layout.k, Major.K)
        yield ir.WgmmaFence()
        dtype = self.problem.q.dtype
        for depth in range(0, layout.depth, _STEP):
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
        for key in range(0, self.plan.tile_kv, _STEP):
            b = ir.WgmmaOperand(name, operand_offset(layout.v, Major.MN, 0, key), Major.MN)
            weights = ir.RegAt("weights", key // 4)
            yield ir.Wgmma("mixed", layout.width, weights, b, dtype, dtype, accumulate=True)
        yield ir.WgmmaCommit()

    def release(self, name: str, ring: Ring) -> Iterator[ir.Stmt]:
        """Hand a slot back whose products are done, and go to the next."""
        yield _once_per_warp(ir.MbarrierArrive(ir.BarrierAt(f"{name}_empty", ring.slot)))
        yield from ring.advance()

    # Softmax

    @property
    def first_query(self) -> Scalar:
        return _TILE * self.plan.tile_q + _GROUP * ROWS

    def fragment(self, column: Scalar, columns: int, count: int) -> ir.Fragment:
        """`columns` columns, of `count` that there are, from the given one on."""
        row = self.first_query + _QUARTER * 16 + (LANE >> 2)
        across = column + (LANE & 3) * 2
        return ir.Fragment(columns // 8, row, across, self.problem.queries, count)

    def logits(self, block: Scalar, *, masked: bool) -> Iterator[ir.Stmt]:
        """What the program of a score makes of scores, and -inf where a key is hidden."""
        program, staged = self.problem.score, self.layout.staged
        more: list[ir.ElementSource] = []
        ops, result = list(program.ops), program.result
        if masked:
            more, hidden = self.mask(result)
            ops, result = ops + hidden, "visible"
        if not ops:
            return
        for number, _ in enumerate(staged):
            full = ir.BarrierAt(f"beside{number}_full", _GROUP)
            yield ir.MbarrierWait(full, Name("beside_phase"))
        # What is staged comes in panels, everything else at once.
        width = min((self.layout.beside(s).panel_columns for s in staged), default=256)
        for column in range(0, self.plan.tile_kv, width):
            count = min(width, self.plan.tile_kv - column)
            start = block * self.plan.tile_kv + column
            sources = [self.score_source(source, column) for source in program.sources]
            yield ir.Epilogue(
                acc=ir.RegAt("scores", column // 2),
                fragment=self.fragment(start, count, self.problem.keys),
                value=program.value,
                sources=(*sources, *more),
                ops=tuple(ops),
                result=result,
                out=ir.RegAt("scores", column // 2),
                out_dtype=F32,
            )
        for number, _ in enumerate(staged):
            empty = ir.BarrierAt(f"beside{number}_empty", _GROUP)
            yield _once_per_warp(ir.MbarrierArrive(empty))
        if staged:
            yield ir.Set("beside_phase", Name("beside_phase") ^ 1)

    def score_source(self, source: Source, column: int) -> ir.ElementSource:
        """What lies beside the scores from a column on, in shared memory where it is staged."""
        staged = self.layout.staged
        if source not in staged:
            return self.source(source)
        number, tile = staged.index(source), self.layout.beside(source)
        panel, inside = divmod(column, tile.panel_columns)
        row = _QUARTER * 16 + (LANE >> 2)
        start = _GROUP * tile.bytes + panel * tile.panel_bytes + row * tile.swizzle.span
        across = (LANE & 3) * (2 * tile.size) + inside * tile.size
        address = ir.Address(f"beside{number}", start)
        return ir.StagedElements(source.name, source.dtype, address, across, tile.swizzle)

    def mask(self, value: str) -> tuple[list[ir.ElementSource], list[ElementOp]]:
        """`visible`: a value, or -inf where its key is hidden or not there."""
        band = self.problem.band
        ops = [ElementOp("hidden", F32, "const", (), -math.inf)]
        conditions: list[str] = []
        bounds = [("ahead", "le", band.high), ("ahead", "ge", band.low)]
        if self.problem.keys % self.plan.tile_kv:
            bounds.append(("key", "lt", self.problem.keys))
        for what, fn, number in bounds:
            if number is None:
                continue
            name = f"{what}_{fn}"
            ops.append(ElementOp(f"{name}_bound", SI32, "const", (), number))
            ops.append(ElementOp(name, I1, fn, (what, f"{name}_bound")))
            conditions.append(name)
        while len(conditions) > 1:
            pair = (conditions.pop(), conditions.pop())
            ops.append(ElementOp("_and_".join(("both", *pair)), I1, "and", pair))
            conditions.append(ops[-1].name)
        ops.append(ElementOp("visible", F32, "select", (*conditions, value, "hidden")))
        factors = {"ahead": (-1, 1), "key": (0, 1)}
        used = {what for what, _, number in bounds if number is not None}
        return [ir.IndexElements(n, SI32, Lit(0), *factors[n]) for n in sorted(used)], ops

    def softmax(self, suffix: str) -> Iterator[ir.Stmt]:
        """Scores become powers; `top` and `total` go on, and `factor` is what sums that were made
        with the earlier `top` are too large by."""
        yield ir.RowMax(tuple(f"peak{row}{suffix}" for row in _BOTH_ROWS), "scores")
        for row in _BOTH_ROWS:
            yield from _over_quad(f"peak{row}{suffix}", "max")
            yield from self.new_top(row, suffix)
        shifts = tuple(f"shift{row}{suffix}" for row in _BOTH_ROWS)
        sums = tuple(f"sum{row}{suffix}" for row in _BOTH_ROWS)
        yield ir.RowExp(sums, "scores", shifts, self.rate)
        for row in _BOTH_ROWS:
            kept, total = f"kept{row}{suffix}", f"total{row}"
            yield _compute(kept, "mul", total, f"factor{row}{suffix}")
            yield _compute(f"{total}_new{suffix}", "add", kept, f"sum{row}{suffix}")
            yield Assign(total, f"{total}_new{suffix}", Lit(1))

    def new_top(self, row: int, suffix: str) -> Iterator[ir.Stmt]:
        """While a query has seen no key its powers are shifted by nothing: -inf minus -inf would be
        NaN."""
        top, new, shift = f"top{row}", f"new{row}{suffix}", f"shift{row}{suffix}"
        yield _compute(new, "max", top, f"peak{row}{suffix}_all")
        yield _compute(f"scaled{row}{suffix}", "mul", new, "rate")
        yield Compute(ElementOp(f"blind{row}{suffix}", I1, "eq", (new, "lowest")))
        chosen = (f"blind{row}{suffix}", "zero", f"scaled{row}{suffix}")
        yield Compute(ElementOp(shift, F32, "select", chosen))
        yield _compute(f"before{row}{suffix}", "mul", top, "rate")
        yield _compute(f"fall{row}{suffix}", "sub", f"before{row}{suffix}", shift)
        power = ElementOp(f"factor{row}{suffix}", F32, "exp2", (f"fall{row}{suffix}",), loose=True)
        yield Compute(power)
        yield Assign(top, new, Lit(1))

    def pack(self) -> ir.Stmt:
        """Powers as weights, in the order in which products read them from registers."""
        fragment = self.fragment(Lit(0), self.plan.tile_kv, self.problem.keys)
        dtype = self.problem.v.dtype
        given = (ir.RegAt("scores"), fragment, "weight", (), (), "weight", ir.RegAt("weights"))
        return ir.Epilogue(*given, dtype)

    # Results

    def results(self) -> Iterator[ir.Stmt]:
        for row in _BOTH_ROWS:
            yield from _over_quad(f"total{row}", "add")
            total = f"total{row}_all"
            yield Compute(ElementOp(f"none{row}", I1, "eq", (total, "zero")))
            yield Compute(ElementOp(f"sum{row}", F32, "select", (f"none{row}", "one", total)))
            yield _compute(f"share{row}", "div", "one", f"sum{row}")
        yield from self.mixed_values()
        for number, result in enumerate(self.problem.rows):
            yield from self.row_result(number, result)

    def mixed_values(self) -> Iterator[ir.Stmt]:
        """The program of a mixed value on O divided by the sums, and its results to memory."""
        problem, layout, program = self.problem, self.layout, self.problem.mixed
        kind = ir.RegisterKind.for_results(problem.out_dtype)
        count = layout.width // (4 if problem.out_dtype.storage_bytes == 2 else 2)
        yield ir.Registers("stored", kind, count)
        share = ir.RowValues("share", F32, ("share0", "share1"))
        divided = ElementOp(program.value, F32, "mul", ("undivided", "share"))
        sources = tuple(self.source(source) for source in program.sources)
        fragment = self.fragment(Lit(0), layout.width, problem.width)
        yield ir.Epilogue(
            acc=ir.RegAt("mixed"),
            fragment=fragment,
            value="undivided",
            sources=(share, *sources),
            ops=(divided, *_unrounded(program)),
            result=program.result,
            out=ir.RegAt("stored"),
            out_dtype=problem.out_dtype,
        )
        if layout.tma_store:
            yield from self.store_by_copy()
        else:
            yield from self.store_by_threads(fragment)

    def store_by_copy(self) -> Iterator[ir.Stmt]:
        layout, tile = self.layout, self.layout.out
        start = self.q_slot * layout.q_bytes
        meet = ir.NamedBarrier(_GROUP + 1, WARPGROUP)
        # All warps of the consumer have read their queries.
        yield meet
        panel = replace(tile, columns=tile.panel_columns)
        for number in range(tile.panels):
            for pair in range(tile.panel_columns // _STEP):
                place = panel.of(_QUARTER * 16 + (LANE & 15), (LANE >> 4) * 8 + _STEP * pair)
                target = ir.Address("q", start + number * tile.panel_bytes + place)
                first = (number * tile.panel_columns + _STEP * pair) // 4
                yield ir.StMatrix(target, ir.RegAt("stored", first), 4)
        yield ir.ProxyFence()
        yield meet
        batch = present(self.batch, self.problem.out.batch)
        stores: list[ir.Stmt] = []
        for number in range(tile.panels):
            coords = (Lit(number * tile.panel_columns), self.first_query, *batch)
            stores.append(
                ir.TmaStore(ir.Address("q", start + number * tile.panel_bytes), "out", coords)
            )
        done = ir.MbarrierArrive(ir.BarrierAt("q_empty", self.q_slot))
        yield ir.If(_MEMBER.equals(0), (*stores, ir.TmaCommit(), ir.TmaWaitRead(0), done))

    def store_by_threads(self, fragment: ir.Fragment) -> Iterator[ir.Stmt]:
        """Straight from registers, where the copy engine cannot write."""
        out, problem = self.problem.out, self.problem
        yield _once_per_warp(ir.MbarrierArrive(ir.BarrierAt("q_empty", self.q_slot)))
        even = all(number % 2 == 0 for number in (out.row, out.offset, *out.batch))
        yield ir.StGlobalVec(
            ir.RegAt("stored"),
            problem.out_dtype,
            fragment,
            self.buffers.index(problem.out_tensor),
            offset(replace(out, row=0, column=0), Lit(0), Lit(0), self.batch),
            out.row,
            out.column,
            2 if out.column == 1 and even and problem.width % 2 == 0 else 1,
        )

    def row_result(self, number: int, result: RowResult) -> Iterator[ir.Stmt]:
        """What is stored of a query beside its mixed value: one lane of each quad does."""
        for row in _BOTH_ROWS:
            names = {
                result.top: f"top{row}_of{number}",
                result.total: f"total{row}_all",
                **{op.name: f"{op.name}_of{number}_{row}" for op in result.ops},
            }
            yield Compute(_constant(f"scale{row}_of{number}", F32, self.problem.scale).op)
            yield _compute(names[result.top], "mul", f"top{row}", f"scale{row}_of{number}")
            for op in result.ops:
                args = tuple(names[arg] for arg in op.args)
                yield Compute(replace(op, name=names[op.name], args=args))
            query = self.first_query + _QUARTER * 16 + (LANE >> 2) + 8 * row
            yield StoreElement(
                self.buffers.index(result.tensor),
                result.dtype,
                offset(result.strides, query, Lit(0), self.batch),
                both((LANE & 3).equals(0), query < self.problem.queries),
                names[result.result],
            )

    def source(self, source: Source) -> ir.ElementSource:
        strides = source.strides
        if source.tensor is None:
            narrow = offset(
                replace(strides, row=0, column=0), Lit(0), Lit(0), self.batch, widen=False
            )
            return ir.IndexElements(source.name, source.dtype, narrow, strides.row, strides.column)
        base = offset(replace(strides, row=0, column=0), Lit(0), Lit(0), self.batch)
        buffer = self.buffers.index(source.tensor)
        return ir.GlobalElements(
            source.name, source.dtype, buffer, base, strides.row, strides.column
        )


def _turns(steps: Steps, number: int) -> Scalar:
    start, end, _ = steps.loops[number]
    return start - end


def _once_per_warp(statement: ir.Stmt) -> ir.Stmt:
    return ir.If(LANE.equals(0), (statement,))


def _constant(name: str, dtype: DType, value: Number) -> Compute:
    return Compute(ElementOp(name, dtype, "const", (), value))


def _compute(name: str, fn: str, *args: str) -> Compute:
    return Compute(ElementOp(name, F32, fn, args))


def _over_quad(name: str, fn: str) -> Iterator[ir.Stmt]:
    """`<name>_all`: the values of the four lanes of a quad, put together."""
    value = name
    for mask in _QUAD:
        last = mask == _QUAD[-1]
        other, joined = f"{name}_from{mask}", f"{name}_all" if last else f"{name}_two"
        yield Shuffle(other, F32, value, mask)
        yield _compute(joined, fn, value, other)
        value = joined


def _unrounded(program: Program) -> tuple[ElementOp, ...]:
    """Storing rounds anyway: the op that makes the stored value need not."""
    used = {arg for op in program.ops for arg in op.args}
    return tuple(
        replace(op, deferred_rounding=True)
        if op.name == program.result and op.name not in used and op.dtype.storage_bytes == 2
        else op
        for op in program.ops
    )


class AttentionTemplate:
    """Attention in one kernel, on SM90."""

    name: Final = "attention"

    def takes(self, plan: Plan) -> bool:
        return isinstance(plan, AttentionPlan)

    def accepts(self, job: Job[AttentionPlan]) -> list[Finding]:
        return [
            *kernel_refusals(job.kernel, job.tensors),
            *accepts(job.kernel, job.refs, job.plan, job.target),
        ]

    def build(self, job: Job[AttentionPlan], name: str) -> ir.Kernel:
        layout = Layout(analyse(job.kernel, job.refs), job.plan, job.target)
        return _Builder(layout, name).kernel()


TEMPLATE: Final = AttentionTemplate()
