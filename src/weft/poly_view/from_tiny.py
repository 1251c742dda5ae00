"""From Tiny and its IndexBook to Poly-View: blocks for what is computed, movements composed into
accesses.

The graph is walked from the outputs back. Each value that some access ends at becomes a block; a
movement becomes one only if it must be stored: because the book says so, because two different
fills meet in one chain, or because an op that stays whole reads it. A barrier is never one: who
reads through it waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from weft.foundation.dims import static_shape
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import (
    SELECTED,
    Expr,
    Guard,
    Index,
    add,
    always,
    axis,
    constant,
    param,
    scale,
    simplify,
    substitute,
)
from weft.foundation.memo import memo
from weft.foundation.records import replace
from weft.foundation.scalar import Fn
from weft.indexbook.ir import IndexBook, IndexInfo
from weft.indexbook.ir import IndexParam as BookParam
from weft.poly_view.chains import find_chains
from weft.poly_view.contraction import recognise
from weft.poly_view.from_tiny_reading import Ranges, Reading, taken_apart, tight, widens
from weft.poly_view.ir import (
    Access,
    BlockKind,
    IndexParam,
    IterAxis,
    PolyBlock,
    Scop,
)
from weft.tiny.ir import (
    Barrier,
    Binary,
    Cast,
    Const,
    DynamicUpdate,
    Gather,
    Graph,
    Input,
    Movement,
    Opaque,
    Pad,
    Reduce,
    ReduceFn,
    Unary,
    Value,
    Words,
    operands,
    value_ids,
)


def build_scop(graph: Graph, book: IndexBook) -> Scop:
    """The Poly-View of a graph with static shapes."""
    return _Builder(graph, book).run()


Atoms: TypeAlias = tuple[tuple[int, ...], ...]


def atom_axes(info: IndexInfo, reduced: Sequence[int] = ()) -> tuple[IterAxis, ...]:
    """Iteration axes for the atoms of a value: i0, i1, ..., and i2_0, i2_1 where an axis is
    split."""
    return _atom_axes(info.atoms, tuple(reduced))


@memo(1 << 12)
def _atom_axes(whole: Atoms, reduced: tuple[int, ...]) -> tuple[IterAxis, ...]:
    found = []
    for k, atoms in enumerate(whole):
        for j, size in enumerate(atoms):
            name = f"i{k}" if len(atoms) == 1 else f"i{k}_{j}"
            found.append(IterAxis(name, size, k in reduced))
    return tuple(found)


def dim_index(info: IndexInfo) -> Index:
    """Each axis of a value in terms of its atoms."""
    return _dim_index(info.atoms)


@memo(1 << 12)
def _dim_index(whole: Atoms) -> Index:
    result = []
    for k, atoms in enumerate(whole):
        here = constant(0)
        for j, size in enumerate(atoms):
            name = f"i{k}" if len(atoms) == 1 else f"i{k}_{j}"
            here = add(scale(here, size), axis(name))
        result.append(here)
    return tuple(result)


@memo(1 << 12)
def _in_atoms(index: Index, axes: tuple[IterAxis, ...], whole: Atoms) -> Index:
    """An index of a tensor, by axes of a block, as one in the tensor's atoms."""
    ranges = _ranges(axes)
    pairs = zip(index, whole, strict=True)
    parts = (part for expr, atoms in pairs for part in taken_apart(expr, atoms, ranges))
    return tuple(simplify(part, ranges) for part in parts)


