"""Flattening of axes that a vector does not divide into one long axis.

    y[i, j] = f(x[i, j]), j < 1001   -->   y[k / 1001, k % 1001] = f(x[k / 1001, k % 1001])

Two axes become one where every access goes along both of them as memory does: a step of the outer
one takes as many elements as all of the inner one. Addresses are then the new axis itself, so that
vectors take what is left of one row and the start of the next. Where rows are known to be short, as
those of groups of channels are, what is read once for each of them (`beside`) is read at every one
of its elements, out of a cache.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from weft.foundation.index_expr import (
    Axis,
    Expr,
    Guard,
    axes_of,
    axis,
    coefficient,
    floordiv,
    linear,
)
from weft.foundation.index_expr import substitute as replaced
from weft.foundation.records import replace
from weft.region.forms.widths import vector_bytes
from weft.region.ir import (
    AxisIndex,
    Check,
    Fold,
    Kernel,
    KernelAxis,
    Let,
    Pattern,
    Read,
    Reduce,
    Tensor,
    Words,
    row_major,
    walk,
)

_WHOLE: Final = 16
"""Bytes of the widest access."""
_CPU_VECTOR: Final = 16
"""Elements of the widest vector of a CPU."""
_SHORT: Final = 64
"""Elements of rows so short that a number which is read for each of them may be read for each
element: a vector has few of the same row."""


def with_joined_axes(
    kernel: Kernel, tensors: Mapping[str, Tensor], *, beside: bool = False
) -> Kernel:
    """The kernel, with axes joined where that widens its accesses; `beside` them, short rows may
    read numbers of their own."""
    width = vector_bytes(kernel, tensors, stored=True)
    if kernel.pattern is not Pattern.MAP or kernel.params or width >= _WHOLE:
        return kernel
    if not all(kernel.sizes.values()):
        return kernel
    joined = kernel
    while len(joined.axes) > 1:
        outer, inner = joined.axes[-2:]
        if not _go_together(joined, tensors, outer, inner, beside=beside):
            break
        joined = _join_axes(joined, outer, inner)
    return joined if vector_bytes(joined, tensors, stored=True) > width else kernel


def with_joined_strips(kernel: Kernel, tensors: Mapping[str, Tensor], strips: int) -> Kernel:
    """A kernel with reductions whose last kept axes, `strips` of them, are one with the axis before
    them, where all accesses go along them as memory does."""
    for _ in range(strips):
        kept = [found for found in kernel.axes if not found.reduce]
        if len(kept) < 2 or not _go_together(kernel, tensors, *kept[-2:]):
            break
        kernel = _join_axes(kernel, *kept[-2:])
    return kernel


def with_joined_rows(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Kernel:
    """A kernel with reductions whose last axes are one, where the last does not fill the vectors of
    a CPU: the rows of an image that a norm goes over. All accesses go along both of them as memory
    does, and what is reduced over one is reduced over both."""
    joined = kernel
    while len(joined.axes) > 1 and kernel.pattern is Pattern.ROW and not kernel.params:
        outer, inner = joined.axes[-2:]
        full = inner.size % _CPU_VECTOR == 0 or 0 in joined.sizes.values()
        if full or not _go_together(joined, tensors, outer, inner):
            break
        joined = _join_axes(joined, outer, inner)
    return joined


def with_one_axis(
    kernel: Kernel, tensors: Mapping[str, Tensor], names: Collection[str]
) -> Kernel | None:
    """A kernel with one axis, called like the first, in the place of some; None where an access
    does not go along them as memory does."""
    first, *others = [found.name for found in kernel.axes if found.name in names]
    for name in others:
        outer, inner = (found for found in kernel.axes if found.name in (first, name))
        if not _go_together(kernel, tensors, outer, inner):
            return None
        kernel = _join_axes(kernel, outer, inner)
    return kernel


def _go_together(
    kernel: Kernel,
    tensors: Mapping[str, Tensor],
    outer: KernelAxis,
    inner: KernelAxis,
    *,
    beside: bool = False,
) -> bool:
    """Whether a step along one axis is always all of the other, but for what is read `beside`."""
    names = {outer.name, inner.name}
    for let in walk(kernel.body):
        single = names & set(let.axes)
        if len(single) == 1 and not (beside and _is_of_short_row(let, outer, inner)):
            return False
        if isinstance(let.expr, Read) and let.expr.places:
            return False
        if isinstance(let.expr, Reduce | Fold) and len(names & {*let.expr.axes}) == 1:
            return False
    return all(
        _is_outside_divisions(address, names)
        and coefficient(address, outer.name) == inner.size * coefficient(address, inner.name)
        for address in _addresses(kernel, tensors, names)
    )


def _is_of_short_row(let: Let, outer: KernelAxis, inner: KernelAxis) -> bool:
    """Whether a value is read for each of some short rows."""
    return outer.name in let.axes and inner.size <= _SHORT and isinstance(let.expr, Read)


def _is_outside_divisions(address: Expr, names: set[str]) -> bool:
    """Whether axes of these names stand in an address by themselves, not inside a division."""
    divided = [term for term, _ in address.terms if not isinstance(term, Axis)]
    return not any(names & axes_of(Expr(0, ((term, 1),))) for term in divided)


def _addresses(kernel: Kernel, tensors: Mapping[str, Tensor], names: set[str]) -> Iterator[Expr]:
    """Where elements lie that two axes have, and the numbers that are made of axes."""
    for let in walk(kernel.body):
        match let.expr:
            case Read(tensor=tensor, index=index, guards=guards) if names <= set(let.axes):
                yield linear(index, row_major(tensors[tensor].shape))
                yield from (guard.expr for guard in guards)
            case AxisIndex(expr=expr):
                yield expr
            case Check(element=element) | Words(element=element):
                yield element
    for output in kernel.outputs:
        yield linear(output.index, row_major(tensors[output.tensor].shape))


def _join_axes(kernel: Kernel, outer: KernelAxis, inner: KernelAxis) -> Kernel:
    """The kernel with two axes as one, named like the outer one."""
    row = floordiv(axis(outer.name), inner.size)
    moved = {outer.name: row, inner.name: axis(outer.name) - row * inner.size}
    outputs = tuple(
        replace(output, index=tuple(replaced(e, moved) for e in output.index))
        for output in kernel.outputs
    )
    both = replace(outer, size=outer.size * inner.size)
    axes = [both if found is outer else found for found in kernel.axes if found is not inner]
    return replace(
        kernel,
        axes=tuple(axes),
        body=tuple(_move_let(let, moved, inner.name) for let in kernel.body),
        outputs=outputs,
    )


def _move_let(let: Let, moved: Mapping[str, Expr], inner: str) -> Let:
    expr = let.expr
    match expr:
        case Read():
            guards = tuple(Guard(replaced(g.expr, moved), g.size) for g in expr.guards)
            index = tuple(replaced(e, moved) for e in expr.index)
            expr = replace(expr, index=index, guards=guards)
        case AxisIndex():
            expr = AxisIndex(replaced(expr.expr, moved))
        case Check() | Words():
            expr = replace(expr, element=replaced(expr.element, moved))
        case Reduce():
            expr = replace(expr, axes=_without(expr.axes, inner))
        case Fold():
            expr = replace(
                expr,
                axes=_without(expr.axes, inner),
                carries=tuple(replace(c, axes=_without(c.axes, inner)) for c in expr.carries),
                step=tuple(_move_let(each, moved, inner) for each in expr.step),
                combine=tuple(_move_let(each, moved, inner) for each in expr.combine),
            )
    return replace(let, axes=_without(let.axes, inner), expr=expr)


def _without(axes: tuple[str, ...], inner: str) -> tuple[str, ...]:
    return tuple(name for name in axes if name != inner)
