"""Shared-memory and register layout of an SM90 attention, computed from problem, plan and target.

Shared memory holds 64 queries for each consumer, whose place its results take, a ring of blocks of
keys, a ring of blocks of values, and the barriers. `refusals` says what the template cannot do: a
layout without any can be generated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from weft.codegen.gpu.attention.problem import Problem
from weft.codegen.gpu.attention.reading import HullTables
from weft.codegen.gpu.attention.work import Work
from weft.codegen.gpu.body.accept import refuse
from weft.codegen.gpu.ir.swizzle import SWIZZLE_128, TileLayout, fitting
from weft.codegen.gpu.products.operand import Operand
from weft.codegen.gpu.products.problem import Source, Strides
from weft.foundation.dtypes import BF16, F16, F32, I1, DType
from weft.foundation.errors import Finding
from weft.foundation.records import dataclass
from weft.foundation.whole_numbers import round_up
from weft.plan.ir import ONLINE, AttentionPlan
from weft.region.forms.bands import Band
from weft.target.target import Target

WARPGROUP: Final = 128
"""Threads that a matrix instruction of SM90 takes."""
ROWS: Final = 64
"""Queries of a consumer: the rows of a matrix instruction."""
_STEP: Final = 16
"""Elements along which matrix instructions add up, and to which depths are filled up by zeros."""
ALIGNMENT: Final = 1024
"""Bytes after which the permutation of shared memory begins anew."""
_LINE: Final = 16
"""Bytes that the copy engine's addresses and strides are multiples of."""
_BATCH_AXES: Final = 3
"""Of a tensor map, beside rows and columns."""
MOST_WIDTH: Final = 256
"""Elements of a row of queries, keys or values."""
_STAGED: Final = (BF16, F16, F32, I1)
"""Of what lies beside the scores, what shared memory can hold."""
_SPARE_REGISTERS: Final = 32
"""Addresses, counters and row statistics beside scores, weights and mixed values."""


@dataclass(frozen=True)
class Layout(Work):
    """The derived numbers of one kernel."""

    problem: Problem
    plan: AttentionPlan
    target: Target

    # Tiles

    @property
    def depth(self) -> int:
        return round_up(self.problem.depth, _STEP)

    @property
    def width(self) -> int:
        return round_up(self.problem.width, _STEP)

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
        return size == 2 and self.problem.out.column == 1 and regular(self.problem.out, size)

    # Work

    @property
    def rows(self) -> int:
        return self.problem.queries

    @property
    def columns(self) -> int:
        return self.problem.keys

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
    def column_bytes(self) -> int:
        return 2 * (self.problem.depth + self.problem.width)

    # Shared memory, in this order

    @property
    def q_bytes(self) -> int:
        """Of the queries of one consumer, for one tile."""
        return round_up(max(self.q.bytes, self.out.bytes if self.tma_store else 0), ALIGNMENT)

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
            tiles = round_up(tiles + stages * tile.bytes, ALIGNMENT)
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
        return round_up(self.k_offset + self.plan.stages * self.k.bytes, ALIGNMENT)

    @property
    def barriers_offset(self) -> int:
        return round_up(self.v_offset + self.plan.stages * self.v.bytes, ALIGNMENT)

    @property
    def shared_bytes(self) -> int:
        return self.bytes_with(self.q_slots)

    @property
    def threads(self) -> int:
        return WARPGROUP * (1 + self.plan.consumers)


def _lies_beside(source: Source) -> bool:
    strides, dtype = source.strides, source.dtype
    whole = strides.column == 1 and strides.row > 0
    return whole and dtype in _STAGED and regular(strides, dtype.storage_bytes)


def regular(strides: Strides, size: int) -> bool:
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
    yield from problem_findings(layout)
    if problem.pages is not None:
        yield refuse("Pages", "keys lie in pages, which warpgroups do not read; give it parts")
    yield from _sm90_plan_refusals(plan)
    yield from _resources(layout)


