"""Epilogue of SM90 products: elementwise ops, staging in shared memory, store.

    for each panel of columns: the element program on the accumulators, registers to a staging
    buffer, the buffer to memory by the copy engine (by threads, where rows of the result do not
    begin at whole lines)

Vectors along the columns are brought to shared memory, for all threads to read. A tensor of the
result's form that the element program reads (a residual) is brought by the copy engine into the
staging buffers themselves, ahead of time: each result takes the place of the element it was made
with. A warp of the producer's warpgroup asks for the panels of one consumer (`fetches`).

Who may touch a staging buffer: without such a tensor, the consumer, once the copy engine has read
what was staged before. With one, the copy engine between `free` and `filled`, then the consumer,
then the copy engine, which stores; the consumer arrives on `free` when that has read the buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Final, TypeAlias

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.quads import BOTH_ROWS
from weft.codegen.gpu.ir.scalar import LANE, WARP, Like, Lit, Name, Scalar, both, least, scalar
from weft.codegen.gpu.ir.values import StoreElement
from weft.codegen.gpu.products.problem import Folded, Head, Problem, Source, Stored, Strides
from weft.codegen.gpu.products.ring import Ring
from weft.codegen.gpu.products.sm90_folds import Folds
from weft.codegen.gpu.products.sm90_layout import LINE, WARPGROUP, Sm90Layout
from weft.codegen.gpu.products.sm90_sums import Sums
from weft.codegen.gpu.products.tile_place import Place, offset, present
from weft.foundation.dtypes import F32
from weft.foundation.records import dataclass
from weft.plan.ir import MmaPlan

Box: TypeAlias = tuple[Scalar, tuple[Scalar, ...]]
"""A place in shared memory, and one in a tensor."""
_WARP: Final = 32
_ROWS_AT_ONCE: Final = 4
"""Turns of the loop over rows of a panel that the compiler may interleave."""
_GROUP: Final = Name("group")
_MEMBER: Final = Name("member")
_QUARTER: Final = Name("quarter")


def row_split(layout: Sm90Layout) -> Scalar:
    """Which part of a shared tile's rows this warpgroup has."""
    parts = layout.tile[0] // layout.warpgroup_tile[0]
    return _GROUP % parts if parts > 1 else Lit(0)


def column_split(layout: Sm90Layout) -> Scalar:
    """Which part of a shared tile's columns this warpgroup has."""
    rows = layout.tile[0] // layout.warpgroup_tile[0]
    columns = layout.tile[1] // layout.warpgroup_tile[1]
    return _GROUP // rows if columns > 1 else Lit(0)


