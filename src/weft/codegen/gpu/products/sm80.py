"""The SM80 matrix product: cp.async, `ldmatrix`, `mma.sync`; one tile a block, or one part of a
tile's sum (split-K, `split.py`). Blocks are started in order, so that none waits for one that never
comes.

    fill all slots but one
    for each k step: wait for its slot, meet, start the copy into the slot that has become free,
                     multiply
    epilogue on the fragments, stored from registers

Who may touch a slot: copies write the slot of step k + stages - 1 after the meeting of step k, at
which all warps have done with step k - 1, whose slot it is. Every step closes one group of copies,
so that waiting for all but the last `stages - 2` groups is waiting for the step's own.

Of 64-bit operands a warp loads the fragments of the next depth before it multiplies those it has.
It waits for the next slot, and meets, before the last depth of a slot: the copy that follows writes
one whose fragments are all in registers.

Operands that 16-byte pieces cannot take (odd extents or pitches, no contiguous axis, or another one
than the instruction wants) are gathered element by element into the same places. Windows of images
and their filters are copied piece by piece from where they lie (`sm80_windows.py`). Sums that lose
digits (`3xtf32`) are those of one k step; they are added up apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.accept import kernel_refusals, refuse
from weft.codegen.gpu.ir.formats import fragment_registers, results_per_group
from weft.codegen.gpu.ir.scalar import (
    BLOCK,
    LANE,
    THREAD,
    WARP,
    Lit,
    Name,
    Scalar,
    both,
    total,
    wide,
)
from weft.codegen.gpu.ir.swizzle import PIECE, Major, PaddedTile, TileLayout
from weft.codegen.gpu.products.groups import result_registers
from weft.codegen.gpu.products.operand import Operand, Refusal
from weft.codegen.gpu.products.problem import Problem, Refs, Source, analyse
from weft.codegen.gpu.products.refusals import field_refusals
from weft.codegen.gpu.products.sm80_layout import Sm80Layout, refusals, slot_bytes
from weft.codegen.gpu.products.sm80_windows import piece_at
from weft.codegen.gpu.products.split import Handing, Meeting
from weft.codegen.gpu.products.tile_place import Place, locate, offset
from weft.codegen.gpu.template import Job
from weft.foundation.dtypes import F32
from weft.foundation.errors import Finding, SpecViolation
from weft.foundation.records import dataclass
from weft.plan.ir import MmaPlan, Plan
from weft.region.ir import Kernel
from weft.target.matrix_atoms import Atom
from weft.target.target import Target

_UNROLLED = 4
"""Copies of a thread that are written out one after the other."""


def accepts(kernel: Kernel, refs: Refs, plan: MmaPlan, target: Target) -> list[Finding]:
    """Why this template cannot carry out the kernel with the plan; empty if it can."""
    try:
        problem = analyse(kernel, refs, row=PIECE)
    except Refusal as refusal:
        return [refusal.finding]
    if problem.scattered:
        return [refuse("OutputForm", "rows that do not follow one another are not stored")]
    return [
        *refusals(Sm80Layout(problem, plan), target),
        *field_refusals(kernel, plan),
    ]


def build(kernel: Kernel, refs: Refs, plan: MmaPlan, target: Target, name: str) -> ir.Kernel:
    """The dialect kernel, called `name` in the generated source."""
    findings = accepts(kernel, refs, plan, target)
    if findings:
        raise SpecViolation.of(findings)
    return _Builder(Sm80Layout(analyse(kernel, refs, row=PIECE), plan), name).kernel()


@dataclass(frozen=True)
class _Side:
    """One operand: where it is, how its tile lies, and its axis that is not contracted."""

    name: str
    axis: str
    operand: Operand
    tile: TileLayout | PaddedTile
    extent: int
    step: int
    place: Scalar


@dataclass
class _Builder:
    """Makes the statements of one kernel."""

    layout: Sm80Layout
    name: str
    problem: Problem = field(init=False)
    plan: MmaPlan = field(init=False)
    buffers: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.problem, self.plan = self.layout.problem, self.layout.plan
        self.buffers = self.problem.tensors

    def kernel(self) -> ir.Kernel:
        layout, stages = self.layout, self.plan.stages
        return ir.Kernel(
            name=self.name,
            grid=layout.split.items,
            threads=layout.threads,
            buffers=tuple(self.buffers),
            maps=(),
            tiles=(
                _shared_tile("a", 0, stages, layout.a),
                _shared_tile("b", layout.b_offset, stages, layout.b),
                ir.SharedTile("columns", layout.columns_offset, layout.columns_bytes),
            ),
            barriers=(),
            tables=layout.order.tables,
            body=tuple(self.body()),
            workspace=self.handing.workspace,
        )

    def body(self) -> Iterator[ir.Stmt]:
        layout, split = self.layout, self.layout.split
        tile = BLOCK if split.count == 1 else Name("tile")
        place, located = locate(self.problem, layout.order, tile)
        yield from (*split.locate(BLOCK), *located)
        yield ir.Let("warp_m", WARP % layout.warps[0])
        yield ir.Let("warp_n", WARP // layout.warps[0])
        yield from self.registers()
        yield from self.stage_columns(place)
        for step in range(self.plan.stages - 1):
            yield from self.copy(place, Lit(step), Lit(step))
        yield ir.Let("slot", Lit(0))
        yield ir.Let("free", Lit(self.plan.stages - 1))
        if self.layout.loads_ahead:
            yield from self.meet()
            yield from self.fragments(Name("slot"), 0, half=0)
        yield ir.For("k", 0, split.steps, 1, tuple(self.step(place)))
        yield from self.handing.handed_on(tuple(self.store(place)))

    @property
    def handing(self) -> Handing:
        """How a tile's sums go from part to part: a block makes each of them."""
        layout = self.layout
        rows, columns = layout.blocks
        words = 4 * rows * columns * (self.atom.acc.storage_bytes // 4)
        meeting = Meeting(Lit(0), layout.threads, THREAD, Name("tile"))
        return Handing(layout.split, ("acc",), words, layout.order.count, meeting)

    def registers(self) -> Iterator[ir.Stmt]:
        rows, columns = self.layout.blocks
        sums = ir.RegisterKind.for_sums(self.atom.acc)
        for name in dict.fromkeys(("acc", self.sums)):
            yield ir.Registers(name, sums, 4 * rows * columns, zero=True)
        first, second = fragment_registers(self.atom.a)
        packed = ir.RegisterKind.for_results(self.atom.a)
        halves = 2 if self.layout.loads_ahead else 1
        yield ir.Registers("a_part", packed, halves * first * rows)
        yield ir.Registers("b_part", packed, halves * second * columns)

    @property
    def atom(self) -> Atom:
        found = self.layout.atom
        assert found is not None  # `refusals` has refused the rest
        return found

    @property
    def sums(self) -> str:
        """The registers that matrix instructions add to: the tile's, or those of one k step."""
        return "part" if self.atom.in_parts else "acc"

    def step(self, place: Place) -> Iterator[ir.Stmt]:
        ahead = self.layout.loads_ahead
        if not ahead:
            yield from self.meet()
        yield from self.copy(place, Name("free"), Name("k") + (self.plan.stages - 1))
        yield from self.multiply_ahead() if ahead else self.multiply(Name("slot"))
        if self.atom.in_parts:
            yield ir.AddRegisters("acc", self.sums, clear=True)
        for name in ("free",) if ahead else ("slot", "free"):
            yield from self.advance(name)

    def meet(self) -> Iterator[ir.Stmt]:
        """Wait for the copies of the next slot, and for each other."""
        # `stages - 1` groups were begun ahead, the oldest of which is the one that is waited for.
        yield ir.WaitGroup(self.plan.stages - 2)
        yield ir.SyncThreads()

    def advance(self, name: str) -> Iterator[ir.Stmt]:
        yield ir.Set(name, Name(name) + 1)
        yield ir.If(Name(name).equals(self.plan.stages), (ir.Set(name, Lit(0)),))

    # -- copies ----------------------------------------------------------------------------------

    def sides(self, place: Place) -> tuple[_Side, _Side]:
        problem, layout = self.problem, self.layout
        bm, bn, _ = layout.tile
        return (
            _Side("a", "m", problem.a, layout.a, problem.m, bm, place.m),
            _Side("b", "n", problem.b, layout.b, problem.n, bn, place.n),
        )

    def copy(self, place: Place, slot: Scalar, step: Scalar) -> Iterator[ir.Stmt]:
        """Start filling a slot with a k step, if there is one, and close the group."""
        work = tuple(s for side in self.sides(place) for s in self.fill(side, place, slot, step))
        exists = self.layout.split.has(step)
        if exists == Lit(1):
            yield from work
        elif exists != Lit(0):
            yield ir.If(exists, work)
        yield ir.CommitGroup()

    def fill(self, side: _Side, place: Place, slot: Scalar, step: Scalar) -> Iterator[ir.Stmt]:
        """Every thread takes every `threads`-th piece of the tile."""
        tile, threads = side.tile, self.layout.threads
        pieces = tile.rows * (tile.columns // self.layout.piece)
        turns = -(-pieces // threads)
        whole = pieces % threads == 0
        direct = self.layout.in_pieces(side.operand, side.extent)

        def turn(number: Scalar) -> tuple[ir.Stmt, ...]:
            piece = number * threads + THREAD
            load = self.load(side, place, slot, step, piece, direct=direct)
            return (load,) if whole else (ir.If(piece < pieces, (load,)),)

        if direct and turns <= _UNROLLED:
            for number in range(turns):
                yield from turn(Lit(number))
        else:
            # Written out, the addresses of many pieces would fill the registers.
            var = f"{side.name}_turn"
            times = _UNROLLED if direct else 1
            yield ir.For(var, 0, turns, 1, turn(Name(var)), times=times)

    def load(
        self, side: _Side, place: Place, slot: Scalar, step: Scalar, piece: Scalar, *, direct: bool
    ) -> ir.Stmt:
        """One piece of a tile, from where it lies in memory."""
        tile, width = side.tile, self.layout.piece
        in_row = tile.columns // width
        row, column = piece // in_row, piece % in_row * width
        target = ir.Address(side.name, slot * slot_bytes(tile) + tile.of(row, column))
        operand, depth = side.operand, self.layout.tile[2]
        k_major = self.layout.major(operand) is Major.K
        outer = side.place * side.step + (row if k_major else column)
        first, inside = self.layout.split.first_step + step, column if k_major else row
        k = first * depth + inside
        seen: Scalar = Lit(1)
        if operand.walk is not None:
            batch = (place.batch, self.problem.batch)
            start, seen = piece_at(operand, batch, outer, first, inside, depth)
        else:
            terms = [wide(outer) * operand.outer, wide(k) * operand.inner]
            for index, stride in zip(place.batch, operand.batch, strict=True):
                terms.append(wide(index) * stride)
            start = total(operand.offset, *terms)
        buffer = self.buffers.index(operand.tensor)
        across, along = (outer < side.extent, k < self.problem.k)
        # A tail needs its predicate; where tiles are whole nothing is compared.
        outside = {side.axis: across, "k": along}
        guards = {name: outside[name] for name in outside if name in self.layout.tails}
        if direct:
            guard = seen
            for found in guards.values():
                guard = both(guard, found)
            return ir.CpAsync(target, buffer, start * operand.dtype.storage_bytes, guard)
        # Zeros are what is left out: beyond k they add nothing, beyond rows and columns nobody
        # stores.
        rows_axis, columns_axis = (side.axis, "k") if k_major else ("k", side.axis)
        last = {side.axis: side.extent - outer, "k": self.problem.k - k}
        return ir.Gather(
            target,
            buffer,
            operand.dtype,
            start,
            operand.inner if k_major else operand.outer,
            width,
            last[columns_axis] if columns_axis in guards else Lit(width),
            guards.get(rows_axis, Lit(1)),
        )

    # -- matrix instructions -----------------------------------------------------------------------

    def multiply(self, slot: Scalar) -> Iterator[ir.Stmt]:
        """All k slices of a slot."""
        for k in range(0, self.layout.tile[2], self.atom.k):
            yield from self.fragments(slot, k, half=0)
            yield from self.products(half=0)

    def multiply_ahead(self) -> Iterator[ir.Stmt]:
        """All k slices of a slot, whose first fragments have been loaded; then those of the next.
        After the last slot these are of an old one, and nobody multiplies them."""
        turns = self.layout.tile[2] // self.atom.k
        for turn in range(turns):
            if turn == turns - 1:
                yield from self.advance("slot")
                yield from self.meet()
            following = (turn + 1) % turns
            yield from self.fragments(Name("slot"), following * self.atom.k, half=following % 2)
            yield from self.products(half=turn % 2)

    def products(self, half: int) -> Iterator[ir.Stmt]:
        """A warp's fragments of one depth, multiplied."""
        rows, columns = self.layout.blocks
        first, second = fragment_registers(self.atom.a)
        for i in range(rows):
            for j in range(columns):
                yield ir.MmaSync(
                    ir.RegAt(self.sums, 4 * (i * columns + j)),
                    ir.RegAt("a_part", first * (i + half * rows)),
                    ir.RegAt("b_part", second * (j + half * columns)),
                    self.atom.a,
                    self.atom.b,
                )

    def fragments(self, slot: Scalar, k: int, half: int) -> Iterator[ir.Stmt]:
        """A warp's part of both operands at a depth of the slot, into half of the registers."""
        yield from self.fragments_of("a", slot, k, half)
        yield from self.fragments_of("b", slot, k, half)

    def fragments_of(self, side: str, slot: Scalar, k: int, half: int) -> Iterator[ir.Stmt]:
        """A warp's part of one operand, in bands of rows or columns."""
        number, band = (0, 16) if side == "a" else (1, 8)
        blocks = self.layout.blocks[number]
        each = fragment_registers(self.atom.a)[number]
        start = Name("warp_m" if side == "a" else "warp_n") * self.layout.warp_tile[number]
        turned = self.atom.word <= 2
        for block in range(0, blocks, 2 if turned and number else 1):
            outer, register = start + band * block, each * (block + half * blocks)
            if turned:
                yield self.matrices(side, slot, outer, k, register)
            else:
                yield from self.elements(side, slot, outer, k, register)

    def matrices(self, side: str, slot: Scalar, outer: Scalar, k: int, register: int) -> ir.Stmt:
        """Four matrices of one operand, as the instruction wants them.

        Of A, in order, with 16-bit elements: (rows 0-7, k 0-7), (8-15, 0-7), (0-7, 8-15), (8-15,
        8-15). Of B: k runs first, then columns. Tiles whose rows are k are turned on the way.
        """
        is_a, width = side == "a", self.layout.piece
        operand = self.problem.a if is_a else self.problem.b
        tile = self.layout.a if is_a else self.layout.b
        k_major = self.layout.major(operand) is Major.K
        plain = (LANE & 15, (LANE >> 4) * width)
        crossed = ((LANE & 7) + (LANE >> 4) * 8, ((LANE >> 3) & 1) * width)
        row, column = plain if k_major == is_a else crossed
        down, across = (outer, Lit(k)) if k_major else (Lit(k), outer)
        place = tile.of(row + down, column + across)
        address = ir.Address(side, slot * slot_bytes(tile) + place)
        return ir.LdMatrix(ir.RegAt(f"{side}_part", register), address, transposed=not k_major)

    def elements(
        self, side: str, slot: Scalar, outer: Scalar, k: int, register: int
    ) -> Iterator[ir.Stmt]:
        """The elements of a band that a lane multiplies: four lanes along k, eight across."""
        is_a = side == "a"
        operand = self.problem.a if is_a else self.problem.b
        tile = self.layout.a if is_a else self.layout.b
        bands = 2 if is_a else 1
        for number in range(fragment_registers(self.atom.a)[not is_a]):
            across = outer + (LANE >> 2) + 8 * (number % bands)
            along = (LANE & 3) + (k + 4 * (number // bands))
            k_major = self.layout.major(operand) is Major.K
            place = tile.of(across, along) if k_major else tile.of(along, across)
            address = ir.Address(side, slot * slot_bytes(tile) + place)
            yield ir.LdRegister(ir.RegAt(f"{side}_part", register + number), address, operand.dtype)

    # -- epilogue --------------------------------------------------------------------------------

    def stage_columns(self, place: Place) -> Iterator[ir.Stmt]:
        """Column vectors into shared memory; the meeting of the first k step makes them known."""
        width, threads = self.layout.tile[1], self.layout.threads
        for number, source in enumerate(self.layout.columns):
            assert source.tensor is not None
            for first in range(0, width, threads):
                name = f"column{number}_{first}"
                inside = THREAD + first
                column = place.n * width + inside
                start = (inside + number * width) * 4
                load = ir.LoadElement(
                    name,
                    self.buffers.index(source.tensor),
                    source.dtype,
                    offset(source.strides, Lit(0), column, place.batch),
                    column < self.problem.n,
                )
                work = (load, ir.StShared(ir.Address("columns", start), name, F32))
                yield ir.If(inside < width, work)

    def store(self, place: Place) -> Iterator[ir.Stmt]:
        """The element program on every fragment, and its result to memory."""
        rows, columns = self.layout.blocks
        for number, stored in enumerate(self.problem.stored):
            kind = ir.RegisterKind.for_results(stored.dtype)
            yield ir.Registers(
                result_registers(number), kind, results_per_group(stored.dtype) * columns
            )
        for i in range(rows):
            fragment = self.accumulator(place, i)
            for number, stored in enumerate(self.problem.stored):
                used = (source for source in self.problem.sources if stored.uses(source))
                yield ir.Epilogue(
                    acc=ir.RegAt("acc", 4 * i * columns),
                    fragment=fragment,
                    value=self.problem.value,
                    sources=tuple(self.source(source, place) for source in used),
                    ops=stored.ops,
                    result=stored.result,
                    out=ir.RegAt(result_registers(number)),
                    out_dtype=stored.dtype,
                    value_dtype=self.problem.total,
                )
                yield self.store_fragment(place, fragment, number)

    def accumulator(self, place: Place, block: int) -> ir.Fragment:
        bm, bn, _ = self.layout.tile
        wm, wn = self.layout.warp_tile
        row = place.m * bm + Name("warp_m") * wm + 16 * block + (LANE >> 2)
        column = place.n * bn + Name("warp_n") * wn + (LANE & 3) * 2
        return ir.Fragment(wn // 8, row, column, self.problem.m, self.problem.n)

    def source(self, source: Source, place: Place) -> ir.ElementSource:
        strides = source.strides
        if source.tensor is None:
            narrow = offset(strides, Lit(0), Lit(0), place.batch, widen=False)
            return ir.IndexElements(source.name, source.dtype, narrow, strides.row, strides.column)
        if source in self.layout.columns:
            start = Name("warp_n") * self.layout.warp_tile[1] + (LANE & 3) * 2
            start = start + self.layout.columns.index(source) * self.layout.tile[1]
            return ir.SharedColumns(source.name, source.dtype, ir.Address("columns", start * 4))
        base = offset(replace(strides, row=0, column=0), Lit(0), Lit(0), place.batch)
        buffer = self.buffers.index(source.tensor)
        return ir.GlobalElements(
            source.name, source.dtype, buffer, base, strides.row, strides.column
        )

    def store_fragment(self, place: Place, fragment: ir.Fragment, number: int) -> ir.Stmt:
        stored = self.problem.stored[number]
        out = stored.strides
        even = all(s % 2 == 0 for s in (out.row, out.offset, *out.batch))
        return ir.StGlobalVec(
            ir.RegAt(result_registers(number)),
            stored.dtype,
            fragment,
            self.buffers.index(stored.tensor),
            offset(replace(out, row=0, column=0), Lit(0), Lit(0), place.batch),
            out.row,
            out.column,
            2 if out.column == 1 and even and self.problem.n % 2 == 0 else 1,
        )


def _shared_tile(
    name: str, offset: int, stages: int, tile: TileLayout | PaddedTile
) -> ir.SharedTile:
    layout = tile if isinstance(tile, TileLayout) else None
    return ir.SharedTile(name, offset, stages * slot_bytes(tile), layout)


class Sm80Template:
    """Matrix instructions of SM80."""

    name: Final = "sm80"

    def takes(self, plan: Plan) -> bool:
        return isinstance(plan, MmaPlan) and plan.arch == "sm80"

    def accepts(self, job: Job[MmaPlan]) -> list[Finding]:
        return [
            *kernel_refusals(job.short, job.tensors),
            *accepts(job.kernel, job.refs, job.plan, job.target),
        ]

    def build(self, job: Job[MmaPlan], name: str) -> ir.Kernel:
        problem = analyse(job.kernel, job.refs, row=PIECE)
        return _Builder(Sm80Layout(problem, job.plan), name).kernel()


TEMPLATE: Final = Sm80Template()
