"""Attention block by block, with an online softmax: no matrix of scores is ever in memory.

    parallel piece:                           `tile_q` queries of one batch entry
      pack the queries                        [panels of nr queries][d][nr]
      m = -inf;  l = 0;  y = 0                a number, a number and a value for each query
      for each `tile_kv` keys, as far as a causal mask lets any of the queries see:
        pack the keys                         [panels of mr keys][d][mr]
        pack their values                     [panels of mr elements][key][mr]
        for each panel of queries:
          s = keys x queries                  [key][nr]: lanes are queries from here on
          m' = max(m, max of s over the keys, after scales and masks)
          f = exp(m - m');  p = exp(s - m');  l = l f + sum of p over the keys
          y = y f + values x p                [element][nr]
          m = m'
      for each query: y / l, what follows, and the stores

Scores of a panel come out as the packed operand that the second product needs. A row of -inf has
no greatest score; it is compared with 0 then, so that exponentials are 0 and y / l is 0 / 0, which
is what a softmax of such a row is. Blocks that a causal mask hides are not computed: what NaN or
infinity their keys and values hold does not reach the result.

Against the exact result the error of y is that of a softmax with its sums cut into blocks, plus one
rounding for each block that raised the greatest score: at most (keys / tile_kv + 4) ulp of the
largest value more.
"""

from __future__ import annotations

from math import inf

from weft.codegen.cpu import ir
from weft.codegen.cpu.panels import Cut, Panels, Side, Tile, close, cuts, repeat, up
from weft.codegen.cpu.scopes import LANES, PARALLEL, SERIAL, UNROLLED, Scope
from weft.codegen.cpu.tiling import AxisTiling, Segment, Tiling, segments
from weft.foundation.dtypes import I1
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import Expr, axis, constant, simplify
from weft.memory.ir import MemRef
from weft.plan.attention import scratch_elements
from weft.plan.ir import AttentionPlan
from weft.region.attention import Attention, attention_of, last_key, value_side
from weft.region.ir import Binary, Kernel, Reduce, Tensor


