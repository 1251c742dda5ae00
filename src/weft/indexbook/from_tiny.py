"""From a Tiny graph to its IndexBook: the reading rule of every node, and the atoms of every axis.

Two passes. The first gives each value its axes and, for each operand, the map from the value's axes
to the operand's. The second finds the atoms: dims that run together are united, then each reshape
is linked in order; one that has no common refinement with those before it stays unaligned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import prod
from typing import NamedTuple, TypeAlias

from weft.foundation.axes import inverse
from weft.foundation.dims import static
from weft.foundation.errors import Finding
from weft.foundation.index_expr import (
    SELECTED,
    Guard,
    Index,
    add,
    axis,
    constant,
    param,
    scale,
    simplify,
)
from weft.foundation.memo import memo
from weft.indexbook.atoms import AtomTable, Group, matching_groups, side_of
from weft.indexbook.ir import (
    AxisKind,
    AxisVar,
    Domain,
    IndexBook,
    IndexInfo,
    IndexParam,
    InputMap,
    is_remainder,
)
from weft.tiny.ir import (
    Barrier,
    Binary,
    Cast,
    Check,
    Const,
    DynamicShrink,
    DynamicUpdate,
    Expand,
    Flip,
    Gather,
    Graph,
    Input,
    Iota,
    Movement,
    Opaque,
    Pad,
    Permute,
    Reduce,
    Reshape,
    Shrink,
    Unary,
    Value,
    View,
    Where,
    Words,
    operands,
    value_ids,
)

Plain: TypeAlias = Reshape | Permute | Expand | Pad | Shrink | Flip | View
"""Movements that need no run-time number."""


def build_book(graph: Graph) -> IndexBook:
    """The axis space of every value below the outputs."""
    values = graph.values
    book = _Book(value_ids(values))
    for value in values:
        book.enter(value)
    return book.finish(values)


class _Known(NamedTuple):
    """What is known of a value before its atoms are."""

    axes: tuple[AxisVar, ...]
    domain: Domain
    inputs: tuple[InputMap, ...]
    params: tuple[IndexParam, ...]


@dataclass
class _Book:
    ids: dict[Value, str]
    known: dict[Value, _Known] = field(default_factory=dict)
    axis_ids: count[int] = field(default_factory=count)
    wholes: dict[Value, InputMap] = field(default_factory=dict)
    """Values read as they are."""

    # -- the axes and maps of one value ----------------------------------------------------------

    def enter(self, value: Value) -> None:
        axes = self._axes(value)
        inputs, params = self._inputs(value)
        sizes = tuple([static(a.size) for a in axes])
        if isinstance(value, Reshape | Pad):
            guards = _remainder_guards(inputs, value)
            domain = Domain((*_box(sizes).constraints, *guards), _pieces(value))
        else:
            domain = _box(sizes)
        self.known[value] = _Known(axes, domain, inputs, params)

    def _axes(self, value: Value) -> tuple[AxisVar, ...]:
        """Axes inherit the id of the axis they are; those that a movement makes are new."""
        if isinstance(value, Unary | Cast | Binary | Where):
            # Element by element, and of operands of one shape: the axes of the first.
            known = self.known[operands(value)[0]].axes
            if all(found.kind is AxisKind.ITER for found in known):
                return known
        found = []
        for k, source in enumerate(_find_inherited(value)):
            size = static(value.shape[k])
            repeated = isinstance(value, Expand) and value.x.shape[k] != size
            kind = AxisKind.BROADCAST if repeated else AxisKind.ITER
            number = self.known[source[0]].axes[source[1]].id if source else next(self.axis_ids)
            found.append(AxisVar(number, f"i{k}", size, kind))
        return tuple(found)

    def _reduced_axes(self, value: Value) -> tuple[int, ...]:
        if not isinstance(value, Reduce):
            return ()
        axes = self.known[value.x].axes
        return tuple(axes[k].id for k in value.axes)

    def _inputs(self, value: Value) -> tuple[tuple[InputMap, ...], tuple[IndexParam, ...]]:
        match value:
            case Input() | Const() | Iota():
                return (), ()
            case Binary(lhs=lhs, rhs=rhs):
                return (self._same(lhs), self._same(rhs)), ()
            case Where(pred=pred, x=x, y=y):
                return (self._same(pred), self._same(x), self._same(y)), ()
            case Unary(x=x) | Cast(x=x) | Reduce(x=x) | Check(x=x):
                return (self._same(x),), ()
            case Gather(x=x, index=index, axis=along):
                own = list(own_index(value))
                own[along] = param(SELECTED)
                return (InputMap(self.ids[x], tuple(own)), self._same(index)), ()
            case Words(state=state):
                lead = own_index(value)[: value.lead]
                pair = (InputMap(self.ids[state], (*lead, constant(k))) for k in range(2))
                return tuple(pair), ()
            case Opaque(inputs=inputs):
                return tuple(InputMap(self.ids[x], ()) for x in inputs), ()
            case Barrier(x=x):
                return (self._same(x),), ()
            case DynamicShrink():
                return self._dynamic_window(value)
            case DynamicUpdate():
                return self._dynamic_update(value)
            case _:
                map_, guards = movement_map(value)
                return (InputMap(self.ids[value.x], map_, guards),), ()

    def _same(self, operand: Value) -> InputMap:
        found = self.wholes.get(operand)
        if found is None:
            found = self.wholes[operand] = InputMap(self.ids[operand], own_index(operand))
        return found

    def _params(self, value: DynamicShrink | DynamicUpdate, size: Sequence[int]) -> Index:
        """The start of each axis: a parameter, or 0 where the window fills the axis."""
        full = [static(d) == n for d, n in zip(value.x.shape, size, strict=True)]
        names = (f"{self.ids[value]}_{k}" for k in range(len(size)))
        return tuple(constant(0) if f else param(name) for f, name in zip(full, names, strict=True))

    def _window(
        self, value: DynamicShrink | DynamicUpdate, size: Sequence[int]
    ) -> tuple[tuple[InputMap, ...], tuple[IndexParam, ...]]:
        starts = tuple(InputMap(self.ids[s], ()) for s in value.starts)
        params = tuple(
            IndexParam(f"{self.ids[value]}_{k}", self.ids[s], 0, static(d) - n)
            for k, (s, d, n) in enumerate(zip(value.starts, value.x.shape, size, strict=True))
            if static(d) != n
        )
        return starts, params

    def _dynamic_window(
        self, value: DynamicShrink
    ) -> tuple[tuple[InputMap, ...], tuple[IndexParam, ...]]:
        size = [static(d) for d in value.size]
        starts, params = self._window(value, size)
        map_ = tuple(
            add(i, s) for i, s in zip(own_index(value), self._params(value, size), strict=True)
        )
        return (InputMap(self.ids[value.x], map_), *starts), params

    def _dynamic_update(
        self, value: DynamicUpdate
    ) -> tuple[tuple[InputMap, ...], tuple[IndexParam, ...]]:
        size = [static(d) for d in value.update.shape]
        starts, params = self._window(value, size)
        # The result's element i is the update's element i - start, where the guard says that there
        # is one, and the operand's own element elsewhere.
        begin = self._params(value, size)
        map_ = tuple(add(i, scale(s, -1)) for i, s in zip(own_index(value), begin, strict=True))
        guards = tuple(
            Guard(e, n) for e, n, d in zip(map_, size, value.x.shape, strict=True) if static(d) != n
        )
        update = InputMap(self.ids[value.update], map_, guards)
        return (self._same(value.x), update, *starts), params

    # -- atoms -----------------------------------------------------------------------------------

    def finish(self, values: Sequence[Value]) -> IndexBook:
        table = AtomTable()
        nodes = {v: [table.add(static(d)) for d in v.shape] for v in values}
        for value in values:
            for (operand, k), own in running_together(value):
                table.unite(nodes[operand][k], nodes[value][own])
        unaligned: set[Value] = {
            value
            for value in values
            if isinstance(value, Reshape) and not _link(table, value, nodes)
        }
        findings, materialise = self._limit(values, unaligned)
        infos = {}
        for value in values:
            known, inputs = self.known[value], self.known[value].inputs
            if value in unaligned:
                inputs = (replace(inputs[0], aligned=False),)
            infos[self.ids[value]] = IndexInfo(
                known.axes,
                known.domain,
                inputs,
                self._reduced_axes(value),
                tuple([table.atoms(node) for node in nodes[value]]),
                known.params,
                not isinstance(value, Opaque),
                value in materialise,
                static(value.x.shape[value.axis]) if isinstance(value, Gather) else 0,
            )
        return IndexBook(infos, tuple(findings))

    def _limit(
        self, values: Sequence[Value], unaligned: set[Value]
    ) -> tuple[list[Finding], set[Value]]:
        """At most one unaligned reshape between two tensors: what the next one reads is made."""
        depth: dict[Value, int] = {}
        materialise: set[Value] = set()
        findings = []
        for value in values:
            # What is computed begins anew: it is made, or computed in place, at the index at which
            # it is read.
            below = depth[value.x] if isinstance(value, Movement) else 0
            if value in unaligned and below and isinstance(value, Reshape):
                materialise.add(value.x)
                below = 0
                why = f"{self.ids[value.x]} feeds a second reshape without a common refinement"
                hint = "it is stored, so that its index expressions stay small"
                findings.append(Finding("W2101 ExcessivePiecewise", self.ids[value], why, hint))
            depth[value] = below + (value in unaligned)
        return findings, materialise


# -- the rules -----------------------------------------------------------------------------------


def own_index(value: Value) -> Index:
    """The axes of a value as an index: i0, i1, ..."""
    return _axes_up_to(len(value.shape))


@memo(1 << 12)
def _box(sizes: tuple[int, ...]) -> Domain:
    """`0 <= i_k < size_k` for every axis."""
    return Domain(tuple(Guard(axis(f"i{k}"), size) for k, size in enumerate(sizes)))


@memo(64)
def _axes_up_to(rank: int) -> Index:
    return tuple(axis(f"i{k}") for k in range(rank))


def movement_map(value: Plain) -> tuple[Index, tuple[Guard, ...]]:
    """Which element of its operand a movement means, in its own axes, and when there is one."""
    own = own_index(value)
    match value:
        case Permute(perm=perm):
            return tuple(own[k] for k in inverse(perm)), ()
        case Expand(x=x, shape=shape):
            pairs = zip(own, x.shape, shape, strict=True)
            return tuple(e if before == after else constant(0) for e, before, after in pairs), ()
        case Shrink(start=start):
            return tuple(add(e, s) for e, s in zip(own, start, strict=True)), ()
        case Flip(x=x, axes=axes):
            return tuple(
                add(static(d) - 1, scale(e, -1)) if k in axes else e
                for k, (e, d) in enumerate(zip(own, x.shape, strict=True))
            ), ()
        case View(index=index):
            return index, ()
        case Pad(x=x, low=low, high=high):
            map_ = tuple(add(e, -first) for e, first in zip(own, low, strict=True))
            rows = zip(map_, x.shape, low, high, strict=True)
            return map_, tuple(Guard(e, static(d)) for e, d, a, b in rows if a or b)
        case Reshape(x=x, shape=shape):
            sizes = (tuple(static(d) for d in dims) for dims in (x.shape, shape))
            return _reshape_map(*sizes), ()


@memo(1 << 12)
def _reshape_map(before: tuple[int, ...], after: tuple[int, ...]) -> Index:
    """Linearise the axes of each group of dims and take the number apart again."""
    result = [constant(0)] * len(before)
    if 0 in before:
        return tuple(result)
    ranges = {f"i{k}": (0, n - 1) for k, n in enumerate(after)}
    for source, target in matching_groups(before, after):
        # Row-major: the number of an element in its group is the same in both shapes. It is built
        # from the new axes, outermost first, and taken apart by the sizes of the old ones.
        offset = constant(0)
        for k in target:
            here = axis(f"i{k}") if after[k] > 1 else constant(0)
            offset = add(scale(offset, after[k]), here)
        inner = prod(before[k] for k in source)
        for k in (k for k in source if before[k] > 1):
            inner //= before[k]
            # With the ranges known most quotients vanish: where a dim is merged or split at a
            # boundary of the other shape, each part is an axis again.
            quotient = simplify(offset // inner, ranges)
            result[k] = quotient
            offset = simplify(add(offset, scale(quotient, -inner)), ranges)
    return tuple(result)


def _remainder_guards(inputs: Sequence[InputMap], value: Value) -> tuple[Guard, ...]:
    """`0 <= e - q * floor(e / q) < q` for every remainder that a reshape reads."""
    if not isinstance(value, Reshape):
        return ()
    pairs = zip(inputs[0].map, value.x.shape, strict=True)
    return tuple(Guard(e, static(d)) for e, d in pairs if is_remainder(e))


def _pieces(value: Value) -> tuple[Domain, ...]:
    """A pad splits its domain: the operand inside, and a piece before and after on each axis."""
    if not isinstance(value, Pad):
        return ()
    map_, guards = movement_map(value)
    pieces = [Domain(guards)]
    for k, (e, d) in enumerate(zip(map_, value.x.shape, strict=True)):
        if value.low[k]:
            pieces.append(Domain((Guard(axis(f"i{k}"), value.low[k]),)))
        if value.high[k]:
            pieces.append(Domain((Guard(add(e, -static(d)), value.high[k]),)))
    return tuple(pieces)


def _find_inherited(value: Value) -> list[tuple[Value, int] | None]:
    """For each axis of a value, the axis of an operand that it is; None for a new one."""
    rank = len(value.shape)
    pairs = {k: (operand, j) for (operand, j), k in running_together(value)}
    return [pairs.get(k) for k in range(rank)]


def running_together(value: Value) -> Iterator[tuple[tuple[Value, int], int]]:
    """Axes of operands that run with an axis of the value: ((operand, its axis), axis)."""
    match value:
        case Input() | Const() | Iota() | Opaque() | Reshape() | Words():
            return
        case Reduce(x=x, axes=axes):
            kept = [k for k in range(len(x.shape)) if k not in axes]
            yield from (((x, k), j) for j, k in enumerate(kept))
        case Permute(x=x, perm=perm):
            yield from (((x, k), j) for j, k in enumerate(perm))
        case View(x=x, index=index, shape=shape):
            for k, e in enumerate(index):
                if e.single_axis is not None:
                    j = int(e.single_axis.name[1:])
                    if shape[j] == x.shape[k]:
                        yield (x, k), j
        case Gather(x=x, index=index, axis=along):
            yield from (((x, k), k) for k in range(len(x.shape)) if k != along)
            yield from (((index, k), k) for k in range(len(index.shape)))
        case Barrier(x=x):
            yield from (((x, k), k) for k in range(len(x.shape)))
        case Unary() | Cast() | Binary() | Where() | Flip() | Check():
            for operand in reversed(operands(value)):
                yield from (((operand, k), k) for k in range(len(value.shape)))
        case Pad(x=x) | Shrink(x=x) | Expand(x=x) | DynamicShrink(x=x):
            same = (k for k, d in enumerate(x.shape) if d == value.shape[k])
            yield from (((x, k), k) for k in same)
        case DynamicUpdate(x=x, update=update):
            same = (k for k, d in enumerate(update.shape) if d == x.shape[k])
            yield from (((update, k), k) for k in same)
            yield from (((x, k), k) for k in range(len(x.shape)))


def _link(table: AtomTable, value: Reshape, nodes: Mapping[Value, Sequence[int]]) -> bool:
    """Whether every group of dims of a reshape has a common refinement."""
    before = [static(d) for d in value.x.shape]
    after = [static(d) for d in value.shape]
    if 0 in before:
        return True
    linked = []
    for source, target in matching_groups(before, after):
        sides = (
            side_of([nodes[v][k] for k in run], [static(v.shape[k]) for k in run])
            for v, run in ((value.x, source), (value, target))
        )
        linked.append(table.link(Group(*sides)))
    return all(linked)
