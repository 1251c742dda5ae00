"""From a kernel, its buffers and its plan to a loop nest.

One scheme serves elementwise kernels, row reductions and contractions. Axes that no reduction
removes are *outer*: they are cut into tiles, and the tiles of all of them, flattened, are the
pieces. Inside a tile an axis is unrolled and, if it is the vector axis, carried by lanes. A
reduction is a loop *around* the unrolled and lanes loops of its tile, with one accumulator per
instance, so that a contraction over an unrolled tile is a register-tiled matrix product and a
reduction along the vector axis keeps several partial sums. Where an axis does not divide evenly,
the rest is a second, smaller tile and the last elements are scalars.

Values are computed in the outermost loop in which all their axes are known. Reductions with the
same axes share one loop. What several loops need is computed again in each, or kept in scratch
where the plan says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TypeAlias

from weft.codegen.cpu import ir
from weft.codegen.cpu.kept_row import KeptRow
from weft.codegen.cpu.scopes import (
    LANES,
    PARALLEL,
    SERIAL,
    UNROLLED,
    Scope,
    Wrapper,
    instances,
    open_tile,
    plain,
    reopen,
)
from weft.codegen.cpu.tiling import (
    AxisTiling,
    Packing,
    Segment,
    Tiling,
    reduced_axes,
    segments,
)
from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError
from weft.foundation.functions import broken_rule
from weft.foundation.index_expr import (
    Expr,
    Guard,
    add,
    always,
    axes_of,
    axis,
    coefficient,
    constant,
    linear,
    scale,
    simplify,
    substitute,
)
from weft.memory.ir import MemRef
from weft.plan.transposes import Crossing
from weft.region.ir import (
    AxisIndex,
    Binary,
    Cast,
    Check,
    Const,
    Fold,
    Kernel,
    Let,
    Output,
    Read,
    Reduce,
    Select,
    Tensor,
    Unary,
    Words,
    operands,
)
from weft.region.structure import buffers

_Body: TypeAlias = Callable[[Scope, str], None]


def lower_kernel(
    kernel: Kernel,
    tensors: dict[str, Tensor],
    refs: dict[str, MemRef],
    tiling: Tiling,
    name: str,
) -> ir.Routine:
    """The routine that computes `kernel`. Its buffers are `buffers(kernel)`, in that
    order."""
    return Lowering(kernel, tensors, refs, tiling).routine(name)


class Lowering:
    """The loop nest of one kernel, under construction."""

    def __init__(
        self,
        kernel: Kernel,
        tensors: dict[str, Tensor],
        refs: dict[str, MemRef],
        tiling: Tiling,
    ) -> None:
        self.kernel = kernel
        self.tensors = tensors
        self.refs = refs
        self.tiling = tiling
        self.numbers = {tensor: i for i, tensor in enumerate(buffers(kernel))}
        self.lets = {let.name: let for let in kernel.body}
        self.checks = [let.expr for let in kernel.body if isinstance(let.expr, Check)]
        self.reduced = reduced_axes(kernel)
        self.groups = _reduction_groups(kernel)
        self.packed: tuple[Expr, int] | None = None
        """While a piece with packed columns is built: its first column, and how many it has."""
        self.kept = KeptRow(kernel, tiling, len(self.numbers))
        self.scratch_elements = 0
        self.fresh = 0

    def routine(self, name: str) -> ir.Routine:
        outer = [a.name for a in self.kernel.axes if a.name not in self.reduced]
        body: list[ir.Stmt] = []
        pieces = 0
        cuts = [segments(self.kernel.sizes[a], self._piece_tiling(a)) for a in outer]
        for tiles in product(*cuts):
            count, nest = self._tile_nest(outer, tiles, pieces)
            body.append(nest)
            pieces += count
        return ir.Routine(
            name, self._buffer_args(), pieces, tuple(body), self._params(), self._scratch(),
            self._violations(),
        )  # fmt: skip

    def _params(self) -> tuple[ir.ParamArg, ...]:
        return tuple(
            ir.ParamArg(p.name, self.numbers[p.tensor], p.element, p.low, p.high)
            for p in self.kernel.params
        )

    def _violations(self) -> tuple[tuple[str, str], ...]:
        return tuple((c.code, broken_rule(c.rule, c.size)) for c in self.checks)

    def _scratch(self) -> tuple[tuple[DType, int], ...]:
        packing = self.tiling.packing
        if packing is None or not self.scratch_elements:
            return self.kept.scratch()
        return ((self.lets[packing.value].dtype, self.scratch_elements),)

    def _piece_tiling(self, name: str) -> AxisTiling:
        """How an axis is cut into pieces: by tiles, or by all the rows that share packed
        columns."""
        packing, blocks = self.tiling.packing, self.tiling.blocks
        if packing is not None and name == packing.rows_axis:
            return AxisTiling(packing.rows, 1)
        if blocks is not None and name in blocks.crossing:
            return AxisTiling(blocks.edge, 1)
        return self.tiling.outer(name)

    # -- the outer loops -------------------------------------------------------------------------

    def _tile_nest(
        self, outer: Sequence[str], tiles: Sequence[Segment], first: int
    ) -> tuple[int, ir.Stmt]:
        """All tiles of one combination of segments, as one parallel loop over flattened tiles."""
        total = 1
        for tile in tiles:
            total *= tile.count
        piece = self._name("piece")
        ranges = {piece: (first, first + total - 1)}
        places: dict[str, Expr] = {}
        wrappers: list[Wrapper] = []
        remaining = total
        for name, tile in zip(outer, tiles, strict=True):
            remaining //= tile.count
            here = simplify(((axis(piece) - first) // remaining) % tile.count, ranges)
            places[name] = add(tile.start, scale(here, tile.extent))
            if not self._is_block(name):
                places[name] = self._cut(name, places[name], tile, wrappers)
        root = Scope(None, kind=PARALLEL)
        inside = {n: t for n, t in zip(outer, tiles, strict=True) if self._is_block(n)}
        if self.tiling.blocks is not None:
            self._crossed(root, places, inside, self.tiling.blocks.crossing)
        elif inside:
            self._packed_rows(root, places, wrappers, next(iter(inside.values())))
        else:
            self._tile(root, places, wrappers)
        stop = constant(first + total)
        return total, ir.For(piece, constant(first), stop, 1, PARALLEL, tuple(root.body))

    def _is_block(self, name: str) -> bool:
        """Whether a piece has more of the axis than one tile."""
        packing, blocks = self.tiling.packing, self.tiling.blocks
        if blocks is not None:
            return name in blocks.crossing
        return packing is not None and name == packing.rows_axis

    def _cut(self, name: str, place: Expr, tile: Segment, wrappers: list[Wrapper]) -> Expr:
        """The place of an axis inside its tile; its unrolled and lanes loops join `wrappers`."""
        if tile.unroll > 1:
            wrappers.append((self._name(f"{plain(name)}u"), tile.unroll, UNROLLED))
            place = place + axis(wrappers[-1][0]) * tile.lanes
        if tile.lanes > 1:
            wrappers.append((self._name(f"{plain(name)}l"), tile.lanes, LANES))
            place = place + axis(wrappers[-1][0])
        return place

    def _tile(self, base: Scope, places: dict[str, Expr], wrappers: Sequence[Wrapper]) -> None:
        """Everything that is stored in one tile."""
        leaf = open_tile(base, places, wrappers)
        self.kept.begin_tile(wrappers)
        self._stores(leaf)
        for scope in leaf.chain()[: len(base.chain()) - 1 : -1]:
            scope.close()

    # -- blocks of two axes ----------------------------------------------------------------------

    def _crossed(
        self, root: Scope, places: dict[str, Expr], block: dict[str, Segment], crossing: Crossing
    ) -> None:
        """The tiles of a block, the rows of each strip of columns one after the other."""
        columns, rows = crossing
        cuts = [segments(block[name].extent, self.tiling.outer(name)) for name in crossing]
        for across, down in product(*cuts):
            strip = Scope(root, self._name(f"{plain(columns)}t"), across.count, SERIAL)
            scope = Scope(strip, self._name(f"{plain(rows)}t"), down.count, SERIAL)
            wrappers: list[Wrapper] = []
            here = dict(places)
            for name, cut, loop in ((rows, down, scope), (columns, across, strip)):
                place = places[name] + cut.start + axis(loop.var) * cut.extent
                here[name] = self._cut(name, place, cut, wrappers)
            self._tile(scope, here, wrappers)
            scope.close()
            strip.close()

    def _transposed(self, let: Let, home: Scope) -> bool:
        """Read an operand that lies across the results in vectors along the rows, and turn it
        round; False where it does not lie so."""
        blocks = self.tiling.blocks
        if blocks is None or home.kind is not LANES or not isinstance(let.expr, Read):
            return False
        load = self._load(let, let.expr, home)
        steps = axes_of(home.bindings()[blocks.crossing.rows])
        rows = next((s for s in home.chain() if s.kind is UNROLLED and s.var in steps), None)
        if rows is None or load.guards or load.places or coefficient(load.address, rows.var) != 1:
            return False
        if coefficient(load.address, home.var) in (0, 1):
            return False
        tile, base = reopen(home)
        scope = base
        for outer in tile:
            if outer is not rows:
                scope = Scope(scope, outer.var, outer.count, outer.kind)
        address = substitute(load.address, {rows.var: constant(0)})
        scope.body.append(ir.LoadRun(let.name, rows.var, rows.count, load.buffer, address))
        for made in scope.chain()[: len(base.chain()) - 1 : -1]:
            made.close()
        return True

    # -- packed operands -------------------------------------------------------------------------

    def _packed_rows(
        self,
        root: Scope,
        places: dict[str, Expr],
        wrappers: Sequence[Wrapper],
        block: Segment,
    ) -> None:
        """The columns of a piece copied into scratch, then all its rows, tile by tile."""
        packing = self._packing()
        start = substitute(
            places[packing.columns_axis], {var: constant(0) for var, _, _ in wrappers}
        )
        width = math.prod(count for _, count, _ in wrappers)
        self._pack(root, places, wrappers, (start, width))
        self.packed = (start, width)
        rows = packing.rows_axis
        for segment in segments(block.extent, self.tiling.outer(rows)):
            scope = Scope(root, self._name(f"{plain(rows)}t"), segment.count, SERIAL)
            inner = list(wrappers)
            place = places[rows] + segment.start + axis(scope.var) * segment.extent
            place = self._cut(rows, place, segment, inner)
            self._tile(scope, {**places, rows: place}, inner)
            scope.close()
        self.packed = None

    def _pack(
        self,
        root: Scope,
        places: dict[str, Expr],
        wrappers: Sequence[Wrapper],
        columns: tuple[Expr, int],
    ) -> None:
        """Loops that copy the operand: one row of columns for every summed index."""
        packing = self._packing()
        let = self.lets[packing.value]
        if not isinstance(let.expr, Read):
            raise InternalError("only a read can be packed")
        scope, depth = root, 1
        for name in self._summed():
            scope = self._serial(scope, name, self.kernel.sizes[name])
            depth *= self.kernel.sizes[name]
        known = {name: place for name, place in places.items() if name != packing.rows_axis}
        leaf = open_tile(scope, known, wrappers)
        load = replace(self._load(let, let.expr, leaf), name="packed")
        address = self._scratch_address(leaf.bindings(), columns)
        self.scratch_elements = max(self.scratch_elements, depth * columns[1])
        leaf.body += [load, ir.Store(len(self.numbers), address, "packed", ())]
        for made in leaf.chain()[:0:-1]:
            made.close()

    def _packing(self) -> Packing:
        if self.tiling.packing is None:
            raise InternalError("nothing is packed here")
        return self.tiling.packing

    def _summed(self) -> tuple[str, ...]:
        return self.kernel.roles.k if self.kernel.roles else ()

    def _scratch_address(self, bindings: dict[str, Expr], columns: tuple[Expr, int]) -> Expr:
        """Where an element of the packed operand lies."""
        start, width = columns
        row = constant(0)
        for name in self._summed():
            row = row * self.kernel.sizes[name] + bindings[name]
        return row * width + (bindings[self._packing().columns_axis] - start)

    # -- statements ------------------------------------------------------------------------------

    def _stores(self, leaf: Scope) -> None:
        """Every output, in loops over the axes that are not known yet."""
        groups: dict[tuple[str, ...], list[Output]] = {}
        known = set(leaf.bindings())
        for output in self.kernel.outputs:
            missing = tuple(a for a in self.lets[output.value].axes if a not in known)
            groups.setdefault(missing, []).append(output)
        for missing, outputs in sorted(groups.items(), key=lambda item: len(item[0])):
            if missing:
                # Around the tile's loops, so that neighbours in a tile are stored together.
                self._emit_needed([output.value for output in outputs], leaf)
                tile, base = reopen(leaf)
                self._loop(base, missing, partial(self._store, outputs), tile)
            else:
                self._store(outputs, leaf)

    def _store(self, outputs: Iterable[Output], scope: Scope, _: str = "") -> None:
        for output in outputs:
            self._emit(output.value, scope)
            home = self._home(self.lets[output.value].axes, scope)
            bindings = scope.bindings()
            index = tuple(substitute(e, bindings) for e in output.index)
            address = linear(index, self.refs[output.tensor].strides)
            point = tuple(bindings[name] for name in self.lets[output.value].axes)
            home.body.append(ir.Store(self.numbers[output.tensor], address, output.value, point))

    def _home(self, axes: Sequence[str], scope: Scope) -> Scope:
        """The outermost scope in which all these axes are known."""
        known: set[str] = set()
        for candidate in scope.chain():
            known |= set(candidate.axes)
            if set(axes) <= known:
                return candidate
        raise InternalError(f"axes {axes} of a value are not all in loops")

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
        if self._transposed(let, home):
            return
        for operand in operands(let):
            self._emit(operand, home)
        home.body.append(self._statement(let, home))
        if self.kept.is_kept(name):
            home.body.append(self.kept.store(let, home))

    def _statement(self, let: Let, scope: Scope) -> ir.Stmt:
        match let.expr:
            case Read():
                return self._load(let, let.expr, scope)
            case Const(value=value):
                return ir.Let(let.name, let.dtype, "const", value=value)
            case AxisIndex(expr=expr):
                index = substitute(expr, scope.bindings())
                return ir.Let(let.name, let.dtype, "index", index=index)
            case Unary(fn="exp", x=x) if self._is_nonpositive(x):
                return ir.Let(let.name, let.dtype, "exp_nonpositive", (x,))
            case Unary(fn=fn, x=x):
                return ir.Let(let.name, let.dtype, fn, (x,))
            case Cast(x=x):
                return ir.Let(let.name, let.dtype, "cast", (x,))
            case Binary(fn="div", lhs=lhs, rhs=rhs) if self._is_share(lhs, rhs):
                return ir.Let(let.name, let.dtype, "share", (lhs, rhs))
            case Binary(fn=fn, lhs=lhs, rhs=rhs):
                return ir.Let(let.name, let.dtype, fn, (lhs, rhs))
            case Select(pred=pred, x=x, y=y):
                return ir.Let(let.name, let.dtype, "select", (pred, x, y))
            case Check(x=x, rule=rule, size=size, element=element):
                place = substitute(element, scope.bindings())
                number = self.checks.index(let.expr)
                return ir.Check(let.name, x, rule, size, number, place)
            case Words(seed=seed, offset=offset, element=element):
                return ir.Words(let.name, seed, offset, substitute(element, scope.bindings()))
        raise InternalError(f"no statement for {let.expr}")

    def _is_nonpositive(self, name: str) -> bool:
        """Whether a value is a number less the greatest of its row."""
        expr = self.lets[name].expr if name in self.lets else None
        if not isinstance(expr, Binary) or expr.fn != "sub":
            return False
        top = self.lets[expr.rhs].expr if expr.rhs in self.lets else None
        return isinstance(top, Reduce) and (top.fn, top.value) == ("max", expr.lhs)

    def _is_share(self, name: str, total: str) -> bool:
        """Whether a value is one of those that make up a sum, each from 0 to 1 and one of them 1:
        the exponentials of a softmax."""
        part, whole = (self.lets[n].expr if n in self.lets else None for n in (name, total))
        summed = isinstance(whole, Reduce) and (whole.fn, whole.value) == ("sum", name)
        return (
            summed
            and isinstance(part, Unary)
            and part.fn == "exp"
            and self._is_nonpositive(part.x)
            and set(self.lets[total].axes) < set(self.lets[name].axes)
        )

    def _load(self, let: Let, read: Read, scope: Scope) -> ir.Load:
        bindings = scope.bindings()
        if self.packed is not None and let.name == self._packing().value:
            address = self._scratch_address(bindings, self.packed)
            return ir.Load(let.name, len(self.numbers), address)
        places = {place.param: (0, place.size - 1) for place in read.places}
        kept = [g for g in read.guards if not always(g, {**self.kernel.ranges, **places})]
        guards = tuple(Guard(substitute(g.expr, bindings), g.size) for g in kept)
        index = tuple(substitute(e, bindings) for e in read.index)
        address = linear(index, self.refs[read.tensor].strides)
        number = self.numbers[read.tensor]
        return ir.Load(let.name, number, address, guards, read.fill, read.places)

    # -- reductions ------------------------------------------------------------------------------

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
            home.body.append(ir.Finish(name, tuple(pending[name])))

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
        body: _Body,
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
            cuts = segments(self.kernel.sizes[cut], self.tiling.inner(cut))
            for number, segment in enumerate(cuts):
                suffix = "a" if segment.lanes > 1 else f"t{number}"
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
        body: _Body,
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

    # -- small things ----------------------------------------------------------------------------

    def _buffer_args(self) -> tuple[ir.BufferArg, ...]:
        written = {output.tensor for output in self.kernel.outputs}
        by_number = {number: tensor for tensor, number in self.numbers.items()}
        args = []
        for number in range(len(by_number)):
            name = by_number[number]
            size = max(1, math.prod(self.tensors[name].shape))
            noalias = self.refs[name].noalias
            args.append(ir.BufferArg(self.tensors[name].dtype, size, name in written, noalias))
        return tuple(args)

    def _name(self, stem: str) -> str:
        """A loop variable; the underscore keeps it apart from every param."""
        self.fresh += 1
        return f"{stem}_{self.fresh}"


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