@dataclass
class _Builder:
    graph: Graph
    book: IndexBook
    blocks: list[PolyBlock] = field(default_factory=list)
    params: dict[str, tuple[IndexParam, Value]] = field(default_factory=dict)
    param_names: dict[tuple[Access, int, int], str] = field(default_factory=dict)
    used: dict[str, IndexParam] = field(default_factory=dict)
    needed: set[Value] = field(default_factory=set)
    stored: set[Value] = field(default_factory=set)
    awaited: dict[Value, None] = field(default_factory=dict)
    """What the block that is being built waits for."""

    def __post_init__(self) -> None:
        self.values = self.graph.values
        self.ids = value_ids(self.values)
        self.names = self._names()

    def run(self) -> Scop:
        outputs = tuple(
            (name, self._read_whole(value), atom_axes(self._info(value)))
            for name, value in self.graph.outputs
        )
        waiting: dict[str, list[Value]] = {}
        # From the outputs back: when a value comes up, all that read it have, so it is known
        # whether it is needed and whether it must be stored.
        for value in reversed(self.values):
            if value in self.needed and not isinstance(value, Input):
                self.awaited.clear()
                self.blocks.append(self._block(value))
                if self.awaited:
                    waiting[self.blocks[-1].name] = list(self.awaited)
        blocks = tuple(
            replace(block, after=self._before(waiting[block.name]))
            if block.name in waiting
            else block
            for block in reversed(self.blocks)
        )
        inputs = {v.name: v for v in self.graph.inputs}
        inputs.update((v.name, v) for v in self.values if isinstance(v, Input) and v in self.needed)
        scop = Scop(
            {name: (v.dtype, self._atoms(v)) for name, v in inputs.items()},
            blocks,
            (),
            outputs,
            params=tuple(self.used[name] for name in sorted(self.used)),
            shapes={
                name: static_shape(v.shape) for name, v in [*inputs.items(), *self.graph.outputs]
            },
        )
        scop = replace(scop, edges=scop.dependences)
        return replace(scop, chains=find_chains(scop))

    def _names(self) -> dict[Value, str]:
        """Inputs have their own names, blocks that of their op or their id."""
        taken = {v.name for v in (*self.values, *self.graph.inputs) if isinstance(v, Input)}
        names: dict[Value, str] = {}
        for value in self.values:
            name = value.name if isinstance(value, Input) else self.graph.op_names.get(value, "")
            if not isinstance(value, Input):
                name = name or self.ids[value]
                while name in taken:
                    name += "_"
                taken.add(name)
            names[value] = name
        return names

    def _before(self, values: Sequence[Value]) -> tuple[str, ...]:
        """The blocks that are there when these values are: their own, or where a value is part of
        other blocks or nobody needs it, those that it is made of."""
        found: dict[str, None] = {}
        stack, seen = list(values), set(values)
        while stack:
            value = stack.pop()
            if value not in self.needed:
                fresh = [x for x in operands(value) if x not in seen]
                seen.update(fresh)
                stack += fresh
            elif not isinstance(value, Input):
                found[self.names[value]] = None
        return tuple(sorted(found))

    def _info(self, value: Value) -> IndexInfo:
        found = self.book.infos.get(self.ids.get(value, ""))
        if found is None:
            raise InternalError("the index book does not belong to the graph")
        return found

    def _atoms(self, value: Value) -> tuple[int, ...]:
        if value not in self.ids:
            return tuple(n for n in static_shape(value.shape) if n != 1)
        return tuple(size for atoms in self._info(value).atoms for size in atoms)

    # -- blocks ----------------------------------------------------------------------------------

    def _block(self, value: Value) -> PolyBlock:
        match value:
            case Reduce(fn=fn):
                if fn is ReduceFn.SUM:
                    found = self._contraction(value)
                    if found is not None:
                        return found
                axes = atom_axes(self._info(value.x), value.axes)
                access = self._read_value(value.x, dim_index(self._info(value.x)), axes)
                # Over axes of size 1 there is nothing to combine: the elements stay as they are.
                summed = any(a.reduce for a in axes)
                kind = BlockKind.REDUCE if summed else BlockKind.MOVEMENT
                return self._make_block(value, kind, axes, (access,))
            case DynamicUpdate():
                return self._update(value)
            case Gather():
                return self._gather(value)
            case Words(state=state):
                axes = atom_axes(self._info(value))
                own = dim_index(self._info(value))[: value.lead]
                words = tuple(self._read_value(state, (*own, constant(k)), axes) for k in range(2))
                return self._make_block(value, BlockKind.EWISE, axes, words)
            case Opaque(inputs=inputs):
                axes = atom_axes(self._info(value))
                accesses = tuple(self._read_stored(x) for x in inputs)
                return self._make_block(value, BlockKind.OPAQUE, axes, accesses)
            case _:
                axes = atom_axes(self._info(value))
                own = dim_index(self._info(value))
                if isinstance(value, Movement):
                    access = self._read_value(value, own, axes, first=True)
                    return self._make_block(value, BlockKind.MOVEMENT, axes, (access,))
                accesses = tuple(self._read_value(x, own, axes) for x in operands(value))
                return self._make_block(value, BlockKind.EWISE, axes, accesses)

    def _make_block(
        self,
        value: Value,
        kind: BlockKind,
        axes: tuple[IterAxis, ...],
        accesses: tuple[Access, ...],
    ) -> PolyBlock:
        return PolyBlock(
            self.names[value],
            kind,
            axes,
            value.dtype,
            accesses,
            value,
            value_id=self.ids[value],
            fn=_function_name(value),
        )

    def _contraction(self, value: Reduce) -> PolyBlock | None:
        product = value.x
        if isinstance(product, Cast) and product.dtype.is_float and widens(product):
            # A multiply-add of floats need not round in between; a product of integers has wrapped.
            product = product.x
        if not isinstance(product, Binary) or product.fn is not Fn.MUL:
            return None
        info = self._info(product)
        axes, index = atom_axes(info, value.axes), dim_index(info)
        sides = [self._follow(x, index, axes, widening=True) for x in (product.lhs, product.rhs)]
        accesses = tuple(self._access(reading) for reading in sides)
        attrs = recognise(axes, *accesses)
        if attrs is None:
            return None
        for reading in sides:
            self._commit(reading)
        return replace(self._make_block(value, BlockKind.CONTRACTION, axes, accesses), attrs=attrs)

    def _gather(self, value: Gather) -> PolyBlock:
        info = self._info(value)
        axes, own = atom_axes(info), list(dim_index(info))
        places = self._read_value(value.index, tuple(own), axes)
        own[value.axis] = param(SELECTED)
        reading = Reading(value.x, tuple(own), _ranges(axes))
        reading.ranges[SELECTED] = (0, info.selected - 1)
        self._down(reading)
        self._commit(reading)
        made = self._make_block(value, BlockKind.EWISE, axes, (places, self._access(reading)))
        return replace(made, selected=info.selected)

    def _update(self, value: DynamicUpdate) -> PolyBlock:
        info = self._info(value.update)
        axes = atom_axes(info)
        reading = Reading(value, (), _ranges(axes))
        starts = self._bind(self._info(value).params, reading)
        names = [f"{self.ids[value]}_{k}" for k in range(len(info.axes))]
        pairs = zip(dim_index(info), names, strict=True)
        reading.index = tuple(add(here, starts.get(name, 0)) for here, name in pairs)
        write = self._access(reading).map
        self._commit_params(reading)
        base = self._read_stored(value.x).tensor
        update = self._read_value(value.update, dim_index(info), axes)
        made = self._make_block(value, BlockKind.UPDATE, axes, (update,))
        return replace(made, write=write, base=base, window_of=self._atoms(value))

    # -- accesses --------------------------------------------------------------------------------

    def _read_whole(self, value: Value) -> Access:
        """The access of a value over its own atoms."""
        info = self._info(value)
        return self._read_value(value, dim_index(info), atom_axes(info))

    def _read_stored(self, value: Value) -> Access:
        """The access of a value that has to be a tensor, over its own atoms."""
        while isinstance(value, Barrier):
            self.awaited[value.after] = None
            value = value.x
        if isinstance(value, Movement):
            self.stored.add(value)
        return self._read_whole(value)

    def _read_value(
        self, value: Value, index: Index, axes: tuple[IterAxis, ...], *, first: bool = False
    ) -> Access:
        if not isinstance(value, Movement):
            self.needed.add(value)
            return Access(self.names[value], _in_atoms(index, axes, self._info(value).atoms))
        reading = self._follow(value, index, axes, first=first)
        self._commit(reading)
        return self._access(reading)

    def _follow(
        self,
        value: Value,
        index: Index,
        axes: tuple[IterAxis, ...],
        *,
        first: bool = False,
        widening: bool = False,
    ) -> Reading:
        """Down from `value` to the tensor that is read; `first`: at least one movement down."""
        return self._down(Reading(value, index, _ranges(axes)), first=first, widening=widening)

    def _down(self, reading: Reading, *, first: bool = False, widening: bool = False) -> Reading:
        value = reading.value
        while True:
            here = reading.value
            if isinstance(here, Movement):
                is_stored = here in self.stored or self._info(here).materialise
                if is_stored and not (first and here is value):
                    return reading
                # An access has one fill: where two paddings of different values meet, the inner one
                # is stored.
                if isinstance(here, Pad) and not reading.admits(here.value):
                    return reading
                self._step(reading, here)
            elif widening and isinstance(here, Cast) and widens(here):
                reading.widen = reading.widen or here.dtype
                reading.value = here.x
            else:
                return reading

    def _step(self, reading: Reading, here: Movement) -> None:
        """Through one movement, by the rule that the book has for it."""
        if isinstance(here, Barrier):
            reading.after.append(here.after)
            reading.value = here.x
            return
        info = self._info(here)
        rule = info.inputs[0]
        replaced = {f"i{k}": e for k, e in enumerate(reading.index)}
        params = self._bind(info.params, reading)
        index = [reading.simple(substitute(e, replaced, params)) for e in rule.map]
        for guard in rule.guards:
            expr = reading.simple(substitute(guard.expr, replaced, params))
            if not always(Guard(expr, guard.size), reading.ranges):
                index[rule.map.index(guard.expr)] = reading.guarded(expr, guard.size)
                reading.fill = here.value if isinstance(here, Pad) else None
        reading.value, reading.index = here.x, tuple(index)

    def _access(self, reading: Reading) -> Access:
        info = self._info(reading.value)
        map_: list[Expr] = []
        for expr, atoms in zip(reading.index, info.atoms, strict=True):
            map_.extend(reading.parts(expr, atoms))
        guards = [Guard(reading.outer(g.expr), g.size) for g in reading.guards]
        fill = None if reading.fill is None else reading.fill.value
        return Access(
            self.names[reading.value],
            tuple(reading.outer(e) for e in map_),
            tight(guards),
            fill,
            reading.widen,
        )

    def _commit(self, reading: Reading) -> None:
        """The tensor that a reading ends at is wanted, and so are the params on the way."""
        if isinstance(reading.value, Movement):
            self.stored.add(reading.value)
        self.needed.add(reading.value)
        self._commit_params(reading)

    def _commit_params(self, reading: Reading) -> None:
        self.awaited.update(dict.fromkeys(reading.after))
        for name in reading.params:
            found, source = self.params[name]
            self.used[name] = found
            self.needed.add(source)

    def _bind(self, params: Sequence[BookParam], reading: Reading) -> dict[str, Expr]:
        """What each parameter of a rule is: a number, or a parameter of the view."""
        bound = {}
        for known in params:
            scalar = self.values[int(known.value_id[1:])]
            inner = self._follow(scalar, (), ())
            reading.after += inner.after
            if isinstance(inner.value, Const):
                start = int(inner.value.value.real)
                # Clamped here as it would be in the run.
                bound[known.name] = constant(min(max(start, known.low), known.high))
                continue
            name = self._param(inner, known.low, known.high)
            reading.params.append(name)
            reading.ranges[name] = (known.low, known.high)
            bound[known.name] = param(name)
        return bound

    def _param(self, scalar: Reading, low: int, high: int) -> str:
        key = (self._access(scalar), low, high)
        if key not in self.param_names:
            name = f"p{len(self.param_names)}"
            self.param_names[key] = name
            self.params[name] = (IndexParam(name, *key), scalar.value)
        return self.param_names[key]


def _ranges(axes: Sequence[IterAxis]) -> Ranges:
    return {a.name: (0, a.size - 1) for a in axes}


def _function_name(value: Value) -> str:
    match value:
        case Unary(fn=fn) | Binary(fn=fn):
            return str(fn)
        case Reduce(fn=reduce_fn):
            return str(reduce_fn)
        case Opaque(op=op):
            return str(getattr(op, "mnemonic", op))
        case DynamicUpdate():
            return "update"
        case _:
            return type(value).__name__.lower()
