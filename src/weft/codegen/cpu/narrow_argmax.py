"""Argmax and argmin over numbers of 8 or 16 bits, with positions that are counted in numbers as
narrow.

    init p                                   init p
    for i in 0..1024:                        for o in 0..5:
      p = min(p, x[i] == top ? i : far)        init q
                                        ->     for i in 205*o..205*o + 205:
                                                 q = min(q, x[i] == top ? i - 205*o : 255)
                                               p = min(p, q == 255 ? far : q + 205*o)

A vector of bytes that are compared would be widened to four of places, which takes some thirty
instructions instead of four. The turns of a strip are counted in the width of what is compared, and
its least place is made of that at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from weft.codegen.cpu import ir
from weft.codegen.cpu.ir import LoopKind
from weft.codegen.cpu.strips import in_loops
from weft.foundation.dtypes import I1, SI32, UI8, UI16, DType
from weft.foundation.functions import COMPARISONS
from weft.foundation.index_expr import Axis, Expr, axis, coefficient, constant, substitute

_COUNTERS: Final[Mapping[int, DType]] = {8: UI8, 16: UI16}
"""By the bits of what is compared."""
_FAR: Final = (1 << 31) - 1
_LEAST_TURNS: Final = 16


def narrow_places(routine: ir.Routine) -> ir.Routine:
    """The routine with every such loop cut into strips."""
    lets = [stmt for stmt, _ in ir.walk(routine.body) if isinstance(stmt, ir.Let)]
    far = frozenset(let.name for let in lets if (let.dtype, let.value) == (SI32, _FAR))
    return replace(routine, body=_Cutter(routine, far).cut(routine.body)) if far else routine


@dataclass(frozen=True)
class _Search:
    """The least place that some comparison finds along a loop."""

    init: ir.Init
    counter: DType
    place: ir.Let
    chosen: ir.Let

    @property
    def pred(self) -> str:
        return self.chosen.args[0]

    @property
    def far(self) -> str:
        return self.chosen.args[2]


class _Cutter:
    def __init__(self, routine: ir.Routine, far: frozenset[str]) -> None:
        self.routine, self.far = routine, far

    def cut(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        """The statements, with the loops that look for places cut."""
        inits = [s for s in body if isinstance(s, ir.Init) and (s.fn, s.dtype) == ("min", SI32)]
        return tuple(self._loop(stmt, inits) if isinstance(stmt, ir.For) else stmt for stmt in body)

    def _loop(self, loop: ir.For, inits: list[ir.Init]) -> ir.For:
        counted = loop.start.is_constant and loop.stop.is_constant and loop.end is None
        if loop.kind is LoopKind.SERIAL and counted and loop.step == 1:
            turns = loop.stop.constant - loop.start.constant
            found = [self._search(loop, init) for init in inits]
            search = next((one for one in found if one), None)
            if search is not None and turns >= _LEAST_TURNS:
                return _in_strips(loop, turns, search)
        return replace(loop, body=self.cut(loop.body))

    def _search(self, loop: ir.For, init: ir.Init) -> _Search | None:
        """What the loop looks for with an accumulator, if with nothing else."""
        inside = [stmt for stmt, _ in ir.walk(loop.body)]
        loops = {stmt.var for stmt in inside if isinstance(stmt, ir.For)}
        named = {s.name: s for s in inside if isinstance(s, ir.Let | ir.Load)}
        steps = [s for s in inside if isinstance(s, ir.Accumulate | ir.Assign | ir.Current)]
        plain = all(
            isinstance(s, ir.For | ir.Let | ir.Load | ir.Prefetch) or s in steps for s in inside
        )
        # Nothing else may depend on how often the loop has turned, or be added up on the way.
        if not plain or len(steps) != 1 or loops != {var for var, _, _ in init.loops}:
            return None
        (step,) = steps
        chosen = named.get(step.value) if isinstance(step, ir.Accumulate) else None
        if step.acc != init.acc or not isinstance(chosen, ir.Let) or chosen.fn != "select":
            return None
        pred, place = named.get(chosen.args[0]), named.get(chosen.args[1])
        if chosen.args[2] not in self.far or chosen.args[2] in named:
            return None
        if not isinstance(pred, ir.Let) or not isinstance(place, ir.Let) or place.index is None:
            return None
        compared = named.get(pred.args[0]) if pred.fn in COMPARISONS else None
        if not isinstance(compared, ir.Load) or not _grows(place.index, loop.var):
            return None
        dtype = self.routine.dtype_of(compared.buffer)
        uses = [arg for s in named.values() if isinstance(s, ir.Let) for arg in s.args]
        # The place must be needed for the choice alone: in a strip it is another number.
        if not dtype.is_integer or dtype.bits not in _COUNTERS or uses.count(place.name) > 1:
            return None
        return _Search(init, _COUNTERS[dtype.bits], place, chosen)


def _grows(place: Expr, var: str) -> bool:
    """Whether a place is so much further with each turn."""
    return all(isinstance(term, Axis) for term, _ in place.terms) and coefficient(place, var) > 0


def _in_strips(loop: ir.For, turns: int, search: _Search) -> ir.For:
    # The greatest number of the counter says that a strip has found nothing: a strip has at most so
    # many turns, which are numbered from 0.
    most = (1 << search.counter.bits) - 1
    # As few strips as can be, and all of about one length.
    strips = -(-turns // most)
    width = -(-turns // strips)
    var = f"{loop.var}_strip"
    first = axis(var) * width + loop.start
    end = None if turns % width == 0 else loop.stop.constant
    counted = replace(loop, start=first, stop=first + width, end=end)
    none = _narrow(search.far)
    body: tuple[ir.Stmt, ...] = (
        replace(search.init, acc=_narrow(search.init.acc), dtype=search.counter),
        ir.Let(none, search.counter, "const", value=most),
        replace(counted, body=_count_turns(loop.body, search, axis(loop.var) - first)),
        *in_loops(search.init, _widen_place(loop, search, first)),
    )
    return ir.For(var, constant(0), constant(strips), 1, LoopKind.SERIAL, body)


def _narrow(name: str) -> str:
    return f"{name}.turn"


def _count_turns(body: tuple[ir.Stmt, ...], search: _Search, turn: Expr) -> tuple[ir.Stmt, ...]:
    """The statements of a turn, with its number in the strip for the place."""
    place, chosen = search.place, search.chosen

    def changed(stmt: ir.Stmt) -> ir.Stmt:
        match stmt:
            case ir.For():
                return replace(stmt, body=_count_turns(stmt.body, search, turn))
            case ir.Let(name=place.name):
                return ir.Let(_narrow(place.name), search.counter, "index", index=turn)
            case ir.Let(name=chosen.name):
                args = search.pred, _narrow(place.name), _narrow(search.far)
                return ir.Let(_narrow(chosen.name), search.counter, "select", args)
            case ir.Accumulate():
                return ir.Accumulate(_narrow(search.init.acc), _narrow(chosen.name))
        return stmt

    return tuple(map(changed, body))


def _widen_place(loop: ir.For, search: _Search, first: Expr) -> tuple[ir.Stmt, ...]:
    """The place that an instance of the strip has found, for the instance of the whole."""
    stem, index = search.place.name, search.place.index
    if index is None:
        return ()
    held, none, start, step, far, on, at, best = (
        f"{stem}.{part}" for part in ("held", "none", "start", "step", "far", "on", "at", "best")
    )
    return (
        ir.Current(held, _narrow(search.init.acc)),
        ir.Let(none, I1, "eq", (held, _narrow(search.far))),
        ir.Let(start, SI32, "index", index=substitute(index, {loop.var: first})),
        ir.Let(step, SI32, "const", value=coefficient(index, loop.var)),
        ir.Let(far, SI32, "cast", (held,)),
        ir.Let(on, SI32, "mul", (far, step)),
        ir.Let(at, SI32, "add", (start, on)),
        ir.Let(best, SI32, "select", (none, search.far, at)),
        ir.Accumulate(search.init.acc, best),
    )
