"""Shared-memory layout of an SM80 matrix product, computed from problem, plan and target.

A block computes one tile. Its shared memory holds `stages` slots, a tile of A and a tile of B each,
in the order they have in memory (along k, where the instruction wants that), with 16-byte pieces
permuted so that `ldmatrix` meets no bank twice; rows of 32- and 64-bit elements are padded instead.
`refusals` says what the template cannot do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from weft.codegen.gpu.body.accept import refuse
from weft.codegen.gpu.ir.formats import fragment_registers
from weft.codegen.gpu.ir.scalar import LANES
from weft.codegen.gpu.ir.swizzle import PIECE, Major, PaddedTile, TileLayout, fitting
from weft.codegen.gpu.products.operand import Operand
from weft.codegen.gpu.products.problem import Problem, Source
from weft.codegen.gpu.products.refusals import (
    memory_refusals,
    order_refusals,
    problem_refusals,
    stored_refusals,
)
from weft.codegen.gpu.products.sm80_windows import window_refusals
from weft.codegen.gpu.products.split import Split, split_refusals
from weft.codegen.gpu.products.tiles import TileOrder
from weft.foundation.dtypes import BF16, F16, F32, F64, SI32, UI32
from weft.foundation.errors import Finding
from weft.foundation.records import dataclass
from weft.plan.completion import BOUND
from weft.plan.ir import MmaPlan, Vectorize
from weft.plan.sum_parts import sum_parts
from weft.plan.text import told
from weft.target import roofline
from weft.target.matrix_atoms import INTEGERS, TINY, Atom, atom_for
from weft.target.target import Target

RESULTS: Final = (BF16, F16, F32, F64, SI32, UI32, *INTEGERS, *TINY)
_ACROSS: Final = 32
"""Bytes that a warp reads at once of a row along m or n."""
_ALIGNMENT: Final = 1024
_SPARE_REGISTERS: Final = 40
"""Addresses, counters, and what is on its way from shared memory."""


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
        return LANES * self.warps[0] * self.warps[1]

    @property
    def atom(self) -> Atom | None:
        """The matrix instruction; None where there is none for these dtypes."""
        problem = self.problem
        return atom_for("sm80", problem.a.dtype, problem.b.dtype, problem.total)

    @property
    def piece(self) -> int:
        """Elements of 16 bytes."""
        return PIECE // self.problem.a.dtype.storage_bytes

    @property
    def loads_ahead(self) -> bool:
        """Whether a warp holds the fragments of two depths: those of 64-bit operands are small."""
        return self.atom is not None and self.atom.word == F64.storage_bytes

    @property
    def grain(self) -> int:
        """What the depth of a tile is a multiple of: 16 bytes and an instruction, or both of two
        depths whose fragments take turns."""
        assert self.atom is not None
        return max(self.atom.k * (2 if self.loads_ahead else 1), self.piece)

    def major(self, operand: Operand) -> Major:
        """Which axis of an operand's tile is contiguous."""
        return Major.K if self.atom is not None and self.atom.along_k else operand.major

    @property
    def blocks(self) -> tuple[int, int]:
        """Matrix instructions of a warp along rows (16 each) and columns (8 each)."""
        return self.warp_tile[0] // 16, self.warp_tile[1] // 8

    @property
    def a(self) -> TileLayout | PaddedTile:
        return self.operand_layout(self.problem.a, self.tile[0])

    @property
    def b(self) -> TileLayout | PaddedTile:
        return self.operand_layout(self.problem.b, self.tile[1])

    def operand_layout(self, operand: Operand, outer: int) -> TileLayout | PaddedTile:
        """K-major tiles lie with rows along m or n, MN-major ones with rows along k."""
        k_major = self.major(operand) is Major.K
        rows, columns = (outer, self.tile[2]) if k_major else (self.tile[2], outer)
        size = operand.dtype.storage_bytes
        # `ldmatrix` moves 16-bit elements: wider ones are loaded one by one, eight rows by four of
        # k. Along k, four elements of padding put those eight rows in different banks.
        if size > 2:
            return PaddedTile(rows, columns, size, 4 * size if k_major else _ACROSS)
        # Rows of `ldmatrix` are those that a swizzle of the row's width keeps apart
        # (`ir/swizzle.py`).
        return TileLayout(rows, columns, size, fitting(columns, size))

    def in_pieces(self, operand: Operand, outer: int) -> bool:
        """Whether an operand of this extent can be copied 16 bytes at a time."""
        if operand.walk is not None:
            return True
        if 1 not in (operand.inner, operand.outer) or operand.major is not self.major(operand):
            return False
        extent = self.problem.k if operand.major is Major.K else outer
        numbers = (operand.pitch, operand.offset, extent, *operand.batch)
        return all(number >= 0 and number % self.piece == 0 for number in numbers)

    @property
    def b_offset(self) -> int:
        return self.plan.stages * _align(self.a.bytes)

    @property
    def columns(self) -> tuple[Source, ...]:
        """Epilogue values that depend on the column alone: staged in shared memory as f32."""
        return tuple(s for s in self.problem.sources if s.by_column)

    @property
    def columns_offset(self) -> int:
        return self.b_offset + self.plan.stages * _align(self.b.bytes)

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
    def split(self) -> Split:
        """The parts of every tile's sums."""
        return Split(sum_parts(self.plan), self.k_steps, self.order.count)

    @property
    def tails(self) -> frozenset[str]:
        """Axes of the contraction whose last tile is not whole."""
        sizes = zip("mnk", (self.problem.m, self.problem.n, self.problem.k), self.tile, strict=True)
        return frozenset(name for name, size, step in sizes if size % step)