class StreamedAttention(Panels):
    """The nest of one attention kernel."""

    def __init__(
        self,
        kernel: Kernel,
        tensors: dict[str, Tensor],
        refs: dict[str, MemRef],
        plan: AttentionPlan,
    ) -> None:
        super().__init__(kernel, tensors, refs, Tiling(None, {}, {}))
        found = attention_of(kernel)
        if found is None:
            raise InternalError(f"{kernel.name} is no attention")
        self.parts: Attention = found
        self.plan, self.lanes = plan, plan.vector
        self.dtype = kernel.let(found.scores).dtype
        rows, columns = plan.register_tile
        first = len(self.numbers)
        query, key = self._factors()
        self.queries = Side(query, (found.query,), found.depth, first, columns)
        self.keys = Side(key, (found.key,), found.depth, first + 1, rows)
        value = value_side(kernel, found)
        self.values = Side(value, found.value, (found.key,), first + 2, rows)
        self.weights = Side(query, (found.query,), (found.key,), first + 3, columns)
        self.mixed, self.tops, self.totals, self.past = range(first + 4, first + 8)
        self.depth, self.elements = self._size(found.depth), self._size(found.value)

    def routine(self, name: str) -> ir.Routine:
        body: list[ir.Stmt] = []
        pieces = 0
        for cut in cuts(self.kernel.sizes[self.parts.query], self.plan.tile_q):
            total = self._size(self.parts.batch) * cut.count
            body.append(self._piece_loop(cut, pieces, total))
            pieces += total
        scratch = tuple((self.dtype, n) for n in scratch_elements(self.kernel, self.plan))
        return ir.Routine(
            name, self._buffer_args(), pieces, tuple(body), self._params(), scratch,
            self._violations(),
        )  # fmt: skip

    def _factors(self) -> tuple[str, str]:
        """What is packed for the queries, and what for the keys."""
        made = self.kernel.let(self.parts.scores).expr
        product = self.kernel.let(made.value).expr if isinstance(made, Reduce) else None
        if not isinstance(product, Binary):
            raise InternalError("scores are no products")
        pair = product.lhs, product.rhs
        return pair if self.parts.query in self.lets[product.lhs].axes else pair[::-1]

    # -- pieces ----------------------------------------------------------------------------------

    def _piece_loop(self, cut: Cut, first: int, total: int) -> ir.Stmt:
        piece = self._name("piece")
        ranges = {piece: (first, first + total - 1)}
        number = axis(piece) - first
        start = simplify(number % cut.count, ranges) * cut.extent + cut.start
        root = Scope(None, kind=PARALLEL)
        batch = simplify(number // cut.count, ranges)
        root.axes.update(self._unflattened(self.parts.batch, batch))
        self._pack_side(root, self.queries, start, cut.extent, constant(0), self.depth)
        self._begin(root, cut.extent)
        for keys in cuts(self.kernel.sizes[self.parts.key], self.plan.tile_kv):
            self._key_blocks(root, keys, start, cut.extent)
        self._finish(root, start, cut.extent)
        stop = constant(first + total)
        return ir.For(piece, constant(first), stop, 1, PARALLEL, tuple(root.body))

    def _begin(self, root: Scope, queries: int) -> None:
        wide = up(queries, self.queries.width)
        elements = wide * up(self.elements, self.values.width)
        starts = ((self.mixed, elements, 0.0), (self.tops, wide, -inf))
        for buffer, count, value in (*starts, (self.totals, wide, 0.0), (self.past, wide, 0.0)):
            loop = Scope(root, self._name("z"), count // self.lanes, SERIAL)
            inner = Scope(loop, self._name("zl"), self.lanes, LANES)
            place = axis(loop.var) * self.lanes + axis(inner.var)
            start = self._name("start")
            inner.body += [
                ir.Let(start, self.dtype, "const", value=value),
                ir.Store(buffer, place, start, ()),
            ]
            close(inner, root)

    # -- keys ------------------------------------------------------------------------------------

    def _key_blocks(self, root: Scope, keys: Cut, query: Expr, queries: int) -> None:
        """Blocks of equally many keys, up to the last that a query of the piece may see."""
        scope = Scope(root, self._name("kb"), keys.count, SERIAL)
        start = axis(scope.var) * keys.extent + keys.start
        self._pack_side(scope, self.keys, start, keys.extent, constant(0), self.depth)
        self._pack_side(scope, self.values, constant(0), self.elements, start, keys.extent)
        for panels in cuts(queries, self.queries.width):
            over = Scope(scope, self._name("jp"), panels.count, SERIAL)
            panel = axis(over.var) + panels.start // self.queries.width
            self._panel_of_queries(over, panel, query, panels.extent, start, keys.extent)
            over.close()
        stop, end = constant(keys.count), None
        beyond = last_key(self.kernel, self.parts)
        if beyond is not None:
            stop = (query + (queries - 1 + beyond - keys.start)) // keys.extent + 1
            end = keys.count
        body = tuple(scope.body)
        root.body.append(ir.For(scope.var, constant(0), stop, 1, SERIAL, body, end))

    def _panel_of_queries(
        self, scope: Scope, panel: Expr, query: Expr, width: int, key: Expr, keys: int
    ) -> None:
        first = query + panel * self.queries.width
        self._scores(scope, panel, keys)
        vectors = self.queries.width // self.lanes
        for cut in segments(width, AxisTiling(vectors, self.lanes)):
            self._weigh(scope, cut, panel, first, key, keys)
        self._mix(scope, panel, keys)

    def _tile_loops(self, side: Side) -> tuple[Tile, tuple[tuple[str, int, ir.LoopKind], ...]]:
        tile = self._name("u"), self._name("v"), self._name("l")
        vectors = self.queries.width // self.lanes
        kinds = ((side.width, UNROLLED), (vectors, UNROLLED), (self.lanes, LANES))
        return tile, tuple((var, n, kind) for var, (n, kind) in zip(tile, kinds, strict=True))

    def _scores(self, scope: Scope, panel: Expr, keys: int) -> None:
        """The products of all keys of the block with a panel of queries."""
        over = Scope(scope, self._name("ip"), -(-keys // self.keys.width), SERIAL)
        tile, loops = self._tile_loops(self.keys)
        over.body.append(ir.Init("tile", self.dtype, "sum", loops))
        deep = Scope(over, self._name("k"), self.depth, SERIAL)
        sides = self.keys, self.queries
        self._multiply_step(deep, sides, tile, axis(over.var), panel, self.depth)
        deep.close()
        row = axis(over.var) * self.keys.width + axis(tile[0])
        place = row * self.queries.width + axis(tile[1]) * self.lanes + axis(tile[2])
        store = ir.Store(self.weights.scratch, place, "part", ())
        over.body.append(_nested(loops, ir.Finish("part", ("tile",)), store))
        over.close()

    # -- the softmax -----------------------------------------------------------------------------

    def _weigh(
        self, scope: Scope, cut: Segment, panel: Expr, query: Expr, key: Expr, keys: int
    ) -> None:
        """Scores of some queries become weights relative to the greatest so far."""
        v, lane = self._name("v"), self._name("l")
        kind = LANES if cut.lanes > 1 else UNROLLED
        loops = ((v, cut.unroll, UNROLLED), (lane, cut.lanes, kind))
        column = axis(v) * cut.lanes + axis(lane) + cut.start
        top, total = self._name("top"), self._name("total")
        scope.body.append(ir.Init(top, self.dtype, "max", loops))
        self._masked(scope, loops, (column, query, key), keys, top)
        state = panel * self.queries.width + column
        scope.body.append(_nested(loops, *self._raised(top, state)))
        scope.body.append(ir.Init(total, self.dtype, "sum", loops))
        row = self._name("r")
        place = axis(row) * self.queries.width + column
        weighed = (
            ir.Load("x", self.weights.scratch, place),
            ir.Let("distance", self.dtype, "sub", ("x", "shift")),
            ir.Let("weight", self.dtype, "exp_nonpositive", ("distance",)),
            ir.Store(self.weights.scratch, place, "weight", ()),
            ir.Accumulate(total, "weight"),
        )
        scope.body.append(repeat(row, keys, SERIAL, _nested(loops, *weighed)))
        summed = (
            ir.Finish("more", (total,)),
            ir.Load("old", self.totals, state),
            ir.Let("kept", self.dtype, "mul", ("old", "factor")),
            ir.Let("all", self.dtype, "add", ("kept", "more")),
            ir.Store(self.totals, state, "all", ()),
        )
        scope.body.append(_nested(loops, *summed))

    def _masked(
        self,
        scope: Scope,
        loops: tuple[tuple[str, int, ir.LoopKind], ...],
        places: tuple[Expr, Expr, Expr],
        keys: int,
        top: str,
    ) -> None:
        """What the kernel makes of the scores, written back, and the greatest of it."""
        column, query, key = places
        row = Scope(scope, self._name("r"), keys, SERIAL)
        row.axes[self.parts.key] = key + axis(row.var)
        inner = row
        for var, count, kind in loops:
            inner = Scope(inner, var, count, kind)
        inner.axes[self.parts.query] = query + column
        place = axis(row.var) * self.queries.width + column
        inner.body.append(ir.Load(self.parts.scores, self.weights.scratch, place))
        inner.names.add(self.parts.scores)
        self._emit(self.parts.x, inner)
        if self.parts.x != self.parts.scores:
            inner.body.append(ir.Store(self.weights.scratch, place, self.parts.x, ()))
        inner.body.append(ir.Accumulate(top, self.parts.x))
        close(inner, scope)

    def _raised(self, top: str, state: Expr) -> tuple[ir.Stmt, ...]:
        """The greatest score so far, what to compare with it, and the factor for what is there."""
        return (
            ir.Finish("high", (top,)),
            ir.Load("before", self.tops, state),
            ir.Let("now", self.dtype, "max", ("before", "high")),
            ir.Let("none", self.dtype, "const", value=-inf),
            ir.Let("hidden", I1, "eq", ("now", "none")),
            ir.Let("zero", self.dtype, "const", value=0.0),
            ir.Let("shift", self.dtype, "select", ("hidden", "zero", "now")),
            ir.Let("fallen", self.dtype, "sub", ("before", "shift")),
            ir.Let("factor", self.dtype, "exp_nonpositive", ("fallen",)),
            ir.Store(self.tops, state, "now", ()),
            ir.Store(self.past, state, "factor", ()),
        )

    # -- values ----------------------------------------------------------------------------------

    def _mix(self, scope: Scope, panel: Expr, keys: int) -> None:
        """The values of the block, weighed, added to what earlier blocks gave."""
        over = Scope(scope, self._name("ep"), -(-self.elements // self.values.width), SERIAL)
        tile, loops = self._tile_loops(self.values)
        over.body.append(ir.Init("tile", self.dtype, "sum", loops))
        deep = Scope(over, self._name("k"), keys, SERIAL)
        sides = self.values, self.weights
        self._multiply_step(deep, sides, tile, axis(over.var), constant(0), keys)
        deep.close()
        column = axis(tile[1]) * self.lanes + axis(tile[2])
        element = axis(over.var) * self.values.width + axis(tile[0])
        place = self._mixed_place(panel, element, column)
        added = (
            ir.Finish("part", ("tile",)),
            ir.Load("before", self.mixed, place),
            ir.Load("factor", self.past, panel * self.queries.width + column),
            ir.Let("kept", self.dtype, "mul", ("before", "factor")),
            ir.Let("after", self.dtype, "add", ("kept", "part")),
            ir.Store(self.mixed, place, "after", ()),
        )
        over.body.append(_nested(loops, *added))
        over.close()

    def _mixed_place(self, panel: Expr, element: Expr, column: Expr) -> Expr:
        row = panel * up(self.elements, self.values.width) + element
        return row * self.queries.width + column

    # -- the rest of the kernel ------------------------------------------------------------------

    def _finish(self, root: Scope, query: Expr, queries: int) -> None:
        """Query by query: mixed values are divided by the sum of their weights, and everything
        after them is computed."""
        over = Scope(root, self._name("i"), queries, SERIAL)
        over.axes[self.parts.query] = query + axis(over.var)
        over.body.append(ir.Load(self.parts.top, self.tops, axis(over.var)))
        over.body.append(ir.Load(self.parts.total, self.totals, axis(over.var)))
        over.names.update((self.parts.top, self.parts.total))
        mixed = [o for o in self.kernel.outputs if self._is_mixed(o.value)]
        self._store([o for o in self.kernel.outputs if o not in mixed], over)
        width = self.queries.width
        panel, column = axis(over.var) // width, axis(over.var) % width
        for cut in segments(self.elements, AxisTiling(1, self.lanes)):
            loop = Scope(over, self._name("j"), cut.count * cut.unroll, SERIAL)
            kind = LANES if cut.lanes > 1 else UNROLLED
            inner = Scope(loop, self._name("jl"), cut.lanes, kind)
            place = axis(loop.var) * cut.lanes + axis(inner.var) + cut.start
            inner.axes.update(self._unflattened(self.parts.value, place))
            address = self._mixed_place(panel, place, column)
            inner.body += [
                ir.Load("sum", self.mixed, address),
                ir.Let(self.parts.mixed, self.dtype, "div", ("sum", self.parts.total)),
            ]
            inner.names.add(self.parts.mixed)
            self._store(mixed, inner)
            close(inner, over)
        over.close()

    def _is_mixed(self, name: str) -> bool:
        """Whether a value lives over the elements of mixed values."""
        return bool(set(self.lets[name].axes) & set(self.parts.value))


def _nested(loops: tuple[tuple[str, int, ir.LoopKind], ...], *body: ir.Stmt) -> ir.For:
    """Statements inside loops, the first outermost."""
    (var, count, kind), *inner = loops
    if not inner:
        return repeat(var, count, kind, *body)
    return repeat(var, count, kind, _nested(tuple(inner), *body))
