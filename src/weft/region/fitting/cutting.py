"""Splitting a reduction in two kernels: partial results, then their combination.

    y[o] = g(reduce over r of f(o, r))

      -->  t[q, o] = reduce over r' of f(o, q * L + r')                        q < P, r' < L
           y[o]    = g(reduce over q of  t[q, o]           where q < P,
                                         f(o, P * L + q - P)  elsewhere)       q < P + the rest

Where the parts are as long as the axis, nothing is left over and q is the parts alone. A fold hands
on all that it carries: the second kernel merges, in each step, a part into what it has, and an
element that is left over is a part of one step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

from weft.foundation.dtypes import I1, SI32
from weft.foundation.index_expr import Expr, Guard, axis, substitute
from weft.foundation.records import dataclass, replace
from weft.region.ir import (
    AxisIndex,
    Binary,
    Cast,
    Check,
    Const,
    Fold,
    Kernel,
    KernelAxis,
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
    ValueExpr,
    operands,
)

Places: TypeAlias = Mapping[str, Expr]
"""Where each axis of a kernel is in a point of another one."""


@dataclass(frozen=True)
class Cut:
    """Axes that go to the parts whole, and one that is cut into `count` parts of `length`; of its
    whole length, where none is given. The axes of a `strip` go to the parts whole, too, and lie
    behind all others there: each is then a sum of its own, beside those of its neighbours."""

    whole: tuple[str, ...]
    axis: str = ""
    count: int = 1
    length: int = 0
    strip: tuple[str, ...] = ()


def cut_kernel(kernel: Kernel, cut: Cut) -> tuple[tuple[Kernel, ...], tuple[Tensor, ...]]:
    """The two kernels that take a kernel's place, and the tensors between them."""
    return _Cutting(kernel, cut).kernels()


def reductions(kernel: Kernel) -> list[Let]:
    """The reductions and folds of a kernel, in order."""
    return [let for let in kernel.body if isinstance(let.expr, Reduce | Fold)]


def removed_axes(kernel: Kernel) -> list[KernelAxis]:
    """The axes that they remove, in order."""
    return [axis for axis in kernel.axes if axis.name in kernel.reduced]


def needed(values: Iterable[str], kernel: Kernel, stop: Iterable[str] = ()) -> set[str]:
    """The Lets that values need, themselves included, but nothing before those in `stop`."""
    lets, last = kernel.lets, set(stop)
    found: set[str] = set()
    stack = list(values)
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack += () if name in last else operands(lets[name])
    return found


