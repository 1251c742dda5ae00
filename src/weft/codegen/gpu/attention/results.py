"""Epilogue of an SM90 attention: the output divided by its softmax sums, and per-query results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft.codegen.gpu import ir
from weft.codegen.gpu.attention.layout import WARPGROUP
from weft.codegen.gpu.attention.problem import RowResult
from weft.codegen.gpu.attention.queries import (
    GROUP,
    MEMBER,
    QUARTER,
    STEP,
    Queries,
    constant,
    once_per_warp,
)
from weft.codegen.gpu.attention.reading import Program
from weft.codegen.gpu.body.quads import BOTH_ROWS, compute, over_quad
from weft.codegen.gpu.ir.element_ops import ElementOp
from weft.codegen.gpu.ir.scalar import LANE, Lit, Scalar, both
from weft.codegen.gpu.ir.swizzle import TileLayout
from weft.codegen.gpu.ir.values import Compute, StoreElement
from weft.codegen.gpu.products.tile_place import offset, present
from weft.foundation.dtypes import F32


class Results(Queries):
    """Makes the statements after the last product."""

    def stored(self) -> Iterator[ir.Stmt]:
        for row in BOTH_ROWS:
            own = f"{row}{self.stem}"
            yield from over_quad(f"total{own}", "add")
            # A row that sees nothing is 0 / 0: nothing times inf is no number, either.
            yield compute(f"share{own}", "div", "one", f"total{own}_all")
        yield from self.mixed_values()
        for number, result in enumerate(self.problem.rows):
            yield from self.row_result(number, result)

    def mixed_values(self) -> Iterator[ir.Stmt]:
        """The program of a mixed value on O divided by the sums, and its results to memory."""
        problem, layout, program = self.problem, self.layout, self.problem.mixed
        kind = ir.RegisterKind.for_results(problem.out_dtype)
        count = layout.width // (4 if problem.out_dtype.storage_bytes == 2 else 2)
        yield ir.Registers(f"stored{self.stem}", kind, count)
        share = ir.RowValues("share", F32, tuple(f"share{row}{self.stem}" for row in BOTH_ROWS))
        divided = ElementOp(program.value, F32, "mul", ("undivided", "share"))
        sources = tuple(self.source(source) for source in program.sources)
        for name in problem.tops:
            yield constant(f"{name}_scale{self.stem}", F32, problem.scale)
            for row in BOTH_ROWS:
                args = (f"top{row}{self.stem}", f"{name}_scale{self.stem}")
                yield compute(f"{name}_{row}{self.stem}", "mul", *args)
            sources += (self.of_rows(name, name + "_{}"),)
        sources += tuple(self.of_rows(name, "total{}_all") for name in problem.totals)
        fragment = self.fragment(Lit(0), layout.width, problem.width)
        yield ir.Epilogue(
            acc=ir.RegAt(f"mixed{self.stem}"),
            fragment=fragment,
            value="undivided",
            sources=(share, *sources),
            ops=(divided, *unrounded(program)),
            result=program.result,
            out=ir.RegAt(f"stored{self.stem}"),
            out_dtype=problem.out_dtype,
        )
        yield from self.store(fragment)

    def of_rows(self, name: str, known: str) -> ir.RowValues:
        """Numbers of rows as an element program reads them."""
        return ir.RowValues(
            name, F32, tuple(known.format(f"{row}{self.stem}") for row in BOTH_ROWS)
        )

    def store(self, fragment: ir.Fragment) -> Iterator[ir.Stmt]:
        """What was made of mixed values to memory; the queries are not needed from here on."""
        if self.layout.tma_store:
            yield from self.store_by_copy()
        else:
            yield once_per_warp(ir.MbarrierArrive(ir.BarrierAt("q_empty", self.q_slot)))
            yield self.store_by_threads(fragment)

    def store_by_copy(self) -> Iterator[ir.Stmt]:
        layout, tile = self.layout, self.layout.out
        start = self.q_slot * layout.q_bytes
        meet = ir.NamedBarrier(GROUP + 1, WARPGROUP)
        # All warps of the consumer have read their queries.
        yield meet
        yield from put(ir.RegAt("stored"), tile, "q", start)
        yield ir.ProxyFence()
        yield meet
        batch = present(self.batch, self.problem.out.batch)
        stores: list[ir.Stmt] = []
        for number in range(tile.panels):
            coords = (Lit(number * tile.panel_columns), self.first_query, *batch)
            stores.append(
                ir.TmaStore(ir.Address("q", start + number * tile.panel_bytes), "out", coords)
            )
        done = ir.MbarrierArrive(ir.BarrierAt("q_empty", self.q_slot))
        yield ir.If(MEMBER.equals(0), (*stores, ir.TmaCommit(), ir.TmaWaitRead(0), done))

    def store_by_threads(self, fragment: ir.Fragment) -> ir.Stmt:
        """Straight from registers, where the copy engine cannot write."""
        out, problem = self.problem.out, self.problem
        even = all(number % 2 == 0 for number in (out.row, out.offset, *out.batch))
        return ir.StGlobalVec(
            ir.RegAt(f"stored{self.stem}"),
            problem.out_dtype,
            fragment,
            self.buffers.index(problem.out_tensor),
            offset(replace(out, row=0, column=0), Lit(0), Lit(0), self.batch),
            out.row,
            out.column,
            2 if out.column == 1 and even and problem.width % 2 == 0 else 1,
        )

    def row_result(self, number: int, result: RowResult) -> Iterator[ir.Stmt]:
        """What is stored of a query beside its mixed value: one lane of each quad does."""
        for row in BOTH_ROWS:
            own = f"{row}{self.stem}"
            names = {
                result.top: f"top{own}_of{number}",
                result.total: f"total{own}_all",
                **{name: f"{name}_of{number}_{own}" for name in result.made},
            }
            query = self.warp_query + (LANE >> 2) + 8 * row
            inside = query < self.problem.queries
            for source in result.sources:
                assert source.tensor is not None
                place = offset(source.strides, query, Lit(0), self.batch)
                buffer = self.buffers.index(source.tensor)
                yield ir.LoadElement(names[source.name], buffer, source.dtype, place, inside)
            yield constant(f"scale{own}_of{number}", F32, self.problem.scale)
            yield compute(names[result.top], "mul", f"top{own}", f"scale{own}_of{number}")
            for op in result.ops:
                args = tuple(names[arg] for arg in op.args)
                yield Compute(replace(op, name=names[op.name], args=args))
            yield StoreElement(
                self.buffers.index(result.tensor),
                result.dtype,
                offset(result.strides, query, Lit(0), self.batch),
                both((LANE & 3).equals(0), inside),
                names[result.result],
            )


def put(registers: ir.RegAt, tile: TileLayout, name: str, start: Scalar) -> Iterator[ir.Stmt]:
    """64 rows of 16-bit results into shared memory, as the copy engine reads them."""
    panel = replace(tile, columns=tile.panel_columns)
    for number in range(tile.panels):
        for pair in range(tile.panel_columns // STEP):
            place = panel.of(QUARTER * 16 + (LANE & 15), (LANE >> 4) * 8 + STEP * pair)
            target = ir.Address(name, start + number * tile.panel_bytes + place)
            first = (number * tile.panel_columns + STEP * pair) // 4
            yield ir.StMatrix(target, replace(registers, index=registers.index + first), 4)


def unrounded(program: Program) -> tuple[ElementOp, ...]:
    """Storing rounds anyway: the op that makes the stored value need not."""
    used = {arg for op in program.ops for arg in op.args}
    return tuple(
        replace(op, deferred_rounding=True)
        if op.name == program.result and op.name not in used and op.dtype.storage_bytes == 2
        else op
        for op in program.ops
    )
