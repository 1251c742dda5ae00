"""Reductions along an axis that is not contiguous: a thread takes a vector of neighbouring rows.

    column = block * rows_per_block + thread % rows_per_block     a vector of rows
    member = thread / rows_per_block                              one of `threads` that share it
    for each turn: point = turn * threads + member
        read a vector across the rows, accumulate each of its elements by itself

The members' partial results are merged through shared memory, in the same order in every run. A
value that lives over a row is made in the scope of that row; the scopes of a vector write
into one body, so that their reads become vector accesses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import gcd, prod
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.accept import kernel_refusals, refuse, too_many
from weft.codegen.gpu.body.reductions import Reduction
from weft.codegen.gpu.body.scopes import Group, Scope, Sweep, group_at
from weft.codegen.gpu.body.thread import Emitter, Refs
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.formats import held_bytes
from weft.codegen.gpu.ir.scalar import BLOCK, THREAD, Like, Lit, Name, Scalar, both, least, scalar
from weft.codegen.gpu.template import Job
from weft.foundation.errors import Finding
from weft.plan.ir import Plan, RowPlan
from weft.plan.rows import is_regular, kept_axes, reduced_axes, row_count, row_length
from weft.region.ir import Fold, Kernel, Output, Read, Reduce, Tensor
from weft.target.target import Target

# With one wave of blocks and eight vectors in flight, sums along axis 0 of 2^20 x 64 take 34.8 µs
# in bf16, 46.2 before (H200, docs/performance/gpu-steps.md).
_IN_FLIGHT = 8
"""Vectors that a thread waits for together: those of as many turns of a loop over memory."""
_MERGED = 8
"""Partial results that one member merges in a step."""


def accepts(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: RowPlan, target: Target
) -> list[Finding]:
    """Why this template cannot carry out the kernel with the plan; empty if it can."""
    return [*kernel_refusals(kernel, tensors), *_columns_refusals(kernel, plan)]


def _columns_refusals(kernel: Kernel, plan: RowPlan) -> Iterator[Finding]:
    kept = kept_axes(kernel)
    if not is_regular(kernel) or not kept:
        yield refuse("IrregularRows", "the reductions run over different axes")
        return
    if any(kept[-1] not in let.axes for let in kernel.body if _reduces(let.expr)):
        yield refuse("IrregularRows", f"a reduction does not live over {kept[-1]}")
    if kernel.sizes[kept[-1]] % plan.vector:
        size = kernel.sizes[kept[-1]]
        yield refuse("Vector", f"a vector of {plan.vector} does not divide an axis of {size}")
    yield from too_many(row_count(kernel), row_length(kernel))
    yield from field_refusals(plan)


def field_refusals(plan: RowPlan) -> Iterator[Finding]:
    """Fields that mean nothing for rows side by side."""
    if plan.keep_row:
        yield refuse("KeepRow", "rows side by side are not kept", "use keep_row=false")
    if plan.blocks_per_row != 1:
        yield refuse("PlanField", "rows side by side are not shared by blocks")
    if plan.ring:
        yield refuse("PlanField", "rows side by side do not wait in a ring")
    if plan.accumulators != 1:
        yield refuse("Accumulators", "each of the rows side by side has one partial result")


def _reduces(expr: object) -> bool:
    return isinstance(expr, Reduce | Fold)


class Columns(Emitter):
    """A vector of neighbouring rows to some threads."""

    def __init__(
        self, kernel: Kernel, refs: Refs, plan: RowPlan, kept: Sequence[str] | None = None
    ) -> None:
        super().__init__(kernel, refs)
        self.plan = plan
        self.reduced = reduced_axes(kernel)
        self.kept = tuple(kept or kept_axes(kernel))
        self.sizes = dict(kernel.sizes)
        self.sizes[self.kept[-1]] //= plan.vector
        self.vectors = prod(self.sizes[name] for name in self.kept)
        self.length = prod(kernel.sizes[name] for name in self.reduced)
        self.root = Scope(None, {}, [])
        self.columns = Group(None)

    @property
    def partials(self) -> int:
        return 1

    @property
    def grid(self) -> int:
        return -(-self.vectors // self.plan.rows_per_block)

    @property
    def threads(self) -> int:
        return self.plan.threads * self.plan.rows_per_block

    def work(self) -> Iterator[ir.Stmt]:
        side = self.plan.rows_per_block
        whole = self.vectors % side == 0
        yield ir.Let("number", BLOCK * side + THREAD % side)
        yield ir.Let("member", THREAD // side)
        row = Name("number") if whole else least(Name("number"), self.vectors - 1)
        self.root.body.append(ir.Let("row", row))
        last = self.kept[-1]
        axes = self.places(self.root, Name("row"), self.kept, self.sizes)
        axes[last] = axes[last] * self.plan.vector
        self.columns = group_at(self.root, axes, last, self.plan.vector, Lit(1))
        self.store_all(Lit(1) if whole else Name("number") < self.vectors)
        yield from self.root.body

    def store_all(self, exists: Scalar) -> None:
        over = {o: set(self.lets[o.value].axes) & set(self.reduced) for o in self.kernel.outputs}
        first = both(exists, Name("member").equals(0)) if self.plan.threads > 1 else exists
        self.store_group([o for o, axes in over.items() if not axes], first, self.columns, 0)
        long = [o for o, axes in over.items() if axes]
        if long:
            self.sweep(self.root, self.reduced, partial(self.store_group, long, exists))

    def store_group(
        self, outputs: Sequence[Output], exists: Scalar, group: Group, before: int
    ) -> None:
        known = group.instances[0].known()
        axes = {name: known[name] for name in self.kept[:-1]}
        for output in outputs:
            self.store(output, group, both(exists, self.stored_once(output, axes)))

    # -- sweeps ----------------------------------------------------------------------------------

    def sweep(self, scope: Scope, axes: Sequence[str], body: Sweep) -> None:
        """A loop over the points of this thread, all rows of its vector together."""
        if self.length == 0:
            return
        threads = self.plan.threads
        number, turn = self.fresh("q"), self.fresh("turn")
        inner = Scope(self.root, {}, [])
        inner.body.append(ir.Let(number, Name(turn) * threads + Name("member")))
        inside = Lit(1) if self.length % threads == 0 else Name(number) < self.length
        places = self.places(inner, Name(number), self.reduced, self.sizes)
        group = Group(self.kept[-1])
        for column in self.columns.instances:
            group.instances.append(Scope(column, places, inner.body, inside, group))
        body(group, 0)
        turns = -(-self.length // threads)
        loop = ir.For(turn, 0, turns, 1, tuple(inner.body), times=self.interleaved(turns))
        self.root.body.append(loop)

    def interleaved(self, turns: int) -> int:
        """Turns that the compiler may interleave; a divisor of all, where there is one, so that no
        single turns are left to wait for one by one."""
        reduced = set(self.reduced)
        reads = (let for let in self.kernel.body if isinstance(let.expr, Read))
        streams = sum(bool(reduced & set(let.axes)) for let in reads)
        most = max(2, _IN_FLIGHT // max(1, streams))
        divisors = (n for n in range(most, most // 2, -1) if turns % n == 0)
        return min(turns, next(divisors, most))

    def reduce(self, reduction: Reduction, home: Scope) -> None:
        """The results of a reduction for all rows of the vector."""
        columns = self.columns.instances
        carries = [[self.fresh("acc") for _ in reduction.carries] for _ in columns]
        for names in carries:
            for name, carry in zip(names, reduction.carries, strict=True):
                self.root.body.append(values.Variable(name, carry.dtype, carry.start))

        def step(group: Group, before: int) -> None:
            for names, instance in zip(carries, group.instances, strict=True):
                following = reduction.step(self, instance, names)
                for name, new in zip(names, following, strict=True):
                    instance.body.append(values.Assign(name, new, instance.exists()))

        self.sweep(self.root, reduction.axes, step)
        if self.plan.threads > 1:
            self.merge(reduction, carries)
        for column, names in zip(columns, carries, strict=True):
            for result, place in reduction.results.items():
                column.made[result] = names[place]

    def finish(self, scope: Scope, reduction: Reduction, carries: Sequence[str]) -> list[str]:
        return list(carries)

    # -- merging ---------------------------------------------------------------------------------

    def merge(self, reduction: Reduction, carries: Sequence[Sequence[str]]) -> None:
        """In steps: the first members take what the others have, each of them that of some rows of
        the vector where there are members enough. Then everybody reads the first member's, where
        somebody else needs it, or the first member, where others have made it."""
        tile, left = self.new_tile(reduction, len(carries)), self.plan.threads
        steps = []
        while left > 1:
            rest = left // min(_MERGED, left)
            steps.append((left, rest, gcd(len(carries), _power_below(self.plan.threads // rest))))
            left = rest
        shared = any(parts > 1 for _, _, parts in steps)
        if shared:
            self.put(tile, reduction, carries)
        for left, rest, parts in steps:
            if shared:
                self.merge_in_place(tile, reduction, (left, rest, parts), len(carries) // parts)
            else:
                self.merge_own(tile, reduction, carries, (left, rest))
        if not shared and self.wanted_by_all:
            self.put(tile, reduction, carries)
        if shared or self.wanted_by_all:
            inner = Scope(self.root, {}, []) if not self.wanted_by_all else self.root
            for place, mine in enumerate(carries):
                first_ones = self.get(inner, tile, reduction, place, Lit(0))
                for name, new in zip(mine, first_ones, strict=True):
                    inner.body.append(values.Assign(name, new, Lit(1)))
            if inner is not self.root:
                self.root.body.append(ir.If(Name("member").equals(0), tuple(inner.body)))

    def merge_own(
        self,
        tile: str,
        reduction: Reduction,
        carries: Sequence[Sequence[str]],
        step: tuple[int, int],
    ) -> None:
        """Of `left` members the first `rest` take what the others put down, for all rows."""
        (left, rest), member = step, Name("member")
        self.put(tile, reduction, carries)
        inner = Scope(self.root, {}, [])
        for place, mine in enumerate(carries):
            for first in range(rest, left, rest):
                other = self.get(inner, tile, reduction, place, member + first)
                merged = reduction.combine(self, inner, mine, other)
                for name, new in zip(mine, merged, strict=True):
                    inner.body.append(values.Assign(name, new, Lit(1)))
        self.root.body.append(ir.If(member < rest, tuple(inner.body)))
        self.root.body.append(ir.SyncThreads())

    def merge_in_place(
        self, tile: str, reduction: Reduction, step: tuple[int, int, int], rows: int
    ) -> None:
        """What `left` members put down, merged to that of `rest`: each of these has `parts` members
        at work, who take `rows` rows of the vector each and put the result where the first of what
        they merge was."""
        left, rest, parts = step
        member, inner = Name("member"), Scope(self.root, {}, [])
        target = member % rest if parts > 1 else member
        for row in range(rows):
            place = member // rest * rows + row if parts > 1 else Lit(row)
            mine = self.get(inner, tile, reduction, place, target)
            for first in range(rest, left, rest):
                other = self.get(inner, tile, reduction, place, target + first)
                mine = list(reduction.combine(self, inner, mine, other))
            self.put_row(inner, tile, reduction, (place, target), mine)
        self.root.body.append(ir.If(member < rest * parts, tuple(inner.body)))
        self.root.body.append(ir.SyncThreads())

    @property
    def wanted_by_all(self) -> bool:
        """Whether other members than the first, which stores, go on with results."""
        stored = {name for o in self.kernel.outputs for name in self.lets[o.value].axes}
        several = len({id(found) for found in self.reductions.values()}) > 1
        return several or bool(self.checks) or bool(stored & set(self.reduced))

    def put(self, tile: str, reduction: Reduction, carries: Sequence[Sequence[str]]) -> None:
        for place, names in enumerate(carries):
            self.put_row(self.root, tile, reduction, (Lit(place), Name("member")), names)
        self.root.body.append(ir.SyncThreads())

    def put_row(
        self,
        scope: Scope,
        tile: str,
        reduction: Reduction,
        whose: tuple[Scalar, Scalar],
        names: Sequence[str],
    ) -> None:
        """Put down what a member has of a row of the vector: the row and the member are `whose`."""
        place, member = whose
        for number, (name, carry) in enumerate(zip(names, reduction.carries, strict=True)):
            address = self.address_of(tile, reduction, (place, number), member)
            scope.body.append(ir.StShared(address, name, carry.dtype))

    def get(
        self, scope: Scope, tile: str, reduction: Reduction, place: Like, member: Scalar
    ) -> list[str]:
        """What a member put down of a row of the vector."""
        found = []
        for number, carry in enumerate(reduction.carries):
            found.append(self.fresh())
            address = self.address_of(tile, reduction, (scalar(place), number), member)
            scope.body.append(ir.LoadShared(found[-1], carry.dtype, address))
        return found

    def address_of(
        self, tile: str, reduction: Reduction, slot: tuple[Scalar, int], member: Scalar
    ) -> ir.Address:
        """Neighbouring threads have neighbouring slots; `slot` is a row of the vector and one of
        its carries."""
        side, (place, number) = self.plan.rows_per_block, slot
        inside = member * side + THREAD % side
        before = (place * len(reduction.carries) + number) * self.threads
        return ir.Address(tile, (inside + before) * _slot_bytes(reduction))

    def new_tile(self, reduction: Reduction, rows: int) -> str:
        """Room for the partial results of all threads of the block, used by one reduction."""
        start = sum(tile.bytes for tile in self.tiles)
        name = f"partial{len(self.tiles)}"
        size = rows * len(reduction.carries) * self.threads * _slot_bytes(reduction)
        self.tiles.append(ir.SharedTile(name, start, size))
        return name


def _power_below(number: int) -> int:
    """The largest power of two up to a number."""
    return 1 << (number.bit_length() - 1)


def _slot_bytes(reduction: Reduction) -> int:
    """Bytes of one partial result in shared memory."""
    return max(held_bytes(carry.dtype) for carry in reduction.carries)


class ColumnsTemplate:
    """Vectors of neighbouring rows."""

    name: Final = "columns"

    def takes(self, plan: Plan) -> bool:
        if not isinstance(plan, RowPlan) or plan.walks:
            return False
        return plan.across and plan.rows_per_thread == 1

    def accepts(self, job: Job[RowPlan]) -> list[Finding]:
        return accepts(job.short, job.tensors, job.plan, job.target)

    def build(self, job: Job[RowPlan], name: str) -> ir.Kernel:
        return Columns(job.short, job.refs, job.plan).kernel_called(name, job.tensors)


TEMPLATE: Final = ColumnsTemplate()