class _Cutting:
    """One kernel and its cut."""

    def __init__(self, kernel: Kernel, cut: Cut) -> None:
        self.kernel, self.cut = kernel, cut
        self.reduced = removed_axes(kernel)
        self.part = free_name("part", kernel.sizes)
        self.sums = reductions(kernel)
        self.totals = list(_totals(self.sums))
        self.sizes = dict(kernel.sizes)
        """Of the axes of one part."""
        self.parts = [KernelAxis(name, self.sizes[name]) for name in cut.whole]
        self.left = 0
        """Elements along the cut axis that no part has."""
        if cut.axis:
            size = self.sizes[cut.axis]
            self.sizes[cut.axis] = cut.length or size // cut.count
            self.left = size - cut.count * self.sizes[cut.axis]
            self.parts.append(KernelAxis(self.part, cut.count))
        self.strip = [KernelAxis(name, self.sizes[name]) for name in cut.strip]
        gone = {found.name for found in self.reduced}
        self.kept = [found for found in kernel.axes if found.name not in gone]

    def kernels(self) -> tuple[tuple[Kernel, ...], tuple[Tensor, ...]]:
        tensors = tuple(
            Tensor(f"{self.kernel.name}_{let.name}_parts", let.dtype, self.shape(let))
            for let in self.totals
        )
        return (self.first(tensors), self.second(tensors)), tensors

    def shape(self, total: Let) -> tuple[int, ...]:
        """Of a total of all parts."""
        own = (self.sizes[name] for name in total.axes)
        return (*(found.size for found in self.parts), *own, *(found.size for found in self.strip))

    def place(self, total: Let) -> tuple[Expr, ...]:
        """Where a total of all parts is."""
        names = [found.name for found in self.parts], total.axes, self.cut.strip
        return tuple(axis(name) for part in names for name in part)

    # -- the parts -------------------------------------------------------------------------------

    def first(self, tensors: Sequence[Tensor]) -> Kernel:
        """Every part reduced by itself."""
        kernel, cut = self.kernel, self.cut
        apart = {*cut.whole, *cut.strip}
        inner = [found.name for found in self.reduced if found.name not in apart]
        axes = [
            *self.parts,
            *self.kept,
            *self.strip,
            *(KernelAxis(name, self.sizes[name], reduce=True) for name in inner),
        ]
        order = [found.name for found in axes]
        moved = {}
        if cut.axis:
            moved[cut.axis] = axis(self.part) * self.sizes[cut.axis] + axis(cut.axis)
        wanted = needed((let.name for let in self.sums), kernel) - {s.name for s in self.sums}
        body = [let for let in kernel.body if let.name in wanted]
        outputs = tuple(
            Output(tensor.name, let.name, self.place(let))
            for tensor, let in zip(tensors, self.totals, strict=True)
        )
        return replace(
            kernel,
            name=f"{kernel.name}_parts",
            axes=tuple(axes),
            body=tuple(self.moved(let, moved, order, inner) for let in (*body, *self.totals)),
            outputs=outputs,
            roles=self.roles(),
            labels={name: label for name, label in kernel.labels.items() if name in wanted},
        )

    def roles(self) -> Roles | None:
        roles = self.kernel.roles
        if roles is None:
            return None
        left = tuple(name for name in roles.k if name not in self.cut.whole)
        return replace(roles, batch=(*(axis.name for axis in self.parts), *roles.batch), k=left)

    def moved(self, let: Let, moved: Places, order: Sequence[str], inner: Sequence[str]) -> Let:
        """A Let of the first kernel: the axis that is cut is a part and a place in it."""
        held = {*let.axes, *((self.part,) if self.cut.axis in let.axes else ())}
        expr = placed(let.expr, moved)
        parts = {found.name for found in (*self.parts, *self.strip)}

        def everywhere(axes: Iterable[str]) -> tuple[str, ...]:
            every = parts.union(axes)
            return tuple([name for name in order if name in every])

        def in_fold(step: Let) -> Let:
            axes = () if isinstance(step.expr, Const) else everywhere(step.axes)
            return Let(step.name, step.dtype, axes, placed(step.expr, moved))

        if isinstance(expr, Reduce):
            return Let(let.name, let.dtype, everywhere(held), replace(expr, axes=tuple(inner)))
        if isinstance(expr, Fold):
            fold = replace(
                expr,
                axes=tuple(inner),
                carries=tuple(replace(c, axes=everywhere(c.axes)) for c in expr.carries),
                step=tuple(map(in_fold, expr.step)),
                combine=tuple(map(in_fold, expr.combine)),
            )
            return Let(let.name, let.dtype, everywhere(held), fold)
        return Let(let.name, let.dtype, tuple(name for name in order if name in held), expr)

    # -- all of them -----------------------------------------------------------------------------

    def second(self, tensors: Sequence[Tensor]) -> Kernel:
        """The parts, and what is left over, reduced to one, and what follows."""
        kernel = self.kernel
        # Parts stay in the order in which they were cut.
        across, body = [*self.parts, *self.strip], []
        if self.left:
            over = _Over(self)
            across, body = [over.axis], list(over.body())
        names = tuple(found.name for found in across)
        for tensor, total in zip(tensors, self.totals, strict=True):
            body += over.either(tensor, total) if self.left else [self.handed(tensor, total)]
        for let in self.sums:
            body.append(replace(let, expr=self.merged(let, names)))
        wanted = needed(
            (output.value for output in kernel.outputs), kernel, (let.name for let in self.sums)
        )
        known = {let.name for let in body}
        body += [let for let in kernel.body if let.name in wanted - known]
        return replace(
            kernel,
            pattern=Pattern.ROW,
            axes=(*self.kept, *(replace(found, reduce=True) for found in across)),
            body=tuple(body),
            outputs=tuple(replace(o, materialize=Materialize.GMEM) for o in kernel.outputs),
            roles=None,
            labels={},
        )

    def handed(self, tensor: Tensor, total: Let) -> Let:
        """A part of a total."""
        axes = (*total.axes, *(found.name for found in (*self.parts, *self.strip)))
        return Let(self.of_part(total), total.dtype, axes, Read(tensor.name, self.place(total)))

    def of_part(self, total: Let) -> str:
        """The name of a part of a total in the second kernel."""
        return self.free(f"{total.name}_part")

    def free(self, stem: str) -> str:
        return free_name(stem, self.kernel.lets)

    @cached_property
    def handed_on(self) -> dict[ValueExpr, str]:
        """The name of a part of each total in the second kernel."""
        return {total.expr: self.of_part(total) for total in self.totals}

    def merged(self, let: Let, names: tuple[str, ...]) -> Reduce | Fold:
        """A reduction over parts."""
        if isinstance(let.expr, Reduce):
            return replace(let.expr, axes=names, value=self.of_part(let))
        assert isinstance(let.expr, Fold)
        fold = let.expr
        known = {f"{carry.name}.a": carry.name for carry in fold.carries}
        known |= {f"{c.name}.b": self.handed_on[replace(fold, result=c.name)] for c in fold.carries}
        return replace(
            fold,
            axes=names,
            # A step that merges a part into what is carried: merging is associative, and the start
            # its identity, so that a fold of folds is the fold.
            carries=tuple(replace(carry, next=carry.merged) for carry in fold.carries),
            step=tuple(replace(step, expr=renamed(step.expr, known)) for step in fold.combine),
        )


