"""Reductions and folds (such as an online softmax) as loops around a tile.

A reduction is a loop *around* the unrolled and lanes loops of its tile, with one accumulator per
instance. Reductions with the same axes share one loop. What several loops need is computed again in
each, or kept in scratch where the plan says so: the first pass over a row writes it, and the later
ones read it. Each kept value has scratch of its own, with an element for every point of the reduced
axes it lives over and for every column of the tile. The elements that lanes reach together are
neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from weft.codegen.cpu import ir
from weft.codegen.cpu.math import LIFT
from weft.codegen.cpu.scopes import (
    LANES,
    SERIAL,
    UNROLLED,
    Scope,
    Wrapper,
    instances,
    plain,
    reopen,
)
from weft.codegen.cpu.statements import Statements
from weft.codegen.cpu.tiling import Segment, Tiling, halved_segments
from weft.foundation.dtypes import F32, DType
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import Expr, axes_of, axis, constant
from weft.memory.ir import MemRef
from weft.plan.rows import reduced_axes
from weft.region.ir import Fold, Kernel, Let, Reduce, Tensor, operands


class KeptRow:
    """The kept values of one kernel: where they lie, and which are written already."""

    def __init__(self, kernel: Kernel, tiling: Tiling, first_buffer: int) -> None:
        self.sizes = kernel.sizes
        self.reduced = reduced_axes(kernel)
        self.vector_axis = tiling.vector_axis
        self.buffers = {name: first_buffer + i for i, name in enumerate(tiling.kept)}
        self.dtypes = {name: kernel.let(name).dtype for name in tiling.kept}
        self.elements = dict.fromkeys(tiling.kept, 0)
        self.wrappers: list[Wrapper] = []
        self._pass = 0
        self._written: dict[str, int] = {}
        """In which pass over this tile's row."""

    def begin_tile(self, wrappers: Sequence[Wrapper]) -> None:
        """From here on another row is computed."""
        self.wrappers = sorted(wrappers, key=lambda wrapper: wrapper[2] is LANES)
        self._written = {}

    def begin_pass(self) -> None:
        """From here on the row is gone over again."""
        self._pass += 1

    def is_kept(self, name: str) -> bool:
        return name in self.buffers

    def is_written(self, name: str) -> bool:
        """Whether an earlier pass has gone over all of it."""
        return self._written.get(name, self._pass) < self._pass

    def load(self, let: Let, home: Scope) -> ir.Load:
        return ir.Load(let.name, self.buffers[let.name], self._address(let, home))

    def store(self, let: Let, home: Scope) -> ir.Store:
        self._written.setdefault(let.name, self._pass)
        return ir.Store(self.buffers[let.name], self._address(let, home), let.name, ())

    def scratch(self) -> tuple[tuple[DType, int], ...]:
        return tuple((self.dtypes[name], count) for name, count in self.elements.items())

    def _address(self, let: Let, home: Scope) -> Expr:
        bindings = home.bindings()
        columns = {v for a in let.axes if a not in self.reduced for v in axes_of(bindings[a])}
        rows = sorted(
            (a for a in let.axes if a in self.reduced), key=lambda a: a == self.vector_axis
        )
        used = [(var, count) for var, count, _ in self.wrappers if var in columns]
        address = constant(0)
        for name in rows:
            address = address * self.sizes[name] + bindings[name]
        for var, count in used:
            address = address * count + axis(var)
        size = math.prod(self.sizes[a] for a in rows) * math.prod(count for _, count in used)
        self.elements[let.name] = max(self.elements[let.name], size)
        return address


Body: TypeAlias = Callable[[Scope, str], None]


