"""The SM90 contraction: copy engine, barriers in a ring, asynchronous matrix instructions.

    producer    for each tile, for each k step: wait until the slot is empty, load A and B into it
    consumers   for each k step: wait until the slot is full, multiply, hand the slot back;
                then epilogue, staging in shared memory, store by the copy engine
                (by threads, where rows of the result do not begin at whole lines)

One warpgroup produces. Cooperative consumers share each tile; ping-pong consumers take tiles in
turn, so that one multiplies while another stores. With `swap_ab` the transposed product is made:
few rows of a problem become few columns of a tile. The grid is persistent: a block takes every
`grid`-th tile of the order. With a deferred epilogue a tile's results wait in registers and are
stored panel by panel during the first k steps of the next tile.

Who may touch a slot: the producer between `empty` and its copies, consumers between `full` and
their arrival on `empty`, which comes after `WgmmaWait` has retired the last instruction that reads
the slot. Ping-pong consumers begin to wait for a tile's slots only when the others have gone
through all of theirs (`turn`): a wait for a later use of a slot would pass by parity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.matmul import Problem, Refs, Refusal, Source, analyse
from weft.codegen.gpu.mma_fields import field_refusals
from weft.codegen.gpu.mma_place import Place, locate, offset, present
from weft.codegen.gpu.scalar import (
    BLOCK,
    LANE,
    THREAD,
    WARP,
    Lit,
    Name,
    Scalar,
    least,
)
from weft.codegen.gpu.sm90_layout import (
    MMA_K,
    WARPGROUP,
    Sm90Layout,
    refusals,
)
from weft.codegen.gpu.swizzle import Major, operand_offset
from weft.foundation.dtypes import F32
from weft.foundation.errors import Finding, SpecViolation
from weft.plan.ir import MmaPlan
from weft.region.ir import Kernel
from weft.target.target import Target

Body = tuple[ir.Stmt, ...]
_STORING_STEPS: Final = 4
"""Steps, at most, during which a deferred epilogue is stored: each is written out."""
_WARP: Final = 32
_ROWS_AT_ONCE: Final = 4
"""Turns of the loop over rows of a panel that the compiler may interleave."""


def accepts(kernel: Kernel, refs: Refs, plan: MmaPlan, target: Target) -> list[Finding]:
    """Why this template cannot carry out the kernel with the plan; empty if it can."""
    try:
        layout = _layout(kernel, refs, plan, target)
    except Refusal as refusal:
        return [refusal.finding]
    return [*refusals(layout, target), *field_refusals(kernel, plan)]


def build(kernel: Kernel, refs: Refs, plan: MmaPlan, target: Target, name: str) -> ir.Kernel:
    """The dialect kernel, called `name` in the generated source."""
    findings = accepts(kernel, refs, plan, target)
    if findings:
        raise SpecViolation.of(findings)
    return _Builder(_layout(kernel, refs, plan, target), name).kernel()


def _layout(kernel: Kernel, refs: Refs, plan: MmaPlan, target: Target) -> Sm90Layout:
    problem = analyse(kernel, refs)
    chosen = problem.swapped() if plan.swap_ab else problem
    return Sm90Layout(chosen, plan, target.limits.units)


@dataclass
class _Builder:
    """Makes the statements of one kernel."""

    layout: Sm90Layout
    name: str
    problem: Problem = field(init=False)
    plan: MmaPlan = field(init=False)
    buffers: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.problem, self.plan = self.layout.problem, self.layout.plan
        tensors = [self.problem.a.tensor, self.problem.b.tensor]
        tensors += [s.tensor for s in self.problem.sources if s.tensor is not None]
        self.buffers = list(dict.fromkeys([*tensors, self.problem.out_tensor]))

    def kernel(self) -> ir.Kernel:
        layout = self.layout
        return ir.Kernel(
            name=self.name,
            grid=layout.grid,
            threads=layout.threads,
            buffers=tuple(self.buffers),
            maps=tuple(self.maps()),
            tiles=tuple(self.tiles()),
            barriers=tuple(self.barriers()),
            tables=layout.order.tables,
            body=self.body(),
        )

    # Storage

    def maps(self) -> Iterator[ir.TensorMap]:
        problem, layout = self.problem, self.layout
        for name, operand, rows, tile in (
            ("a", problem.a, problem.m, layout.a),
            ("b", problem.b, problem.n, layout.b),
        ):
            sizes = (problem.k, rows) if operand.major is Major.K else (rows, problem.k)
            yield ir.TensorMap(
                name,
                self.buffers.index(operand.tensor),
                operand.dtype,
                operand.offset,
                (*sizes, *self.batch_sizes(operand.batch)),
                (operand.pitch, *(s for s in operand.batch if s)),
                (tile.panel_columns, tile.rows, *_ones(operand.batch)),
                tile.swizzle,
            )
        if layout.tma_store:
            yield self.result_map()

    def result_map(self) -> ir.TensorMap:
        problem, tile = self.problem, self.layout.c
        per_line = 16 // problem.out_dtype.storage_bytes
        # A single row has no stride; the copy engine wants a regular one all the same.
        pitch = problem.out.row if problem.m > 1 else -(-problem.n // per_line) * per_line
        return ir.TensorMap(
            "c",
            self.buffers.index(problem.out_tensor),
            problem.out_dtype,
            problem.out.offset,
            (problem.n, problem.m, *self.batch_sizes(problem.out.batch)),
            (pitch, *(s for s in problem.out.batch if s)),
            (tile.columns, tile.rows, *_ones(problem.out.batch)),
            tile.swizzle,
        )

    def batch_sizes(self, strides: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(n for n, s in zip(self.problem.batch, strides, strict=True) if s)

    def tiles(self) -> Iterator[ir.SharedTile]:
        layout, stages = self.layout, self.plan.stages
        yield ir.SharedTile("a", layout.a_offset, stages * layout.a.bytes, layout.a)
        yield ir.SharedTile("b", layout.b_offset, stages * layout.b.bytes, layout.b)
        if layout.staged:
            yield ir.SharedTile("c", layout.c_offset, layout.c_bytes, layout.c)
        if layout.columns:
            yield ir.SharedTile("columns", layout.columns_offset, layout.columns_bytes)

    def barriers(self) -> Iterator[ir.Barriers]:
        start, stages = self.layout.barriers_offset, self.plan.stages
        # Each warp hands a slot back by itself: its own matrix instructions have retired.
        users = 4 * (1 if self.layout.pingpong else self.plan.consumers)
        yield ir.Barriers("full", start, stages, 1)
        yield ir.Barriers("empty", start + 8 * stages, stages, users)
        if self.layout.pingpong:
            yield ir.Barriers("turn", start + 16 * stages, self.plan.consumers, 4)

    # Roles

    def body(self) -> Body:
        prepare: list[ir.Stmt] = [ir.MbarrierInit(array.name) for array in self.barriers()]
        prepare.append(ir.MbarrierInitFence())
        prepare += [ir.PrefetchMap(found.name) for found in self.maps()]
        roles = ir.Roles(
            (
                ir.Role("producer", 0, 4, (*self.registers(0), self.producer())),
                ir.Role(
                    "consumer",
                    4,
                    4 * self.plan.consumers,
                    (*self.registers(1), *self.consumer()),
                ),
            )
        )
        return (ir.If(THREAD.equals(0), tuple(prepare)), ir.SyncThreads(), roles)

    def registers(self, role: int) -> Body:
        count = self.plan.registers[role]
        return (ir.SetMaxNReg(count, grow=role == 1),) if count else ()

    def producer(self) -> ir.Stmt:
        slot, phase = Name("slot"), Name("phase")
        place, located = self.locate()
        step: Body = (
            ir.MbarrierWait(ir.BarrierAt("empty", slot), phase ^ 1),
            ir.MbarrierExpectTx(ir.BarrierAt("full", slot), self.layout.slot_bytes),
            *self.loads(place, slot, Name("k")),
            *self.advance(),
        )
        tiles = ir.For(
            "tile",
            BLOCK,
            self.layout.order.count,
            self.layout.grid,
            (*located, ir.For("k", 0, self.layout.k_steps, 1, step)),
        )
        return ir.If(THREAD.equals(0), (*_start_of_ring(), tiles))

    def loads(self, place: Place, slot: Scalar, k: Scalar) -> Iterator[ir.Stmt]:
        bm, bn, bk = self.layout.tile
        barrier = ir.BarrierAt("full", slot)
        for name, operand, tile, outer in (
            ("a", self.problem.a, self.layout.a, place.m * bm),
            ("b", self.problem.b, self.layout.b, place.n * bn),
        ):
            batch = present(place.batch, operand.batch)
            for panel in range(tile.panels):
                address = ir.Address(name, slot * tile.bytes + panel * tile.panel_bytes)
                across = panel * tile.panel_columns
                pair = (
                    (k * bk + across, outer)
                    if operand.major is Major.K
                    else (
                        outer + across,
                        k * bk,
                    )
                )
                yield ir.TmaLoad(address, name, (*pair, *batch), barrier)

    def locate(self) -> tuple[Place, Body]:
        """Where the tile `tile` lies, and the statements that find out."""
        return locate(self.problem, self.layout.order, Name("tile"))

    def advance(self, prefix: str = "") -> Body:
        slot, phase = Name(f"{prefix}slot"), Name(f"{prefix}phase")
        wrap = (ir.Set(slot.name, Lit(0)), ir.Set(phase.name, phase ^ 1))
        stages = self.plan.stages
        return (ir.Set(slot.name, slot + 1), ir.If(slot.equals(stages), wrap))

    def skip(self, steps: int) -> Body:
        """Pass over the slots of another consumer's tile."""
        stages = self.plan.stages
        slot, phase = Name("slot"), Name("phase")
        turns, rest = divmod(steps, stages)
        wrap = (ir.Set("slot", slot - stages), ir.Set("phase", phase ^ 1))
        moved: Body = (ir.Set("slot", slot + rest), ir.If(slot >= stages, wrap)) if rest else ()
        return (*((ir.Set("phase", phase ^ 1),) if turns % 2 else ()), *moved)

    # Consumers

    def consumer(self) -> Body:
        layout = self.layout
        group = Name("group")
        stride = layout.grid * (self.plan.consumers if layout.pingpong else 1)
        first = BLOCK + group * layout.grid if layout.pingpong else BLOCK
        place, located = self.locate()
        tile = (*located, *self.tile_body(place))
        head: list[ir.Stmt] = [
            ir.Let("group", (WARP - 4) >> 2),
            ir.Let("member", THREAD & (WARPGROUP - 1)),
            ir.Let("quarter", WARP & 3),
            *_start_of_ring(),
            ir.Let("last_slot", Lit(0)),
        ]
        head += [
            ir.Registers(f"acc{i}", ir.RegisterKind.F32, layout.warpgroup_tile[1] // 2)
            for i in range(layout.blocks)
        ]
        head += self.store_state(place)
        if layout.pingpong:
            head.append(ir.Let("turn_phase", group.equals(0)))
            head += [
                ir.If(group >= number, self.skip(layout.k_steps))
                for number in range(1, self.plan.consumers)
            ]
        loop = ir.For("tile", first, layout.order.count, stride, tile)
        return (*head, loop, *self.finish(place))

    def store_state(self, place: Place) -> list[ir.Stmt]:
        """Registers and variables that staging and storing keep between tiles."""
        layout = self.layout
        kind = ir.RegisterKind.F32 if self.problem.out_dtype is F32 else ir.RegisterKind.B32
        whole = self.plan.deferred_epilogue or not layout.staged
        count = layout.packed if whole else layout.packed // layout.chunks
        state: list[ir.Stmt] = [ir.Registers(f"out{i}", kind, count) for i in range(layout.blocks)]
        if self.rotates:
            state.append(ir.Let("buffer", Lit(0)))
        if self.plan.deferred_epilogue:
            kept = place.moved_to("stored")
            state.append(ir.Let("waiting", Lit(0)))
            state += [ir.Let(_name(part), Lit(0)) for part in kept.parts]
        return state

    @property
    def rotates(self) -> bool:
        """Whether the staging buffer of a panel differs from tile to tile."""
        return self.layout.staged and self.layout.chunks % self.plan.store_buffers != 0

    def tile_body(self, place: Place) -> Body:
        layout = self.layout
        body: list[ir.Stmt] = [*self.load_columns(place)]
        turn = Name("turn_phase")
        if layout.pingpong:
            body.append(ir.MbarrierWait(ir.BarrierAt("turn", Name("group")), turn))
        body += self.k_loop(place)
        if layout.pingpong:
            following = (Name("group") + 1) % self.plan.consumers
            body.append(_once_per_warp(ir.MbarrierArrive(ir.BarrierAt("turn", following))))
            body.append(ir.Set("turn_phase", turn ^ 1))
        body.append(ir.WgmmaWait(0, self.accumulators))
        if self.plan.in_flight:
            body.append(self.release(Name("last_slot")))
        if layout.pingpong:
            body += self.skip((self.plan.consumers - 1) * layout.k_steps)
        return (*body, *self.stage_columns(), *self.store_tile(place))

    @property
    def accumulators(self) -> tuple[str, ...]:
        return tuple(f"acc{i}" for i in range(self.layout.blocks))

    def k_loop(self, place: Place) -> Iterator[ir.Stmt]:
        """The first steps stand alone: they start the accumulators and store the last tile."""
        steps = self.layout.k_steps
        alone = min(self.layout.chunks, steps, _STORING_STEPS) if self.plan.deferred_epilogue else 1
        stored = place.moved_to("stored")
        for step in range(alone):
            yield from self.multiply(f"{step}", first=step == 0)
            if self.plan.deferred_epilogue:
                chunks = self.layout.chunks
                panels = range(step * chunks // alone, (step + 1) * chunks // alone)
                store = tuple(s for panel in panels for s in self.store_panel(panel, stored))
                yield ir.If(Name("waiting"), store)
            yield from self.retire(first=step == 0)
        if steps > alone:
            rest = (*self.multiply("", first=False), *self.retire(first=False))
            yield ir.For("k", alone, steps, 1, rest)

    def multiply(self, suffix: str, *, first: bool) -> Iterator[ir.Stmt]:
        """One k step: wait for the slot, issue its matrix instructions."""
        layout = self.layout
        slot = Name("slot")
        names = {side: f"{side}_tile{suffix}" for side in ("a", "b")}
        yield ir.MbarrierWait(ir.BarrierAt("full", slot), Name("phase"))
        for side, tile, operand, split in (
            ("a", layout.a, self.problem.a, self.row_split),
            ("b", layout.b, self.problem.b, self.column_split),
        ):
            start = slot * tile.bytes + split * operand_offset(
                tile, operand.major, layout.warpgroup_tile[side == "b"], 0
            )
            yield ir.Descriptor(names[side], ir.Address(side, start), tile, operand.major)
        yield ir.WgmmaFence()
        for k in range(0, layout.tile[2], MMA_K):
            for block in range(layout.blocks):
                yield self.wgmma(names, block, k, accumulate=not (first and k == 0))
        yield ir.WgmmaCommit()

    @property
    def row_split(self) -> Scalar:
        """Which part of a shared tile's rows this warpgroup has."""
        parts = self.layout.tile[0] // self.layout.warpgroup_tile[0]
        return Name("group") % parts if parts > 1 else Lit(0)

    @property
    def column_split(self) -> Scalar:
        rows = self.layout.tile[0] // self.layout.warpgroup_tile[0]
        columns = self.layout.tile[1] // self.layout.warpgroup_tile[1]
        return Name("group") // rows if columns > 1 else Lit(0)

    def wgmma(self, names: dict[str, str], block: int, k: int, *, accumulate: bool) -> ir.Wgmma:
        a, b = self.problem.a, self.problem.b
        return ir.Wgmma(
            f"acc{block}",
            self.layout.warpgroup_tile[1],
            ir.WgmmaOperand(
                names["a"], operand_offset(self.layout.a, a.major, 64 * block, k), a.major
            ),
            ir.WgmmaOperand(names["b"], operand_offset(self.layout.b, b.major, 0, k), b.major),
            a.dtype,
            accumulate,
        )

    def retire(self, *, first: bool) -> Iterator[ir.Stmt]:
        """Hand back the slot whose matrix instructions are done, and go to the next."""
        if self.plan.in_flight == 0:
            yield ir.WgmmaWait(0)
            yield self.release(Name("slot"))
        elif not first:
            yield ir.WgmmaWait(1)
            yield self.release(Name("last_slot"))
        if self.plan.in_flight:
            yield ir.Set("last_slot", Name("slot"))
        yield from self.advance()

    def release(self, slot: Scalar) -> ir.Stmt:
        return _once_per_warp(ir.MbarrierArrive(ir.BarrierAt("empty", slot)))

    # Epilogue

    def load_columns(self, place: Place) -> Iterator[ir.Stmt]:
        """Column vectors travel to registers while the tile is being multiplied."""
        for number, source in enumerate(self.layout.columns):
            for part, inside in self.column_parts():
                column = self.first_column(place) + inside
                assert source.tensor is not None
                yield ir.LoadElement(
                    f"column{number}_{part}",
                    self.buffers.index(source.tensor),
                    source.dtype,
                    offset(source.strides, Lit(0), column, place.batch),
                    column < self.problem.n,
                )

    def column_parts(self) -> Iterator[tuple[int, Scalar]]:
        width = self.layout.warpgroup_tile[1]
        for part in range(-(-width // WARPGROUP)):
            yield part, Name("member") + part * WARPGROUP

    def stage_columns(self) -> Iterator[ir.Stmt]:
        """Column vectors into shared memory, for every thread of the warpgroup to read."""
        if not self.layout.columns:
            return
        width = self.layout.warpgroup_tile[1]
        if self.plan.deferred_epilogue or not self.layout.staged:
            # Nothing else has met since the last tile's values were read.
            yield self.meet()
        for number, _ in enumerate(self.layout.columns):
            for part, inside in self.column_parts():
                store = ir.StShared(
                    ir.Address("columns", self.columns_start(number) + inside * 4),
                    f"column{number}_{part}",
                    F32,
                )
                yield ir.If(inside < width, (store,))
        yield self.meet()

    def columns_start(self, number: int) -> Scalar:
        width = 4 * self.layout.warpgroup_tile[1]
        return Name("group") * (width * len(self.layout.columns)) + number * width

    def meet(self) -> ir.Stmt:
        return ir.NamedBarrier(Name("group") + 1, WARPGROUP)

    def first_row(self, place: Place) -> Scalar:
        return place.m * self.layout.tile[0] + self.row_split * self.layout.warpgroup_tile[0]

    def first_column(self, place: Place) -> Scalar:
        return place.n * self.layout.tile[1] + self.column_split * self.layout.warpgroup_tile[1]

    def store_tile(self, place: Place) -> Iterator[ir.Stmt]:
        layout = self.layout
        if self.plan.deferred_epilogue:
            yield from self.epilogue(place, 0, layout.warpgroup_tile[1])
            kept = place.moved_to("stored")
            for new, part in zip(kept.parts, place.parts, strict=True):
                yield ir.Set(_name(new), part)
            yield ir.Set("waiting", Lit(1))
        elif layout.staged:
            for panel in range(layout.chunks):
                start = panel * layout.c.columns
                yield from self.epilogue(place, start, layout.c.columns)
                yield from self.store_panel(panel, place)
        else:
            yield from self.epilogue(place, 0, layout.warpgroup_tile[1])
            yield from self.store_registers(place)

    def finish(self, place: Place) -> Iterator[ir.Stmt]:
        """Store what waits, and let no copy outlive its shared memory."""
        if self.plan.deferred_epilogue:
            stored = place.moved_to("stored")
            panels = range(self.layout.chunks)
            body = tuple(s for panel in panels for s in self.store_panel(panel, stored))
            yield ir.If(Name("waiting"), body)
        if self.layout.tma_store:
            yield ir.If(Name("member").equals(0), (ir.TmaWaitRead(0),))

    def fragment(self, place: Place, block: int, column: int, count: int) -> ir.Fragment:
        row = self.first_row(place) + 64 * block + Name("quarter") * 16 + (LANE >> 2)
        across = self.first_column(place) + column + (LANE & 3) * 2
        return ir.Fragment(count // 8, row, across, self.problem.m, self.problem.n)

    def epilogue(self, place: Place, column: int, count: int) -> Iterator[ir.Stmt]:
        """Apply the element program to `count` columns of every accumulator, from `column` on."""
        for block in range(self.layout.blocks):
            yield ir.Epilogue(
                acc=ir.RegAt(f"acc{block}", column // 8 * 4),
                fragment=self.fragment(place, block, column, count),
                value=self.problem.value,
                sources=tuple(self.source(s, place, column) for s in self.problem.sources),
                ops=self.problem.ops,
                result=self.problem.result,
                out=ir.RegAt(f"out{block}"),
                out_dtype=self.problem.out_dtype,
            )

    def source(self, source: Source, place: Place, column: int) -> ir.ElementSource:
        strides = source.strides
        base = offset(replace(strides, row=0, column=0), Lit(0), Lit(0), place.batch)
        if source.tensor is None:
            narrow = offset(strides, Lit(0), Lit(0), place.batch, widen=False)
            return ir.IndexElements(source.name, source.dtype, narrow, strides.row, strides.column)
        if source.by_column:
            number = self.layout.columns.index(source)
            start = self.columns_start(number) + ((LANE & 3) * 2 + column) * 4
            return ir.SharedColumns(source.name, source.dtype, ir.Address("columns", start))
        buffer = self.buffers.index(source.tensor)
        return ir.GlobalElements(
            source.name, source.dtype, buffer, base, strides.row, strides.column
        )

    def store_panel(self, panel: int, place: Place) -> Iterator[ir.Stmt]:
        """One panel of columns: registers to a staging buffer, staging buffer to memory."""
        buffers = self.plan.store_buffers
        buffer: Scalar = Name("buffer") if self.rotates else Lit(panel % buffers)
        start = (Name("group") * buffers + buffer) * self.staging_bytes
        column = self.first_column(place) + panel * self.layout.c.columns
        if self.layout.tma_store:
            yield from self.copied_panel(panel, place, start, column)
        else:
            yield from self.written_panel(panel, place, start, column)
        if self.rotates:
            yield ir.Set("buffer", buffer + 1)
            yield ir.If(buffer.equals(buffers), (ir.Set("buffer", Lit(0)),))

    def copied_panel(
        self, panel: int, place: Place, start: Scalar, column: Scalar
    ) -> Iterator[ir.Stmt]:
        """By the copy engine, which may still read what was staged before."""
        first = Name("member").equals(0)
        yield ir.If(first, (ir.TmaWaitRead(self.plan.store_buffers - 1),))
        yield self.meet()
        for block in range(self.layout.blocks):
            yield from self.stage(panel, block, start)
        yield ir.ProxyFence()
        yield self.meet()
        batch = present(place.batch, self.problem.out.batch)
        coords = (column, self.first_row(place), *batch)
        yield ir.If(first, (ir.TmaStore(ir.Address("c", start), "c", coords), ir.TmaCommit()))

    def written_panel(
        self, panel: int, place: Place, start: Scalar, column: Scalar
    ) -> Iterator[ir.Stmt]:
        """By each warp the rows that it staged. The meeting of the next panel, in another buffer,
        is what the one after it needs before it stages here again."""
        if self.plan.store_buffers == 1:
            yield self.meet()
        for block in range(self.layout.blocks):
            yield from self.stage(panel, block, start)
        yield self.meet()
        for block in range(self.layout.blocks):
            yield self.write_rows(block, place, start, column)

    def write_rows(self, block: int, place: Place, start: Scalar, column: Scalar) -> ir.Stmt:
        """The 16 rows of a warp in one accumulator's part of a panel, a word a lane."""
        tile, problem = self.layout.c, self.problem
        words = tile.columns * tile.size // 4
        word = LANE % words
        line = Name("quarter") * 16 + 64 * block + Name("line") + LANE // words
        row = self.first_row(place) + line
        inside = tile.of(line, word * (4 // tile.size))
        store = ir.StGlobalRow(
            ir.Address("c", start + inside),
            problem.out_dtype,
            self.buffers.index(problem.out_tensor),
            offset(problem.out, row, column, place.batch),
            word,
            least(problem.n - column, tile.columns) * (row < problem.m),
        )
        return ir.For("line", 0, 16, _WARP // words, (store,), times=_ROWS_AT_ONCE)

    @property
    def staging_bytes(self) -> int:
        return self.layout.c_bytes // (self.plan.consumers * self.plan.store_buffers)

    def stage(self, panel: int, block: int, start: Scalar) -> Iterator[ir.Stmt]:
        """A panel of one accumulator's results into a staging buffer."""
        tile = self.layout.c
        per_panel = self.layout.packed // self.layout.chunks
        first = panel * per_panel if self.plan.deferred_epilogue else 0
        row = Name("quarter") * 16 + 64 * block
        source = f"out{block}"
        if self.problem.out_dtype is F32:
            for group in range(tile.columns // 8):
                for half in (0, 1):
                    place = tile.of(row + (LANE >> 2) + 8 * half, (LANE & 3) * 2 + 8 * group)
                    register = ir.RegAt(source, first + 4 * group + 2 * half)
                    yield ir.StSharedVec(ir.Address("c", start + place), register, 2)
            return
        if tile.columns == 8:
            place = tile.of(row + (LANE & 15), 0)
            yield ir.StMatrix(ir.Address("c", start + place), ir.RegAt(source, first), 2)
            return
        for pair in range(tile.columns // 16):
            place = tile.of(row + (LANE & 15), (LANE >> 4) * 8 + 16 * pair)
            register = ir.RegAt(source, first + 4 * pair)
            yield ir.StMatrix(ir.Address("c", start + place), register, 4)

    def store_registers(self, place: Place) -> Iterator[ir.Stmt]:
        """The result straight from registers, where the copy engine cannot write it."""
        out = self.problem.out
        count = self.layout.warpgroup_tile[1]
        even = all(s % 2 == 0 for s in (out.row, out.offset, *out.batch))
        width = 2 if out.column == 1 and even and self.problem.n % 2 == 0 else 1
        for block in range(self.layout.blocks):
            yield ir.StGlobalVec(
                ir.RegAt(f"out{block}"),
                self.problem.out_dtype,
                self.fragment(place, block, 0, count),
                self.buffers.index(self.problem.out_tensor),
                offset(replace(out, row=0, column=0), Lit(0), Lit(0), place.batch),
                out.row,
                out.column,
                width,
            )


def _start_of_ring() -> Body:
    return (ir.Let("slot", Lit(0)), ir.Let("phase", Lit(0)))


def _once_per_warp(statement: ir.Stmt) -> ir.Stmt:
    return ir.If(LANE.equals(0), (statement,))


def _name(part: Scalar) -> str:
    assert isinstance(part, Name)
    return part.name


def _ones(strides: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 for stride in strides if stride)
