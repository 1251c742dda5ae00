"""The mask and scale of an attention: which keys each query sees (causal, windowed).

    x = s * scale  where low <= key - query <= high,  -inf elsewhere

A causal mask is a band without a lower bound, a sliding window one with both. What is taken out of
the logits here, templates do for whole blocks of keys. A hull says where the keys lie that a tile
of queries may see, by numbers of the run: those of packed sequences, of which each sees its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from weft.foundation.dtypes import SI32, SI64
from weft.foundation.index_expr import Expr, axis, constant
from weft.foundation.records import dataclass
from weft.region.form import AttentionParts, StreamParts
from weft.region.ir import AxisIndex, Binary, Cast, Const, Kernel, Let, Read, Select

_AND: Final = ("and", "min")
"""The functions that are true where both of two truth values are."""
HULL_ROWS: Final = 64
"""Queries of a tile that a hull has numbers for: the rows of a warpgroup's matrix instruction."""


@dataclass(frozen=True)
class End:
    """A number of the run, the same for all queries of a matrix, up to which keys are seen: those
    before it, and itself if it is `inclusive`. `value` is the Let that reads it."""

    value: str
    inclusive: bool


@dataclass(frozen=True)
class Hull:
    """A condition on a query and a key, `each`, that holds nowhere outside of `first <= key < last`
    and everywhere inside of `whole_from <= key < whole_to`: the Lets that read these numbers, of
    which there are four for each tile of `HULL_ROWS` queries."""

    first: str
    last: str
    whole_from: str
    whole_to: str
    each: str


@dataclass(frozen=True)
class Band:
    """Which keys a query sees: `low <= key - query <= high`; None is no bound. `ends` are found
    where they are asked for."""

    low: int | None = None
    high: int | None = None
    ends: tuple[End, ...] = ()
    hulls: tuple[Hull, ...] = ()

    def __and__(self, other: Band) -> Band:
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        ends, hulls = (*self.ends, *other.ends), (*self.hulls, *other.hulls)
        return Band(max(lows, default=None), min(highs, default=None), ends, hulls)


@dataclass(frozen=True)
class Logits:
    """The logits `x` that are made of `scores`, and their axes."""

    x: str
    scores: str
    query: str
    key: str
    ends: bool = False
    """Whether numbers of the run may be ends of what is seen."""


@dataclass(frozen=True)
class Peeled:
    """The logits of an attention, `x = value * scale` inside a band, -inf outside."""

    value: str
    scale: float
    band: Band


def band_of(kernel: Kernel, found: AttentionParts, *, ends: bool = False) -> Peeled:
    """The logits without what a band and a scale make of them; with `ends`, without what is seen up
    to numbers of the run.

    The scores of hidden keys are -inf: through a select, or by adding one that is -inf there. A
    scale is a positive factor of the scores themselves: greater ones stay greater.
    """
    logits = Logits(found.x, found.scores, found.query, found.key, ends)
    return _peel(_with_hidden_rows(kernel, found), logits)


def band_of_stream(kernel: Kernel, found: StreamParts) -> Peeled:
    """The same for the logits of a stream; its rows stand for queries, its columns for keys."""
    logits = Logits(found.x, found.products[0], found.row, found.column)
    return _peel({let.name: let for let in kernel.body}, logits)


def _peel(lets: Mapping[str, Let], found: Logits) -> Peeled:
    value, band = found.x, Band()
    while True:
        hidden = _find_hidden(lets, value, found)
        if hidden is None:
            break
        value, band = hidden[0], band & hidden[1]
    scale = _scale_of_scores(lets, value, found.scores)
    return Peeled(found.scores, scale, band) if scale is not None else Peeled(value, 1.0, band)


def _with_hidden_rows(kernel: Kernel, found: AttentionParts) -> dict[str, Let]:
    """The Lets, with the masks of rows that see nothing as they were.

    Such rows are shown every key, `select(blind, 0, mask)`, and every result of theirs is replaced:
    what they see in between does not matter.
    """
    lets = {let.name: let for let in kernel.body}
    results = [lets[output.value].expr for output in kernel.outputs]
    preds = [{expr.pred} if isinstance(expr, Select) else set[str]() for expr in results]
    blind = {name for name in set.intersection(*preds) if found.key not in lets[name].axes}
    shown = dict(lets)
    for name, let in lets.items():
        match let.expr:
            case Select(pred=pred, x=x, y=mask) if pred in blind and _is_number(lets, x, 0.0):
                shown[name] = lets[mask]
    return shown


def last_key(kernel: Kernel, found: AttentionParts) -> int | None:
    """The c for which the mask hides every key after query + c; None where there is no such c."""
    return band_of(kernel, found).band.high


def _find_hidden(lets: Mapping[str, Let], name: str, found: Logits) -> tuple[str, Band] | None:
    """A value that is -inf outside of a band, as the value inside and the band."""
    match lets[name].expr:
        case Select(pred=pred, x=x, y=y) if _is_number(lets, y, float("-inf")):
            band = _band(lets, pred, found)
            return None if band is None else (x, band)
        case Binary(fn="add", lhs=lhs, rhs=rhs):
            for x, added in ((lhs, rhs), (rhs, lhs)):
                band = _mask(lets, added, found)
                if band is not None:
                    return x, band
    return None


def _mask(lets: Mapping[str, Let], name: str, found: Logits) -> Band | None:
    """The band in which a value is 0, if it is -inf outside."""
    hidden = _find_hidden(lets, name, found)
    if hidden is None or _is_number(lets, hidden[0], 0.0):
        return None if hidden is None else hidden[1]
    inside = _mask(lets, hidden[0], found)
    return None if inside is None else inside & hidden[1]


