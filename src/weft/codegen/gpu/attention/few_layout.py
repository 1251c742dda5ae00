"""Shared-memory and register layout of the SM90 attention of few queries (decoding), computed from
problem, plan and target.

Rows are queries, and those of all heads that share their keys: `packed` makes one axis of them. A
block has a part of the keys of one matrix, and a warp of it 16 rows and some of the keys of every
tile. Shared memory holds the rows, a ring of tiles of keys and values, whose place the sums of each
warp take in the end, and what they are summed with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from weft.codegen.gpu.attention.layout import ALIGNMENT, MOST_WIDTH, Layout, problem_findings
from weft.codegen.gpu.attention.problem import Problem
from weft.codegen.gpu.body.accept import refuse
from weft.codegen.gpu.ir.scalar import LANES, Lit
from weft.codegen.gpu.ir.swizzle import TileLayout, fitting
from weft.codegen.gpu.products.operand import Operand
from weft.codegen.gpu.products.problem import Source, Strides
from weft.foundation.errors import Finding
from weft.foundation.records import dataclass
from weft.foundation.whole_numbers import round_up
from weft.plan.ir import ONLINE, AttentionPlan
from weft.region.forms.bands import Band
from weft.region.forms.few_queries import fits_pages

ROWS: Final = 16
"""Of a matrix instruction."""
VECTOR: Final = 4
"""Neighbouring elements of a row that a thread joins and stores."""
_MOST_ROWS: Final = 64
"""Queries of a block, of all heads that share their keys."""
_PADDING: Final = 8
"""Numbers behind each row of sums, so that rows begin in other banks."""
_WARPS: Final = 8
_BATCH_BESIDE_PANELS: Final = 2
"""Axes of a tensor map beside those of panels, of rows, and along a row."""
_STEP: Final = 16
"""Keys that a matrix instruction adds up along."""


@dataclass(frozen=True)
class FewLayout(Layout):
    """The derived numbers of one kernel. Its problem is packed."""

    @property
    def q(self) -> TileLayout:
        return TileLayout(self.plan.tile_q, self.depth, 2, fitting(self.depth, 2))

    @property
    def staged(self) -> tuple[Source, ...]:
        return ()

    # Work

    @property
    def row_groups(self) -> int:
        return self.plan.tile_q // ROWS

    @property
    def key_warps(self) -> int:
        """Warps that share the keys of a tile. Sums of long rows leave registers for four."""
        return min(4, (_WARPS if self.holds_queries else 4) // self.row_groups)

    @property
    def warps(self) -> int:
        return self.row_groups * self.key_warps

    @property
    def joiners(self) -> int:
        """Threads of all warps that multiply."""
        return LANES * self.warps

    @property
    def threads(self) -> int:
        return self.joiners + LANES

    @property
    def holds_queries(self) -> bool:
        """Whether a warp has room for its queries in registers, beside sums of long rows."""
        return self.depth + self.width <= MOST_WIDTH

    @property
    def warp_keys(self) -> int:
        """Keys of a tile that a warp multiplies with."""
        return self.plan.tile_kv // self.key_warps

    @property
    def first_tile(self) -> int:
        found = self.steps(Lit(0)).first
        assert isinstance(found, Lit)
        return found.value

    @property
    def tile_count(self) -> int:
        return self.counts[0]

    @property
    def grid(self) -> int:
        return self.matrices * self.plan.parts

    @property
    def vectors(self) -> int:
        """Of all rows of a matrix."""
        return self.problem.queries * self.width // VECTOR

    @property
    def turns(self) -> int:
        """Vectors that a thread joins."""
        return -(-self.vectors // self.joiners)

    @property
    def box_keys(self) -> int:
        """Keys that the copy engine brings at a time: a tile, or a page of it."""
        pages, tile = self.problem.pages, self.plan.tile_kv
        return tile if pages is None else min(tile, pages.size)

    def in_rows(self, name: str) -> bool:
        """Whether keys (k), or values (v), come in whole rows, the panels of each side by side:
        memory is read in the order in which it lies."""
        problem = self.problem
        operand, tile, size = (
            (problem.k, self.k, problem.depth)
            if name == "k"
            else (problem.v, self.v, problem.width)
        )
        axes = sum(stride != 0 for stride in operand.batch) + (problem.pages is not None)
        whole = size == tile.panels * tile.panel_columns
        return tile.panels > 1 and whole and axes <= _BATCH_BESIDE_PANELS

    # Shared memory, in this order

    @property
    def slot_bytes(self) -> int:
        return round_up(self.k.bytes, ALIGNMENT) + round_up(self.v.bytes, ALIGNMENT)

    @property
    def ring_offset(self) -> int:
        return round_up(self.q.bytes, ALIGNMENT)

    @property
    def pitch(self) -> int:
        """Bytes from row to row of the sums of a warp."""
        # A half of a warp stores two words of each of four rows, eight words wide. Rows are 8 or 24
        # words apart in the banks, since the width is a multiple of 16: four rows take all 32.
        return (self.width + _PADDING) * 4

    @property
    def sums_bytes(self) -> int:
        """Of the sums of all warps, in the place of the ring."""
        return self.key_warps * self.problem.queries * self.pitch

    @property
    def numbers_offset(self) -> int:
        return self.ring_offset + self.plan.stages * self.slot_bytes

    @property
    def numbers_bytes(self) -> int:
        """Of the greatest score and the sum of each row, as each warp has them."""
        return round_up(self.key_warps * self.problem.queries * 8, 16)

    @property
    def vectors_offset(self) -> int:
        return self.numbers_offset + self.numbers_bytes

    @property
    def barriers_offset(self) -> int:
        return self.vectors_offset + self.joiners * VECTOR * 4

    @property
    def shared_bytes(self) -> int:
        return self.barriers_offset + 8 * (1 + 3 * self.plan.stages)

    @property
    def resident(self) -> int:
        """Blocks that a unit has room for, up to two."""
        limits = self.target.limits
        room = limits.shared_bytes_per_unit // (self.shared_bytes + _RESERVED)
        return 2 if room > 1 and 2 * self.threads <= _TWO_BLOCKS else 1


_RESERVED: Final = 1024
"""Bytes of shared memory that every block takes besides."""
_TWO_BLOCKS: Final = 384
"""Threads of which each has the registers it needs."""


def few_refusals(layout: FewLayout) -> Iterator[Finding]:
    """Everything the template cannot carry out."""
    problem, plan = layout.problem, layout.plan
    yield from problem_findings(layout)
    found = [*_few_plan_refusals(plan, problem)]
    yield from found
    if found:
        return
    if plan.tile_kv % (_STEP * layout.key_warps) or plan.tile_kv > 256:
        step = _STEP * layout.key_warps
        yield refuse("Tile", f"tile_kv={plan.tile_kv} is not a multiple of {step} up to 256")
    elif problem.pages and not fits_pages(
        problem.pages.size, round_up(problem.keys, problem.pages.size), plan.tile_kv
    ):
        yield refuse("Pages", f"tiles of {plan.tile_kv} keys and pages of {problem.pages.size}")
    elif plan.parts > layout.tile_count:
        yield refuse("PlanField", f"parts={plan.parts}, but there are {layout.tile_count} tiles")
    limit = layout.target.limits.shared_bytes_per_block
    if layout.shared_bytes > limit:
        yield refuse("SharedMemory", f"{layout.shared_bytes} bytes of shared memory, over {limit}")
    if problem.pages and not layout.target.has("wgmma"):
        yield refuse("Pages", f"keys lie in pages; {layout.target.name} has no copy engine")
    if layout.sums_bytes > plan.stages * layout.slot_bytes:
        yield refuse("SharedMemory", "the sums of all warps do not fit the ring")


def _few_plan_refusals(plan: AttentionPlan, problem: Problem) -> Iterator[Finding]:
    if plan.algo != ONLINE:
        yield refuse("PlanField", f"algo={plan.algo} is several kernels on a GPU")
    for name in ("register_tile", "vector"):
        if getattr(plan, name) != AttentionPlan.__dataclass_fields__[name].default:
            yield refuse("PlanField", f"{name} has no effect on a GPU")
    if plan.consumers != 1 or plan.registers != (0, 0):
        yield refuse("PlanField", "a plan with parts has one consumer, and registers 0, 0")
    rows = problem.queries
    if plan.tile_q % ROWS or plan.tile_q > _MOST_ROWS or plan.tile_q < rows:
        why = f"tile_q={plan.tile_q} is not a multiple of 16 up to 64 that holds {rows} rows"
        yield refuse("Tile", why)
    if plan.stages < 2:
        yield refuse("PlanField", "there must be two stages at least")


# -- rows ------------------------------------------------------------------------------------------


def packed(problem: Problem, most: int) -> Problem:
    """The problem with the heads that share keys and values as rows, as far as these are `most`.

    A single query has no band: keys behind the last one that it sees are left out.
    """
    if problem.queries == 1 and problem.band.low is None and problem.band.high is not None:
        if problem.band.high < 0:
            return problem
        keys = min(problem.keys, problem.band.high + 1)
        problem = replace(problem, keys=keys, band=Band())
    if problem.band != Band():
        return problem
    for axis in reversed(range(len(problem.batch))):
        fits = problem.queries * problem.batch[axis] <= most
        strides = [problem.k.batch, problem.v.batch]
        strides += [problem.pages.strides.batch] if problem.pages else []
        strides += [end.strides.batch for end in problem.ends]
        if fits and not any(batch[axis] for batch in strides):
            problem = _with_rows(problem, axis) or problem
    return problem


def _with_rows(problem: Problem, axis: int) -> Problem | None:
    """The problem with a batch axis as the outer one of its rows; None where some tensor lies
    otherwise."""
    rows = problem.queries
    programs = (problem.score, problem.mixed)
    strides = [problem.out, *(row.strides for row in problem.rows)]
    read_by = [*(made.sources for made in programs), *(row.sources for row in problem.rows)]
    strides += [source.strides for sources in read_by for source in sources]
    pairs = [(problem.q.batch[axis], problem.q.outer), *((s.batch[axis], s.row) for s in strides)]
    if rows > 1 and any(outer != rows * inner for outer, inner in pairs):
        return None

    def without(numbers: Sequence[int]) -> tuple[int, ...]:
        return (*numbers[:axis], *numbers[axis + 1 :])

    def joined(found: Strides) -> Strides:
        row = found.batch[axis] if rows == 1 else found.row
        return replace(found, row=row, batch=without(found.batch))

    def operand(found: Operand, outer: int) -> Operand:
        return replace(found, outer=outer, batch=without(found.batch))

    def read(sources: Sequence[Source]) -> tuple[Source, ...]:
        return tuple(replace(source, strides=joined(source.strides)) for source in sources)

    score, mixed = (replace(program, sources=read(program.sources)) for program in programs)
    q, pages = problem.q, problem.pages
    return replace(
        problem,
        batch=without(problem.batch),
        queries=rows * problem.batch[axis],
        q=operand(q, q.batch[axis] if rows == 1 else q.outer),
        k=operand(problem.k, problem.k.outer),
        v=operand(problem.v, problem.v.outer),
        score=score,
        out=joined(problem.out),
        mixed=mixed,
        rows=tuple(
            replace(row, strides=joined(row.strides), sources=read(row.sources))
            for row in problem.rows
        ),
        pages=pages and replace(pages, strides=joined(pages.strides)),
        ends=tuple(replace(end, strides=joined(end.strides)) for end in problem.ends),
    )
