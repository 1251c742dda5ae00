"""Sums of products of 8-bit numbers as matrix products of one row.

    y[0, n] = sum over k of x[0, k] w[n, k]    -->    y[m, n] = sum over k of x[m, k] w[n, k], m < 1

A product with a single row is a reduction like any other, and for most dtypes that is the fastest
way to read a matrix once. Numbers of 8 bits are different: widening them one by one takes longer
than reading them, and matrix instructions multiply them as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Final

from weft.foundation.index_expr import Expr, axis, coefficient, linear
from weft.foundation.records import replace
from weft.region.forms.alignment import is_aligned
from weft.region.forms.multiplied import usual_atom
from weft.region.ir import (
    Binary,
    Cast,
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
    Tensor,
    operands,
    row_major,
)
from weft.target.target import Target

_WORTH: Final = 1 << 20
"""Products from which a matrix kernel pays."""
_FIRST: Final = Expr(0, ())


def with_one_row(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> Kernel:
    """The kernel, as a contraction where matrix instructions take it as it lies."""
    if kernel.pattern is not Pattern.ROW or kernel.params or not target.has("wgmma"):
        return kernel
    if len(kernel.outputs) > 1 or math.prod(kernel.sizes.values()) < _WORTH:
        return kernel
    found = _sum_and_factors(kernel)
    if found is None or not all(_is_taken(side, found[0], tensors) for side in found[1:]):
        return kernel
    made = _with_one_row(kernel, tensors, *found)
    atom = usual_atom(made, "sm90") if made is not None else None
    return made if made is not None and atom is not None and atom.word == 1 else kernel


def as_one_row(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Kernel | None:
    """A sum of products as a contraction of one row; None where it is none."""
    found = _sum_and_factors(kernel) if len(kernel.outputs) == 1 and not kernel.params else None
    if found is None or not isinstance(found[1].expr, Read):
        return None
    return _with_one_row(kernel, tensors, *found)


def _sum_and_factors(kernel: Kernel) -> tuple[Let, Let, Let] | None:
    """The sum, what it reads along nothing else, and what it reads along all other axes."""
    sums = [let for let in kernel.body if isinstance(let.expr, Reduce | Fold)]
    total = sums[0]
    if len(sums) > 1 or not isinstance(total.expr, Reduce) or total.expr.fn != "sum":
        return None
    product = kernel.let(total.expr.value).expr
    if not isinstance(product, Binary) or product.fn != "mul":
        return None
    sides = [_read_below(kernel, name) for name in (product.lhs, product.rhs)]
    row, columns = sorted(sides, key=lambda let: len(let.axes))
    k, rest = {*total.expr.axes}, {*total.axes}
    if not rest or rest | k != {*kernel.sizes}:
        return None
    return (total, row, columns) if ({*row.axes}, {*columns.axes}) == (k, rest | k) else None


def _read_below(kernel: Kernel, name: str) -> Let:
    let = kernel.let(name)
    return kernel.let(let.expr.x) if isinstance(let.expr, Cast) else let


def _is_taken(side: Let, total: Let, tensors: Mapping[str, Tensor]) -> bool:
    """Whether matrix instructions take an operand as it lies: along k, rows at whole pieces."""
    read = side.expr
    if not isinstance(read, Read) or read.guards or read.places or side.dtype.storage_bytes != 1:
        return False
    assert isinstance(total.expr, Reduce)
    address = linear(read.index, row_major(tensors[read.tensor].shape))
    return is_aligned(address, 1) and coefficient(address, total.expr.axes[-1]) == 1


def _with_one_row(
    kernel: Kernel, tensors: Mapping[str, Tensor], total: Let, row: Let, columns: Let
) -> Kernel | None:
    """The kernel with an axis of one row; None where a tensor has no place for it."""
    name = next(free for free in _axis_names() if free not in kernel.sizes)
    read, output = row.expr, kernel.outputs[0]
    assert isinstance(read, Read)
    assert isinstance(total.expr, Reduce)
    given = _with_axis(read.index, tensors[read.tensor], name)
    stored = _with_axis(output.index, tensors[output.tensor], name)
    if given is None or stored is None:
        return None
    first = replace(row, expr=replace(read, index=given))
    body = [first if let.name == row.name else let for let in kernel.body]
    return replace(
        kernel,
        pattern=Pattern.MATMUL,
        axes=(KernelAxis(name, 1, reduce=False), *kernel.axes),
        body=tuple(_lets_over_axis(body, row.name, name)),
        outputs=(_defer_output(replace(output, index=stored), total),),
        roles=Roles((), (name,), total.axes, total.expr.axes, total.name, row.name, columns.name),
    )


def _lets_over_axis(body: list[Let], first: str, name: str) -> Iterator[Let]:
    """The Lets, those that depend on the first one over another axis."""
    over = {first}
    for let in body:
        if let.name in over or over & {*operands(let)}:
            over.add(let.name)
            yield replace(let, axes=(name, *let.axes))
        else:
            yield let


def _defer_output(output: Output, total: Let) -> Output:
    if output.value == total.name:
        return output
    return replace(output, materialize=Materialize.DEFERRED)


def _axis_names() -> Iterator[str]:
    return (f"m{number or ''}" for number in count())


def _with_axis(index: tuple[Expr, ...], tensor: Tensor, name: str) -> tuple[Expr, ...] | None:
    """An index with an axis in the first place of a tensor, if that has only one element."""
    if not index or tensor.shape[0] != 1 or index[0] != _FIRST:
        return None
    return (axis(name), *index[1:])
