"""Which input elements each output element is computed from: a proof that an edited routine reads
what the original one reads.

Values are followed backwards from the stores, through names and accumulators, to the loads. A loop
that is around both ends of a step is the same iteration; so is an unrolled or lanes loop over the
same variable, if an accumulator between them has an instance for each of its iterations. Any other
loop may be at any of its iterations. What is found is a relation between points of the output and
addresses, which isl compares. How often an element is taken is not told.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from weft.codegen.cpu import ir
from weft.codegen.cpu.domain import executed
from weft.codegen.cpu.ir import LoopKind
from weft.foundation.index_expr import Expr, Guard, axis, bounds, substitute
from weft.poly.sets import Domain, IslBudget, Piece, uncovered

Names: TypeAlias = Mapping[str, str]
"""What the variables of the loops around a statement are called on the way back to a store."""

_TOGETHER: Final = (LoopKind.UNROLLED, LoopKind.LANES)
_MOST_STEPS: Final = 4_096
"""Ways by which values come that are followed."""


class Unknown(Exception):
    """Why it is not known what is read."""


@dataclass(frozen=True)
class _Site:
    """A statement, the loops around it, and its place in the text."""

    stmt: ir.Stmt
    loops: tuple[ir.For, ...]
    place: int


def other_reads(read: ir.Routine, made: ir.Routine, output: int) -> str | None:
    """An element of an output that a routine makes of other elements than the one that was made,
    as a sentence; None where there is none. Raises `Unknown`."""
    now, before = _Flow(read).into(output), _Flow(made).into(output)
    try:
        for buffer in sorted(now.keys() | before.keys()):
            mine, wanted = now.get(buffer, ()), before.get(buffer, ())
            for piece in mine:
                found = _show_difference(piece, wanted, f"made of b{buffer}")
                if found:
                    return f"b{output} {found}, which its kernel does not read for it"
            for piece in wanted:
                found = _show_difference(piece, mine, f"not made of b{buffer}")
                if found:
                    return f"b{output} {found}, which its kernel reads for it"
    except IslBudget as error:
        raise Unknown(str(error)) from None
    return None


def same_flow(read: ir.Routine, made: ir.Routine) -> bool:
    """Whether two routines hand on the same values in the same loops, from loads to stores; what
    functions they compute of them may differ."""
    return _handed_on(read) == _handed_on(made)


def _handed_on(routine: ir.Routine) -> list[tuple[object, Domain]]:
    found = ((stmt, loops) for stmt, loops in ir.walk(routine.body))
    return [
        ((s.name, s.args, s.index) if isinstance(s, ir.Let) else s, executed(loops))
        for s, loops in found
        if not isinstance(s, ir.For | ir.Prefetch)
    ]


def _show_difference(part: Piece, whole: Sequence[Piece], relation: str) -> str:
    """Where a piece reads what none of others reads: the point of the output and the address."""
    at = uncovered(part, tuple(whole))
    if at is None:
        return ""
    here = {name: (value, value) for name, value in at.items()}
    *point, address = (bounds(expr, here)[0] for expr in part.index)
    return f"at {point} is {relation}[{address}]"


@dataclass
class _Flow:
    """The statements of a routine by what they define."""

    routine: ir.Routine
    names: dict[str, list[_Site]] = field(default_factory=dict)
    inits: dict[str, list[_Site]] = field(default_factory=dict)
    updates: dict[str, list[_Site]] = field(default_factory=dict)
    stores: list[_Site] = field(default_factory=list)

    def __post_init__(self) -> None:
        for place, (stmt, loops) in enumerate(ir.walk(self.routine.body)):
            site = _Site(stmt, loops, place)
            match stmt:
                case ir.Init(acc=acc):
                    self.inits.setdefault(acc, []).append(site)
                case ir.Accumulate(acc=acc) | ir.Assign(acc=acc):
                    self.updates.setdefault(acc, []).append(site)
                case ir.Store():
                    self.stores.append(site)
                case ir.Merge(names=names):
                    for name in names:
                        self.names.setdefault(name, []).append(site)
                case ir.For() | ir.Prefetch() | ir.Sort() | ir.Fourier() | ir.Tiles() | ir.Turn():
                    pass
                case _:
                    self.names.setdefault(stmt.name, []).append(site)

    def into(self, output: int) -> dict[int, tuple[Piece, ...]]:
        """For each buffer the points of an output with the addresses that are read for them."""
        if self.routine.params:
            raise Unknown("it has indices that are known only when it runs")
        found: dict[int, dict[Piece, None]] = {}
        for store in self.stores:
            if isinstance(store.stmt, ir.Store) and store.stmt.buffer == output:
                for buffer, piece in self._behind(store, store.stmt):
                    found.setdefault(buffer, {})[piece] = None
        return {buffer: tuple(pieces) for buffer, pieces in found.items()}

    def _behind(self, store: _Site, stmt: ir.Store) -> Iterator[tuple[int, Piece]]:
        """The loads from which a store's value comes."""
        names: Names = {loop.var: loop.var for loop in store.loops}
        todo: list[tuple[_Site, Names]] = [(store, names)]
        seen = {(store.place, tuple(names.items()))}
        while todo:
            site, names = todo.pop()
            if isinstance(site.stmt, ir.Load | ir.LoadRun):
                yield site.stmt.buffer, self._piece(store, stmt.point, site.stmt, site, names)
                continue
            for step in self._steps(site, names):
                key = (step[0].place, tuple(step[1].items()))
                if key not in seen:
                    seen.add(key)
                    todo.append(step)
            if len(seen) > _MOST_STEPS:
                raise Unknown("its values come by too many ways")

    def _steps(self, site: _Site, names: Names) -> Iterator[tuple[_Site, dict[str, str]]]:
        """What a statement uses directly."""
        for name in _used_names(site.stmt):
            found = _last_seen(self.names.get(name, ()), site)
            around = _variable_names(found, site, names, len(found.loops))
            if isinstance(found.stmt, ir.LoadRun):
                around[found.stmt.var] = names.get(found.stmt.var, found.stmt.var)
            yield found, around
        for acc in _accumulators(site.stmt):
            first = _last_seen(self.inits.get(acc, ()), site)
            assert isinstance(first.stmt, ir.Init)
            apart = {var for var, _, _ in first.stmt.loops}
            after = [s.place for s in self.inits[acc] if s.place > first.place]
            for update in self.updates.get(acc, ()):
                inside = _count_shared_loops(update.loops, first.loops) == len(first.loops)
                if inside and first.place < update.place < min(after, default=update.place + 1):
                    yield update, _variable_names(update, site, names, len(first.loops), apart)

    def _piece(
        self, store: _Site, point: Sequence[Expr], load: ir.Load | ir.LoadRun, site: _Site,
        names: Names,
    ) -> Piece:  # fmt: skip
        if load.buffer >= len(self.routine.buffers):
            raise Unknown(f"what it keeps in the scratch buffer b{load.buffer} is not followed")
        if isinstance(load, ir.Load) and load.places:
            raise Unknown(f"data decide where b{load.buffer} is read")
        assert isinstance(store.stmt, ir.Store)
        there, here = executed(store.loops).where(*store.stmt.guards), executed(site.loops)
        renamed = {old: axis(new) for old, new in names.items()}
        ranges = {name: (low, high) for name, low, high in there.axes}
        for old, low, high in here.axes:
            was = ranges.get(names[old], (low, high))
            ranges[names[old]] = max(low, was[0]), min(high, was[1])
        address = load.address
        if isinstance(load, ir.LoadRun):
            ranges.setdefault(names[load.var], (0, load.count - 1))
            address = address + axis(load.var)
        guards = [
            Guard(substitute(guard.expr, renamed), guard.size)
            for guard in (*here.guards, *load.guards)
        ]
        axes = tuple((name, *span) for name, span in ranges.items())
        domain = Domain(axes, (), (*there.guards, *guards))
        return Piece(domain, (*point, substitute(address, renamed)))


