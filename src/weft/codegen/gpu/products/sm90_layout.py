"""Shared-memory layout of an SM90 matrix product, computed from problem, plan and target.

The block's shared memory holds a ring of `stages` slots (a tile of A and a tile of B each), staging
buffers for the result, the epilogue's column vectors, and the barriers. `refusals` says what the
template cannot do; a layout without refusals can be generated.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

from weft.codegen.gpu.body.accept import refuse
from weft.codegen.gpu.ir.formats import results_per_group
from weft.codegen.gpu.ir.swizzle import SWIZZLE_64, SWIZZLE_128, Major, TileLayout, fitting
from weft.codegen.gpu.products.operand import Operand
from weft.codegen.gpu.products.problem import Problem, Source
from weft.codegen.gpu.products.refusals import (
    memory_refusals,
    order_refusals,
    problem_refusals,
    stored_refusals,
)
from weft.codegen.gpu.products.split import PhasedSplit, Split, split_refusals
from weft.codegen.gpu.products.tiles import TileOrder
from weft.foundation.dtypes import BF16, F16, F32, SI32, UI32
from weft.foundation.errors import Finding
from weft.foundation.records import dataclass
from weft.plan.ir import MmaPlan
from weft.plan.sum_parts import sum_parts
from weft.plan.text import told
from weft.region.forms.part_sums import PART, PIECE, SUMMED
from weft.target.matrix_atoms import INTEGERS, PROMOTED, TINY, Atom, atom_for
from weft.target.target import Target

WARPGROUP: Final = 128
ALIGNMENT: Final = 1024
"""Bytes after which the permutation of shared memory begins anew."""
ROW: Final = 128
"""Bytes of a row of a tile within which shared memory is permuted: k tiles are multiples of it."""
HALF_ROW: Final = 64
"""Those of a k tile of windows that have no more channels."""
SPARE_REGISTERS: Final = 32
"""Addresses, counters and epilogue values beside accumulators and packed results."""
_SWIZZLED_ROWS: Final = 8
"""Rows after which the permutation of shared memory begins anew."""
MAX_BATCH_AXES: Final = 2
"""Of a tensor that the copy engine reads or writes."""
RESULTS: Final = (BF16, F16, F32, SI32, UI32, *INTEGERS, *TINY)
_NARROW_COLUMNS: Final = 32
"""Columns up to which every multiple of 8 has an instruction."""
FETCHERS: Final = 3
"""Warps of the producer's warpgroup that do not load operands."""
LINE: Final = 16
"""Bytes that a thread stores at a time."""
TMA_ALIGNMENT: Final = 16
"""Bytes that tensor addresses and strides must be multiples of."""


