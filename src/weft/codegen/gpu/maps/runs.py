"""Elementwise kernels that transpose short runs of rows, such as filters `[o, i, 3, 3]` with their
channels `i` put last.

    block   `block` columns, with all of their rows: of each such operand a run of memory
    load    the runs, in lines of 16 bytes as they lie, by asynchronous copies
    store   in vectors along the results' axis: neighbouring threads take neighbours of it, eight of
            them, then the next row; elements come from shared memory one by one

So both sides touch memory in whole lines, however few the rows are. The columns that fill a line
of the operand have as many lines as there are rows. In shared memory the lines of the next columns
begin an odd number of lines behind: eight threads that are a vector apart find their words in 32
banks, four next to one another for each, and those of neighbouring rows lie within the four.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.accept import kernel_refusals, refuse, too_many
from weft.codegen.gpu.body.index import unflatten
from weft.codegen.gpu.body.scopes import Scope, group_at
from weft.codegen.gpu.body.thread import Refs
from weft.codegen.gpu.ir.scalar import BLOCK, THREAD, Lit, Name, Scalar, wide
from weft.codegen.gpu.maps.staged import Staged
from weft.foundation.dtypes import DType
from weft.foundation.errors import Finding
from weft.foundation.index_expr import Axis, coefficient, linear
from weft.foundation.records import dataclass
from weft.plan.ir import MapPlan
from weft.plan.transposes import LINE, Runs, crossing_of, runs_of, turned_reads
from weft.region.ir import (
    Binary,
    Cast,
    Const,
    Kernel,
    Let,
    Read,
    Select,
    Tensor,
    Unary,
)
from weft.target.target import Target

_ASIDE: Final = 8
"""Threads whose vectors follow one another: with four rows each they are a warp."""
_COPIES, _VECTORS = 4, 2
"""Turns of the loops that are interleaved: more vectors take registers that other blocks need."""


def found_runs(
    kernel: Kernel, tensors: Mapping[str, Tensor], refs: Refs, plan: MapPlan
) -> Runs | None:
    """The runs of the operands that lie across, if they are made of whole lines, and a block has
    more columns than there are rows."""
    crossing = crossing_of(kernel)
    runs = None if crossing is None else runs_of(kernel, tensors, crossing)
    if crossing is None or runs is None or runs.length >= plan.block:
        return None
    written = {refs[output.tensor].buffer for output in kernel.outputs}
    for let, _ in turned_reads(kernel, tensors, crossing):
        assert isinstance(let.expr, Read)
        ref, in_line = refs[let.expr.tensor], LINE // let.dtype.storage_bytes
        address = linear(let.expr.index, ref.strides)
        whole = ref.alignment % LINE == 0 and address.constant % in_line == 0
        for term, factor in address.terms:
            within = isinstance(term, Axis) and term.name in (*runs.rows, *runs.columns)
            # A step along any other axis keeps the run at the beginning of a line, as asynchronous
            # copies of 16 bytes want it.
            whole = whole and (within or factor % in_line == 0)
        first = coefficient(address, runs.rows[-1]), coefficient(address, runs.columns[-1])
        if not whole or first != (1, runs.length) or ref.buffer in written:
            return None
        if runs.count % in_line or plan.block % in_line:
            return None
    return runs


def accepts(
    kernel: Kernel, tensors: Mapping[str, Tensor], runs: Runs, plan: MapPlan, target: Target
) -> list[Finding]:
    """Why this template cannot carry out the kernel with the plan; empty if it can."""
    return [*kernel_refusals(kernel, tensors), *_runs_refusals(kernel, tensors, runs, plan, target)]


def _runs_refusals(
    kernel: Kernel, tensors: Mapping[str, Tensor], runs: Runs, plan: MapPlan, target: Target
) -> Iterator[Finding]:
    crossing = crossing_of(kernel)
    assert crossing is not None
    if plan.block % (_ASIDE * plan.vector):
        yield refuse(
            "Block",
            f"{plan.block} columns are not made of {_ASIDE} threads with vectors of {plan.vector}",
        )
    if plan.grain != plan.block * plan.block or plan.unroll != 1:
        yield refuse("Block", f"a piece of work is a block: {plan.block * plan.block} points")
    size = kernel.sizes[crossing.columns]
    if size % plan.vector:
        yield refuse("Vector", f"a vector of {plan.vector} does not divide an axis of {size}")
    blocks = prod(_blocks_along(kernel, runs, plan).values())
    yield from too_many(runs.count + plan.block, *kernel.sizes.values(), blocks=blocks)
    turned = turned_reads(kernel, tensors, crossing)
    held = sum(_Layout(let.dtype, runs, plan).bytes for let, _ in turned)
    if held > target.limits.shared_bytes_per_block:
        yield refuse("SharedMemory", f"the runs of all operands take {held} bytes")


def _blocks_along(kernel: Kernel, runs: Runs, plan: MapPlan) -> dict[str, int]:
    """How many blocks there are along each axis that is not in a run, and along the runs."""
    inside = (*runs.rows, *runs.columns)
    found = {name: size for name, size in kernel.sizes.items() if name not in inside}
    found[runs.columns[-1]] = -(-runs.count // plan.block)
    return found


class _Layout:
    """How the run of an operand lies in shared memory."""

    def __init__(self, dtype: DType, runs: Runs, plan: MapPlan) -> None:
        self.size, self.rows = dtype.storage_bytes, runs.length
        self.in_line = LINE // self.size
        self.pitch = runs.length | 1
        """Lines from the columns of a line to the next ones."""
        self.lines = plan.block // self.in_line * runs.length
        self.bytes = plan.block // self.in_line * self.pitch * LINE

    def line(self, number: Scalar) -> Scalar:
        """Where a line of the run begins."""
        return (number + number // self.rows * (self.pitch - self.rows)) * LINE

    def element(self, at: _Inside) -> Scalar:
        """Where an element begins. Vectors begin where those of a line do, or are parts of it."""
        ahead, step = divmod(at.step, self.in_line)
        parts = unflatten(at.column, ("line", "inside"), {"line": 0, "inside": self.in_line})
        first = (parts["line"] + ahead) * (self.pitch * LINE)
        # Columns of a line stand one after the other with all of their rows: that is how the
        # operand lies in memory.
        inside = (parts["inside"] * self.rows + at.row) * self.size
        return first + inside + step * self.rows * self.size


@dataclass(frozen=True)
class _Inside:
    """Where in the block a point stands: some steps on from the first of its vector."""

    row: Scalar
    column: Scalar
    step: int


class RunBlocks(Staged[_Layout]):
    """Columns with all of their rows to a block of threads."""

    def __init__(
        self,
        kernel: Kernel,
        refs: Refs,
        plan: MapPlan,
        tensors: Mapping[str, Tensor],
        runs: Runs,
        target: Target,
    ) -> None:
        crossing = crossing_of(kernel)
        assert crossing is not None
        self.runs, self.columns = runs, crossing.columns
        turned = turned_reads(kernel, tensors, crossing)
        staged = [(let, _Layout(let.dtype, runs, plan)) for let, _ in turned]
        super().__init__(kernel, refs, plan, staged, _blocks_along(kernel, runs, plan), target)
        self.inside: dict[int, _Inside] = {}
        """By point that results are stored of."""

    def work(self) -> list[ir.Stmt]:
        root = Scope(None, {}, [])
        starts: dict[str, Scalar] = {}
        for number, (name, place) in enumerate(unflatten(BLOCK, [*self.sizes], self.sizes).items()):
            step = self.plan.block if name == self.columns else 1
            root.body.append(ir.Let(f"start{number}", place * step))
            starts[name] = Name(f"start{number}")
        first = starts.pop(self.columns)
        root.axes = starts
        for let in self.staged.values():
            root.body.append(self.load_run(root, let, first))
        root.body += [ir.CommitGroup(), ir.WaitGroup(0), ir.SyncThreads()]
        self.loading = False
        root.body.append(self.stores(root, first))
        return root.body

    def shared(
        self, count: int, work: Callable[[Scalar], Sequence[ir.Stmt]], times: int
    ) -> ir.Stmt:
        """So many pieces of work, by all threads."""
        threads, number, turn = self.plan.threads, self.fresh("p"), self.fresh("turn")
        body = tuple(work(Name(number)))
        if count % threads:
            body = (ir.If(Name(number) < count, body),)
        each = (ir.Let(number, Name(turn) * threads + THREAD), *body)
        return ir.For(turn, 0, -(-count // threads), 1, each, times=times)

    def load_run(self, root: Scope, let: Let, first: Scalar) -> ir.Stmt:
        """The run of an operand, as it lies."""
        layout, read = self.layouts[let.name], let.expr
        assert isinstance(read, Read)
        at_zero = dict.fromkeys((*self.runs.rows, *self.runs.columns), Lit(0))
        begin = wide(self.indexer.scalar(self.address(read), {**root.axes, **at_zero}))
        begin = (begin + wide(first) * self.runs.length) * layout.size

        def line(number: Scalar) -> list[ir.Stmt]:
            guard: Scalar = Lit(1)
            if self.runs.count % self.plan.block:
                # Lines are as many as rows for the columns of each.
                left = (first * -1 + self.runs.count) // layout.in_line * layout.rows
                guard = number < left
            place = ir.Address(self.tile_of[let.name], layout.line(number))
            offset = begin + number * LINE
            return [ir.CpAsync(place, self.numbers[read.tensor], offset, guard)]

        return self.shared(layout.lines, line, _COPIES)

    def stores(self, root: Scope, first: Scalar) -> ir.Stmt:
        """All results of the block."""
        plan, runs = self.plan, self.runs
        columns = plan.block // plan.vector
        sizes = {"ahead": columns // _ASIDE, "row": runs.length, "aside": _ASIDE}

        def vector(number: Scalar) -> list[ir.Stmt]:
            scope = Scope(root, {}, [])
            ahead, row, aside = self.places(scope, number, tuple(sizes), sizes).values()
            # Eight neighbours of the columns first, then the row, then the next eight: a warp
            # stores whole lines of up to four rows.
            names = [self.fresh("at") for _ in range(2)]
            column, place = map(Name, names)
            values = (ahead * _ASIDE + aside) * plan.vector, first + column
            scope.body += [ir.Let(*found) for found in zip(names, values, strict=True)]
            inside = place < runs.count if runs.count % plan.block else Lit(1)
            axes = self.places(scope, place, runs.columns) | self.rows_at(scope, row)
            group = group_at(scope, axes, self.columns, plan.vector, inside)
            for step, instance in enumerate(group.instances):
                self.inside[id(instance)] = _Inside(row, column, step)
            self.store_points(group, self.columns, root.axes)
            return scope.body

        return self.shared(columns * runs.length, vector, _VECTORS)

    def rows_at(self, scope: Scope, row: Scalar) -> dict[str, Scalar]:
        """The axes of a row. Where they count in addresses alone, which all rows have one after the
        other, the last of them counts on."""
        rows = self.runs.rows
        if all(map(_has_plain_address, self.kernel.body)):
            return {**dict.fromkeys(rows, Lit(0)), rows[-1]: row}
        return self.places(scope, row, rows)

    def taken(self, name: str, let: Let, home: Scope) -> ir.Stmt:
        offset = self.layouts[let.name].element(self.inside[id(home)])
        return ir.LoadStaged((name,), let.dtype, ir.Address(self.tile_of[let.name], offset))


def _has_plain_address(let: Let) -> bool:
    """Whether a value depends on axes by the address of a read alone."""
    if isinstance(let.expr, Read):
        return not let.expr.guards and not let.expr.places
    return isinstance(let.expr, Unary | Binary | Cast | Select | Const)