def _align(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT


def slot_bytes(tile: TileLayout | PaddedTile) -> int:
    """From one slot of a tile to the next."""
    return _align(tile.bytes)


def refusals(layout: Sm80Layout, target: Target) -> Iterator[Finding]:
    """Everything the template cannot carry out."""
    yield from problem_refusals(layout.problem, layout.plan, layout.atom, RESULTS, "mma")
    if layout.atom is None:
        return
    yield from window_refusals(layout.problem, layout.piece)
    yield from _idle_field_refusals(layout)
    broken = list(_tile_refusals(layout))
    yield from broken
    if not broken:
        yield from _resources(layout, target)


def _idle_field_refusals(layout: Sm80Layout) -> Iterator[Finding]:
    """Fields that have no effect here are refused, so that nobody believes they have."""
    plan, default = layout.plan, MmaPlan(layout.plan.header, layout.plan.tile)
    for name in (
        "cluster", "swap_ab", "batch", "deferred_epilogue", "consumers", "in_flight",
        "store_buffers", "registers",
    ):  # fmt: skip
        if getattr(plan, name) != getattr(default, name):
            yield refuse("PlanField", f"{told(plan, name)} has no effect in the SM80 template")
    if plan.bind not in ({}, BOUND):
        yield refuse("PlanField", f"{told(plan, 'bind')} is not how the SM80 template binds")
    if plan.vectorize not in (None, Vectorize("n.i.i", layout.piece)):
        yield refuse("PlanField", f"{told(plan, 'vectorize')} is not 16 bytes along n.i.i")
    if plan.arch != "sm80" or plan.roles != "single":
        yield refuse("PlanField", f"arch={plan.arch} with roles={plan.roles} is not this template")
    yield from _schedule(layout)


def _schedule(layout: Sm80Layout) -> Iterator[Finding]:
    plan = layout.plan
    yield from order_refusals(layout.order)
    yield from split_refusals(layout.split)
    tails = {f"{name}.i.i" for name in layout.tails}
    if sorted(plan.predicate_tail) != sorted(tails):
        named = ", ".join(sorted(tails)) or "none"
        yield refuse("PlanField", f"{told(plan, 'predicate_tail')}, but the tails are {named}")
    yield from stored_refusals(plan, layout.problem.a, layout.problem.b)


def _tile_refusals(layout: Sm80Layout) -> Iterator[Finding]:
    plan, piece = layout.plan, layout.piece
    (bm, bn, bk), (wm, wn) = plan.tile, plan.warp_tile
    if min(bm, bn, bk, wm, wn) < 1 or bk % layout.grain or bm % piece or bn % piece:
        pairs = " and pairs of depths" if layout.loads_ahead else ""
        yield refuse("Tile", f"a tile of {bm}x{bn}x{bk} is not made of 16-byte pieces{pairs}")
    elif wm % 16 or wn % 16 or bm % wm or bn % wn:
        yield refuse(
            "Tile",
            f"a warp tile of {wm}x{wn} in {bm}x{bn} is not made of 16x16 blocks",
        )
    if plan.stages < 2:
        yield refuse("PlanField", "there must be two stages at least")


def _resources(layout: Sm80Layout, target: Target) -> Iterator[Finding]:
    yield from memory_refusals(layout.shared_bytes, target)
    if layout.threads > target.limits.threads_per_block:
        yield refuse("Threads", f"the plan needs {layout.threads} threads")
    needed = _registers(layout)
    given = roofline.registers_given(target.limits, layout.threads)
    if needed > given:
        yield refuse("Registers", f"a thread needs about {needed} registers and has {given}")


def _registers(layout: Sm80Layout) -> int:
    """About what a thread needs: sums, fragments, and some more."""
    atom = layout.atom
    assert atom is not None
    rows, columns = layout.blocks
    first, second = fragment_registers(atom.a)
    words = 2 if atom.acc is F64 else 1
    sums = 4 * rows * columns * (2 if atom.in_parts else 1)
    halves = 2 if layout.loads_ahead else 1
    return words * (sums + halves * (first * rows + second * columns)) + _SPARE_REGISTERS
