"""How an SM80 contraction is laid out on the chip: a function of problem, plan and target.

A block computes one tile. Its shared memory holds `stages` slots, a tile of A and a tile of B each,
in the order they have in memory, with 16-byte pieces permuted so that `ldmatrix` meets no bank
twice. `refusals` says what the template cannot do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from weft.codegen.gpu.matmul import Operand, Problem, Refusal, Source
from weft.codegen.gpu.swizzle import Major, TileLayout, fitting
from weft.codegen.gpu.tiles import TABLE_LIMIT, TileOrder, known
from weft.foundation.dtypes import BF16, F16, F32
from weft.foundation.errors import Finding
from weft.plan.ir import MmaPlan, Vectorize
from weft.target.target import Target

WARP: Final = 32
PIECE: Final = 8
"""Elements of 16 bytes."""
_ALIGNMENT: Final = 1024
_SPARE_REGISTERS: Final = 40
_BIND: Final = {"m.o": "block.y", "n.o": "block.x", "m.i.o": "warp.y", "n.i.o": "warp.x"}


@dataclass(frozen=True)
class Sm80Layout:
    """The derived numbers of one kernel."""

    problem: Problem
    plan: MmaPlan

    @property
    def tile(self) -> tuple[int, int, int]:
        return self.plan.tile

    @property
    def warp_tile(self) -> tuple[int, int]:
        return self.plan.warp_tile

    @property
    def warps(self) -> tuple[int, int]:
        """Warps along rows and columns."""
        return self.tile[0] // self.warp_tile[0], self.tile[1] // self.warp_tile[1]

    @property
    def threads(self) -> int:
        return WARP * self.warps[0] * self.warps[1]

    @property
    def blocks(self) -> tuple[int, int]:
        """Matrix instructions of a warp along rows (16 each) and columns (8 each)."""
        return self.warp_tile[0] // 16, self.warp_tile[1] // 8

    @property
    def a(self) -> TileLayout:
        return operand_layout(self.problem.a, self.tile[0], self.tile[2])

    @property
    def b(self) -> TileLayout:
        return operand_layout(self.problem.b, self.tile[1], self.tile[2])

    @property
    def b_offset(self) -> int:
        return self.plan.stages * _aligned(self.a.bytes)

    @property
    def columns(self) -> tuple[Source, ...]:
        """Epilogue values that depend on the column alone: staged in shared memory as f32."""
        return tuple(s for s in self.problem.sources if s.by_column)

    @property
    def columns_offset(self) -> int:
        return self.b_offset + self.plan.stages * _aligned(self.b.bytes)

    @property
    def columns_bytes(self) -> int:
        return len(self.columns) * self.tile[1] * 4

    @property
    def shared_bytes(self) -> int:
        return self.columns_offset + self.columns_bytes

    @property
    def k_steps(self) -> int:
        return -(-self.problem.k // self.tile[2])

    @property
    def order(self) -> TileOrder:
        rows = -(-self.problem.m // self.tile[0])
        columns = -(-self.problem.n // self.tile[1])
        return TileOrder(rows, columns, self.problem.batches, self.plan.order)

    @property
    def tails(self) -> frozenset[str]:
        """Axes of the contraction whose last tile is not whole."""
        sizes = zip("mnk", (self.problem.m, self.problem.n, self.problem.k), self.tile, strict=True)
        return frozenset(name for name, size, step in sizes if size % step)


def operand_layout(operand: Operand, outer: int, k: int) -> TileLayout:
    """K-major operands lie with rows along m or n, MN-major ones with rows along k."""
    rows, columns = (outer, k) if operand.major is Major.K else (k, outer)
    size = operand.dtype.storage_bytes
    return TileLayout(rows, columns, size, fitting(columns, size))


def in_pieces(operand: Operand, outer: int, k: int) -> bool:
    """Whether an operand of these extents can be copied 16 bytes at a time."""
    if 1 not in (operand.inner, operand.outer):
        return False
    extent = k if operand.major is Major.K else outer
    numbers = (operand.pitch, operand.offset, extent, *operand.batch)
    return all(number >= 0 and number % PIECE == 0 for number in numbers)


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT


def slot_bytes(tile: TileLayout) -> int:
    """From one slot of a tile to the next."""
    return _aligned(tile.bytes)


def refusals(layout: Sm80Layout, target: Target) -> Iterator[Finding]:
    """Everything the template cannot carry out."""
    yield from _problem(layout.problem)
    yield from _fields(layout)
    broken = list(_tiles(layout.plan))
    yield from broken
    if not broken:
        yield from _resources(layout, target)


def _refuse(code: str, why: str, hint: str = "") -> Finding:
    return Refusal(code, why, hint).finding


def _problem(problem: Problem) -> Iterator[Finding]:
    if problem.a.dtype not in (BF16, F16) or problem.a.dtype is not problem.b.dtype:
        yield _refuse(
            "OperandDType", f"mma takes bf16 or f16, not {problem.a.dtype} and {problem.b.dtype}"
        )
    if problem.out_dtype not in (BF16, F16, F32):
        yield _refuse("ResultDType", f"a result of {problem.out_dtype} cannot be stored")
    if min(problem.m, problem.n, problem.k, *problem.batch, 1) < 1:
        yield _refuse("Empty", "the contraction has an empty axis")


def _fields(layout: Sm80Layout) -> Iterator[Finding]:
    """Fields that have no effect here are refused, so that nobody believes they have."""
    plan, default = layout.plan, MmaPlan(layout.plan.header, layout.plan.tile)
    for name in (
        "cluster", "split_k", "swap_ab", "batch", "deferred_epilogue", "consumers", "in_flight",
        "store_buffers", "registers",
    ):  # fmt: skip
        value = getattr(plan, name)
        if value != getattr(default, name):
            yield _refuse("PlanField", f"{name}={value} has no effect in the SM80 template")
    if plan.bind not in ({}, _BIND):
        yield _refuse("PlanField", f"bind={plan.bind} is not how the SM80 template binds")
    if plan.vectorize not in (None, Vectorize("n.i.i", PIECE)):
        yield _refuse("PlanField", f"vectorize={plan.vectorize} is not 16 bytes along n.i.i")
    if plan.arch != "sm80" or plan.roles != "single":
        yield _refuse("PlanField", f"arch={plan.arch} with roles={plan.roles} is not this template")
    yield from _schedule(layout)


def _schedule(layout: Sm80Layout) -> Iterator[Finding]:
    plan = layout.plan
    if not known(plan.order):
        yield _refuse("PlanField", f"there is no tile order {plan.order}")
    elif plan.order == "hilbert" and layout.order.per_matrix > TABLE_LIMIT:
        yield _refuse("PlanField", f"a Hilbert order goes up to {TABLE_LIMIT} tiles")
    tails = {f"{name}.i.i" for name in layout.tails}
    if set(plan.predicate_tail) != tails:
        named = ", ".join(sorted(tails)) or "none"
        yield _refuse("PlanField", f"predicate_tail={plan.predicate_tail}; tails: {named}")
    a, b = layout.problem.a, layout.problem.b
    stored = (
        "row" if a.major is Major.K else "col",
        "col" if b.major is Major.K else "row",
    )
    if plan.operand_layouts != stored:
        yield _refuse("Layouts", f"operand_layouts={plan.operand_layouts}, stored as {stored}")


def _tiles(plan: MmaPlan) -> Iterator[Finding]:
    (bm, bn, bk), (wm, wn) = plan.tile, plan.warp_tile
    if min(bm, bn, bk, wm, wn) < 1 or bk % 16 or bm % PIECE or bn % PIECE:
        yield _refuse("Tile", f"a tile of {bm}x{bn}x{bk} is not made of 16-byte pieces")
    elif wm % 16 or wn % 16 or bm % wm or bn % wn:
        yield _refuse(
            "Tile",
            f"a warp tile of {wm}x{wn} in {bm}x{bn} is not made of 16x16 blocks",
        )
    if plan.stages < 2:
        yield _refuse("PlanField", "there must be two stages at least")


def _resources(layout: Sm80Layout, target: Target) -> Iterator[Finding]:
    limit = target.limits.shared_bytes_per_block
    if layout.shared_bytes > limit:
        yield _refuse(
            "SharedMemory",
            f"the plan needs {layout.shared_bytes} bytes of shared memory, over {limit}",
            "use fewer stages or a smaller tile",
        )
    if layout.threads > target.limits.threads_per_block:
        yield _refuse("Threads", f"the plan needs {layout.threads} threads")
    rows, columns = layout.blocks
    needed = 4 * rows * columns + 4 * rows + 2 * columns + _SPARE_REGISTERS
    given = min(255, target.limits.registers_per_unit // layout.threads // 8 * 8)
    if needed > given:
        yield _refuse("Registers", f"a thread needs about {needed} registers and has {given}")