class Reductions(Statements):
    """A loop nest in which any value of the kernel can be asked for."""

    def __init__(
        self,
        kernel: Kernel,
        tensors: dict[str, Tensor],
        refs: dict[str, MemRef],
        tiling: Tiling,
    ) -> None:
        super().__init__(kernel, tensors, refs)
        self.tiling = tiling
        self.groups = _reduction_groups(kernel)
        self.kept = KeptRow(kernel, tiling, len(self.numbers))

    def _emit(self, name: str, scope: Scope) -> None:
        """Make the value known in the scope, computing it as far outside as possible."""
        let = self.lets[name]
        home = self._home(let.axes, scope)
        if name in home.names:
            return
        if isinstance(let.expr, Reduce):
            self._reduce(let, home)
            return
        if isinstance(let.expr, Fold):
            self._fold(let, let.expr, home)
            return
        home.names.add(name)
        if self.kept.is_written(name):
            home.body.append(self.kept.load(let, home))
            return
        if self._read_otherwise(let, home):
            return
        for operand in operands(let):
            self._emit(operand, home)
        home.body.append(self._statement(let, home))
        if self.kept.is_kept(name):
            home.body.append(self.kept.store(let, home))

    def _read_otherwise(self, let: Let, home: Scope) -> bool:
        """Whether a value was made known in another way than by a statement of its own."""
        return False

    def _reduce(self, let: Let, home: Scope) -> None:
        """One loop for all reductions of the same group, around the tile loops they stand in."""
        group = self.groups[let.name]
        self._emit_needed(group, home)
        tile, base = reopen(home)
        reduction = self.lets[group[0]].expr
        if not isinstance(reduction, Reduce):
            raise InternalError("a reduction group holds something else")
        pending: dict[str, list[str]] = {name: [] for name in group}
        opened: dict[str, ir.Init] = {}
        marker = len(base.body)

        def accumulate(inner: Scope, suffix: str) -> None:
            for name in group:
                expr = self.lets[name].expr
                if isinstance(expr, Reduce):
                    acc = f"{name}.{suffix}"
                    if acc not in opened:
                        opened[acc] = self._init(acc, self.lets[name], inner)
                        pending[name].append(acc)
                    self._emit(expr.value, inner)
                    inner.body.append(ir.Accumulate(acc, expr.value))

        self._loop(base, reduction.axes, accumulate, tile)
        base.body[marker:marker] = list(opened.values())
        for name in group:
            home.names.add(name)
            home.body += self._finish_sum(self.lets[name], tuple(pending[name]))

    def _finish_sum(self, let: Let, accs: tuple[str, ...]) -> tuple[ir.Stmt, ...]:
        """A reduction from its accumulators; the sum of lifted exponentials is brought down."""
        if not isinstance(let.expr, Reduce) or let.expr.value not in self.lifted:
            return (ir.Finish(let.name, accs),)
        # The sum is 1 or more, since the greatest of its row has e^0: lowered it is normal.
        down = 2.0 ** -LIFT["float" if let.dtype is F32 else "double"]
        total, scale = f"{let.name}.lifted", f"{let.name}.down"
        return (
            ir.Finish(total, accs),
            ir.Let(scale, let.dtype, "const", value=down),
            ir.Let(let.name, let.dtype, "mul", (total, scale)),
        )

    def _emit_needed(self, names: Sequence[str], home: Scope) -> None:
        """Every reduction that a loop will read and that does not change in it, before the loop:
        inside, its own loop would read what belongs to the one around it."""
        known = set(home.bindings())
        stack, seen = [o for name in names for o in operands(self.lets[name])], set[str]()
        while stack:
            needed = self.lets[stack.pop()]
            if needed.name in seen:
                continue
            seen.add(needed.name)
            if isinstance(needed.expr, Reduce | Fold) and set(needed.axes) <= known:
                self._emit(needed.name, home)
            else:
                stack.extend(operands(needed))

    def _init(self, acc: str, let: Let, inner: Scope) -> ir.Init:
        expr = let.expr
        if not isinstance(expr, Reduce):
            raise InternalError("only reductions have accumulators")
        return ir.Init(acc, let.dtype, expr.fn, instances(inner))

    def _fold(self, let: Let, fold: Fold, home: Scope) -> None:
        """One loop for all results of a fold: its carries are accumulators that steps replace."""
        self._emit_needed([let.name], home)
        tile, base = reopen(home)
        opened: dict[str, ir.Init] = {}
        parts: dict[str, tuple[str, ...]] = {}
        marker = len(base.body)

        def step(inner: Scope, suffix: str) -> None:
            accs = tuple(f"{let.name}.{carry.name}.{suffix}" for carry in fold.carries)
            parts[suffix] = accs
            for carry, acc in zip(fold.carries, accs, strict=True):
                loops = instances(inner)
                opened.setdefault(acc, ir.Init(acc, carry.dtype, "carry", loops, carry.init))
                inner.body.append(ir.Current(carry.name, acc))
            self._step(fold, inner)
            for carry, acc in zip(fold.carries, accs, strict=True):
                inner.body.append(ir.Assign(acc, carry.next))

        self._loop(base, fold.axes, step, tile)
        base.body[marker:marker] = list(opened.values())
        self._merge(let, fold, tuple(parts.values()), home)

    def _step(self, fold: Fold, inner: Scope) -> None:
        """The body of a fold, which depends on its carries and so stays where it is."""
        own = {carry.name for carry in fold.carries} | {let.name for let in fold.step}
        for let in fold.step:
            for operand in operands(let):
                if operand not in own:
                    self._emit(operand, inner)
            inner.body.append(self._statement(let, inner))

    def _merge(self, let: Let, fold: Fold, parts: tuple[tuple[str, ...], ...], home: Scope) -> None:
        """The carries, combined, under the names of the Lets that want them."""
        wanted = {
            other.expr.result: other.name
            for other in self.kernel.body
            if isinstance(other.expr, Fold)
            and other.axes == let.axes
            and (other.expr.axes, other.expr.carries, other.expr.step)
            == (fold.axes, fold.carries, fold.step)
        }
        names = tuple(wanted.get(c.name, f"{let.name}.{c.name}") for c in fold.carries)
        combine = tuple(self._scalar_let(inner, home) for inner in fold.combine)
        home.names.update(names)
        carries = tuple(carry.name for carry in fold.carries)
        merged = tuple(carry.merged for carry in fold.carries)
        home.body.append(ir.Merge(names, carries, parts, combine, merged))

    def _scalar_let(self, let: Let, scope: Scope) -> ir.Let:
        made = self._statement(let, scope)
        if not isinstance(made, ir.Let):
            raise InternalError("a fold's combine reads memory")
        return made

    def _loop(
        self,
        base: Scope,
        axes: Sequence[str],
        body: Body,
        tile: Sequence[Scope] = (),
    ) -> None:
        """`body` in loops over `axes`, with the tile loops of `tile` opened again inside them."""
        self.kept.begin_pass()
        lanes_taken = any(scope.kind is LANES for scope in (*base.chain(), *tile))
        vector = self.tiling.vector_axis
        cut = vector if vector in axes and not lanes_taken else None
        scope = base
        for name in axes:
            if name != cut:
                scope = self._serial(scope, name, self.kernel.sizes[name])
        loops = [s for s in scope.chain() if s not in base.chain()]
        if cut is None:
            self._segment_body(scope, tile, None, None, body, "a")
        else:
            cuts = halved_segments(self.kernel.sizes[cut], self.tiling.inner(cut))
            for number, segment in enumerate(cuts):
                suffix = "a" if segment.lanes == cuts[0].lanes > 1 else f"t{number}"
                self._segment_body(scope, tile, cut, segment, body, suffix)
        for made in reversed(loops):
            made.close()

    def _serial(self, parent: Scope, name: str, size: int) -> Scope:
        var = self._name(plain(name))
        return Scope(parent, var, size, SERIAL, {name: axis(var)})

    def _segment_body(
        self,
        scope: Scope,
        tile: Sequence[Scope],
        cut: str | None,
        segment: Segment | None,
        body: Body,
        suffix: str,
    ) -> None:
        start = scope
        place: Expr | None = None
        if cut is not None and segment is not None:
            place = constant(segment.start)
            if segment.count > 1:
                var = self._name(f"{plain(cut)}t")
                scope = Scope(scope, var, segment.count, SERIAL)
                place = place + axis(var) * segment.extent
        for outer in tile:
            scope = Scope(scope, outer.var, outer.count, outer.kind, dict(outer.axes))
            scope.names = set(outer.names)
        if cut is not None and segment is not None and place is not None:
            if segment.unroll > 1:
                var = f"{plain(cut)}_u"
                scope = Scope(scope, var, segment.unroll, UNROLLED)
                place = place + axis(var) * segment.lanes
            if segment.lanes > 1:
                var = f"{plain(cut)}_l"
                scope = Scope(scope, var, segment.lanes, LANES)
                place = place + axis(var)
            if scope is start:
                scope = Scope(scope, self._name(plain(cut)), 1, UNROLLED)
            scope.axes[cut] = place
        body(scope, suffix)
        for made in reversed([s for s in scope.chain() if s not in start.chain()]):
            made.close()


def _reduction_groups(kernel: Kernel) -> dict[str, tuple[str, ...]]:
    """For each reduction, those that can share its loop: same axes, and none needs another."""
    depth: dict[str, int] = {}
    keys: dict[str, tuple[object, ...]] = {}
    for let in kernel.body:
        below = max((depth[operand] for operand in operands(let)), default=0)
        is_reduction = isinstance(let.expr, Reduce)
        depth[let.name] = below + is_reduction
        if isinstance(let.expr, Reduce):
            keys[let.name] = (let.axes, let.expr.axes, depth[let.name])
    return {name: tuple(n for n, k in keys.items() if k == key) for name, key in keys.items()}
