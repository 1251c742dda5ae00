"""How an SM90 attention is laid out on the chip: a function of problem, plan and target.

Shared memory holds 64 queries for each consumer, whose place its results take, a ring of blocks of
keys, a ring of blocks of values, and the barriers. `refusals` says what the template cannot do: a
layout without any can be generated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heapreplace
from itertools import accumulate
from typing import Final

from weft.codegen.gpu.attention.problem import Problem
from weft.codegen.gpu.body.accept import refuse
from weft.codegen.gpu.ir import Table
from weft.codegen.gpu.ir.scalar import Lit, Scalar, least, most
from weft.codegen.gpu.ir.swizzle import SWIZZLE_128, TileLayout, fitting
from weft.codegen.gpu.products.operand import Operand
from weft.codegen.gpu.products.problem import Source, Strides
from weft.foundation.dtypes import BF16, F16, F32, I1, DType
from weft.foundation.errors import Finding
from weft.plan.ir import ONLINE, AttentionPlan
from weft.target.target import Target

WARPGROUP: Final = 128
ROWS: Final = 64
"""Queries of a consumer: the rows of a matrix instruction."""
_STEP: Final = 16
"""Elements along which matrix instructions add up, and to which depths are filled up by zeros."""
_ALIGNMENT: Final = 1024
_LINE: Final = 16
"""Bytes that the copy engine's addresses and strides are multiples of."""
_BATCH_AXES: Final = 3
"""Of a tensor map, beside rows and columns."""
_MOST_WIDTH: Final = 256
_LONGEST_TABLE: Final = 16_384
"""Tiles whose order is written down."""
_TILE_COST: Final = 1
"""What a tile costs beside its blocks of keys, in blocks: its queries come and its results go."""
_STAGED: Final = (BF16, F16, F32, I1)
"""Of what lies beside the scores, what shared memory can hold."""
_SPARE_REGISTERS: Final = 32
"""Addresses, counters and row statistics beside scores, weights and mixed values."""


@dataclass(frozen=True)
class Steps:
    """The blocks of keys that a tile of queries goes through, from `last` - 1 down to `first`.

    Of those behind the first step the ones from `upper` on lie at the upper edge of the band, those
    below `lower` at its lower edge; every query sees the ones between whole. `edge` is whether the
    first step's block lies at an edge.
    """

    first: Scalar
    last: Scalar
    lower: Scalar
    upper: Scalar
    edge: Scalar

    @property
    def loops(self) -> tuple[tuple[Scalar, Scalar, bool], ...]:
        """The loops behind the first step: where each begins (one too many), where it ends, and
        whether keys are hidden in it."""
        return (
            (self.last - 1, self.upper, True),
            (self.upper, self.lower, False),
            (self.lower, self.first, True),
        )


