"""Convolutions in groups of few channels: cp.async, `ldmatrix`, `mma.sync`.

    copy the elements that the windows of a block's places reach, and all filters of its groups
    wait, meet
    for each step of the sum, two pieces of eight channels: fragments of the filters;
        for each 16 places of the warp: fragments of the image, where the taps lie, and multiply
    epilogue on the fragments, stored from registers

Nothing is copied twice, so that nobody waits again: while a block waits for its elements, others of
the unit multiply. A group with no whole number of pieces has zeros behind its channels, in filters
and image alike, and so has a sum of an odd number of them: nothing of another group is ever
multiplied, not even with zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.accept import kernel_refusals
from weft.codegen.gpu.ir.formats import results_per_group
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
    scalar,
    total,
    wide,
)
from weft.codegen.gpu.products.groups_layout import Elements, GroupsLayout, layout_of, refusals
from weft.codegen.gpu.products.operand import Refusal
from weft.codegen.gpu.products.problem import Problem, Source, Stored, Strides
from weft.codegen.gpu.products.tile_place import offset
from weft.codegen.gpu.template import Job
from weft.foundation.errors import Finding
from weft.plan.group_tiles import blocks_at_once
from weft.plan.ir import MmaPlan, Plan
from weft.region.forms.grouped import BLOCK as PLACES
from weft.region.forms.grouped import PIECE, PITCH, SLOTS, Groups

_UNROLLED: Final = 4
"""Copies of a thread that are written out one after the other."""
_BYTES: Final = 16
"""Of a piece."""


@dataclass
class _Builder:
    """Makes the statements of one kernel."""

    layout: GroupsLayout
    name: str
    resident: int
    problem: Problem = field(init=False)
    groups: Groups = field(init=False)
    buffers: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.problem, self.groups = self.layout.problem, self.layout.groups
        self.buffers = self.problem.tensors

    def kernel(self) -> ir.Kernel:
        layout = self.layout
        return ir.Kernel(
            name=self.name,
            grid=layout.grid,
            threads=layout.threads,
            buffers=tuple(self.buffers),
            maps=(),
            tiles=(
                ir.SharedTile("a", 0, layout.filters_offset),
                ir.SharedTile("b", layout.filters_offset, layout.groups.filter_bytes),
            ),
            barriers=(),
            tables=(),
            body=tuple(self.body()),
            resident=self.resident,
        )

    def body(self) -> Iterator[ir.Stmt]:
        yield from self.locate()
        yield from self.fill_filters()
        yield from self.fill_image()
        yield ir.CommitGroup()
        yield from self.zeros()
        yield ir.WaitGroup(0)
        yield ir.SyncThreads()
        yield from self.multiply()
        yield from self.store()

    # -- where a block and a warp are ------------------------------------------------------------

    def locate(self) -> Iterator[ir.Stmt]:
        """The block's groups, image and first place along each axis, and the warp's part."""
        layout, groups = self.layout, self.groups
        yield ir.Let("first_group", BLOCK % layout.across * groups.together)
        rest = BLOCK // layout.across
        yield from self.digits("start", rest, layout.counts, layout.tile)
        yield ir.Let("image", rest // math.prod(layout.counts))
        yield ir.Let("warp_m", WARP % layout.warps[0])
        yield ir.Let("warp_n", WARP // layout.warps[0])
        column = Name("warp_n") * layout.plan.warp_tile[1]
        yield ir.Let("own_group", column // groups.columns)
        yield ir.Let("own_column", column % groups.columns)
        yield ir.Let("group", Name("first_group") + Name("own_group"))
        *outer, length = layout.tile
        inside = least(length, groups.places[-1] - self.start[-1])
        if outer:
            inside = inside * least(outer[-1], groups.places[-2] - self.start[-2])
        exists = Name("group") < groups.groups if self.groups_end else Lit(1)
        yield ir.Let("count", inside * exists)
        place: Scalar = Name("image")
        for size, start in zip(groups.places, self.start, strict=True):
            place = place * size + start
        yield ir.Let("first", place)

    @property
    def start(self) -> list[Scalar]:
        """The first place of the block along each axis."""
        return [Name(f"start{axis}") for axis, _ in enumerate(self.layout.tile)]

    @property
    def groups_end(self) -> bool:
        """Whether the last block has fewer groups."""
        return self.groups.groups % self.groups.together > 0

    def digits(
        self, name: str, number: Scalar, sizes: Sequence[int], steps: Sequence[int] = ()
    ) -> Iterator[ir.Stmt]:
        """The digits of a number, each times its step, as variables; what is above is left."""
        below = math.prod(sizes)
        for axis, size in enumerate(sizes):
            below //= size
            digit = number // below % size
            yield ir.Let(f"{name}{axis}", digit * (steps[axis] if steps else 1))

    # -- copies ----------------------------------------------------------------------------------

    def turns(self, name: str, count: int, work: tuple[ir.Stmt, ...]) -> Iterator[ir.Stmt]:
        """Every thread takes every `threads`-th of so many pieces, the one that `name` says."""
        threads = self.layout.threads
        number = Name(f"{name}_turn") * threads + THREAD
        taken = work if count % threads == 0 else (ir.If(Name(name) < count, work),)
        turns = -(-count // threads)
        body = (ir.Let(name, number), *taken)
        yield ir.For(f"{name}_turn", 0, turns, 1, body, times=min(_UNROLLED, turns))

    def fill_image(self) -> Iterator[ir.Stmt]:
        layout, groups, image = self.layout, self.groups, self.layout.image
        slots = groups.together * groups.pieces
        piece, slot = Name("pixel"), Name("slot")
        found: list[ir.Stmt] = [
            ir.Let("slot", piece % slots),
            ir.Let("element", piece // slots),
            *self.digits("at", Name("element"), layout.extents),
            ir.Let("held", Name("first_group") + slot // groups.pieces),
        ]
        guard: Scalar = Name("held") < groups.groups if self.groups_end else Lit(1)
        terms = [wide(Name("image")) * image.outer, wide(Name("held")) * image.group]
        for axis, (start, step) in enumerate(zip(self.start, groups.steps, strict=True)):
            name = f"place{axis}"
            found.append(ir.Let(name, start * step + Name(f"at{axis}") + image.first[axis]))
            if image.first[axis] < 0:
                guard = both(guard, Name(name) >= 0)
            guard = both(guard, Name(name) < image.sizes[axis])
            terms.append(wide(Name(name)) * image.along[axis])
        channel = slot % groups.pieces * PIECE
        place = total(image.offset, *terms, wide(channel))
        # Slots of an element are permuted by its number, as rows are in `ir/swizzle.py`: what
        # `ldmatrix` reads of eight neighbours lies in different banks.
        turned = (slot ^ (Name("element") & (SLOTS - 1))) * _BYTES
        target = ir.Address("a", Name("element") * PITCH + turned)
        found += self.copy(image, target, place, channel, guard)
        yield from self.turns("pixel", layout.elements * slots, tuple(found))

    def fill_filters(self) -> Iterator[ir.Stmt]:
        groups, filters = self.groups, self.layout.filters
        rows, depth = groups.filter_rows, groups.filter_pieces
        # Neighbouring threads read neighbours.
        number = Name("filter")
        along = filters.channel == 1
        inner, outer = (depth, rows) if along else (rows, depth)
        first, second = number % inner, number // inner % outer
        piece, row = (first, second) if along else (second, first)
        found: list[ir.Stmt] = [
            ir.Let("piece", piece),
            ir.Let("row", row),
            ir.Let("filter_group", number // (rows * depth)),
            *self.digits("tap", Name("piece") // groups.pieces, groups.taps),
        ]
        group = Name("first_group") + Name("filter_group")
        guard: Scalar = group < groups.groups if self.groups_end else Lit(1)
        if rows > groups.outputs:
            guard = both(guard, Name("row") < groups.outputs)
        if depth > groups.depth:
            guard = both(guard, Name("piece") < groups.depth)
        channel = Name("piece") % groups.pieces * PIECE
        terms = [wide(group) * filters.group, wide(Name("row")) * filters.outer]
        terms += [wide(Name(f"tap{axis}")) * step for axis, step in enumerate(filters.along)]
        place = total(filters.offset, *terms, wide(channel) * filters.channel)
        line = Name("filter_group") * rows + Name("row")
        target = ir.Address("b", line * groups.filter_pitch + Name("piece") * _BYTES)
        found += self.copy(filters, target, place, channel, guard)
        yield from self.turns("filter", groups.together * rows * depth, tuple(found))

    def copy(
        self, elements: Elements, target: ir.Address, place: Scalar, channel: Scalar, guard: Scalar
    ) -> Iterator[ir.Stmt]:
        """One piece, of the channels that there are, in parts where it is not whole."""
        buffer, dtype = self.buffers.index(elements.tensor), self.problem.a.dtype
        channels, size = self.groups.channels, dtype.storage_bytes
        part = elements.bytes_at_once(channels)
        if not part:
            limit = scalar(channels) - channel
            yield ir.Gather(target, buffer, dtype, place, elements.channel, PIECE, limit, guard)
            return
        for start in range(0, _BYTES, part):
            inside = channel + start // size < channels if part < _BYTES else Lit(1)
            here = Lit(0) if inside == Lit(0) else both(guard, inside)
            to = ir.Address(target.tile, target.offset + start)
            yield ir.CpAsync(to, buffer, (place + start // size) * size, here, part)

    def zeros(self) -> Iterator[ir.Stmt]:
        """A piece of zeros, where the last step of a sum has one piece only."""
        if self.groups.depth % 2 == 0:
            return
        dtype, buffer = self.problem.a.dtype, self.buffers.index(self.layout.image.tensor)
        target = ir.Address("a", Lit(self.layout.zeros))
        none = ir.Gather(target, buffer, dtype, wide(0), 1, PIECE, Lit(PIECE), Lit(0))
        yield ir.If(THREAD.equals(0), (none,))

    # -- matrix instructions ---------------------------------------------------------------------

    def multiply(self) -> Iterator[ir.Stmt]:
        layout, groups = self.layout, self.groups
        rows, columns = layout.blocks
        atom = layout.atom
        assert atom is not None  # `refusals` has refused the rest
        yield ir.Registers("acc", ir.RegisterKind.F32, 4 * rows * columns, zero=True)
        yield ir.Registers("a_part", ir.RegisterKind.B32, 4)
        yield ir.Registers("b_part", ir.RegisterKind.B32, 4 * -(-columns // 2))
        for block in range(rows):
            yield from self.window(block)
        yield ir.Let("half", LANE >> 4)
        yield ir.Let("own_slot", Name("own_group") * groups.pieces)
        yield from self.own_filter()
        for turn in range(groups.turns):
            yield from self.filters(turn)
            other = turn % 2 if groups.in_turns else 0
            for block in range(rows):
                address = ir.Address("a", self.piece(block, turn))
                yield ir.LdMatrix(ir.RegAt("a_part"), address, transposed=False)
                for column in range(columns):
                    yield ir.MmaSync(
                        ir.RegAt("acc", 4 * (block * columns + column)),
                        ir.RegAt("a_part"),
                        ir.RegAt("b_part", 2 * (column + other)),
                        atom.a,
                        atom.b,
                    )

    def own_filter(self) -> Iterator[ir.Stmt]:
        """Where a lane's row of filters begins: in four matrices of eight rows, two pieces of two
        times eight results, or four pieces of eight."""
        groups = self.groups
        line = Name("own_group") * groups.filter_rows + Name("own_column") + (LANE & 7)
        piece = LANE >> 3
        if not groups.in_turns:
            line, piece = line + Name("half") * 8, piece & 1
        yield ir.Let("own_filter", line * groups.filter_pitch + piece * _BYTES)

    def filters(self, turn: int) -> Iterator[ir.Stmt]:
        """A warp's filters of a step of the sum, or of this one and the next."""
        groups, columns = self.groups, self.layout.blocks[1]
        if groups.in_turns and turn % 2:
            return
        for pair in range(0, columns, 2):
            start = 8 * pair * groups.filter_pitch + 2 * turn * _BYTES
            address = ir.Address("b", Name("own_filter") + start)
            yield ir.LdMatrix(ir.RegAt("b_part", 2 * pair), address, transposed=False)

    def window(self, block: int) -> Iterator[ir.Stmt]:
        """The first element of the window of each lane's place; those behind the block's last have
        its window."""
        layout, groups = self.layout, self.groups
        *_, length = layout.tile
        number = Name("warp_m") * layout.plan.warp_tile[0] + PLACES * block + (LANE & 15)
        last = layout.plan.tile[0] - 1
        covered = layout.warps[0] * layout.plan.warp_tile[0]
        at = f"at_block{block}"
        yield ir.Let(at, least(number, last) if covered > last + 1 else number)
        place = Name(at) % length * groups.steps[-1]
        if len(groups.steps) > 1:
            line = layout.extents[-1] * groups.steps[-2]
            place = place + Name(at) // length * line
        yield ir.Let(f"window{block}", place)

    def piece(self, block: int, turn: int) -> Scalar:
        """Where a lane finds its piece of a step: half of the lanes point at one tap, half at
        another."""
        layout, half = self.layout, Name("half")
        (taps, inside), second = layout.taps(2 * turn), 2 * turn + 1
        lone = second >= self.groups.depth
        others, other = (taps, inside) if lone else layout.taps(second)
        near, far = layout.reach(taps), layout.reach(others)
        element = Name(f"window{block}") + near + half * (far - near)
        slot = Name("own_slot") + inside + half * (other - inside)
        place = element * PITCH + (slot ^ (element & (SLOTS - 1))) * _BYTES
        return place + half * (layout.zeros - place) if lone else place

    # -- epilogue --------------------------------------------------------------------------------

    def store(self) -> Iterator[ir.Stmt]:
        """The element program on every fragment, and its result to memory.

        Places behind the block's last are behind the last of all if rows are counted so that the
        block's end is theirs: results and sources begin earlier by as much."""
        rows, columns = self.layout.blocks
        problem = self.problem
        yield ir.Let("skipped", problem.m - Name("count"))
        yield ir.Let("ahead", Name("first") - Name("skipped"))
        for number, stored in enumerate(problem.stored):
            kind = ir.RegisterKind.for_results(stored.dtype)
            yield ir.Registers(
                result_registers(number), kind, results_per_group(stored.dtype) * columns
            )
        for block in range(rows):
            fragment = self.fragment(block)
            for number, stored in enumerate(problem.stored):
                used = (source for source in problem.sources if stored.uses(source))
                yield ir.Epilogue(
                    acc=ir.RegAt("acc", 4 * block * columns),
                    fragment=fragment,
                    value=problem.value,
                    sources=tuple(self.source(source) for source in used),
                    ops=stored.ops,
                    result=stored.result,
                    out=ir.RegAt(result_registers(number)),
                    out_dtype=stored.dtype,
                    value_dtype=problem.total,
                )
                yield self.store_fragment(stored, fragment, number)

    def fragment(self, block: int) -> ir.Fragment:
        layout = self.layout
        row = Name("warp_m") * layout.plan.warp_tile[0] + PLACES * block + (LANE >> 2)
        column = Name("own_column") + (LANE & 3) * 2
        rows, columns = self.problem.m, self.problem.n
        return ir.Fragment(layout.blocks[1], row + Name("skipped"), column, rows, columns)

    def base(self, strides: Strides, *, widen: bool = True) -> Scalar:
        """Where the elements of row 0 begin, as the block counts rows."""
        across = replace(strides, column=0)
        return offset(across, Name("ahead"), Lit(0), (Name("group"),), widen=widen)

    def source(self, source: Source) -> ir.ElementSource:
        strides = source.strides
        if source.tensor is None:
            base = self.base(strides, widen=False)
            return ir.IndexElements(source.name, source.dtype, base, strides.row, strides.column)
        buffer = self.buffers.index(source.tensor)
        return ir.GlobalElements(
            source.name, source.dtype, buffer, self.base(strides), strides.row, strides.column
        )

    def store_fragment(self, stored: Stored, fragment: ir.Fragment, number: int) -> ir.Stmt:
        out = stored.strides
        even = all(s % 2 == 0 for s in (out.row, out.offset, *out.batch))
        return ir.StGlobalVec(
            ir.RegAt(result_registers(number)),
            stored.dtype,
            fragment,
            self.buffers.index(stored.tensor),
            self.base(out),
            out.row,
            out.column,
            2 if out.column == 1 and even and self.problem.n % 2 == 0 else 1,
        )


def result_registers(number: int) -> str:
    """The registers of a result."""
    return f"out{number}" if number else "out"


class GroupsTemplate:
    """Matrix instructions of SM80 for groups of few channels."""

    name: Final = "groups"

    def takes(self, plan: Plan) -> bool:
        return isinstance(plan, MmaPlan) and plan.arch == "groups"

    def accepts(self, job: Job[MmaPlan]) -> list[Finding]:
        try:
            layout = layout_of(job.kernel, job.refs, job.plan)
        except Refusal as refusal:
            return [refusal.finding]
        return [
            *kernel_refusals(job.short, job.tensors),
            *refusals(layout, job.kernel, job.target),
        ]

    def build(self, job: Job[MmaPlan], name: str) -> ir.Kernel:
        layout, plan = layout_of(job.kernel, job.refs, job.plan), job.plan
        room = blocks_at_once(layout.groups, plan.tile, plan.warp_tile, job.target)
        return _Builder(layout, name, room).kernel()


TEMPLATE: Final = GroupsTemplate()
