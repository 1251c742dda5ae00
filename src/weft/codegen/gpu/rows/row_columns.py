"""Several rows per thread whose vectors lie at the same *columns*: what does not depend on the row
(the weights of a norm) is made once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.scopes import Group, Scope
from weft.codegen.gpu.body.thread import Refs
from weft.codegen.gpu.ir.scalar import Name
from weft.codegen.gpu.rows.row import Rows
from weft.plan.ir import RowPlan
from weft.region.ir import Kernel, Read
from weft.target.target import Target


class ColumnRows(Rows):
    """Rows whose vectors lie at the same places."""

    def __init__(self, kernel: Kernel, refs: Refs, plan: RowPlan, target: Target) -> None:
        super().__init__(kernel, refs, plan, target)
        self.outside = Scope(None, {}, [])
        """Where columns are made."""
        self.column_of: dict[Scope, Scope] = {}
        """What of a point of a row does not depend on the row is made in the scope of its place."""
        self.keeps_columns = True

    def is_shared(self, axes: Sequence[str]) -> bool:
        """Whether a value of these axes is the same for all rows."""
        return bool(axes) and set(axes) <= set(self.reduced)

    @property
    def vectors_apart(self) -> int:
        """Vectors between one of a thread and its next."""
        return self.plan.threads * self.plan.blocks_per_row

    def points_at(self, columns: Group, row: Scope) -> Group:
        """The points of a row at the places of a vector."""
        group = Group(self.axis)
        for column in columns.instances:
            point = Scope(row, column.known(), row.body, column.exists(), group)
            self.column_of[point] = column
            group.instances.append(point)
        return group

    def columns(self) -> list[Group]:
        """The places of a thread's vectors, whichever the row."""
        groups = []
        count, apart = prod(self.vectors.values()), self.vectors_apart
        for number in range(-(-count // apart)):
            variable = self.fresh("q")
            self.outside.body.append(ir.Let(variable, Name("member") + number * apart))
            whole = (number + 1) * apart <= count
            groups.append(self.chunk(self.outside, Name(variable), whole=whole))
        return groups

    def load_all(self, groups: list[Group]) -> None:
        """What the rows are made of, then what they share, before anything waits for it."""
        reads = [let for let in self.kernel.body if isinstance(let.expr, Read)]
        along = [let for let in reads if set(let.axes) & set(self.reduced)]
        # What comes from memory once is asked for before what all rows share, which the cache soon
        # has.
        for let in sorted(along, key=self.is_in_row, reverse=True):
            for group in groups:
                for point in group.instances:
                    self.value(let.name, point)

    def home(self, axes: Sequence[str], scope: Scope) -> Scope:
        if self.keeps_columns and scope in self.column_of and self.is_shared(axes):
            return super().home(axes, self.column_of[scope])
        return super().home(axes, scope)