@dataclass(frozen=True)
class Layout:
    """The derived numbers of one kernel."""

    problem: Problem
    plan: AttentionPlan
    target: Target

    # Tiles

    @property
    def depth(self) -> int:
        return _up(self.problem.depth, _STEP)

    @property
    def width(self) -> int:
        return _up(self.problem.width, _STEP)

    @property
    def q(self) -> TileLayout:
        """The queries of one consumer."""
        return TileLayout(ROWS, self.depth, 2, fitting(self.depth, 2))

    @property
    def k(self) -> TileLayout:
        return TileLayout(self.plan.tile_kv, self.depth, 2, fitting(self.depth, 2))

    @property
    def v(self) -> TileLayout:
        return TileLayout(self.plan.tile_kv, self.width, 2, fitting(self.width, 2))

    @property
    def out(self) -> TileLayout:
        """The results of one consumer, in the place of its queries."""
        return TileLayout(ROWS, self.width, 2, fitting(self.width, 2))

    @property
    def staged(self) -> tuple[Source, ...]:
        """What the program of a score reads for every key of every query, as masks are: the copy
        engine brings blocks of it."""
        sources = self.problem.score.sources
        return tuple(s for s in sources if s.tensor is not None and _lies_beside(s))

    def beside(self, source: Source) -> TileLayout:
        """A block of such a tensor, for the queries of one consumer."""
        size = source.dtype.storage_bytes
        return TileLayout(ROWS, self.plan.tile_kv, size, SWIZZLE_128)

    @property
    def tma_store(self) -> bool:
        """Whether the copy engine can write results; otherwise threads do."""
        size = self.problem.out_dtype.storage_bytes
        return size == 2 and self.problem.out.column == 1 and _regular(self.problem.out, size)

    # Work

    @property
    def tiles(self) -> int:
        """Tiles of queries."""
        return -(-self.problem.queries // self.plan.tile_q)

    @property
    def blocks(self) -> int:
        """Blocks of keys."""
        return -(-self.problem.keys // self.plan.tile_kv)

    @property
    def items(self) -> int:
        return self.tiles * self.problem.matrices

    @property
    def grid(self) -> int:
        return min(self.target.limits.units, self.items)

    @property
    def together(self) -> int:
        """Matrices whose tiles are worked on at a time: half of the cache that all units share has
        room for their keys and values, of which every tile reads all again."""
        problem = self.problem
        each = 2 * problem.keys * (problem.depth + problem.width)
        room = max(1, self.target.limits.cache_bytes[-1] // 2 // each)
        divisors = (n for n in range(min(room, problem.matrices), 0, -1))
        return next(n for n in divisors if problem.matrices % n == 0)

    def steps(self, tile: Scalar) -> Steps:
        """The blocks of keys of a tile of queries: one at least, whether anybody sees it or not."""
        problem, plan, band = self.problem, self.plan, self.problem.band
        low_query = tile * plan.tile_q
        high_query = least(low_query + (plan.tile_q - 1), problem.queries - 1)
        first: Scalar = Lit(0)
        last: Scalar = Lit(self.blocks)
        whole_from: Scalar = Lit(0)
        whole_to: Scalar = Lit(problem.keys // plan.tile_kv)
        if band.low is not None:
            first = least(most(low_query + band.low, 0) // plan.tile_kv, self.blocks - 1)
            whole_from = _blocks(most(high_query + band.low, 0), plan.tile_kv)
        if band.high is not None:
            end = least(most(high_query + (band.high + 1), 1), problem.keys)
            last = most(_blocks(end, plan.tile_kv), first + 1)
            whole_to = least(most(low_query + (band.high + 1), 0) // plan.tile_kv, whole_to)
        edge = (whole_to < last) | (whole_from >= last)
        upper = most(least(whole_to, last - 1), first)
        return Steps(first, last, least(most(whole_from, first), upper), upper, edge)

    def at_most(self, count: Callable[[Steps], Scalar]) -> int:
        """The largest number of something that is counted in the steps of a tile."""
        counts = (count(self.steps(Lit(tile))) for tile in range(self.tiles))
        return max((found.value for found in counts if isinstance(found, Lit)), default=0)

    @property
    def per_group(self) -> int:
        """Tiles of the matrices that are worked on at a time."""
        return self.together * self.tiles

    def tile_of(self, item: Scalar) -> Scalar:
        """The tile of queries of a piece of work: those with the most keys come first."""
        return (self.tiles - 1) - item % self.per_group // self.together

    @property
    def period(self) -> int:
        """Pieces of work after which the order of work begins anew."""
        groups = self.items // self.per_group
        room = max(1, _LONGEST_TABLE // self.per_group)
        return self.per_group * next(n for n in range(room, 0, -1) if groups % n == 0)

    @property
    def schedule(self) -> tuple[Table, ...]:
        """The pieces of work of a period, by blocks, and where those of each block begin.

        Each piece goes to the block that is done first, as if all ran at one speed: of a causal
        attention with the pieces dealt out in turn, the last block ends up to 29 % late. Where all
        pieces are alike there is nothing to gain.
        """
        costs = [self.cost(item) for item in range(self.period)]
        if len(set(costs)) == 1:
            return ()
        taken: list[list[int]] = [[] for _ in range(self.grid)]
        ends = [(0, block) for block in range(self.grid)]
        for item, cost in enumerate(costs):
            end, block = ends[0]
            taken[block].append(item)
            heapreplace(ends, (end + cost, block))
        starts = accumulate((len(items) for items in taken), initial=0)
        order = tuple(item for items in taken for item in items)
        return Table("order", order), Table("starts", tuple(starts))

    def cost(self, item: int) -> int:
        """Of a piece of work, in blocks of keys."""
        steps = self.steps(self.tile_of(Lit(item)))
        count = steps.last - steps.first
        assert isinstance(count, Lit)
        return count.value + _TILE_COST

    # Shared memory, in this order

    @property
    def q_bytes(self) -> int:
        """Of the queries of one consumer, for one tile."""
        return _up(max(self.q.bytes, self.out.bytes if self.tma_store else 0), _ALIGNMENT)

    @property
    def q_slots(self) -> int:
        """Tiles whose queries there is room for: with two the next ones come while results go."""
        limit = self.target.limits.shared_bytes_per_block
        return 2 if self.bytes_with(2) <= limit else 1

    def bytes_with(self, q_slots: int) -> int:
        """Shared memory with room for the queries of so many tiles."""
        consumers, stages = self.plan.consumers, self.plan.stages
        tiles = consumers * q_slots * self.q_bytes
        tiles += sum(consumers * self.beside(source).bytes for source in self.staged)
        for tile in (self.k, self.v):
            tiles = _up(tiles + stages * tile.bytes, _ALIGNMENT)
        return tiles + 8 * (4 * stages + (2 * q_slots + 1 + 2 * len(self.staged)) * consumers)

    @property
    def beside_offset(self) -> int:
        return self.plan.consumers * self.q_slots * self.q_bytes

    @property
    def k_offset(self) -> int:
        each = (self.plan.consumers * self.beside(source).bytes for source in self.staged)
        return self.beside_offset + sum(each)

    @property
    def v_offset(self) -> int:
        return _up(self.k_offset + self.plan.stages * self.k.bytes, _ALIGNMENT)

    @property
    def barriers_offset(self) -> int:
        return _up(self.v_offset + self.plan.stages * self.v.bytes, _ALIGNMENT)

    @property
    def shared_bytes(self) -> int:
        return self.bytes_with(self.q_slots)

    @property
    def threads(self) -> int:
        return WARPGROUP * (1 + self.plan.consumers)

    @property
    def registers_at_launch(self) -> int:
        return min(255, 65_536 // self.threads // 8 * 8)


def _blocks(count: Scalar, size: int) -> Scalar:
    return (count + (size - 1)) // size


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def _lies_beside(source: Source) -> bool:
    strides, dtype = source.strides, source.dtype
    whole = strides.column == 1 and strides.row > 0
    return whole and dtype in _STAGED and _regular(strides, dtype.storage_bytes)


def _regular(strides: Strides, size: int) -> bool:
    """Whether a tensor map can describe it: the columns lie side by side."""
    numbers = (strides.row, strides.offset, *strides.batch)
    axes = sum(stride != 0 for stride in strides.batch)
    return axes <= _BATCH_AXES and all(n >= 0 and n * size % _LINE == 0 for n in numbers)


def refusals(layout: Layout) -> Iterator[Finding]:
    """Everything the template cannot carry out."""
    problem, plan = layout.problem, layout.plan
    if not layout.target.has("wgmma"):
        yield refuse("PlanNotSupported", f"{layout.target.name} has no wgmma")
        return
    for name, operand in (("the queries", problem.q), ("the keys", problem.k), ("V", problem.v)):
        yield from _operand(name, operand, problem.q.dtype)
    if max(layout.depth, layout.width) > _MOST_WIDTH:
        yield refuse("Width", f"rows of {problem.depth} and {problem.width} elements exceed 256")
    if problem.out_dtype not in (BF16, F16, F32):
        yield refuse("ResultDType", f"results are {problem.out_dtype}")
    for program in (problem.score, problem.mixed):
        if any(source.dtype.is_complex for source in program.sources):
            yield refuse("SourceDType", "complex numbers beside the scores")
    yield from _plan(plan)
    yield from _resources(layout)


def _operand(name: str, operand: Operand, dtype: DType) -> Iterator[Finding]:
    if operand.dtype is not dtype:
        yield refuse("OperandDType", f"{name} are {operand.dtype}, the queries {dtype}")
    if operand.inner != 1:
        yield refuse("OperandStride", f"elements of a row of {name} do not lie side by side")
    strides = Strides(operand.offset, operand.outer, 1, operand.batch)
    if not _regular(strides, operand.dtype.storage_bytes):
        yield refuse("Alignment", f"rows of {name} do not begin at multiples of 16 bytes")


def _plan(plan: AttentionPlan) -> Iterator[Finding]:
    if plan.algo != ONLINE:
        yield refuse("PlanField", f"algo={plan.algo} is several kernels on a GPU")
    for name in ("register_tile", "vector"):
        if getattr(plan, name) != AttentionPlan.__dataclass_fields__[name].default:
            yield refuse("PlanField", f"{name} has no effect in the SM90 template")
    if plan.consumers not in (1, 2, 3) or plan.tile_q != ROWS * plan.consumers:
        yield refuse(
            "Tile", f"{plan.tile_q} queries are not {ROWS} for each of {plan.consumers} consumers"
        )
    if plan.tile_kv % _STEP or not _STEP <= plan.tile_kv <= _MOST_WIDTH:
        yield refuse("Tile", f"tile_kv={plan.tile_kv} is no multiple of 16 up to 256")
    if plan.stages < 2:
        yield refuse("PlanField", "there must be two stages at least")


def _resources(layout: Layout) -> Iterator[Finding]:
    plan, limit = layout.plan, layout.target.limits.shared_bytes_per_block
    if layout.shared_bytes > limit:
        yield refuse("SharedMemory", f"{layout.shared_bytes} bytes of shared memory, over {limit}")
    needed = plan.tile_kv // 2 + plan.tile_kv // 4 + layout.width // 2 + _SPARE_REGISTERS
    producer, consumer = plan.registers
    given = consumer or layout.registers_at_launch
    if needed > given:
        yield refuse("Registers", f"a consumer needs about {needed} registers and has {given}")
    if (producer, consumer) == (0, 0):
        return
    total = WARPGROUP * (producer + plan.consumers * consumer)
    available = layout.threads * layout.registers_at_launch
    bad = any(count % 8 or not 24 <= count <= 240 for count in (producer, consumer))
    if bad or total > available or consumer < layout.registers_at_launch:
        yield refuse(
            "Registers",
            f"registers {producer} and {consumer} do not split {available} among "
            f"{plan.consumers} consumers and a producer",
            "use multiples of 8 from 24 to 240, or 0, 0 to leave them as launched",
        )