def _used_names(stmt: ir.Stmt) -> tuple[str, ...]:
    """The names that a statement uses."""
    match stmt:
        case ir.Store(value=value) | ir.Accumulate(value=value) | ir.Assign(value=value):
            return (value,)
        case ir.Let(args=args):
            return args
        case ir.Check(x=x):
            return (x,)
        case ir.Words(seed=seed, offset=offset):
            return seed, offset
    return ()


def _accumulators(stmt: ir.Stmt) -> tuple[str, ...]:
    """The accumulators that a statement reads."""
    match stmt:
        case ir.Finish(accs=accs):
            return accs
        case ir.Current(acc=acc):
            return (acc,)
        case ir.Merge(parts=parts):
            return tuple(acc for part in parts for acc in part)
    return ()


def _last_seen(sites: Sequence[_Site], use: _Site) -> _Site:
    """The definition that a statement sees."""
    for site in reversed(sites):
        shared = _count_shared_loops(site.loops, use.loops)
        again = {loop.var for loop in use.loops[shared:] if loop.kind in _TOGETHER}
        own = site.loops[shared:]
        if site.place < use.place and all(_is_again(loop, again) for loop in own):
            return site
    raise Unknown("a name is used that is not defined before")


def _is_again(loop: ir.For, variables: set[str]) -> bool:
    return loop.kind in _TOGETHER and loop.var in variables


def _variable_names(
    site: _Site, use: _Site, names: Names, most: int, apart: Container[str] | None = None
) -> dict[str, str]:
    """What the variables around a definition are called, given those around its use. At most the
    first `most` loops around both are at the same iteration; of others, over the same variable,
    those `apart`, if that is given."""
    shared = min(_count_shared_loops(site.loops, use.loops), most)
    again = {loop.var for loop in use.loops[shared:] if loop.kind in _TOGETHER}
    if apart is not None:
        again = {var for var in again if var in apart}
    found = {}
    for depth, loop in enumerate(site.loops):
        tied = depth < shared or _is_again(loop, again)
        found[loop.var] = names[loop.var] if tied else f"{loop.var}'{site.place}"
    return found


def _count_shared_loops(one: Sequence[ir.For], other: Sequence[ir.For]) -> int:
    """How many loops, from the outermost, are around both."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine is not theirs:
            break
        count += 1
    return count
