"""The SM90 convolution that loads slabs of the image into shared memory and reads all windows from
them (`slab_layout.py`).

    producer    for each tile, for some channels at a time: load the slabs of its patches; then,
                tap after tap, the filters
    consumers   for each tap: multiply what the tap is of the slab; hand the filters back, and,
                after the last tap, the slab

Slabs and filters have a ring each. Everything else is as in `sm90.py`: consumers are cooperative.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.accept import kernel_refusals
from weft.codegen.gpu.ir.scalar import LANE, THREAD, Like, Lit, Name, Scalar, both, scalar
from weft.codegen.gpu.ir.swizzle import TileLayout
from weft.codegen.gpu.products.operand import Operand, Refusal
from weft.codegen.gpu.products.problem import Refs, Strides
from weft.codegen.gpu.products.refusals import field_refusals
from weft.codegen.gpu.products.ring import Ring
from weft.codegen.gpu.products.slab_layout import ATOM, SlabLayout, refusals
from weft.codegen.gpu.products.sm90 import Body, Sm90Builder, problem_for
from weft.codegen.gpu.products.sm90_results import Box, Results, row_split
from weft.codegen.gpu.products.tile_place import Place
from weft.codegen.gpu.template import Job
from weft.foundation.errors import Finding
from weft.plan.ir import MmaPlan, Plan
from weft.plan.slabs import PATCH, SLABS, has_slabs
from weft.region.ir import Kernel
from weft.target.target import Target

_ACROSS: Final = Name("across")
_DOWN: Final = Name("down")
"""The tap at hand."""
_STEP: Final = Name("channel_step")


def _make_layout(kernel: Kernel, refs: Refs, plan: MmaPlan, target: Target) -> SlabLayout:
    return SlabLayout(problem_for(kernel, refs, plan), plan, target.limits.units)


class SlabResults(Results):
    """Results of patches, each a box of the result."""

    @property
    def slabs(self) -> SlabLayout:
        assert isinstance(self.layout, SlabLayout)
        return self.layout

    def panel_map(self, name: str, tensor: str, strides: Strides) -> ir.TensorMap:
        problem, tile, slab = self.problem, self.layout.c, self.slabs.slab
        across, down = slab.places
        pitch = self.pitch(strides)
        return ir.TensorMap(
            name,
            self.buffers.index(tensor),
            problem.out_dtype,
            strides.offset,
            (problem.n, across, down, slab.images),
            (pitch, pitch * across, pitch * across * down),
            (tile.columns, PATCH, PATCH, 1),
            tile.swizzle,
        )

    def boxes(self, panel: Like, place: Place, strides: Strides, start: Scalar) -> Iterator[Box]:
        layout = self.slabs
        column = self.first_column(place) + scalar(panel) * layout.c.columns
        first = place.m * layout.patches + row_split(layout) * layout.blocks
        for block in range(layout.blocks):
            at = start + block * ATOM * layout.c.swizzle.span
            yield at, (column, *layout.slab.locate(first + block))

    def fragment(self, place: Place, block: int, column: int, count: int) -> ir.Fragment:
        """Rows count from the first of the tile: nothing that is read by row depends on them."""
        layout = self.layout
        found = super().fragment(Place(Lit(0), place.n, place.batch), block, column, count)
        return ir.Fragment(found.groups, found.row, found.column, layout.tile[0], found.columns)


class SlabBuilder(Sm90Builder):
    """Makes the statements of one kernel."""

    def __init__(self, layout: SlabLayout, name: str) -> None:
        super().__init__(layout, name)
        self.own = layout
        self.slabs = Ring(SLABS, "slab_")
        self.results = SlabResults(layout, self.buffers)

    # Storage

    def operand_map(self, name: str, operand: Operand, rows: int, tile: TileLayout) -> ir.TensorMap:
        if name == "b":
            return super().operand_map(name, operand, rows, tile)
        walk, slab = operand.walk, self.own.slab
        assert walk is not None
        return ir.TensorMap(
            name,
            self.buffers.index(operand.tensor),
            operand.dtype,
            operand.offset,
            walk.sizes,
            walk.strides,
            (tile.panel_columns, slab.width, slab.height, 1),
            tile.swizzle,
        )

    def tiles(self) -> Iterator[ir.SharedTile]:
        layout = self.own
        yield ir.SharedTile("a", layout.a_offset, SLABS * layout.slab_bytes, layout.a)
        yield ir.SharedTile("b", layout.b_offset, self.plan.stages * layout.b.bytes, layout.b)
        yield from self.results.tiles()

    def barriers(self) -> Iterator[ir.Barriers]:
        yield from super().barriers()
        start = self.own.slab_barriers_offset
        yield ir.Barriers("slab_full", start, SLABS, 1)
        yield ir.Barriers("slab_empty", start + 8 * SLABS, SLABS, 4 * self.layout.sharing)

    # Loading

    def producer(self) -> Iterator[ir.Stmt]:
        ring, slabs, layout = self.ring, self.slabs, self.own
        place, located = self.locate()
        across, down = layout.slab.taps
        tap: Body = (
            ir.MbarrierWait(ir.BarrierAt("empty", ring.slot), ring.phase ^ 1),
            ir.MbarrierExpectTx(ir.BarrierAt("full", ring.slot), layout.slot_bytes),
            *self.operand_loads("b", place, ring.slot, Lit(0)),
            *ring.advance(),
        )
        line = ir.For(_ACROSS.name, 0, across, 1, tap)
        step: Body = (
            ir.MbarrierWait(ir.BarrierAt("slab_empty", slabs.slot), slabs.phase ^ 1),
            ir.MbarrierExpectTx(
                ir.BarrierAt("slab_full", slabs.slot), layout.patches * layout.a.bytes
            ),
            *self.slab_loads(place),
            *slabs.advance(),
            ir.For(_DOWN.name, 0, down, 1, (line,)),
        )
        steps = ir.For(_STEP.name, 0, layout.channel_steps, 1, step)
        tiles = self.items(self.number, layout.at_work, (*located, steps))
        yield ir.If(THREAD.equals(0), (*ring.start(), *slabs.start(), tiles))
        yield from self.fetching()

    def slab_loads(self, place: Place) -> Iterator[ir.Stmt]:
        layout, slots = self.own, self.slabs
        walk, slab = self.problem.a.walk, layout.slab
        assert walk is not None
        channel = walk.start[0].at(self.inner_digits("a"), place.batch)
        for patch in range(layout.patches):
            x, y, image = slab.locate(place.m * layout.patches + patch)
            start = slots.slot * layout.slab_bytes + patch * layout.patch_bytes
            yield ir.TmaLoad(
                ir.Address("a", start),
                "a",
                (channel, x + slab.first[0], y * slab.down + slab.first[1], image),
                ir.BarrierAt("slab_full", slots.slot),
            )

    def inner_digits(self, name: str) -> Mapping[str, Scalar]:
        """The loops over channels and taps; a tap that there is one of has no digit."""
        walk, counts = self.problem.a.walk, self.own.slab.taps
        assert walk is not None
        taps = [tap for tap, count in zip((_DOWN, _ACROSS), counts[::-1], strict=True) if count > 1]
        names = [axis for axis, _ in walk.inner]
        return dict(zip(names, (*taps, _STEP * self.layout.tile[2]), strict=True))

    # Consumers

    def start_rings(self) -> Body:
        taps = (ir.Let(_ACROSS.name, Lit(0)), ir.Let(_DOWN.name, Lit(0)))
        return (*super().start_rings(), *self.slabs.start(), *taps)

    def multiply(self, suffix: str, *, first: bool) -> Iterator[ir.Stmt]:
        slabs = self.slabs
        wait = ir.MbarrierWait(ir.BarrierAt("slab_full", slabs.slot), slabs.phase)
        if first:
            yield wait
        elif self.own.channel_steps > 1:
            yield ir.If(self.at_first_tap, (wait,))
        yield from super().multiply(suffix, first=first)

    @property
    def at_first_tap(self) -> Scalar:
        return both(_ACROSS.equals(0), _DOWN.equals(0))

    def operand_start(self, side: str) -> Scalar:
        if side == "b":
            return super().operand_start(side)
        layout = self.own
        own = self.slabs.slot * layout.slab_bytes
        own += row_split(layout) * (layout.blocks * layout.patch_bytes)
        return own + layout.slab.row(_ACROSS, _DOWN) * layout.a.swizzle.span

    def block_offset(self, block: int, k: int) -> int:
        return block * self.own.patch_bytes + k * self.layout.a.size

    def retire(self, *, first: bool) -> Iterator[ir.Stmt]:
        if not first:
            yield ir.WgmmaWait(1)
            yield self.release(Name("last_slot"))
            if self.own.channel_steps > 1:
                # At the first tap of a slab the products of the tap before, the last of the slab
                # before, have just retired.
                yield ir.If(self.at_first_tap, (self.release_slab(),))
        yield ir.Set("last_slot", self.ring.slot)
        yield from self.ring.advance()
        yield from self.next_tap()

    def next_tap(self) -> Iterator[ir.Stmt]:
        """On to the next tap, and after the last one to the next slab."""
        across, down = self.own.slab.taps
        over = (ir.Set(_DOWN.name, Lit(0)), *self.slabs.advance())
        line = (
            ir.Set(_ACROSS.name, Lit(0)),
            ir.Set(_DOWN.name, _DOWN + 1),
            ir.If(_DOWN.equals(down), over),
        )
        yield ir.Set(_ACROSS.name, _ACROSS + 1)
        yield ir.If(_ACROSS.equals(across), line)

    def release_last(self) -> Iterator[ir.Stmt]:
        yield from super().release_last()
        yield self.release_slab()

    def release_slab(self) -> ir.Stmt:
        """The slab before, whose last tap has been multiplied."""
        done = ir.MbarrierArrive(ir.BarrierAt("slab_empty", self.slabs.previous))
        return ir.If(LANE.equals(0), (done,))


class SlabTemplate:
    """Matrix instructions of SM90 over slabs of an image."""

    name: Final = "slabs"

    def takes(self, plan: Plan) -> bool:
        return isinstance(plan, MmaPlan) and plan.arch == "sm90" and has_slabs(plan)

    def accepts(self, job: Job[MmaPlan]) -> list[Finding]:
        try:
            layout = _make_layout(job.kernel, job.refs, job.plan, job.target)
        except Refusal as refusal:
            return [refusal.finding]
        return [
            *kernel_refusals(job.short, job.tensors),
            *refusals(layout, job.target),
            *field_refusals(job.kernel, job.plan),
        ]

    def build(self, job: Job[MmaPlan], name: str) -> ir.Kernel:
        layout = _make_layout(job.kernel, job.refs, job.plan, job.target)
        return SlabBuilder(layout, name).kernel()


TEMPLATE: Final = SlabTemplate()