def batch_sizes(problem: Problem, strides: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes of the batch axes that a tensor with these strides depends on."""
    return tuple(n for n, s in zip(problem.batch, strides, strict=True) if s)


def ones(strides: tuple[int, ...]) -> tuple[int, ...]:
    """The extents of a box along those axes."""
    return tuple(1 for stride in strides if stride)


@dataclass(frozen=True)
class Results:
    """Makes the statements that turn accumulators into results in memory."""

    layout: Sm90Layout
    buffers: Sequence[str]
    number: int = 0
    """Of the result that is stored."""

    @property
    def each(self) -> tuple[Results, ...]:
        """The same for every result."""
        return tuple(replace(self, number=n) for n, _ in enumerate(self.problem.stored))

    @property
    def stored(self) -> Stored:
        return self.problem.stored[self.number]

    @property
    def name(self) -> str:
        """Of the result's tensor map."""
        return f"c{self.number}" if self.number else "c"

    @property
    def problem(self) -> Problem:
        return self.layout.problem

    @property
    def plan(self) -> MmaPlan:
        return self.layout.plan

    # Storage

    def maps(self) -> Iterator[ir.TensorMap]:
        if self.layout.tma_store:
            for one in self.each:
                yield self.panel_map(one.name, one.stored.tensor, one.stored.strides)
        beside = self.layout.beside
        if beside is not None:
            assert beside.tensor is not None
            yield self.panel_map("beside", beside.tensor, beside.strides)

    def panel_map(self, name: str, tensor: str, strides: Strides) -> ir.TensorMap:
        """A tensor of the result's form, a panel at a time."""
        problem, tile = self.problem, self.layout.c
        return ir.TensorMap(
            name,
            self.buffers.index(tensor),
            problem.out_dtype,
            strides.offset,
            (problem.n, problem.m, *batch_sizes(problem, strides.batch)),
            (self.pitch(strides), *(s for s in strides.batch if s)),
            (tile.columns, tile.rows, *ones(strides.batch)),
            tile.swizzle,
        )

    def pitch(self, strides: Strides) -> int:
        """The stride of rows. A single one has none; the copy engine wants a regular one all the
        same."""
        per_line = LINE // self.layout.c.size
        return strides.row if self.problem.m > 1 else -(-self.problem.n // per_line) * per_line

    def tiles(self) -> Iterator[ir.SharedTile]:
        layout = self.layout
        if layout.staged:
            yield ir.SharedTile("c", layout.c_offset, layout.c_bytes, layout.c)
        if layout.columns:
            yield ir.SharedTile("columns", layout.columns_offset, layout.columns_bytes)

    def barriers(self) -> Iterator[ir.Barriers]:
        start, count = self.layout.panel_barriers_offset, self.layout.staging_buffers
        if self.layout.beside is not None:
            yield ir.Barriers("filled", start, count, 1)
            yield ir.Barriers("free", start + 8 * count, count, 1)

    def state(self, place: Place) -> Iterator[ir.Stmt]:
        """Registers and variables that staging and storing keep between tiles."""
        layout = self.layout
        kind = ir.RegisterKind.for_results(self.problem.out_dtype)
        whole = self.plan.deferred_epilogue or not layout.staged
        count = layout.packed if whole else layout.packed // layout.chunks
        blocks = layout.blocks if self.problem.stored else 0
        yield from (ir.Registers(f"out{i}", kind, count) for i in range(blocks))
        yield from self.folds.state()
        if layout.beside is not None:
            yield from self.panels.start()
        elif self.rotates:
            yield ir.Let("buffer", Lit(0))
        if self.plan.deferred_epilogue:
            yield ir.Let("waiting", Lit(0))
            yield from (ir.Let(_scalar_name(p), Lit(0)) for p in place.moved_to("stored").parts)

    @property
    def rotates(self) -> bool:
        """Whether the staging buffer of a panel differs from tile to tile."""
        turns = self.layout.chunks * len(self.problem.stored)
        return self.layout.staged and turns % self.plan.store_buffers != 0

    @property
    def panels(self) -> Ring:
        """The staging buffers that panels of the tensor beside go through."""
        return Ring(self.plan.store_buffers, "panel_")

    def meet(self) -> ir.Stmt:
        return ir.NamedBarrier(_GROUP + 1, WARPGROUP)

    # Vectors along the columns

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
            yield part, _MEMBER + part * WARPGROUP

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
        return _GROUP * (width * len(self.layout.columns)) + number * width

    # The element program

    def first_row(self, place: Place) -> Scalar:
        layout = self.layout
        return place.first_stored(layout.tile[0]) + row_split(layout) * layout.warpgroup_tile[0]

    def first_column(self, place: Place) -> Scalar:
        layout = self.layout
        return place.n * layout.tile[1] + column_split(layout) * layout.warpgroup_tile[1]

    def fragment(self, place: Place, block: int, column: int, count: int) -> ir.Fragment:
        row = self.first_row(place) + 64 * block + _QUARTER * 16 + (LANE >> 2)
        across = self.first_column(place) + column + (LANE & 3) * 2
        return ir.Fragment(count // 8, row, across, self.problem.m, self.problem.n)

    @property
    def folds(self) -> Folds:
        return Folds(self.layout)

    @property
    def sums(self) -> Sums:
        return Sums(self.layout, self.buffers, self.number)

    def fold_rows(self, place: Place) -> Iterator[ir.Stmt]:
        """Numbers of whole rows, each before what takes it. Where nothing but numbers is stored,
        the sums of one accumulator are done with before those of the next."""
        blocks = range(self.layout.blocks)
        if self.problem.numbers:
            for block in blocks:
                head, loaded = self.problem.head, set[Source]()
                if head is not None:
                    yield from self.load_rows(head, loaded, place, block)
                    yield from self.replaced_sums(place, block)
                for fold in self.problem.folds:
                    yield from self.load_rows(fold, loaded, place, block)
                    yield from self.folded(fold, place, block)
                yield from self.store_numbers(place, block)
            return
        for block in blocks:
            yield from self.replaced_sums(place, block)
        for fold, block in product(self.problem.folds, blocks):
            yield from self.folded(fold, place, block)

    def load_rows(
        self, program: Folded | Head, loaded: set[Source], place: Place, block: int
    ) -> Iterator[ir.Stmt]:
        """What a program reads once for a row, of whatever column, and none has `loaded`."""
        for source in filter(self.by_row, self.problem.sources):
            if source in loaded or not program.uses(source):
                continue
            loaded.add(source)
            assert source.tensor is not None
            for name, half in zip(self.names_of_rows(source, block), BOTH_ROWS, strict=True):
                row = self.fragment(place, block, 0, 8).row + 8 * half
                yield ir.LoadElement(
                    name,
                    self.buffers.index(source.tensor),
                    source.dtype,
                    offset(source.strides, row, Lit(0), place.batch),
                    row < self.problem.m,
                )

    def by_row(self, source: Source) -> bool:
        """Whether a source is read once for a row, before numbers of rows are made."""
        read = source.tensor is not None and source.strides.column == 0
        return read and bool(self.problem.numbers)

    def names_of_rows(self, source: Source, block: int) -> tuple[str, ...]:
        return tuple(f"{source.name}_row{half}_of{block}" for half in BOTH_ROWS)

    def replaced_sums(self, place: Place, block: int) -> Iterator[ir.Stmt]:
        """What all programs begin with, in the place of the sums."""
        head, count = self.problem.head, self.layout.warpgroup_tile[1]
        if head is not None:
            sums = ir.RegAt(f"acc{block}")
            yield ir.Epilogue(
                acc=sums,
                fragment=self.fragment(place, block, 0, count),
                value=head.value,
                sources=self.sources(head, place, block, 0),
                ops=head.ops,
                result=head.result,
                out=sums,
                out_dtype=F32,
            )

    def folded(self, fold: Folded, place: Place, block: int) -> Iterator[ir.Stmt]:
        """A number of each row of an accumulator."""
        for column in self.folds.columns():
            sources = self.sources(fold, place, block, column)
            fragment = self.fragment(place, block, column, self.folds.piece)
            yield from self.folds.of_piece(fold, fragment, sources, block, column)

    def sources(
        self, program: Stored | Folded | Head, place: Place, block: int, column: int
    ) -> tuple[ir.ElementSource, ...]:
        """What an element program takes beside sums, from a column of an accumulator on."""
        used = (source for source in self.problem.sources if program.uses(source))
        rows = (self.folds.values(fold, block) for fold in self.problem.folds_of(program))
        return (*(self.source(source, place, block, column) for source in used), *rows)

    def epilogue(self, place: Place, column: int, count: int) -> Iterator[ir.Stmt]:
        """Apply the element program to `count` columns of every accumulator, from `column` on."""
        for block in range(self.layout.blocks):
            yield ir.Epilogue(
                acc=ir.RegAt(f"acc{block}", column // 8 * 4),
                fragment=self.fragment(place, block, column, count),
                value=self.problem.value,
                sources=self.sources(self.stored, place, block, column),
                ops=self.stored.ops,
                result=self.stored.result,
                out=ir.RegAt(f"out{block}"),
                out_dtype=self.stored.dtype,
                value_dtype=self.problem.total,
            )

    def source(self, source: Source, place: Place, block: int, column: int) -> ir.ElementSource:
        strides = source.strides
        if source.tensor is None:
            narrow = offset(strides, Lit(0), Lit(0), place.batch, widen=False)
            return ir.IndexElements(source.name, source.dtype, narrow, strides.row, strides.column)
        if source.by_column:
            number = self.layout.columns.index(source)
            start = self.columns_start(number) + ((LANE & 3) * 2 + column) * 4
            return ir.SharedColumns(source.name, source.dtype, ir.Address("columns", start))
        if source == self.layout.beside:
            return self.staged_source(source, block)
        if self.by_row(source):
            return ir.RowValues(source.name, source.dtype, self.names_of_rows(source, block))
        base = offset(replace(strides, row=0, column=0), Lit(0), Lit(0), place.batch)
        buffer = self.buffers.index(source.tensor)
        return ir.GlobalElements(
            source.name, source.dtype, buffer, base, strides.row, strides.column, strides.digits
        )

    def staged_source(self, source: Source, block: int) -> ir.ElementSource:
        """Elements that the copy engine has put where the results will be staged."""
        tile = self.layout.c
        row = _QUARTER * 16 + 64 * block + (LANE >> 2)
        start = self.staging(self.panels.slot) + row * tile.swizzle.span
        column = (LANE & 3) * (2 * tile.size)
        address = ir.Address("c", start)
        return ir.StagedElements(source.name, source.dtype, address, column, tile.swizzle)

    # Storing

    def store_tile(self, place: Place) -> Iterator[ir.Stmt]:
        layout = self.layout
        yield from self.fold_rows(place)
        if self.plan.deferred_epilogue:
            yield from self.epilogue(place, 0, layout.warpgroup_tile[1])
            kept = place.moved_to("stored")
            for new, part in zip(kept.parts, place.parts, strict=True):
                yield ir.Set(_scalar_name(new), part)
            yield ir.Set("waiting", Lit(1))
        elif layout.beside is not None:
            for panel in range(layout.chunks):
                yield from self.exchanged_panel(panel, place)
            if self.problem.sums:
                yield from (ir.ProxyFence(), self.meet())
            yield self.hand_back()
        elif layout.staged:
            for panel in range(layout.chunks):
                start = panel * layout.c.columns
                for one in self.each:
                    yield from one.epilogue(place, start, layout.c.columns)
                    yield from one.store_panel(panel, place)
        else:
            for one in self.each:
                yield from one.epilogue(place, 0, layout.warpgroup_tile[1])
                yield from one.store_registers(place)

    def store_numbers(self, place: Place, block: int) -> Iterator[ir.Stmt]:
        """Numbers of parts of rows, each by the first lane of the quad that has them."""
        problem, width = self.problem, self.layout.warpgroup_tile[1]
        part = self.first_column(place) // width
        for number, half in product(problem.numbers, BOTH_ROWS):
            (fold,) = (found for found in problem.folds if found.name == number.fold)
            row = self.fragment(place, block, 0, width).row + 8 * half
            yield StoreElement(
                self.buffers.index(number.tensor),
                number.dtype,
                offset(number.strides, row, part, place.batch),
                both((LANE & 3).equals(0), row < problem.m),
                self.folds.values(fold, block).values[half],
            )

    def store_none(self) -> Iterator[ir.Stmt]:
        """What is left to do where a part of a tile's sums was handed on: nothing waits."""
        if self.plan.deferred_epilogue:
            yield ir.Set("waiting", Lit(0))

    def finish(self, place: Place) -> Iterator[ir.Stmt]:
        """Store what waits, and let no copy outlive its shared memory."""
        if self.plan.deferred_epilogue:
            stored = place.moved_to("stored")
            panels = range(self.layout.chunks)
            body = tuple(s for panel in panels for s in self.store_panel(panel, stored))
            yield ir.If(Name("waiting"), body)
        if self.layout.tma_store:
            yield ir.If(_MEMBER.equals(0), (ir.TmaWaitRead(0),))

    def store_panel(self, panel: int, place: Place) -> Iterator[ir.Stmt]:
        """One panel of columns: registers to a staging buffer, staging buffer to memory."""
        buffers = self.plan.store_buffers
        turn = panel * len(self.problem.stored) + self.number
        buffer: Scalar = Name("buffer") if self.rotates else Lit(turn % buffers)
        start = self.staging(buffer)
        if self.layout.tma_store:
            yield from self.copied_panel(panel, place, start)
        else:
            yield from self.written_panel(panel, place, start)
        if self.rotates:
            yield ir.Set("buffer", buffer + 1)
            yield ir.If(buffer.equals(buffers), (ir.Set("buffer", Lit(0)),))

    def staging(self, buffer: Scalar) -> Scalar:
        """Where a staging buffer of this warpgroup begins."""
        count = self.plan.store_buffers
        return (_GROUP * count + buffer) * (self.layout.c_bytes // self.layout.staging_buffers)

    def copied_panel(self, panel: int, place: Place, start: Scalar) -> Iterator[ir.Stmt]:
        """By the copy engine, which may still read what was staged before."""
        first = _MEMBER.equals(0)
        # All groups but so many of the newest have been read. The buffer that comes next was filled
        # before those; the meeting tells the other threads.
        yield ir.If(first, (ir.TmaWaitRead(self.plan.store_buffers - 1),))
        yield self.meet()
        yield from self.stage_and_copy(panel, place, start)

    def stage_and_copy(
        self, panel: int, place: Place, start: Scalar, met: Sequence[ir.Stmt] = ()
    ) -> Iterator[ir.Stmt]:
        """`met` is what comes after nobody reads what was staged before."""
        for block in range(self.layout.blocks):
            yield from self.stage(panel, block, start)
        # The copy engine is not ordered with stores of threads: each fences its own before they
        # meet.
        yield ir.ProxyFence()
        yield self.meet()
        yield from met
        boxes = self.boxes(panel, place, self.stored.strides, start)
        stores = (ir.TmaStore(ir.Address("c", at), self.name, coords) for at, coords in boxes)
        yield ir.If(_MEMBER.equals(0), (*stores, ir.TmaCommit()))
        column = self.first_column(place) + panel * self.layout.c.columns
        yield from self.sums.of_panel(place, self.first_row(place), column, start)

    def boxes(self, panel: Like, place: Place, strides: Strides, start: Scalar) -> Iterator[Box]:
        """Where the parts of a panel are staged, and where they lie in a tensor of the result's
        form."""
        column = self.first_column(place) + scalar(panel) * self.layout.c.columns
        yield start, (column, self.first_row(place), *present(place.batch, strides.batch))

    def written_panel(self, panel: int, place: Place, start: Scalar) -> Iterator[ir.Stmt]:
        """By each warp the rows that it staged. The meeting of the next panel, in another buffer,
        is what the one after it needs before it stages here again."""
        if self.plan.store_buffers == 1:
            yield self.meet()
        for block in range(self.layout.blocks):
            yield from self.stage(panel, block, start)
        yield self.meet()
        column = self.first_column(place) + panel * self.layout.c.columns
        for block in range(self.layout.blocks):
            yield self.write_rows(block, place, start, column)

    def write_rows(self, block: int, place: Place, start: Scalar, column: Scalar) -> ir.Stmt:
        """The 16 rows of a warp in one accumulator's part of a panel, a word a lane, or a line of
        four words where all rows are whole lines of memory."""
        tile, problem = self.layout.c, self.problem
        unit = LINE if self.layout.whole_lines else 4
        words = tile.columns * tile.size // unit
        word = LANE % words
        line = _QUARTER * 16 + 64 * block + Name("line") + LANE // words
        row = self.first_row(place) + line
        end = problem.m if place.rows is None else place.rows[2]
        inside = tile.of(line, word * (unit // tile.size))
        store = ir.StGlobalRow(
            ir.Address("c", start + inside),
            self.stored.dtype,
            self.buffers.index(self.stored.tensor),
            offset(self.stored.strides, row, column, place.batch),
            word,
            least(problem.n - column, tile.columns) * (row < end),
            vector=unit == LINE,
        )
        return ir.For("line", 0, 16, _WARP // words, (store,), times=_ROWS_AT_ONCE)

    def stage(self, panel: int, block: int, start: Scalar) -> Iterator[ir.Stmt]:
        """A panel of one accumulator's results into a staging buffer."""
        tile = self.layout.c
        per_panel = self.layout.packed // self.layout.chunks
        first = panel * per_panel if self.plan.deferred_epilogue else 0
        row = _QUARTER * 16 + 64 * block
        source = f"out{block}"
        if self.problem.out_dtype.storage_bytes == 4:
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
        out = self.stored.strides
        count = self.layout.warpgroup_tile[1]
        even = all(s % 2 == 0 for s in (out.row, out.offset, *out.batch))
        width = 2 if out.column == 1 and even and self.problem.n % 2 == 0 else 1
        for block in range(self.layout.blocks):
            yield ir.StGlobalVec(
                ir.RegAt(f"out{block}"),
                self.stored.dtype,
                self.fragment(place, block, 0, count),
                self.buffers.index(self.stored.tensor),
                offset(replace(out, row=0, column=0), Lit(0), Lit(0), place.batch),
                out.row,
                out.column,
                width,
            )

    # A tensor of the result's form, through the staging buffers

    def panel_barrier(self, name: str, slot: Scalar) -> ir.BarrierAt:
        return ir.BarrierAt(name, _GROUP * self.plan.store_buffers + slot)

    def fetches(self, place: Place) -> ir.Stmt:
        """The panels of a tile beside, asked for by one thread."""
        beside, ring = self.layout.beside, self.panels
        assert beside is not None
        filled = self.panel_barrier("filled", ring.slot)
        boxes = self.boxes(Name("panel"), place, beside.strides, self.staging(ring.slot))
        body = (
            ir.MbarrierWait(self.panel_barrier("free", ring.slot), ring.phase ^ 1),
            ir.MbarrierExpectTx(filled, self.layout.c.bytes),
            *(ir.TmaLoad(ir.Address("c", at), "beside", coords, filled) for at, coords in boxes),
            *ring.advance(),
        )
        return ir.For("panel", 0, self.layout.chunks, 1, body)

    def exchanged_panel(self, panel: int, place: Place) -> Iterator[ir.Stmt]:
        """A panel whose staging buffer holds what the element program reads."""
        ring = self.panels
        yield ir.MbarrierWait(self.panel_barrier("filled", ring.slot), ring.phase)
        yield from self.epilogue(place, panel * self.layout.c.columns, self.layout.c.columns)
        before = [self.hand_back()] if panel else []
        if not self.problem.sums:
            yield from before
        # Sums of the panel before were still read from its buffer by all warps: it goes back after
        # the meeting of this one.
        met = before if self.problem.sums else ()
        yield from self.stage_and_copy(panel, place, self.staging(ring.slot), met)
        yield from ring.advance()

    def hand_back(self) -> ir.Stmt:
        """The buffer before, once the copy engine has read it."""
        free = self.panel_barrier("free", self.panels.previous)
        return ir.If(_MEMBER.equals(0), (ir.TmaWaitRead(0), ir.MbarrierArrive(free)))


def fetcher(consumers: int) -> tuple[Scalar, ir.Stmt]:
    """Which thread of the producer's warpgroup asks for the panels of a consumer: the first one of
    the warp after the consumer's number; and the statement that says whose it is."""
    chosen = both(LANE.equals(0), both(WARP > 0, (WARP // (consumers + 1)).equals(0)))
    return chosen, ir.Let("group", WARP - 1)


def _scalar_name(part: Scalar) -> str:
    assert isinstance(part, Name)
    return part.name