def _scale_of_scores(lets: Mapping[str, Let], name: str, scores: str) -> float | None:
    """The positive c for which a value is the scores times c."""
    if name == scores:
        return 1.0
    expr = lets[name].expr
    if not isinstance(expr, Binary) or expr.fn not in ("mul", "div"):
        return None
    sides = [(expr.lhs, expr.rhs)] + ([(expr.rhs, expr.lhs)] if expr.fn == "mul" else [])
    for x, by in sides:
        number = lets[by].expr
        if x == scores and isinstance(number, Const) and isinstance(number.value, float):
            factor = number.value if expr.fn == "mul" else 1.0 / (number.value or math.inf)
            return factor if 0.0 < factor < math.inf else None
    return None


def _is_number(lets: Mapping[str, Let], name: str, number: float) -> bool:
    expr = lets[name].expr
    return isinstance(expr, Const) and expr.value == number


def _band(lets: Mapping[str, Let], pred: str, found: Logits) -> Band | None:
    """A condition on `key - query` as a band; None where it is another."""
    expr = lets[pred].expr
    if isinstance(expr, Binary) and expr.fn == "or":
        return _hull(lets, expr, found)
    if isinstance(expr, Binary) and expr.fn in _AND:
        sides = (_band(lets, expr.lhs, found), _band(lets, expr.rhs, found))
        return None if sides[0] is None or sides[1] is None else sides[0] & sides[1]
    if not isinstance(expr, Binary) or expr.fn not in ("le", "lt", "ge", "gt"):
        return None
    names = (expr.lhs, expr.rhs) if expr.fn in ("le", "lt") else (expr.rhs, expr.lhs)
    small, large = (_index_of_axes(lets, name) for name in names)
    if small is None or large is None:
        return _end(lets, *names, found, inclusive=expr.fn in ("le", "ge"))
    strict = int(expr.fn in ("lt", "gt"))
    # small <= large says key - query <= c where large - small is c - (key - query), and key - query
    # >= -c where it is c + (key - query).
    ahead = axis(found.key) - axis(found.query)
    above, below = large - small + ahead, large - small - ahead
    if above.is_constant:
        return Band(high=above.constant - strict)
    return Band(low=strict - below.constant) if below.is_constant else None


def _hull(lets: Mapping[str, Let], expr: Binary, found: Logits) -> Band | None:
    """`whole or (inside and each)`, of which the first two are ranges of keys that are read."""
    rest = lets[expr.rhs].expr
    if not isinstance(rest, Binary) or rest.fn != "and":
        return None
    ranges = [_range_of_keys(lets, name, found) for name in (rest.lhs, expr.lhs)]
    if ranges[0] is None or ranges[1] is None:
        return None
    return Band(hulls=(Hull(*ranges[0], *ranges[1], rest.rhs),))


def _range_of_keys(lets: Mapping[str, Let], name: str, found: Logits) -> tuple[str, str] | None:
    """The numbers of a tile of queries between which a condition has keys."""
    both = lets[name].expr
    if not isinstance(both, Binary) or both.fn != "and":
        return None
    low, high = lets[both.lhs].expr, lets[both.rhs].expr
    if not isinstance(low, Binary) or not isinstance(high, Binary) or low.rhs != high.lhs:
        return None
    key = lets[low.rhs].expr
    is_key = isinstance(key, AxisIndex) and key.expr is axis(found.key)
    if not is_key or (low.fn, high.fn) != ("le", "lt"):
        return None
    numbers = (low.lhs, high.rhs)
    return numbers if all(_is_of_tile(lets[name], found) for name in numbers) else None


def _is_of_tile(let: Let, found: Logits) -> bool:
    """Whether a number is read for a tile of queries of a matrix: the last axis counts tiles."""
    read = let.expr
    if not isinstance(read, Read) or read.places or read.guards or let.dtype is not SI32:
        return False
    *matrix, tile = read.index
    plain = all(expr.is_constant or expr.single_axis is not None for expr in matrix)
    return plain and tile is axis(found.query) // HULL_ROWS


def _end(
    lets: Mapping[str, Let], key: str, end: str, found: Logits, *, inclusive: bool
) -> Band | None:
    """The condition that keys lie before an end that is read; None where it is another."""
    index, value = (_before_widening(lets, name) for name in (key, end))
    if not found.ends or index is None or value is None:
        return None
    is_key = isinstance(index.expr, AxisIndex) and index.expr.expr is axis(found.key)
    is_read = isinstance(value.expr, Read) and not value.expr.places and not value.expr.guards
    if not is_key or not is_read or {found.key, found.query} & set(lets[end].axes):
        return None
    return Band(ends=(End(value.name, inclusive),)) if value.dtype in (SI32, SI64) else None


def _before_widening(lets: Mapping[str, Let], name: str) -> Let | None:
    """An integer before it was converted to types that hold it: places of keys are small."""
    let = lets[name]
    while isinstance(let.expr, Cast):
        inner = lets[let.expr.x]
        small = isinstance(inner.expr, AxisIndex) and let.dtype in (SI32, SI64)
        if not small and (inner.dtype, let.dtype) not in ((SI32, SI64), (SI32, SI32)):
            return None
        let = inner
    return let


def _index_of_axes(lets: Mapping[str, Let], name: str) -> Expr | None:
    """An integer that is an expression of axes."""
    match lets[name].expr:
        case AxisIndex(expr=expr):
            return expr
        case Const(value=value) if isinstance(value, int):
            return constant(value)
        case Binary(fn="add" | "sub" as fn, lhs=lhs, rhs=rhs):
            sides = (_index_of_axes(lets, lhs), _index_of_axes(lets, rhs))
            if sides[0] is None or sides[1] is None:
                return None
            return sides[0] + sides[1] if fn == "add" else sides[0] - sides[1]
    return None
