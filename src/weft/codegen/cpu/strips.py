"""Long sums in strips: partial sums, so that no small number is added to a large total.

    init s                            init s
    for i in 0..1024:                 for o in 0..32:
      accumulate s <- x[i]      ->      init s.1
                                        for i in 32*o..32*o + 32:
                                          accumulate s.1 <- x[i]
                                        accumulate s <- s.1

Added one after the other, n numbers err by up to n roundings; in strips the chains stay as short as
those of a pairwise sum, however long the row. Strips are cut as often as that takes, and across
several loops. The same is done for the carries of a fold, whose strips are merged as its instances
are. How a row is cut depends on the loops alone, so the result is the same for any number of
threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from weft.codegen.cpu import ir
from weft.codegen.cpu.ir import LoopKind
from weft.foundation.index_expr import axis, constant

UNROLLED, SERIAL = LoopKind.UNROLLED, LoopKind.SERIAL
STRIP: Final = 32
"""Steps of a strip where few accumulators are added up at its end."""
_PER_INSTANCE: Final = 8
"""Steps for each accumulator that is added up: what keeps that under a twentieth of the work."""


def in_strips(routine: ir.Routine) -> ir.Routine:
    """The routine with every long chain of additions cut."""
    merges = [stmt for stmt, _ in ir.walk(routine.body) if isinstance(stmt, ir.Merge)]
    return replace(routine, body=_Cutter(merges).cut(routine.body))


@dataclass(frozen=True)
class _Chains:
    """What is accumulated in one loop: sums, each on its own, and sets of carries."""

    sums: tuple[ir.Init, ...]
    folds: tuple[tuple[tuple[ir.Init, ...], ir.Merge], ...]

    @property
    def inits(self) -> tuple[ir.Init, ...]:
        return (*self.sums, *(init for inits, _ in self.folds for init in inits))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(init.acc for init in self.inits)

    @property
    def strip(self) -> int:
        """Steps between two additions of everything to the totals."""
        loops = (init.loops for init in self.inits)
        held = sum(math.prod(n for _, n, kind in each if kind is UNROLLED) for each in loops)
        return max(STRIP, _PER_INSTANCE * held)

    def only(self, names: Iterable[str]) -> _Chains:
        """Those with an accumulator of these names."""
        wanted = set(names)
        return _Chains(
            tuple(init for init in self.sums if init.acc in wanted),
            tuple((s, m) for s, m in self.folds if wanted & {init.acc for init in s}),
        )


class _Cutter:
    def __init__(self, merges: list[ir.Merge]) -> None:
        self.merges = {part: merge for merge in merges for part in merge.parts}
        self.level = 0

    def cut(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        """The statements, with the loops that accumulate into what begins here cut."""
        chains = self._chains(body)
        return tuple(
            self._cut_loop(stmt, chains) if isinstance(stmt, ir.For) else stmt for stmt in body
        )

    def _cut_loop(self, loop: ir.For, chains: _Chains) -> ir.For:
        inner = replace(loop, body=self.cut(loop.body))
        own = chains.only(_accumulators(inner))
        if inner.kind is not SERIAL or not own.inits:
            return inner
        return self._shorten_chains(inner, own)[0]

    def _chains(self, body: tuple[ir.Stmt, ...]) -> _Chains:
        """The accumulators that begin in a body and may be regrouped."""
        inits = {stmt.acc: stmt for stmt in body if isinstance(stmt, ir.Init)}
        read = {stmt.acc for stmt, _ in ir.walk(body) if isinstance(stmt, ir.Current)}
        # What is looked at before the end is a running sum, whose every step counts.
        sums = (i for i in inits.values() if _is_long_float_sum(i) and i.acc not in read)
        folds = (
            (tuple(inits[acc] for acc in part), merge)
            for part, merge in self.merges.items()
            if set(part) <= set(inits)
        )
        return _Chains(tuple(sums), tuple(folds))

    def _shorten_chains(self, loop: ir.For, chains: _Chains) -> tuple[ir.For, int]:
        """The loop with chains that are short enough, and how long the longest is."""
        body: list[ir.Stmt] = []
        inside: dict[str, int] = dict.fromkeys(chains.names, 0)
        for stmt in loop.body:
            own = chains.only(_accumulators(stmt))
            if isinstance(stmt, ir.For) and stmt.kind is SERIAL and own.inits:
                shorter, length = self._shorten_chains(stmt, own)
                body.append(shorter)
            else:
                length = 1
                body.append(stmt)
            for name in own.names:
                inside[name] += length * _steps_of_instance(stmt, own, name)
        each = max(inside.values())
        return self._strips(replace(loop, body=tuple(body)), chains, each)

    def _strips(self, loop: ir.For, chains: _Chains, each: int) -> tuple[ir.For, int]:
        """The loop, in strips until its chains are short; `each` is what a turn adds to them."""
        count = loop.stop.constant - loop.start.constant
        while count > 1 and count * each > 2 * chains.strip:
            # Each turn of this loop adds a level: chains of `strip` steps and a total, so that n
            # numbers go through some log(n) / log(strip) chains and not one of n.
            width = _width(count, max(1, chains.strip // each))
            self.level += 1
            parts = {name: f"{name}.{self.level}" for name in chains.names}
            if width == 1:
                loop = replace(loop, body=self._strip(loop.body, chains, parts))
            else:
                loop = self._outer(loop, count, width, chains, parts)
                count = -(-count // width)
            each = 1
        return loop, count * each

    def _outer(
        self, loop: ir.For, count: int, width: int, chains: _Chains, parts: Mapping[str, str]
    ) -> ir.For:
        """A loop over strips of `width` turns."""
        var = f"{loop.var}_s{self.level}"
        start = axis(var) * width + loop.start
        end = None if count % width == 0 else loop.stop.constant
        inner = replace(loop, start=start, stop=start + width, end=end)
        body = self._strip((inner,), chains, parts)
        return ir.For(var, constant(0), constant(-(-count // width)), 1, SERIAL, body)

    def _strip(
        self, body: tuple[ir.Stmt, ...], chains: _Chains, parts: Mapping[str, str]
    ) -> tuple[ir.Stmt, ...]:
        """The body with accumulators of its own, which are then added to those around it."""
        inits = tuple(replace(init, acc=parts[init.acc]) for init in chains.inits)
        adding = [_add_instances(init, parts[init.acc]) for init in chains.sums]
        adding += [_merge_instances(carries, merge, parts) for carries, merge in chains.folds]
        return (
            *inits,
            *_rename_accumulators(body, parts),
            *(stmt for part in adding for stmt in part),
        )


def _is_long_float_sum(init: ir.Init) -> bool:
    """Narrow floats round at every step, in order; whole numbers do not round."""
    return init.fn == "sum" and init.dtype.is_float and init.dtype.bits >= 32


def _width(count: int, most: int) -> int:
    """Turns of a strip: at most so many, and the same in all strips where that is near."""
    for width in range(most, most // 2, -1):
        if count % width == 0:
            return width
    return -(-count // -(-count // most))


def _accumulators(stmt: ir.Stmt) -> set[str]:
    """The accumulators that a statement steps."""
    inside = ir.walk((stmt,))
    return {s.acc for s, _ in inside if isinstance(s, ir.Accumulate | ir.Assign)}


def _steps_of_instance(stmt: ir.Stmt, chains: _Chains, name: str) -> int:
    """How often loops that are written out step the same instance."""
    if not isinstance(stmt, ir.For) or stmt.kind is SERIAL:
        return 1
    loops = {var for init in chains.inits if init.acc == name for var, _, _ in init.loops}
    inner = sum(_steps_of_instance(s, chains, name) for s in stmt.body if name in _accumulators(s))
    return inner * (1 if stmt.var in loops else stmt.stop.constant - stmt.start.constant)


def _add_instances(init: ir.Init, part: str) -> tuple[ir.Stmt, ...]:
    """Each instance of a strip's sum added to the same instance of the total."""
    held = f"{part}.held"
    return in_loops(init, (ir.Current(held, part), ir.Accumulate(init.acc, held)))