def problem_findings(layout: Layout) -> Iterator[Finding]:
    """What no template of attention multiplies, whatever its plan."""
    problem = layout.problem
    for name, operand in (("the queries", problem.q), ("the keys", problem.k), ("V", problem.v)):
        yield from operand_findings(name, operand, problem.q.dtype)
    if max(layout.depth, layout.width) > MOST_WIDTH:
        yield refuse("Width", f"rows of {problem.depth} and {problem.width} elements exceed 256")
    if problem.out_dtype not in (BF16, F16, F32):
        yield refuse("ResultDType", f"results are {problem.out_dtype}")
    for program in (problem.score, problem.mixed):
        if any(source.dtype.is_complex for source in program.sources):
            yield refuse("SourceDType", "complex numbers beside the scores")


def operand_findings(name: str, operand: Operand, dtype: DType) -> Iterator[Finding]:
    """Why the copy engine cannot bring an operand, of which rows lie along k."""
    if operand.dtype is not dtype:
        yield refuse("OperandDType", f"{name} are {operand.dtype}, the queries {dtype}")
    if operand.inner != 1:
        yield refuse("OperandStride", f"elements of a row of {name} do not lie side by side")
    strides = Strides(operand.offset, operand.outer, 1, operand.batch)
    if not regular(strides, operand.dtype.storage_bytes):
        yield refuse("Alignment", f"rows of {name} do not begin at multiples of 16 bytes")


def _sm90_plan_refusals(plan: AttentionPlan) -> Iterator[Finding]:
    if plan.algo != ONLINE:
        yield refuse("PlanField", f"algo={plan.algo} is several kernels on a GPU")
    for name in ("register_tile", "vector"):
        if getattr(plan, name) != AttentionPlan.__dataclass_fields__[name].default:
            yield refuse("PlanField", f"{name} has no effect in the SM90 template")
    if plan.consumers not in (1, 2, 3) or plan.tile_q != ROWS * plan.consumers:
        yield refuse(
            "Tile", f"{plan.tile_q} queries are not {ROWS} for each of {plan.consumers} consumers"
        )
    if plan.tile_kv % _STEP or not _STEP <= plan.tile_kv <= MOST_WIDTH:
        yield refuse("Tile", f"tile_kv={plan.tile_kv} is not a multiple of 16 up to 256")
    if plan.stages < 2:
        yield refuse("PlanField", "there must be two stages at least")


def _resources(layout: Layout) -> Iterator[Finding]:
    plan, limit = layout.plan, layout.target.limits.shared_bytes_per_block
    if layout.shared_bytes > limit:
        yield refuse("SharedMemory", f"{layout.shared_bytes} bytes of shared memory, over {limit}")
    needed = plan.tile_kv // 2 + plan.tile_kv // 4 + layout.width // 2 + _SPARE_REGISTERS
    yield from register_findings(plan, layout.threads, needed)


def register_findings(plan: AttentionPlan, threads: int, needed: int) -> Iterator[Finding]:
    """What is wrong with the registers that a plan gives, of which a consumer needs some."""
    # A unit has 65,536 registers and gives them to threads by eights; instructions can name 255.
    at_launch = min(255, 65_536 // threads // 8 * 8)
    producer, consumer = plan.registers
    given = consumer or at_launch
    if needed > given:
        yield refuse("Registers", f"a consumer needs about {needed} registers and has {given}")
    if (producer, consumer) == (0, 0):
        return
    # Warpgroups hand registers to one another (setmaxnreg, by eights, from 24 on): all together
    # never have more than at launch.
    total = WARPGROUP * (producer + plan.consumers * consumer)
    available = threads * at_launch
    bad = any(count % 8 or not 24 <= count <= 240 for count in (producer, consumer))
    if bad or total > available or consumer < at_launch:
        yield refuse(
            "Registers",
            f"registers {producer} and {consumer} do not split {available} among "
            f"{plan.consumers} consumers and a producer",
            "use multiples of 8 from 24 to 240, or 0, 0 to leave them as launched",
        )
