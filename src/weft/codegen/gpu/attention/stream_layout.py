"""Shared-memory and register layout of an SM90 attention gradient, computed from problem, plan and
target.

Shared memory holds 64 rows of both operands for each consumer, whose place its results take, a ring
of blocks of columns, what is read for each column besides, and the barriers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from weft.codegen.gpu.attention.layout import (
    ALIGNMENT,
    MOST_WIDTH,
    ROWS,
    WARPGROUP,
    operand_findings,
    register_findings,
    regular,
)
from weft.codegen.gpu.attention.queries import STEP
from weft.codegen.gpu.attention.reading import HullTables
from weft.codegen.gpu.attention.stream_problem import Result, StreamProblem
from weft.codegen.gpu.attention.work import Work
from weft.codegen.gpu.body.accept import refuse
from weft.codegen.gpu.ir.swizzle import TileLayout, fitting
from weft.codegen.gpu.products.problem import Source
from weft.foundation.dtypes import BF16, F16, F32
from weft.foundation.errors import Finding
from weft.foundation.records import dataclass
from weft.foundation.whole_numbers import round_up
from weft.plan.attention import stream_registers
from weft.plan.ir import ONLINE, AttentionPlan
from weft.region.forms.bands import Band
from weft.target.target import Target


@dataclass(frozen=True)
class StreamLayout(Work):
    """The derived numbers of one kernel."""

    problem: StreamProblem
    plan: AttentionPlan
    target: Target

    # Work

    @property
    def rows(self) -> int:
        return self.problem.rows

    @property
    def columns(self) -> int:
        return self.problem.columns

    @property
    def band(self) -> Band:
        return self.problem.band

    @property
    def hulls(self) -> tuple[HullTables, ...]:
        return self.problem.hulls

    @property
    def matrices(self) -> int:
        return self.problem.matrices

    @property
    def turns(self) -> int:
        return self.problem.turns

    @property
    def column_bytes(self) -> int:
        return sum(2 * product.depth for product in self.problem.products)

    # Tiles

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Of the products, filled up by zeros."""
        return tuple(round_up(product.depth, STEP) for product in self.problem.products)

    def own(self, product: int) -> TileLayout:
        """A consumer's rows, and the results that take their place."""
        depth = self.depths[product]
        return TileLayout(ROWS, depth, 2, fitting(depth, 2))

    def streamed(self, product: int) -> TileLayout:
        depth = self.depths[product]
        return TileLayout(self.tile_columns, depth, 2, fitting(depth, 2))

    def width(self, result: Result) -> int:
        return self.depths[result.of]

    @cached_property
    def staged(self) -> tuple[Source, ...]:
        """What is read once for a column: a warp brings it into shared memory."""
        found = (source for source in self.problem.sources if source.by_column)
        return tuple({(s.tensor, s.strides, s is self.problem.shift): s for s in found}.values())

    @cached_property
    def kept(self) -> tuple[Source, ...]:
        """What is read once for a row: its threads keep it."""
        found = (source for source in self.problem.sources if source.tensor is not None)
        of_rows = (source for source in found if not source.strides.column)
        return tuple({(s.tensor, s.strides, s is self.problem.shift): s for s in of_rows}.values())

    def number(self, among: tuple[Source, ...], source: Source) -> int | None:
        """Which of those that are kept or staged a source is; only the shift is scaled."""
        is_shift = source is self.problem.shift
        alike = [
            number
            for number, found in enumerate(among)
            if (found.tensor, found.strides) == (source.tensor, source.strides)
            and (found is self.problem.shift) == is_shift
        ]
        return alike[0] if alike else None

    def stores_by_copy(self, result: Result) -> bool:
        """Whether the copy engine can write a result; otherwise threads do."""
        size = result.dtype.storage_bytes
        return size == 2 and result.out.column == 1 and regular(result.out, size)

    # Shared memory, in this order

    def own_offset(self, product: int) -> int:
        """Of a product's rows among those of a consumer and a tile."""
        return sum(round_up(self.own(number).bytes, ALIGNMENT) for number in range(product))

    @property
    def own_bytes(self) -> int:
        return self.own_offset(len(self.depths))

    @property
    def slots(self) -> int:
        """Tiles whose rows there is room for: with two the next ones come while results go."""
        limit = self.target.limits.shared_bytes_per_block
        return 2 if self.bytes_with(2) <= limit else 1

    def bytes_with(self, slots: int) -> int:
        tiles = self.plan.consumers * slots * self.own_bytes
        tiles += sum(self.ring_bytes(number) for number in range(len(self.depths)))
        tiles += self.plan.stages * self.staged_bytes
        # Then barriers of 8 bytes: three for each stage (full, empty, staged), two for each slot.
        return round_up(tiles, ALIGNMENT) + 8 * (
            3 * self.plan.stages + 2 * slots * self.plan.consumers
        )

    def ring_bytes(self, product: int) -> int:
        return round_up(self.plan.stages * self.streamed(product).bytes, ALIGNMENT)

    @property
    def staged_bytes(self) -> int:
        """Of one block of columns."""
        return len(self.staged) * self.tile_columns * 4

    def ring_offset(self, product: int) -> int:
        before = sum(self.ring_bytes(number) for number in range(product))
        return self.plan.consumers * self.slots * self.own_bytes + before

    @property
    def staged_offset(self) -> int:
        return self.ring_offset(len(self.depths))

    @property
    def barriers_offset(self) -> int:
        return round_up(self.staged_offset + self.plan.stages * self.staged_bytes, ALIGNMENT)

    @property
    def shared_bytes(self) -> int:
        return self.bytes_with(self.slots)

    @property
    def threads(self) -> int:
        return WARPGROUP * (1 + self.plan.consumers)


