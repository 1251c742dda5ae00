"""The template of row reductions: a row is one point of the axes that no reduction removes.

`threads` threads share a row, `rows_per_block` rows a block. Each thread takes every `threads`-th
vector of the row; its partial results are merged by exchanges inside a warp, then through shared
memory. Rows that one block's registers do not hold are shared by the blocks of a cluster
(`blocks_per_row`), which write their partial results into one another's shared memory. With
`keep_row` every element of a row stays in registers from the first pass to the last; otherwise each
reduction, and storing, is a loop that reads the row again.

One thread per row is the general case: reductions over any axes, inside one another or not, as
loops. Several threads need reductions that all run over the same axes. Rows that do not exist, at
the end of the grid, are computed as copies of the last one and not stored: all threads of a block
meet in every exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import frexp, prod
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.accept import kernel_refusals, refuse, too_many
from weft.codegen.gpu.body.reductions import Reduction
from weft.codegen.gpu.body.scopes import (
    Group,
    Scope,
    Sweep,
    end_in_room,
    group_at,
    in_whole_vectors,
)
from weft.codegen.gpu.body.thread import Emitter, Refs
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.scalar import (
    BLOCK,
    LANE,
    LANES,
    THREAD,
    WARP,
    Like,
    Lit,
    Name,
    Scalar,
    both,
    least,
    scalar,
)
from weft.codegen.gpu.template import Job
from weft.foundation.dtypes import F32, DType
from weft.foundation.errors import Finding
from weft.plan.ir import Plan, RowPlan
from weft.plan.rows import (
    chunks_of,
    is_regular,
    reduced_axes,
    resident_blocks,
    row_count,
    row_length,
    row_registers,
    row_vector_axis,
    stores_rows,
)
from weft.region.forms.widths import length_with_room
from weft.region.ir import Binary, Const, Kernel, Let, Output, Tensor
from weft.region.row_reads import PIECE, piece_sums
from weft.target.target import CLUSTERS, Target

_LINE = 8
"""Vectors of 16 bytes in a line of memory."""
SLOT = 8
"""Bytes of one partial result in shared memory."""
_WIDEST = 8
"""Elements of a vector, at most, where the pieces of a row are added up."""
_INTERLEAVED = 4
"""Turns of a loop over memory that the compiler may interleave."""
Slots = Callable[[Like], ir.Address]
"""Where a partial result is, by its number."""


def accepts(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: RowPlan, target: Target
) -> list[Finding]:
    """Why this template cannot carry out the kernel with the plan; empty if it can."""
    return [*kernel_refusals(kernel, tensors), *_row_refusals(kernel, tensors, plan, target)]


def _row_refusals(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: RowPlan, target: Target
) -> Iterator[Finding]:
    if plan.threads > 1 and not is_regular(kernel):
        yield refuse(
            "IrregularRows",
            "the reductions run over different axes",
            "use threads=1: one thread computes a row by itself",
        )
        return
    axis = row_vector_axis(kernel)
    size = kernel.sizes[axis] if axis else 1
    roomy = length_with_room(kernel, tensors, axis) if _takes_rooms(plan) else size
    if size % plan.vector and roomy % plan.vector:
        yield refuse("Vector", f"a vector of {plan.vector} does not divide an axis of {size}")
    yield from too_many(row_count(kernel), row_length(kernel))
    if plan.threads > 1 and piece_sums(kernel):
        yield from _piece_refusals(plan)
    keeps = plan.keep_row and plan.threads > 1
    instances = plan.vector * (chunks_of(kernel, plan) if keeps else 1)
    if plan.accumulators > max(1, instances):
        yield refuse(
            "Accumulators",
            f"{plan.accumulators} partial results cannot be kept by {instances} elements at a time",
        )
    if keeps:
        yield from _registers(kernel, plan, target)
    elif plan.keep_row:
        why = "keep_row=true has no effect: one thread reads its row again for every pass"
        yield refuse("PlanField", why, "use keep_row=false")
    if plan.blocks_per_row > 1 and (not keeps or plan.rows_per_block > 1 or plan.threads < LANES):
        yield refuse(
            "PlanField",
            f"blocks_per_row={plan.blocks_per_row} needs one row a block, whole warps and keep_row",
        )
    if plan.blocks_per_row > 1 and not target.has("cluster"):
        yield refuse("PlanField", f"{target.name} has no clusters for blocks_per_row")


def _piece_refusals(plan: RowPlan) -> Iterator[Finding]:
    """Lanes of a warp add up a piece, one row at a time."""
    lanes = PIECE // plan.vector
    if lanes > LANES or plan.threads % lanes or plan.vector > _WIDEST:
        yield refuse("Vector", f"{plan.threads} threads with vectors of {plan.vector} share pieces")
    if plan.rows_per_thread > 1 or plan.ring or plan.walks:
        yield refuse("PlanField", "pieces of rows are added up one row at a time")


def _registers(kernel: Kernel, plan: RowPlan, target: Target) -> Iterator[Finding]:
    needed, given = row_registers(kernel, plan, target)
    if needed > given:
        yield refuse(
            "Registers",
            f"keeping a row takes about {needed} registers of each thread, which has {given}",
            f"use {_more_room(plan, target)}keep_row=false",
        )


def _more_room(plan: RowPlan, target: Target) -> str:
    """How a plan gives a row more registers, if it can."""
    threads = plan.threads * plan.rows_per_block
    if threads < target.limits.threads_per_block:
        return "more threads, or "
    if plan.rows_per_block > 1:
        return "fewer rows_per_block with more threads each, or "
    if target.has("cluster") and plan.blocks_per_row < CLUSTERS[-1]:
        return "more blocks_per_row, or "
    return ""


def _takes_rooms(plan: RowPlan) -> bool:
    """Whether vectors may reach into the room behind a row."""
    return plan.threads > 1 and plan.rows_per_thread == 1 and not plan.ring


class Rows(Emitter):
    """A row to a thread, some threads, a block, or a cluster."""

    def __init__(self, kernel: Kernel, refs: Refs, plan: RowPlan, target: Target) -> None:
        super().__init__(kernel, refs)
        self.plan, self.target = plan, target
        self.reduced = reduced_axes(kernel)
        self.outer = [a.name for a in kernel.axes if a.name not in self.reduced]
        self.rows = prod(kernel.sizes[name] for name in self.outer)
        self.axis = row_vector_axis(kernel)
        self.kept: list[Group] | None = None
        self.piece_sums = piece_sums(kernel) if plan.threads > 1 else frozenset[str]()
        """Sums of pieces of the row, which neighbouring lanes have between them."""
        self.vector_at: dict[Scope, Group] = {}
        """The points of a vector, by the scope of what they have in common."""
        self.all_run = False
        """Whether every block of the cluster is known to run by now."""

    @property
    def partials(self) -> int:
        return self.plan.accumulators

    @property
    def shared(self) -> bool:
        """Whether several threads work on one row."""
        return self.plan.threads > 1

    @property
    def grid(self) -> int:
        return -(-self.rows // self.plan.rows_per_block) * self.plan.blocks_per_row

    @property
    def threads(self) -> int:
        return self.plan.threads * self.plan.rows_per_block

    @property
    def cluster(self) -> int:
        return self.plan.blocks_per_row

    @property
    def resident(self) -> int:
        return resident_blocks(self.kernel, self.plan, self.target)

    def work(self) -> Iterator[ir.Stmt]:
        plan = self.plan
        whole = self.rows % plan.rows_per_block == 0
        exists: Scalar = Lit(1) if whole else Name("number") < self.rows
        if plan.blocks_per_row > 1:
            yield ir.ClusterArrive()
            yield ir.Let("number", BLOCK // plan.blocks_per_row)
            yield ir.Let("rank", BLOCK % plan.blocks_per_row)
            yield ir.Let("member", Name("rank") * plan.threads + THREAD)
        else:
            yield ir.Let("number", BLOCK * plan.rows_per_block + THREAD // plan.threads)
            if self.shared:
                yield ir.Let("member", THREAD % plan.threads)
        root = Scope(None, {}, [])
        # Threads of a row that is not there take the last one again: they have to come to every
        # meeting, and store nothing.
        clamped = self.shared and not whole
        row = least(Name("number"), self.rows - 1) if clamped else Name("number")
        root.body.append(ir.Let("row", row))
        root.axes = self.places(root, Name("row"), self.outer)
        self.store_all(root, exists if self.shared else Lit(1))
        if self.shared or whole:
            yield from root.body
        else:
            yield ir.If(exists, tuple(root.body))

    def is_read_once(self, let: Let) -> bool:
        """Rows that only reductions need."""
        # sum_last of 1048576×64 in bf16 took 36.0 µs, and 33.7 so (H200, gpu-steps.md).
        return self.comes_once(let) and not stores_rows(self.kernel)

    def is_lasting(self, let: Let) -> bool:
        """A stream of rows whose results are stored: reads and writes that share the cache get in
        one another's way less. Not where something of it would be left for the next kernel."""
        size = prod(self.kernel.sizes[name] for name in let.axes) * let.dtype.storage_bytes
        # 1048576×64 of bf16, 134 MB, took 64.1 µs without and 65.0 with such loads; 268 MB took
        # 126.0 to 127.1 without and 125.3 with (H200, gpu-steps.md).
        large = size >= 3 * self.target.limits.cache_bytes[-1]
        return large and self.comes_once(let) and stores_rows(self.kernel)

    def comes_once(self, let: Let) -> bool:
        """Whether an operand is part of the row, read in one pass, whole lines at a time."""
        passes = 1 if self.plan.keep_row else len(self.reductions) + stores_rows(self.kernel)
        return self.is_in_row(let) and passes == 1 and self.plan.threads >= _LINE

    def is_in_row(self, let: Let) -> bool:
        """Whether a value is another one at every point of every row."""
        return bool(set(let.axes) & set(self.reduced) and set(let.axes) - set(self.reduced))

    def shares_divisor(self, let: Let) -> bool:
        """Quotients by what a whole row has in common, such as the sum of a softmax; of a power of
        two the compiler knows the reciprocal."""
        if not isinstance(let.expr, Binary) or let.expr.fn != "div" or let.dtype is not F32:
            return False
        below = self.lets[let.expr.rhs]
        if "div" in self.loose or _is_power_of_two(below):
            return False
        return set(below.axes) < set(let.axes)

    # -- results ---------------------------------------------------------------------------------

    @property
    def stored_by_row(self) -> Sequence[Output]:
        """The results of single rows."""
        return self.kernel.outputs

    def store_all(self, root: Scope, exists: Scalar) -> None:
        groups: dict[tuple[str, ...], list[Output]] = {}
        for output in self.stored_by_row:
            pieces = output.value in self.piece_sums
            live = self.reduced if pieces else self.lets[output.value].axes
            groups.setdefault(tuple(a for a in live if a in self.reduced), []).append(output)
        for missing, outputs in sorted(groups.items(), key=lambda item: len(item[0])):
            if missing:
                self.sweep(root, missing, partial(self.store_group, outputs, exists))
            else:
                first = both(exists, Name("member").equals(0)) if self.shared else exists
                self.store_group(outputs, first, Group(None, [root]), 0)

    def store_group(
        self, outputs: Sequence[Output], exists: Scalar, group: Group, before: int
    ) -> None:
        known = group.instances[0].known()
        axes = {name: known[name] for name in self.outer}
        for output in outputs:
            once = both(exists, self.stored_once(output, axes))
            if output.value in self.piece_sums:
                whole = group.instances[0].parent
                assert whole is not None
                first = (Name("member") % self.lanes_of_piece).equals(0)
                self.store(output, Group(None, [whole]), both(once, first))
            else:
                self.store(output, group, once)

    @property
    def lanes_of_piece(self) -> int:
        return PIECE // self.plan.vector

    # -- sweeps ----------------------------------------------------------------------------------

    def sweep(self, scope: Scope, axes: Sequence[str], body: Sweep) -> None:
        if any(self.kernel.sizes[name] == 0 for name in axes):
            return
        if not self.shared:
            self.sweep_loops(scope, axes, body)
        elif scope in self.vector_at and len(axes) < len(self.reduced):
            body(self.vector_at[scope], 0)
        elif self.plan.keep_row:
            self.sweep_kept(scope, body)
        else:
            self.sweep_chunks(scope, body)

    def sweep_loops(self, scope: Scope, axes: Sequence[str], body: Sweep) -> None:
        """Loops of one thread, the innermost over vectors."""
        last = self.axis if self.axis is not None and self.axis in axes else axes[-1]
        vector = self.plan.vector if last == self.axis else 1
        loops: list[tuple[Scope, str, int, int]] = []
        inner = scope
        for name in [a for a in axes if a != last]:
            variable = self.fresh("at")
            loops.append((inner, variable, self.kernel.sizes[name], 1))
            inner = Scope(inner, {name: Name(variable)}, [])
        variable = self.fresh("at")
        loops.append((inner, variable, self.kernel.sizes[last], vector))
        inner = Scope(inner, {}, [])
        body(group_at(inner, {last: Name(variable)}, last, vector, Lit(1)), 0)
        times = _INTERLEAVED
        for outside, variable, stop, step in reversed(loops):
            turns = tuple(inner.body)
            outside.body.append(ir.For(variable, 0, stop, step, turns, times=times))
            inner, times = outside, 1

    @property
    def order(self) -> list[str]:
        """The reduced axes, the one that vectors run along last."""
        return [a for a in self.reduced if a != self.axis] + ([self.axis] if self.axis else [])

    @property
    def vectors(self) -> dict[str, int]:
        """The extents of the reduced axes, in vectors."""
        sizes = {name: self.kernel.sizes[name] for name in self.order}
        if self.axis:
            sizes[self.axis] = -(-sizes[self.axis] // self.plan.vector)
        return sizes

    def chunk(self, scope: Scope, number: Scalar, *, whole: bool) -> Group:
        """The vector with a number, if the row has so many."""
        sizes = self.vectors
        inside: Scalar = Lit(1) if whole else number < prod(sizes.values())
        axes = self.places(scope, number, self.order, sizes)
        if self.axis:
            axes[self.axis] = axes[self.axis] * self.plan.vector
        group = group_at(scope, axes, self.axis, self.plan.vector, inside)
        end_in_room(group, self.kernel.sizes)
        if self.piece_sums and group.instances[0].parent is not None:
            self.vector_at[group.instances[0].parent] = group
        return group

    @property
    def extents(self) -> Mapping[str, int]:
        return in_whole_vectors(self.kernel.sizes, self.axis, self.plan.vector)

    def sweep_kept(self, root: Scope, body: Sweep) -> None:
        """Every vector of this thread, in registers; the same ones each time."""
        threads = self.plan.threads * self.plan.blocks_per_row
        count = prod(self.vectors.values())
        if self.kept is None:
            self.kept = []
            for chunk in range(-(-count // threads)):
                variable = self.fresh("q")
                root.body.append(ir.Let(variable, Name("member") + chunk * threads))
                whole = (chunk + 1) * threads <= count
                self.kept.append(self.chunk(root, Name(variable), whole=whole))
        for chunk, group in enumerate(self.kept):
            body(group, chunk * self.plan.vector)

    def sweep_chunks(self, root: Scope, body: Sweep) -> None:
        """A loop over the vectors of this thread."""
        threads, count = self.plan.threads, prod(self.vectors.values())
        variable, turn = self.fresh("q"), self.fresh("turn")
        inner = Scope(root, {}, [])
        inner.body.append(ir.Let(variable, Name(turn) * threads + Name("member")))
        body(self.chunk(inner, Name(variable), whole=count % threads == 0), 0)
        turns = -(-count // threads)
        root.body.append(ir.For(turn, 0, turns, 1, tuple(inner.body), times=_INTERLEAVED))

    # -- merging ---------------------------------------------------------------------------------

    def finish(self, scope: Scope, reduction: Reduction, carries: Sequence[str]) -> list[str]:
        if not self.shared:
            return list(carries)
        if scope in self.vector_at and len(reduction.axes) < len(self.reduced):
            return self.exchange(scope, reduction, carries, self.lanes_of_piece)
        merged = self.exchange(scope, reduction, carries, min(self.plan.threads, LANES))
        warps = self.plan.threads // LANES
        if warps > 1:
            merged = self.through_shared(scope, reduction, merged, warps)
        if self.plan.blocks_per_row > 1:
            merged = self.through_cluster(scope, reduction, merged)
        return merged

    def exchange(
        self, scope: Scope, reduction: Reduction, carries: Sequence[str], width: int
    ) -> list[str]:
        """Merge the partial results of `width` neighbouring lanes; all of them get the result."""
        merged, mask = list(carries), 1
        while mask < width:
            others = []
            for name, carry in zip(merged, reduction.carries, strict=True):
                others.append(self.fresh())
                scope.body.append(values.Shuffle(others[-1], carry.dtype, name, mask))
            sides = (merged, others)
            if not reduction.commutes:
                # Folds round otherwise the other way round, and all lanes must go on with the same
                # bits: both lanes of an exchange take the lower lane's result as the left one.
                sides = self.ordered(scope, reduction, sides, (LANE & mask).equals(0))
            merged = reduction.combine(self, scope, *sides)
            mask *= 2
        return merged

    def ordered(
        self,
        scope: Scope,
        reduction: Reduction,
        sides: tuple[list[str], list[str]],
        first: Scalar,
    ) -> tuple[list[str], list[str]]:
        """Both sides of a merge, the lower lane's on the left: every lane computes the same."""
        left: list[str] = []
        right: list[str] = []
        for mine, other, carry in zip(*sides, reduction.carries, strict=True):
            for found, x, y in ((left, mine, other), (right, other, mine)):
                found.append(self.fresh())
                scope.body.append(values.Choose(found[-1], carry.dtype, first, x, y))
        return left, right

    def through_shared(
        self, scope: Scope, reduction: Reduction, carries: Sequence[str], warps: int
    ) -> list[str]:
        """Merge the partial results of the warps of a row."""
        count = len(carries)
        at = self.new_slots(count * warps)
        in_block = THREAD // self.plan.threads * count
        puts: list[ir.Stmt] = []
        found = []
        for number, (name, carry) in enumerate(zip(carries, reduction.carries, strict=True)):
            start = (in_block + number) * warps
            puts.append(ir.StShared(at(start + WARP % warps), name, carry.dtype))
            found.append((carry.dtype, at(start + LANE % warps)))
        scope.body += [ir.If(LANE.equals(0), tuple(puts)), self.meeting]
        merged = [self.get(scope, dtype, place) for dtype, place in found]
        return self.exchange(scope, reduction, merged, warps)

    @property
    def meeting(self) -> ir.Stmt:
        """Where the warps of a row meet."""
        return ir.SyncThreads()

    def through_cluster(
        self, scope: Scope, reduction: Reduction, carries: Sequence[str]
    ) -> list[str]:
        """Merge the partial results of the blocks of a row: each sends its own to all."""
        blocks = self.plan.blocks_per_row
        at = self.new_slots(len(carries) * blocks)
        sends: list[ir.Stmt] = []
        found = []
        for number, (name, carry) in enumerate(zip(carries, reduction.carries, strict=True)):
            start = number * blocks
            sends.append(ir.StCluster(at(start + Name("rank")), LANE, name, carry.dtype))
            found.append((carry.dtype, at(start + LANE % blocks)))
        # Shared memory of a block that has not begun cannot be written to.
        if not self.all_run:
            scope.body.append(ir.ClusterWait())
            self.all_run = True
        senders = (THREAD // blocks).equals(0)
        # As many neighbouring threads as blocks send: each to the block with its lane's number.
        scope.body += [ir.If(senders, tuple(sends)), ir.ClusterArrive(), ir.ClusterWait()]
        merged = [self.get(scope, dtype, place) for dtype, place in found]
        return self.exchange(scope, reduction, merged, blocks)

    def get(self, scope: Scope, dtype: DType, place: ir.Address) -> str:
        name = self.fresh()
        scope.body.append(ir.LoadShared(name, dtype, place))
        return name

    def new_slots(self, count: int) -> Slots:
        """Room for partial results of all rows of the block, used once."""
        tile = self.new_tile(count * self.plan.rows_per_block * SLOT)
        return lambda number: ir.Address(tile, scalar(number) * SLOT)

    def new_tile(self, size: int) -> str:
        """A range of shared memory behind what is taken already."""
        name = f"partial{len(self.tiles)}"
        self.tiles.append(ir.SharedTile(name, self.free, size))
        return name

    @property
    def free(self) -> int:
        """Where shared memory is not taken yet."""
        ends = [tile.offset + tile.bytes for tile in self.tiles]
        ends += [array.offset + array.bytes for array in self.barriers]
        return max(ends, default=0)


def _is_power_of_two(let: Let) -> bool:
    value = let.expr.value if isinstance(let.expr, Const) else None
    return isinstance(value, int | float) and abs(frexp(value)[0]) == 0.5


class RowTemplate:
    """A row to a thread, some threads, a block, or a cluster."""

    name: Final = "row"

    def takes(self, plan: Plan) -> bool:
        if not isinstance(plan, RowPlan) or plan.across or plan.ring or plan.walks:
            return False
        return plan.rows_per_thread <= 1

    def accepts(self, job: Job[RowPlan]) -> list[Finding]:
        return accepts(job.short, job.tensors, job.plan, job.target)

    def build(self, job: Job[RowPlan], name: str) -> ir.Kernel:
        return Rows(job.short, job.refs, job.plan, job.target).kernel_called(name, job.tensors)


TEMPLATE: Final = RowTemplate()
