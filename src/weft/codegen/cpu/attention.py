"""Attention in blocks of queries and keys (FlashAttention): the matrix of scores is never stored.

    parallel piece:                           `tile_q` queries of one batch entry
      pack the queries                        [panels of nr queries][d][nr]
      one or two passes, the algorithm's, over each `tile_kv` keys, as far as a causal mask lets any
      of the queries see:
        pack the keys                         [panels of mr keys][d][mr]
        pack their values                     [panels of mr elements][key][mr]
        for each panel of queries:
          s = keys x queries                  [key][nr]: lanes are queries from here on
          p = exp(s - m)                      after scales and masks
          y = y + values x p                  [element][nr]
      for each query: y, what follows, and the stores

Scores of a panel come out as the packed operand that the second product needs. A row of -inf has
no greatest score; it is compared with 0 then, so that exponentials are 0 and their share of their
sum is 0 / 0, which is what a softmax of such a row is. Blocks that a causal mask hides are not
computed: what NaN or infinity their keys and values hold does not reach the result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from weft.codegen.cpu import ir
from weft.codegen.cpu.panels import Cut, Panels, Side, Tile, close, cuts, repeat
from weft.codegen.cpu.scopes import LANES, PARALLEL, SERIAL, UNROLLED, Scope
from weft.codegen.cpu.tiling import AxisTiling, Tiling, segments
from weft.foundation.dtypes import I1
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import Expr, axis, constant, simplify
from weft.foundation.whole_numbers import round_up
from weft.memory.ir import MemRef
from weft.plan.attention import scratch_elements
from weft.plan.ir import AttentionPlan
from weft.region.forms.attention import value_side
from weft.region.forms.bands import last_key
from weft.region.ir import Binary, Kernel, Reduce, Tensor, attention_parts

Loops: TypeAlias = tuple[tuple[str, int, ir.LoopKind], ...]
"""Variables, counts and kinds, the outermost first."""


@dataclass(frozen=True)
class Meeting:
    """A panel of queries and a block of keys."""

    panel: Expr
    query: Expr
    """The first query."""
    width: int
    """The queries that there are."""
    key: Expr
    """The first key."""
    keys: int


@dataclass(frozen=True)
class Columns:
    """Queries of a panel that vectors hold side by side: the loops over them, and which it is."""

    loops: Loops
    column: Expr


Statements: TypeAlias = tuple[ir.Stmt, ...]
Step: TypeAlias = Callable[[Scope, Meeting], None]


class StreamedAttention(Panels, ABC):
    """The nest of one attention kernel; a subclass for each algorithm."""

    def __init__(
        self,
        kernel: Kernel,
        tensors: dict[str, Tensor],
        refs: dict[str, MemRef],
        plan: AttentionPlan,
    ) -> None:
        super().__init__(kernel, tensors, refs, Tiling(None, {}, {}))
        found = self.parts = attention_parts(kernel)
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
            raise InternalError("scores are not products")
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
        root.axes.update(self._unflatten(self.parts.batch, batch))
        self._pack_side(root, self.queries, start, cut.extent, constant(0), self.depth)
        self._stream(root, start, cut.extent)
        self._finish(root, start, cut.extent)
        stop = constant(first + total)
        return ir.For(piece, constant(first), stop, 1, PARALLEL, tuple(root.body))

    @abstractmethod
    def _stream(self, root: Scope, query: Expr, queries: int) -> None:
        """The passes over the keys."""

    def _fill(self, root: Scope, buffer: int, count: int, value: float) -> None:
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

    def _over_keys(
        self, root: Scope, query: Expr, queries: int, step: Step, values: bool = True
    ) -> None:
        """A pass: a step for each panel of the piece's queries and each block of keys. Values are
        packed where the step mixes them."""
        for keys in cuts(self.kernel.sizes[self.parts.key], self.plan.tile_kv):
            scope = Scope(root, self._name("kb"), keys.count, SERIAL)
            start = axis(scope.var) * keys.extent + keys.start
            self._pack_side(scope, self.keys, start, keys.extent, constant(0), self.depth)
            if values:
                self._pack_side(scope, self.values, constant(0), self.elements, start, keys.extent)
            for panels in cuts(queries, self.queries.width):
                over = Scope(scope, self._name("jp"), panels.count, SERIAL)
                panel = axis(over.var) + panels.start // self.queries.width
                first = query + panel * self.queries.width
                step(over, Meeting(panel, first, panels.extent, start, keys.extent))
                over.close()
            root.body.append(self._visible(scope, keys, query + (queries - 1)))

    def _visible(self, scope: Scope, keys: Cut, last: Expr) -> ir.For:
        """The loop over blocks of keys, up to the last that a query of the piece may see."""
        stop, end = constant(keys.count), None
        beyond = last_key(self.kernel, self.parts)
        if beyond is not None:
            # The last query of the piece sees the most keys: what it does not see, none of the
            # piece does.
            stop = (last + (beyond - keys.start)) // keys.extent + 1
            end = keys.count
        return ir.For(scope.var, constant(0), stop, 1, SERIAL, tuple(scope.body), end)

    def _tile_loops(self, side: Side) -> tuple[Tile, Loops]:
        tile = self._name("u"), self._name("v"), self._name("l")
        vectors = self.queries.width // self.lanes
        kinds = ((side.width, UNROLLED), (vectors, UNROLLED), (self.lanes, LANES))
        return tile, tuple((var, n, kind) for var, (n, kind) in zip(tile, kinds, strict=True))

    def _scores(self, scope: Scope, at: Meeting) -> None:
        """The products of all keys of the block with a panel of queries."""
        over = Scope(scope, self._name("ip"), -(-at.keys // self.keys.width), SERIAL)
        tile, loops = self._tile_loops(self.keys)
        over.body.append(ir.Init("tile", self.dtype, "sum", loops))
        deep = Scope(over, self._name("k"), self.depth, SERIAL)
        sides = self.keys, self.queries
        self._multiply_step(deep, sides, tile, axis(over.var), at.panel, self.depth)
        deep.close()
        row = axis(over.var) * self.keys.width + axis(tile[0])
        place = row * self.queries.width + axis(tile[1]) * self.lanes + axis(tile[2])
        store = ir.Store(self.weights.scratch, place, "part", ())
        over.body.append(nested(loops, ir.Finish("part", ("tile",)), store))
        over.close()

    # -- the softmax -----------------------------------------------------------------------------

    def _columns(self, width: int) -> Iterator[Columns]:
        """The queries of a panel, in whole vectors and then one by one."""
        vectors = self.queries.width // self.lanes
        for cut in segments(width, AxisTiling(vectors, self.lanes)):
            v, lane = self._name("v"), self._name("l")
            kind = LANES if cut.lanes > 1 else UNROLLED
            loops = ((v, cut.unroll, UNROLLED), (lane, cut.lanes, kind))
            yield Columns(loops, axis(v) * cut.lanes + axis(lane) + cut.start)

    def _state(self, at: Meeting, queries: Columns) -> Expr:
        """Where the statistics of a query are."""
        return at.panel * self.queries.width + queries.column

    def _measure(self, scope: Scope, at: Meeting, queries: Columns, keep: bool) -> None:
        """The greatest score of some queries so far, and the sum of exponentials relative to it;
        with `keep` these become the weights, and the factor for what is mixed already is kept."""
        top, total = self._name("top"), self._name("total")
        scope.body.append(ir.Init(top, self.dtype, "max", queries.loops))
        self._mask_scores(scope, at, queries, top)
        scope.body.append(
            nested(queries.loops, *self._raise_top(top, self._state(at, queries), keep))
        )
        scope.body.append(ir.Init(total, self.dtype, "sum", queries.loops))
        row = self._name("r")
        place = axis(row) * self.queries.width + queries.column
        weighed = (
            ir.Load("x", self.weights.scratch, place),
            *self._weight("x"),
            *((ir.Store(self.weights.scratch, place, "weight", ()),) if keep else ()),
            ir.Accumulate(total, "weight"),
        )
        scope.body.append(repeat(row, at.keys, SERIAL, nested(queries.loops, *weighed)))
        scope.body.append(nested(queries.loops, *self._add_up(total, self._state(at, queries))))

    def _mask_scores(self, scope: Scope, at: Meeting, queries: Columns, top: str) -> None:
        """What the kernel makes of the scores, written back, and the greatest of it."""

        def kept(place: Expr) -> Statements:
            back = ir.Store(self.weights.scratch, place, self.parts.x, ())
            changed = self.parts.x != self.parts.scores
            return (*((back,) if changed else ()), ir.Accumulate(top, self.parts.x))

        self._each_score(scope, at, queries, kept)

    def _each_score(
        self, scope: Scope, at: Meeting, queries: Columns, then: Callable[[Expr], Statements]
    ) -> None:
        """What the kernel makes of each score, and what is done with it, given its place."""
        row = Scope(scope, self._name("r"), at.keys, SERIAL)
        row.axes[self.parts.key] = at.key + axis(row.var)
        inner = row
        for var, count, kind in queries.loops:
            inner = Scope(inner, var, count, kind)
        inner.axes[self.parts.query] = at.query + queries.column
        place = axis(row.var) * self.queries.width + queries.column
        inner.body.append(ir.Load(self.parts.scores, self.weights.scratch, place))
        inner.names.add(self.parts.scores)
        self._emit(self.parts.x, inner)
        inner.body += then(place)
        close(inner, scope)

    def _raise_top(self, top: str, state: Expr, keep: bool) -> Statements:
        """The greatest score so far, what to compare with it, and the factor for what is there."""
        return (
            ir.Finish("high", (top,)),
            ir.Load("before", self.tops, state),
            ir.Let("now", self.dtype, "max", ("before", "high")),
            *self._shift("now"),
            ir.Let("fallen", self.dtype, "sub", ("before", "shift")),
            # What was summed relative to the old top is e^(old - new) times as large relative to
            # the new one. `before` is -inf at first, and the factor 0, for sums that are 0 too.
            ir.Let("factor", self.dtype, "exp_floored", ("fallen",)),
            ir.Store(self.tops, state, "now", ()),
            *((ir.Store(self.past, state, "factor", ()),) if keep else ()),
        )

    def _shift(self, top: str) -> Statements:
        """What scores are compared with: the greatest, or 0 where all of them are -inf."""
        return (
            ir.Let("none", self.dtype, "const", value=-inf),
            ir.Let("hidden", I1, "eq", (top, "none")),
            ir.Let("zero", self.dtype, "const", value=0.0),
            ir.Let("shift", self.dtype, "select", ("hidden", "zero", top)),
        )

    def _weight(self, x: str) -> Statements:
        return (
            ir.Let("distance", self.dtype, "sub", (x, "shift")),
            ir.Let("weight", self.dtype, "exp_floored", ("distance",)),
        )

    def _add_up(self, total: str, state: Expr) -> Statements:
        return (
            ir.Finish("more", (total,)),
            ir.Load("old", self.totals, state),
            ir.Let("kept", self.dtype, "mul", ("old", "factor")),
            ir.Let("all", self.dtype, "add", ("kept", "more")),
            ir.Store(self.totals, state, "all", ()),
        )

    # -- values ----------------------------------------------------------------------------------

    def _mix(self, scope: Scope, at: Meeting) -> None:
        """The values of the block, weighed, added to what earlier blocks gave."""
        over = Scope(scope, self._name("ep"), -(-self.elements // self.values.width), SERIAL)
        tile, loops = self._tile_loops(self.values)
        over.body.append(ir.Init("tile", self.dtype, "sum", loops))
        deep = Scope(over, self._name("k"), at.keys, SERIAL)
        sides = self.values, self.weights
        self._multiply_step(deep, sides, tile, axis(over.var), constant(0), at.keys)
        deep.close()
        column = axis(tile[1]) * self.lanes + axis(tile[2])
        element = axis(over.var) * self.values.width + axis(tile[0])
        place = self._mixed_place(at.panel, element, column)
        added = (
            ir.Finish("part", ("tile",)),
            ir.Load("before", self.mixed, place),
            *self._add_part(at.panel * self.queries.width + column),
            ir.Store(self.mixed, place, "after", ()),
        )
        over.body.append(nested(loops, *added))
        over.close()

    @abstractmethod
    def _add_part(self, state: Expr) -> Statements:
        """`after`, which `part` and what there was `before` give."""

    def _mixed_place(self, panel: Expr, element: Expr, column: Expr) -> Expr:
        row = panel * round_up(self.elements, self.values.width) + element
        return row * self.queries.width + column

    # -- the rest of the kernel ------------------------------------------------------------------

    def _finish(self, root: Scope, query: Expr, queries: int) -> None:
        """Query by query: mixed values, and everything after them."""
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
            inner.axes.update(self._unflatten(self.parts.value, place))
            address = self._mixed_place(panel, place, column)
            inner.body += self._mixed_value(address)
            inner.names.add(self.parts.mixed)
            self._store(mixed, inner)
            close(inner, over)
        over.close()

    @abstractmethod
    def _mixed_value(self, address: Expr) -> Statements:
        """The mixed value, from the sum at an address."""

    def _is_mixed(self, name: str) -> bool:
        """Whether a value lives over the elements of mixed values."""
        return bool(set(self.lets[name].axes) & set(self.parts.value))


def nested(loops: Loops, *body: ir.Stmt) -> ir.For:
    """Statements inside loops, the first outermost."""
    (var, count, kind), *inner = loops
    if not inner:
        return repeat(var, count, kind, *body)
    return repeat(var, count, kind, nested(tuple(inner), *body))
