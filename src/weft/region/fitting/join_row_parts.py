"""Fusion of a product and row reductions in parts, where rows are longer than a tile is wide.

    y = kernel(x, w);  z = kernel(y), a number of each row
        ->  parts = kernel(x, w);  z = kernel(parts)

A tile holds a part of its rows whole, and makes of it what another kernel joins:

    max_j x           = max_p max_{j in p} x
    sum_j x           = sum_p sum_{j in p} x
    sum_j exp(x - s)  = sum_p exp(t_p - s) * sum_{j in p} exp(x - t_p),   t_p = max_{j in p} x
    sum_{j = i} x - s = sum_{p of i} (sum_{j in p, j = i} x) - s          the element i of a row

so that y, which may be far larger than all else, never reaches memory. In the last line t_p is kept
finite: a part of which every x is -inf then has powers of 0, as it should, instead of no numbers.
Whether i is inside a row is checked by the second kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Final

from weft.foundation.dtypes import F32, I1
from weft.foundation.index_expr import Expr, axis
from weft.foundation.records import dataclass, replace
from weft.region.fitting.cutting import computed_from, needed
from weft.region.fitting.joining import live
from weft.region.forms.row_folds import FOLDS, folded_value, is_row_fold
from weft.region.ir import (
    AxisIndex,
    Binary,
    Cast,
    Check,
    Const,
    Kernel,
    Let,
    Materialize,
    Output,
    Pattern,
    Read,
    Reduce,
    Roles,
    Select,
    Tensor,
    Unary,
)
from weft.region.writing.axes import split_axis

_POWERS: Final = ("exp", "exp2")
_LARGEST: Final = 3.4028234663852886e38
"""Of f32."""


@dataclass(frozen=True)
class RowParts:
    """The two kernels, and the tensors between them."""

    product: Kernel
    rows: Kernel
    between: tuple[Tensor, ...]


def row_parts(kernel: Kernel, width: int, stem: str) -> RowParts | None:
    """A product that makes numbers of whole rows as two kernels, the first of which makes numbers
    of `width` columns, its tensors called after `stem`; None where these cannot be joined, or where
    a result has columns."""
    roles = kernel.roles
    assert roles is not None
    if len(roles.n) != 1 or kernel.sizes[roles.n[0]] % width:
        return None
    folds = [let for let in kernel.body if is_row_fold(let, roles)]
    ends = needed((output.value for output in kernel.outputs), kernel, [f.name for f in folds])
    made = {let.name for let in kernel.body if let.name in ends and {*let.axes} & {*roles.n}}
    if made or not folds:
        return None
    count = kernel.sizes[roles.n[0]] // width
    return _Parts(split_axis(kernel, roles.n[0], (count, width)), stem).found()


def unchecked(let: Let) -> Let:
    """A Let without its check."""
    return replace(let, expr=Cast(let.expr.x)) if isinstance(let.expr, Check) else let


@dataclass(frozen=True)
class _Pick:
    """`where(which, x - s, nothing)`, where which is true for the column `place` of a row; s may be
    left out."""

    which: str
    place: str
    x: str
    s: str
    nothing: str

    @property
    def of_rows(self) -> tuple[str, ...]:
        """What the kernel that joins parts needs."""
        return tuple(name for name in (self.place, self.s, self.nothing) if name)


@dataclass
class _Parts:
    """A kernel whose columns are cut, and what takes its place."""

    kernel: Kernel
    stem: str
    more: list[Let] = field(default_factory=list)
    """What the product makes of its elements."""
    stored: dict[str, str] = field(default_factory=dict)
    """The tensor of each number of a part."""
    tops: dict[str, str] = field(default_factory=dict)
    """The greatest of each value."""

    @property
    def roles(self) -> Roles:
        assert self.kernel.roles is not None
        return self.kernel.roles

    @property
    def part(self) -> str:
        return self.roles.n[0]

    @property
    def within(self) -> str:
        return self.roles.n[1]

    def found(self) -> RowParts | None:
        folds = [let for let in self.kernel.body if is_row_fold(let, self.roles)]
        names = {fold.name for fold in folds}
        behind = computed_from(self.kernel, names)
        tail = needed((o.value for o in self.kernel.outputs), self.kernel, names) - names
        joined: dict[str, list[Let]] = {}
        for fold in folds:
            value = folded_value(fold)
            power, pick = self.power(fold, behind), self.pick(fold, behind)
            if pick is not None:
                tail |= needed(pick.of_rows, self.kernel, names) - names
                joined[fold.name] = [*self.picked(fold, pick)]
            elif value not in behind and not self.checks(value):
                joined[fold.name] = [*self.plain(fold, value)]
            elif power is not None and not self.checks(power[1]):
                tail |= needed([power[2]], self.kernel, names) - names
                joined[fold.name] = [*self.shifted(fold, *power)]
            else:
                return None
        return RowParts(self.product(behind), self.rows(joined, tail), self.between())

    # Numbers of parts, and how they are joined

    def power(self, fold: Let, behind: set[str]) -> tuple[str, str, str] | None:
        """The function, x and s, where a fold sums powers of x - s, and s is a number of a row."""
        made = self.kernel.let(folded_value(fold)).expr
        if not isinstance(made, Unary) or made.fn not in _POWERS:
            return None
        inner = self.kernel.let(made.x)
        if not isinstance(inner.expr, Binary) or inner.expr.fn != "sub" or inner.dtype is not F32:
            return None
        x, s = inner.expr.lhs, inner.expr.rhs
        alone = not {*self.kernel.let(s).axes} & {*self.roles.n}
        assert isinstance(fold.expr, Reduce)
        return (made.fn, x, s) if alone and x not in behind and fold.expr.fn == FOLDS[0] else None

    def checks(self, value: str) -> bool:
        """Whether a value is made of one that is checked."""
        made = map(self.kernel.let, needed([value], self.kernel))
        return any(isinstance(let.expr, Check) for let in made)

    def pick(self, fold: Let, behind: set[str]) -> _Pick | None:
        """The element of each row that a fold sums up alone, where it does."""
        made = self.kernel.let(folded_value(fold)).expr
        if not isinstance(fold.expr, Reduce) or fold.expr.fn != "sum":
            return None
        if not isinstance(made, Select) or self.kernel.let(made.y).expr != Const(0.0):
            return None
        which = self.kernel.let(made.pred).expr
        if not isinstance(which, Binary) or which.fn != "eq":
            return None
        for column, place in ((which.lhs, which.rhs), (which.rhs, which.lhs)):
            number, row = self.kernel.let(column), self.kernel.let(place)
            if number.expr != AxisIndex(self.column) or {*row.axes} & {*self.roles.n}:
                continue
            x, s = made.x, ""
            inner = self.kernel.let(x).expr
            if x in behind and isinstance(inner, Binary) and inner.fn == "sub":
                x, s = inner.lhs, inner.rhs
            apart = not s or not {*self.kernel.let(s).axes} & {*self.roles.n}
            if apart and x not in behind and place not in behind and not self.checks(x):
                return _Pick(made.pred, place, x, s, made.y)
        return None

    @property
    def column(self) -> Expr:
        """The number of a column."""
        return axis(self.part) * self.kernel.sizes[self.within] + axis(self.within)

    def picked(self, fold: Let, found: _Pick) -> Iterator[Let]:
        axes, width = self.axes(fold), self.kernel.sizes[self.within]
        chosen = Select(found.which, found.x, found.nothing)
        name = f"{fold.name}_picked"
        self.more.append(Let(name, F32, (*axes, self.within), chosen))
        read = self.read(fold, self.number(fold, "sum", name))
        yield read
        value, dtype = read.name, self.kernel.let(found.place).dtype
        if found.s:
            yield Let(f"{fold.name}_less", F32, axes, Binary("sub", value, found.s))
            value = f"{fold.name}_less"
        # Where the part does not have the column its sum is 0, and 0 - s is no part of the result.
        for fn, end in (("ge", 0), ("lt", width)):
            edge, inside, kept = (f"{fold.name}_{word}_{fn}" for word in ("edge", "inside", "kept"))
            yield Let(edge, dtype, (self.part,), AxisIndex(axis(self.part) * width + end))
            yield Let(inside, I1, axes, Binary(fn, found.place, edge))
            yield Let(kept, F32, axes, Select(inside, value, found.nothing))
            value = kept
        yield replace(fold, expr=Reduce("sum", (self.part,), value))

    def plain(self, fold: Let, value: str) -> Iterator[Let]:
        assert isinstance(fold.expr, Reduce)
        made = self.number(fold, fold.expr.fn, value)
        if fold.expr.fn == "max":
            self.tops[value] = made
        read = self.read(fold, made)
        yield read
        yield replace(fold, expr=Reduce(fold.expr.fn, (self.part,), read.name))

    def shifted(self, fold: Let, fn: str, x: str, s: str) -> Iterator[Let]:
        if x not in self.tops:
            self.tops[x] = self.number(fold, "max", x)
        # Powers are relative to the greatest of their own part, and the second kernel takes them to
        # s: none is larger than 1 in the first one, whatever s will be.
        top, axes = self.tops[x], self.axes(fold)
        self.more += self.held(top, top, axes)
        over = (*axes, self.within)
        self.more.append(Let(f"{fold.name}_less", F32, over, Binary("sub", x, f"{top}_held")))
        powers = Let(f"{fold.name}_powers", F32, over, Unary(fn, f"{fold.name}_less"))
        self.more.append(powers)
        made = self.number(fold, "sum", powers.name)
        sums, tops = self.read(fold, made), self.read(fold, top, f"{fold.name}_top")
        yield sums
        yield tops
        yield from self.held(tops.name, tops.name, axes)
        names = [f"{fold.name}_{end}" for end in ("shift", "share", "shared")]
        yield Let(names[0], F32, axes, Binary("sub", f"{tops.name}_held", s))
        yield Let(names[1], F32, axes, Unary(fn, names[0]))
        yield Let(names[2], F32, axes, Binary("mul", sums.name, names[1]))
        yield replace(fold, expr=Reduce("sum", (self.part,), names[2]))

    def held(self, value: str, stem: str, axes: tuple[str, ...]) -> Iterator[Let]:
        """A value, or the finite number that is nearest to it."""
        # Infinities are held at the ends of the format: -inf less -inf would be NaN, and e^(-inf -
        # finite) is 0 either way.
        if any(let.name == f"{stem}_held" for let in self.more):
            return
        for end, number in (("least", -_LARGEST), ("most", _LARGEST)):
            yield Let(f"{stem}_{end}", F32, (), Const(number))
        yield Let(f"{stem}_raised", F32, axes, Binary("max", value, f"{stem}_least"))
        yield Let(f"{stem}_held", F32, axes, Binary("min", f"{stem}_raised", f"{stem}_most"))

    def number(self, fold: Let, fn: str, value: str) -> str:
        """The number of every part that the product stores."""
        name = f"{fold.name}_{fn}_of_part"
        self.more.append(Let(name, F32, self.axes(fold), Reduce(fn, (self.within,), value)))
        self.stored[name] = f"{self.stem}_{len(self.stored)}"
        return name

    def read(self, fold: Let, name: str, called: str = "") -> Let:
        axes = self.axes(fold)
        read = Read(self.stored[name], tuple(map(axis, axes)))
        return Let(called or f"{name}_read", F32, axes, read)

    def axes(self, fold: Let) -> tuple[str, ...]:
        """Of a number of every part of a row."""
        return (*fold.axes, self.part)

    # Kernels

    def product(self, behind: set[str]) -> Kernel:
        own = tuple(unchecked(let) for let in self.kernel.body if let.name not in behind)
        body = (*own, *self.more)
        axes = {let.name: let.axes for let in body}
        outputs = tuple(
            Output(tensor, name, tuple(map(axis, axes[name])), materialize=Materialize.DEFERRED)
            for name, tensor in self.stored.items()
        )
        return live(replace(self.kernel, body=body, outputs=outputs, labels={}))

    def rows(self, joined: dict[str, list[Let]], tail: set[str]) -> Kernel:
        body: list[Let] = []
        for let in self.kernel.body:
            body += joined.get(let.name, [let] if let.name in tail else [])
        outputs = (replace(o, materialize=Materialize.GMEM) for o in self.kernel.outputs)
        kernel = replace(self.kernel, pattern=Pattern.ROW, roles=None, labels={})
        return live(replace(kernel, body=tuple(body), outputs=tuple(outputs)))

    def between(self) -> tuple[Tensor, ...]:
        axes = {let.name: let.axes for let in self.more}
        return tuple(
            Tensor(tensor, F32, tuple(self.kernel.sizes[a] for a in axes[name]), "internal")
            for name, tensor in self.stored.items()
        )
