"""Grouped outer products on SM90: the rows of one operand, transposed, times those of another; the
weight gradient of `grouped.py`, a matrix for each group.

The rows are contracted, so that a tile has as many k steps as its group has rows, by 64; a kernel
before this one has written where the rows of each group lie (`GroupSpans`). Of the last step the
rows of the next group are cleared in shared memory by the consumers: all of them, in both operands,
since zero times infinity would count. A group without rows has one step, of nothing but such rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.ir.element_ops import ElementOp
from weft.codegen.gpu.ir.scalar import Lit, Name, Scalar, most
from weft.codegen.gpu.ir.values import Compute, PlaceOf
from weft.codegen.gpu.products.group_product import GroupProduct
from weft.codegen.gpu.products.operand import Operand
from weft.codegen.gpu.products.problem import Problem, Stored, Strides
from weft.codegen.gpu.products.sm90 import Sm90Builder
from weft.codegen.gpu.products.sm90_layout import ROW, WARPGROUP, Sm90Layout
from weft.codegen.gpu.products.split import Split
from weft.codegen.gpu.products.tile_place import Place
from weft.foundation.dtypes import F32, SI32
from weft.foundation.grouped_rows import OuterTiles
from weft.foundation.records import dataclass
from weft.plan.ir import Header, MmaPlan
from weft.plan.sum_parts import sum_parts
from weft.region.ir import Tensor
from weft.target.target import Target

_DEPTH: Final = 64
_CONSUMERS: Final = 2
_STEPS: Final = Name("steps")
_ROWS: Final = Name("span_rows")
_MEETING: Final = 3
"""The barrier at which all consumers meet; each has one of its own before."""
_WORD: Final = 4
_WORDS: Final = ROW // _WORD


@dataclass(frozen=True)
class SpanSplit(Split):
    """Whole tiles, with as many steps as the group has rows; the builder finds out how many."""

    @property
    def even(self) -> bool:
        return False

    @property
    def fewest(self) -> int:
        return 1

    def locate(self, item: Scalar | None = None) -> tuple[ir.Stmt, ...]:
        return ()


@dataclass(frozen=True)
class OuterLayout(Sm90Layout):
    """A matrix for each group."""

    @property
    def split(self) -> Split:
        return SpanSplit(sum_parts(self.plan), self.k_steps, self.order.count)


class OuterBuilder(Sm90Builder):
    """Makes the statements of one kernel; `spans` is the tensor that says where groups lie."""

    def __init__(self, layout: OuterLayout, name: str, spans: str) -> None:
        super().__init__(layout, name)
        self.spans = len(self.buffers)
        self.buffers.append(spans)

    def locate(self) -> tuple[Place, tuple[ir.Stmt, ...]]:
        place, located = super().locate()
        found = list(located)
        for number, name in enumerate(("span_start", "span_end")):
            at = place.batch[0] * 2 + number
            found.append(ir.LoadElement(f"{name}_read", self.spans, SI32, at, Lit(1)))
            found.append(PlaceOf(name, f"{name}_read", self.problem.k + 1))
        found.append(ir.Let(_ROWS.name, Name("span_end") - Name("span_start")))
        steps = most((_ROWS + (_DEPTH - 1)) // _DEPTH, Lit(1))
        return place, (*found, ir.Let(_STEPS.name, steps))

    def depth_of(self, k: Scalar) -> Scalar:
        return Name("span_start") + k * _DEPTH

    def prepare(self, *, first: bool) -> Iterator[ir.Stmt]:
        """Clear the rows of a step that are not the group's."""
        step: Scalar = Lit(0) if first else Name("k")
        left = _ROWS - step * _DEPTH
        zero = Compute(ElementOp("zero", F32, "const", (), 0.0))
        number = Name("group") * WARPGROUP + Name("member")
        row, word = Name("cleared"), number % _WORDS
        clear: list[ir.Stmt] = []
        for side, tile in (("a", self.layout.a), ("b", self.layout.b)):
            for panel in range(tile.panels):
                start = self.ring.slot * tile.bytes + panel * tile.panel_bytes
                # All words of a row are cleared, so that it does not matter where the swizzle has
                # put which.
                at = ir.Address(side, start + row * ROW + word * _WORD)
                clear.append(ir.StShared(at, "zero", F32))
        threads = _CONSUMERS * WARPGROUP
        body = (
            zero,
            ir.For("cleared", left + number // _WORDS, _DEPTH, threads // _WORDS, tuple(clear)),
            # Matrix instructions read by another way, which sees what threads have written behind a
            # fence.
            ir.ProxyFence(),
            ir.NamedBarrier(Lit(_MEETING), threads),
        )
        yield ir.If(left < _DEPTH, body)


def _outer_layout(op: OuterTiles, problem: Problem, name: str, target: Target) -> OuterLayout:
    return OuterLayout(problem, _outer_plan(op, name, target), target.limits.units)


def _outer_problem(
    op: OuterTiles, lhs: str, rhs: str, result: str, tensors: Mapping[str, Tensor]
) -> Problem:
    dtype = tensors[lhs].dtype
    stored = Strides(0, op.width, 1, (op.height * op.width,))
    return Problem(
        batch=(op.groups,),
        m=op.height,
        n=op.width,
        k=op.rows,
        a=Operand(lhs, dtype, 0, 1, op.height, (0,)),
        b=Operand(rhs, dtype, 0, 1, op.width, (0,)),
        value="v0",
        sources=(),
        stored=(Stored(result, dtype, stored, (), "v0"),),
    )


def _outer_plan(op: OuterTiles, name: str, target: Target) -> MmaPlan:
    return MmaPlan(
        Header(target.name, name),
        (2 * _DEPTH, op.tile, _DEPTH),
        stages=4,
        warp_tile=(_DEPTH, op.tile),
        arch="sm90",
        operand_layouts=("col", "row"),
        order="rows",
    )


PRODUCT: Final = GroupProduct(_outer_problem, _outer_layout, OuterBuilder)
