"""The algorithms for an attention kernel on a CPU, each as its passes over the keys.

    online_softmax: one pass
      m' = max(m, max of s);  f = exp(m - m');  p = exp(s - m');  l = l f + sum of p
      y = y f + values x p;   m = m'
      at the end y / l

    streaming_softmax_2pass: two
      first    m' = max(m, max of s);  l = l exp(m - m') + sum of exp(s - m');  m = m'
      second   p = exp(s - m) / l;  y = y + values x p

The first pass of two reads no values, and the second computes the scores again: a product more, for
weights that are those of the softmax itself and sums that are never rescaled.

Against the exact result the error of y is that of a softmax with its sums cut into blocks, plus,
with one pass, one rounding for each block that raised the greatest score: at most
(keys / tile_kv + 4) ulp of the largest value more. With two passes only the sum of exponentials has
these roundings, but each weight has one of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Final

from weft.codegen.cpu import ir
from weft.codegen.cpu.attention import Meeting, Statements, StreamedAttention, nested
from weft.codegen.cpu.scopes import LANES, SERIAL, UNROLLED, Scope
from weft.foundation.index_expr import Expr, axis
from weft.foundation.whole_numbers import round_up
from weft.plan.ir import ONLINE, STREAMING


class OnlineAttention(StreamedAttention):
    """Scores become weights relative to the greatest so far; a greater one rescales the sums."""

    def _stream(self, root: Scope, query: Expr, queries: int) -> None:
        wide = round_up(queries, self.queries.width)
        self._fill(root, self.mixed, wide * round_up(self.elements, self.values.width), 0.0)
        for buffer, value in ((self.tops, -inf), (self.totals, 0.0), (self.past, 0.0)):
            self._fill(root, buffer, wide, value)
        self._over_keys(root, query, queries, self._attend)

    def _attend(self, scope: Scope, at: Meeting) -> None:
        self._scores(scope, at)
        for queries in self._columns(at.width):
            self._measure(scope, at, queries, keep=True)
        self._mix(scope, at)

    def _add_part(self, state: Expr) -> Statements:
        return (
            ir.Load("factor", self.past, state),
            ir.Let("kept", self.dtype, "mul", ("before", "factor")),
            ir.Let("after", self.dtype, "add", ("kept", "part")),
        )

    def _mixed_value(self, address: Expr) -> Statements:
        return (
            ir.Load("sum", self.mixed, address),
            ir.Let(self.parts.mixed, self.dtype, "div", ("sum", self.parts.total)),
        )


class TwoPassAttention(StreamedAttention):
    """The statistics of all scores first, then the values under weights that are final."""

    def _stream(self, root: Scope, query: Expr, queries: int) -> None:
        wide = round_up(queries, self.queries.width)
        self._fill(root, self.tops, wide, -inf)
        self._fill(root, self.totals, wide, 0.0)
        self._over_keys(root, query, queries, self._survey, values=False)
        self._settle(root, wide // self.queries.width)
        self._over_keys(root, query, queries, self._attend)

    def _survey(self, scope: Scope, at: Meeting) -> None:
        """The first pass."""
        self._scores(scope, at)
        for queries in self._columns(at.width):
            self._measure(scope, at, queries, keep=False)

    def _settle(self, root: Scope, panels: int) -> None:
        """Between the passes: the reciprocal r of each sum, and r * 0 as the start of every mixed
        value. That is 0, and NaN for a query that sees nothing, whatever blocks are left out."""
        panel = Scope(root, self._name("jp"), panels, SERIAL)
        element = Scope(panel, self._name("e"), round_up(self.elements, self.values.width), SERIAL)
        vectors = self.queries.width // self.lanes
        loops = ((self._name("v"), vectors, UNROLLED), (self._name("l"), self.lanes, LANES))
        column = axis(loops[0][0]) * self.lanes + axis(loops[1][0])
        state = axis(panel.var) * self.queries.width + column
        reciprocal = (
            ir.Load("sum", self.totals, state),
            ir.Let("one", self.dtype, "const", value=1.0),
            ir.Let("share", self.dtype, "div", ("one", "sum")),
            ir.Let("nothing", self.dtype, "const", value=0.0),
            ir.Let("start", self.dtype, "mul", ("share", "nothing")),
            ir.Store(self.past, state, "share", ()),
        )
        panel.body.append(nested(loops, *reciprocal))
        place = self._mixed_place(axis(panel.var), axis(element.var), column)
        element.body.append(nested(loops, ir.Store(self.mixed, place, "start", ())))
        element.close()
        panel.close()

    def _attend(self, scope: Scope, at: Meeting) -> None:
        """The second pass."""
        self._scores(scope, at)
        for queries in self._columns(at.width):
            state = self._state(at, queries)
            known = (
                ir.Load("top", self.tops, state),
                *self._shift("top"),
                ir.Load("share", self.past, state),
            )
            scope.body.append(nested(queries.loops, *known))
            self._each_score(scope, at, queries, self._store_weight)
        self._mix(scope, at)

    def _store_weight(self, place: Expr) -> Statements:
        return (
            *self._weight(self.parts.x),
            ir.Let("final", self.dtype, "mul", ("weight", "share")),
            ir.Store(self.weights.scratch, place, "final", ()),
        )

    def _add_part(self, state: Expr) -> Statements:
        return (ir.Let("after", self.dtype, "add", ("before", "part")),)

    def _mixed_value(self, address: Expr) -> Statements:
        return (ir.Load(self.parts.mixed, self.mixed, address),)


ALGORITHMS: Final[Mapping[str, type[StreamedAttention]]] = {
    ONLINE: OnlineAttention,
    STREAMING: TwoPassAttention,
}
"""By the name that plans give them."""
