"""Shared-memory and register layout of an SM80 attention, computed from problem, plan and target.

A block has one tile of queries, of which each warp has one or two bands of 16. Shared memory holds
the queries, and slots for blocks of keys and for blocks of values, as many of each. `sm80_refusals`
says what the template cannot do: a layout without any can be generated.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.attention.layout import ALIGNMENT, MOST_WIDTH, Layout, problem_findings
from weft.codegen.gpu.body.accept import refuse
from weft.codegen.gpu.ir.scalar import LANES
from weft.codegen.gpu.ir.swizzle import TileLayout, fitting
from weft.codegen.gpu.products.problem import Source
from weft.foundation.errors import Finding
from weft.foundation.records import dataclass
from weft.foundation.whole_numbers import round_up
from weft.plan.ir import ONLINE, AttentionPlan
from weft.region.forms.bands import HULL_ROWS

BAND: Final = 16
"""Queries of a matrix instruction."""
_STEP: Final = 16
"""Elements along which a matrix instruction adds up."""
_MOST_BANDS: Final = 2
_MOST_WARPS: Final = 8
"""Of a block, and bands of queries of a warp: more of them have no registers left."""
_SPARE_REGISTERS: Final = 40
"""Addresses, counters, row statistics, and parts of keys or values."""
_ROOM: Final = 24
"""Registers beyond those, which the compiler uses to load ahead where it has them."""
_EACH_SOURCE: Final = 8
"""Of what is read of every element of a few columns."""
_RESERVED: Final = 1024
"""Bytes of shared memory that every block takes besides."""


@dataclass(frozen=True)
class Sm80Layout(Layout):
    """The derived numbers of one kernel."""

    @property
    def warps(self) -> int:
        return self.plan.consumers

    @property
    def bands(self) -> int:
        """Bands of 16 queries that a warp has: keys and values that it reads serve all of them."""
        return self.plan.tile_q // (BAND * self.warps)

    @property
    def q(self) -> TileLayout:
        return TileLayout(self.plan.tile_q, self.depth, 2, fitting(self.depth, 2))

    @property
    def staged(self) -> tuple[Source, ...]:
        return ()

    @property
    def tma_store(self) -> bool:
        return False

    @property
    def threads(self) -> int:
        return LANES * self.warps

    # Work: a block for each tile; those that are started first have the most to do.

    @property
    def grid(self) -> int:
        return self.items

    @cached_property
    def schedule(self) -> tuple[ir.Table, ...]:
        return ()

    # Shared memory, in this order

    @property
    def slots(self) -> int:
        """Blocks of keys that there is room for, and blocks of values."""
        return self.plan.stages // 2

    @property
    def k_offset(self) -> int:
        return round_up(self.q.bytes, ALIGNMENT)

    @property
    def k_bytes(self) -> int:
        """From one slot of keys to the next."""
        return round_up(self.k.bytes, ALIGNMENT)

    @property
    def v_bytes(self) -> int:
        return round_up(self.v.bytes, ALIGNMENT)

    @property
    def v_offset(self) -> int:
        return self.k_offset + self.slots * self.k_bytes

    @property
    def shared_bytes(self) -> int:
        return self.v_offset + self.slots * self.v_bytes

    # Registers

    @property
    def holds_queries(self) -> bool:
        """Whether there is room for queries in registers; otherwise a warp loads them again for
        every block of keys."""
        held = self.bands * self.depth // 4
        return self.needed_registers + held <= self.target.limits.registers_per_thread

    @property
    def needed_registers(self) -> int:
        """Of a thread, about: scores, of which weights take the place, sums, parts of queries."""
        keys, drawn = self.plan.tile_kv, len(self.problem.weight.bits)
        each = keys // 2 + self.width // 2 + 4 + drawn * -(-keys // 64)
        return self.bands * each + _SPARE_REGISTERS

    @property
    def resident(self) -> int:
        """Blocks that a unit has room for, as far as each of their threads has the registers that
        it needs."""
        limits, problem = self.target.limits, self.problem
        programs = (problem.score, problem.weight, *(hull.each for hull in problem.hulls))
        sources = sum(len(program.sources) for program in programs)
        needed = self.needed_registers + (self.bands * self.depth // 4) * self.holds_queries
        needed += _ROOM + _EACH_SOURCE * sources
        by_registers = limits.registers_per_unit // (self.threads * round_up(needed, 8))
        by_memory = limits.shared_bytes_per_unit // (self.shared_bytes + _RESERVED)
        return max(1, min(by_registers, by_memory, limits.blocks_per_unit))


def sm80_refusals(layout: Sm80Layout) -> Iterator[Finding]:
    """Everything the template cannot carry out."""
    problem = layout.problem
    found = [*_sm80_plan_refusals(layout.plan)]
    yield from found
    yield from problem_findings(layout)
    if problem.pages is not None:
        yield refuse("Pages", "keys lie in pages, which the SM80 template does not read")
    if layout.hulls and layout.plan.tile_q % HULL_ROWS:
        yield refuse(
            "Tile", f"tables speak of {HULL_ROWS} queries, tiles have {layout.plan.tile_q}"
        )
    if not found:
        yield from _resources(layout)


def _sm80_plan_refusals(plan: AttentionPlan) -> Iterator[Finding]:
    if plan.algo != ONLINE:
        yield refuse("PlanField", f"algo={plan.algo} is several kernels on a GPU")
    for name in ("register_tile", "vector"):
        if getattr(plan, name) != AttentionPlan.__dataclass_fields__[name].default:
            yield refuse("PlanField", f"{name} has no effect in the SM80 template")
    if plan.registers != (0, 0):
        yield refuse("PlanField", "warps of the SM80 template share no registers: give 0, 0")
    rows = BAND * plan.consumers
    if not 1 <= plan.consumers <= _MOST_WARPS:
        yield refuse("Tile", f"{plan.consumers} warps are not 1 to {_MOST_WARPS}")
    elif plan.tile_q % rows or not 1 <= plan.tile_q // rows <= _MOST_BANDS:
        why = f"{plan.tile_q} queries are not 16 or 32 for each of {plan.consumers} warps"
        yield refuse("Tile", why)
    if plan.tile_kv % _STEP or not _STEP <= plan.tile_kv <= MOST_WIDTH:
        yield refuse("Tile", f"tile_kv={plan.tile_kv} is not a multiple of 16 up to 256")
    if plan.stages < 2 or plan.stages % 2:
        yield refuse("PlanField", f"stages={plan.stages} are not as many of keys as of values")


def _resources(layout: Sm80Layout) -> Iterator[Finding]:
    limits = layout.target.limits
    shared, limit = layout.shared_bytes, limits.shared_bytes_per_block
    if shared > limit:
        yield refuse("SharedMemory", f"{shared} bytes of shared memory, over {limit}")
    given = min(limits.registers_per_thread, limits.registers_per_unit // layout.threads)
    if layout.needed_registers > given:
        why = f"a thread needs about {layout.needed_registers} registers and has {given}"
        yield refuse("Registers", why)
