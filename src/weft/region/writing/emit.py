"""Emitting the body of a kernel from the blocks it computes.

A block is either *stored*, and then read as a tensor, or *inlined*: its expression is written where
it is read, with its axes replaced by the expressions of the access. A reduction takes its axes from
those of the kernel that its rows do not depend on, if the sizes agree: what is reduced and what is
stored of one row then share an axis, and reads are shared too.

Where an access has guards, an inlined value is computed everywhere, its reads carry the guards so
that nothing is touched out of range, and a select puts the fill where a guard fails.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from weft.foundation.dims import static
from weft.foundation.dtypes import I1, SI32, SI64, DType
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import (
    SELECTED,
    Expr,
    Guard,
    Index,
    add,
    always,
    axes_of,
    axis,
    bounds,
    constant,
    linear,
    param,
    params_of,
    scale,
    simplify,
    substitute,
)
from weft.foundation.records import dataclass
from weft.poly_view.ir import Access, BlockKind, IndexParam, PolyBlock, Scop
from weft.region.ir import Cast, Output, Param, Place, Read, Scalar, Tensor, row_major
from weft.region.writing.build import Body
from weft.tiny.ir import Cast as TinyCast
from weft.tiny.ir import Const as TinyConst
from weft.tiny.ir import Iota as TinyIota
from weft.tiny.ir import Words as TinyWords

Env = Mapping[str, Expr]
_SPECIAL: Final = frozenset({"const", "iota", "words", "gather", "check"})
"""What is more than a function of what is read at one place."""


class Stop(Exception):
    """A block cannot be inlined here; the message says why. Never leaves the region stage."""


@dataclass(frozen=True)
class Source:
    """A tensor that accesses can end at: the shape it is stored with, and its atoms. With `order`
    it is stored with its atoms in another order than its own: place k holds atom `order[k]`."""

    tensor: Tensor
    atoms: tuple[int, ...]
    order: tuple[int, ...] | None = None

    def index(self, atoms: Sequence[Expr]) -> Index:
        """An index in atoms as an index in the axes of the tensor."""
        if self.order is None:
            return regroup(self.tensor.shape, self.atoms, atoms)
        sizes = [self.atoms[k] for k in self.order]
        return regroup(self.tensor.shape, sizes, [atoms[k] for k in self.order])


def regroup(shape: Sequence[int], atoms: Sequence[int], index: Sequence[Expr]) -> Index:
    """Atoms put together into axes: each axis is the next atoms whose sizes multiply to it."""
    result = []
    place = 0
    for size in shape:
        here, extent = constant(0), 1
        while extent != size:
            if place == len(atoms):
                raise InternalError(f"the atoms {list(atoms)} do not make up {list(shape)}")
            here = add(scale(here, atoms[place]), index[place])
            extent *= atoms[place]
            place += 1
        result.append(here)
    return tuple(result)


def makes_up(shape: Sequence[int], atoms: Sequence[int]) -> bool:
    """Whether axes of this shape are made of whole atoms, in order."""
    place = 0
    for size in shape:
        extent = 1
        while extent != size:
            if place == len(atoms):
                return False
            extent *= atoms[place]
            place += 1
    return all(size == 1 for size in atoms[place:])


@dataclass(frozen=True)
class View:
    """The blocks to choose from and the tensors they are stored as."""

    blocks: dict[str, PolyBlock]
    sources: dict[str, Source]
    params: dict[str, IndexParam]
    known: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    """Where accesses lead and what they read, which every draft of a kernel asks again."""

    @classmethod
    def of(cls, scop: Scop, blocks: dict[str, PolyBlock], sources: dict[str, Source]) -> View:
        return cls(blocks, sources, {p.name: p for p in scop.params})


@dataclass(frozen=True)
class Root:
    """A block that a kernel stores. `env` says where its axes are among the kernel's; none for the
    block that gives the kernel its axes."""

    block: str
    env: tuple[Expr, ...] | None = None


@dataclass(frozen=True)
class Reduction:
    """A reduction in a kernel: the Let, the rows it is computed for, and what it reduces over."""

    block: str
    let: str
    rows: tuple[Expr, ...]
    axes: tuple[str, ...]
    guarded: bool
    contraction: bool
    sides: tuple[str, str] = ("", "")
    """The Lets of the two operands of a contraction."""


@dataclass
class Emitter:
    """One kernel in the making."""

    view: View
    inlined: frozenset[str]
    sizes: dict[str, int] = field(default_factory=dict)
    reductions: list[Reduction] = field(default_factory=list)
    used_params: dict[str, None] = field(default_factory=dict)
    members: dict[str, str] = field(default_factory=dict)
    """Blocks computed here, with the Let of each."""
    outputs: list[Output] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.body = Body([])
        self.values: dict[tuple[str, tuple[Expr, ...], tuple[Guard, ...]], str] = {}
        self.reads: dict[Hashable, str] = {}
        """The Lets of reads, as they are known for all drafts."""
        self.selected: dict[str, Place] = {}
        self.own: tuple[str, ...] = ()
        self.places: tuple[Expr, ...] = ()
        self.frame = 0
        """A number for the sizes of the axes: where it is the same, the same places are."""
        self.ranges: dict[str, tuple[int, int]] = {
            p.name: (p.low, p.high) for p in self.view.params.values()
        }

    def run(self, roots: Sequence[Root]) -> None:
        """Write roots, the first of which gives the kernel its axes."""
        first = self.view.blocks[roots[0].block]
        self.own = tuple(self._new_axis(a.size) for a in first.out_axes)
        self.places = tuple(axis(name) for name in self.own)
        self.add(roots)

    def add(self, roots: Sequence[Root]) -> None:
        """Write more roots on the same axes."""
        self.outputs += map(self._root, roots)

    def _new_axis(self, size: int) -> str:
        name = f"i{len(self.sizes)}"
        self.sizes[name] = size
        self.body.axes.append(name)
        self.ranges[name] = (0, size - 1)
        known = self.view.known
        self.frame = known.setdefault(("frame", *self.sizes.values()), len(known))
        return name

    # -- roots -----------------------------------------------------------------------------------

    def _root(self, root: Root) -> Output:
        block = self.view.blocks[root.block]
        places = self.places if root.env is None else root.env
        source = self.view.sources[root.block]
        if block.kind is BlockKind.UPDATE:
            value = self._spread_over_outputs(
                self._access(block.accesses[0], block, places, ()), places
            )
            env = dict(zip(block.out_names, places, strict=True))
            write = [self._place(expr, env) for expr in block.write or ()]
            base = self.view.sources[str(block.base)].tensor.name
            return Output(source.tensor.name, value, source.index(write), base)
        value = self._spread_over_outputs(self._at(root.block, places, ()), places)
        return Output(source.tensor.name, value, self._index(root.block, places))

    def _index(self, name: str, places: tuple[Expr, ...]) -> Index:
        """Where a place of a block is in the axes of its tensor."""
        key = (name, places)
        found: Index | None = self.view.known.get(key)
        if found is None:
            found = self.view.known[key] = self.view.sources[name].index(places)
        return found

    def _spread_over_outputs(self, value: str, places: Sequence[Expr]) -> str:
        """The value over every axis that it is stored over, also where it is the same for all."""
        dtype, held = self.body.known[value]
        if held == self.own and places is self.places:
            return value
        over = {name for expr in places for name in axes_of(expr)}
        if over <= set(held):
            return value
        own = (name for name in self.own if name in over)
        # A cast to its own dtype changes nothing but the axes that it lives over.
        return self.body.let(dtype, (*held, *own), Cast(value))

    # -- values ----------------------------------------------------------------------------------

    def _at(self, name: str, places: Index, guards: tuple[Guard, ...]) -> str:
        """The Let of a block at the given place."""
        key = (name, places, guards)
        found = self.values.get(key)
        if found is None:
            found = self._compute(self.view.blocks[name], places, guards)
            self.values[key] = found
            self.members.setdefault(name, found)
        return found

    def _compute(self, block: PolyBlock, places: Index, guards: tuple[Guard, ...]) -> str:
        match block.kind:
            case BlockKind.EWISE:
                return self._elementwise(block, places, guards)
            case BlockKind.MOVEMENT:
                return self._access(block.accesses[0], block, places, guards)
            case BlockKind.REDUCE | BlockKind.CONTRACTION:
                return self._reduce(block, places, guards)
            case _:
                raise Stop("it is computed by a kernel of its own")

    def _elementwise(self, block: PolyBlock, places: Index, guards: tuple[Guard, ...]) -> str:
        fn = block.fn
        if fn in _SPECIAL:
            return self._special(block, places, guards)
        args = [self._access(access, block, places, guards) for access in block.accesses]
        if len(args) == 2:
            return self.body.binary(fn, args[0], args[1])
        if fn == "cast" and len(args) == 1:
            return self.body.cast(args[0], block.dtype)
        if len(args) == 1:
            return self.body.unary(fn, args[0])
        if fn == "where" and len(args) == 3:
            return self.body.select(args[0], args[1], args[2])
        raise InternalError(f"block {block.name} is {fn} of {len(args)} operands")

    def _special(self, block: PolyBlock, places: Index, guards: tuple[Guard, ...]) -> str:
        """A number, or what depends on its place."""
        value = block.value
        if isinstance(value, TinyConst):
            return self.body.const(value.value, block.dtype)
        if isinstance(value, TinyIota):
            return self.body.index(self._counter(block, value, places), block.dtype)
        if block.fn == "gather":
            return self._gather(block, places, guards)
        if guards and block.fn == "check":
            raise Stop("a check must not be made where nothing is read")
        args = [self._access(access, block, places, guards) for access in block.accesses]
        if isinstance(value, TinyWords):
            states = math.prod(static(dim) for dim in value.state.shape[:-1])
            return self.body.words(args[0], args[1], self._element(block, places, states))
        element = self._element(block, places)
        return self.body.check(args[0], str(value.rule), value.code, value.size, element)

    def _element(self, block: PolyBlock, at: Index, parts: int = 1) -> Expr:
        """The place of an element of a block's value, counted in row-major order; where the value
        has parts, which the first axes count, within its part."""
        places, sizes = list(at), list(block.shape)
        # The first axes count parts: as many are left out as make up the number of parts.
        while parts > 1:
            parts //= sizes.pop(0)
            places.pop(0)
        element = simplify(linear(places, row_major(tuple(sizes))), self.ranges)
        return self._known_place(element)

    def _gather(self, block: PolyBlock, places: Index, guards: tuple[Guard, ...]) -> str:
        where, source = block.accesses
        value = self._access(where, block, places, guards)
        place = Place(f"{SELECTED}_{value}", value, block.selected)
        self.ranges[place.param] = (0, block.selected - 1)
        self.selected[place.param] = place
        found = self._access(source, block, places, guards, place)
        return found if self.body.depends(found, value) else self._same_anywhere(found, value)

    def _same_anywhere(self, found: str, place: str) -> str:
        """What is the same wherever it is read (a splat, an axis of size 1) as a function of the
        place all the same: what checks the place must be computed."""
        zero = self.body.const(0, self.body.dtype(place))
        return self.body.select(self.body.binary("lt", place, zero), found, found)

    def _counter(self, block: PolyBlock, iota: TinyIota, at: Index) -> Expr:
        shape = [int(size) for size in iota.shape if isinstance(size, int)]
        places = regroup(shape, [a.size for a in block.axes], at)
        return self._known_place(simplify(places[iota.axis], self.ranges))

    # -- reductions ------------------------------------------------------------------------------

    def _reduce(self, block: PolyBlock, rows: Index, guards: tuple[Guard, ...]) -> str:
        # A product of matrices. One of a matrix and a vector is a sum along rows like any other,
        # and goes into a kernel with others of the same rows.
        attrs = block.attrs
        contraction = attrs is not None and bool(attrs.lhs_idx) and bool(attrs.rhs_idx)
        taken = {name for expr in (*rows, *(g.expr for g in guards)) for name in axes_of(expr)}
        axes = []
        for reduced in block.reduce_axes:
            free = (n for n, size in self.sizes.items() if size == reduced.size and n not in taken)
            name = None if contraction else next(free, None)
            axes.append(name or self._new_axis(reduced.size))
            taken.add(axes[-1])
        inner = (*rows, *map(axis, axes))
        sides = [self._access(access, block, inner, guards) for access in block.accesses]
        multiplied = block.kind is BlockKind.CONTRACTION
        operand = self._product(block, sides) if multiplied else sides[0]
        fn = "sum" if multiplied else block.fn
        let = self.body.reduce(fn, operand, axes, block.dtype)
        pair = (sides[0], sides[-1])
        self.reductions.append(
            Reduction(block.name, let, rows, tuple(axes), bool(guards), contraction, pair)
        )
        return let

    def _product(self, block: PolyBlock, sides: Sequence[str]) -> str:
        """A product as matrix units form it: where the program rounds it and widens it again before
        it is added, the operands are widened instead and nothing is rounded (a multiply-add may be
        contracted)."""
        summed = block.value.x
        if isinstance(summed, TinyCast):
            sides = [self.body.cast(side, summed.dtype) for side in sides]
        return self.body.binary("mul", sides[0], sides[1])

    # -- accesses --------------------------------------------------------------------------------

    def _place(self, expr: Expr, env: Env, place: Place | None = None) -> Expr:
        for name in sorted(params_of(expr) - {SELECTED}):
            self.used_params[name] = None
        selected = {SELECTED: param(place.param)} if place is not None else None
        return simplify(substitute(expr, env, selected), self.ranges)

    def _access(
        self,
        access: Access,
        block: PolyBlock,
        at: Index,
        guards: tuple[Guard, ...],
        place: Place | None = None,
    ) -> str:
        """The Let of what a block reads where its axes are `at`."""
        places, own = self._place_access(access, block, at, place)
        every = tuple(dict.fromkeys((*own, *guards))) if own else guards
        if access.tensor in self.inlined:
            value = self._at(access.tensor, places, every)
            if own:
                value = self._fill_outside(value, own, access.fill)
        else:
            value = self._emit_read(access, places, own, every)
        return value if access.widen is None else self.body.cast(value, access.widen)

    def _place_access(
        self, access: Access, block: PolyBlock, at: Index, place: Place | None
    ) -> tuple[Index, tuple[Guard, ...]]:
        """What an access reads, and under which guards. It is remembered for all drafts, but where
        a gather is under way: its places have numbers of one draft."""
        is_general = place is None and not self.selected
        key = (id(access), self.frame, at)
        known = self.view.known.get(key) if is_general else None
        if known is not None:
            places, own, used, _ = known
            if used:
                self.used_params.update(used)
            return places, own
        env = dict(zip(block.names, at, strict=True))
        places = tuple(self._place(expr, env, place) for expr in access.map)
        limits = (Guard(self._place(g.expr, env, place), g.size) for g in access.guards)
        own = tuple(guard for guard in limits if not always(guard, self.ranges))
        if is_general:
            exprs = [*access.map, *(guard.expr for guard in access.guards)]
            used = dict.fromkeys(name for expr in exprs for name in sorted(params_of(expr)))
            # The access is kept, so that its id stays its own.
            self.view.known[key] = places, own, used, access
        return places, own

    def _emit_read(
        self,
        access: Access,
        places: Index,
        own: tuple[Guard, ...],
        every: tuple[Guard, ...],
    ) -> str:
        source = self.view.sources[access.tensor]
        dtype = source.tensor.dtype
        key = (access.tensor, self.frame, repr(access.fill) if own else "", places, every)
        written = self.reads.get(key)
        if written is not None:
            return written
        if not self.selected and key in self.view.known:
            written = self.reads[key] = self.body.let(dtype, *self.view.known[key])
            return written
        fill: Scalar | None = access.fill if own else _zero(dtype)
        index = tuple(simplify(expr, self.ranges) for expr in source.index(places))
        if not own and self._lies_inside(index, source.tensor.shape):
            every = self._guards_along(index, every)
        name, used = source.tensor.name, (*index, *(guard.expr for guard in every))
        selected = tuple(self.selected[n] for n in self._selected_in(used))
        read = Read(name, index, every, fill if every else None, selected)
        axes = self.body.axes_read(read)
        value = self.body.let(dtype, axes, read)
        if not self.selected:
            self.view.known[key] = axes, read
            self.reads[key] = value
        return value

    def _lies_inside(self, index: Index, shape: Sequence[int]) -> bool:
        """Whether no place of a tensor is out of range, guarded or not."""
        if self._selected_in(index):
            return False
        limits = (bounds(expr, self.ranges) for expr in index)
        return all(
            low >= 0 and high < size for (low, high), size in zip(limits, shape, strict=True)
        )

    @staticmethod
    def _guards_along(index: Index, guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
        """The guards on axes along which a read moves. Under the others it reads the same in range
        and out of it: without them, the factors of channels are not read for each pixel."""
        along = frozenset[str]().union(*map(axes_of, index))
        return tuple(guard for guard in guards if along & {*axes_of(guard.expr)})

    def _selected_in(self, exprs: Iterable[Expr]) -> list[str]:
        """The places of gathers that expressions use."""
        names = frozenset[str]().union(*(params_of(expr) for expr in exprs))
        return sorted(name for name in names if name in self.selected)

    def _known_place(self, expr: Expr) -> Expr:
        """An expression that must not depend on data, because it becomes a number of its own."""
        if self._selected_in((expr,)):
            raise Stop("its place would be one that data names")
        return expr

    def _fill_outside(self, value: str, own: tuple[Guard, ...], fill: Scalar | None) -> str:
        inside = self._predicate(own)
        dtype = self.body.dtype(value)
        other = self.body.const(_zero(dtype) if fill is None else fill, dtype)
        return self.body.select(inside, value, other)

    def _predicate(self, guards: Sequence[Guard]) -> str:
        parts = []
        for guard in guards:
            low, high = bounds(self._known_place(guard.expr), self.ranges)
            dtype = SI32 if max(-low, high) < 1 << 31 else SI64
            number = self.body.index(guard.expr, dtype)
            if low < 0:
                parts.append(self.body.binary("ge", number, self.body.const(0, dtype)))
            if high >= guard.size:
                parts.append(self.body.binary("lt", number, self.body.const(guard.size, dtype)))
        inside = parts[0]
        for part in parts[1:]:
            inside = self.body.binary("min", inside, part)
        return inside

    # -- params ----------------------------------------------------------------------------------

    def params(self) -> tuple[Param, ...]:
        """The run-time numbers that the indices of this kernel use."""
        found = []
        for name in self.used_params:
            known = self.view.params[name]
            source = self.view.sources[known.access.tensor]
            index = source.index(known.access.map)
            element = 0
            for expr, size in zip(index, source.tensor.shape, strict=True):
                element = element * size + expr.constant
            found.append(Param(name, source.tensor.name, element, known.low, known.high))
        return tuple(found)


def _zero(dtype: DType) -> Scalar:
    if dtype is I1:
        return False
    if dtype.is_complex:
        return 0j
    return 0.0 if dtype.is_float else 0
