"""Elementwise kernels over rows that vectors do not divide, as one long row.

    y[i, j] = f(x[i, j]), j < 1001   -->   y[k / 1001, k % 1001] = f(x[k / 1001, k % 1001])

Two axes become one where every access goes along both of them as memory does: a step of the outer
one takes as many elements as all of the inner one. Addresses are then the new axis itself, so that
vectors take what is left of one row and the start of the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from weft.foundation.index_expr import Axis, Expr, axes_of, axis, coefficient, floordiv, linear
from weft.foundation.index_expr import substitute as replaced
from weft.region.forms.widths import vector_bytes
from weft.region.ir import (
    AxisIndex,
    Check,
    Kernel,
    KernelAxis,
    Let,
    Pattern,
    Read,
    Tensor,
    Words,
    row_major,
)

_WHOLE: Final = 16
"""Bytes of the widest access."""


def with_joined_axes(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Kernel:
    """The kernel, with axes joined where that widens its accesses."""
    width = vector_bytes(kernel, tensors, stored=True)
    if kernel.pattern is not Pattern.MAP or kernel.params or width >= _WHOLE:
        return kernel
    if not all(kernel.sizes.values()):
        return kernel
    joined = kernel
    while len(joined.axes) > 1:
        outer, inner = joined.axes[-2:]
        if not _go_together(joined, tensors, outer, inner):
            break
        joined = _joined(joined, outer, inner)
    return joined if vector_bytes(joined, tensors, stored=True) > width else kernel


def _go_together(
    kernel: Kernel, tensors: Mapping[str, Tensor], outer: KernelAxis, inner: KernelAxis
) -> bool:
    """Whether a step along one axis is always all of the other."""
    names = {outer.name, inner.name}
    if any(len(names & set(let.axes)) == 1 for let in kernel.body):
        return False
    if any(_is_bound(let, names) for let in kernel.body):
        return False
    return all(
        _is_plain(address, names)
        and coefficient(address, outer.name) == inner.size * coefficient(address, inner.name)
        for address in _addresses(kernel, tensors)
    )


def _is_bound(let: Let, names: set[str]) -> bool:
    """Whether a read goes where values say, or is guarded along one of the axes."""
    if not isinstance(let.expr, Read):
        return False
    return bool(let.expr.places) or any(names & axes_of(g.expr) for g in let.expr.guards)


def _is_plain(address: Expr, names: set[str]) -> bool:
    """Whether axes of these names stand in an address by themselves, not inside a division."""
    divided = [term for term, _ in address.terms if not isinstance(term, Axis)]
    return not any(names & axes_of(Expr(0, ((term, 1),))) for term in divided)


def _addresses(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Iterator[Expr]:
    """Where elements lie, and the numbers that are made of axes."""
    for let in kernel.body:
        match let.expr:
            case Read(tensor=tensor, index=index):
                yield linear(index, row_major(tensors[tensor].shape))
            case AxisIndex(expr=expr):
                yield expr
            case Check(element=element) | Words(element=element):
                yield element
    for output in kernel.outputs:
        yield linear(output.index, row_major(tensors[output.tensor].shape))


def _joined(kernel: Kernel, outer: KernelAxis, inner: KernelAxis) -> Kernel:
    """The kernel with the two last axes as one, named like the outer one."""
    row = floordiv(axis(outer.name), inner.size)
    moved = {outer.name: row, inner.name: axis(outer.name) - row * inner.size}
    outputs = tuple(
        replace(output, index=tuple(replaced(e, moved) for e in output.index))
        for output in kernel.outputs
    )
    return replace(
        kernel,
        axes=(*kernel.axes[:-2], KernelAxis(outer.name, outer.size * inner.size)),
        body=tuple(_moved(let, moved, inner.name) for let in kernel.body),
        outputs=outputs,
    )


def _moved(let: Let, moved: Mapping[str, Expr], inner: str) -> Let:
    expr = let.expr
    match expr:
        case Read():
            expr = replace(expr, index=tuple(replaced(e, moved) for e in expr.index))
        case AxisIndex():
            expr = AxisIndex(replaced(expr.expr, moved))
        case Check() | Words():
            expr = replace(expr, element=replaced(expr.element, moved))
    return replace(let, axes=tuple(name for name in let.axes if name != inner), expr=expr)