def _merge_instances(
    inits: tuple[ir.Init, ...], merge: ir.Merge, parts: Mapping[str, str]
) -> tuple[ir.Stmt, ...]:
    """Each instance of a strip's carries merged with the same instance of those around it."""
    body: list[ir.Stmt] = []
    for carry, init in zip(merge.carries, inits, strict=True):
        body.append(ir.Current(f"{carry}.a", init.acc))
        body.append(ir.Current(f"{carry}.b", parts[init.acc]))
    body += merge.combine
    results = zip(merge.merged, inits, strict=True)
    body += [ir.Assign(init.acc, result) for result, init in results]
    return in_loops(inits[0], tuple(body))


def in_loops(init: ir.Init, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
    """The body for every instance of an accumulator."""
    for var, count, kind in reversed(init.loops):
        body = (ir.For(var, constant(0), constant(count), 1, kind, body),)
    return body


def _rename_accumulators(
    body: tuple[ir.Stmt, ...], names: Mapping[str, str]
) -> tuple[ir.Stmt, ...]:
    """The statements, stepping other accumulators."""

    def renamed(stmt: ir.Stmt) -> ir.Stmt:
        match stmt:
            case ir.For():
                return replace(stmt, body=_rename_accumulators(stmt.body, names))
            case ir.Accumulate() | ir.Assign() | ir.Current():
                return replace(stmt, acc=names.get(stmt.acc, stmt.acc))
        return stmt

    return tuple(map(renamed, body))