def stream_findings(layout: StreamLayout) -> Iterator[Finding]:
    """What no template of streams multiplies, whatever its plan."""
    problem = layout.problem
    dtype = problem.products[0].own.dtype
    for product in problem.products:
        yield from operand_findings("an operand of rows", product.own, dtype)
        yield from operand_findings("an operand of columns", product.streamed, dtype)
    if max(layout.depths) > MOST_WIDTH:
        yield refuse("Width", f"rows of {max(layout.depths)} elements exceed {MOST_WIDTH}")
    for result in problem.results:
        if result.dtype not in (BF16, F16, F32):
            yield refuse("ResultDType", f"results are {result.dtype}")
    if any(source.dtype.is_complex for source in problem.sources):
        yield refuse("SourceDType", "complex numbers beside the scores")


def stream_refusals(layout: StreamLayout) -> Iterator[Finding]:
    """Everything the template cannot carry out."""
    problem, plan = layout.problem, layout.plan
    if not layout.target.has("wgmma"):
        yield refuse("PlanNotSupported", f"{layout.target.name} has no wgmma")
        return
    yield from stream_findings(layout)
    yield from _stream_plan_refusals(plan)
    widths = [layout.width(result) for result in problem.results]
    needed = stream_registers(plan.tile_kv, len(problem.products), widths)
    yield from register_findings(plan, layout.threads, needed)
    limit = layout.target.limits.shared_bytes_per_block
    if layout.shared_bytes > limit:
        yield refuse("SharedMemory", f"{layout.shared_bytes} bytes of shared memory, over {limit}")


def _stream_plan_refusals(plan: AttentionPlan) -> Iterator[Finding]:
    if plan.algo != ONLINE:
        yield refuse("PlanField", f"algo={plan.algo} has no effect in a stream")
    for name in ("register_tile", "vector"):
        if getattr(plan, name) != AttentionPlan.__dataclass_fields__[name].default:
            yield refuse("PlanField", f"{name} has no effect in the SM90 template")
    if plan.consumers not in (1, 2, 3) or plan.tile_q != ROWS * plan.consumers:
        yield refuse(
            "Tile", f"{plan.tile_q} rows are not {ROWS} for each of {plan.consumers} consumers"
        )
    if plan.tile_kv % STEP or not STEP <= plan.tile_kv <= MOST_WIDTH:
        yield refuse("Tile", f"tile_kv={plan.tile_kv} is not a multiple of 16 up to 256")
    if plan.stages < 2:
        yield refuse("PlanField", "there must be two stages at least")
