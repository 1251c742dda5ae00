"""Several rows per thread, with shared operands read once.

    for each of the `rows_per_thread` rows: load
    load what all rows share
    for each row: reduce, store                                  as in `row.py`

The rows of a block follow one another: each thread takes every `rows_per_block`-th of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.accept import refuse
from weft.codegen.gpu.body.scopes import Scope
from weft.codegen.gpu.ir.scalar import BLOCK, THREAD, Lit, Name, Scalar, least
from weft.codegen.gpu.rows.row import accepts as accepts_rows
from weft.codegen.gpu.rows.row_columns import ColumnRows
from weft.codegen.gpu.template import Job
from weft.foundation.errors import Finding
from weft.plan.ir import Plan, RowPlan
from weft.plan.rows import row_registers, rows_together
from weft.region.ir import Kernel, Tensor
from weft.target.target import Target


def accepts(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: RowPlan, target: Target
) -> list[Finding]:
    """Why this template cannot carry out the kernel with the plan; empty if it can."""
    found = accepts_rows(kernel, tensors, plan, target)
    what = f"rows_per_thread={plan.rows_per_thread}"
    _, registers = row_registers(kernel, plan, target)
    if plan.rows_per_thread > registers:
        # The place of each row is in a register, also where nothing else of the row is.
        why = f"{what} takes a register for each row at least, and a thread has {registers}"
        found.append(refuse("PlanField", why, "use fewer rows"))
    if plan.threads == 1 or plan.blocks_per_row > 1 or not plan.keep_row:
        found.append(refuse("PlanField", f"{what} needs rows that threads of one block keep"))
    return found


class SeveralRows(ColumnRows):
    """Some rows to some threads."""

    @property
    def grid(self) -> int:
        return -(-self.rows // rows_together(self.plan))

    def work(self) -> Iterator[ir.Stmt]:
        yield ir.Let("member", THREAD % self.plan.threads)
        columns = self.columns()
        found = [self.row_at(number) for number in range(self.plan.rows_per_thread)]
        kept = [[self.points_at(group, row) for group in columns] for row, _ in found]
        self.load_all([group for groups in kept for group in groups])
        for (row, exists), groups in zip(found, kept, strict=True):
            self.kept = groups
            self.store_all(row, exists)
        yield from self.outside.body

    def row_at(self, number: int) -> tuple[Scope, Scalar]:
        """One of a thread's rows, and whether it exists."""
        together = rows_together(self.plan)
        whole = self.rows % together == 0
        place, row = (Name(self.fresh(stem)) for stem in ("number", "row"))
        first = BLOCK * together + number * self.plan.rows_per_block
        scope = Scope(None, {}, self.outside.body)
        scope.body.append(ir.Let(place.name, first + THREAD // self.plan.threads))
        scope.body.append(ir.Let(row.name, place if whole else least(place, self.rows - 1)))
        scope.axes = self.places(scope, row, self.outer)
        return scope, Lit(1) if whole else place < self.rows


class SeveralTemplate:
    """Several rows to a thread."""

    name: Final = "several"

    def takes(self, plan: Plan) -> bool:
        if not isinstance(plan, RowPlan) or plan.across or plan.ring or plan.walks:
            return False
        return plan.rows_per_thread > 1

    def accepts(self, job: Job[RowPlan]) -> list[Finding]:
        return accepts(job.short, job.tensors, job.plan, job.target)

    def build(self, job: Job[RowPlan], name: str) -> ir.Kernel:
        rows = SeveralRows(job.short, job.refs, job.plan, job.target)
        return rows.kernel_called(name, job.tensors)


TEMPLATE: Final = SeveralTemplate()