class _Over:
    """What is left over, in the second kernel: points of one axis, behind the parts."""

    def __init__(self, cutting: _Cutting) -> None:
        self.cutting, cut = cutting, cutting.cut
        sizes = {**cutting.kernel.sizes, cut.axis: cutting.left}
        rest = [KernelAxis(found.name, sizes[found.name]) for found in cutting.reduced]
        # Parts first, then what is left over: one axis, of which each number is the one or the
        # other.
        self.count = math.prod(found.size for found in cutting.parts)
        points = math.prod(found.size for found in rest)
        self.axis = KernelAxis(cutting.part, self.count + points)
        number = axis(cutting.part)
        self.place_of_part = _place_by_axis(number, cutting.parts)
        self.places = _place_by_axis(number - self.count, rest)
        self.places[cut.axis] += cut.count * cutting.sizes[cut.axis]
        self.is_part = Guard(number, self.count)
        self.is_left = Guard(number - self.count, points)
        self.which = cutting.free("is_part")

    def body(self) -> Iterator[Let]:
        """Whether a point is a part, and what the reductions need where it is none."""
        cutting, along = self.cutting, (self.axis.name,)
        number, count = (cutting.free(stem) for stem in ("part_number", "part_count"))
        yield Let(number, SI32, along, AxisIndex(axis(self.axis.name)))
        yield Let(count, SI32, (), Const(self.count))
        yield Let(self.which, I1, along, Binary("lt", number, count))
        sums = {let.name for let in cutting.sums}
        wanted = needed(sums, cutting.kernel) - sums
        for let in cutting.kernel.body:
            if let.name in wanted:
                yield Let(let.name, let.dtype, self.axes(let), self.expr(let))

    def axes(self, let: Let) -> tuple[str, ...]:
        """The axes of a Let, one for all that are reduced."""
        kept = tuple(found.name for found in self.cutting.kept if found.name in let.axes)
        return kept if kept == let.axes else (*kept, self.axis.name)

    def expr(self, let: Let) -> ValueExpr:
        expr = placed(let.expr, self.places)
        if not isinstance(expr, Read) or self.axis.name not in self.axes(let):
            return expr
        fill = 0 if expr.fill is None else expr.fill
        return replace(expr, guards=(*expr.guards, self.is_left), fill=fill)

    def either(self, tensor: Tensor, total: Let) -> Iterator[Let]:
        """A part of a total: one that was made, or one of a single element that is left over."""
        cutting, axes = self.cutting, (*total.axes, self.axis.name)
        index = (self.place_of_part[found.name] for found in cutting.parts)
        made = cutting.free(f"{total.name}_made")
        read = Read(tensor.name, (*index, *map(axis, total.axes)), (self.is_part,), 0)
        yield Let(made, total.dtype, axes, read)
        single = list(self.single(total, axes))
        yield from single
        last = single[-1].name
        yield Let(cutting.of_part(total), total.dtype, axes, Select(self.which, made, last))

    def single(self, total: Let, axes: tuple[str, ...]) -> Iterator[Let]:
        """The total of one element, made last."""
        free = self.cutting.free
        if isinstance(total.expr, Reduce):
            yield Let(free(f"{total.name}_single"), total.dtype, axes, Cast(total.expr.value))
            return
        assert isinstance(total.expr, Fold)
        known: dict[str, str] = {}
        for carry in total.expr.carries:
            known[carry.name] = free(f"{total.name}_{carry.name}_first")
            yield Let(known[carry.name], carry.dtype, (), Const(carry.init))
        for step in total.expr.step:
            over = () if isinstance(step.expr, Const) else axes
            name = free(f"{total.name}_{step.name}")
            made = Let(name, step.dtype, over, renamed(step.expr, known))
            yield replace(made, expr=self.expr(made))
            known[step.name] = name
        (last,) = (c.next for c in total.expr.carries if c.name == total.expr.result)
        yield Let(free(f"{total.name}_single"), total.dtype, axes, Cast(known[last]))


