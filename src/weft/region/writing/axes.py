"""Changing the axes of a kernel: renaming, merging, splitting.

    coalesce:  x[32*a + b] with a < 4, b < 32, and a, b nowhere apart     ->   x[c], c < 128
    split:     x[c], c < 128, into sizes 4 and 32                         ->   x[32*a + b]

Atoms split axes as finely as any reshape in the program asks for; a kernel that does not see the
split gets its whole axes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import TypeAlias

from weft.foundation.index_expr import (
    Expr,
    FloorDiv,
    Guard,
    axis,
    coefficient,
    constant,
    simplify,
    substitute,
)
from weft.foundation.records import replace
from weft.region.ir import (
    AxisIndex,
    Check,
    Fold,
    Kernel,
    KernelAxis,
    Let,
    Output,
    Read,
    Reduce,
    Roles,
    ValueExpr,
    Words,
    walk,
)

Names: TypeAlias = Callable[[tuple[str, ...]], tuple[str, ...]]


def rename_axes(kernel: Kernel, names: Mapping[str, str]) -> Kernel:
    """The kernel with its axes called otherwise."""
    replaced = {old: axis(new) for old, new in names.items()}
    return _rewrite(
        kernel,
        tuple(replace(found, name=names[found.name]) for found in kernel.axes),
        lambda expr: substitute(expr, replaced),
        lambda axes: tuple(names[name] for name in axes),
    )


def split_axis(kernel: Kernel, name: str, sizes: Sequence[int]) -> Kernel:
    """The kernel with several axes, the outermost first, in the place of one without roles."""
    parts = tuple(f"{name}_{number}" for number, _ in enumerate(sizes))
    whole = constant(0)
    for part, size in zip(parts, sizes, strict=True):
        whole = whole * size + axis(part)
    axes: list[KernelAxis] = []
    for found in kernel.axes:
        made = zip(parts, sizes, strict=True) if found.name == name else ((found.name, found.size),)
        axes += [KernelAxis(part, size, found.reduce) for part, size in made]
    return _rewrite(
        kernel,
        tuple(axes),
        lambda expr: substitute(expr, {name: whole}),
        lambda names: tuple(p for n in names for p in (parts if n == name else (n,))),
    )


def simplified(kernel: Kernel) -> Kernel:
    """The kernel with indices as short as the sizes of its axes let them be."""
    ranges = kernel.ranges
    return _rewrite(kernel, kernel.axes, lambda e: simplify(e, ranges), lambda names: names)


def coalesce(kernel: Kernel) -> Kernel:
    """The kernel with as few axes as its accesses allow."""
    if any(found.size == 0 for found in kernel.axes):
        return kernel
    while True:
        pair = next(_joinable(kernel), None)
        if pair is None:
            return kernel
        kernel = _join(kernel, *pair)


def _joinable(kernel: Kernel) -> Iterator[tuple[str, str]]:
    """Pairs of axes that occur only as `size of the second * first + second`."""
    exprs = list(_expressions(kernel))
    for outer, inner in permutations(kernel.axes, 2):
        if outer.reduce is inner.reduce and _together(kernel, outer.name, inner.name):
            size = inner.size
            if all(_one_number(expr, outer.name, inner.name, size) for expr in exprs):
                yield outer.name, inner.name


def _together(kernel: Kernel, outer: str, inner: str) -> bool:
    """Whether every list of axes in the kernel has both or neither."""
    lists: list[tuple[str, ...]] = []
    for let in walk(kernel.body):
        lists.append(let.axes)
        if isinstance(let.expr, Reduce | Fold):
            lists.append(let.expr.axes)
        if isinstance(let.expr, Fold):
            lists += [carry.axes for carry in let.expr.carries]
    if kernel.roles is not None:
        roles = kernel.roles
        lists += [roles.batch, roles.m, roles.n, roles.k]
    return all((outer in names) == (inner in names) for names in lists)


def _one_number(expr: Expr, outer: str, inner: str, size: int) -> bool:
    # c (size * outer + inner) is one number of both; any other ratio would need them apart again.
    if coefficient(expr, outer) != size * coefficient(expr, inner):
        return False
    parts = [term.value for term, _ in expr.terms if isinstance(term, FloorDiv)]
    return all(_one_number(part, outer, inner, size) for part in parts)


def _join(kernel: Kernel, outer: str, inner: str) -> Kernel:
    size = kernel.sizes[outer]
    axes = tuple(
        KernelAxis(found.name, found.size * size, found.reduce) if found.name == inner else found
        for found in kernel.axes
        if found.name != outer
    )
    return _rewrite(
        kernel,
        axes,
        # With the outer axis 0, the inner one's factor is that of the joined axis.
        lambda expr: substitute(expr, {outer: constant(0)}),
        lambda names: tuple(name for name in names if name != outer),
    )


def _expressions(kernel: Kernel) -> Iterator[Expr]:
    for let in walk(kernel.body):
        if isinstance(let.expr, Read):
            yield from let.expr.index
            yield from (guard.expr for guard in let.expr.guards)
        elif isinstance(let.expr, AxisIndex):
            yield let.expr.expr
        elif isinstance(let.expr, Check | Words):
            yield let.expr.element
    for output in kernel.outputs:
        yield from output.index


def _rewrite(
    kernel: Kernel, axes: tuple[KernelAxis, ...], change: Callable[[Expr], Expr], names: Names
) -> Kernel:
    def value(expr: ValueExpr) -> ValueExpr:
        match expr:
            case Read():
                index = tuple(map(change, expr.index))
                guards = tuple(Guard(change(guard.expr), guard.size) for guard in expr.guards)
                return replace(expr, index=index, guards=guards)
            case AxisIndex():
                return AxisIndex(change(expr.expr))
            case Check() | Words():
                return replace(expr, element=change(expr.element))
            case Reduce():
                return replace(expr, axes=names(expr.axes))
            case Fold():
                carries = tuple(replace(c, axes=names(c.axes)) for c in expr.carries)
                step, combine = tuple(map(let, expr.step)), tuple(map(let, expr.combine))
                return Fold(names(expr.axes), carries, step, combine, expr.result)
            case _:
                return expr

    def let(found: Let) -> Let:
        return Let(found.name, found.dtype, names(found.axes), value(found.expr))

    def output(found: Output) -> Output:
        return replace(found, index=tuple(map(change, found.index)))

    roles: Roles | None = kernel.roles
    if roles is not None:
        batch, m, n, k = map(names, (roles.batch, roles.m, roles.n, roles.k))
        roles = replace(roles, batch=batch, m=m, n=n, k=k)
    return replace(
        kernel,
        axes=axes,
        body=tuple(map(let, kernel.body)),
        outputs=tuple(map(output, kernel.outputs)),
        roles=roles,
    )