@dataclass(frozen=True)
class Sm90Layout:
    """The derived numbers of one kernel."""

    problem: Problem
    plan: MmaPlan
    units: int

    @property
    def pingpong(self) -> bool:
        return self.plan.roles == "pingpong"

    @property
    def tile(self) -> tuple[int, int, int]:
        return self.plan.tile

    @property
    def warpgroup_tile(self) -> tuple[int, int]:
        """Rows and columns of the result that one consumer warpgroup computes."""
        return self.plan.warp_tile

    @property
    def atom(self) -> Atom | None:
        """The matrix instruction; None where there is none for these dtypes."""
        problem = self.problem
        return atom_for("sm90", problem.a.dtype, problem.b.dtype, problem.total)

    @property
    def blocks(self) -> int:
        """64-row accumulators of a warpgroup."""
        return self.warpgroup_tile[0] // 64

    @property
    def a(self) -> TileLayout:
        return operand_layout(self.problem.a, self.tile[0], self.tile[2])

    @property
    def b(self) -> TileLayout:
        return operand_layout(self.problem.b, self.tile[1], self.tile[2])

    @property
    def slot_bytes(self) -> int:
        return self.a.bytes + self.b.bytes

    @property
    def c(self) -> TileLayout:
        """One staging buffer: all rows of a warpgroup, one panel of its columns."""
        size = self.problem.out_dtype.storage_bytes
        # Of 16-bit results 256 columns are four panels of 64, 224 are seven of 32 and 240 fifteen
        # of 16: each costs a meeting and a request for each of its rows
        # (docs/performance/gpu-planner.md).
        swizzle = fitting(self.warpgroup_tile[1], size)
        return TileLayout(self.warpgroup_tile[0], swizzle.span // size, size, swizzle)

    @property
    def chunks(self) -> int:
        """Panels of columns in which a warpgroup stores its result."""
        return self.warpgroup_tile[1] // self.c.columns

    @property
    def staged(self) -> bool:
        """Whether all results have whole rows, which are gathered in shared memory; otherwise
        registers are stored, as 8-bit results are."""
        outs = [stored.strides for stored in self.problem.stored]
        whole = bool(outs) and all(
            o.column == 1 and (self.problem.m == 1 or o.row > 0) for o in outs
        )
        return whole and self.problem.out_dtype.storage_bytes > 1

    @property
    def tma_store(self) -> bool:
        """Whether the copy engine can write staged rows; otherwise threads do."""
        size = self.problem.out_dtype.storage_bytes
        outs = [stored.strides for stored in self.problem.stored]
        numbers = [n for out in outs for n in (out.row, out.offset, *out.batch)]
        regular = all(n >= 0 and n * size % TMA_ALIGNMENT == 0 for n in numbers)
        few = all(_batch_axes(out.batch) <= MAX_BATCH_AXES for out in outs)
        scattered = any(out.digits for out in outs)
        return self.staged and regular and few and not scattered

    @property
    def whole_lines(self) -> bool:
        """Whether threads that write scattered rows find whole lines of memory everywhere."""
        size = self.problem.out_dtype.storage_bytes
        outs = [stored.strides for stored in self.problem.stored]
        steps = [n for out in outs for n in (out.offset, *out.batch, *(s for _, s in out.digits))]
        whole = all(n * size % LINE == 0 for n in (self.problem.n, *steps))
        return whole and all(out.digits for out in outs) and self.c.swizzle.span > LINE

    @property
    def packed(self) -> int:
        """Registers of the results of 64 rows of one warpgroup."""
        return self.warpgroup_tile[1] // 8 * results_per_group(self.problem.out_dtype)

    @property
    def columns(self) -> tuple[Source, ...]:
        """Epilogue values that depend on the column: staged in shared memory as f32."""
        return tuple(s for s in self.problem.sources if s.by_column)

    @property
    def beside(self) -> Source | None:
        """An epilogue tensor of the result's form and dtype that the copy engine brings into the
        staging buffers ahead of time, where results take its place."""
        plan = self.plan
        # A buffer is handed back when the panel after it has come (`exchanged_panel`): one alone
        # would wait for itself.
        if not self.tma_store or plan.deferred_epilogue or plan.store_buffers < 2:
            return None
        if len(self.problem.stored) > 1 or self.problem.folds:
            return None
        # Of parts in parallel nobody knows which one is going to store the result.
        if plan.consumers > FETCHERS or self.split.parts.parallel:
            return None
        return next((s for s in self.problem.sources if self._lies_beside(s)), None)

    def _lies_beside(self, source: Source) -> bool:
        strides, size = source.strides, source.dtype.storage_bytes
        if source.tensor is None or source.dtype is not self.problem.out_dtype:
            return False
        if source.dtype not in (BF16, F16, F32):
            return False
        whole = strides.column == 1 and (self.problem.m == 1 or strides.row > 0)
        whole = whole and not strides.digits
        numbers = (strides.row, strides.offset, *strides.batch)
        return (
            whole
            and _batch_axes(strides.batch) <= MAX_BATCH_AXES
            and all(number >= 0 and number * size % TMA_ALIGNMENT == 0 for number in numbers)
        )

    @property
    def k_steps(self) -> int:
        return -(-self.problem.k // self.tile[2])

    @property
    def order(self) -> TileOrder:
        """Of tiles, or of pairs of them where two blocks work side by side."""
        down, across = self.plan.cluster
        rows = -(-self.problem.m // (self.tile[0] * down))
        columns = -(-self.problem.n // (self.tile[1] * across))
        return TileOrder(rows, columns, self.problem.batches, self.plan.order)

    @property
    def split(self) -> Split:
        """The parts of every tile's sums."""
        parts, order = sum_parts(self.plan), self.order
        walk = self.problem.a.walk
        if walk is None or not walk.phases:
            return Split(parts, self.k_steps, order.count)
        own = {phase.tap for phase in walk.phases}
        each = prod(size for name, size in walk.inner if name not in own) // self.tile[2]
        batch = self.problem.batch
        return PhasedSplit(
            parts, self.k_steps, order.count, walk.phases, batch, order.per_matrix, each
        )

    @property
    def waits(self) -> bool:
        """Whether blocks wait for one another's sums."""
        return self.split.count > 1 and not self.split.parts.parallel

    @property
    def sharing(self) -> int:
        """Warpgroups that share a tile."""
        return 1 if self.pingpong else self.plan.consumers

    @property
    def cluster(self) -> int:
        """Blocks that work side by side. They share an operand: each loads half of it for both."""
        return prod(self.plan.cluster)

    @property
    def shared(self) -> str:
        """The operand that the blocks of a cluster share: those one below the other that of their
        columns, those side by side that of their rows."""
        return {(2, 1): "b", (1, 2): "a"}.get(self.plan.cluster, "")

    def read_once(self, side: str) -> bool:
        """Whether every element of an operand is read by one tile only, of few columns: of the
        weights that few rows are multiplied with."""
        others = self.order.columns if side == "a" else self.order.rows
        operand = self.problem.a if side == "a" else self.problem.b
        return self.plan.swap_ab and others == self.cluster == 1 and 0 not in operand.batch

    @property
    def at_work(self) -> int:
        """Blocks, or clusters of them, that take tiles, or pairs of them, in turn."""
        return min(self.units // self.cluster, self.split.items)

    @property
    def grid(self) -> int:
        return self.at_work * self.cluster

    @property
    def threads(self) -> int:
        return WARPGROUP * (1 + self.plan.consumers)

    # Shared memory, in this order

    @property
    def a_offset(self) -> int:
        return 0

    @property
    def b_offset(self) -> int:
        return self.plan.stages * self.a.bytes

    @property
    def c_offset(self) -> int:
        return self.plan.stages * self.slot_bytes

    @property
    def staging_buffers(self) -> int:
        return self.plan.consumers * self.plan.store_buffers

    @property
    def c_bytes(self) -> int:
        return self.staging_buffers * _align_bytes(self.c.bytes) if self.staged else 0

    @property
    def columns_offset(self) -> int:
        return self.c_offset + self.c_bytes

    @property
    def columns_bytes(self) -> int:
        return self.plan.consumers * len(self.columns) * self.warpgroup_tile[1] * 4

    @property
    def barriers_offset(self) -> int:
        return self.columns_offset + self.columns_bytes

    @property
    def panel_barriers_offset(self) -> int:
        return self.barriers_offset + 8 * (2 * self.plan.stages + self.plan.consumers)

    @property
    def shared_bytes(self) -> int:
        buffers = self.staging_buffers if self.beside is not None else 0
        return self.panel_barriers_offset + 8 * 2 * buffers

    @property
    def registers_at_launch(self) -> int:
        # A unit has 65,536 registers and gives them to threads by eights; instructions can name
        # 255.
        return min(255, 65_536 // self.threads // 8 * 8)


def operand_layout(operand: Operand, outer: int, k: int) -> TileLayout:
    """K-major operands lie with rows along m or n, MN-major ones with rows along k."""
    size = operand.dtype.storage_bytes
    if operand.major is Major.K:
        return TileLayout(outer, k, size, SWIZZLE_64 if k * size == HALF_ROW else SWIZZLE_128)
    return TileLayout(k, outer, size, SWIZZLE_128)


def _batch_axes(strides: tuple[int, ...]) -> int:
    """Batch axes that a tensor with these strides depends on: each is one of its map's."""
    return sum(stride != 0 for stride in strides)


def _align_bytes(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


def refusals(layout: Sm90Layout, target: Target) -> Iterator[Finding]:
    """Everything the template cannot carry out."""
    yield from problem_refusals(layout.problem, layout.plan, layout.atom, RESULTS, "wgmma")
    if layout.atom is None:
        return
    yield from _operand_refusals(layout, layout.atom)
    yield from _scattered_refusals(layout)
    yield from _fold_refusals(layout)
    yield from _sum_refusals(layout)
    yield from _unused_fields(layout.plan)
    broken = [*_tile_refusals(layout)]
    yield from broken
    if not broken:
        yield from _resource_refusals(layout, target)


def _scattered_refusals(layout: Sm90Layout) -> Iterator[Finding]:
    """Rows, but not columns, may lie anywhere, if they are stored from shared memory."""
    problem = layout.problem
    if not problem.scattered:
        return
    if layout.plan.swap_ab:
        yield refuse("PlanField", "swap_ab: rows that do not follow one another cannot be columns")
    if not layout.staged:
        yield refuse("OutputForm", "rows that do not follow one another are not of neighbours")
    if any(s.tensor is None and s.strides.digits for s in problem.sources):
        yield refuse("EpilogueForm", "rows that do not follow one another have no number")


def _fold_refusals(layout: Sm90Layout) -> Iterator[Finding]:
    """Numbers of rows are made where a warpgroup has all of a row."""
    problem, plan = layout.problem, layout.plan
    if not problem.folds:
        return
    if plan.swap_ab:
        yield refuse("PlanField", "swap_ab: numbers of rows are not made of columns")
    if problem.numbers and problem.width != layout.warpgroup_tile[1]:
        yield refuse("Tile", f"a warpgroup makes numbers of {problem.width} columns, its own")
    elif problem.width > layout.warpgroup_tile[1]:
        why = f"rows of {problem.n} are not held by a warpgroup of {layout.warpgroup_tile[1]}"
        yield refuse("Tile", f"{why} columns, which makes numbers of them")
    if plan.deferred_epilogue:
        yield refuse("PlanField", "a deferred epilogue makes no numbers of rows")


def _sum_refusals(layout: Sm90Layout) -> Iterator[Finding]:
    """Sums of columns are made of panels that the copy engine stores."""
    problem, plan = layout.problem, layout.plan
    if not problem.sums:
        return
    if plan.swap_ab:
        yield refuse("PlanField", "swap_ab: sums of columns are not made of rows")
    if problem.scattered or not layout.tma_store:
        yield refuse("OutputForm", "columns are summed of whole rows that the copy engine stores")
    if problem.out_dtype not in SUMMED or layout.c.columns % PIECE:
        what = f"panels of {layout.c.columns} columns of {problem.out_dtype}"
        yield refuse(
            "Tile", f"sums of columns are made of 16-bit floats, {PIECE} at a time: {what}"
        )
    if any(found.rows != PART for found in problem.sums) or problem.m % PART:
        yield refuse("OutputForm", f"sums of columns are those of {PART} rows each")


def _operand_refusals(layout: Sm90Layout, atom: Atom) -> Iterator[Finding]:
    for name, operand in (("A", layout.problem.a), ("B", layout.problem.b)):
        yield from _alignment(name, operand)
        if atom.along_k and operand.major is Major.MN:
            yield refuse("OperandLayout", f"{name}, of {operand.dtype}, does not lie along k")


def _alignment(name: str, operand: Operand) -> Iterator[Finding]:
    size, walk = operand.dtype.storage_bytes, operand.walk
    if 1 not in (operand.inner, operand.outer):
        yield refuse("OperandStride", f"no axis of {name} is contiguous")
        return
    strides = operand.batch if walk is None else walk.strides
    what = "batch stride" if walk is None else "stride"
    for what, count in [("pitch", operand.pitch), ("offset", operand.offset)] + [
        (what, stride) for stride in strides
    ]:
        if count < 0 or count * size % TMA_ALIGNMENT:
            yield refuse(
                "Alignment",
                f"the {what} of {name} is {count} elements; the copy engine needs multiples of "
                f"{TMA_ALIGNMENT // size}",
            )
    if walk is None and _batch_axes(operand.batch) > MAX_BATCH_AXES:
        yield refuse("BatchAxes", f"{name} has more than {MAX_BATCH_AXES} batch axes")


def _unused_fields(plan: MmaPlan) -> Iterator[Finding]:
    """Fields that have no effect here are refused, so that nobody believes they have."""
    fixed: dict[str, tuple[object, object]] = {
        "bind": (plan.bind, {}),
        "vectorize": (plan.vectorize, None),
        "predicate_tail": (plan.predicate_tail, ()),
        "batch": (plan.batch, 1),
    }
    for name, (value, only) in fixed.items():
        if value != only:
            yield refuse("PlanField", f"{told(plan, name)} has no effect in the SM90 template")
    if plan.arch != "sm90":
        yield refuse("PlanField", f"arch={plan.arch} is not this template's")


def _tile_refusals(layout: Sm90Layout) -> Iterator[Finding]:
    plan = layout.plan
    (bm, bn, bk), (wm, wn) = plan.tile, plan.warp_tile
    if plan.roles not in ("cooperative", "pingpong"):
        yield refuse("PlanField", f"roles={plan.roles} is not built for SM90")
    assert layout.atom is not None
    step = ROW // layout.atom.word
    narrow = layout.problem.a.walk is not None and 2 * bk == step
    if (bk % step and not narrow) or bk <= 0:
        yield refuse("Tile", f"a k tile of {bk} is not a multiple of {step}")
    if wn > _NARROW_COLUMNS and wn % layout.atom.columns:
        yield refuse("Tile", f"{wn} columns of {layout.problem.a.dtype} have no instruction")
    if wm % 64 or wm <= 0 or wn % 8 or not 8 <= wn <= 256 or bm > 256 or bn > 256:
        yield refuse(
            "Tile",
            f"a warpgroup tile of {wm}x{wn} in {bm}x{bn} is not made of 64xN matrix instructions, "
            "N a multiple of 8 up to 256",
        )
        return
    parts = 1 if plan.roles == "pingpong" else plan.consumers
    if bm % wm or bn % wn or (bm // wm) * (bn // wn) != parts:
        yield refuse(
            "Tile",
            f"warp_tile={wm}x{wn} does not divide the tile {bm}x{bn} among {parts} warpgroups",
            "cooperative warpgroups share one tile, ping-pong warpgroups have one each",
        )
    # A warpgroup's columns begin with a panel: see `operand_offset`.
    if layout.problem.b.major is Major.MN and wn != bn and wn % 64:
        yield refuse("Tile", f"columns cannot be split at {wn} when B is contiguous along n")
    if wn * layout.problem.out_dtype.storage_bytes % TMA_ALIGNMENT:
        yield refuse("Tile", f"{wn} columns of the result are not a multiple of 16 bytes")
    yield from _window_refusals(layout)
    yield from _cluster_refusals(layout)
    yield from _schedule_refusals(layout)


def _window_refusals(layout: Sm90Layout) -> Iterator[Finding]:
    """Tiles of windows that cross from one tap to the next."""
    rows, columns, depth = layout.tile
    for operand, extent in ((layout.problem.a, rows), (layout.problem.b, columns)):
        if operand.walk is None:
            continue
        width = ROW // operand.dtype.storage_bytes
        if operand.walk.whole and extent % width and width % extent:
            yield refuse("Tile", f"{extent} rows or columns cross from tap to tap of windows")
        if not operand.walk.whole and depth not in (width, width // 2):
            yield refuse("Tile", f"a k tile of windows is {width} or half of it, not {depth}")


def _cluster_refusals(layout: Sm90Layout) -> Iterator[Finding]:
    down, across = layout.plan.cluster
    if (down, across) == (1, 1):
        return
    if not layout.shared:
        yield refuse("PlanField", f"a cluster of {down}x{across} blocks is not 2x1 or 1x2")
        return
    # Each block brings half of the rows as boxes of their own, whose pattern begins anew after
    # eight rows.
    side = layout.problem.a if layout.shared == "a" else layout.problem.b
    rows = layout.tile[layout.shared == "b"]
    if side.major is not Major.K or rows % (2 * _SWIZZLED_ROWS):
        yield refuse(
            "PlanField",
            f"a cluster of {down}x{across} blocks shares {layout.shared.upper()}, which must be "
            f"contiguous along k and {2 * _SWIZZLED_ROWS} rows, or a multiple of that, high",
        )


def _schedule_refusals(layout: Sm90Layout) -> Iterator[Finding]:
    plan = layout.plan
    if plan.consumers < 1 or (plan.roles == "pingpong" and plan.consumers < 2):
        yield refuse("PlanField", f"{plan.consumers} consumers cannot be {plan.roles}")
    if plan.stages < 2 or plan.store_buffers < 1:
        yield refuse("PlanField", "there must be two stages and one store buffer at least")
    if plan.in_flight not in (0, 1):
        yield refuse("PlanField", f"in_flight={plan.in_flight} is neither 0 nor 1")
    if plan.in_flight and plan.precision == PROMOTED:
        yield refuse("PlanField", "sums that are promoted every k step need in_flight=0")
    if len({stored.dtype.storage_bytes for stored in layout.problem.stored}) > 1:
        yield refuse("ResultDType", "results of different sizes cannot be staged in turn")
    if plan.deferred_epilogue and len(layout.problem.stored) > 1:
        yield refuse("PlanField", "a deferred epilogue has registers for one result")
    if plan.deferred_epilogue and (plan.roles == "pingpong" or not layout.staged):
        yield refuse(
            "PlanField", "a deferred epilogue needs cooperative roles and a result of whole rows"
        )
    yield from order_refusals(layout.order)
    yield from split_refusals(layout.split)
    sides = (layout.problem.a, layout.problem.b)
    a, b = reversed(sides) if plan.swap_ab else sides
    yield from stored_refusals(plan, a, b)


def _resource_refusals(layout: Sm90Layout, target: Target) -> Iterator[Finding]:
    plan = layout.plan
    yield from memory_refusals(layout.shared_bytes, target)
    # 128 threads share 64 rows of n sums of 32 bits: n / 2 registers each.
    accumulators = layout.blocks * layout.warpgroup_tile[1] // 2
    accumulators *= 2 if plan.precision == PROMOTED else 1
    # Results take the place of their accumulators, unless they wait beside the next tile's.
    waiting = layout.packed * layout.blocks if plan.deferred_epilogue else 0
    needed = accumulators + waiting + SPARE_REGISTERS
    given = plan.registers[1] or layout.registers_at_launch
    if needed > given:
        yield refuse("Registers", f"a consumer needs about {needed} registers and has {given}")
    yield from _register_split(layout)


def _register_split(layout: Sm90Layout) -> Iterator[Finding]:
    producer, consumer = layout.plan.registers
    if (producer, consumer) == (0, 0):
        return
    # What consumers get is what the producer gave up: a block has the registers that it was
    # launched with.
    total = WARPGROUP * (producer + layout.plan.consumers * consumer)
    available = layout.threads * layout.registers_at_launch
    bad = any(count % 8 or not 24 <= count <= 240 for count in (producer, consumer))
    if bad or total > available or consumer < layout.registers_at_launch < producer:
        yield refuse(
            "Registers",
            f"{told(layout.plan, 'registers')} do not split {available} among "
            f"{layout.plan.consumers} consumers and a producer",
            "use multiples of 8 from 24 to 240, or 0, 0 to leave them as launched",
        )
    elif consumer < layout.registers_at_launch:
        yield refuse(
            "Registers",
            f"every thread is launched with {layout.registers_at_launch} registers already",
            "use registers 0, 0",
        )