def _totals(sums: Iterable[Let]) -> Iterator[Let]:
    """What the parts hand on: reductions, and everything that a fold carries, once."""
    seen: set[Fold] = set()
    for let in sums:
        if isinstance(let.expr, Reduce):
            yield let
            continue
        assert isinstance(let.expr, Fold)
        for carry in let.expr.carries:
            fold = replace(let.expr, result=carry.name)
            if fold not in seen:
                seen.add(fold)
                yield Let(f"{let.name}_{carry.name}", carry.dtype, carry.axes, fold)


def placed(expr: ValueExpr, places: Places) -> ValueExpr:
    """A read, a check or a number at other places."""
    if isinstance(expr, Check):
        return replace(expr, element=substitute(expr.element, places))
    if isinstance(expr, Read):
        index = tuple(substitute(e, places) for e in expr.index)
        guards = tuple(Guard(substitute(g.expr, places), g.size) for g in expr.guards)
        return replace(expr, index=index, guards=guards)
    return AxisIndex(substitute(expr.expr, places)) if isinstance(expr, AxisIndex) else expr


def renamed(expr: ValueExpr, names: Mapping[str, str]) -> ValueExpr:
    """A function of one element, of values with other names."""

    def new(name: str) -> str:
        return names.get(name, name)

    match expr:
        case Unary(fn=fn, x=x):
            return Unary(fn, new(x))
        case Cast(x=x):
            return Cast(new(x))
        case Binary(fn=fn, lhs=lhs, rhs=rhs):
            return Binary(fn, new(lhs), new(rhs))
        case Select(pred=pred, x=x, y=y):
            return Select(new(pred), new(x), new(y))
        case _:
            return expr


def _place_by_axis(number: Expr, axes: Sequence[KernelAxis]) -> dict[str, Expr]:
    """The place along each axis of the point with a number, the last axis changing fastest."""
    found: dict[str, Expr] = {}
    for place, digit in reversed(list(enumerate(axes))):
        found[digit.name] = number % digit.size if place else number
        number = number // digit.size
    return found


def free_name(stem: str, taken: Collection[str]) -> str:
    """The stem, with as many underscores as make it a name that is not taken."""
    while stem in taken:
        stem += "_"
    return stem


def computed_from(kernel: Kernel, names: Collection[str]) -> set[str]:
    """Values by name, and all that is computed from them."""
    found = set(names)
    for let in kernel.body:
        if found.intersection(operands(let)):
            found.add(let.name)
    return found
